"""A lock that survives a fork.

Owns the answer to one question: what if another thread held the lock when this process was forked.
"""

from __future__ import annotations

import os
import threading
import weakref

_all: weakref.WeakSet[ForkLock] = weakref.WeakSet()


class ForkLock:
    """A reentrant lock that is free in a forked child, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Free the lock, in a child that has one thread yet."""
        self._lock = threading.RLock()


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
