"""Aligned memory that is used again.

Owns buffers whose address is a multiple of 64 and a pool of large ones: a fresh large allocation
costs a page fault per 4 KiB, as much time as the copy into it. Knows nothing of what they hold.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

import numpy as np

from tensorcom.locks import ForkLock

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGNMENT = 64
POOL_MIN_BYTES = 65536
_GRAIN = 4096


def aligned_array(size_bytes: int) -> NDArray[np.uint8]:
    """Allocate a uint8 array of `size_bytes` whose data starts at a multiple of 64."""
    raw = np.empty(size_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size_bytes]


class BufferPool:
    """A pool of large aligned buffers.

    A buffer goes back to the pool only when the last view of it is gone; until then nobody else
    gets it. Thread-safe.

    Args:
        max_free_bytes: most bytes kept in unused buffers; the least recently used go first.
    """

    def __init__(self, max_free_bytes: int = 64 << 20) -> None:
        self._max_free_bytes = max_free_bytes
        self._lock = ForkLock()
        self._free: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()
        self._free_bytes = 0
        self._leases: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        # Finalizers only append here: they may run inside any allocation, so they take no lock.
        self._returned: deque[tuple[int, NDArray[np.uint8]]] = deque()

    def take(self, size_bytes: int) -> memoryview:
        """Return a writable buffer of `size_bytes` at a multiple of 64, contents undefined."""
        if size_bytes < POOL_MIN_BYTES:
            return aligned_array(size_bytes).data
        capacity = -(-size_bytes // _GRAIN) * _GRAIN
        with self._lock:
            self._collect()
            raw = self._find(capacity)
        if raw is None:
            raw = aligned_array(capacity)
        # Over a memoryview, not a slice: of a chain of arrays numpy keeps only the last alive. So
        # this lease is what all views hold on to.
        lease: NDArray[np.uint8] = np.frombuffer(raw.data[:size_bytes], np.uint8)
        key = id(lease)
        returned = self._returned

        def give_back(_: object, key: int = key, raw: NDArray[np.uint8] = raw) -> None:
            returned.append((key, raw))

        with self._lock:
            self._leases[key] = weakref.ref(lease, give_back)
        return lease.data

    def copy(self, data: memoryview) -> memoryview:
        """Return a copy of `data` (bytes) in a buffer of this pool."""
        target = self.take(data.nbytes)
        if data.nbytes:
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8))
        return target

    def _collect(self) -> None:
        while self._returned:
            key, raw = self._returned.popleft()
            known = self._leases.get(key)
            if known is not None and known() is None:
                del self._leases[key]
            self._free[id(raw)] = raw
            self._free_bytes += raw.nbytes
        while self._free_bytes > self._max_free_bytes:
            _, raw = self._free.popitem(last=False)
            self._free_bytes -= raw.nbytes

    def _find(self, capacity: int) -> NDArray[np.uint8] | None:
        for key in reversed(self._free):
            if self._free[key].nbytes == capacity:
                raw = self._free.pop(key)
                self._free_bytes -= capacity
                return raw
        return None

    def clear(self) -> None:
        """Drop all unused buffers."""
        with self._lock:
            self._collect()
            self._free.clear()
            self._free_bytes = 0
