"""One thread that makes items before they are asked for.

Owns the thread from its start to its end, however that comes; knows nothing of batches.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")
_POLL_S = 0.5
_JOIN_S = 5.0


class Ahead(Generic[T]):
    """Items of a generator, made in a thread.

    The thread ends with the generator, when this is closed or dropped, and with the program.

    Args:
        items: called in the thread; it is given a function that tells whether to stop, for waits
            that take long.
        depth: most items that are made before they are asked for.
        name: of the thread.
    """

    def __init__(
        self,
        items: Callable[[Callable[[], bool]], Generator[T, None, None]],
        *,
        depth: int,
        name: str,
    ) -> None:
        self._shelf: _Shelf[T] = _Shelf(depth)
        # Neither the shelf nor the thread refer to this object: dropping it ends both.
        self._thread = threading.Thread(target=_work, args=(self._shelf, items), name=name)
        weakref.finalize(self, self._shelf.stop).atexit = False
        self._thread.start()

    def pop(self) -> T:
        """Return the next item, after waiting for it.

        Raises:
            StopIteration: there are no more.
            Exception: what the generator raised, once.
        """
        try:
            return self._shelf.pop()
        finally:
            if self._shelf.is_over:
                self.close()

    def peek(self) -> T | None:
        """Return the next item and leave it there, after waiting for it; None at the end.

        Raises:
            Exception: what the generator raised, which is then over.
        """
        return self._shelf.peek()

    @property
    def is_over(self) -> bool:
        """Whether all was handed out, the end too."""
        return self._shelf.is_over

    @property
    def failure(self) -> BaseException | None:
        """What the generator raised, if that is all that is left to hand out."""
        return self._shelf.failure

    def close(self) -> None:
        """End the thread. One that waits for storage is left to end by itself after a while."""
        self._shelf.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)


class _Shelf(Generic[T]):
    """What the two sides share."""

    def __init__(self, depth: int) -> None:
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._depth = depth
        self._is_finished = self._stops = self._has_ended = False
        self._error: BaseException | None = None

    # -- the side of the thread ----------------------------------------------------------------

    def stopping(self) -> bool:
        return self._stops or not threading.main_thread().is_alive()

    def wait_for_room(self) -> bool:
        """Wait until an item may be made; return False to stop."""
        with self._changed:
            while not self.stopping():
                if len(self._items) < self._depth:
                    return True
                self._changed.wait(_POLL_S)
        return False

    def put(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def finish(self, error: BaseException | None) -> None:
        with self._changed:
            self._is_finished, self._error = True, error
            self._changed.notify_all()

    # -- the side of the user ------------------------------------------------------------------

    def _wait(self) -> None:
        while not (self._items or self._is_finished or self._stops):
            self._changed.wait()

    def pop(self) -> T:
        with self._changed:
            self._wait()
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            self._raise_error()
            self._has_ended = True
        raise StopIteration

    def peek(self) -> T | None:
        with self._changed:
            self._wait()
            if self._items:
                return self._items[0]
            self._raise_error()
        return None

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self._has_ended = True
            raise error

    @property
    def is_over(self) -> bool:
        return self._has_ended or self._stops

    @property
    def failure(self) -> BaseException | None:
        with self._changed:
            return None if self._items else self._error

    def stop(self) -> None:
        with self._changed:
            self._stops = True
            self._items.clear()
            self._changed.notify_all()


def _work(
    shelf: _Shelf[T], items: Callable[[Callable[[], bool]], Generator[T, None, None]]
) -> None:
    error: BaseException | None = None
    try:
        generator = items(shelf.stopping)
        try:
            while shelf.wait_for_room():
                try:
                    item = next(generator)
                except StopIteration:
                    break
                shelf.put(item)
                del item
        finally:
            generator.close()
    except BaseException as exc:  # noqa: BLE001 - raised where its item is due
        error = exc
    shelf.finish(error)
