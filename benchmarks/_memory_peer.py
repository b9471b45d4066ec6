"""One end of a stream whose memory is watched: `python _memory_peer.py send|receive …`.

Says "ready" and waits for a line to begin. The sender counts what it has sent in a file that the
benchmark maps.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import tensorcom

BATCH = (64, 224, 224, 3)


def barrier() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def send(connection: tensorcom.Connection, counter: np.ndarray, count: int, pause_s: float) -> None:
    rng = np.random.default_rng(0)
    batch = [rng.integers(0, 256, BATCH, np.uint8), np.zeros(BATCH[0], np.int32)]
    barrier()
    if not connection.wait_for_peers(1, timeout_s=60):
        raise SystemExit("no reader came")
    for number in range(count):
        connection.send(batch, timeout_s=None)
        counter[0] = number + 1
        time.sleep(pause_s)
    print("{}", flush=True)
    sys.stdin.readline()


def receive(connection: tensorcom.Connection, counter: np.ndarray, mode: str, count: int) -> None:
    barrier()
    pauses = [count // 4, count // 2, 3 * count // 4] if mode == "paused" else []
    while True:  # until the benchmark ends this process
        connection.recv()
        if mode == "slow":
            time.sleep(0.005)
        if pauses and counter[0] >= pauses[0]:
            pauses.pop(0)
            time.sleep(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("send", "receive"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--counter", required=True, help="file of one uint64")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--mode", choices=("slow", "paused", "stopped"), required=True)
    parser.add_argument("--pause-s", type=float, default=0.0, help="after each batch sent")
    args = parser.parse_args()
    counter = np.memmap(args.counter, np.uint64, "r+")
    connection = tensorcom.Connection(args.url, timeout_s=None, linger_ms=0)
    if args.role == "send":
        send(connection, counter, args.count, args.pause_s)
    else:
        receive(connection, counter, args.mode, args.count)


if __name__ == "__main__":
    main()
