"""The container of tenbin: chunks with a magic, a length and padding.

Owns both chunk forms and where payloads lie; knows nothing of what a payload means.

Source: docs/formats/tenbin.md, "Chunks" and "Aligned chunks".
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorcom.errors import TenbinError
from tensorcom.tenbin.layout import ALIGNED_MAGIC, MAGIC, byte_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ALIGNMENT = 64
HEAD_BYTES = 16
_RESERVED = bytes(ALIGNMENT - HEAD_BYTES)


class Chunk(NamedTuple):
    """A chunk inside a buffer.

    Attributes:
        start: offset of its magic.
        offset: offset of its payload.
        payload: the payload, a view.
    """

    start: int
    offset: int
    payload: memoryview


class Head(NamedTuple):
    """What the first 16 bytes of a chunk say.

    Attributes:
        nbytes: size of the payload.
        prefix_bytes: bytes from the magic to the payload, 16 or 64.
    """

    nbytes: int
    prefix_bytes: int


def padding_size(nbytes: int) -> int:
    """Return the zero bytes after a payload of `nbytes`."""
    return -nbytes % ALIGNMENT


def chunk_size(nbytes: int, *, aligned: bool = False) -> int:
    """Return the bytes of a whole chunk with a payload of `nbytes`."""
    return (ALIGNMENT if aligned else HEAD_BYTES) + nbytes + padding_size(nbytes)


def encode_prefix(nbytes: int, *, aligned: bool = False) -> bytes:
    """Return what precedes a payload of `nbytes`: 16 bytes, 64 if `aligned`."""
    if aligned:
        return ALIGNED_MAGIC + struct.pack("<q", nbytes) + _RESERVED
    return MAGIC + struct.pack("<q", nbytes)


def encode_chunks(
    parts: Iterable[Any],
    *,
    aligned: bool = False,
    take: Callable[[int], bytearray | memoryview] = bytearray,
) -> bytearray | memoryview:
    """Pack bytes-like objects, one chunk each.

    Args:
        parts: the payloads.
        aligned: write 64-byte prefixes, so that every payload starts at a multiple of 64.
        take: gives the memory for so many bytes; its contents may be undefined.

    Returns:
        The chunks, in what `take` gave; every payload is copied once.

    Raises:
        TenbinError: a part is not bytes-like.
    """
    views = [byte_view(part) for part in parts]
    buffer = take(sum(chunk_size(view.nbytes, aligned=aligned) for view in views))
    position = 0
    with memoryview(buffer) as target:  # a bytearray would copy each payload twice
        for view in views:
            prefix = encode_prefix(view.nbytes, aligned=aligned)
            start = position + len(prefix)
            end = start + view.nbytes
            target[position:start] = prefix
            target[start:end] = view
            position = end + padding_size(view.nbytes)
            target[end:position] = bytes(position - end)
    return buffer


def decode_chunks(buffer: Any) -> list[memoryview]:
    """Return the payloads of a buffer of chunks, of either form.

    Raises:
        TenbinError: the bytes are not whole chunks, at the offset of the chunk at fault.

    Ownership:
        Views of `buffer`.
    """
    return [chunk.payload for chunk in walk(byte_view(buffer))]


def iter_chunks(buffer: Any) -> list[tuple[memoryview, int]]:
    """Return the payloads of a buffer of chunks and the offset at which each starts.

    Raises:
        TenbinError: the bytes are not whole chunks, at the offset of the chunk at fault.

    Ownership:
        Views of `buffer`.
    """
    return [(chunk.payload, chunk.offset) for chunk in walk(byte_view(buffer))]


def walk(view: memoryview) -> Iterator[Chunk]:
    """Yield the chunks of `view`; what follows a fault is never looked at.

    Raises:
        TenbinError: the bytes are not whole chunks, at the offset of the chunk at fault.
    """
    start, total = 0, view.nbytes
    while start < total:
        nbytes, prefix_bytes = parse_head(view[start : start + HEAD_BYTES], start=start)
        offset = start + prefix_bytes
        check_reserved(view[start + HEAD_BYTES : offset], prefix_bytes, start=start)
        check_room(nbytes, total - offset, start=start)
        yield Chunk(start, offset, view[offset : offset + nbytes])
        start = offset + nbytes + padding_size(nbytes)


def parse_head(head: bytes | bytearray | memoryview, *, start: int) -> Head:
    """Read the first 16 bytes of a chunk.

    Args:
        head: 16 bytes, or what is left of the input.
        start: offset of the chunk, for errors.

    Raises:
        TenbinError: no magic, fewer than 16 bytes, or a negative length.
    """
    head = bytes(head)
    magic = head[:8]
    if not any(known.startswith(magic) for known in (MAGIC, ALIGNED_MAGIC)):
        ending = " or the end" if start else ""
        raise TenbinError(f"found {magic!r}, expected {MAGIC!r}{ending}", offset=start)
    if len(head) < HEAD_BYTES:
        raise TenbinError(
            f"chunk is truncated: {len(head)} of the {HEAD_BYTES} bytes before its payload left",
            offset=start,
        )
    nbytes: int = struct.unpack_from("<q", head, 8)[0]
    if nbytes < 0:
        raise TenbinError(f"chunk length {nbytes} is negative", offset=start)
    return Head(nbytes, HEAD_BYTES if magic == MAGIC else ALIGNMENT)


def check_reserved(
    reserved: bytes | bytearray | memoryview, prefix_bytes: int, *, start: int
) -> None:
    """Refuse an aligned chunk whose bytes between length and payload are cut or not zero.

    Raises:
        TenbinError: there are fewer than the prefix needs, or one is not zero.
    """
    expected = prefix_bytes - HEAD_BYTES
    if len(reserved) < expected:
        raise TenbinError(
            f"chunk is truncated: {HEAD_BYTES + len(reserved)} of the {prefix_bytes} bytes before "
            "its payload left",
            offset=start,
        )
    if reserved != _RESERVED[:expected]:
        raise TenbinError("reserved bytes of an aligned chunk are not zero", offset=start)


def check_room(nbytes: int, left: int, *, start: int) -> None:
    """Refuse a chunk that is cut.

    Args:
        nbytes: size of the payload as the chunk says.
        left: bytes from the start of the payload to the end of the input.
        start: offset of the chunk, for errors.

    Raises:
        TenbinError: payload or padding do not fit what is left.
    """
    if nbytes > left:
        raise TenbinError(
            f"chunk is truncated: length {nbytes} exceeds the {left} bytes left", offset=start
        )
    padding = padding_size(nbytes)
    if nbytes + padding > left:
        raise TenbinError(
            f"chunk is truncated: {left - nbytes} of {padding} padding bytes left", offset=start
        )
