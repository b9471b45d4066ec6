"""What Keras asks of a `PyDataset`, turned into batches that come one after the other.

Owns which batches Keras takes and which it only looks at, when an epoch is over, and what Keras is
told of threads; knows nothing of streams or records.

Keras 3 drives a `PyDataset` by index. For each fit, evaluate and predict it makes an iterator,
takes a batch or two to learn shapes, forgets them without a word, and begins; `fit` asks for the
indices of an epoch in any order. A stream has no index, and records are decoded ahead in an order
of their own: so an index says only that one more batch is wanted.
"""

from __future__ import annotations

import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from tensorcom.arguments import check_integers, environment_share
from tensorcom.converters import to_tensor
from tensorcom.locks import ForkLock
from tensorcom_keras.tf_memory import keep_freed_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_LOOKED_AT = 8
# What Keras on torch has operations for; it converts other dtypes itself, from numpy.
_TORCH_DTYPES = {
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
}


class Taken(NamedTuple):
    """A batch on its way to Keras.

    Attributes:
        batch: as the data set yields it.
        mark: where the source was before it.
    """

    batch: Any
    mark: Any


class Cursor:
    """Which batches were handed out, and which were only looked at and must come again.

    What Keras takes between making an iterator (`open`) and the first end of an epoch is a look, if
    an epoch begins after it: `fit` and `evaluate` end an epoch that never was, to reset. What is
    taken before any epoch began is a look in any case. Not thread-safe.

    Attributes:
        session: number of the iterator that Keras uses.
        position: batches of the current epoch that were handed out or looked at.
        over: whether the current epoch was left.
        again: what comes before anything new.
    """

    def __init__(self) -> None:
        self.session = 0
        self.again: deque[Taken] = deque()
        self._kept: list[Taken] = []
        self.reset()

    def reset(self) -> None:
        """Forget all that was handed out: what comes next is the first batch of an epoch."""
        self.position, self.over = 0, False
        self.again.clear()
        self._listen()

    def _listen(self) -> None:
        self.session += 1
        self._kept.clear()
        self._looking, self._began, self._ended, self._in_epoch = True, False, False, False

    def open(self) -> None:
        """Take note of a new iterator: the epoch that another one left is over."""
        if self._looking and not self._began:
            self._rewind()
        elif self.position:
            self.over = True
        self._listen()

    def begin(self) -> None:
        """Take note that an epoch begins."""
        if self._looking:
            if self._ended or not self._began:
                self._rewind()
            self._looking = not self._ended
        self._began = self._in_epoch = True

    def end(self) -> None:
        """Take note that an epoch ends; one that had not begun says that the iterator is reset."""
        if self._looking:
            self._ended = True
        elif not self._in_epoch and self.position:
            self.over = True
        self._in_epoch = False

    def _rewind(self) -> None:
        self.again.extendleft(reversed(self._kept))
        self.position -= len(self._kept)
        self._kept.clear()

    def seen(self, index: int, length: int | None) -> Taken | None:
        """Return a batch that is looked at again before any epoch began, None for any other."""
        if not self._looking or self._began or self.position == length:
            return None
        return self._kept[index] if 0 <= index < len(self._kept) else None

    def start_epoch(self) -> None:
        """Take note that the next batch is the first of an epoch."""
        self.position, self.over = 0, False
        self._kept.clear()

    def note(self, taken: Taken, session: int) -> None:
        """Take note of a batch that was handed to the iterator of a session."""
        if session != self.session:  # an iterator that is gone: its last batch is for the next one
            self.again.appendleft(taken)
            return
        self.position += 1
        if not self._looking:
            return
        if len(self._kept) < MOST_LOOKED_AT:
            self._kept.append(taken)
        else:
            self._looking = False
            self._kept.clear()

    @property
    def waiting(self) -> Taken | None:
        """The first batch that comes again, None if nothing does."""
        if self._looking and not self._began and self._kept:
            return self._kept[0]
        return self.again[0] if self.again and not self.over else None


class SequentialPyDataset(keras.utils.PyDataset, ABC):  # type: ignore[misc]
    """A `PyDataset` whose batches come in an order of their own, each once, whatever the index.

    Keras is always told of one worker. With more it would hand out batches that it looked at, or
    fetched in one epoch, in the next one: on torch and jax, for the rest of the training. Threads
    are the data set's own.

    Args:
        workers: threads, as the data set says; at least 1, or None where it chooses.
        use_multiprocessing: must be False.
        max_queue_size: batches that wait, as the data set says; at least 1.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self, *, workers: int | None, use_multiprocessing: bool, max_queue_size: int
    ) -> None:
        super().__init__()
        check_integers(1, workers=workers, optional=True)
        check_integers(1, max_queue_size=max_queue_size)
        self._threads, self._queue_size = workers, max_queue_size
        self._reset_live()
        self.use_multiprocessing = use_multiprocessing

    def _reset_live(self) -> None:
        """Make what belongs to this process."""
        self._pid = os.getpid()
        self._cursor = Cursor()
        self._state, self._pulling = ForkLock(), ForkLock()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration; what is open stays with its process."""
        live = ("_cursor", "_state", "_pulling", "_pid")
        return {name: value for name, value in self.__dict__.items() if name not in live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset_live()

    # -- what a data set says ------------------------------------------------------------------

    @property
    @abstractmethod
    def num_batches(self) -> int | None:
        """Batches of the next epoch; None for no end."""

    @abstractmethod
    def _take(self) -> Any:
        """Return the next batch; waits for it."""

    @abstractmethod
    def _start_epoch(self) -> None:
        """Let the next batch be the first of a new epoch."""

    @abstractmethod
    def _mark(self) -> Any:
        """Return where the source is."""

    @abstractmethod
    def _may_come_again(self, taken: Taken) -> bool:
        """Return whether a batch is what the source would give now."""

    @abstractmethod
    def _go_back(self, mark: Any) -> None:
        """Let the next batch be the one that came after `mark` was taken."""

    @abstractmethod
    def _forget_parent(self) -> None:
        """Drop what a parent process has open, in a forked child."""

    # -- what Keras asks -----------------------------------------------------------------------

    @property
    def workers(self) -> int:
        """What Keras may use: 1, whatever was set, since the threads are the data set's own."""
        return 1

    @workers.setter
    def workers(self, value: int) -> None:
        check_integers(1, workers=value)
        self._threads = value

    @property
    def max_queue_size(self) -> int:
        """Batches that wait until they are asked for."""
        return self._queue_size

    @max_queue_size.setter
    def max_queue_size(self, value: int) -> None:
        check_integers(1, max_queue_size=value)
        self._queue_size = value

    @property
    def use_multiprocessing(self) -> bool:
        """False. Keras asks when it makes an iterator, which is how one is told from the next."""
        self._follow_fork()
        with self._state:
            self._cursor.open()
        return False

    @use_multiprocessing.setter
    def use_multiprocessing(self, value: bool) -> None:
        if value:
            raise ValueError(
                "use_multiprocessing=True: forked processes can share neither a socket nor "
                "decoding threads, and each would read a sequence of its own; use workers=n, which "
                "are threads"
            )

    def on_epoch_begin(self) -> None:
        """Take note that an epoch begins; Keras calls it."""
        self._follow_fork()
        if "tensorflow" in sys.modules:  # Keras has wrapped this in a generator data set there
            keep_freed_blocks()
        with self._state:
            self._cursor.begin()

    def on_epoch_end(self) -> None:
        """Take note that an epoch ends, or that Keras resets its iterator; Keras calls it."""
        self._follow_fork()
        with self._state:
            self._cursor.end()

    def __getitem__(self, index: int) -> Any:
        """Return the next batch.

        Args:
            index: of no matter, since batches come in order; but before an epoch has begun, batches
                that were looked at can be looked at again by their index.
        """
        self._follow_fork()
        with self._pulling:
            with self._state:
                taken = self._cursor.seen(index, self.num_batches)
                session = self._cursor.session
            if taken is None:
                taken = self._pull()
                with self._state:
                    self._cursor.note(taken, session)
        return for_backend(taken.batch)

    def _pull(self) -> Taken:
        cursor = self._cursor
        with self._state:
            if cursor.over or cursor.position == self.num_batches:
                self._start_epoch()
                cursor.start_epoch()
            if cursor.again:
                if self._may_come_again(cursor.again[0]):
                    return cursor.again.popleft()
                self._go_back(cursor.again[0].mark)
                cursor.again.clear()
            mark = self._mark()
        return Taken(self._take(), mark)

    def _follow_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._cursor = Cursor()
            self._forget_parent()


def arranged(arrays: Any, arrange: Callable[..., Any] | None) -> Any:
    """Return what a data set yields: a tuple of the arrays, or what `arrange` makes of them."""
    return tuple(arrays) if arrange is None else arrange(*arrays)


def for_backend(batch: Any) -> Any:
    """Return a batch as Keras takes it without a copy: on torch as tensors in the same memory."""
    if keras.backend.backend() != "torch":
        return batch
    return keras.tree.map_structure(_as_torch, batch)


def _as_torch(value: Any) -> Any:
    known = isinstance(value, np.ndarray) and value.dtype.name in _TORCH_DTYPES
    return to_tensor(value) if known else value


def current_shard() -> tuple[int, int]:
    """Return (rank, ranks) of this process, as the backend says or RANK and WORLD_SIZE.

    Raises:
        ValueError: RANK and WORLD_SIZE are no such numbers.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        jax = importlib.import_module("jax")
        if jax.process_count() > 1:
            return jax.process_index(), jax.process_count()
    if backend == "torch":
        distributed = importlib.import_module("torch.distributed")
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    return environment_share() or (0, 1)
