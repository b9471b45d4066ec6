"""`tensorcom pcr info`: say what is in a set, and what each scan group costs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.cli.common import EXIT_OK, Parser, run, write_line
from tensorcom.cli.pcr.common import (
    add_root_argument,
    counted,
    new_console,
    new_table,
    shown,
    size_text,
)
from tensorcom.pcr import PcrReader

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from tensorcom.pcr.scripts import ScanSpec

PROG = "tensorcom pcr info"
_NAMES = "Y", "Cb", "Cr"


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Say what is in a set; return the exit code."""
    return run(_parser(prog or PROG), _info, argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Say what is in a set of records, and how many bytes reading it takes with 1, 2, ...\n"
            "scan groups. Of sets of the original, the classes and the scan script are not known."
        ),
        example=f"""
            {prog} records/
            {prog} --json https://server/records
        """,
    )
    add_root_argument(parser)
    parser.add_argument("--classes", action="store_true", help="list the classes too")
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    return parser


def _info(args: argparse.Namespace) -> int:
    with PcrReader(args.root) as reader:
        if args.json:
            write_line(json.dumps(_as_dict(reader)))
        else:
            _print(reader, new_console(), classes=args.classes)
    return EXIT_OK


def _label_counts(reader: PcrReader) -> list[tuple[int, str | None, int]]:
    """Return each label, its name and how many images it has; labels without either are left out.

    Sets of the original may have any labels.
    """
    labels, counts = np.unique(reader.labels, return_counts=True)
    found = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    names = dict(enumerate(reader.class_names or ()))
    return [
        (label, names.get(label), found.get(label, 0))
        for label in sorted(found.keys() | names.keys())
    ]


def _as_dict(reader: PcrReader) -> dict[str, Any]:
    manifest, script = reader.manifest, reader.script
    images = len(reader)
    sizes = reader.group_bytes.tolist()
    source = None if manifest is None else manifest.source_bytes
    return {
        "root": reader.root,
        "images": images,
        "records": len(reader.records),
        "images_per_record": int(np.diff(reader.starts).max(initial=0)),
        "scan_groups": reader.scan_groups,
        "scan_script": None if script is None else script.to_json(),
        "created_by": None if manifest is None else manifest.created_by,
        "size_bytes": sizes[-1],
        "source_bytes": source,
        "groups": [
            {
                "scan_groups": group + 1,
                "scan": None if script is None else str(script.color[group]),
                "size_bytes": size,
                "share": size / sizes[-1],
                "source_share": size / source if source else None,
                "image_bytes": size / images,
            }
            for group, size in enumerate(sizes)
        ],
        "classes": [
            {"label": label, "name": name, "images": count}
            for label, name, count in _label_counts(reader)
        ],
    }


def _print(reader: PcrReader, console: Console, *, classes: bool) -> None:
    values = _as_dict(reader)
    source, script = values["source_bytes"], values["scan_script"]
    lines = [
        f"{shown(reader.root)}: {counted(values['images'], 'image')} in "
        f"{counted(values['records'], 'record')} of at most {values['images_per_record']:,}, "
        f"{counted(len(values['classes']), 'label')}, {size_text(values['size_bytes'])}"
    ]
    if source:
        part = values["size_bytes"] / source
        lines[0] += f", {part:.1%} of the source's {size_text(source)}"
    name = "not known" if script is None else shown(script["name"])
    writer = "the original" if values["created_by"] is None else shown(values["created_by"])
    lines.append(f"scan script: {name}; written by {writer}")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    columns = ["scan_groups", "adds", "bytes", "of all", "of source", "an image"]
    left_out = {column for column, known in (("adds", script), ("of source", source)) if not known}
    kept = [column for column in columns if column not in left_out]
    table = new_table(*kept, left=("adds",))
    for group in values["groups"]:
        spec = None if reader.script is None else reader.script.color[group["scan_groups"] - 1]
        cells = {
            "scan_groups": str(group["scan_groups"]),
            "adds": "" if spec is None else describe_scan(spec),
            "bytes": size_text(group["size_bytes"]),
            "of all": f"{group['share']:.1%}",
            "of source": f"{group['source_share'] or 0:.1%}",
            "an image": size_text(group["image_bytes"]),
        }
        table.add_row(*(cells[column] for column in kept))
    console.print(table)
    if classes:
        _print_classes(console, values["classes"])


def _print_classes(console: Console, classes: list[dict[str, Any]]) -> None:
    from rich.text import Text

    table = new_table("label", "class", "images", left=("class",))
    for row in classes:
        name = Text("-" if row["name"] is None else shown(row["name"]))
        table.add_row(str(row["label"]), name, f"{row['images']:,}")
    console.print(table)


def describe_scan(spec: ScanSpec) -> str:
    """Return in words what a scan sends."""
    band = "DC" if spec.ss == spec.se == 0 else f"{spec.ss}-{spec.se}"
    names = " and ".join(_NAMES[component] for component in spec.components)
    what = f"{band} of all" if len(spec.components) == len(_NAMES) else f"{names} {band}"
    if spec.ah:
        return f"{what}, one bit more" + (f", {spec.al} missing" if spec.al else "")
    missing = {0: "", 1: " without the last bit"}
    return what + missing.get(spec.al, f" without the last {spec.al} bits")


if __name__ == "__main__":
    sys.exit(main())
