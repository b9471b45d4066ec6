"""`serve-imagenet-dir`, `tensorcom serve dir`: serve an image folder."""

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
from tensorcom.images import ImageFolder, training_folder
from tensorcom.serving.batching import Recipe
from tensorcom.serving.sources import folder_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorcom.message import Message
    from tensorcom.serving import Worker

PROG = "serve-imagenet-dir"


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Serve an image folder; return the exit code."""
    name = prog or PROG
    return run(_parser(name), lambda args: _serve(args, name), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Serve batches of an image folder: DIR/class/image, or DIR/train/class/image.\n\n"
            "A batch is images (N,224,224,3), uint8 in the order NHWC, cropped and flipped at\n"
            "random, and labels (N,), int32 from 0. SIGTERM and Ctrl-C drain: each process sends\n"
            "what it has and ends, and so does the command, with exit code 0."
        ),
        example=f"{prog} -d /data/imagenet -b 64 'zrpush://127.0.0.1:788{{0..3}}'",
    )
    add_url_argument(parser)
    parser.add_argument(
        "-d", "--dir", default="./imagenet", help="the image folder (default ./imagenet)"
    )
    add_image_arguments(parser, threads=("-w", "--workers"))
    parser.add_argument(
        "-S", "--shuffle", action=argparse.BooleanOptionalAction, default=True,
        help="a new order each epoch (default), or the folder's",
    )  # fmt: skip
    add_serving_arguments(parser, parallel="-P")
    return parser


def _serve(args: argparse.Namespace, prog: str) -> int:
    ImageFolder(training_folder(args.dir))  # an empty folder is better said before anything starts
    return serve(args, prog, make_source)


def make_recipe(worker: Worker, settings: dict[str, Any]) -> Recipe:
    """Return the recipe that the command's arguments ask for."""
    return Recipe(
        batch_size=settings["batch_size"],
        size=settings["size"],
        augment=settings["augment"],
        normalize=settings["normalize"],
        threads=1 + settings["threads"],
        seed=settings["seed"],
        drop_last=settings["drop_last"],
        on_error=settings["on_error"],
        on_skip=lambda error: worker.report({"skipped": str(error)[:2000]}),
    )


def make_source(worker: Worker, settings: dict[str, Any]) -> Iterator[Message]:
    """Return the source of one sender."""
    return folder_batches(
        settings["dir"],
        make_recipe(worker, settings),
        shuffle=settings["shuffle"],
        epochs=settings["epochs"],
        index=worker.index,
        count=worker.count,
    )


if __name__ == "__main__":
    sys.exit(main())
