"""What a socket needs to know before it opens: its limits and the addresses that can be bound.

Owns the options with their defaults and the checks that give better reasons than ZeroMQ's own.
"""

from __future__ import annotations

import os
import socket as stdlib_socket
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tensorcom.errors import BindError, ZmqUrlError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorcom.zmq_url import ZmqUrl


_BOUNDS: Mapping[str, tuple[int, int]] = {
    "hwm": (1, 10**9),
    "hwm_bytes": (1, 2**63 - 1),
    "max_frame_bytes": (1, 2**63 - 1),
    "timeout_s": (0, 10**9),
    "linger_ms": (0, 10**9),
    "heartbeat_s": (0, 86400),
}


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """Limits and times of a socket; a URL's options override them for that URL.

    Attributes:
        hwm: most messages queued per peer; None derives it from `hwm_bytes` and the message size.
        hwm_bytes: most bytes that one end holds; half of it may wait in a peer's queue.
        max_frame_bytes: largest frame sent or accepted.
        timeout_s: seconds that a send or receive waits; None waits for ever.
        linger_ms: longest that `close` waits for queued messages to leave.
        heartbeat_s: interval of ZeroMQ's heartbeats, 0 for none: they take a reader that pauses
            with a full queue for dead. TCP's keep-alive is on all the same.
        nodrop: a publisher waits for a slow subscriber instead of dropping its messages.
        curve_key: own CURVE certificate file with the secret key.
        curve_server_key: public certificate file of the binding end, for the connecting one.
    """

    hwm: int | None = None
    hwm_bytes: int = 256_000_000
    max_frame_bytes: int = 2**31 - 1
    timeout_s: float | None = 60.0
    linger_ms: int = 10_000
    heartbeat_s: float = 0.0
    nodrop: bool = False
    curve_key: str | None = None
    curve_server_key: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that ZeroMQ would read as no limit, or not at all."""
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None and name in ("hwm", "timeout_s"):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name}={value!r} is no number")
            if not low <= value <= high:
                raise ValueError(f"{name}={value!r}, expected {low} to {high}")

    def for_url(self, url: ZmqUrl) -> SocketOptions:
        """Return these options with those of `url` in front."""
        try:
            return replace(self, **url.options)  # type: ignore[arg-type]
        except ValueError as exc:
            raise ZmqUrlError(f"option {exc}", url=str(url)) from exc


def bindable(url: ZmqUrl) -> str:
    """Return the endpoint to bind: ZeroMQ binds addresses, not host names."""
    if url.transport != "tcp":
        return url.endpoint
    host, _, port = url.address.rpartition(":")
    if port == "0":
        port = "*"
    if host == "*" or host.startswith("[") or host[0].isdigit():
        return f"tcp://{host}:{port}"
    try:
        found = stdlib_socket.getaddrinfo(host, None, stdlib_socket.AF_INET)
    except OSError:
        return f"tcp://{host}:{port}"  # perhaps a network interface, which ZeroMQ knows
    return f"tcp://{found[0][4][0]}:{port}"


def check_ipc(url: ZmqUrl) -> None:
    """Refuse an ipc path whose folder is missing or that a living server holds."""
    if url.transport != "ipc" or url.address.startswith("@"):
        return
    folder = os.path.dirname(url.address) or "."  # noqa: PTH120 - the path may be no UTF-8
    if not os.path.isdir(folder):  # noqa: PTH112
        raise BindError(f"folder {folder!r} of the ipc socket does not exist", url=str(url))
    if os.path.lexists(url.address) and not stat.S_ISSOCK(os.lstat(url.address).st_mode):  # noqa: PTH110, PTH116
        # ZeroMQ would remove it.
        raise BindError(f"{url.address!r} exists and is no socket", url=str(url))
    with stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM) as probe:
        try:
            probe.connect(url.address)
        except OSError:
            return  # nobody listens; ZeroMQ replaces a left-over socket file
    raise BindError("address is in use by a running server", url=str(url))
