"""Images that have a script's scans already: taken as they are, without a transcoder.

Owns telling whether a file is laid out as libjpeg writes it, and leaving out its metadata; decodes
nothing, so that damage to the coefficients is not seen here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tensorcom.pcr.jpeg import EOI
from tensorcom.pcr.scripts import groups_of
from tensorcom.pcr.segments import Marker, segments

if TYPE_CHECKING:
    from tensorcom.pcr.jpeg import JpegInfo
    from tensorcom.pcr.scripts import ScanScript

_SOF_PROGRESSIVE = 0xC2
_JFIF = b"JFIF\0"
_NO_JFIF = b"\1\1\0\0\1\0\1"  # version and density that libjpeg writes if the source has none
_ONE_TABLE = {Marker.DQT: (65,), Marker.DHT: range(18, 18 + 256)}
_MARKERS_INSIDE = re.compile(rb"\xff[\xd0-\xd7\xff]")
_LAYOUT = re.compile(rb"\xdb+\xc2(?:\xc4*\xda)+")


def strip_metadata(data: bytes, info: JpegInfo, script: ScanScript) -> bytes | None:
    """Return what a transcode of an image gives, if that takes no more than dropping segments.

    For an image that libjpeg wrote this is byte for byte what jpegtran gives. Another encoder may
    have chosen other Huffman tables; then the scans are the same, but not their bytes.

    Args:
        data: a JPEG.
        info: its structure.
        script: the scans that it should have.

    Returns:
        The image with no segment but JFIF and the tables, or None if it is not gray or YCbCr with
        exactly the script's scans, or not laid out as libjpeg does, or has restart markers or fill
        bytes.
    """
    if info.frame.kind != _SOF_PROGRESSIVE or not info.ycc or not info.has_eoi:
        return None
    if groups_of(info, script) is None:
        return None
    if any(_MARKERS_INSIDE.search(data, scan.data, scan.stop + 1) for scan in info.scans):
        return None
    jfif, kept, layout, end = _NO_JFIF, [], bytearray(), 2
    for segment in segments(data):
        marker, at, start, stop, after = segment
        payload = data[start:stop]
        if at != end:
            return None
        end = after
        if marker == Marker.APP0 and payload[:5] == _JFIF and len(payload) >= 14:
            version = payload[5:7] if payload[5] == 1 else _NO_JFIF[:2]
            jfif = version + payload[7:12]
        elif marker < Marker.APP0 and marker != Marker.EOI:
            if marker in _ONE_TABLE and len(payload) not in _ONE_TABLE[Marker(marker)]:
                return None
            layout.append(marker)
            kept.append(data[at:after])
            if marker == _SOF_PROGRESSIVE and len(info.frame.components) == 1:
                # Sampling factors of one component mean nothing: libjpeg writes 1 x 1.
                kept[-1] = data[at : start + 7] + b"\x11" + data[start + 8 : after]
    if not _LAYOUT.fullmatch(layout):
        return None
    header = b"\xff\xd8\xff\xe0\0\x10" + _JFIF + jfif + b"\0\0"
    return header + b"".join(kept) + EOI
