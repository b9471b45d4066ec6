"""Throughput and CPU of one stream between two processes, by what carries it.

A batch is 64×224×224×3 uint8 and 64 int32 labels. The sender connects a PUSH socket, the receiver
binds a PULL socket. GB/s is what the receiver takes in after a warm-up; CPU seconds are those of
both processes from the first message to the last, start-up apart.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial

from _harness import (
    HERE,
    alternate,
    arguments,
    free_port,
    median,
    original_python,
    print_table,
    processes,
    ratio,
    write_json,
)

PEER = str(HERE / "_stream_peer.py")
BATCH_BYTES = 64 * 224 * 224 * 3 + 64 * 4
WAYS = {
    "original-multipart": "original Connection, multipart",
    "original-single": "original Connection, single part",
    "zmq-copy": "bare pyzmq, copy=True",
    "zmq-zero-copy": "bare pyzmq, copy=False on both ends",
    "tensorcom": "tensorcom, multipart",
    "tensorcom-no-send-copy": "tensorcom, multipart, copy=False",
    "tensorcom-single": "tensorcom, single part",
    "memcpy": "memcpy, the limit",
}
TARGETS = (  # way, other way, ratio that is to be reached
    ("tensorcom", "original-multipart", 4.0),
    ("tensorcom-no-send-copy", "original-multipart", 4.0),
    ("tensorcom-single", "original-single", 4.0),
    ("tensorcom", "zmq-zero-copy", 0.9),
    ("tensorcom-no-send-copy", "zmq-zero-copy", 0.9),
)


def measure(
    way: str, *, transport: str, original: str, count: int, warmup: int
) -> dict[str, float]:
    """Return GB/s and CPU-seconds per GB of one stream."""
    python = original if way.startswith("original") else sys.executable
    if way == "memcpy":
        with processes([python, PEER, "memcpy", "--count", str(count)]) as (only,):
            only.proceed()
            received, cpu_s, total = (found := only.result()), found["cpu_s"], count
    else:
        with tempfile.TemporaryDirectory() as folder:
            address = f"{folder}/s" if transport == "ipc" else f"127.0.0.1:{free_port()}"
            common = ["--way", way, "--count", str(count), "--warmup", str(warmup), "--url"]
            with processes(
                [python, PEER, "receive", *common, f"zpull+{transport}://{address}"],
                [python, PEER, "send", *common, f"zpush+{transport}://{address}"],
            ) as (receiver, sender):
                receiver.proceed()
                sender.proceed()
                received = receiver.result()
                sender.proceed()
                cpu_s, total = received["cpu_s"] + sender.result()["cpu_s"], count
    return {
        "gb_per_s": received["batches"] * BATCH_BYTES / received["wall_s"] / 1e9,
        "cpu_s_per_gb": cpu_s / (total * BATCH_BYTES / 1e9),
    }


def main() -> None:
    """Measure all ways over both transports."""
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--original-python", help="python of a venv with tensorcom==0.1.0")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--transports", nargs="+", choices=("tcp", "ipc"), default=["tcp", "ipc"])
    parser.add_argument("--count", type=int, default=200, help="batches of a stream")
    args = parser.parse_args()
    original = ""
    if any(way.startswith("original") for way in args.ways):
        original = original_python(args.original_python)
    rounds, count = (2, 60) if args.quick else (args.rounds, args.count)
    figures = {}
    for transport in args.transports:
        one = partial(measure, transport=transport, original=original, count=count, warmup=20)
        found = alternate(args.ways, one, rounds)
        figures[transport] = found
        print_table(
            f"{transport}, median of {rounds}",
            ("way", "GB/s", "CPU-s/GB", "to memcpy"),
            [
                (
                    WAYS[way],
                    median(rows, "gb_per_s"),
                    median(rows, "cpu_s_per_gb"),
                    ratio(rows, found["memcpy"], "gb_per_s") if "memcpy" in found else "",
                )
                for way, rows in found.items()
            ],
        )
        print_table(
            f"{transport}, ratios of GB/s within a round",
            ("", "ratio", "target"),
            [
                (f"{WAYS[a]} / {WAYS[b]}", ratio(found[a], found[b], "gb_per_s"), f">= {target}")
                for a, b, target in TARGETS
                if a in found and b in found
            ],
        )
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
