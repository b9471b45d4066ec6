"""All adapters side by side, each by `from_stream` and `from_records`, beside the core alone.

The same arguments and the same batches for each, in a process of its own, one after the other in
turn: what differs is what an adapter adds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from _harness import alternate, arguments, free_port, median, print_table, ratio, write_json
from _photos import add_images_argument, photographs

from tensorcom import Connection
from tensorcom.pcr import PcrSource, convert

WAYS = ("core", "torch", "keras", "jax", "dali")
BATCH, GROUPS = 64, 5
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}


def opened(way: str, what: str, place: str, count: int) -> Any:
    """Return what yields the batches of a stream or of a set."""
    if what == "records":
        options: dict[str, Any] = {"batch_size": BATCH, "scan_groups": GROUPS}
        if way == "core":
            return PcrSource(place, **options)
        return importlib.import_module(f"tensorcom_{way}").from_records(place, **options)
    if way == "core":
        return Connection(place, epoch=count)
    return importlib.import_module(f"tensorcom_{way}").from_stream(place, length=count)


def measure_inside(way: str, what: str, place: str, count: int) -> dict[str, float]:
    """Iterate; return samples/s and CPU-milliseconds per sample, from the second batch on."""
    with closing(opened(way, what, place, count)) as dataset:
        if what == "records":  # an epoch before: what is made once is made
            for _batch in dataset:
                pass
        batches = iter(dataset)
        next(batches)
        start, cpu = time.perf_counter(), time.process_time()
        samples = sum(len(labels) for _, labels in batches)
        spent, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"samples_s": samples / spent, "cpu_ms": 1000 * cpu / samples}


def measure(way: str, what: str, root: Path, count: int) -> dict[str, float]:
    """Measure a way in a process of its own, with a sender in another one for a stream."""
    place, sender = str(root), None
    if what == "stream":
        port = free_port()
        place = f"zrpull://127.0.0.1:{port}"
        code = (
            "import sys, threading, numpy, tensorcom\n"
            "images = numpy.zeros((64, 224, 224, 3), 'u1'); labels = numpy.zeros(64, 'i4')\n"
            f"server = tensorcom.Connection('zrpush://127.0.0.1:{port}')\n"
            "while True: server.send([images, labels])\n"
        )
        sender = subprocess.Popen([sys.executable, "-c", code])
    command = [sys.executable, __file__, "--inside", way, what, place, str(count)]
    try:
        run = subprocess.run(
            command, env={**os.environ, **QUIET}, stdout=subprocess.PIPE, text=True, check=True
        )
    finally:
        if sender is not None:
            sender.kill()
            sender.wait()
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run the benchmark."""
    parser = arguments(__doc__, rounds=3)
    add_images_argument(parser)
    parser.add_argument("--inside", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        way, what, place, count = args.inside
        print(json.dumps(measure_inside(way, what, place, int(count))))
        return
    rounds = 1 if args.quick else args.rounds
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "records")
        convert(photographs(args.images), root, images_per_record=BATCH)
        for what, count in (("stream", 200), ("records", 0)):
            found = alternate(WAYS, lambda way, w=what, n=count: measure(way, w, root, n), rounds)
            figures[what] = found
            rows = [
                [
                    way,
                    median(runs, "samples_s"),
                    ratio(runs, found["core"], "samples_s"),
                    median(runs, "cpu_ms"),
                ]
                for way, runs in found.items()
            ]
            title = f"{what}, {'of 64x224x224x3 over tcp' if count else f'k={GROUPS}'}"
            print_table(title, ("adapter", "samples/s", "of core", "CPU ms/sample"), rows)
    write_json(args.json, figures)


if __name__ == "__main__":
    sys.exit(main())
