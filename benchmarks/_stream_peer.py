"""One end of a measured stream, run as a process: `python _stream_peer.py send|receive …`.

Owns what is timed. Runs in any Python that has the library that it measures, so it imports nothing
of the benchmarks. Prints one JSON object; says "ready" before and waits for a line to begin.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

import numpy as np

BATCH = (64, 224, 224, 3)
RING = 8  # different batches, more than a processor's cache holds
WAYS = (
    "original-multipart",
    "original-single",
    "zmq-copy",
    "zmq-zero-copy",
    "tensorcom",
    "tensorcom-no-send-copy",
    "tensorcom-single",
    "memcpy",
)


def batches():
    rng = np.random.default_rng(0)
    return [
        [rng.integers(0, 256, BATCH, np.uint8), rng.integers(0, 1000, BATCH[0], np.int32)]
        for _ in range(RING)
    ]


def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def tensorcom_connection(way, url):
    import tensorcom

    single = way.endswith("single")
    if way.startswith("original"):
        return tensorcom.Connection(url, multipart=not single)
    return tensorcom.Connection(
        url, multipart=not single, copy=way != "tensorcom-no-send-copy", linger_ms=0
    )


def bare_socket(way, kind, url, hwm):
    import zmq

    socket = zmq.Context().socket(getattr(zmq, kind))
    socket.setsockopt(zmq.LINGER, 0)
    if way == "zmq-zero-copy":
        socket.setsockopt(zmq.SNDHWM, hwm[0])
        socket.setsockopt(zmq.RCVHWM, hwm[1])
    scheme, address = url.split("://")
    address = scheme.partition("+")[2] + "://" + address
    if kind == "PULL":
        socket.bind(address)
    else:
        socket.connect(address)
    return socket


def open_sender(way, url, hwm):
    """Return a function that sends one batch."""
    if way.startswith("zmq"):
        socket = bare_socket(way, "PUSH", url, hwm)
        copy = way == "zmq-copy"
        return lambda batch: socket.send_multipart([a.data for a in batch], copy=copy)
    return tensorcom_connection(way, url).send


def open_receiver(way, url, hwm):
    """Return a function that receives one batch and returns the size of its first part."""
    if way.startswith("zmq"):
        socket = bare_socket(way, "PULL", url, hwm)
        copy = way == "zmq-copy"
        return lambda: len(socket.recv_multipart(copy=copy)[0])
    connection = tensorcom_connection(way, url)
    return lambda: connection.recv()[0].nbytes


def barrier():
    print("ready", flush=True)
    sys.stdin.readline()


def memcpy(count):
    source, target = batches(), batches()
    barrier()
    cpu, start = cpu_s(), time.perf_counter()
    for i in range(count):
        np.copyto(target[i % RING][0], source[i % RING][0])
    return {"wall_s": time.perf_counter() - start, "cpu_s": cpu_s() - cpu, "batches": count}


def send(way, url, hwm, count):
    ring = batches()
    send_one = open_sender(way, url, hwm)
    barrier()
    cpu = cpu_s()
    for i in range(count):
        send_one(ring[i % RING])
    sys.stdin.readline()  # until the receiver has everything
    return {"cpu_s": cpu_s() - cpu}


def receive(way, url, hwm, count, warmup):
    receive_one = open_receiver(way, url, hwm)
    size = int(np.prod(BATCH))
    barrier()
    cpu, start = cpu_s(), 0.0
    for i in range(count):
        if i == warmup:
            start = time.perf_counter()
        if receive_one() != size:
            raise SystemExit("a batch has another size than was sent")
    return {
        "wall_s": time.perf_counter() - start,
        "cpu_s": cpu_s() - cpu,
        "batches": count - warmup,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("send", "receive", "memcpy"))
    parser.add_argument("--way", choices=WAYS, default="memcpy")
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--hwm", type=int, nargs=2, default=(13, 4), help="to send and receive")
    args = parser.parse_args()
    if args.role == "memcpy":
        result = memcpy(args.count)
    elif args.role == "send":
        result = send(args.way, args.url, args.hwm, args.count)
    else:
        result = receive(args.way, args.url, args.hwm, args.count, args.warmup)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
