"""A stream server on this machine, for tests of readers.

Owns a sending Connection and a thread that feeds it; knows nothing of who reads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tensorcom.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_READER_SCHEMES = {"zrpush": "zrpull", "zpub": "zsub"}


class LoopbackServer:
    """Sends batches from a thread of this process; a context manager.

    Args:
        batches: what to send, each a sequence of arrays.
        scheme: "zrpush" or "zpub"; either binds a free port of 127.0.0.1.
        readers: peers to wait for before the first batch.
        end: whether to say the end of the stream after the last.
        **arguments: of the sending Connection.

    Attributes:
        url: what a reader connects to.
        connection: the sending Connection.
    """

    def __init__(
        self,
        batches: Iterable[Sequence[Any]],
        *,
        scheme: str = "zrpush",
        readers: int = 1,
        end: bool = True,
        **arguments: Any,
    ) -> None:
        self.connection = Connection(f"{scheme}://127.0.0.1:0", allow64=True, **arguments)
        self.url = self.connection.urls[0].replace(scheme, _READER_SCHEMES[scheme])
        self._batches = batches
        self._readers = readers
        self._end = "stream" if end else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="loopback-server")

    def _serve(self) -> None:
        while not self.connection.wait_for_peers(self._readers, timeout_s=0.05):
            if self._stop.is_set():
                return
        self.connection.serve(self._batches, end=self._end, stop=self._stop)

    def __enter__(self) -> LoopbackServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.connection.close(flush=False)
