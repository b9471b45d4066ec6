"""One socket over several URLs: opening where it is used, limits in bytes and in time.

Owns what `Connection` needs of a socket; leaves ZeroMQ's ways to `sockets`.
"""

from __future__ import annotations

import os
import time
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq

from tensorcom.errors import (
    BindError,
    ClosedError,
    ConnectError,
    SendTimeoutError,
    TransportError,
    ZmqUrlError,
)
from tensorcom.locks import ForkLock
from tensorcom.socket_options import SocketOptions, bindable, check_ipc
from tensorcom.transport.exits import EXIT_LINGER_MS, close_at_exit
from tensorcom.transport.sockets import SLICE_MS, OpenSocket, open_socket, set_curve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensorcom.zmq_url import ZmqUrl

_KEEP_ALIVE = {  # a host that vanished is noticed after some two minutes
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 6,
}
_RECEIVE_HWM = 4  # a receiver cannot know sizes beforehand; the sender's queue is the long one
_POLL_S = 0.002
# Within a host, bytes on their way shall fit a cache; to others the system finds the best size.
_LOOPBACK_SEND_BUFFER_BYTES = 384 << 10
_MAX_SEND_HWM = {"push": 16, "pub": 1000}


class Transport:
    """One ZeroMQ socket over one or several URLs of the same kind.

    The socket is made in the process that uses it: after a fork the child makes its own.

    Args:
        urls: parsed URLs, all of one kind.
        options: defaults that each URL's options override.
    """

    def __init__(self, urls: Sequence[ZmqUrl], options: SocketOptions | None = None) -> None:
        kinds = {url.kind for url in urls}
        if len(kinds) != 1:
            raise ZmqUrlError(
                f"found {', '.join(sorted(kinds)) or 'no URL'}, but one connection has one kind of "
                "socket; use a connection for each"
            )
        self.kind: str = kinds.pop()
        self._urls = list(urls)
        self._defaults = options or SocketOptions()
        self._options = [self._defaults.for_url(url) for url in urls]
        self._lock = ForkLock()
        self._opened: OpenSocket | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._closed = False

    # -- life ---------------------------------------------------------------------------------

    @property
    def options(self) -> SocketOptions:
        """Options in force: the first URL's, which a connection's own calls go by."""
        return self._options[0]

    def add(self, url: ZmqUrl) -> None:
        """Serve one URL more, at once if the socket is open.

        Raises:
            ZmqUrlError: it is of another kind.
        """
        if url.kind != self.kind:
            raise ZmqUrlError(
                f"is a {url.kind} URL, the connection's kind is {self.kind}", url=str(url)
            )
        with self._lock:
            options = self._defaults.for_url(url)
            if self._opened is not None and self._opened.pid == os.getpid():
                self._attach(self._opened, url, options)
            self._urls.append(url)
            self._options.append(options)

    def open(self) -> None:
        """Bind and connect now, in this process; without effect if that is done.

        Raises:
            ClosedError: the transport was closed.
            BindError, ConnectError: an address cannot be used.
        """
        with self._lock:
            self._ensure()

    def _ensure(self) -> OpenSocket:
        if self._closed:
            raise ClosedError("connection is closed", url=str(self._urls[0]))
        opened = self._opened
        if opened is not None and opened.pid == os.getpid():
            return opened
        inproc = any(url.transport == "inproc" for url in self._urls)
        opened = open_socket(self.kind, inproc=inproc, io_threads=min(len(self._urls), 2))
        try:
            self._prepare(opened)
            for url, options in zip(self._urls, self._options, strict=True):
                self._attach(opened, url, options)
        except BaseException:
            opened.close(0)
            raise
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, opened.close, EXIT_LINGER_MS)
        self._finalizer.atexit = False
        close_at_exit(id(opened), partial(_close_at_exit, weakref.ref(self), opened))
        self._opened = opened
        return opened

    def _prepare(self, opened: OpenSocket) -> None:
        sock = opened.socket
        sock.setsockopt(zmq.MAXMSGSIZE, max(o.max_frame_bytes for o in self._options))
        if self.kind == "pub":
            sock.setsockopt(zmq.XPUB_VERBOSER, 1)
            sock.setsockopt(zmq.XPUB_NODROP, int(any(o.nodrop for o in self._options)))

    def _attach(self, opened: OpenSocket, url: ZmqUrl, options: SocketOptions) -> None:
        sock = opened.socket
        sock.setsockopt(zmq.RCVHWM, options.hwm or _RECEIVE_HWM)
        if self.kind in _MAX_SEND_HWM:
            sock.setsockopt(zmq.SNDHWM, options.hwm or _MAX_SEND_HWM[self.kind])
        for option, value in _KEEP_ALIVE.items():
            sock.setsockopt(option, value)
        heartbeat_ms = int(options.heartbeat_s * 1000)
        sock.setsockopt(zmq.HEARTBEAT_IVL, heartbeat_ms)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, heartbeat_ms * 6)
        sock.setsockopt(zmq.SNDBUF, _LOOPBACK_SEND_BUFFER_BYTES if _is_loopback(url) else -1)
        set_curve(sock, url, options)
        if url.address.startswith("["):
            sock.setsockopt(zmq.IPV6, 1)
        if self.kind == "sub" and (url.topic or "") not in opened.topics:
            opened.topics.add(url.topic or "")
            sock.subscribe((url.topic or "").encode())
        if not url.binds:
            if url.endpoint in opened.endpoints:
                return  # the same address with another topic: one connection serves both
            try:
                sock.connect(url.endpoint)
            except zmq.ZMQError as exc:
                raise ConnectError(f"cannot connect: {exc.strerror}", url=str(url)) from exc
            opened.note_endpoint(url.endpoint, binds=False)
            return
        check_ipc(url)
        endpoint = bindable(url)
        try:
            sock.bind(endpoint)
        except zmq.ZMQError as exc:
            raise BindError(f"cannot bind {endpoint}: {exc.strerror}", url=str(url)) from exc
        last = bytes(sock.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0")
        opened.note_endpoint(last.decode(errors="surrogateescape"), binds=True)

    def _fit_hwm(self, opened: OpenSocket, message_bytes: int) -> None:
        """Bound the bytes queued per peer by the size of the first message: ZeroMQ counts messages.

        Only before that message: ZeroMQ loses wake-ups when a limit changes on a queue in use. In
        inproc queues it always does, so there the bytes are counted before each message.
        """
        if any(url.transport == "inproc" for url in self._urls):
            return
        opened.message_bytes = message_bytes
        if self.options.hwm is None:
            hwm = self.options.hwm_bytes // (2 * len(self._urls) * max(message_bytes, 1))
            opened.socket.setsockopt(zmq.SNDHWM, max(1, min(hwm, _MAX_SEND_HWM[self.kind])))

    def _has_room(self, opened: OpenSocket, message_bytes: int) -> bool:
        """Return whether a message may be queued that the number of messages does not bound."""
        if message_bytes <= opened.message_bytes:
            return True
        waiting = opened.queued_bytes()
        return not waiting or waiting + message_bytes <= self.options.hwm_bytes

    @property
    def endpoints(self) -> list[str]:
        """Addresses in use, as ZeroMQ writes them, with the ports that were picked for port 0."""
        with self._lock:
            return list(self._ensure().endpoints)

    @property
    def urls(self) -> list[str]:
        """The URLs, with the ports that were picked for port 0."""
        with self._lock:
            if self._opened is None or self._opened.pid != os.getpid():
                return [str(url) for url in self._urls]
            binds = [url for url in self._urls if url.binds]
            if len(binds) != len(self._urls):
                return [str(url) for url in self._urls]
            pairs = zip(self._urls, self._opened.endpoints, strict=True)
            return [
                str(replace(url, address=end.partition("://")[2]))
                if url.transport == "tcp"
                else str(url)
                for url, end in pairs
            ]

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"sockets cannot be pickled ({self._urls[0]}); pickle the Connection instead"
        )

    def close(self, *, flush: bool = True, linger_ms: int | None = None) -> int:
        """Send what is queued, within `linger_ms`, and close.

        Returns:
            How many messages were still queued and are lost.
        """
        self._closed = True  # seen by a send or receive in another thread, which then lets go
        with self._lock:
            opened, self._opened = self._opened, None
            if self._finalizer is not None:
                self._finalizer.detach()
                self._finalizer = None
            if opened is None:
                return 0
            limit = self.options.linger_ms if linger_ms is None else linger_ms
            return opened.close(limit if flush else 0)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # -- frames -------------------------------------------------------------------------------

    def check_frame(self, size_bytes: int) -> None:
        """Refuse a frame over `max_frame_bytes`.

        Raises:
            TransportError: it is.
        """
        limit = self.options.max_frame_bytes
        if size_bytes > limit:
            raise TransportError(
                f"frame of {size_bytes} bytes exceeds max_frame_bytes={limit}; "
                "send smaller batches",
                url=str(self._urls[0]),
            )

    def send(
        self,
        frames: Sequence[bytes | memoryview],
        *,
        timeout_s: float | None,
        check: Callable[[], None] | None = None,
        expendable: bool = False,
    ) -> None:
        """Queue one message; its buffers must not change until ZeroMQ has sent them.

        Args:
            frames: the parts, each over 1 KiB sent without a copy.
            expendable: whether the message counts as nothing when it is lost at the end.
            timeout_s: seconds to wait for room in a peer's queue; None waits for ever.
            check: called about ten times a second while waiting; may raise to stop.

        Raises:
            TransportError: a frame is over `max_frame_bytes`; nothing was sent.
            SendTimeoutError: no peer had room in time.
        """
        sizes = [len(frame) for frame in frames]
        self.check_frame(max(sizes))
        total = sum(sizes)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if check is not None:
                check()
            with self._lock:
                opened = self._ensure()
                if not opened.message_bytes:
                    self._fit_hwm(opened, total)
                opened.read_monitor()
                if self.kind == "pub":
                    opened.read_subscriptions()
                left_s = SLICE_MS if deadline is None else deadline - time.monotonic()
                wait_ms = max(0, min(SLICE_MS, int(1000 * left_s)))
                if self._send_now(opened, frames, 0 if expendable else total, wait_ms):
                    return
            if deadline is not None and time.monotonic() >= deadline:
                raise SendTimeoutError(
                    f"no peer took a message in {timeout_s:g} s ({self.peers()} connected)",
                    url=", ".join(self.urls),
                    timeout_s=timeout_s,
                )

    def _send_now(
        self, opened: OpenSocket, frames: Sequence[bytes | memoryview], total: int, wait_ms: int
    ) -> bool:
        """Queue a message unless there is no room for `wait_ms`; then return False."""
        if self._has_room(opened, total):
            opened.socket.setsockopt(zmq.SNDTIMEO, wait_ms)
            return opened.send(frames, total)
        if self.kind == "pub" and not self.options.nodrop:
            return True  # dropped, as ZeroMQ does with what exceeds its limit in messages
        opened.wait_sent(wait_ms / 1000)
        return False

    def in_flight(self) -> int:
        """Count messages that have not left: still queued, being sent, or unread by ipc peers."""
        with self._lock:
            return self._ensure().waiting()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was sent has left, at most `timeout_s`; return whether it has."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._ensure().is_idle:
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)

    def receive(
        self, *, timeout_s: float | None, check: Callable[[], None] | None = None
    ) -> list[memoryview] | None:
        """Take one message.

        Args:
            timeout_s: seconds to wait; None waits for ever.
            check: called about ten times a second while waiting; may raise to stop.

        Returns:
            Its frames as views of ZeroMQ's own memory, or None if none came in time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if check is not None:
                check()
            left_ms = SLICE_MS if deadline is None else int((deadline - time.monotonic()) * 1000)
            with self._lock:
                opened = self._ensure()
                opened.socket.setsockopt(zmq.RCVTIMEO, max(0, min(SLICE_MS, left_ms)))
                opened.read_monitor()
                try:
                    return opened.receive()
                except zmq.Again:
                    if left_ms <= 0:
                        return None

    # -- peers --------------------------------------------------------------------------------

    def peers(self) -> int:
        """Count connected peers: subscriptions of a publisher, else established connections."""
        with self._lock:
            opened = self._ensure()
            return opened.read_subscriptions() if self.kind == "pub" else opened.read_monitor()

    def wait_for_peers(self, count: int, timeout_s: float | None) -> bool:
        """Wait until `count` peers are connected; return whether they are."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.peers() < count:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True


def _close_at_exit(reference: weakref.ref[Transport], opened: OpenSocket, linger_ms: int) -> None:
    """Close the socket of a transport, which a daemon thread may be using at this moment."""
    transport = reference()
    if transport is None:
        opened.close(linger_ms)
        return
    transport._closed = True  # seen by that thread, which then lets go of the lock
    with transport._lock:
        opened.close(linger_ms)


def _is_loopback(url: ZmqUrl) -> bool:
    """Return whether a URL is TCP within this host, as far as its text tells."""
    host = url.address.rpartition(":")[0]
    return url.transport == "tcp" and (host in ("localhost", "[::1]") or host.startswith("127."))
