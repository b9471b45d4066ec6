"""Decoding in threads: ahead of use, in order, within bounds.

Owns the threads that work on images, and what the allocator is told for their sake; knows nothing
of what the work is, or of batches.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from tensorcom.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")
_LARGE_BYTES = 30 << 20  # glibc's threshold follows a freed block of up to 32 MiB
_lock = ForkLock()
_tuned = False


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Make the allocator keep the memory of decoded images for the next ones, once per process.

    glibc gives blocks over a threshold back to the kernel when they are freed, and each image then
    costs hundreds of page faults anew, up to half of the time that it takes to decode. The
    threshold rises to the size of the largest block that was freed so far; so one is allocated and
    freed here. It is not touched, which costs nothing, and other allocators take no notice.
    """
    global _tuned  # noqa: PLW0603 - the state of the process's allocator
    with _lock:
        if not _tuned:
            bytearray(_LARGE_BYTES)
            _tuned = True


class WorkerThreads:
    """Threads that end with a `with` block, also one that a garbage collector closes.

    Args:
        count: how many.
        name: what their names start with.
        close_wait_s: seconds to wait at the end for calls that have begun; None waits for ever.
    """

    def __init__(self, count: int, name: str, *, close_wait_s: float | None = None) -> None:
        self._pid = os.getpid()
        self._close_wait_s = close_wait_s
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(count, name, initializer=self._register)

    def _register(self) -> None:
        self._threads.append(threading.current_thread())

    def submit(self, function: Callable[[T], R], item: T) -> Future[R]:
        """Have `function(item)` called in one of the threads."""
        return self._pool.submit(function, item)

    def __enter__(self) -> WorkerThreads:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Drop the calls that have not begun, and wait for the others."""
        if os.getpid() != self._pid:
            return  # a forked child, which has none of the threads
        # One of them may run the garbage collector that closes this.
        may_wait = threading.current_thread() not in self._threads
        for_ever = self._close_wait_s is None
        self._pool.shutdown(wait=may_wait and for_ever, cancel_futures=True)
        if may_wait and not for_ever:
            deadline = time.monotonic() + (self._close_wait_s or 0)
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))


def map_ordered(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    threads: int,
    ahead: int,
    is_ready: Callable[[], bool] | None = None,
) -> Generator[R, None, None]:
    """Yield `function(item)` for each item, in order, computed in threads.

    Items are drawn in the caller's thread, as results are taken.

    Args:
        function: called in one of the threads.
        items: what it is called with.
        threads: how many.
        ahead: most items that are worked on or wait to be taken, at least 1.
        is_ready: tells whether the next item can be drawn without a wait. If it cannot, results
            are handed out first, as long as there are any.

    Raises:
        Exception: what the function raised, in place of its result; nothing comes after it.
    """
    waiting: deque[Future[R]] = deque()
    with WorkerThreads(threads, "tensorcom-decode") as pool:
        source = iter(items)
        while True:
            if len(waiting) >= ahead or (waiting and is_ready is not None and not is_ready()):
                yield waiting.popleft().result()
                continue
            try:
                item = next(source)
            except StopIteration:
                break
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()
