"""The sending half of a connection: identity, numbers, copies and end words.

Owns what is added to a batch on its way out; leaves frames to `message` and sockets to `transport`.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from tensorcom.arrays import as_array
from tensorcom.errors import SendTimeoutError, TenbinError
from tensorcom.message import Message, encode_message
from tensorcom.meta import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tensorcom.buffers import BufferPool
    from tensorcom.transport import Transport

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 2.0
_POLL_S = 0.1
_WIDE = ("float64", "int64", "uint64", "complex128")


class StopSignal(Protocol):
    """What tells a server to stop: a `threading.Event`, a fleet worker's `stopping`."""

    def is_set(self) -> bool:
        """Return whether to stop."""


class Sender:
    """Sends messages over a transport and numbers them.

    Args:
        transport: where to.
        pool: memory that copies are made in.
        multipart: one frame per array instead of one per message.
        send_meta: add the meta frame.
    """

    def __init__(
        self, transport: Transport, pool: BufferPool, *, multipart: bool, send_meta: bool
    ) -> None:
        self._transport = transport
        self._pool = pool
        self._multipart = multipart
        self._send_meta = send_meta
        self._source = ""
        self._pid = 0
        self._next_seq: dict[bytes, int] = {}
        self._has_sent = False

    def send(
        self,
        message: Message,
        *,
        allow64: bool,
        copy: bool,
        timeout_s: float | None,
        check: Callable[[], None] | None,
    ) -> tuple[int, int]:
        """Send one message, its meta completed.

        Returns:
            Its payload bytes and its samples.
        """
        arrays = [as_array(value, index=i) for i, value in enumerate(message.arrays)]
        if not allow64:
            _refuse_wide(arrays)
        sizes = [array.nbytes for array in arrays]
        self._transport.check_frame(max(sizes, default=0) if self._multipart else sum(sizes))
        samples = message.meta.samples
        if samples is None:
            samples = count_samples(arrays)
        meta = (
            self._complete(message.meta, message.topic, samples)
            if self._send_meta
            else message.meta
        )
        frames = encode_message(
            Message(arrays, message.infos, message.topic, meta),
            multipart=self._multipart,
            copy=self._pool.copy if copy else None,
            take=self._pool.take,
        )
        self._transport.send(frames, timeout_s=timeout_s, check=check)
        self._has_sent = True
        if self._send_meta:
            self._next_seq[message.topic] = (meta.seq or 0) + 1
        return sum(sizes), samples

    def finish(
        self,
        word: str,
        *,
        topic: bytes,
        sources: int | None,
        check: Callable[[], None] | None,
    ) -> None:
        """Say an end word to every reader, after all that was sent has left.

        A pushing socket gives each message to one reader, so the word is said until each must have
        heard it: now and then while some are behind, for those that wait for more already, and to
        all in turn when nothing is queued any more.
        """
        frames = self._end_frames(word, topic, sources)
        pause_s = _FIRST_PAUSE_S
        while not self._transport.flush(pause_s):
            if check is not None:
                check()
            if self._transport.kind == "push" and self._transport.peers() > 1:
                with contextlib.suppress(SendTimeoutError):
                    self._transport.send(frames, timeout_s=0, expendable=True)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if not self._transport.in_flight():
                break  # only end words have not left
        if self._transport.kind == "pub":  # to the readers of each topic
            words = [
                self._end_frames(word, key, sources)
                for key in dict.fromkeys([topic, *self._topics()])
            ]
        else:
            words = [frames] * (2 * max(self._transport.peers(), 1))
        if not self._has_sent:  # else the first reader to come would wait for ever
            self._transport.send(words.pop(), timeout_s=None, check=check, expendable=True)
        for frames in words:
            with contextlib.suppress(SendTimeoutError):
                self._transport.send(frames, timeout_s=0, expendable=True)
        self._transport.flush(_POLL_S)

    def _topics(self) -> list[bytes]:
        """Return the topics that this process has published under."""
        return list(self._next_seq) if self._pid == os.getpid() else []

    def _end_frames(self, word: str, topic: bytes, sources: int | None) -> list[bytes | memoryview]:
        meta = Meta(end=word, sources=sources, samples=0)
        if self._send_meta:
            meta = self._complete(meta, topic, 0)
        return encode_message(Message((), (), topic, meta), multipart=self._multipart)

    def _complete(self, meta: Meta, topic: bytes, samples: int) -> Meta:
        if self._pid != os.getpid():  # a forked child is another source
            self._source, self._pid, self._next_seq = uuid.uuid4().hex[:12], os.getpid(), {}
        return replace(
            meta,
            source=self._source,
            seq=self._next_seq.get(topic, 0),
            samples=samples,
            times={**meta.times, "sent": time.time()},
        )


def count_samples(arrays: Sequence[Any]) -> int:
    """Return the leading axis of the first array, 1 if it has none, 0 without arrays."""
    if not arrays:
        return 0
    shape: Sequence[int] = getattr(arrays[0], "shape", ())
    return int(shape[0]) if len(shape) else 1


def _refuse_wide(arrays: Sequence[NDArray[Any]]) -> None:
    for index, array in enumerate(arrays):
        if array.dtype.name in _WIDE:
            raise TenbinError(
                f"dtype {array.dtype.name} needs allow64=True, or fewer bits by .astype('i4')",
                index=index,
            )
