"""`tensorcom serve replay`: serve a recording."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorcom.cli.common import Parser, positive_int, positive_seconds, run
from tensorcom.cli.serve_common import DEFAULT_URL, add_serving_arguments, serve
from tensorcom.errors import SourceError
from tensorcom.serving.sources import replay_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorcom.message import Message
    from tensorcom.serving import Worker

PROG = "tensorcom serve replay"


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Serve a recording; return the exit code."""
    name = prog or PROG
    return run(_parser(name), lambda args: _serve(args, name), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Serve a recording made by 'tensorcom record', or any tenbin file. With several URLs\n"
            "or processes the messages are dealt out."
        ),
        example=f"{prog} batches.ten zrpush://127.0.0.1:7880",
    )
    parser.add_argument("recording", help="the file")
    parser.add_argument(
        "url", nargs="*", default=[DEFAULT_URL],
        help=f"ZMQ URLs to serve on, braces expanded, a process for each (default {DEFAULT_URL})",
    )  # fmt: skip
    parser.add_argument(
        "--epochs", type=positive_int, default=1, metavar="N", help="how often (default 1)"
    )
    parser.add_argument("--forever", action="store_true", help="again and again")
    parser.add_argument(
        "--rate", type=positive_seconds, metavar="R", help="at most R messages/s per process"
    )
    parser.add_argument(
        "--arrays", type=positive_int, default=2, metavar="N",
        help="arrays per message of a file that is no recording (default 2)",
    )  # fmt: skip
    add_serving_arguments(parser, parallel="-P")
    return parser


def _serve(args: argparse.Namespace, prog: str) -> int:
    if not Path(args.recording).is_file():
        raise SourceError("no such recording", path=args.recording)
    return serve(args, prog, make_source)


def make_source(worker: Worker, settings: dict[str, Any]) -> Iterator[Message]:
    """Return the source of one sender."""
    messages = replay_batches(
        settings["recording"],
        epochs=None if settings["forever"] else settings["epochs"],
        rate=settings["rate"],
        arrays_per_message=settings["arrays"],
    )
    return itertools.islice(messages, worker.index, None, worker.count)


if __name__ == "__main__":
    sys.exit(main())
