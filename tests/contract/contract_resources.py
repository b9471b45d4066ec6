"""What a process holds on to: what is compared before and after."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path


def threads() -> set[threading.Thread]:
    """Return the threads that Python knows, but for those that stay."""
    # pyzmq frees sent buffers in one thread of the process, which stays; so do the threads of a
    # framework's own pool, which Python knows once it ran in them.
    kept = ("GarbageCollectorThread", "_DummyThread")
    return {t for t in threading.enumerate() if type(t).__name__ not in kept}


def files() -> Counter[str]:
    """Count what is open, by name; sockets and the like by kind."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        found[target.partition(":[")[0]] += 1
    return found


def handles() -> int:
    """Count sockets, files of records and shared memory, but for multiprocessing's heap.

    The heap stays; memory counts while it is open or mapped.
    """
    shared = {line.split(maxsplit=5)[5] for line in _maps() if "/dev/shm/" in line}
    count = sum("/pym-" not in name for name in shared)
    for name, number in files().items():
        in_shm = name.startswith("/dev/shm/") and "/pym-" not in name
        count += number * (in_shm or name == "socket" or name.endswith(".pcr"))
    return count


def _maps() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()


def settles(is_so: Callable[[], bool], *, wait_s: float = 10) -> bool:
    """Wait until something is so, and return whether it came to be."""
    deadline = time.monotonic() + wait_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
