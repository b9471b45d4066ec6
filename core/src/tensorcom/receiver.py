"""The receiving half of a connection: which messages are for this reader and which are bad.

Owns topics, splitting, bad messages, timeouts and their texts; leaves frames to `message` and
sockets to `transport`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from tensorcom.errors import MessageError, ReceiveTimeoutError
from tensorcom.message import Envelope, Message, read_envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorcom.buffers import BufferPool
    from tensorcom.progress import Progress
    from tensorcom.stats import ConnectionStats
    from tensorcom.transport import Transport

_MAX_REMEMBERED = 4096
BAD_MESSAGE_POLICIES = ("raise", "skip")


def check_policy(on_bad_message: str) -> None:
    """Check what to do with bad messages.

    Raises:
        ValueError: it is neither "raise" nor "skip".
    """
    if on_bad_message not in BAD_MESSAGE_POLICIES:
        raise ValueError(f"on_bad_message={on_bad_message!r} is not one of {BAD_MESSAGE_POLICIES}")


class Receiver:
    """Takes messages from a transport.

    Args:
        transport: where from.
        pool: memory that payloads are copied to.
        stats: figures to count in.
        topics: topics to accept, None for all.
        infos: infos that each message must have, None for any.
        on_bad_message: "raise" or "skip".
        split: (index, count): take each count-th message by number, beginning with index.
        servers: addresses that the stream comes from.
    """

    def __init__(
        self,
        transport: Transport,
        pool: BufferPool,
        stats: ConnectionStats,
        *,
        topics: set[bytes] | None,
        infos: Sequence[str] | None,
        on_bad_message: str,
        split: tuple[int, int] | None,
        servers: int,
    ) -> None:
        self._transport = transport
        self._pool = pool
        self._stats = stats
        self._topics = topics
        self._infos = None if infos is None else list(infos)
        self._on_bad_message = on_bad_message
        self._split = split
        self._servers = servers
        self._over: OrderedDict[str | None, None] = OrderedDict()

    def frames(self, timeout_s: float | None, progress: Progress | None) -> list[memoryview]:
        """Return the next message as it came.

        Raises:
            ReceiveTimeoutError: nothing came in time.
        """
        check = None if progress is None else progress.check
        frames = self._transport.receive(timeout_s=timeout_s, check=check)
        if frames is None:
            raise self._timed_out(timeout_s)
        return frames

    def message(self, timeout_s: float | None, progress: Progress | None) -> Message:
        """Return the next message for this reader, its payloads in memory of their own.

        Raises:
            ReceiveTimeoutError: nothing came in time.
            MessageError: the message is none of ours and the policy is to raise.
        """
        while True:
            frames = self.frames(timeout_s, progress)
            try:
                envelope = read_envelope(frames)
                if not self._wanted(envelope, progress):
                    continue
                message = envelope.open(copy=self._pool.copy)
                self._check_infos(message)
            except MessageError:
                self._stats.bad += 1
                if self._on_bad_message == "raise":
                    raise
            else:
                return message

    def _wanted(self, envelope: Envelope, progress: Progress | None) -> bool:
        """Count a message; return whether it holds arrays for this reader."""
        if self._topics is not None and envelope.topic not in self._topics:
            self._stats.filtered += 1
            return False
        meta = envelope.meta
        if meta.end == "stream":
            self._stats.end(meta, envelope.topic)
            if self._is_news(meta.source) and progress is not None:
                progress.note_end(meta)
        if not envelope.parts:
            return False  # an end word alone
        size = sum(len(part) for part in envelope.parts[1::2])
        self._stats.add_message(meta, envelope.topic, size)
        if self._split is not None:
            if meta.seq is None:
                raise MessageError(
                    "no number, so several readers cannot split this publisher; "
                    "use one reader, a URL for each reader, or zpush"
                )
            if meta.seq % self._split[1] != self._split[0]:
                return False
        return True

    def _is_news(self, source: str | None) -> bool:
        """Return whether an end word is the first of its source: it is said more than once."""
        if source in self._over:
            return False
        if len(self._over) >= _MAX_REMEMBERED:
            self._over.popitem(last=False)
        self._over[source] = None
        return True

    def _check_infos(self, message: Message) -> None:
        if self._infos is not None and list(message.infos) != self._infos:
            raise MessageError(f"infos {list(message.infos)}, expected {self._infos}")

    def _timed_out(self, timeout_s: float | None) -> ReceiveTimeoutError:
        seen = self._stats.last_seen_s()
        state = f"{self._transport.peers()} of {self._servers} or more peers connected"
        if seen:
            ages = ", ".join(f"{key} {age:.1f} s ago" for key, age in sorted(seen.items()))
            state += f"; last message from {ages}"
        else:
            state += "; none ever came: is the server running?"
        return ReceiveTimeoutError(
            f"no message in {timeout_s:g} s ({state})",
            urls=self._transport.urls,
            timeout_s=timeout_s,
            last_seen=seen,
        )
