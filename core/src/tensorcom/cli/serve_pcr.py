"""`tensorcom serve pcr`: serve a set of progressive compressed records."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tensorcom.cli.common import Parser, positive_int, run
from tensorcom.cli.serve_common import (
    add_image_arguments,
    add_serving_arguments,
    add_url_argument,
    serve,
)
from tensorcom.cli.serve_dir import make_recipe
from tensorcom.pcr import PcrReader
from tensorcom.serving.records import pcr_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorcom.message import Message
    from tensorcom.serving import Worker

PROG = "tensorcom serve pcr"


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Serve a set of records; return the exit code."""
    name = prog or PROG
    return run(_parser(name), lambda args: _serve(args, name), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Serve batches of a set of progressive compressed records, at the fidelity that\n"
            "--scan-groups says: fewer groups are fewer bytes to read.\n\n"
            "A batch is images (N,224,224,3), uint8 in the order NHWC, cropped and flipped at\n"
            "random, and labels (N,), int32 as stored. Together the processes send each image\n"
            "once an epoch. SIGTERM and Ctrl-C drain: each process sends what it has and ends."
        ),
        example=f"{prog} records/ --scan-groups 5 -b 64 'zrpush://127.0.0.1:788{{0..3}}'",
    )
    parser.add_argument("root", metavar="ROOT", help="directory of the set, or its URL")
    add_url_argument(parser)
    parser.add_argument(
        "-k", "--scan-groups", type=positive_int, metavar="K",
        help="scan groups to read (default: all)",
    )  # fmt: skip
    add_image_arguments(parser, threads=("-w", "--workers"))
    parser.add_argument(
        "-S", "--shuffle", action=argparse.BooleanOptionalAction, default=True,
        help="a new order each epoch (default), or the set's",
    )  # fmt: skip
    add_serving_arguments(parser, parallel="-P")
    return parser


def _serve(args: argparse.Namespace, prog: str) -> int:
    # What is wrong with the set is better said before anything starts.
    with PcrReader(args.root) as reader:
        reader.table.check_groups(args.scan_groups)
    return serve(args, prog, make_source)


def make_source(worker: Worker, settings: dict[str, Any]) -> Iterator[Message]:
    """Return the source of one sender."""
    return pcr_batches(
        settings["root"],
        make_recipe(worker, settings),
        scan_groups=settings["scan_groups"],
        shuffle=settings["shuffle"],
        epochs=settings["epochs"],
        index=worker.index,
        count=worker.count,
    )


if __name__ == "__main__":
    sys.exit(main())
