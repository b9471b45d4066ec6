"""The receiving end of a measured stream into TensorFlow, run as a process.

Owns what is timed; the sender is `_stream_peer`'s. Prints one JSON object; says "ready" before and
waits for a line to begin.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from _stream_peer import BATCH, barrier, cpu_s

from tensorcom import Connection
from tensorcom_keras import stream_dataset

SPEC = (tf.TensorSpec((None, *BATCH[1:]), tf.uint8), tf.TensorSpec((None,), tf.int32))


def received(way: str, url: str, count: int) -> Iterator[Any]:
    """Yield batches, from a socket that is open before the first one is asked for."""
    if way == "tf.data":
        yield from stream_dataset(url, spec=SPEC, length=count)
        return
    connection = Connection(url, epoch=count, linger_ms=0)
    if way == "connection":
        yield from connection
    elif way == "generator":
        yield from tf.data.Dataset.from_generator(
            lambda: map(tuple, connection), output_signature=SPEC
        )
    elif way == "tensor":
        for images, labels in connection:
            yield tf.convert_to_tensor(images), tf.convert_to_tensor(labels)


def main() -> None:
    """Receive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=("connection", "tf.data", "generator", "tensor"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    args = parser.parse_args()
    tf.constant(0)  # TensorFlow's own start is not timed
    barrier()
    cpu, start, total = cpu_s(), 0.0, 0
    for images, _ in received(args.way, args.url, args.count):
        if total == args.warmup:
            start = time.perf_counter()
        if images.shape != BATCH:
            raise SystemExit(f"a batch has shape {images.shape}, expected {BATCH}")
        total += 1
    wall_s = time.perf_counter() - start
    result = {"wall_s": wall_s, "cpu_s": cpu_s() - cpu, "batches": total - args.warmup - 1}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
