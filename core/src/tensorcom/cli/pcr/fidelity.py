"""`tensorcom pcr fidelity`: measure what each scan group adds to the images of a set."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcom.cli.common import (
    EXIT_OK,
    Parser,
    index,
    note,
    plain_number,
    positive_int,
    run,
    write_line,
)
from tensorcom.cli.pcr.common import (
    add_root_argument,
    add_threads_argument,
    counted,
    new_console,
    new_table,
    shown,
    size_text,
)
from tensorcom.cli.stream import progress_bar
from tensorcom.errors import PcrWriteError
from tensorcom.images.folder import printable
from tensorcom.images.similarity import WEIGHTS
from tensorcom.pcr import PcrReader
from tensorcom.pcr.fidelity import SAMPLES, FidelityReport, GroupFidelity, measure_fidelity

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

PROG = "tensorcom pcr fidelity"
_LEVELS = len(WEIGHTS)


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Measure a set; return the exit code."""
    parser = _parser(prog or PROG)
    return run(parser, lambda args: _measure(args, parser.prog), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Measure how like the whole images those of 1, 2, ... scan groups are, on some images\n"
            "drawn at random: mean MS-SSIM (1 is equal), the MS-SSIM that a tenth of the images\n"
            "are below, PSNR of the mean squared error, and the bytes that they take.\n"
            "Images are decoded as in training, without the smoothing of some decoders.\n\n"
            "MS-SSIM has five levels, for which an image needs sides of at least 161 pixels. Of\n"
            "smaller images fewer levels are taken, which gives other numbers."
        ),
        example=f"""
            {prog} records/ --plot fidelity.png
            {prog} records/ --images 500 --json
        """,
    )
    add_root_argument(parser)
    parser.add_argument(
        "-n", "--images", type=positive_int, default=SAMPLES, metavar="N",
        help=f"images to measure (default {SAMPLES})",
    )  # fmt: skip
    parser.add_argument("--seed", type=index, default=0, help="of the draw (default 0)")
    parser.add_argument(
        "--smoothing", dest="guard", action="store_false", default=True,
        help="let the decoder smooth blocks, as other programs do",
    )  # fmt: skip
    add_threads_argument(parser)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw MS-SSIM over bytes, as .png, .svg or .pdf"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the plot if it exists")
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    return parser


def _measure(args: argparse.Namespace, prog: str) -> int:
    draw = _drawer(args)  # what keeps it from drawing is better said before the work
    with PcrReader(args.root) as reader:
        images = min(args.images, len(reader))
        with progress_bar("measuring", total=images, unit="images", rate=True) as show:
            report = measure_fidelity(
                reader,
                samples=args.images,
                seed=args.seed,
                guard=args.guard,
                threads=args.threads,
                on_progress=lambda done, _total: show(done),
            )
        root, script = reader.root, reader.script
    title = f"{shown(root)}: {counted(report.images, 'image')}, {_levels_text(report)}"
    if args.json:
        name = None if script is None else script.name
        write_line(_as_json(report, root=root, scan_script=name, seed=args.seed))
    else:
        _print(report, title)
    if draw is not None:
        draw(report, title)
        note(prog, f"wrote {printable(str(args.plot))}")
    return EXIT_OK


def _drawer(args: argparse.Namespace) -> Callable[[FidelityReport, str], None] | None:
    """Return what draws the plot, or None if none is asked for."""
    if args.plot is None:
        return None
    from tensorcom.cli.pcr.plot import check_suffix, draw_fidelity

    path = args.plot
    check_suffix(path)
    if path.exists() and not args.overwrite:
        reason = "exists; give --overwrite to replace it"
        raise PcrWriteError(reason, path=printable(str(path)))
    return lambda report, title: draw_fidelity(report, title, path)


def _as_json(report: FidelityReport, **values: object) -> str:
    groups = [
        {key: plain_number(value) for key, value in asdict(group).items()}
        for group in report.groups
    ]
    levels = {str(level): count for level, count in report.levels.items()}
    return json.dumps({**values, "images": report.images, "levels": levels, "groups": groups})


def _levels_text(report: FidelityReport) -> str:
    """Return how many levels of MS-SSIM the images were measured with."""
    if list(report.levels) == [_LEVELS]:
        return f"MS-SSIM of {_LEVELS} levels"
    parts = [
        f"{count} of {level} levels" if level else f"{count} too small"
        for level, count in report.levels.items()
    ]
    return f"MS-SSIM: {', '.join(parts)}"


def _print(report: FidelityReport, title: str) -> None:
    console = new_console()
    console.print(title, markup=False, soft_wrap=True)
    table = new_table(
        "scan_groups", "an image", "of all", "MS-SSIM", "10 % below", "levels", "PSNR dB"
    )
    low, high = min(report.levels), max(report.levels)
    levels = str(high) if low == high else f"{low} to {high}"
    for group in report.groups:
        table.add_row(
            str(group.scan_groups),
            size_text(group.image_bytes),
            f"{group.share:.1%}",
            _likeness(group.ms_ssim),
            _likeness(group.ms_ssim_low),
            levels,
            _decibels(group),
        )
    console.print(table)


def _likeness(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _decibels(group: GroupFidelity) -> str:
    value = plain_number(group.psnr_db)
    return "equal" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
