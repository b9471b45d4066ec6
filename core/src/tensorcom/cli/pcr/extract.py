"""`tensorcom pcr extract`: write the images of a set as JPEG files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tensorcom.cli.common import EXIT_OK, Parser, note, run
from tensorcom.cli.pcr.common import (
    add_root_argument,
    add_samples_argument,
    add_scan_groups_argument,
    add_threads_argument,
    counted,
    shown,
    size_text,
)
from tensorcom.cli.stream import progress_bar
from tensorcom.pcr import PcrReader
from tensorcom.pcr.extract import extract

if TYPE_CHECKING:
    import argparse

PROG = "tensorcom pcr extract"


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Write the images of a set; return the exit code."""
    parser = _parser(prog or PROG)
    return run(parser, lambda args: _extract(args, parser.prog), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Write the images of a set as JPEG files, in a folder for each class: their bytes as\n"
            "the set has them, up to the scan group that is asked for. Files are named as their\n"
            "sources were, with the number of the sample where two would be alike; names that are\n"
            "not safe are changed. Nothing is written if one of the files exists."
        ),
        example=f"""
            {prog} records/ images/
            {prog} records/ small/ -k 2 --samples 0:1000
        """,
    )
    add_root_argument(parser)
    parser.add_argument("folder", metavar="FOLDER", help="where the images go")
    add_scan_groups_argument(parser, "scan groups to read (default: all)")
    add_samples_argument(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    parser.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise",
        help="end at a damaged record, or skip and report it (default raise)",
    )  # fmt: skip
    add_threads_argument(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show errors only")
    return parser


def _extract(args: argparse.Namespace, prog: str) -> int:
    with PcrReader(args.root) as reader:
        samples = range(len(reader))[args.samples]
        with progress_bar("extracting", total=len(samples), unit="images", rate=True) as show:
            report = extract(
                reader,
                args.folder,
                scan_groups=args.scan_groups,
                samples=samples,
                overwrite=args.overwrite,
                threads=args.threads,
                on_error=args.on_error,
                on_skip=lambda error: note(prog, f"skipped {error}"),
                on_progress=None if args.quiet else show,
            )
    if not args.quiet:
        skipped = f", {report.skipped:,} skipped" if report.skipped else ""
        written = f"{counted(report.files, 'image')}, {size_text(report.size_bytes)}"
        note(prog, f"wrote {written}{skipped} to {shown(args.folder)}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
