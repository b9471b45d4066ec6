"""Guard scans: what makes a decoder leave a prefix of a progressive JPEG unsmoothed.

Owns when a guard is exact, and its bytes; decodes nothing.

libjpeg smooths blocks as long as one of the coefficients 1 to 9 of any component is not known to
the last bit. That costs up to half the time of a decode, changes with the library's version, and
gains no fidelity. A guard is one scan more for each component of which coefficients were not sent
at all: it says in some 34 bytes that they are zero, which is what a decoder takes them for anyway.
The pixels are then those of the prefix without smoothing. Coefficients that were sent in part
cannot be guarded; such prefixes stay as they are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tensorcom.errors import JpegError
from tensorcom.pcr.jpeg import EOI, Component, Frame, parse_jpeg
from tensorcom.pcr.segments import Marker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensorcom.pcr.jpeg import Scan
    from tensorcom.pcr.scripts import ScanScript, ScanSpec

_LAST_SMOOTHED = 9
_LONGEST_RUN = 32767
_SOF_PROGRESSIVE = 0xC2
_JFIF = b"\xff\xe0\x00\x10JFIF\0"
_BEFORE_FRAME = frozenset([*range(0xE0, 0xF0), Marker.DQT, Marker.DHT, Marker.COM])

_Bands = tuple[tuple[int, int, int], ...]  # component, first and last coefficient


def guarded(
    jpeg: bytes, *, script: ScanScript | None = None, scan_groups: int | None = None
) -> bytes:
    """Add guard scans to a prefix of a progressive JPEG, where they are exact.

    With `script` and `scan_groups` only the frame header is read and the rest is remembered, which
    takes some 2 us. That is right for the images of a set that was converted to the script. Without
    them the scans are looked for in all bytes: 30 to 100 us.

    Args:
        jpeg: scans joined, with EOI after them.
        script: the script of the set that the image is from.
        scan_groups: how many groups of it were read.

    Returns:
        The image with guards before EOI, or `jpeg` itself if it needs none, or none is exact, or
        it is no progressive JPEG.
    """
    if script is None or scan_groups is None:
        guards = _guards_by_parsing(jpeg)
    elif not _may_guard(script, scan_groups):
        return jpeg
    else:
        guards = _guards_by_script(jpeg, script, scan_groups)
    if not guards or jpeg[-2:] != EOI:
        return jpeg
    return b"".join((memoryview(jpeg)[:-2], guards, EOI))


def _guards_by_parsing(jpeg: bytes) -> bytes:
    try:
        info = parse_jpeg(jpeg)
    except JpegError:
        return b""
    frame = info.frame
    if frame.kind != _SOF_PROGRESSIVE or info.end != len(jpeg) - 2:
        return b""
    bands = _missing(info.scans, len(frame.components))
    return _guard_bytes(frame, bands) if bands else b""


def _guards_by_script(jpeg: bytes, script: ScanScript, scan_groups: int) -> bytes:
    position = 2
    try:
        while (marker := jpeg[position + 1]) != _SOF_PROGRESSIVE:
            if jpeg[position] != 0xFF or marker not in _BEFORE_FRAME:
                return b""
            position += 2 + (jpeg[position + 2] << 8 | jpeg[position + 3])
        stop = position + 2 + (jpeg[position + 2] << 8 | jpeg[position + 3])
    except IndexError:
        return b""
    # libjpeg writes JFIF for YCbCr and gray, and nothing but Adobe's segment for the rest.
    ycc = jpeg[2:11] == _JFIF
    return _frame_guards(jpeg[position + 4 : stop], ycc, script, scan_groups)


@lru_cache(maxsize=4096)
def _frame_guards(
    header: bytes,
    ycc: bool,  # noqa: FBT001 - a key of the cache
    script: ScanScript,
    scan_groups: int,
) -> bytes:
    """Return the guards of images with a frame header."""
    count = header[5] if len(header) > 5 else 0
    if not 1 <= count <= 4 or len(header) != 6 + 3 * count:
        return b""
    components = tuple(
        Component(name, factors >> 4, factors & 15)
        for name, factors in zip(header[6::3], header[7::3], strict=True)
    )
    if not all(component.h and component.v for component in components):
        return b""
    height, width = int.from_bytes(header[1:3], "big"), int.from_bytes(header[3:5], "big")
    frame = Frame(_SOF_PROGRESSIVE, header[0], height, width, components)
    bands = _bands_by_script(script, scan_groups, count, ycc)
    return _guard_bytes(frame, bands) if bands else b""


@lru_cache(maxsize=256)
def _may_guard(script: ScanScript, scan_groups: int) -> bool:
    """Tell whether a prefix of any image of a script can have guards."""
    forms = [(1, True), (3, True), (3, False)]  # of more components as of the last
    return any(_bands_by_script(script, scan_groups, *form) for form in forms)


def _bands_by_script(
    script: ScanScript,
    scan_groups: int,
    components: int,
    ycc: bool,  # noqa: FBT001 - as above
) -> _Bands | None:
    specs = script.scans_of(components, ycc=ycc)
    groups = script.group_of(components, ycc=ycc)
    sent = [spec for spec, group in zip(specs, groups, strict=True) if group < scan_groups]
    return _missing(sent, components)


def _missing(scans: Iterable[Scan | ScanSpec], components: int) -> _Bands | None:
    """Return the bands to guard, or None if a guard of them would not be exact or of no use."""
    left: list[list[int | None]] = [[None] * 64 for _ in range(components)]
    for scan in scans:
        for component in scan.components:
            left[component][scan.ss : scan.se + 1] = [scan.al] * (scan.se + 1 - scan.ss)
    bands: list[tuple[int, int, int]] = []
    for component, bits in enumerate(left):
        smoothed = bits[1 : _LAST_SMOOTHED + 1]
        if bits[0] is None or any(smoothed):  # not smoothed at all, or sent in part
            return None
        bands += ((component, first, last) for first, last in _runs(smoothed))
    return tuple(bands) or None


def _runs(smoothed: Sequence[int | None]) -> list[tuple[int, int]]:
    """Return the runs of coefficients from 1 that were never sent."""
    runs: list[tuple[int, int]] = []
    for index, bits in enumerate(smoothed, 1):
        if bits is None and runs and runs[-1][1] == index - 1:
            runs[-1] = (runs[-1][0], index)
        elif bits is None:
            runs.append((index, index))
    return runs


def _guard_bytes(frame: Frame, bands: _Bands) -> bytes:
    return b"".join(
        _guard_scan(frame.components[component].id, frame.blocks(component), first, last)
        for component, first, last in bands
    )


@lru_cache(maxsize=4096)
def _guard_scan(component_id: int, blocks: int, first: int, last: int) -> bytes:
    """Return a scan that says a band of a component is zero in every block.

    Its data are runs of blocks that end at once (EOBn): n extra bits add to 2**n.
    """
    runs, rest = divmod(blocks, _LONGEST_RUN)
    symbols = [14] * runs + ([rest.bit_length() - 1] if rest else [])
    extra = [(1 << 14) - 1] * runs + ([rest - (1 << symbols[-1])] if rest else [])
    coded = sorted(set(symbols), reverse=True)  # at most two: codes 0 and 10
    codes = dict(zip(coded, ("0", "10"), strict=False))
    pairs = zip(symbols, extra, strict=True)
    bits = "".join(codes[n] + (f"{value:0{n}b}" if n else "") for n, value in pairs)
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    counts = bytes([1, len(coded) - 1]) + bytes(14)
    table = b"\x10" + counts + bytes(n << 4 for n in coded)  # AC table 0
    header = bytes([1, component_id, 0, first, last, 0])
    return b"".join(
        [b"\xff\xc4", (len(table) + 2).to_bytes(2, "big"), table, b"\xff\xda\0\x08", header, data]
    )
