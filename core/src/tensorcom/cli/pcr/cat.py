"""`tensorcom pcr cat`: write one image of a set as a JPEG file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcom.cli.common import EXIT_OK, Parser, index, run
from tensorcom.cli.pcr.common import add_root_argument, add_scan_groups_argument
from tensorcom.errors import PcrWriteError
from tensorcom.images.folder import printable
from tensorcom.pcr import PcrReader
from tensorcom.pcr.extract import write_file

if TYPE_CHECKING:
    import argparse

PROG = "tensorcom pcr cat"


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Write one image; return the exit code."""
    return run(_parser(prog or PROG), _cat, argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Write one image of a set as a JPEG file, to standard output or to a file: its bytes\n"
            "as the set has them, up to the scan group that is asked for. Only they are read."
        ),
        example=f"""
            {prog} records/ 17 -k 2 -o 17.jpg
            {prog} https://server/records 17 | display
        """,
    )
    add_root_argument(parser)
    parser.add_argument("sample", type=index, metavar="SAMPLE", help="number, as ls says it")
    add_scan_groups_argument(parser, "scan groups to read (default: all)")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    return parser


def _cat(args: argparse.Namespace) -> int:
    if args.out is None and sys.stdout.isatty():
        raise ValueError("a JPEG file is no text for a terminal; give -o FILE, or pipe it")
    with PcrReader(args.root) as reader:
        if args.sample >= len(reader):
            raise ValueError(f"sample {args.sample} of a set of {len(reader)}, from 0")
        jpeg, _ = reader.sample(args.sample, scan_groups=args.scan_groups)
    if args.out is None:
        sys.stdout.buffer.write(jpeg)
        sys.stdout.buffer.flush()
    elif args.out.exists() and not args.out.is_file():  # a device or a pipe is written to
        args.out.write_bytes(jpeg)
    elif args.out.exists() and not args.overwrite:
        path = printable(str(args.out))
        raise PcrWriteError("exists; give --overwrite to replace it", path=path)
    else:
        write_file(args.out, jpeg)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
