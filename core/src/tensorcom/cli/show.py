"""`tensorshow`: look at the images of a stream, in a file or in a window.

Owns the arguments and the collecting of images; `sheet` draws, `window` shows.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.cli.common import EXIT_OK, Parser, index, note, positive_int, positive_seconds, run
from tensorcom.cli.sheet import (
    LAYOUTS,
    SheetStyle,
    as_pixels,
    draw_sheet,
    images_of,
    label_of,
    require_pillow,
)
from tensorcom.cli.stream import Reader, add_stream_arguments
from tensorcom.cli.window import Window, require_window
from tensorcom.errors import TensorcomError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tensorcom.message import Message

PROG = "tensorshow"
_DEFAULT_LABEL = 1


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Run `tensorshow`.

    Args:
        argv: arguments; None takes the program's.
        prog: name to show in help and errors.

    Returns:
        The exit code.
    """
    parser = _parser(prog or PROG)
    return run(parser, lambda args: _show(args, parser.prog), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Look at the images of a stream with their labels. With --out they go to a PNG file\n"
            "as a contact sheet, which needs no screen; else a window opens, where a key or a\n"
            "click shows the next images and q closes."
        ),
        example=f"""
            {prog} --out sheet.png --class-names names.txt zsub://server:7880
            {prog} --layout NCHW --denormalize --interval-s 2 zsub://server:7880
        """,
    )
    add_stream_arguments(parser)
    add = parser.add_argument
    add("--out", type=Path, metavar="FILE.png", help="write one sheet to this file, and end")
    add(
        "-c",
        "--count",
        type=positive_int,
        default=32,
        metavar="N",
        help="images on a sheet (default: 32)",
    )
    add("--columns", type=positive_int, default=8, metavar="N", help="images in a row (default: 8)")
    add(
        "--tile",
        type=positive_int,
        default=160,
        metavar="PX",
        help="longest side of an image on the sheet (default: 160)",
    )
    add(
        "--layout",
        choices=LAYOUTS,
        default="NHWC",
        help="axes of the images (default: NHWC); it is never guessed",
    )
    add("--image", type=index, default=0, metavar="I", help="position of the images (default: 0)")
    add(
        "--label",
        type=index,
        metavar="I",
        help="position of the labels (default: 1, if there is one): integers, bytes, or a number "
        "per class, of which the largest counts",
    )
    add("--class-names", type=Path, metavar="FILE", help="names of the classes, one per line")
    add(
        "--denormalize",
        action="store_true",
        help="undo ImageNet's normalization of float images; without it they are scaled from their "
        "smallest to their largest value",
    )
    add(
        "--interval-s",
        type=positive_seconds,
        metavar="S",
        help="in a window, show the next images after so long",
    )
    return parser


def _show(args: argparse.Namespace, prog: str) -> int:
    require_pillow()
    if args.out is not None and args.out.suffix.lower() != ".png":
        raise ValueError(f"--out {args.out}: expected a name that ends in .png")
    if args.out is not None and args.interval_s is not None:
        raise ValueError("--interval-s is for a window, --out writes one sheet")
    names = _class_names(args.class_names)
    style = SheetStyle(args.columns, args.tile, args.denormalize)
    pyplot = require_window() if args.out is None else None
    with Reader(args, prog) as reader:
        sheets = _sheets(reader, args, names, style)
        if pyplot is not None:
            Window(pyplot, sheets, interval_s=args.interval_s).run()
            return EXIT_OK
        sheet, text = next(sheets, (None, ""))
    if sheet is None:
        raise TensorcomError("the stream ended without an image; nothing was written")
    _save(sheet, args.out)
    note(prog, f"wrote {args.out}: {text}")
    return EXIT_OK


def _class_names(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as exc:
        raise ValueError(f"--class-names {path}: not UTF-8 at byte {exc.start}") from exc


def _save(sheet: Any, path: Path) -> None:
    """Write a PNG under a temporary name, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        sheet.save(temporary, format="PNG")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _sheets(
    reader: Reader, args: argparse.Namespace, names: Sequence[str], style: SheetStyle
) -> Iterator[tuple[Any, str]]:
    """Yield sheets with what is to be said of them until the stream ends."""
    images: list[NDArray[Any]] = []
    labels: list[str] = []
    for message in reader.messages():
        batch, texts = _images_and_labels(message, args, names)
        images += batch
        labels += texts
        while len(images) >= args.count:
            yield _sheet(images[: args.count], labels[: args.count], style)
            del images[: args.count], labels[: args.count]
    if images:
        yield _sheet(images, labels, style)


def _sheet(images: Sequence[NDArray[Any]], labels: Sequence[str], style: SheetStyle) -> Any:
    pixels, change = as_pixels(images, denormalize=style.denormalize)
    shapes = {image.shape[:2] for image in images}
    heights, widths = zip(*shapes, strict=True)
    text = f"{len(images)} images of {_range(heights)} × {_range(widths)} pixels"
    return draw_sheet(pixels, labels, style), f"{text}, {change}" if change else text


def _range(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low}…{high}"


def _images_and_labels(
    message: Message, args: argparse.Namespace, names: Sequence[str]
) -> tuple[list[NDArray[Any]], list[str]]:
    arrays = [np.asarray(array) for array in message.arrays]
    images = images_of(_at(arrays, args.image, "--image"), args.layout)
    position = args.label
    if position is None:
        if len(arrays) <= _DEFAULT_LABEL or args.image == _DEFAULT_LABEL:
            return list(images), [""] * len(images)
        position = _DEFAULT_LABEL
    labels = _at(arrays, position, "--label")
    if not labels.ndim or len(labels) != len(images):
        raise ValueError(
            f"labels of shape {labels.shape} for {len(images)} images; is --label right?"
        )
    return list(images), [label_of(label, names) for label in labels]


def _at(arrays: Sequence[NDArray[Any]], position: int, option: str) -> NDArray[Any]:
    if position >= len(arrays):
        raise ValueError(f"{option} {position}: the batches have {len(arrays)} tensors")
    return arrays[position]


if __name__ == "__main__":
    sys.exit(main())
