"""What the tests of hard cases share."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import numpy as np

from tensorcom import Connection

LONG_S = 30.0
MB = 1 << 20


def numbered(number: int, size: int = 8) -> list[np.ndarray]:
    return [np.full(size, number % 256, "u1"), np.array([number], "i4")]


def number_of(arrays) -> int:
    number = int(arrays[1][0])
    assert (arrays[0] == number % 256).all()
    return number


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reader_url(sender: Connection) -> str:
    scheme, rest = sender.urls[0].split("://")
    return {"zrpush": "zrpull", "zpub": "zsub"}[scheme] + "://" + rest


def serve_in_thread(sender: Connection, batches, **arguments) -> threading.Thread:
    thread = threading.Thread(target=sender.serve, args=(batches,), kwargs=arguments)
    thread.start()
    return thread


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
