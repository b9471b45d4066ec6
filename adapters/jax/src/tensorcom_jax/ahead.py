"""Work done ahead of use, in a thread.

Owns the thread, how far it may be ahead, and its end: when the work is done, when nobody wants it
any more, or when the process ends. Knows nothing of batches or devices.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING, Generic, TypeVar

from tensorcom import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")

_LOOK_S = 0.2  # how often a thread that has nothing to do looks whether the process ends
_CLOSE_WAIT_S = 10.0


class Ahead(Generic[T]):
    """Items of a generator, made in a thread before they are asked for.

    Args:
        make: called in the thread; returns the generator, which is also closed there. Its argument
            tells whether to stop, for generators that wait. None makes nothing, without a thread.
        depth: items that are made before they are asked for, at least 1.
        first: items that come before those of the generator.
        error: what is raised after them where nothing is made.

    Attributes:
        is_over: the end, or the error that is in its place, was taken.
        error: what the generator raised, as long as it was not taken.

    Used by one thread.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], bool]], Generator[T, None, None]] | None,
        *,
        depth: int,
        first: Iterable[T] = (),
        error: BaseException | None = None,
    ) -> None:
        self._items = deque(first)
        self._depth = depth
        self._changed = threading.Condition()
        self._is_done, self._is_closed = make is None, False
        self.is_over = False
        self.error = error
        self._pid = os.getpid()
        self._taker = threading.current_thread()
        self._thread: threading.Thread | None = None
        if make is not None:
            # No daemon: one that works for a device while the interpreter ends may crash it.
            self._thread = threading.Thread(target=self._run, args=(make,), name="tensorcom-ahead")
            self._thread.start()

    # -- in the thread -------------------------------------------------------------------------

    def _run(self, make: Callable[[Callable[[], bool]], Generator[T, None, None]]) -> None:
        try:
            with closing(make(self._must_stop)) as made:
                while self._wait_for_room():
                    try:
                        item = next(made)
                    except StopIteration:
                        break
                    with self._changed:
                        self._items.append(item)
                        self._changed.notify_all()
                    del item
                else:
                    if not self._is_closed:
                        self.error = ClosedError("the process ends")
        except BaseException as exc:  # noqa: BLE001 - raised where the items are taken
            self.error = exc
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _must_stop(self) -> bool:
        return self._is_closed or self._is_process_ending()

    def _is_process_ending(self) -> bool:
        # Threads are waited for before anything else is told of the end of the process.
        taker = self._taker
        lasts = taker.is_alive() and not taker.daemon
        return not lasts and not threading.main_thread().is_alive()

    def _wait_for_room(self) -> bool:
        """Return whether to go on, once there is room for an item."""
        with self._changed:
            while not self._must_stop():
                if len(self._items) < self._depth:
                    return True
                self._changed.wait(_LOOK_S)
        return False

    # -- where the items are taken -------------------------------------------------------------

    def take(self) -> list[T]:
        """Return a list of the next item, which only the caller holds, or of none at the end.

        Raises:
            ClosedError: it was closed, or this is a forked child.
            Exception: what the generator raised.
        """
        if self._pid != os.getpid():
            raise ClosedError(
                f"this iteration reads in a thread of process {self._pid}, which a forked process "
                "does not have: iterate anew"
            )
        self._taker = threading.current_thread()
        with self._changed:
            while not (self._items or self._is_done or self._is_closed):
                self._changed.wait()
            if self._is_closed:
                raise ClosedError(
                    "this iteration is over: another one began, or the object was closed"
                )
            if self._items:
                self._changed.notify_all()
                return [self._items.popleft()]
        self.is_over = True
        error, self.error = self.error, None
        if error is None:
            return []
        try:
            raise error
        finally:
            del error  # which would hold this frame, and this frame it

    def close(self) -> list[T]:
        """End the thread; return the items that were not taken."""
        if self._pid != os.getpid():
            return []
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        # The thread itself closes this if its garbage collector does.
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_WAIT_S)
        with self._changed:
            left = list(self._items)
            self._items.clear()
        return left
