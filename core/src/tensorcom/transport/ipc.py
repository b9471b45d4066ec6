"""What the readers of an ipc address have not taken yet.

Owns one question to the operating system. ZeroMQ's reader drops what is still in the kernel when
an ipc sender goes away while the reader's queue is full; so the sender must not go before.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import stat
import termios
from contextlib import suppress
from pathlib import Path

_FDS = Path("/proc/self/fd")


def unread_bytes(paths: set[str]) -> int:
    """Sum the bytes that this process sent over ipc addresses and the other ends have not read.

    Args:
        paths: the addresses, as in `ipc://` endpoints; `@name` is abstract.

    Returns:
        Bytes, with the kernel's overhead; 0 where the system does not tell.
    """
    if not paths or not hasattr(termios, "TIOCOUTQ") or not _FDS.is_dir():
        return 0
    names = {f"\0{path[1:]}" if path.startswith("@") else path for path in paths}
    return sum(_unread(int(name), names) for name in os.listdir(_FDS))  # noqa: PTH208 - numbers


def _unread(fd: int, names: set[str]) -> int:
    with suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return 0
        with socket.socket(fileno=os.dup(fd)) as end:
            if end.family != socket.AF_UNIX:
                return 0
            if not names & {_text(end.getsockname()), _text(end.getpeername())}:
                return 0
            waiting = array.array("i", [0])
            fcntl.ioctl(end, termios.TIOCOUTQ, waiting)
            return waiting[0]
    return 0


def _text(address: object) -> str:
    return os.fsdecode(address) if isinstance(address, (str, bytes)) else ""
