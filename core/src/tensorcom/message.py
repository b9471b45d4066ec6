"""Stream messages: arrays, topic and meta, and the frames that carry them.

Owns the order of frames and how a reader tells them apart; knows nothing of sockets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorcom import tenbin
from tensorcom.errors import MessageError, TenbinError
from tensorcom.meta import META_MAGIC, Meta, decode_meta, encode_meta
from tensorcom.tenbin import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_TOPIC_BYTES = 1024
MAX_PARTS = 2050  # topic, 1024 arrays, meta
_MAGICS = (layout.MAGIC, layout.ALIGNED_MAGIC)


@dataclass(frozen=True, slots=True)
class Message:
    """One stream message.

    Attributes:
        arrays: the arrays, normally with a leading batch axis N.
        infos: the info of each array; empty means that all are "".
        topic: topic that the message was published under, b"" for none.
        meta: what the sender says of the message.
    """

    arrays: Sequence[Any]
    infos: Sequence[str] = ()
    topic: bytes = b""
    meta: Meta = field(default_factory=Meta)


def check_topic(topic: bytes) -> bytes:
    """Return `topic` if a reader can tell it from a tensor frame.

    Raises:
        MessageError: it is too long, or starts as a tenbin or meta frame does.
    """
    if len(topic) > MAX_TOPIC_BYTES:
        raise MessageError(f"topic of {len(topic)} bytes exceeds {MAX_TOPIC_BYTES}")
    if topic.startswith((*_MAGICS, META_MAGIC)) or layout.looks_like_header(topic):
        raise MessageError(f"topic {topic[:16]!r} reads as a tensor frame; choose another")
    return topic


def encode_message(
    message: Message,
    *,
    multipart: bool = True,
    copy: Callable[[memoryview], memoryview] | None = None,
    take: Callable[[int], bytearray | memoryview] = bytearray,
) -> list[bytes | memoryview]:
    """Return the frames of a message.

    Args:
        message: what to send.
        multipart: False packs arrays and meta into one frame, as a tenbin buffer; the meta is then
            a last chunk without a partner, which readers of plain tenbin pass over.
        copy: copies a payload into memory that the frames may keep; None keeps views of the arrays.
        take: gives the memory of the one frame.

    Raises:
        MessageError: topic or meta cannot be sent, or there are too many arrays.
        TenbinError: an array cannot be sent.
    """
    if 2 * len(message.arrays) + 2 > MAX_PARTS:
        raise MessageError(f"{len(message.arrays)} arrays exceed {MAX_PARTS // 2 - 1}")
    parts = tenbin.encode_list(message.arrays, message.infos or None)
    meta = encode_meta(message.meta) if message.meta != Meta() else None
    if multipart:
        frames = [
            part if copy is None or i % 2 == 0 else copy(memoryview(part))
            for i, part in enumerate(parts)
        ]
        if meta is not None:
            frames.append(meta)
    else:
        chunks = parts if meta is None else [*parts, meta]
        frames = [memoryview(tenbin.encode_chunks(chunks, take=take))]
    if message.topic:
        frames.insert(0, check_topic(message.topic))
    if not frames:
        raise MessageError("message has neither arrays nor meta")
    return frames


@dataclass(frozen=True, slots=True)
class Envelope:
    """A received message whose topic and meta are read and whose arrays are not yet.

    Attributes:
        parts: header and data of each array in turn, as received.
        topic: topic, b"" for none.
        meta: what the sender says.
    """

    parts: Sequence[memoryview]
    topic: bytes
    meta: Meta

    def open(self, *, copy: Callable[[memoryview], memoryview] | None = None) -> Message:
        """Decode the arrays.

        Args:
            copy: copies a payload into aligned memory of the receiver; None keeps views.

        Returns:
            The message; its arrays are writable where the memory is.

        Raises:
            MessageError: the parts are no tensors.
        """
        parts = self.parts
        if copy is not None:
            parts = [part if i % 2 == 0 else copy(part) for i, part in enumerate(parts)]
        try:
            arrays, infos = tenbin.decode_list_with_infos(parts, writable=True)
        except TenbinError as exc:
            raise MessageError(str(exc)) from exc
        return Message(arrays, infos, self.topic, self.meta)


def read_envelope(frames: Sequence[memoryview]) -> Envelope:
    """Read topic and meta of a message; single-part and multipart forms are told apart here.

    Args:
        frames: the parts as received, bytes.

    Raises:
        MessageError: the frames are no message: foreign, cut, or over a limit.
    """
    if not 0 < len(frames) <= MAX_PARTS:
        raise MessageError(f"{len(frames)} parts, expected 1 to {MAX_PARTS}")
    topic = b""
    start = 0
    if _is_topic(frames[0]):
        if len(frames[0]) > MAX_TOPIC_BYTES:
            reason = f"{len(frames[0])} bytes that are no tensor header, and too long for a topic"
            raise MessageError(reason, part=0)
        topic, start = bytes(frames[0]), 1
    try:
        parts, meta = _split(frames[start:])
    except TenbinError as exc:
        raise MessageError(str(exc), part=start) from exc
    if not parts and meta is None:
        raise MessageError(f"no tensors; the message starts with {bytes(frames[0][:16])!r}")
    return Envelope(parts, topic, meta or Meta())


def decode_message(
    frames: Sequence[memoryview], *, copy: Callable[[memoryview], memoryview] | None = None
) -> Message:
    """Read a message from its frames: `read_envelope`, then `Envelope.open`."""
    return read_envelope(frames).open(copy=copy)


def _is_topic(frame: memoryview) -> bool:
    head = bytes(frame[:8])
    return not head.startswith((*_MAGICS, META_MAGIC)) and not layout.looks_like_header(frame)


def _split(frames: Sequence[memoryview]) -> tuple[list[memoryview], Meta | None]:
    """Return array parts and the meta of a message without its topic."""
    if frames and bytes(frames[0][:8]).startswith(_MAGICS):
        if len(frames) > 1:
            raise MessageError(f"{len(frames)} parts after a tenbin buffer, expected 1", part=1)
        parts = list(tenbin.decode_chunks(frames[0]))
    else:
        parts = list(frames)
    if len(parts) % 2 == 0:
        return parts, None
    if not bytes(parts[-1][:8]) == META_MAGIC:
        raise MessageError(f"{len(parts)} tensor parts, expected pairs of header and data")
    return parts[:-1], decode_meta(parts[-1])
