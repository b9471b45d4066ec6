"""What the tests of the transport share."""

from __future__ import annotations

from tensorcom.transport import Transport

LONG_S = 30.0


def address_of(one: Transport, scheme: str) -> str:
    one.open()
    return one.urls[0].replace(one.urls[0].partition("://")[0], scheme)


def send(one: Transport, *frames: bytes, timeout_s: float | None = LONG_S) -> None:
    one.send(frames, timeout_s=timeout_s)


def receive(one: Transport, timeout_s: float = LONG_S) -> list[bytes] | None:
    frames = one.receive(timeout_s=timeout_s)
    return None if frames is None else [bytes(frame) for frame in frames]
