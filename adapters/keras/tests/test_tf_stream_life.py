"""stream_dataset: whose memory tensors are, and when threads and sockets go."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from fit_helpers import Log, new_model, server
from numpy.typing import NDArray
from tf_stream_helpers import (
    WAIT_S,
    batch,
    counting,
    numbers,
    pump_threads,
    sockets,
    wait_until,
)

from tensorcom.buffers import BufferPool, aligned_array
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_keras import StreamPyDataset, as_tf_dataset, tf_stream
from tensorcom_keras.tf_stream import close_stream, stream_dataset


def address(tensor: Any) -> int:
    return tensor._numpy().ctypes.data  # numpy() copies


# -- memory --------------------------------------------------------------------------------------


class Seen:
    """What data sets hand to TensorFlow, and which copies they made for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handed: list[int] = []
        self.copied: list[int] = []
        own, take = tf_stream.owned, BufferPool.take
        making = threading.local()

        def owned(array: NDArray[Any], pool: BufferPool, **arguments: Any) -> NDArray[Any]:
            making.copy = True
            result = own(array, pool, **arguments)
            making.copy = False
            self.handed.append(result.ctypes.data)
            return result

        def counted(pool: BufferPool, size_bytes: int) -> memoryview:
            memory = take(pool, size_bytes)
            if getattr(making, "copy", False):
                self.copied.append(np.frombuffer(memory, np.uint8).ctypes.data)
            return memory

        monkeypatch.setattr(tf_stream, "owned", owned)
        monkeypatch.setattr(BufferPool, "take", counted)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


LARGE = (8, 64, 64, 3)  # more than a buffer has to have to be used again


def pictures(count: int) -> list[list[NDArray[Any]]]:
    return [[np.full(LARGE, n, "u1"), np.full(8, n, "i4")] for n in range(count)]


def test_tensors_are_the_received_memory(seen: Seen) -> None:
    with LoopbackServer(pictures(5)) as server:
        dataset = stream_dataset(server.url, timeout_s=WAIT_S)
        found = [address(tensor) for arrays in dataset for tensor in arrays]
        close_stream(dataset)
    assert found == seen.handed
    assert len(found) == 10
    assert not seen.copied
    assert all(pointer % 64 == 0 for pointer in found)


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_transforms": [lambda images: images + np.uint8(1), None]},
        {"batch_transforms": [lambda images: images, None]},
        {"layout": ("NHWC", "NCHW")},
        {
            "batch_transforms": [lambda images: images[:, ::-1] + 1, None],
            "layout": ("NHWC", "NCHW"),
        },
        {"batch_transforms": [lambda images: images.astype(">i2"), None]},
    ],
    ids=["computed", "returned", "layout", "both", "big-endian"],
)
def test_what_cannot_be_taken_as_it_is_is_copied_once(
    seen: Seen, arguments: dict[str, Any]
) -> None:
    with LoopbackServer(pictures(3)) as server:
        dataset = stream_dataset(server.url, timeout_s=WAIT_S, **arguments)
        found = list(dataset)
        close_stream(dataset)
    assert [address(tensor) for arrays in found for tensor in arrays] == seen.handed
    assert seen.copied == seen.handed[::2]  # the images, and no labels
    plus = 0 if "layout" in arguments and len(arguments) == 1 else None
    for number, (images, _) in enumerate(found):
        values = np.unique(images.numpy())
        assert len(values) == 1
        assert values[0] - number in (plus, 0, 1)


def test_no_tensor_changes_when_its_sender_or_later_messages_do() -> None:
    images, labels = pictures(1)[0]

    def reusing() -> Iterator[list[NDArray[Any]]]:
        for number in range(60):
            images[...] = number
            labels[...] = number
            yield [images, labels]

    with LoopbackServer(reusing()) as server:
        dataset = stream_dataset(server.url, prefetch=3, timeout_s=WAIT_S)
        kept = {}
        reused = set()
        for number, (one, other) in enumerate(dataset):
            reused.add(address(one))
            if number % 2:
                kept[number] = (one, other)
            del one, other
        close_stream(dataset)
    assert sorted(kept) == list(range(1, 60, 2))
    assert len({address(one) for one, _ in kept.values()}) == 30
    assert len(reused) < 60, "memory of tensors that are gone is not used again"
    for number, (one, other) in kept.items():
        assert (one.numpy() == number).all()
        assert (other.numpy() == number).all()


def test_a_transform_may_use_its_memory_again() -> None:
    memory = aligned_array(int(np.prod(LARGE))).reshape(LARGE)

    def reuse(images: NDArray[Any]) -> NDArray[Any]:
        np.add(images, 1, out=memory)
        return memory

    with LoopbackServer(pictures(20)) as server:
        dataset = stream_dataset(server.url, batch_transforms=[reuse, None], timeout_s=WAIT_S)
        kept = list(dataset)
        close_stream(dataset)
    assert [int(np.unique(images.numpy())[0]) for images, _ in kept] == list(range(1, 21))


# -- life ----------------------------------------------------------------------------------------


def test_a_dropped_iterator_ends_the_thread_and_keeps_the_socket() -> None:
    with LoopbackServer(counting()) as server:
        dataset = stream_dataset(server.url, timeout_s=WAIT_S)
        assert not pump_threads()
        batches = iter(dataset)
        assert numbers([next(batches)]) == [0]
        assert pump_threads()
        opened = sockets()
        del batches
        assert wait_until(lambda: not pump_threads())
        assert sockets() == opened
        assert numbers(dataset.take(2)) == [1, 2]
        close_stream(dataset)
        assert not pump_threads()


def test_an_iteration_that_is_complete_ends_the_thread() -> None:
    with LoopbackServer(counting()) as server:
        dataset = stream_dataset(server.url, length=3, timeout_s=WAIT_S)
        batches = iter(dataset)
        assert numbers(next(batches) for _ in range(3)) == [0, 1, 2]
        assert wait_until(lambda: not pump_threads())
        assert next(batches, None) is None
        close_stream(dataset)


@pytest.mark.parametrize("iterated", [False, True])
def test_a_data_set_that_is_gone_has_closed_its_socket(iterated: bool) -> None:
    with LoopbackServer(counting()) as server:
        gc.collect()
        before = sockets()
        dataset = stream_dataset(server.url, timeout_s=WAIT_S)
        made = dataset.map(lambda images, labels: (images, labels)).prefetch(1)
        assert sockets() > before
        batches = iter(made) if iterated else None
        del dataset
        gc.collect()
        assert numbers(made.take(1)) == [0]
        del made
        gc.collect()
        if batches is not None:
            assert len(numbers([next(batches)])) == 1
            assert sockets() > before
        del batches
        gc.collect()
        assert wait_until(lambda: sockets() <= before and not pump_threads())


def test_a_data_set_that_is_gone_after_an_error_has_closed_its_socket() -> None:
    with LoopbackServer([batch(0)], end=False) as server:
        gc.collect()
        before = sockets()
        dataset = stream_dataset(server.url, timeout_s=0.2)
        batches = iter(dataset)
        next(batches)
        with pytest.raises(tf.errors.UnknownError, match="ReceiveTimeoutError"):
            next(batches)
        assert wait_until(lambda: not pump_threads())
        assert sockets() > before
        del batches, dataset
        assert wait_until(lambda: sockets() <= before)  # though garbage is not collected


def test_closing_by_a_data_set_that_was_made_of_it_and_opening_again() -> None:
    with LoopbackServer(counting()) as server:
        before = sockets()
        dataset = stream_dataset(server.url, timeout_s=WAIT_S)
        made = dataset.map(lambda images, labels: (images, labels)).batch(2).prefetch(2)
        next(iter(made))
        close_stream(made)
        assert wait_until(lambda: sockets() == before)
        close_stream(made)
        assert len(numbers(dataset.take(3))) == 3
        close_stream(dataset)
        assert sockets() == before


def test_closing_ends_iterators_in_use() -> None:
    with LoopbackServer([batch(0)], end=False) as server:
        dataset = stream_dataset(server.url, timeout_s=WAIT_S)
        batches = iter(dataset)
        next(batches)
        closing = threading.Timer(0.1, close_stream, (dataset,))
        closing.start()
        with pytest.raises(tf.errors.UnknownError, match="ClosedError: .*closed while it was read"):
            next(batches)  # which waits for a message that never comes
        closing.join()
        assert next(batches, None) is None


def test_other_data_sets_cannot_be_closed() -> None:
    with pytest.raises(TypeError, match="not made by stream_dataset"):
        close_stream(tf.data.Dataset.range(3).map(lambda x: x))


def test_an_error_where_the_spec_is_taken_leaves_nothing_open() -> None:
    before = sockets()
    with LoopbackServer([batch(0)], end=False) as server:
        with pytest.raises(ZeroDivisionError):
            stream_dataset(server.url, batch_transforms=lambda _: 1 // 0, timeout_s=WAIT_S)
        with pytest.raises(OSError, match="no message"):
            stream_dataset(server.url, timeout_s=0.1)
    assert sockets() <= before


@pytest.mark.parametrize("step", ["prefetch", "parallel map", "batch"])
def test_dropping_an_iterator_does_not_wait_for_a_message(step: str) -> None:
    steps = {
        "prefetch": lambda dataset: dataset.prefetch(4),
        "parallel map": lambda dataset: dataset.map(
            lambda images, labels: (images, labels), num_parallel_calls=2
        ).prefetch(1),
        "batch": lambda dataset: dataset.batch(1).prefetch(4),
    }
    with LoopbackServer([batch(0)], end=False) as server:
        dataset = stream_dataset(server.url, timeout_s=600)
        batches = iter(steps[step](dataset))
        next(batches)
        start = time.monotonic()
        del batches
        assert time.monotonic() - start < WAIT_S
        assert wait_until(lambda: not pump_threads())
        close_stream(dataset)


def test_tensorflows_threads_are_not_taken_for_ours() -> None:
    with LoopbackServer(counting()) as server:
        dataset = stream_dataset(server.url, timeout_s=WAIT_S)
        before = set(threading.enumerate())
        assert numbers(dataset.prefetch(2).take(5)) == list(range(5))
        assert wait_until(lambda: not set(threading.enumerate()) - before)
        close_stream(dataset)


def test_a_program_that_breaks_off_ends() -> None:
    script = textwrap.dedent("""
        from tensorcom.testing.loopback import LoopbackServer
        from tensorcom_keras.tf_stream import stream_dataset
        from tf_stream_helpers import batch

        server = LoopbackServer([batch(0)] * 20, end=False)
        server.__enter__()
        dataset = stream_dataset(server.url, timeout_s=600)
        for images, labels in dataset:
            break
        waiting = iter(dataset.prefetch(40))
        next(waiting)
        server.__exit__()
        print("done")
    """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=__file__.rpartition("/")[0],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done")
    assert "Error" not in done.stderr


# -- fits ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:__array__ impl:DeprecationWarning")  # of Keras' variables
@pytest.mark.parametrize("kind", ["stream_dataset", "as_tf_dataset"])
def test_a_fit_in_steps_loses_no_batch_and_waits_for_none(kind: str) -> None:
    with server(count=12, end=False) as serving:
        if kind == "stream_dataset":
            dataset = stream_dataset(serving.url, timeout_s=None)
            close = functools.partial(close_stream, dataset)
        else:
            source = StreamPyDataset(serving.url, timeout_s=None)
            dataset, close = as_tf_dataset(source), source.close
        log = Log()
        model = new_model()
        for _ in range(2):
            arguments = {"epochs": 2, "steps_per_epoch": 3, "shuffle": False, "verbose": 0}
            model.fit(dataset, callbacks=[log], **arguments)
        close()
    taken = [sorted({label // 2 for label in epoch}) for epoch in log.epochs]
    assert taken == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
