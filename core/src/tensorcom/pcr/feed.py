"""Records in the order in which they are needed, read ahead in threads.

Owns when a record is read and how long it is kept; knows nothing of samples, batches or storage.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tensorcom.images import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from tensorcom.pcr.record import RecordPrefix

AHEAD_BYTES = 64 << 20
_CLOSE_WAIT_S = 2.0


class RecordFeed:
    """Reads records one after the other, before they are asked for.

    Args:
        read: reads one record; called in a thread of the feed.
        size: bytes that reading it takes.
        records: their numbers, in the order of their first use, each once.
        ahead_bytes: most bytes of records that are read or being read before they are asked for;
            one record is read ahead whatever its size.
        threads: that read, each one record at a time.

    Use as a context manager: leaving it ends the threads and drops all records.
    """

    def __init__(
        self,
        read: Callable[[int], RecordPrefix],
        size: Callable[[int], int],
        records: Iterable[int],
        *,
        ahead_bytes: int = AHEAD_BYTES,
        threads: int = 1,
    ) -> None:
        self._read, self._size, self._ahead_bytes = read, size, ahead_bytes
        self._next = deque(records)
        self._ahead: dict[int, tuple[Future[RecordPrefix], int]] = {}
        self._bytes = 0
        self._held: dict[int, RecordPrefix | Exception] = {}
        # A request to storage cannot be interrupted: one that hangs is left to its own timeout.
        self._threads = WorkerThreads(threads, "tensorcom-read", close_wait_s=_CLOSE_WAIT_S)

    def __enter__(self) -> RecordFeed:
        self._pump()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._threads.__exit__(*exc_info)
        self._ahead.clear()
        self._held.clear()

    def _pump(self) -> None:
        while self._next:
            record = self._next[0]
            size = self._size(record)
            if self._ahead and self._bytes + size > self._ahead_bytes:
                break
            self._next.popleft()
            self._ahead[record] = self._threads.submit(self._read, record), size
            self._bytes += size

    def is_ready(self, record: int) -> bool:
        """Tell whether `get` would return at once."""
        ahead = self._ahead.get(record)
        return ahead is None or ahead[0].done()

    def get(self, record: int) -> RecordPrefix | Exception:
        """Return a record, or the error that reading it raised, after waiting for it."""
        found = self._held.get(record)
        if found is None:
            future, size = self._ahead.pop(record)
            self._bytes -= size
            self._pump()
            try:
                found = future.result()
            except Exception as exc:  # noqa: BLE001 - raised where its samples are due
                found = exc
            self._held[record] = found
        return found

    def release(self, record: int) -> None:
        """Drop a record that is not needed any more."""
        del self._held[record]
