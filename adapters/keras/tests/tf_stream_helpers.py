"""What the tests of tf.data streams share: numbered batches, a foreign sender, what is open."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import zmq
from numpy.typing import NDArray

from tensorcom_keras.tf_stream import close_stream, stream_dataset

Opener = Callable[..., tf.data.Dataset]
WAIT_S = 30


def batch(number: int, samples: int = 4) -> list[NDArray[Any]]:
    """Return images whose pixels, and labels that, tell the number of the batch."""
    return [np.full((samples, 4, 3, 2), number % 251, "u1"), np.full((samples,), number, "i4")]


def counting() -> Iterator[list[NDArray[Any]]]:
    number = 0
    while True:
        yield batch(number)
        number += 1


def numbers(batches: Any) -> list[int]:
    """Return the numbers of batches of tensors, having checked their pixels."""
    found = []
    for images, labels in batches:
        number = int(labels[0])
        assert (images.numpy() == number % 251).all()
        assert (labels.numpy() == number).all()
        found.append(number)
    return found


def spec(*kinds: tuple[Any, Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(shape, dtype) for shape, dtype in kinds]


SPEC = spec(((None, 4, 3, 2), tf.uint8), ((None,), tf.int32))


@contextlib.contextmanager
def opening() -> Iterator[Opener]:
    """Give stream_dataset with a timeout; what it opens is closed at the end."""
    made: list[tf.data.Dataset] = []

    def open_one(urls: str | list[str], **arguments: Any) -> tf.data.Dataset:
        made.append(stream_dataset(urls, **{"timeout_s": WAIT_S, **arguments}))
        return made[-1]

    yield open_one
    for dataset in made:
        close_stream(dataset)


class Feed:
    """A foreign PUSH socket that sends any frames to whoever comes; a context manager."""

    def __init__(self, *messages: list[Any]) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.linger = 0
        self.url = f"zrpull://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._messages = messages
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        for frames in self._messages:
            self._socket.send_multipart(frames)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._socket.close()
        self._context.term()


def sockets() -> int:
    """Count the open sockets of this process, those of ZeroMQ's own wake-ups among them."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except FileNotFoundError:
            continue
    return count


def pump_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tensorcom-pump"]


def wait_until(condition: Callable[[], object]) -> bool:
    """Wait until a condition holds; return whether it does in time."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
