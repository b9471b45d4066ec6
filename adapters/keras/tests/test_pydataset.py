"""What Keras asks of a data set, call by call, and what it is handed then."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from tensorcom_keras.pydataset import MOST_LOOKED_AT, SequentialPyDataset, Taken, current_shard


class Counting(SequentialPyDataset):
    """Batches are numbers; the source goes on over epochs, or begins each at a hundred more."""

    def __init__(self, length: int | None, *, epochs: bool = False, workers: int = 1) -> None:
        super().__init__(workers=workers, use_multiprocessing=False, max_queue_size=10)
        self.length, self.epochs, self.next = length, epochs, 0
        self.went_back = 0
        self.version = 0

    @property
    def num_batches(self) -> int | None:
        return self.length

    def _take(self) -> int:
        number = self.next
        self.next += 1
        return number

    def _start_epoch(self) -> None:
        if self.epochs:
            self._cursor.again.clear()
            self.next = self.next // 100 * 100 + 100

    def _mark(self) -> Any:
        return self.next, self.version

    def _may_come_again(self, taken: Taken) -> bool:
        return taken.mark[1] == self.version

    def _go_back(self, mark: Any) -> None:
        self.went_back += 1
        self.next = mark[0]

    def _forget_parent(self) -> None:
        self.next = 1000


def played(data: Counting, calls: str) -> list[int]:
    """Return what a data set hands out.

    Args:
        data: the data set.
        calls: O for a new iterator, B and E for the begin and end of an epoch, numbers for indices.
    """
    found = []
    for call in calls.split():
        if call == "O":
            assert data.use_multiprocessing is False
        elif call == "B":
            data.on_epoch_begin()
        elif call == "E":
            data.on_epoch_end()
        else:
            found.append(data[int(call)])
    return found


# What Keras 3.15 calls, as it was seen, and what it must be handed then.
FITS = {
    # Of a model that was not built: one look (torch, jax), two (tensorflow).
    "torch": ("O B 0 E B 0 2 1 E B 1 2 0 E", [0, 0, 1, 2, 100, 101, 102]),
    "tensorflow": ("O 0 1 E B 0 2 1 E B 1 2 0 E", [0, 1, 0, 1, 2, 100, 101, 102]),
    # Again, with the same model and with another one.
    "torch, built": ("O E B 0 2 1 E O E B 1 2 0 E", [0, 1, 2, 100, 101, 102]),
    "torch, not built": ("O E B 0 2 1 E O B 0 E B 1 2 0 E", [0, 1, 2, 100, 100, 101, 102]),
    "tensorflow again": (
        "O 0 1 E B 2 0 1 E O 0 1 E B 0 1 2 E",
        [0, 1, 0, 1, 2, *[100, 101] * 2, 102],
    ),
    # Under a strategy of tf.distribute, the look goes through tf.data, which reads ahead.
    "strategy": ("O 0 1 B 0 1 2 E B 0 1 2 E B 0 1 2 E", [*[0, 1] * 2, 2, 0, 1, 2, 100, 101, 102]),
    # Predict and evaluate end nothing before they begin, or do.
    "torch predict": ("O B 0 1 2 E O B 0 1 2 E", [0, 1, 2, 100, 101, 102]),
    "jax predict": ("O B 0 E B 0 1 2 E O B 0 1 2 E", [0, 0, 1, 2, 100, 101, 102]),
    "tensorflow predict": (
        "O 0 1 B 0 1 2 E O 0 1 B 0 1 2 E",
        [*[0, 1] * 2, 2, *[100, 101] * 2, 102],
    ),
    # An epoch in steps of two, and one that a new iterator leaves.
    "steps": ("O B 0 E B 0 1 E B 2 E B 0 1 E", [0, 0, 1, 2, 100, 101]),
    "stopped": ("O E B 0 1 O E B 0 1 2 E", [0, 1, 100, 101, 102]),
    "stopped while looking": ("O 0 1 O 0 1 E B 0 1 2 E", [0, 1, 0, 1, 0, 1, 2]),
    # Validation with validation_steps=2: each evaluation resets the iterator that is kept.
    "validation": ("O B 0 E B 0 1 E E B 0 1 E E B 0 1 E", [0, 0, 1, 100, 101, 200, 201]),
    "validation, tf.data": ("O 0 1 E B 0 1 2 E E B 0 1 E 2", [*[0, 1] * 2, 2, 100, 101, 102]),
}


@pytest.mark.parametrize("name", FITS)
def test_looks_come_again_and_epochs_are_whole(name: str) -> None:
    calls, expected = FITS[name]
    assert played(Counting(3, epochs=True), calls) == expected


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("O B 0 E B 0 E B 0 E O E B 0 E", [0, 0, 100, 200]),
        ("O 0 E B 0 E B 0 E O 0 E B 0 E", [0, 0, 100, 200, 200]),
        ("O 0 B 0 E O 0 B 0 E", [0, 0, 100, 100]),
        ("O B 0 E O B 0 E", [0, 100]),
    ],
)
def test_epochs_of_one_batch(calls: str, expected: list[int]) -> None:
    assert played(Counting(1, epochs=True), calls) == expected


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("O B 0 E B 0 1 E B 2 3 E O E B 0 1 E", [0, 0, 1, 2, 3, 4, 5]),
        ("O 0 1 E B 0 1 2 E B 3 E O 0 1 E B 0 E", [0, 1, 0, 1, 2, 3, 4, 5, 4]),
        ("O E B 0 E O E B 0 E", [0, 1]),
        ("O B 0 E O B 0 E", [0, 1]),
    ],
)
def test_a_stream_without_length_goes_on(calls: str, expected: list[int]) -> None:
    assert played(Counting(None), calls) == expected


def test_many_batches_are_no_look() -> None:
    data = Counting(None)
    indices = range(MOST_LOOKED_AT + 3)
    calls = "O B " + " ".join(map(str, indices)) + " E B 0"
    assert played(data, calls) == [*indices, MOST_LOOKED_AT + 3]


def test_what_was_looked_at_is_made_anew_if_it_would_differ() -> None:
    data = Counting(3, epochs=True)
    assert played(data, "O 0 1 E B") == [0, 1]
    data.version = 1
    assert played(data, "0 1 2 E") == [0, 1, 2]
    assert data.went_back == 1
    assert played(data, "O 0 1 E B 0 1 2") == [100, 101, 100, 101, 102]
    assert data.went_back == 1


def test_an_index_before_any_epoch_looks() -> None:
    data = Counting(3, epochs=True)
    assert [data[0], data[0], data[1], data[0], data[1]] == [0, 0, 1, 0, 1]
    assert played(data, "O E B 0 1 2 E B 0") == [0, 1, 2, 100]


def test_a_loop_over_indices_takes_epochs() -> None:
    for length in (1, 3, MOST_LOOKED_AT + 2):
        data = Counting(length, epochs=True)
        found = [[data[i] for i in range(length)] for _ in range(3)]
        assert found == [[100 * epoch + i for i in range(length)] for epoch in range(3)]


def test_the_last_batch_of_an_iterator_that_is_gone_comes_again() -> None:
    waits, goes_on = threading.Event(), threading.Event()

    class Slow(Counting):
        def _take(self) -> int:
            waits.set()
            assert goes_on.wait(20)
            return super()._take()

    data = Slow(None)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(data[0]))
    thread.start()
    assert waits.wait(20)
    played(data, "O E B")  # none of these may wait for the batch
    goes_on.set()
    thread.join()
    assert found == [0]
    assert played(data, "0 1 2") == [0, 1, 2]


def test_a_forked_child_has_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Counting(3)
    assert played(data, "O E B 0 1") == [0, 1]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert played(data, "O E B 0 1 2 E B 0") == [1000, 1001, 1002, 1003]


def test_a_copy_begins_anew() -> None:
    data = Counting(None)
    assert played(data, "O 0 1") == [0, 1]
    copy = pickle.loads(pickle.dumps(data))
    assert played(copy, "O E B 0") == [2]
    assert played(data, "E B 0") == [0]


# -- arguments -------------------------------------------------------------------------------------


def test_keras_is_told_of_one_worker() -> None:
    data = Counting(3, workers=2)
    data.workers = 4
    assert data.workers == 1
    assert PyDatasetAdapter(data).enqueuer is None


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_counts_are_checked(value: Any) -> None:
    data = Counting(3)
    with pytest.raises(ValueError, match=f"workers={value}, expected (an integer|at least 1)"):
        data.workers = value
    with pytest.raises(
        ValueError, match=f"max_queue_size={value}, expected (an integer|at least 1)"
    ):
        data.max_queue_size = value


def test_processes_are_refused() -> None:
    data = Counting(3)
    with pytest.raises(ValueError, match="can share neither a socket nor decoding threads"):
        data.use_multiprocessing = True
    data.use_multiprocessing = False


def test_the_environment_says_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert current_shard() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert current_shard() == (2, 3)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_no_tensorflow_is_needed(backend: str) -> None:
    script = textwrap.dedent("""
        import sys

        sys.modules["tensorflow"] = None
        import tensorcom_keras
        from tensorcom_keras import PcrPyDataset, StreamPyDataset, from_records, from_stream

        data = StreamPyDataset("zrpull://127.0.0.1:7880", length=3)
        assert data.num_batches == 3
    """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
