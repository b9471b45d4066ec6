"""What the commands that look into a set of records share.

Owns their common arguments, and how names and sizes are written.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from tensorcom.cli.common import positive_int
from tensorcom.images.folder import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PIPE_WIDTH = 120
_RANGE = re.compile(r"([0-9]{0,18}):([0-9]{0,18})")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def add_root_argument(parser: argparse.ArgumentParser) -> None:
    """Add the set."""
    parser.add_argument("root", metavar="ROOT", help="directory of the set, or its URL")


def add_scan_groups_argument(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add the number of scan groups."""
    parser.add_argument("-k", "--scan-groups", type=positive_int, metavar="K", help=help_text)


def add_samples_argument(parser: argparse.ArgumentParser) -> None:
    """Add a range of samples."""
    parser.add_argument(
        "--samples", type=sample_slice, metavar="A:B", default=slice(None),
        help="only samples A to B - 1, by number (default: all)",
    )  # fmt: skip


def add_threads_argument(parser: argparse.ArgumentParser) -> None:
    """Add the number of threads."""
    parser.add_argument(
        "--threads", type=positive_int, metavar="N", help="threads (default: one for each core)"
    )


def sample_slice(text: str) -> slice:
    """Parse `A:B`, either of which may be left out, for `type=` of an argument."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no range A:B of numbers from 0")
    start, stop = (int(part) if part else None for part in found.groups())
    return slice(start, stop)


def shown(text: str) -> str:
    """Return a name as it can be printed, in one line and without control of the terminal."""
    clean = printable(text.encode("utf-8", "backslashreplace").decode() if _odd(text) else text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in clean)


def _odd(text: str) -> bool:
    """Tell whether there are surrogates that stand for no byte."""
    return any("\ud800" <= c <= "\udfff" and not "\udc80" <= c <= "\udcff" for c in text)


def size_text(size_bytes: float) -> str:
    """Return a size in the unit that suits it."""
    unit = 0
    while size_bytes >= 1000 and unit + 1 < len(_UNITS):  # noqa: PLR2004 - of a unit
        size_bytes /= 1000
        unit += 1
    digits = f"{size_bytes:.0f}" if not unit else f"{size_bytes:.3g}"
    return f"{digits} {_UNITS[unit]}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def new_console() -> Console:
    """Return a console for standard output, wide enough for tables if that is no terminal."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `run` knows what to do; rich would end the program itself

    return PipeConsole(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def new_table(*columns: str, left: tuple[str, ...] = ()) -> Table:
    """Return a table of numbers; columns in `left` hold text."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    return table
