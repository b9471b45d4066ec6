"""Batches received before they are asked for.

Owns one thread and what waits in it; knows nothing of sockets.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_JOIN_S = 5.0


class ReadAhead:
    """Calls a function in a thread, again and again, until it returns None or raises.

    The thread ends then, with the object, at `close`, or with the process: before whatever was
    registered to end with it until now, such as an open socket.

    Args:
        receive: returns the next item; `stop` must make it return.
        stop: set by `close`.
        size: most items that wait.
    """

    def __init__(self, receive: Callable[[], Any], stop: threading.Event, *, size: int) -> None:
        self._shared = _Shared(receive, stop, size)
        thread = threading.Thread(target=self._shared.run, name="tensorcom-ahead", daemon=True)
        end = partial(_end, self._shared, thread, os.getpid())
        self._close = weakref.finalize(self, _end_early, end)
        atexit.register(end)
        thread.start()

    def take(self) -> Any:
        """Return the next item, None after the last one; waits for it.

        Raises:
            Exception: what the function raised, in its turn.
        """
        item = self._shared.take()
        if isinstance(item, _Failure):
            raise item.error
        return item

    def close(self) -> None:
        """End the thread; items that wait are dropped."""
        self._close()


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.error = error


class _Shared:
    """What the thread works on; it must not hold on to the object that ends it."""

    def __init__(self, receive: Callable[[], Any], stop: threading.Event, size: int) -> None:
        self._receive, self.stop, self._size = receive, stop, size
        self._items: deque[Any] = deque()
        self.changed = threading.Condition()
        self._done = False

    def run(self) -> None:
        while not self._done:
            with self.changed:
                self.changed.wait_for(lambda: len(self._items) < self._size or self.stop.is_set())
            item = self._next()
            with self.changed:
                self._items.append(item)
                self._done = item is None or isinstance(item, _Failure)
                self.changed.notify_all()

    def _next(self) -> Any:
        try:
            return None if self.stop.is_set() else self._receive()
        except Exception as exc:  # noqa: BLE001 - raised where the item is due
            return _Failure(exc)

    def take(self) -> Any:
        with self.changed:
            self.changed.wait_for(lambda: self._items)
            item = self._items.popleft()
            self.changed.notify_all()
            return item

    def end(self) -> None:
        """Let the thread end, if it has not ended by itself."""
        with self.changed:
            if not self._done:
                self.stop.set()
            self.changed.notify_all()


def _end_early(end: Callable[[], None]) -> None:
    atexit.unregister(end)
    end()


def _end(shared: _Shared, thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():
        return  # a forked child, which has no such thread
    shared.end()
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join(_JOIN_S)
