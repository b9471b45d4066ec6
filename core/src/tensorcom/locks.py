"""A lock that survives a fork.

Owns the answer to one question: what if another thread held the lock when this process was forked.
"""

from __future__ import annotations

import os
import threading


class ForkLock:
    """A reentrant lock that is free in a forked child, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._pid = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
