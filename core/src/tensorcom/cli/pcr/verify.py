"""`tensorcom pcr verify`: check every checksum and length of a set, and name what is damaged."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from tensorcom.cli.common import EXIT_FAILED, EXIT_OK, Parser, note, run, write_line
from tensorcom.cli.pcr.common import (
    add_root_argument,
    add_threads_argument,
    counted,
    shown,
    size_text,
)
from tensorcom.cli.stream import progress_bar
from tensorcom.pcr.verify import verify

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tensorcom.pcr.verify import Problem, VerifyReport

PROG = "tensorcom pcr verify"


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Check a set; return the exit code."""
    parser = _parser(prog or PROG)
    return run(parser, lambda args: _verify(args, parser.prog), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Check a set of records: checksums and lengths of all parts, the place of each image,\n"
            "labels, the structure of each JPEG, and that the index files agree. Each problem is\n"
            "a line that names file, scan group, image and byte, as far as they can be known.\n"
            "Files that are not the set's are named too, but are no problem. The exit code is 1\n"
            "if anything is damaged.\n\n"
            "Sets of the original have no checksums: there, only --decode finds damage in scans."
        ),
        example=f"""
            {prog} records/
            {prog} --decode --json s3://bucket/records
        """,
    )
    add_root_argument(parser)
    parser.add_argument(
        "--decode", action="store_true", help="decode each image at each number of scan groups too"
    )
    add_threads_argument(parser)
    parser.add_argument("--json", action="store_true", help="write one JSON object at the end")
    parser.add_argument("-q", "--quiet", action="store_true", help="write problems only")
    return parser


def _verify(args: argparse.Namespace, prog: str) -> int:
    with contextlib.ExitStack() as stack:
        bar: Callable[[int], None] | None = None

        def show(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                made = progress_bar("verifying", total=total, unit="records", rate=True)
                bar = stack.enter_context(made)
            bar(done)

        def tell(problem: Problem) -> None:
            if not args.json:
                write_line(shown(str(problem)))

        report = verify(
            args.root,
            decode=args.decode,
            threads=args.threads,
            on_problem=tell,
            on_progress=None if args.quiet else show,
        )
    if args.json:
        write_line(json.dumps({**asdict(report), "is_whole": report.is_whole}))
    elif not args.quiet:
        for name, what in report.others.items():
            note(prog, f"{shown(name)}: {what}")
        write_line(_text(report))
    return EXIT_OK if report.is_whole else EXIT_FAILED


def _text(report: VerifyReport) -> str:
    checked = f"{counted(report.images, 'image')} in {counted(report.records, 'record')}"
    how = "" if report.has_checksums else ", without checksums"
    how += ", decoded at each number of scan groups" if report.decoded else ""
    found = "whole" if report.is_whole else counted(len(report.problems), "problem")
    return f"{shown(report.root)}: {found}: {checked}, {size_text(report.size_bytes)}{how}"


if __name__ == "__main__":
    sys.exit(main())
