"""What all commands share: parsers, exit codes, one-line errors, signals and logging.

Owns how a command begins and ends. Knows nothing of streams, which `stream` opens.

Exit codes: 0 done, 1 failed, 2 wrong arguments, 130 interrupted, 141 the reader of the output went
away, 143 terminated.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import math
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from tensorcom.errors import TensorcomError, ZmqUrlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = 143

logger = logging.getLogger("tensorcom.cli")


class Terminated(BaseException):
    """SIGTERM came; no Exception, as KeyboardInterrupt is none, so that nothing handles it."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and which takes no abbreviated options.

    Args:
        prog: name of the command.
        description: what the command does; paragraphs are kept.
        example: commands to copy, one per line.
    """

    def __init__(self, prog: str, *, description: str, example: str) -> None:
        lines = "\n".join(f"  {line.strip()}" for line in example.strip().splitlines())
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"example:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        self.exit(EXIT_USAGE, f"{self.prog}: error: {_one_line(message)}\n")


def add_verbose_argument(parser: argparse.ArgumentParser) -> None:
    """Add `-v`, which `run` acts on."""
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="log what happens, on standard error"
    )


def run(
    parser: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse the arguments, run a command and turn how it ends into an exit code.

    Args:
        parser: parser of the command; its `prog` begins the line of an error.
        command: gets the parsed arguments and returns the exit code.
        argv: arguments; None takes the program's.

    Returns:
        0 to 2, 130, 141 or 143. What is none of the expected errors is raised: it is a bug.
    """
    try:
        with _terminable():
            args = parser.parse_intermixed_args(argv)
            with _logging(parser.prog, verbose=getattr(args, "verbose", False)):
                code = command(args)
            sys.stdout.flush()
            return code
    except SystemExit as exc:  # --help, --version and Parser.error
        return exc.code if isinstance(exc.code, int) else EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Terminated:
        return EXIT_TERMINATED
    except BrokenPipeError:
        _drop_output()
        return EXIT_BROKEN_PIPE
    except ZmqUrlError as exc:
        return _fail(parser.prog, exc, EXIT_USAGE)
    except (TensorcomError, OSError) as exc:
        return _fail(parser.prog, exc, EXIT_FAILED)
    except ValueError as exc:  # an argument that only its use showed to be wrong
        return _fail(parser.prog, exc, EXIT_USAGE)


def dispatch(
    argv: Sequence[str], prog: str, commands: Mapping[str, tuple[str, str]], parser: Parser
) -> int:
    """Run the command that the first argument names, and import no other one.

    Args:
        argv: arguments.
        prog: what the command's name is put after.
        commands: module and one line of help, by name.
        parser: says what is wrong if there is no such command.
    """
    if argv and argv[0] in commands:
        module = importlib.import_module(commands[argv[0]][0])
        return int(module.main(list(argv[1:]), prog=f"{prog} {argv[0]}"))
    return run(parser, lambda _args: parser.error("no command given (see --help)"), argv)


def listing(commands: Mapping[str, tuple[str, str]]) -> str:
    """Return the lines of help for commands."""
    return "\n".join(f"  {name:10}{text}" for name, (_, text) in commands.items())


def add_command(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    """Add the command, which only reaches the parser if it is missing or unknown."""
    parser.add_argument("command", nargs="?", metavar="COMMAND", choices=names, help="see above")
    parser.add_argument("arguments", nargs="*", metavar="...", help="arguments of the command")


def _fail(prog: str, error: Exception, code: int) -> int:
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, TensorcomError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        text = where + error.strerror
    sys.stderr.write(f"{prog}: error: {_one_line(text)}\n")
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _drop_output() -> None:
    """Send what is still buffered nowhere, else the interpreter's exit would complain."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


class StopRequest:
    """Asks to stop at the next good moment instead of at once.

    Attributes:
        error: what the first SIGINT or SIGTERM would have raised; None while none came.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        error = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
        if self.error is not None:
            raise error
        self.error = error


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request to stop; the second one raises.

    Yields:
        The request, to look at between steps that must not be torn apart.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    # A program in the background of a script ignores SIGINT, and goes on to.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    previous = {number: signal.signal(number, request._handle) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the command as Ctrl-C does, where signals can be handled."""

    def handle(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _logging(prog: str, *, verbose: bool) -> Iterator[None]:
    """Show the package's log on standard error while a command runs."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{prog}: %(message)s"))
    package = logging.getLogger("tensorcom")
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)


def positive_int(text: str) -> int:
    """Parse an integer from 1, for `type=` of an argument."""
    value = int(text) if text.isascii() and text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 1")
    return value


def index(text: str) -> int:
    """Parse an integer from 0, for `type=` of an argument."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 0")
    return int(text)


def seconds(text: str) -> float:
    """Parse seconds from 0, for `type=` of an argument."""
    return _number(text, lowest="a number of seconds from 0", positive=False)


def positive_seconds(text: str) -> float:
    """Parse seconds over 0, for `type=` of an argument."""
    return _number(text, lowest="a number of seconds over 0", positive=True)


def _number(text: str, *, lowest: str, positive: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not {lowest}")
    return value


def write_line(text: str) -> None:
    """Write one line to standard output at once, so that a reading program sees it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(prog: str, text: str) -> None:
    """Tell the user something on standard error."""
    sys.stderr.write(f"{prog}: {text}\n")
    sys.stderr.flush()


def plain_number(value: Any) -> Any:
    """Return a JSON-compatible number: None for a float that JSON has no word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
