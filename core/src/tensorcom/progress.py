"""When an iteration is over, for one reader or for several workers that share a stream.

Owns the count of messages taken and the end words of sources. Several workers of one loader share
the count in a `ProgressBoard` in shared memory; a single reader has a `Progress` of its own. An
`EpochBoard` is where workers of one loader agree on the number of their epoch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
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
# Rows of an EpochBoard: of owners, and of iterations (stamp, key, iteration, number).
_OWNERS, _ITERATIONS, _ITERATION_FIELDS = 64, 64, 4
_UPCOMING, _LATEST, _WAITING, _BEGUN = range(2, 6)  # after the stamp and the owner
_OWNER_FIELDS = 8


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


class _SharedCells:
    """64-bit integers that several processes share, and a lock.

    Inherited by fork, passed to spawned children while they start; a plain pickle gets new ones.
    """

    _COUNT = 0

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._cells = context.RawArray("q", self._COUNT)
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


class ProgressBoard(_SharedCells):
    """Progress of iterations that several processes share."""

    _COUNT = _SLOTS * _FIELDS

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


class EpochBoard(_SharedCells):
    """The number of the epoch, which the workers of each iteration of a loader agree on.

    The first worker of an iteration takes the next number, the others get the same one. An owner is
    the process that has the loader. Each owner counts for itself, from where the process was that
    made the board: so ranks that one process started may share a board and nothing else.

    Outside of starting processes, a pickle gets a new board, which goes on with the same number.
    """

    _COUNT = _OWNERS * _OWNER_FIELDS + _ITERATIONS * _ITERATION_FIELDS

    def __init__(self, upcoming: int = 0) -> None:
        super().__init__()
        self._maker = os.getpid()
        self._cells[:_OWNER_FIELDS] = [1, self._maker, upcoming, *[0] * (_OWNER_FIELDS - 3)]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() or {"upcoming": self.upcoming(os.getpid())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "upcoming" in state:
            self.__init__(state["upcoming"])  # type: ignore[misc]
        else:
            super().__setstate__(state)

    def upcoming(self, owner: int) -> int:
        """Return the number of the epoch that the next iteration takes."""
        return self._get(owner, _UPCOMING)

    def latest(self, owner: int) -> int:
        """Return the key of the last iteration since an epoch or a state was set; 0 for none."""
        return self._get(owner, _LATEST)

    def waiting(self, owner: int) -> int:
        """Return the serial of the state that no iteration has begun with yet; 0 for none."""
        return self._get(owner, _WAITING)

    def has_begun(self, owner: int, serial: int) -> bool:
        """Return whether the last state that an iteration of the owner began with is this one."""
        return self._get(owner, _BEGUN) == serial

    def _get(self, owner: int, field: int) -> int:
        with _held(self._lock):
            return int(self._cells[self._owner(owner) + field])

    def set_upcoming(self, owner: int, epoch: int, *, serial: int = 0) -> None:
        """Let the next iteration take a number, and begin with a state if that has a serial."""
        with _held(self._lock):
            start = self._owner(owner)
            self._cells[start + _UPCOMING : start + _WAITING + 1] = [epoch, 0, serial]

    def join(self, owner: int, key: int, iteration: int, *, epoch: int | None = None) -> int:
        """Take part in an iteration and return the number of its epoch.

        Args:
            owner: the process that has the loader.
            key: 64 bits, not 0; the same for all workers of one loader iterator and for no others.
            iteration: how often this process has iterated before, from 0.
            epoch: the number, where a state that was loaded says it; one that waits is over then.
        """
        cells = self._cells
        with _held(self._lock):
            start = self._owner(owner)
            cells[start + _LATEST] = key
            if epoch is not None and cells[start + _WAITING]:
                cells[start + _WAITING : start + _BEGUN + 1] = [0, cells[start + _WAITING]]
            rows = range(_OWNERS * _OWNER_FIELDS, self._COUNT, _ITERATION_FIELDS)
            known = (row for row in rows if cells[row + 1 : row + 3] == [key, iteration])
            row = next(known, None)
            if row is not None and epoch is None:
                return int(cells[row + 3])
            number = cells[start + _UPCOMING] if epoch is None else epoch
            stamp = max(cells[row] for row in rows) + 1
            row = min(rows, key=lambda row: cells[row]) if row is None else row
            cells[row : row + _ITERATION_FIELDS] = [stamp, key, iteration, number]
            cells[start + _UPCOMING] = number + 1
            return int(number)

    def begins_with(self, owner: int, serial: int, key: int, iteration: int) -> bool:
        """Return whether a state is for this iteration: it is for the first one that asks.

        Args:
            owner: as for `join`.
            serial: number of the state, not 0.
            key: as for `join`.
            iteration: as for `join`.
        """
        cells = self._cells
        with _held(self._lock):
            start = self._owner(owner)
            begun = slice(start + _BEGUN, start + _OWNER_FIELDS)
            if cells[start + _BEGUN] != serial:
                cells[begun] = [serial, key, iteration]
            if cells[start + _WAITING] == serial:
                cells[start + _WAITING] = 0
            return bool(cells[begun] == [serial, key, iteration])

    def _owner(self, owner: int) -> int:
        """Return where the row of an owner starts, after making it if need be."""
        cells = self._cells
        rows = range(0, _OWNERS * _OWNER_FIELDS, _OWNER_FIELDS)
        stamp = max(cells[row] for row in rows) + 1
        known = (row for row in rows if cells[row] and cells[row + 1] == owner)
        row = next(known, None)
        if row is None:  # the maker's row stays, since others begin with its number
            row = min(rows[1:], key=lambda row: cells[row])
            zeros = [0] * (_OWNER_FIELDS - 3)
            cells[row : row + _OWNER_FIELDS] = [stamp, owner, cells[_UPCOMING], *zeros]
        cells[row] = stamp
        return row


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
