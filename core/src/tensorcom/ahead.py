"""Items made before they are asked for, in a thread.

Owns the thread, how far it may be ahead, and its end: when the work is done, when nobody wants it
any more, or when the process ends. Knows nothing of batches or frameworks.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING, Generic, TypeVar

from tensorcom.errors import ClosedError

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    Make = Callable[[Callable[[], bool]], Generator[T, None, None]]

_LOOK_S = 0.2  # how often a thread that has nothing to do looks whether the process ends
_CLOSE_WAIT_S = 5.0


class Ahead(Generic[T]):
    """An iterator over the items of a generator, which runs in a thread.

    The thread ends with the generator, when this is closed or dropped, and with the process: as
    soon as neither the main thread nor the one that took the last item can take one more.

    Args:
        make: called in the thread; returns the generator, which is also closed there. Its argument
            tells whether to stop, for generators that wait.
        depth: items that are made before they are asked for, at least 1.
        first: items that come before those of the generator.
        name: of the thread.

    Yields:
        The items. Nothing here refers to an item that was handed out.

    Raises:
        ClosedError: it was closed before the end, the process ends, or this is a forked child.
        Exception: what the generator raised, after the items before it, once.

    One thread takes items at a time; any may close.
    """

    def __init__(
        self, make: Make[T], *, depth: int, first: Iterable[T] = (), name: str = "tensorcom-ahead"
    ) -> None:
        self._shelf: _Shelf[T] = _Shelf(depth, first)
        # Neither the shelf nor the thread refers to this object: dropping it ends both. No daemon:
        # one that is in a framework's code while the interpreter ends may crash it.
        self._thread = threading.Thread(target=_work, args=(self._shelf, make), name=name)
        weakref.finalize(self, self._shelf.stop).atexit = False
        self._thread.start()

    def __iter__(self) -> Ahead[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._shelf.take()
        finally:
            if self.is_over:
                self.close()

    def peek(self) -> T | None:
        """Return the next item and leave it there, after waiting for it; None at the end.

        Raises:
            Exception: as for taking it.
        """
        try:
            return self._shelf.peek()
        finally:
            if self.is_over:
                self.close()

    @property
    def is_over(self) -> bool:
        """Whether the end was handed out, or the error that is in its place."""
        return self._shelf.is_over

    @property
    def failure(self) -> BaseException | None:
        """What the generator raised, if that is all that is left to hand out."""
        return self._shelf.failure

    def close(self) -> list[T]:
        """End the thread; return the items that were not taken.

        A thread that waits for something that cannot be interrupted ends by itself, later.
        """
        if not self._shelf.stop():
            return []
        # The thread itself closes this if its garbage collector does.
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_WAIT_S)
        return self._shelf.clear()


class _Shelf(Generic[T]):
    """What the two threads share."""

    def __init__(self, depth: int, first: Iterable[T]) -> None:
        # Reentrant, as a condition's lock is: a garbage collector may call `stop` anywhere.
        self._changed = threading.Condition()
        self._items = deque(first)
        self._depth = depth
        self._stops = self._is_finished = False
        self._error: BaseException | None = None
        self._taker = threading.current_thread()
        self._pid = os.getpid()
        self.is_over = False

    # -- where the items are made --------------------------------------------------------------

    def must_stop(self) -> bool:
        return self._stops or self._is_process_ending()

    def _is_process_ending(self) -> bool:
        # Threads are waited for before anything else is told of the end of the process.
        taker = self._taker
        lasts = taker.is_alive() and not taker.daemon
        return not lasts and not threading.main_thread().is_alive()

    def reason_to_stop(self) -> ClosedError | None:
        return None if self._stops else ClosedError("the process ends")

    def wait_for_room(self) -> bool:
        """Return whether to go on, once there is room for an item."""
        with self._changed:
            while not self.must_stop():
                if len(self._items) < self._depth:
                    return True
                self._changed.wait(_LOOK_S)
        return False

    def put(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def finish(self, error: BaseException | None) -> None:
        with self._changed:
            self._is_finished, self._error = True, error
            self._changed.notify_all()

    # -- where they are taken ------------------------------------------------------------------

    def take(self) -> T:
        self._check_process()
        with self._changed:
            self._wait()
            if not self._items:
                self._end()
                raise StopIteration
            self._changed.notify_all()
            return self._items.popleft()

    def peek(self) -> T | None:
        self._check_process()
        with self._changed:
            self._wait()
            if not self._items:
                self._end()
                return None
            return self._items[0]

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(
                f"this iteration reads in a thread of process {self._pid}, which a forked process "
                "does not have: iterate anew"
            )

    def _wait(self) -> None:
        self._taker = threading.current_thread()
        while not (self._items or self._is_finished or self._stops):
            self._changed.wait()
        if self._stops and not self.is_over:
            raise ClosedError("this iteration is over: another one began, or the object was closed")

    def _end(self) -> None:
        self.is_over = True
        error, self._error = self._error, None
        if error is None:
            return
        try:
            raise error
        finally:
            del error  # which would hold this frame, and this frame it

    @property
    def failure(self) -> BaseException | None:
        with self._changed:
            return None if self._items else self._error

    def stop(self) -> bool:
        """Let the thread end; return whether this process has it."""
        if self._pid != os.getpid():
            return False  # a forked child, where the lock may be held for ever
        with self._changed:
            self._stops = True
            self._changed.notify_all()
        return True

    def clear(self) -> list[T]:
        with self._changed:
            left = list(self._items)
            self._items.clear()
            return left


def _work(shelf: _Shelf[T], make: Make[T]) -> None:
    error: BaseException | None = None
    try:
        with closing(make(shelf.must_stop)) as items:
            while shelf.wait_for_room():
                try:
                    item = next(items)
                except StopIteration:
                    break
                shelf.put(item)
                del item
            else:
                error = shelf.reason_to_stop()
    except BaseException as exc:  # noqa: BLE001 - raised where its item is due
        error = exc
    shelf.finish(error)
