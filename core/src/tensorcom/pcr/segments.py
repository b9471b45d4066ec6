"""The segments of a JPEG file.

Owns how markers, lengths and entropy-coded data follow each other; knows nothing of what is in a
segment.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from tensorcom.errors import JpegError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SEGMENTS = 20_000

_UNKNOWN = frozenset([*range(0x02, 0xC0), 0xC8, 0xDE, 0xDF, *range(0xF0, 0xFE)])
# One byte of look-ahead each, so that no run of bytes is read twice.
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_SCAN_END = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


class Marker(IntEnum):
    """Second bytes of markers."""

    TEM = 0x01
    DHT = 0xC4
    SOI = 0xD8
    EOI = 0xD9
    SOS = 0xDA
    DQT = 0xDB
    DRI = 0xDD
    APP0 = 0xE0
    APP1 = 0xE1
    APP2 = 0xE2
    APP13 = 0xED
    APP14 = 0xEE
    COM = 0xFE


class Segment(NamedTuple):
    """A marker and what belongs to it.

    Attributes:
        marker: second byte of the marker.
        at: offset of the marker's 0xFF.
        start: offset of the payload, after the length.
        stop: offset past the payload.
        end: offset past everything: of SOS, past its entropy-coded data.
    """

    marker: int
    at: int
    start: int
    stop: int
    end: int


def segments(data: bytes, *, path: str | None = None) -> Iterator[Segment]:
    """Yield the segments after SOI up to EOI, or to the end of the data if EOI is missing.

    What lies between segments is passed over, as libjpeg does; the offsets tell.

    Raises:
        JpegError: a segment has no room, or there are more than `MAX_SEGMENTS`.
    """
    position = 2
    for _ in range(MAX_SEGMENTS):
        found = _MARKER.search(data, position)
        if found is None:
            return
        at, start = found.span()
        marker = data[at + 1]
        if marker == Marker.EOI:
            yield Segment(marker, at, start, start, start)
            return
        if marker == Marker.TEM or 0xD0 <= marker <= 0xD7:  # stand alone
            position = start
            continue
        if marker == Marker.SOI or marker in _UNKNOWN:
            name = "second SOI" if marker == Marker.SOI else f"unknown marker 0x{marker:02X}"
            raise JpegError(f"{name}, expected a segment of a JPEG", path=path, offset=at)
        length = int.from_bytes(data[start : start + 2], "big")
        stop = position = start + length
        if stop > len(data) or start + 2 > len(data):
            left = len(data) - start
            reason = f"truncated: segment 0x{marker:02X} of {length} bytes has {left} left"
            raise JpegError(reason, path=path, offset=at)
        if length < 2:
            reason = f"segment 0x{marker:02X} has length {length}, expected 2 or more"
            raise JpegError(reason, path=path, offset=at)
        if marker == Marker.SOS:
            last = _SCAN_END.search(data, stop)
            position = last.start() if last else len(data)
        yield Segment(marker, at, start + 2, stop, position)
    raise JpegError(f"more than {MAX_SEGMENTS} segments", path=path)
