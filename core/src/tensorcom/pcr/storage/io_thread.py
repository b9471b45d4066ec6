"""A thread that runs coroutines for threads that wait for them.

Owns an event loop, and a bound on every wait. Knows nothing of storage.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
TIMEOUTS = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)
_GRACE_S = 5.0  # for what does not end at once when it is cancelled


class IoThread:
    """An event loop in a thread of its own.

    A file system gets a loop of its own, rather than the one that fsspec shares: it can be closed,
    and after a fork it is plain whose it was.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="tensorcom-storage", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return what a coroutine returns; cancel it after `timeout_s` seconds.

        Raises:
            TimeoutError: or another of `TIMEOUTS`.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one last coroutine, cancel all others, and end the thread; once only."""
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end(last)))
        if threading.current_thread() is not self._thread:  # a garbage collector runs anywhere
            self._thread.join(3 * _GRACE_S)

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            with contextlib.suppress(Exception):  # any library's; what it held goes with the loop
                await asyncio.wait_for(last(), _GRACE_S)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=_GRACE_S) if others else None
            await self._loop.shutdown_asyncgens()
            await asyncio.wait_for(self._loop.shutdown_default_executor(), _GRACE_S)
        finally:
            self._loop.stop()
