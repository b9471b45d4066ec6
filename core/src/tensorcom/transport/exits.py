"""What is still open when the process ends is closed then.

Owns the moment: before the thread in which pyzmq keeps the memory of messages stops, after which
messages that are still to be sent would hold anything.
"""

from __future__ import annotations

import atexit
import os
import time
from multiprocessing import util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_LINGER_MS = 2000

_open: dict[int, Callable[[int], object]] = {}
_inherited: list[object] = []  # a forked parent's: let go, they would warn that they are open
_registered = 0


def close_at_exit(key: int, close: Callable[[int], object]) -> None:
    """Call `close` with milliseconds left at the end of this process, unless forgotten.

    Sockets of a forked parent are not the child's: each process has its own list.
    """
    global _registered  # noqa: PLW0603 - one list per process
    if _registered != os.getpid():
        _registered = os.getpid()
        _inherited.extend(_open.values())
        _open.clear()
        atexit.register(_close_all)
        util.Finalize(None, _close_all, exitpriority=100)  # multiprocessing's children: no atexit
    _open[key] = close


def forget(key: int) -> None:
    """Take back `close_at_exit`."""
    _open.pop(key, None)


def _close_all() -> None:
    if _registered != os.getpid():
        return
    deadline = time.monotonic() + EXIT_LINGER_MS / 1000
    for close in list(_open.values()):
        close(max(int(1000 * (deadline - time.monotonic())), 0))
    _open.clear()
