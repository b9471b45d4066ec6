"""How many peers a socket has, from what happens to its connections.

Owns the count alone; knows nothing of sockets.
"""

from __future__ import annotations

import os
from collections import Counter

_inproc: Counter[tuple[int, str, bool]] = Counter()


class PeerCount:
    """Counts peers that have proved to be ZeroMQ peers of the right kind.

    ZeroMQ does not say which connection a handshake belongs to. So a connection that is lost counts
    as one that was still shaking hands as long as there are any: whichever way the others end, the
    count is right again once they have.

    Attributes:
        ready: connections whose handshake succeeded.
    """

    def __init__(self) -> None:
        self._pending = 0
        self.ready = 0
        self._inproc: list[tuple[int, str, bool]] = []

    def opened(self) -> None:
        """Count a new connection, which may be anything yet."""
        self._pending += 1

    def succeeded(self) -> None:
        """Count a handshake."""
        if self._pending:
            self._pending -= 1
            self.ready += 1

    def lost(self) -> None:
        """Count the end of a connection."""
        if self._pending:
            self._pending -= 1
        else:
            self.ready = max(self.ready - 1, 0)

    def join_inproc(self, name: str, *, binds: bool) -> None:
        """Take part in an inproc address, which has no connections to watch."""
        key = (os.getpid(), name, binds)
        self._inproc.append(key)
        _inproc[key] += 1

    def leave(self) -> None:
        """Leave all inproc addresses."""
        for key in self._inproc:
            _inproc[key] -= 1
            if not _inproc[key]:
                del _inproc[key]
        self._inproc.clear()

    @property
    def count(self) -> int:
        """Peers now."""
        return self.ready + sum(_inproc[pid, name, not binds] for pid, name, binds in self._inproc)
