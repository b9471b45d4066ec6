"""Decoding prefixes: CPU time of each fidelity beside the same images as baseline JPEG.

For each scan script: bytes, and CPU time at k = 1, 2, 5 and all groups, with guard scans and
without, in one thread, decoded to full size. Lossless is checked on the way.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from _harness import alternate, arguments, median, print_table, ratio, write_json
from _photos import PER_RECORD, add_images_argument, files_of, photographs

from tensorcom.images import decode_image, keep_freed_memory
from tensorcom.pcr import PcrReader, convert, guarded

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPTS = ("standard", "fast", "balanced")


def decode_all(jpegs: list[bytes], prepare: Callable[[bytes], bytes] = bytes) -> dict[str, float]:
    """Decode; return CPU-milliseconds per image."""
    start = time.process_time()
    for jpeg in jpegs:
        decode_image(prepare(jpeg))
    return {"cpu_ms": 1000 * (time.process_time() - start) / len(jpegs)}


def main() -> None:
    """Run the benchmark."""
    parser = arguments(__doc__, rounds=5)
    add_images_argument(parser)
    args = parser.parse_args()
    keep_freed_memory()
    root = photographs(args.images)
    files = [path for path, _ in files_of(root)]
    if args.quick:
        files = files[:: max(1, len(files) // 40)]
    ways: dict[str, Callable[[], dict[str, float]]] = {}
    sizes: dict[str, float] = {}
    originals = [path.read_bytes() for path in files]
    ways["baseline"] = lambda: decode_all(originals)
    sizes["baseline"] = sum(map(len, originals))
    with tempfile.TemporaryDirectory() as folder:
        for script in SCRIPTS:
            out = Path(folder, script)
            source = ((data, 0, path.name) for data, path in zip(originals, files, strict=True))
            convert(source, out, script=script, images_per_record=PER_RECORD)
            reader = PcrReader(out)
            for groups in (1, 2, 5, reader.scan_groups):
                jpegs = [
                    jpeg
                    for record in range(len(reader.records))
                    for jpeg in reader.read_record(record, scan_groups=groups)[0]
                ]
                name = f"{script}, k={groups}"
                sizes[name] = sizes[f"{name}, no guard"] = sum(map(len, jpegs))
                ways[f"{name}, no guard"] = lambda jpegs=jpegs: decode_all(jpegs)

                def prepare(jpeg: bytes, script=reader.script, groups=groups) -> bytes:
                    return guarded(jpeg, script=script, scan_groups=groups)

                ways[name] = lambda jpegs=jpegs, prepare=prepare: decode_all(jpegs, prepare)
                if groups == reader.scan_groups:
                    check_lossless(originals, jpegs)
    found = alternate(list(ways), lambda way: ways[way](), 2 if args.quick else args.rounds)
    rows = [
        [
            way,
            f"{sizes[way] / sizes['baseline']:.3f}",
            median(runs, "cpu_ms"),
            ratio(runs, found["baseline"], "cpu_ms"),
        ]
        for way, runs in found.items()
    ]
    print_table(
        f"Decoding {len(files)} images in one thread",
        ("way", "bytes", "CPU ms/image", "of baseline"),
        rows,
    )
    write_json(args.json, {"sizes": sizes, "decode": found})


def check_lossless(originals: list[bytes], jpegs: list[bytes]) -> None:
    """Fail if pixels differ from those of the originals."""
    for original, jpeg in zip(originals, jpegs, strict=True):
        if not np.array_equal(decode_image(original), decode_image(jpeg)):
            raise RuntimeError("a record at full fidelity differs from its original")


if __name__ == "__main__":
    sys.exit(main())
