"""`tensorcom pcr ls`: list the images or the records of a set."""

from __future__ import annotations

import fnmatch
import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.cli.common import EXIT_OK, Parser, index, run
from tensorcom.cli.pcr.common import (
    add_root_argument,
    add_samples_argument,
    add_scan_groups_argument,
    shown,
)
from tensorcom.pcr import PcrReader

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from numpy.typing import NDArray

PROG = "tensorcom pcr ls"
_MAX_CLASS_WIDTH = 24


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """List a set; return the exit code."""
    return run(_parser(prog or PROG), _list, argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "List the images of a set, a line for each: number of the sample, record and image in\n"
            "it, bytes, label, class and name of the source. The first line names the columns.\n\n"
            "Sets of the original have no names; and their records have to be read for the bytes."
        ),
        example=f"""
            {prog} records/ --class tench -k 5
            {prog} records/ --name '*_18.JPEG' --json
        """,
    )
    add_root_argument(parser)
    add_scan_groups_argument(parser, "bytes with this many scan groups (default: all)")
    parser.add_argument(
        "--records", action="store_true", help="list the records instead of the images"
    )
    add_samples_argument(parser)
    parser.add_argument("--label", type=index, metavar="N", help="only images of this label")
    parser.add_argument("--class", dest="class_name", metavar="NAME", help="only this class")
    parser.add_argument("--name", metavar="PATTERN", help="only names that match, as in *_18.jpg")
    parser.add_argument("--record", metavar="NAME", help="only this record file")
    parser.add_argument("--json", action="store_true", help="write a JSON object for each line")
    return parser


def _list(args: argparse.Namespace) -> int:
    with PcrReader(args.root) as reader:
        groups = reader.table.check_groups(args.scan_groups)
        if args.record is not None and args.record not in reader.table.names:
            raise ValueError(f"the set has no record {shown(args.record)}")
        rows = _record_rows if args.records else _sample_rows
        form = _Form.of_records if args.records else _Form.of_samples
        write = form(reader).json if args.json else form(reader).text
        if not args.json:
            sys.stdout.write(form(reader).header())
        for row in rows(reader, groups, args):
            sys.stdout.write(write(row))
    return EXIT_OK


def _wanted(reader: PcrReader, args: argparse.Namespace) -> NDArray[np.bool_]:
    """Return which samples are asked for, but for their names."""
    wanted = np.zeros(len(reader), np.bool_)
    wanted[args.samples] = True
    if args.label is not None:
        wanted &= reader.labels == args.label
    if args.class_name is not None:
        names = reader.class_names
        if names is None:
            raise ValueError("the set does not name its classes; use --label")
        if args.class_name not in names:
            raise ValueError(f"the set has no class {shown(args.class_name)}")
        wanted &= reader.labels == names.index(args.class_name)
    return wanted


def _sample_rows(
    reader: PcrReader, groups: int, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    wanted = _wanted(reader, args)
    classes = reader.class_names
    for record, name in enumerate(reader.table.names):
        first, stop = (int(i) for i in reader.starts[record : record + 2])
        chosen = np.flatnonzero(wanted[first:stop])
        if not len(chosen) or args.record not in (None, name):
            continue
        sizes = reader.image_sizes(record, scan_groups=groups).sum(axis=1)
        for image in chosen.tolist():
            sample = first + image
            label, source = int(reader.labels[sample]), reader.name(sample)
            if args.name is not None and not fnmatch.fnmatchcase(source or "", args.name):
                continue
            is_named = classes is not None and 0 <= label < len(classes)
            yield {
                "sample": sample,
                "record": name,
                "image": image,
                "size_bytes": int(sizes[image]),
                "label": label,
                "class": classes[label] if is_named and classes is not None else None,
                "name": source,
            }


def _record_rows(
    reader: PcrReader, groups: int, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    wanted = _wanted(reader, args)
    for record, name in enumerate(reader.table.names):
        first, stop = (int(i) for i in reader.starts[record : record + 2])
        if wanted[first:stop].any() and args.record in (None, name):
            yield {
                "record": name,
                "first": first,
                "images": stop - first,
                "size_bytes": int(reader.table.ends[record, groups]),
            }


class _Form:
    """How rows are written: columns of one width, so that lines can be written as they come.

    Args:
        widths: of each column; negative ones hold text, to the left.
    """

    def __init__(self, widths: dict[str, int]) -> None:
        self._widths = {
            column: max(width, len(column)) if width > 0 else min(width, -len(column))
            for column, width in widths.items()
        }

    @classmethod
    def of_samples(cls, reader: PcrReader) -> _Form:
        names = max(map(len, reader.table.names), default=0)
        most = int(np.diff(reader.starts).max(initial=0))
        classes = max((len(shown(name)) for name in reader.class_names or ()), default=1)
        label = int(np.abs(reader.labels).max(initial=0))
        return cls({
            "sample": len(str(len(reader))),
            "record": -names,
            "image": len(str(most)),
            "size_bytes": 9,
            "label": len(str(label)),
            "class": -min(classes, _MAX_CLASS_WIDTH),
            "name": -4,
        })  # fmt: skip

    @classmethod
    def of_records(cls, reader: PcrReader) -> _Form:
        names = max(map(len, reader.table.names), default=0)
        return cls({"record": -names, "first": 8, "images": 6, "size_bytes": 12})

    def header(self) -> str:
        """Return the line that names the columns."""
        return self.text({column: column for column in self._widths})

    def text(self, row: dict[str, Any]) -> str:
        """Return a line for people."""
        cells = []
        for column, width in self._widths.items():
            value = row[column]
            cell = "-" if value is None else shown(value) if isinstance(value, str) else str(value)
            cells.append(cell.rjust(width) if width > 0 else cell.ljust(-width))
        return "  ".join(cells).rstrip() + "\n"

    def json(self, row: dict[str, Any]) -> str:
        """Return a line for programs."""
        return json.dumps(row) + "\n"


if __name__ == "__main__":
    sys.exit(main())
