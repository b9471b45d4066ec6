"""When an iteration is over, for one reader or for several workers that share a stream.

Owns the count of messages taken and the end words of sources. Several workers of one loader share
the count in a `ProgressBoard` in shared memory; a single reader has a `Progress` of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from typing import TYPE_CHECKING, Any

from tensorcom.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorcom.meta import Meta

_LOCK_TIMEOUT_S = 30.0
_SLOTS = 64
_MASK_BITS = 62
_KEY, _ITERATION, _JOINED, _STAMP, _TAKEN = range(5)
_FIELDS = 5


class IterationOver(Exception):  # noqa: N818 - a signal between two modules, no error
    """Raised by `Progress.check` while a reader waits and nothing more will come."""


class Ends:
    """Which sources of a stream have ended, as one reader hears it.

    It outlives an iteration: a source says its end once, the others may go on.

    Args:
        servers: addresses that the stream comes from; each has as many sources as these say.
    """

    def __init__(self, servers: int = 1) -> None:
        self._servers = servers
        self._sources = 1
        self._ended: set[str] = set()

    def note(self, meta: Meta) -> None:
        """Take in the end word of a source."""
        self._sources = max(self._sources, meta.sources or 1)
        self._ended.add(meta.source or "")

    @property
    def complete(self) -> bool:
        """Whether every source has ended."""
        return len(self._ended) >= self._servers * self._sources

    def current(self) -> Ends:
        """Return what a new iteration starts from: these ends, or none once all have ended."""
        return Ends(self._servers) if self.complete else self


class Progress:
    """One iteration over a stream, as one reader sees it.

    A source says its end word to every reader, after all its messages: so each reader knows by
    itself when it has everything. The count of messages is shared by the readers of one loader.

    Args:
        length: messages in the iteration over all readers, None for no limit.
        servers: addresses that the stream comes from.
        ends: ends heard so far; none by default.
        cells: counters shared with the other readers of this iteration.
        lock: guards them.
    """

    def __init__(
        self,
        length: int | None,
        *,
        servers: int = 1,
        ends: Ends | None = None,
        cells: _Window | None = None,
        lock: Any = None,
    ) -> None:
        self._length = length
        self._ends = Ends(servers) if ends is None else ends
        self._cells: list[int] | _Window = [0] * _FIELDS if cells is None else cells
        self._lock = lock

    def claim(self) -> bool:
        """Take one message of the iteration's length; False if all are taken."""
        with _held(self._lock):
            if self._length is not None and self._cells[_TAKEN] >= self._length:
                return False
            self._cells[_TAKEN] += 1
            return True

    def note_end(self, meta: Meta) -> None:
        """Take in the end word of a source."""
        self._ends.note(meta)

    @property
    def ended(self) -> bool:
        """Whether every source has ended."""
        return self._ends.complete

    @property
    def complete(self) -> bool:
        """Whether the length is reached or the stream has ended."""
        if self.ended:
            return True
        with _held(self._lock):
            return self._length is not None and self._cells[_TAKEN] >= self._length

    def check(self) -> None:
        """Raise IterationOver if nothing more will come."""
        if self.complete:
            raise IterationOver


class ProgressBoard:
    """Progress of iterations that several processes share.

    Inherited by fork, passed to spawned children while they start; a plain pickle gets a new one.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._cells = context.RawArray("q", _SLOTS * _FIELDS)
        self._lock = context.Lock()

    def __getstate__(self) -> dict[str, Any]:
        if multiprocessing.context.get_spawning_popen() is None:
            return {}
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state:
            self.__dict__.update(state)
        else:
            self.__init__()  # type: ignore[misc]

    def join(
        self,
        key: int,
        iteration: int,
        worker: int,
        length: int | None,
        *,
        servers: int = 1,
        ends: Ends | None = None,
    ) -> Progress:
        """Take part in an iteration.

        Args:
            key: 64 bits, the same for all workers of one loader iterator and for no others.
            iteration: how often this process has iterated before, from 0.
            worker: index of this worker; one that joins the same iteration again starts it anew.
            length: messages in the iteration over all workers.
            servers: addresses that the stream comes from.
            ends: ends that this worker has heard so far; none by default.
        """
        bit = 1 << worker if worker < _MASK_BITS else 0
        with _held(self._lock):
            start = self._slot(key, iteration)
            if self._cells[start + _JOINED] & bit:
                self._reset(start, key, iteration)
            self._cells[start + _JOINED] |= bit
        cells = _Window(self._cells, start)
        return Progress(length, servers=servers, ends=ends, cells=cells, lock=self._lock)

    def _slot(self, key: int, iteration: int) -> int:
        cells = self._cells
        starts = range(0, _SLOTS * _FIELDS, _FIELDS)
        for start in starts:
            same = cells[start + _KEY] == key and cells[start + _ITERATION] == iteration
            if same and cells[start + _STAMP]:
                return start
        oldest = min(starts, key=lambda start: cells[start + _STAMP])
        self._reset(oldest, key, iteration)
        return oldest

    def _reset(self, start: int, key: int, iteration: int) -> None:
        stamp = max(self._cells[_STAMP::_FIELDS]) + 1
        values = [0] * _FIELDS
        values[_KEY], values[_ITERATION], values[_STAMP] = key, iteration, stamp
        self._cells[start : start + _FIELDS] = values


class _Window:
    """The cells of one slot."""

    def __init__(self, cells: Any, start: int) -> None:
        self._all, self._start = cells, start

    def __getitem__(self, index: int) -> int:
        return int(self._all[self._start + index])

    def __setitem__(self, index: int, value: int) -> None:
        self._all[self._start + index] = value


@contextlib.contextmanager
def _held(lock: Any) -> Iterator[None]:
    """Hold a lock that a killed process may have taken with it."""
    if lock is None:
        yield
        return
    if not lock.acquire(timeout=_LOCK_TIMEOUT_S):
        raise TransportError(
            "the lock that loader workers share is stuck: a worker died while it held it; "
            "make the data set anew"
        )
    try:
        yield
    finally:
        lock.release()
