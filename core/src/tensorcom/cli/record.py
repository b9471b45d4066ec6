"""`tensorcom record`: write a stream to a file, to be served again by `tensorcom serve replay`.

Owns when recording stops; `tensorcom.recording` owns the file.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcom.cli.common import (
    EXIT_OK,
    Parser,
    StopRequest,
    note,
    positive_int,
    positive_seconds,
    run,
    stop_on_signals,
)
from tensorcom.cli.stream import Reader, add_stream_arguments, progress_bar
from tensorcom.errors import ReceiveTimeoutError, TensorcomError
from tensorcom.recording import RecordingWriter
from tensorcom.sender import count_samples

if TYPE_CHECKING:
    import argparse

    from tensorcom.message import Message

PROG = "tensorcom record"
_NOTHING = "the stream ended without a batch; nothing was written"


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Run `tensorcom record`.

    Args:
        argv: arguments; None takes the program's.
        prog: name to show in help and errors.

    Returns:
        The exit code.
    """
    parser = _parser(prog or PROG)
    return run(parser, lambda args: _record(args, parser.prog), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Write the batches of a stream to a file, with their infos, topics and meta. Stops\n"
            "after --count or --seconds, at the end of the stream, or when interrupted. The file\n"
            "appears under its name when it is complete; what came before an interruption or a\n"
            "time limit is kept."
        ),
        example=f"""
            {prog} zsub://server:7880 train.ten --count 1000
            tensorcom serve replay --help
        """,
    )
    parser.add_argument("url", metavar="URL", help="ZMQ URL to read, braces expanded")
    parser.add_argument("out", type=Path, metavar="FILE.ten", help="file to write")
    add_stream_arguments(parser, urls=False)
    parser.add_argument(
        "-c", "--count", type=positive_int, metavar="N", help="stop after N batches"
    )
    parser.add_argument(
        "--seconds",
        type=positive_seconds,
        metavar="S",
        help="stop S seconds after the first batch",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    return parser


@dataclass
class _Tally:
    """What was recorded, and when that began."""

    batches: int = 0
    samples: int = 0
    size_bytes: int = 0
    first_at: float = 0.0

    def add(self, message: Message) -> None:
        """Count a message."""
        if not self.batches:
            self.first_at = time.monotonic()
        self.batches += 1
        self.samples += count_samples(message.arrays)
        self.size_bytes += sum(array.nbytes for array in message.arrays)

    def text(self, bad: int) -> str:
        """Return the counts, and how many messages were skipped, in words."""
        skipped = f", {bad} bad messages skipped" if bad else ""
        size = f"{self.size_bytes / 1e6:.1f} MB"
        return f"{self.batches} batches, {self.samples} samples, {size}{skipped}"

    def over(self, seconds: float | None) -> bool:
        """Return whether `seconds` have passed since the first batch."""
        if seconds is None or not self.batches:
            return False
        return time.monotonic() - self.first_at >= seconds


def _record(args: argparse.Namespace, prog: str) -> int:
    if args.out.exists() and not args.overwrite:
        raise ValueError(f"{args.out} exists; give --overwrite to replace it")
    args.urls = [args.url]
    tally = _Tally()
    late: ReceiveTimeoutError | None = None
    with Reader(args, prog) as reader, stop_on_signals() as stop:
        with RecordingWriter(args.out) as writer:
            try:
                _copy(reader, writer, tally, args, stop)
            except ReceiveTimeoutError as exc:
                late = exc
            if not tally.batches:  # raised in here, so that the writer leaves no file
                raise stop.error or late or TensorcomError(_NOTHING)
        note(prog, f"wrote {args.out}: {tally.text(reader.bad)}")
        failure = stop.error or late
        if failure is not None:
            raise failure
    return EXIT_OK


def _copy(
    reader: Reader,
    writer: RecordingWriter,
    tally: _Tally,
    args: argparse.Namespace,
    stop: StopRequest,
) -> None:
    def enough() -> bool:
        return stop.error is not None or tally.over(args.seconds)

    with progress_bar("recording", total=args.count, unit="batches") as show:
        for message in reader.messages(args.count, until=enough):
            writer.write(message)
            tally.add(message)
            show(tally.batches)


if __name__ == "__main__":
    sys.exit(main())
