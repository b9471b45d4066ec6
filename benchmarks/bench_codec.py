"""What a message costs without a socket: microseconds of overhead, and GB/s of its copies.

The overhead is that of a message of two arrays of a few bytes. The copies are those of a batch of
64×224×224×3 uint8 and 64 int32 labels. Eight different batches in turn, more than a cache holds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from _harness import alternate, arguments, median, print_table, ratio, write_json

from tensorcom import tenbin
from tensorcom.buffers import BufferPool
from tensorcom.message import Message, decode_message, encode_message
from tensorcom.meta import Meta

if TYPE_CHECKING:
    from collections.abc import Callable

RING = 8
META = Meta(source="0123456789ab", seq=1, samples=64, times={"sent": 1.0})


def overheads() -> dict[str, Callable[[], Any]]:
    """Return what is done once per message, on arrays that cost nothing to copy."""
    arrays = [np.zeros((2, 2), np.uint8), np.zeros(2, np.int32)]
    parts = tenbin.encode_list(arrays)
    buffer = tenbin.encode_buffer(arrays)
    message = Message(arrays, meta=META)
    multipart = [memoryview(frame) for frame in encode_message(message)]
    single = [memoryview(frame) for frame in encode_message(message, multipart=False)]
    return {
        "encode_list": lambda: tenbin.encode_list(arrays),
        "decode_list": lambda: tenbin.decode_list(parts),
        "encode_buffer": lambda: tenbin.encode_buffer(arrays),
        "decode_buffer": lambda: tenbin.decode_buffer(buffer),
        "encode_message, multipart with meta": lambda: encode_message(message),
        "decode_message, multipart with meta": lambda: decode_message(multipart),
        "encode_message, single part with meta": lambda: encode_message(message, multipart=False),
        "decode_message, single part with meta": lambda: decode_message(single),
    }


def copies() -> tuple[dict[str, Callable[[int], Any]], int]:
    """Return what copies a batch, and the bytes of one."""
    rng = np.random.default_rng(0)
    batches = [
        [rng.integers(0, 256, (64, 224, 224, 3), np.uint8), np.zeros(64, np.int32)]
        for _ in range(RING)
    ]
    targets = [np.zeros_like(batch[0]) for batch in batches]
    frames = [memoryview(batch[0].reshape(-1)) for batch in batches]
    pool = BufferPool(2 * RING * batches[0][0].nbytes)
    messages = [Message(batch, meta=META) for batch in batches]
    return {
        "memcpy, the limit": lambda i: np.copyto(targets[i], batches[i][0]),
        "BufferPool.copy, as in receiving": lambda i: pool.copy(frames[i]),
        "encode_message, multipart, copied": lambda i: encode_message(messages[i], copy=pool.copy),
        "encode_message, single part": lambda i: encode_message(messages[i], multipart=False),
        "encode_buffer": lambda i: tenbin.encode_buffer(batches[i]),
        "encode_buffer, aligned": lambda i: tenbin.encode_buffer(batches[i], aligned=True),
    }, sum(array.nbytes for array in batches[0])


def main() -> None:
    """Measure overheads and copies."""
    parser = arguments(__doc__, rounds=9)
    args = parser.parse_args()
    rounds, repeats = (3, 0.1) if args.quick else (args.rounds, 1.0)
    small = overheads()
    large, size = copies()

    def overhead(way: str) -> dict[str, float]:
        do, count = small[way], int(5000 * repeats)
        start = time.perf_counter()
        for _ in range(count):
            do()
        return {"us": 1e6 * (time.perf_counter() - start) / count}

    def copy(way: str) -> dict[str, float]:
        do, count = large[way], max(int(40 * repeats), RING)
        start = time.perf_counter()
        for i in range(count):
            do(i % RING)
        return {"gb_per_s": count * size / (time.perf_counter() - start) / 1e9}

    first = alternate(list(small), overhead, rounds)
    print_table(
        f"overhead per message of two small arrays, median of {rounds}",
        ("", "us"),
        [(way, median(rows, "us")) for way, rows in first.items()],
    )
    second = alternate(list(large), copy, rounds)
    limit = second["memcpy, the limit"]
    print_table(
        f"copies of a batch, median of {rounds}",
        ("", "GB/s", "to memcpy"),
        [
            (way, median(rows, "gb_per_s"), ratio(rows, limit, "gb_per_s"))
            for way, rows in second.items()
        ],
    )
    write_json(args.json, {"overhead": first, "copies": second})


if __name__ == "__main__":
    main()
