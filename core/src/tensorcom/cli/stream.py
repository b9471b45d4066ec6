"""What the commands that read a stream share: its arguments, its opening, its messages.

Owns when reading is over: enough batches, the end of the stream, or nothing for too long.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from tensorcom.cli.common import add_verbose_argument, note, seconds
from tensorcom.connection import Connection
from tensorcom.errors import ReceiveTimeoutError, ZmqUrlError
from tensorcom.message import Message
from tensorcom.progress import IterationOver, Progress
from tensorcom.zmq_url import expand_urls, parse_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

DEFAULT_URL = "zsub://127.0.0.1:7880"
_OTHER_END = {
    "zpush": "zpull",
    "zpub": "zsub",
    "zrpush": "zrpull",
    "zrpub": "zrsub",
}

logger = logging.getLogger("tensorcom.cli")


def add_stream_arguments(parser: argparse.ArgumentParser, *, urls: bool = True) -> None:
    """Add what every reader of a stream takes: URLs, time limit, policy for bad messages, `-v`."""
    if urls:
        parser.add_argument(
            "urls",
            nargs="*",
            default=[DEFAULT_URL],
            metavar="URL",
            help=f"ZMQ URLs to read, braces expanded (default: {DEFAULT_URL})",
        )
    parser.add_argument(
        "--timeout-s",
        type=seconds,
        default=60.0,
        metavar="S",
        help="fail when no batch comes for so long, 0 to wait for ever (default: 60); "
        "a timeout_s in the URL goes before",
    )
    parser.add_argument(
        "--on-bad-message",
        choices=("raise", "skip"),
        default="skip",
        help="fail at a message that is no batch, or skip and count it (default: skip)",
    )
    add_verbose_argument(parser)


def open_connection(args: argparse.Namespace, prog: str, **options: Any) -> Connection:
    """Open the connection that the arguments of `add_stream_arguments` ask for.

    Args:
        args: the parsed arguments.
        prog: name of the command, for notes.
        **options: further arguments of Connection.

    Raises:
        ZmqUrlError: a URL is wrong, or sends.
        BindError, ConnectError: an address cannot be used.
    """
    urls = [(text, parse_url(text)) for text in expand_urls(args.urls)]
    for text, url in urls:
        if url.sends:
            other = _OTHER_END[url.scheme]
            raise ZmqUrlError(
                f"{url.scheme} sends and this command receives; use {other}", url=text
            )
    connection = Connection(
        [text for text, _ in urls],
        noexpand=True,
        timeout_s=args.timeout_s or None,
        on_bad_message=args.on_bad_message,
        **options,
    )
    if any(url.binds and url.address.endswith(":0") for _, url in urls):
        note(prog, f"listening on {', '.join(connection.urls)}")
    else:
        logger.info("reading %s", ", ".join(connection.urls))
    return connection


class Reader:
    """Reads a stream until there is enough, or it ends, or nothing comes for too long.

    Args:
        args: the parsed arguments of `add_stream_arguments`.
        prog: name of the command, for notes.
        raw: read frames, not what is in them; the stream's end is then not seen.
        tick: called between messages and several times a second while none comes.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        prog: str,
        *,
        raw: bool = False,
        tick: Callable[[], None] | None = None,
    ) -> None:
        self.connection = open_connection(args, prog, raw=raw)
        limit = parse_url(self.connection.urls[0]).options.get("timeout_s", args.timeout_s)
        self._limit_s = float(limit) or None
        self._tick = tick

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    @property
    def bad(self) -> int:
        """Messages skipped because they were no batch."""
        return self.connection.stats.bad

    def messages(
        self, count: int | None = None, *, until: Callable[[], bool] | None = None
    ) -> Iterator[Message]:
        """Yield messages that hold arrays; of a raw reader, empty ones.

        Args:
            count: most messages; None for no limit.
            until: asked between messages and several times a second; True ends the reading.

        Raises:
            ReceiveTimeoutError: no batch came in time.
            MessageError: a message is bad and the policy is to raise.
        """
        watch = _Watch(self, until)
        while count is None or count > 0:
            try:
                watch.check()
                item = self.connection.receive(self._limit_s, watch)
            except IterationOver:
                return
            count = None if count is None else count - 1
            yield Message(()) if isinstance(item, list) else item
            watch.restart()

    def check(self, waited_s: float) -> None:
        """Let time pass.

        Raises:
            ReceiveTimeoutError: no batch came in time, though other messages did.
        """
        if self._tick is not None:
            self._tick()
        # Half a second more: where no message came at all, the connection itself says so.
        if self._limit_s is None or waited_s < self._limit_s + 0.5:
            return
        stats = self.connection.stats
        raise ReceiveTimeoutError(
            f"no batch in {self._limit_s:g} s ({stats.bad} bad messages skipped, "
            f"{stats.filtered} of another topic)",
            urls=self.connection.urls,
            timeout_s=self._limit_s,
            last_seen=stats.last_seen_s(),
        )


class _Watch(Progress):
    """The progress of a reader: the connection tells it of ends and lets it look at the time."""

    def __init__(self, reader: Reader, until: Callable[[], bool] | None) -> None:
        super().__init__(None, servers=reader.connection.servers)
        self._reader = reader
        self._until = until
        self.restart()

    def restart(self) -> None:
        """Begin to wait for a batch."""
        self._since = time.monotonic()

    def check(self) -> None:
        """Raise IterationOver if no more is wanted or will come."""
        super().check()
        if self._until is not None and self._until():
            raise IterationOver
        self._reader.check(time.monotonic() - self._since)


@contextlib.contextmanager
def progress_bar(
    text: str, *, total: int | None, unit: str, rate: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show how far a command is, on standard error if that is a terminal.

    Args:
        text: what is going on.
        total: how much there is, None if unknown.
        unit: what is counted.
        rate: show how many come in a second too, and how long the rest will take.

    Yields:
        A function to call with how much is done.
    """
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    of = "" if total is None else f"/{total}"
    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed}}{of} {unit}"),
        TimeElapsedColumn(),
    ]
    if rate:
        columns += [TextColumn("{task.fields[rate]}"), TextColumn("left"), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total, rate="")

        def show(done: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, completed=done, rate=f"{speed:.0f} {unit}/s" if speed else "")

        yield show
