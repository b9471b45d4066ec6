"""`tensormon`: watch a stream, its rates, its losses and where its time goes.

Owns when reports are made; `report` makes them.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Protocol

from tensorcom.cli.common import EXIT_OK, Parser, positive_int, positive_seconds, run, write_line
from tensorcom.cli.report import Meter, Report, as_line, as_table
from tensorcom.cli.stream import Reader, add_stream_arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from types import TracebackType

PROG = "tensormon"
_REFRESH_S = 0.25


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Run `tensormon`.

    Args:
        argv: arguments; None takes the program's.
        prog: name to show in help and errors.

    Returns:
        The exit code.
    """
    parser = _parser(prog or PROG)
    return run(parser, lambda args: _monitor(args, parser.prog), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Watch a stream: batches, samples and bytes per second, what is missing or came\n"
            "twice, and where time goes, for each sender. Ends with the stream.\n\n"
            "Times are means per batch in ms: →decoded since it was read, →sent since it was\n"
            "decoded, →received since it was sent. The last compares the clocks of two hosts.\n"
            "On a PUB stream watching takes nothing from other readers; on a PUSH stream it does."
        ),
        example=f"""
            {prog} zsub://server:788{{0..3}}
            {prog} --json --count 1000 zpull://0.0.0.0:7880
        """,
    )
    add_stream_arguments(parser)
    parser.add_argument(
        "-R",
        "--raw",
        action="store_true",
        help="count messages and bytes without reading what is in them; "
        "the stream's end is then unknown",
    )
    every = parser.add_mutually_exclusive_group()
    every.add_argument(
        "-r", "--report", type=positive_int, metavar="N", help="report every N batches"
    )
    every.add_argument(
        "--interval-s",
        type=positive_seconds,
        default=1.0,
        metavar="S",
        help="report every S seconds (default: 1)",
    )
    parser.add_argument(
        "-c", "--count", type=positive_int, metavar="N", help="stop after N batches"
    )
    parser.add_argument(
        "--json", action="store_true", help="write each report as a JSON object on a line"
    )
    return parser


class Output(Protocol):
    """Where reports go."""

    def __enter__(self) -> Output: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def emit(self, report: Report) -> None:
        """Show a new report."""

    def refresh(self, report: Report) -> None:
        """Show anew how long ago things in a report were."""


class _Lines:
    """Reports as lines of text or JSON."""

    def __init__(self, render: Callable[[Report], str]) -> None:
        self._render = render

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def emit(self, report: Report) -> None:
        write_line(self._render(report))

    def refresh(self, report: Report) -> None:
        pass


class _Screen:
    """Reports as a table that stays in its place on a terminal."""

    def __init__(self, urls: Sequence[str]) -> None:
        from rich.live import Live

        self._urls = urls
        self._live = Live(auto_refresh=False)

    def __enter__(self) -> Output:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def emit(self, report: Report) -> None:
        self.refresh(report)

    def refresh(self, report: Report) -> None:
        table = as_table(report, self._urls, state="waiting for the first batch")
        self._live.update(table, refresh=True)


class _Clock:
    """Makes reports in time, and refreshes the last one in between.

    Args:
        every: batches per report, or None.
        interval_s: seconds per report where `every` is None.
    """

    def __init__(self, *, every: int | None, interval_s: float) -> None:
        self._every = every
        self._interval_s = interval_s
        self._refreshed = 0.0
        self.reports = 0

    def start(self, meter: Meter, output: Output) -> None:
        """Begin to report."""
        self._meter = meter
        self._output = output
        self._last = meter.report()

    def tick(self) -> None:
        """Let time pass."""
        if self._every is None and self._meter.age_s >= self._interval_s:
            self.emit()
        elif time.monotonic() - self._refreshed >= _REFRESH_S:
            self._refreshed = time.monotonic()
            self._output.refresh(self._last)

    def count(self) -> None:
        """Take in that a batch was counted."""
        if self._every is not None and self._meter.batches >= self._every:
            self.emit()

    def finish(self) -> None:
        """Report what no report has told yet."""
        if self._meter.batches or not self.reports:
            self.emit()

    def emit(self) -> None:
        """Report now."""
        self._last = self._meter.report()
        self._refreshed = time.monotonic()
        self._output.emit(self._last)
        self.reports += 1


def _output(urls: Sequence[str], *, as_json: bool) -> Output:
    if as_json:
        return _Lines(lambda report: json.dumps(report.as_dict(), allow_nan=False))
    return _Screen(urls) if sys.stdout.isatty() else _Lines(as_line)


def _monitor(args: argparse.Namespace, prog: str) -> int:
    clock = _Clock(every=args.report, interval_s=args.interval_s)
    with Reader(args, prog, raw=args.raw, tick=clock.tick) as reader:
        connection = reader.connection
        meter = Meter(connection.stats)
        with _output(connection.urls, as_json=args.json) as output:
            clock.start(meter, output)
            for message in reader.messages(args.count):
                meter.note(message)
                clock.count()
            clock.finish()
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
