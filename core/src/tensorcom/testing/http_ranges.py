"""A web server with range requests on this machine, for tests of readers.

Owns files of one directory, what was asked and how many bytes were sent, and ways to misbehave.
Knows nothing of records.
"""

from __future__ import annotations

import re
import socket
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Request(NamedTuple):
    """A request that was answered.

    Attributes:
        method: GET or HEAD.
        path: below the directory, unquoted.
        query: of the URL, as it came.
        range: header Range, else None.
        status: of the answer.
        sent_bytes: of the body.
        headers: of the request, names in lower case.
        connection: number of the connection it came by.
    """

    method: str
    path: str
    query: str
    range: str | None
    status: int
    sent_bytes: int
    headers: dict[str, str]
    connection: int


@dataclass(frozen=True)
class Fault:
    """How one GET is answered wrongly.

    Attributes:
        status: answer so instead, without a body.
        ignore_range: send the whole file.
        short_by: give so many bytes less than asked for, and say so.
        cut_after: end the connection after so many bytes of the body.
        stall_after: send nothing after so many bytes of the body, until the server ends.
        extra: send this after the body, which has no stated length then.
        headers: instead of the right ones, or beside them; None leaves one out.
        then: call this after the answer.
    """

    status: int | None = None
    ignore_range: bool = False
    short_by: int = 0
    cut_after: int | None = None
    stall_after: int | None = None
    extra: bytes = b""
    headers: Mapping[str, str | None] = field(default_factory=dict)
    then: Callable[[], object] | None = None


class RangeServer:
    """Serves the files of a directory from threads of this process; a context manager.

    Args:
        folder: the directory; files are read anew for each request.
        etags: whether answers have an ETag, made of time and size.
        head: whether HEAD is allowed.

    Attributes:
        url: of the directory.
        requests: what was answered, in order.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, etags: bool = True, head: bool = True
    ) -> None:
        self.folder = Path(folder)
        self.etags, self.head = etags, head
        self.requests: list[Request] = []
        self.ended = threading.Event()
        self.faults: deque[Fault] = deque()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._serve, name="range-server")

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def misbehave(self, *faults: Fault) -> None:
        """Answer the next GETs so, one each."""
        self.faults.extend(faults)

    def gets(self) -> list[str | None]:
        """Return the ranges of all GETs."""
        return [request.range for request in self.requests if request.method == "GET"]

    @property
    def sent_bytes(self) -> int:
        """Bytes of all bodies."""
        return sum(request.sent_bytes for request in self.requests)

    def __enter__(self) -> RangeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.end_connections()
        self._server.server_close()


class _File(NamedTuple):
    path: Path
    size_bytes: int
    tag: str | None

    def read(self, start: int, stop: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for them

    def __init__(self, owner: RangeServer) -> None:
        self.owner = owner
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""

    def end_connections(self) -> None:
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else small answers wait for the client's delayed ACK
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def do_HEAD(self) -> None:
        owner = self.server.owner
        if not owner.head:
            self._refuse(405, Fault())
        elif (found := self._find()) is None:
            self._refuse(404, Fault())
        else:
            self._note(200, 0)
            self._start(200, {"Content-Length": str(found.size_bytes), "ETag": found.tag})

    def do_GET(self) -> None:
        faults = self.server.owner.faults
        fault = faults.popleft() if faults else Fault()
        if fault.status is not None:
            self._refuse(fault.status, fault)
        elif (found := self._find()) is None:
            self._refuse(404, fault)
        else:
            self._give(found, fault)
        if fault.then is not None:
            fault.then()

    def _find(self) -> _File | None:
        path = self.server.owner.folder / self._path()
        if ".." in path.parts or not path.is_file():
            return None
        status = path.stat()
        tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"' if self.server.owner.etags else None
        return _File(path, status.st_size, tag)

    def _path(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    def _give(self, file: _File, fault: Fault) -> None:
        size = file.size_bytes
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        headers: dict[str, str | None] = {"ETag": file.tag, "Accept-Ranges": "bytes"}
        if match is None or fault.ignore_range:
            status, body = 200, file.read(0, size)
        else:
            start, stop = int(match[1]), min(int(match[2] or size) + 1, size)
            if start >= size:
                self._refuse(416, Fault(headers={"Content-Range": f"bytes */{size}"}))
                return
            stop -= fault.short_by
            status, body = 206, file.read(start, stop)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        if fault.extra:
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = str(len(body))
        # Noted first: a client may know enough after the headers.
        end = fault.cut_after if fault.stall_after is None else fault.stall_after
        self._note(status, len(body[:end]) + len(fault.extra))
        self._start(status, {**headers, **fault.headers})
        if fault.extra:
            for part in (body, fault.extra):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.wfile.write(body[:end])
        if fault.stall_after is not None:
            self.server.owner.ended.wait()
        if end is not None:
            self.close_connection = True

    def _refuse(self, status: int, fault: Fault) -> None:
        self._note(status, 0)
        self._start(status, {"Content-Length": "0", **fault.headers})

    def _start(self, status: int, headers: Mapping[str, str | None]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()

    def _note(self, status: int, sent_bytes: int) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.owner.requests.append(
            Request(
                method=self.command,
                path=self._path(),
                query=urlsplit(self.path).query,
                range=self.headers.get("Range"),
                status=status,
                sent_bytes=sent_bytes,
                headers=headers,
                connection=self.client_address[1],
            )
        )
