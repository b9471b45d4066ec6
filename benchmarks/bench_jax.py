"""JAX: batches on a device beside the same batches in core, from a stream and from records.

Stream: 64×224×224×3 uint8 and 64 int32 labels between two processes; GB/s of what the receiver
takes in after a warm-up, as numpy arrays of a bare Connection or as arrays on a JAX device.
Records: images/s of epochs at k = 5 and at all groups, decoded and cropped by core's PcrSource
alone, and through it onto a device.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from _harness import (
    HERE,
    alternate,
    arguments,
    median,
    print_table,
    processes,
    ratio,
    write_json,
)
from _photos import PER_RECORD, add_images_argument, files_of, photographs
from _stream_peer import barrier, cpu_s

from tensorcom import Connection
from tensorcom.pcr import PcrSource, convert
from tensorcom_jax import pcr_iterator, stream_iterator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PEER = str(HERE / "_stream_peer.py")
BATCH_BYTES = 64 * 224 * 224 * 3 + 64 * 4
SIZE, IMAGES = 224, 480
STREAM_WAYS = {
    "core": "bare Connection, numpy",
    "jax": "stream_iterator, on the device",
    "jax-nchw": "stream_iterator, moved to NCHW, on the device",
}
RECORD_WAYS = {"core": "PcrSource, numpy", "jax": "pcr_iterator, on the device"}
TARGETS = {"stream": 0.9, "records": 0.95}


def opened(way: str, url: str) -> Iterator[Any]:
    """Return an iterator of received batches."""
    if way == "core":
        return iter(Connection(url))
    layout = ("NHWC", "NCHW") if way == "jax-nchw" else None
    return iter(stream_iterator(url, layout=layout))


def receive(way: str, url: str, count: int, warmup: int) -> None:
    """Be the measured receiver: a process that prints what it took."""
    batches = opened(way, url)
    jax.devices()  # the start of its backend is no part of the figure
    barrier()
    cpu, start = cpu_s(), 0.0
    for number, batch in enumerate(itertools.islice(batches, count)):
        if number == warmup:
            start = time.perf_counter()
        jax.block_until_ready(batch)
    wall_s = time.perf_counter() - start
    found = {"wall_s": wall_s, "cpu_s": cpu_s() - cpu, "batches": count - warmup}
    print(json.dumps(found), flush=True)
    sys.stdin.readline()


def measure_stream(way: str, *, count: int, warmup: int) -> dict[str, float]:
    """Return GB/s and CPU-seconds per GB of one stream."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"+ipc://{folder}/s"
        receiving = [sys.executable, __file__, "--receive", way, f"zpull{address}"]
        sending = ["send", "--way", "tensorcom-no-send-copy", "--url", f"zpush{address}"]
        with processes(
            [*receiving, str(count), str(warmup)],
            # More than are taken: what is received ahead counts for nobody.
            [sys.executable, PEER, *sending, "--count", str(count + 8)],
        ) as (receiver, sender):
            receiver.proceed()
            sender.proceed()
            found = json.loads(receiver.line())
            receiver.proceed()
    return {
        "gb_per_s": found["batches"] * BATCH_BYTES / found["wall_s"] / 1e9,
        "cpu_s_per_gb": found["cpu_s"] / (count * BATCH_BYTES / 1e9),
    }


def measure_epoch(source: Iterable[Any]) -> dict[str, float]:
    """Return images/s and CPU-milliseconds per image of one epoch."""
    cpu, start, images = time.process_time(), time.perf_counter(), 0
    for batch in source:
        jax.block_until_ready(batch)
        images += len(batch[1])
    wall_s = time.perf_counter() - start
    return {
        "images_per_s": images / wall_s,
        "cpu_ms": 1000 * (time.process_time() - cpu) / images,
    }


def measure_records(root: Path, groups: int | None, rounds: int) -> dict[str, Any]:
    """Return the figures of all rounds, by way."""
    options: dict[str, Any] = {"batch_size": 32, "scan_groups": groups, "size": SIZE}
    sources: dict[str, Any] = {
        "core": PcrSource(root, **options),
        "jax": pcr_iterator(root, **options),
    }
    for source in sources.values():
        measure_epoch(source)  # a warm-up
    found = alternate(list(sources), lambda way: measure_epoch(sources[way]), rounds)
    for source in sources.values():
        source.close()
    return found


def main() -> None:
    """Run the benchmark."""
    if sys.argv[1:2] == ["--receive"]:
        way, url, count, warmup = sys.argv[2:]
        receive(way, url, int(count), int(warmup))
        return
    parser = arguments(__doc__, rounds=7)
    add_images_argument(parser)
    parser.add_argument("--count", type=int, default=200, help="batches of a stream")
    args = parser.parse_args()
    rounds, count = (3, 80) if args.quick else (args.rounds, args.count)
    figures: dict[str, Any] = {}
    figures["stream"] = found = alternate(
        list(STREAM_WAYS), partial(measure_stream, count=count, warmup=20), rounds
    )
    print_table(
        f"A stream of {BATCH_BYTES / 1e6:.1f} MB batches, median of {rounds}",
        ("way", "GB/s", "CPU-s/GB", "to core", "target"),
        [
            [
                STREAM_WAYS[way],
                median(rows, "gb_per_s"),
                median(rows, "cpu_s_per_gb"),
                ratio(rows, found["core"], "gb_per_s"),
                f">= {TARGETS['stream']}" if way == "jax" else "",
            ]
            for way, rows in found.items()
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "set")
        files = files_of(photographs(args.images))
        least = IMAGES // 4 if args.quick else IMAGES
        files *= max(1, least // len(files))  # the first batches of an epoch are no measure
        source = (
            (path.read_bytes(), label, f"{number}") for number, (path, label) in enumerate(files)
        )
        convert(source, root, images_per_record=PER_RECORD)
        for groups in (5, None):
            name = f"records, k={groups or 'all'}"
            figures[name] = found = measure_records(root, groups, rounds)
            print_table(
                f"{name}: epochs of {len(files)} images to {SIZE}x{SIZE}, median of {rounds}",
                ("way", "images/s", "CPU ms/image", "to core", "target"),
                [
                    [
                        RECORD_WAYS[way],
                        median(rows, "images_per_s"),
                        median(rows, "cpu_ms"),
                        ratio(rows, found["core"], "images_per_s"),
                        f">= {TARGETS['records']}" if way == "jax" else "",
                    ]
                    for way, rows in found.items()
                ],
            )
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
