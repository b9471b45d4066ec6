"""Makes the allocator keep the memory of records and batches for the next ones.

Owns what is asked of glibc; elsewhere it does nothing. Imports nothing of TensorFlow.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_MIB = 1 << 20
_VALUES = {  # bytes
    _MMAP_THRESHOLD: 32 * _MIB,  # the most that glibc takes
    _TRIM_THRESHOLD: 1024 * _MIB,
    _TOP_PAD: 64 * _MIB,  # arenas of threads are given back unless more than that is free
}
GIVEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_blocks() -> None:
    """Let the allocator keep blocks of up to 32 MiB that are freed, in all threads.

    Each record that a graph reads, each received message and each decoded batch is a few of these.
    glibc gives them back to the kernel when they are freed, and then each costs a page fault for
    every 4 KiB: more time than is spent on its bytes. It would learn better by itself, but the
    first generator data set of a process fixes the size at 128 KiB, TensorFlow's remedy for
    a growth of memory that our buffers do not have. So this is called again and again, which takes
    a few microseconds. What is kept is at most what was in use at some time. Sizes that the
    environment sets are left alone.
    """
    if any(name in os.environ for name in GIVEN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for option, value in _VALUES.items():
            mallopt(option, value)
