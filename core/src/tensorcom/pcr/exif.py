"""The orientation in EXIF data.

Owns the few fields of TIFF that it takes to find one tag, and whether those fields are sound;
trusts no offset.
"""

from __future__ import annotations

from typing import Literal

_ORDERS: dict[bytes, Literal["little", "big"]] = {b"II*\0": "little", b"MM\0*": "big"}
_TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)  # by TIFF type
_ORIENTATION = 0x0112


def read_orientation(tiff: bytes) -> tuple[int, bool]:
    r"""Find the orientation in the TIFF data of an EXIF segment.

    Args:
        tiff: what follows `Exif\0\0`.

    Returns:
        The orientation, 1 to 8, or 0 if there is none; and whether the fields of the first
        directory lie within the data.
    """
    order = _ORDERS.get(tiff[:4])
    if order is None:
        return 0, False
    start = int.from_bytes(tiff[4:8], order)
    if not 8 <= start <= len(tiff) - 2:
        return 0, False
    count = int.from_bytes(tiff[start : start + 2], order)
    room = (len(tiff) - start - 2) // 12
    orientation, intact = 0, count <= room
    for index in range(min(count, room)):
        entry = tiff[start + 2 + 12 * index : start + 14 + 12 * index]
        tag, kind = int.from_bytes(entry[:2], order), int.from_bytes(entry[2:4], order)
        size = int.from_bytes(entry[4:8], order) * (_TYPE_BYTES[kind] if kind < 13 else 1)
        if size > 4 and int.from_bytes(entry[8:], order) + size > len(tiff):
            intact = False
        if tag == _ORIENTATION and kind == 3:
            value = int.from_bytes(entry[8:10], order)
            orientation = value if value <= 8 else 0
    return orientation, intact
