"""Bytes before EOI that no decoder reads: something added, or image data that lost their place?

Owns following the Huffman codes of a sequential scan, without their values, to where its data end;
decodes nothing. libjpeg warns of both in the same words. Where bits of a scan were changed, a
decoder that finds its way back has seen more or fewer blocks than there were; what is left over are
image data, that end as image data do. What was added to a sound file is neither.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import TYPE_CHECKING

from tensorcom.pcr.segments import Marker, segments

if TYPE_CHECKING:
    from tensorcom.pcr.jpeg import Frame, JpegInfo, Scan

# A second or two of Python.
MAX_BYTES = 4 << 20

# For each 16 bits to come: the length and the symbol of the code that they start with.
_Table = list[tuple[int, int] | None]
_Pair = tuple[_Table, _Table]  # of DC and AC
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")


class _LostError(Exception):
    """The bits are no block."""


def find_surplus(data: bytes, info: JpegInfo) -> int | None:
    """Find where the image data of a file end, if what follows up to EOI was added to a sound file.

    Args:
        data: a JPEG of which libjpeg says only that it has extraneous bytes before EOI.
        info: its structure.

    Returns:
        The offset at which the last scan's data end, or None: the bits do not end in the padding
        that the standard asks for, or what follows may be blocks of the image, or the coding is
        none that is followed here (progressive, arithmetic).
    """
    scan = info.scans[-1]
    if info.frame.progressive or info.frame.arithmetic or scan.stop - scan.data > MAX_BYTES:
        return None
    tables, interval = _read_tables(data, scan)
    try:
        pattern, units = _plan(info.frame, scan, data, tables)
    except KeyError:
        return None
    start = scan.data
    if interval:
        restarts = [found.end() for found in _RESTART.finditer(data, start, scan.stop)]
        units -= interval * len(restarts)
        start = restarts[-1] if restarts else start
        if not 0 < units <= interval:
            return None
    raw = data[start : scan.stop]
    stuffed = [found.start() - index for index, found in enumerate(re.finditer(b"\xff\0", raw))]
    bits = _Bits(raw.replace(b"\xff\0", b"\xff"), pattern)
    try:
        end = bits.walk(units * len(pattern))
    except _LostError:
        return None
    # Without a bit of padding nothing tells a sound end.
    if end % 8 == 0 or not bits.is_padding(end) or bits.may_go_on(end):
        return None
    whole = (end + 7) // 8
    return start + whole + bisect_left(stuffed, whole)


def _read_tables(data: bytes, scan: Scan) -> tuple[dict[int, _Table], int]:
    """Return the Huffman tables and the restart interval that hold for a scan."""
    tables: dict[int, _Table] = {}
    interval = 0
    for segment in segments(data):
        payload = data[segment.start : segment.stop]
        if segment.marker == Marker.DRI:
            interval = int.from_bytes(payload[:2], "big")
        elif segment.marker == Marker.DHT:
            while len(payload) > 17:
                count = sum(payload[1:17])
                tables[payload[0]] = _build(payload[1:17], payload[17 : 17 + count])
                payload = payload[17 + count :]
        elif segment.stop == scan.data:
            break
    return tables, interval


def _build(counts: bytes, symbols: bytes) -> _Table:
    if sum(count << (16 - length) for length, count in enumerate(counts, 1)) > 1 << 16:
        return [None] * (1 << 16)
    table: _Table = []
    remaining = iter(symbols)
    for length, count in enumerate(counts, 1):
        for symbol in (next(remaining, 0) for _ in range(count)):
            table += [(length, symbol)] * (1 << (16 - length))
    return table + [None] * ((1 << 16) - len(table))


def _plan(
    frame: Frame, scan: Scan, data: bytes, tables: dict[int, _Table]
) -> tuple[list[_Pair], int]:
    """Return the tables of each block of a unit of the scan, and the number of units."""
    count = len(scan.components)
    selectors = data[scan.data - 3 - 2 * count : scan.data - 3][1::2]
    chosen = [(tables[byte >> 4], tables[0x10 | byte & 15]) for byte in selectors]
    if count == 1:
        return chosen, frame.blocks(scan.components[0])
    pattern: list[_Pair] = []
    for index, pair in zip(scan.components, chosen, strict=True):
        component = frame.components[index]
        pattern += [pair] * (component.h * component.v)
    across = -(-frame.width // (8 * max(c.h for c in frame.components)))
    down = -(-frame.height // (8 * max(c.v for c in frame.components)))
    return pattern, across * down


class _Bits:
    """Entropy-coded bits without stuffing, and the blocks that follow each other in them."""

    def __init__(self, data: bytes, pattern: list[_Pair]) -> None:
        self._data = data + b"\0\0"
        self._pattern = pattern
        self._total = 8 * len(data)

    def walk(self, blocks: int) -> int:
        """Return the position, in bits, after so many blocks from the start."""
        position = 0
        for block in range(blocks):
            position = self._skip(position, self._pattern[block % len(self._pattern)])
        return position

    def is_padding(self, position: int) -> bool:
        """Tell whether the bits up to the next byte are ones, as the standard asks."""
        mask = (1 << (-position % 8)) - 1
        return self._data[(position - 1) >> 3] & mask == mask

    def may_go_on(self, start: int) -> bool:
        """Tell whether what follows is a number of blocks that end where the bytes do."""
        for phase in range(len(self._pattern)):
            position, block = start, phase
            try:
                while self._total - position >= 8:
                    position = self._skip(position, self._pattern[block % len(self._pattern)])
                    block += 1
            except _LostError:
                continue
            if self.is_padding(position):
                return True
        return False

    def _read(self, position: int, table: _Table) -> tuple[int, int]:
        at = position >> 3
        window = int.from_bytes(self._data[at : at + 3], "big") >> (8 - (position & 7))
        entry = table[window & 0xFFFF]
        if entry is None or position >= self._total:
            raise _LostError
        return entry

    def _skip(self, position: int, pair: _Pair) -> int:
        """Return the position after the block that starts at a position."""
        dc, ac = pair
        length, size = self._read(position, dc)
        position += length + size
        index, zeros = 1, False
        while index < 64:
            length, symbol = self._read(position, ac)
            run, size = symbol >> 4, symbol & 15
            position += length + size
            if size == 0 and run < 15:  # end of block
                if zeros:  # no encoder writes zeros before it
                    raise _LostError
                break
            zeros = size == 0
            index += run + 1
        if index > 64 or position > self._total:
            raise _LostError
        return position
