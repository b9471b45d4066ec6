"""`serve-imagenet-shards`, `tensorcom serve shards`: serve WebDataset shards."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tensorcom.cli.common import Parser, run
from tensorcom.cli.serve_common import (
    add_image_arguments,
    add_serving_arguments,
    add_url_argument,
    serve,
)
from tensorcom.cli.serve_dir import make_recipe
from tensorcom.serving.sources import shard_batches
from tensorcom.shards import expand_shards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorcom.message import Message
    from tensorcom.serving import Worker

PROG = "serve-imagenet-shards"


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Serve WebDataset shards; return the exit code."""
    name = prog or PROG
    return run(_parser(name), lambda args: _serve(args, name), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Serve batches of WebDataset shards: tars (.tar, .tgz, .tar.gz) whose samples have an\n"
            "image (jpg, jpeg, png, ppm or webp) and a label (cls). Shards are dealt out to the\n"
            "processes.\n\n"
            "A batch is images (N,224,224,3), uint8 in the order NHWC, cropped and flipped at\n"
            "random, and labels (N,), int32 as stored."
        ),
        example=f"{prog} -u '/data/train-{{0000..0147}}.tar' -b 64 -S zrpush://127.0.0.1:7880",
    )
    add_url_argument(parser)
    parser.add_argument(
        "-u", "--url", dest="shards", action="append", required=True, metavar="SHARDS",
        help="names or URLs of shards, braces expanded; may be given several times",
    )  # fmt: skip
    add_image_arguments(parser, threads=("-N", "--num-workers"))
    parser.add_argument(
        "-S", "--shuffle", action=argparse.BooleanOptionalAction, default=False,
        help="shuffle the shards each epoch, and the samples through a buffer (default: no)",
    )  # fmt: skip
    add_serving_arguments(parser, parallel="-p")
    return parser


def _serve(args: argparse.Namespace, prog: str) -> int:
    expand_shards(args.shards)  # a missing shard is better said before anything starts
    return serve(args, prog, make_source)


def make_source(worker: Worker, settings: dict[str, Any]) -> Iterator[Message]:
    """Return the source of one sender."""
    return shard_batches(
        settings["shards"],
        make_recipe(worker, settings),
        shuffle=settings["shuffle"],
        epochs=settings["epochs"],
        index=worker.index,
        count=worker.count,
    )


if __name__ == "__main__":
    sys.exit(main())
