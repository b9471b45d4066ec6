"""Streams that the suite reads: what is in them, and servers that misbehave or die."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from contract_adapters import Adapter
from numpy.typing import NDArray


def batch(number: int, samples: int = 4) -> list[NDArray[Any]]:
    """Return images whose pixels and labels tell their number."""
    images = np.random.default_rng(number).integers(0, 256, (samples, 6, 5, 3), np.uint8)
    return [images, np.full((samples,), number, np.int32)]


def counting() -> Iterator[list[NDArray[Any]]]:
    """Yield batches for ever."""
    number = 0
    while True:
        yield batch(number)
        number += 1


def numbers(batches: Any, adapter: Adapter) -> list[int]:
    """Return the number of each batch, having checked its pixels."""
    found = []
    for images, labels in batches:
        values = adapter.to_numpy(labels)
        expected, same = batch(int(values[0]), len(values))
        np.testing.assert_array_equal(values, same)
        np.testing.assert_array_equal(adapter.to_numpy(images), expected)
        found.append(int(values[0]))
    return found


def read_by_ranks(adapter: Adapter, url: str, ranks: int, **arguments: Any) -> list[list[int]]:
    """Return the numbers of the batches that each rank of a job gets, which run at a time."""
    datasets = []
    for rank in range(ranks):
        with pytest.MonkeyPatch.context() as patch:
            adapter.be_rank(patch, rank, ranks)
            dataset = adapter.from_stream(url, timeout_s=30, **arguments)
            datasets.append(pickle.loads(pickle.dumps(dataset)))  # which stays of that rank
    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(lambda dataset: numbers(dataset, adapter), datasets))
    for dataset in datasets:
        adapter.close(dataset)
    return found


class Feed:
    """A foreign PUSH socket that sends any frames, once its readers are there, to each in turn."""

    def __init__(self, *messages: list[Any], readers: int = 1) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.linger = 0
        self._readers = readers
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.url = f"zrpull://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._messages = messages
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        for _ in range(self._readers):
            if self._monitor.poll(60_000):
                self._monitor.recv_multipart()
        for frames in self._messages:
            self._socket.send_multipart(frames)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()


class FarServer:
    """A server in a process of its own, which can be killed; a context manager.

    Args:
        count: batches to send; the server stays.
        readers: peers to wait for before the first batch.
        end: whether to say the end of the stream after the last.

    Attributes:
        url: what a reader connects to.
    """

    _SCRIPT = textwrap.dedent("""
        import sys
        from itertools import islice
        from contract_streams import counting
        from tensorcom.testing.loopback import LoopbackServer

        count, readers, end = map(int, sys.argv[1:])
        with LoopbackServer(islice(counting(), count), readers=readers, end=bool(end)) as server:
            print(server.url, flush=True)
            sys.stdin.read()
    """)

    def __init__(self, count: int = 1 << 30, *, readers: int = 1, end: bool = False) -> None:
        arguments = [str(int(value)) for value in (count, readers, end)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._SCRIPT, *arguments],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill the process, which says no farewell."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> FarServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
