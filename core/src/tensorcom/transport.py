"""Sockets: the only module that uses ZeroMQ.

Owns contexts, sockets, high-water marks, time limits and the flush at the end. Moves frames, lists
of byte buffers, and knows nothing of what they mean.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import zmq
import zmq.auth
from zmq.utils.monitor import recv_monitor_message

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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensorcom.zmq_url import ZmqUrl

_KINDS = {"push": zmq.PUSH, "pull": zmq.PULL, "pub": zmq.XPUB, "sub": zmq.SUB}
_SLICE_MS = 100  # longest a blocking call goes without looking at signals and stop requests
_EXIT_LINGER_MS = 2000
_RECEIVE_HWM = 4  # a receiver cannot know sizes beforehand; the sender's queue is the long one
_MAX_SEND_HWM = {"push": 16, "pub": 1000}
_COPY_BELOW_BYTES = 1024


_inproc_context: tuple[int, zmq.Context[Any]] | None = None
_inproc_lock = ForkLock()


def _context(*, inproc: bool, io_threads: int) -> zmq.Context[Any]:
    """Return a new context, or the one of this process that inproc addresses live in."""
    global _inproc_context  # noqa: PLW0603 - inproc names are per context, so the process has one
    if not inproc:
        return zmq.Context(io_threads)
    with _inproc_lock:
        if _inproc_context is None or _inproc_context[0] != os.getpid():
            _inproc_context = (os.getpid(), zmq.Context(io_threads))
        return _inproc_context[1]


@dataclass(slots=True)
class _Open:
    """What one process has open."""

    context: zmq.Context[Any]
    socket: zmq.Socket[Any]
    owns_context: bool
    pid: int = field(default_factory=os.getpid)
    endpoints: list[str] = field(default_factory=list)
    monitor: zmq.Socket[Any] | None = None
    peers: int = 0
    in_flight: deque[tuple[zmq.MessageTracker, int]] = field(default_factory=deque)
    message_bytes: int = 0
    topics: set[str] = field(default_factory=set)
    subscriptions: int = 0

    def prune(self) -> int:
        """Forget messages that have left; return how many have not."""
        while self.in_flight and self.in_flight[0][0].done:
            self.in_flight.popleft()
        return sum(not tracker.done for tracker, _ in self.in_flight)

    def queued_bytes(self) -> int:
        """Sum the bytes of messages that have not left."""
        return sum(size for tracker, size in self.in_flight if not tracker.done)


def _close_now(opened: _Open, linger_ms: int) -> int:
    """Flush and close; return how many messages were lost. Does nothing in another process."""
    if opened.pid != os.getpid() or opened.socket.closed:
        return 0
    deadline = time.monotonic() + linger_ms / 1000
    while opened.prune() and (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(zmq.NotDone):
            opened.in_flight[0][0].wait(min(left, _SLICE_MS / 1000))
    lost = opened.prune()
    # Small frames that left the queue may still be in ZeroMQ's write buffer: give them a moment.
    left_ms = 0 if lost else max(int(1000 * (deadline - time.monotonic())), min(linger_ms, 100))
    if opened.monitor is not None:
        opened.socket.disable_monitor()
        opened.monitor.close(0)
    opened.socket.close(left_ms)
    if opened.owns_context:
        opened.context.term()
    return lost


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
        self._opened: _Open | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._closed = False
        self.dropped = 0

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
            self._urls.append(url)
            self._options.append(self._defaults.for_url(url))
            if self._opened is not None and self._opened.pid == os.getpid():
                self._attach(self._opened, url, self._options[-1])

    def open(self) -> None:
        """Bind and connect now, in this process; without effect if that is done.

        Raises:
            ClosedError: the transport was closed.
            BindError, ConnectError: an address cannot be used.
        """
        with self._lock:
            self._ensure()

    def _ensure(self) -> _Open:
        if self._closed:
            raise ClosedError("connection is closed", url=str(self._urls[0]))
        opened = self._opened
        if opened is not None and opened.pid == os.getpid():
            return opened
        inproc = any(url.transport == "inproc" for url in self._urls)
        context = _context(inproc=inproc, io_threads=min(len(self._urls), 2))
        opened = _Open(context, context.socket(_KINDS[self.kind]), owns_context=not inproc)
        try:
            self._prepare(opened)
            for url, options in zip(self._urls, self._options, strict=True):
                self._attach(opened, url, options)
        except BaseException:
            _close_now(opened, 0)
            raise
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _close_now, opened, _EXIT_LINGER_MS)
        self._opened = opened
        return opened

    def _prepare(self, opened: _Open) -> None:
        sock = opened.socket
        sock.setsockopt(zmq.LINGER, _EXIT_LINGER_MS)
        sock.setsockopt(zmq.RCVTIMEO, _SLICE_MS)
        sock.setsockopt(zmq.SNDTIMEO, _SLICE_MS)
        sock.setsockopt(zmq.MAXMSGSIZE, max(o.max_frame_bytes for o in self._options))
        if self.kind == "pub":
            sock.setsockopt(zmq.XPUB_VERBOSER, 1)
            sock.setsockopt(zmq.XPUB_NODROP, int(any(o.nodrop for o in self._options)))
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        opened.monitor = sock.get_monitor_socket(events)
        opened.monitor.setsockopt(zmq.LINGER, 0)

    def _attach(self, opened: _Open, url: ZmqUrl, options: SocketOptions) -> None:
        sock = opened.socket
        sock.setsockopt(zmq.RCVHWM, options.hwm or _RECEIVE_HWM)
        if options.hwm is not None:
            sock.setsockopt(zmq.SNDHWM, options.hwm)
        heartbeat_ms = int(options.heartbeat_s * 1000)
        sock.setsockopt(zmq.HEARTBEAT_IVL, heartbeat_ms)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, heartbeat_ms * 6)
        _set_curve(sock, url, options)
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
            opened.endpoints.append(url.endpoint)
            return
        check_ipc(url)
        endpoint = bindable(url)
        try:
            sock.bind(endpoint)
        except zmq.ZMQError as exc:
            raise BindError(f"cannot bind {endpoint}: {exc.strerror}", url=str(url)) from exc
        last = sock.getsockopt(zmq.LAST_ENDPOINT)
        opened.endpoints.append(bytes(last).rstrip(b"\0").decode(errors="surrogateescape"))

    def _fit_hwm(self, opened: _Open, message_bytes: int) -> None:
        """Bound the bytes queued per peer by the size of the first message: ZeroMQ counts messages.

        Only before that message: ZeroMQ loses wake-ups when a limit changes on a queue in use.
        """
        opened.message_bytes = message_bytes
        if self.options.hwm is None:
            hwm = self.options.hwm_bytes // (2 * len(self._urls) * max(message_bytes, 1))
            opened.socket.setsockopt(zmq.SNDHWM, max(1, min(hwm, _MAX_SEND_HWM[self.kind])))

    def _has_room(self, opened: _Open, message_bytes: int) -> bool:
        """Return whether a message larger than the first may be queued too."""
        if self.kind == "pub" or message_bytes <= opened.message_bytes:
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
            return _close_now(opened, limit if flush else 0)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # -- frames -------------------------------------------------------------------------------

    def send(
        self,
        frames: Sequence[bytes | memoryview],
        *,
        timeout_s: float | None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Queue one message; its buffers must not change until ZeroMQ has sent them.

        Args:
            frames: the parts, each over 1 KiB sent without a copy.
            timeout_s: seconds to wait for room in a peer's queue; None waits for ever.
            check: called about ten times a second while waiting; may raise to stop.

        Raises:
            TransportError: a frame is over `max_frame_bytes`; nothing was sent.
            SendTimeoutError: no peer had room in time.
        """
        total = 0
        for frame in frames:
            size = len(frame)
            total += size
            if size > self.options.max_frame_bytes:
                raise TransportError(
                    f"frame of {size} bytes exceeds max_frame_bytes="
                    f"{self.options.max_frame_bytes}; send smaller batches",
                    url=str(self._urls[0]),
                )
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if check is not None:
                check()
            with self._lock:
                opened = self._ensure()
                if not opened.message_bytes:
                    self._fit_hwm(opened, total)
                if self.kind == "pub":
                    self._read_subscriptions(opened)
                if self._send_now(opened, frames, total):
                    return
            if deadline is not None and time.monotonic() >= deadline:
                raise SendTimeoutError(
                    f"no peer took a message in {timeout_s:g} s ({self.peers()} connected)",
                    url=", ".join(self.urls),
                    timeout_s=timeout_s,
                )

    def _send_now(self, opened: _Open, frames: Sequence[bytes | memoryview], total: int) -> bool:
        """Queue a message unless there is no room for `_SLICE_MS`; then return False."""
        if not self._has_room(opened, total):
            with contextlib.suppress(zmq.NotDone):
                opened.in_flight[0][0].wait(_SLICE_MS / 1000)
            return False
        last = len(frames) - 1
        # ZeroMQ queues whole messages: once the first part is in, the others cannot block.
        for position, frame in enumerate(frames):
            flags = zmq.SNDMORE if position < last else 0
            try:
                if position < last:
                    copy = len(frame) < _COPY_BELOW_BYTES
                    opened.socket.send(frame, flags, copy=copy)
                    continue
                part = zmq.Frame(frame, track=True, copy=False, copy_threshold=0)
                opened.socket.send(part, flags, copy=False)
            except zmq.Again:
                return False
            opened.in_flight.append((part.tracker, total))
        opened.prune()
        return True

    def in_flight(self) -> int:
        """Count messages that have not left: still queued, or being sent."""
        with self._lock:
            return self._ensure().prune()

    def flush(self, timeout_s: float) -> int:
        """Wait until all that was sent has left, at most `timeout_s`; return what has not."""
        deadline = time.monotonic() + timeout_s
        while (waiting := self.in_flight()) and time.monotonic() < deadline:
            time.sleep(0.001)
        return waiting

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
            left_ms = _SLICE_MS if deadline is None else int((deadline - time.monotonic()) * 1000)
            with self._lock:
                opened = self._ensure()
                opened.socket.setsockopt(zmq.RCVTIMEO, max(0, min(_SLICE_MS, left_ms)))
                try:
                    parts = opened.socket.recv_multipart(copy=False)
                except zmq.Again:
                    if left_ms <= 0:
                        return None
                    continue
                return [part.buffer for part in parts]

    # -- peers --------------------------------------------------------------------------------

    def peers(self) -> int:
        """Count connected peers: subscriptions of a publisher, else established connections."""
        with self._lock:
            opened = self._ensure()
            if self.kind == "pub":
                self._read_subscriptions(opened)
                return opened.subscriptions
            monitor = opened.monitor
            while monitor is not None and monitor.poll(0):
                event = recv_monitor_message(monitor)["event"]
                opened.peers += 1 if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else -1
            return max(opened.peers, 0)

    @staticmethod
    def _read_subscriptions(opened: _Open) -> None:
        sock = opened.socket
        while int(sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            request = sock.recv(zmq.NOBLOCK)
            if request[:1] in (b"\0", b"\1"):
                opened.subscriptions += 1 if request[0] else -1

    def wait_for_peers(self, count: int, timeout_s: float | None) -> bool:
        """Wait until `count` peers are connected; return whether they are."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.peers() < count:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True


def _set_curve(sock: zmq.Socket[Any], url: ZmqUrl, options: SocketOptions) -> None:
    if options.curve_key is None and options.curve_server_key is None:
        return
    if options.curve_key is None or (options.curve_server_key is None and not url.binds):
        missing = "curve_key" if options.curve_key is None else "curve_server_key"
        raise ZmqUrlError(f"CURVE needs {missing} too", url=str(url))
    try:
        public, secret = zmq.auth.load_certificate(options.curve_key)
        sock.setsockopt(zmq.CURVE_PUBLICKEY, public)
        sock.setsockopt(zmq.CURVE_SECRETKEY, secret or b"")
        if url.binds:
            sock.setsockopt(zmq.CURVE_SERVER, 1)
        else:
            server, _ = zmq.auth.load_certificate(str(options.curve_server_key))
            sock.setsockopt(zmq.CURVE_SERVERKEY, server)
    except (OSError, ValueError, zmq.ZMQError) as exc:
        raise ZmqUrlError(f"CURVE certificate cannot be used: {exc}", url=str(url)) from exc
