"""A ZeroMQ socket and what its process keeps beside it: context, monitor, messages on their way.

Owns contexts, whole messages in and out, the flush at the end, and CURVE; knows nothing of several
URLs, of limits or of waiting for room.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zmq
import zmq.auth
import zmq.utils.garbage  # its exit handler must be registered before that of `exits`
from zmq.utils.monitor import recv_monitor_message

from tensorcom.errors import ZmqUrlError
from tensorcom.locks import ForkLock
from tensorcom.transport.exits import EXIT_LINGER_MS, forget
from tensorcom.transport.ipc import unread_bytes
from tensorcom.transport.peers import PeerCount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorcom.socket_options import SocketOptions
    from tensorcom.zmq_url import ZmqUrl

SLICE_MS = 100  # longest a blocking call goes without looking at signals and stop requests

_KINDS = {"push": zmq.PUSH, "pull": zmq.PULL, "pub": zmq.XPUB, "sub": zmq.SUB}
_COPY_BELOW_BYTES = 1024
_POLL_S = 0.002
_MAX_PARTS = 4096  # kept of one message; what comes beyond is dropped as it comes
_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
)

_inproc_context: tuple[int, zmq.Context[Any]] | None = None
_inproc_lock = ForkLock()
_monitors = itertools.count()  # no name twice: ZeroMQ gives them back late


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
class OpenSocket:
    """What one process has open.

    Attributes:
        endpoints: addresses in use, as ZeroMQ writes them.
        message_bytes: size of the first message that was sent.
        topics: topics subscribed to.
        subscriptions: subscriptions of a publisher's readers.
        sends: whether it sends; else it receives.
    """

    context: zmq.Context[Any]
    socket: zmq.Socket[Any]
    owns_context: bool
    pid: int = field(default_factory=os.getpid)
    endpoints: list[str] = field(default_factory=list)
    message_bytes: int = 0
    topics: set[str] = field(default_factory=set)
    subscriptions: int = 0
    sends: bool = True
    _files: list[tuple[str, int]] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    _monitor: zmq.Socket[Any] | None = None
    _peers: PeerCount = field(default_factory=PeerCount)
    _in_flight: deque[tuple[zmq.MessageTracker, int]] = field(default_factory=deque)

    # -- messages -----------------------------------------------------------------------------

    def send(self, frames: Sequence[bytes | memoryview], size_bytes: int) -> bool:
        """Queue one message; return False if there was no room within SNDTIMEO."""
        done = 0
        try:
            # ZeroMQ queues whole messages: once the first part is in, the others cannot block.
            for frame in frames:
                self._send_part(frame, size_bytes, last=done == len(frames) - 1)
                done += 1
        except zmq.Again:
            return False
        except BaseException:  # an interrupt: half a message would spoil the next one
            for i in range(done or len(frames), len(frames)):
                self._send_part(frames[i], size_bytes, last=i == len(frames) - 1)
            raise
        self.prune()
        return True

    def _send_part(self, frame: bytes | memoryview, size_bytes: int, *, last: bool) -> None:
        if not last:
            self.socket.send(frame, zmq.SNDMORE, copy=len(frame) < _COPY_BELOW_BYTES)
            return
        # The last part tells when the message has left, small as it may be.
        part = zmq.Frame(frame, track=True, copy=False, copy_threshold=0)
        self.socket.send(part, copy=False)
        self._in_flight.append((part.tracker, size_bytes))

    def receive(self) -> list[memoryview]:
        """Return the parts of one message.

        Raises:
            zmq.Again: none came within the socket's RCVTIMEO.
        """
        sock = self.socket
        while sock.getsockopt(zmq.RCVMORE):  # what an interrupted receive left of its message
            sock.recv(copy=False)
        parts = [sock.recv(copy=False).buffer]
        while sock.getsockopt(zmq.RCVMORE):
            part = sock.recv(copy=False)
            if len(parts) < _MAX_PARTS:
                parts.append(part.buffer)
        return parts

    def prune(self) -> int:
        """Forget messages that have left; return how many have not, end words (size 0) apart."""
        while self._in_flight and self._in_flight[0][0].done:
            self._in_flight.popleft()
        return sum(size > 0 and not tracker.done for tracker, size in self._in_flight)

    def queued_bytes(self) -> int:
        """Sum the bytes of messages that have not left."""
        return sum(size for tracker, size in self._in_flight if not tracker.done)

    def wait_sent(self, timeout_s: float) -> None:
        """Wait until the oldest message has left, at most `timeout_s`."""
        with contextlib.suppress(zmq.NotDone, IndexError):
            self._in_flight[0][0].wait(timeout_s)

    def waiting(self) -> int:
        """Count messages that have not left, or 1 if ipc readers have not read all of them."""
        paths = {end.removeprefix("ipc://") for end in self.endpoints if end.startswith("ipc://")}
        return self.prune() or int(self.sends and unread_bytes(paths) > 0)

    @property
    def is_idle(self) -> bool:
        """Whether everything has left, end words too."""
        return not self.waiting() and not self._in_flight

    # -- peers --------------------------------------------------------------------------------

    def watch(self) -> None:
        """Watch connections from now on."""
        # ZeroMQ's own threads wait while the queue of a monitor is full: it must have no limit.
        address = f"inproc://tensorcom-monitor-{next(_monitors)}"
        self.socket.monitor(address, _EVENTS)
        self._monitor = self.context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._monitor.setsockopt(zmq.RCVHWM, 0)
        self._monitor.connect(address)

    def read_monitor(self) -> int:
        """Take in what happened to the connections; return how many peers there are."""
        # ZeroMQ takes in a new connection while its socket is asked something: a subscriber that
        # binds says only then what it wants.
        self.socket.getsockopt(zmq.EVENTS)
        monitor = self._monitor
        while monitor is not None and int(monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = recv_monitor_message(monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._peers.succeeded()
            elif event == zmq.EVENT_DISCONNECTED:
                self._peers.lost()
            else:
                self._peers.opened()
        return self._peers.count

    def read_subscriptions(self) -> int:
        """Take in what a publisher's readers subscribed to; return how many subscriptions are."""
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            request = self.socket.recv(zmq.NOBLOCK)
            if request[:1] in (b"\0", b"\1"):
                self.subscriptions += 1 if request[0] else -1
        return self.subscriptions

    def note_endpoint(self, endpoint: str, *, binds: bool) -> None:
        """Remember an address in use."""
        self.endpoints.append(endpoint)
        if endpoint.startswith("inproc:"):
            self._peers.join_inproc(endpoint, binds=binds)
            self._names += [endpoint] * binds
        path = endpoint.removeprefix("ipc://")
        if binds and path != endpoint and not path.startswith("@"):
            with contextlib.suppress(OSError):
                self._files.append((path, os.lstat(path).st_ino))  # noqa: PTH116

    # -- end ----------------------------------------------------------------------------------

    def close(self, linger_ms: int) -> int:
        """Flush and close; return how many messages were lost. Does nothing in another process."""
        if self.pid != os.getpid() or self.socket.closed:
            return 0
        forget(id(self))
        deadline = time.monotonic() + linger_ms / 1000
        while self.waiting() and (left := deadline - time.monotonic()) > 0:
            if self._in_flight:
                self.wait_sent(min(left, SLICE_MS / 1000))
            else:
                time.sleep(_POLL_S)
        lost = self.prune()
        # Small frames that left the queue may still be in ZeroMQ's buffer: give them a moment.
        left_ms = 0 if lost else max(int(1000 * (deadline - time.monotonic())), min(linger_ms, 100))
        if self._in_flight:  # end words that nobody is there to hear
            left_ms = min(left_ms, 100)
        if not self.sends:  # what a subscriber has to say to a publisher that is gone
            left_ms = 0
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
        for path, inode in self._files:  # ZeroMQ leaves them; a later server's is not ours
            with contextlib.suppress(OSError):
                if os.lstat(path).st_ino == inode:  # noqa: PTH116
                    os.unlink(path)  # noqa: PTH108
        for name in self._names:  # else ZeroMQ gives them back some time after closing
            self.socket.unbind(name)
        self.socket.close(left_ms)
        self._peers.leave()
        if self.owns_context:
            self.context.term()
        return lost


def open_socket(kind: str, *, inproc: bool, io_threads: int) -> OpenSocket:
    """Make a socket of `kind` in this process: in a context of its own unless it is for inproc."""
    context = _context(inproc=inproc, io_threads=io_threads)
    opened = OpenSocket(context, context.socket(_KINDS[kind]), owns_context=not inproc)
    opened.sends = kind in ("push", "pub")
    opened.socket.setsockopt(zmq.LINGER, EXIT_LINGER_MS)
    opened.socket.setsockopt(zmq.RCVTIMEO, SLICE_MS)
    opened.socket.setsockopt(zmq.SNDTIMEO, SLICE_MS)
    opened.watch()
    return opened


def set_curve(sock: zmq.Socket[Any], url: ZmqUrl, options: SocketOptions) -> None:
    """Give a socket the CURVE keys of its options.

    Raises:
        ZmqUrlError: a certificate is missing or cannot be read.
    """
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
