"""Streams and records as Grain data sets.

Owns how Grain's iterators, their states and their worker processes see a stream or a set; order and
states of records are core's. Batches are numpy: Grain puts them on devices.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from tensorcom import MissingDependencyError, ZmqUrlError
from tensorcom.arguments import check_integers, check_share
from tensorcom.pcr import PcrSource
from tensorcom.progress import Ends, Progress
from tensorcom.zmq_url import receiving_urls
from tensorcom_jax.placement import Placement
from tensorcom_jax.stream import connect

try:
    import grain
except ImportError as exc:
    raise MissingDependencyError.for_package(
        "grain", "a Grain data set", "pip install 'tensorcom-jax[grain]'"
    ) from exc

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    Batch = tuple[Any, ...]


class _Shared(grain.IterDataset):  # type: ignore[misc]
    """What Grain's worker processes share: which part of the data is whose."""

    def __init__(self, shard: tuple[int, int] | None) -> None:
        super().__init__()
        self._given_shard = None if shard is None else check_share("shard", shard)
        self._worker = (0, 1)

    @property
    def _shard(self) -> tuple[int, int]:
        return self._given_shard or Placement(None).shard()

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002 - Grain's signature
        """Let this copy be that of one of several workers; Grain calls it."""
        number, count = self._worker
        index, more = sl.start or 0, sl.step or 1
        self._worker = number + count * index, count * more

    def __getstate__(self) -> dict[str, Any]:
        # In a worker process, JAX knows nothing of the job.
        return {**self.__dict__, "_given_shard": self._shard}


class StreamIterDataset(_Shared):
    """A stream as a `grain.IterDataset` of batches.

    Each iterator has a socket of its own, which `close()` closes. With `mp_prefetch`, each worker
    process has one.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        length: batches of one iterator, over all workers; None goes to the end of the stream.
        shard: (rank, ranks) of this process, which share publishers; None asks `jax.distributed`.
        **options: options of `Connection`: layout, batch_transforms, timeout_s, on_bad_message,
            infos and others.

    Elements are tuples of numpy arrays, writable, in memory of their own.

    Raises:
        ZmqUrlError: a URL is wrong, sends, or binds and is iterated by several workers.
        ReceiveTimeoutError: no message came in time.
        MessageError: a message is none of ours and `on_bad_message` is "raise".

    State: how many batches were taken. What a stream has sent it does not send again, so an
    iterator that gets a state goes on with what comes, for as many batches as are left of `length`.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        length: int | None = None,
        shard: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(shard)
        self._urls = receiving_urls(urls)
        check_integers(0, length=length, optional=True)
        self._length, self._options = length, options
        connect(self._urls, self._given_shard or (0, 1), options)  # wrong arguments are errors here

    def __iter__(self) -> _StreamIterator:
        (rank, ranks), (worker, workers) = self._shard, self._worker
        binding = [url for url in self._urls if url.binds]
        if binding and workers > 1:
            raise ZmqUrlError(
                f"binds, which one worker can do and {workers} cannot; let the servers bind and "
                "read with zrpull or zsub, or use one worker",
                url=str(binding[0]),
            )
        reader = rank * workers + worker, ranks * workers
        length = self._length
        if length is not None and workers > 1:
            length = length // workers + (worker < length % workers)
        return _StreamIterator(connect(self._urls, reader, self._options), length)


class _Iterator(grain.DatasetIterator):  # type: ignore[misc]
    """An iterator that can be closed, also in releases of Grain in which they cannot.

    Args:
        release: gives back what is open; called once, at the latest when the process ends.
    """

    def __init__(self, release: Callable[[], object]) -> None:
        super().__init__()
        # Grain's own `__del__` comes when modules that threads need are gone already.
        self._release = weakref.finalize(self, release)

    def _check_open(self) -> None:
        if not self._release.alive:
            raise ValueError("this iterator was closed: make another one")

    def close(self) -> None:
        """Give back what is open."""
        self._release()
        if hasattr(super(), "close"):
            super().close()


class _StreamIterator(_Iterator):
    def __init__(self, connection: Any, length: int | None) -> None:
        super().__init__(connection.close)
        self._connection, self._length = connection, length
        self._taken = 0
        self._ends = Ends(connection.servers)
        self._batches: Iterator[list[Any]] | None = None

    def __next__(self) -> Batch:
        self._check_open()
        if self._batches is None:
            left = None if self._length is None else max(0, self._length - self._taken)
            progress = Progress(left, ends=self._ends)
            self._batches = self._connection.items(progress=progress)
        try:
            batch = next(self._batches, None)
        except BaseException:
            self._batches = None  # a generator that raised is over; the stream goes on
            raise
        if batch is None:
            raise StopIteration
        self._taken += 1
        return tuple(batch)

    def get_state(self) -> dict[str, Any]:
        """Return how many batches were taken."""
        return {"taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on after as many batches."""
        taken = state.get("taken") if isinstance(state, dict) else None
        if not isinstance(taken, int) or taken < 0:
            raise ValueError(f"state is {state!r}, expected what get_state returned")
        self._taken, self._batches = taken, None


class PcrIterDataset(_Shared):
    """A set of records as a `grain.IterDataset` of batches, in the order of every adapter.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch.
        epochs: epochs of one iterator; None goes on for ever.
        shard: (rank, ranks) of this process; None asks `jax.distributed`.
        **options: options of `PcrSource`: scan_groups, size, augment, seed, end and others.

    Elements are tuples of images, uint8 (N, size, size, 3), and labels, int32 (N,), in memory of
    their own.

    Raises:
        PcrError: the set, a record or an image is damaged, or storage failed.
        ValueError: an argument is out of range, or a state is not one of this set.

    State: that of `PcrSource`, a few numbers. Under other ranks or batch sizes, it gives what is
    left of the epoch, each sample once. With `mp_prefetch`, Grain keeps the state of each worker,
    for as many workers.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        batch_size: int,
        epochs: int | None = 1,
        shard: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(shard)
        check_integers(0, epochs=epochs, optional=True)
        self._root, self._epochs = root, epochs
        self._options = {"batch_size": batch_size, **options}
        PcrSource(root, worker=(0, 1), **self._options).close()  # wrong arguments are errors here

    def __iter__(self) -> _PcrIterator:
        source = PcrSource(self._root, shard=self._shard, worker=self._worker, **self._options)
        return _PcrIterator(source, self._epochs)


class _PcrIterator(_Iterator):
    def __init__(self, source: PcrSource, epochs: int | None) -> None:
        super().__init__(source.close)
        self._source, self._epochs = source, epochs
        self._batches: Iterator[Any] | None = None
        self._next_epoch = 0

    def __next__(self) -> Batch:
        self._check_open()
        while True:
            if self._batches is None:
                if self._epochs is not None and self._next_epoch >= self._epochs:
                    raise StopIteration
                self._batches = iter(self._source)
                self._next_epoch = self._source.epoch + 1
            batch = next(self._batches, None)
            if batch is not None:
                return tuple(batch)
            self._batches = None

    def get_state(self) -> dict[str, Any]:
        """Return how far the set was handed out."""
        return self._source.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._source.load_state_dict(state)
        self._batches, self._next_epoch = None, self._source.epoch
