"""Throughput and CPU of one stream into TensorFlow, by how it gets there.

A batch is 64×224×224×3 uint8 and 64 int32 labels, sent by another process. GB/s is what comes out
after a warm-up; CPU seconds are those of both processes from the first message to the last. The
bare Connection, which yields numpy arrays, is the limit.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial

from _harness import (
    HERE,
    alternate,
    arguments,
    free_port,
    median,
    print_table,
    processes,
    ratio,
    write_json,
)
from bench_stream import BATCH_BYTES

WAYS = {
    "connection": "bare Connection, numpy arrays",
    "tf.data": "stream_dataset",
    "generator": "from_generator of a Connection",
    "tensor": "tf.convert_to_tensor of each array",
}
TARGET = 0.9


def measure(way: str, *, transport: str, count: int, warmup: int) -> dict[str, float]:
    """Return GB/s and CPU-seconds per GB of one stream."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/s" if transport == "ipc" else f"127.0.0.1:{free_port()}"
        common = ["--count", str(count), "--warmup", str(warmup), "--way"]
        receiving = [str(HERE / "_tf_stream_peer.py"), "--url", f"zpull+{transport}://{address}"]
        sending = [str(HERE / "_stream_peer.py"), "send", "--url", f"zpush+{transport}://{address}"]
        with processes(
            [sys.executable, *receiving, *common, way],
            [sys.executable, *sending, *common, "tensorcom-no-send-copy"],
        ) as (receiver, sender):
            receiver.proceed()
            sender.proceed()
            received = receiver.result()
            sender.proceed()
            cpu_s = received["cpu_s"] + sender.result()["cpu_s"]
    return {
        "gb_per_s": received["batches"] * BATCH_BYTES / received["wall_s"] / 1e9,
        "cpu_s_per_gb": cpu_s / (count * BATCH_BYTES / 1e9),
    }


def main() -> None:
    """Measure all ways over both transports."""
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--transports", nargs="+", choices=("tcp", "ipc"), default=["tcp", "ipc"])
    parser.add_argument("--count", type=int, default=200, help="batches of a stream")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # with it, TensorFlow writes to stderr
    rounds, count = (2, 60) if args.quick else (args.rounds, args.count)
    figures = {}
    for transport in args.transports:
        one = partial(measure, transport=transport, count=count, warmup=20)
        found = figures[transport] = alternate(args.ways, one, rounds)
        base = found.get("connection")
        print_table(
            f"{transport}, median of {rounds}; target of stream_dataset: {TARGET} of the bare "
            "Connection",
            ("way", "GB/s", "CPU-s/GB", "to Connection"),
            [
                (
                    WAYS[way],
                    median(rows, "gb_per_s"),
                    median(rows, "cpu_s_per_gb"),
                    "" if base is None else ratio(rows, base, "gb_per_s"),
                )
                for way, rows in found.items()
            ],
        )
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
