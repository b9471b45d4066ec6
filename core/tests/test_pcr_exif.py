"""Orientation from EXIF data, sound and damaged."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tensorcom.pcr.exif import read_orientation
from tensorcom.pcr.jpeg import parse_jpeg


def directory(*entries: tuple[int, int, int, bytes], order: str = "<", start: int = 8) -> bytes:
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", start)
    body = struct.pack(order + "H", len(entries))
    for tag, kind, count, value in entries:
        body += struct.pack(order + "HHI", tag, kind, count) + value
    return head.ljust(start, b"\0") + body + bytes(4)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_found_in_either_byte_order(order, orientation):
    value = struct.pack(order + "HH", orientation, 0)
    tiff = directory((0x010F, 2, 3, b"abc\0"), (0x0112, 3, 1, value), order=order)
    assert read_orientation(tiff) == (orientation, True)


def test_pillows_exif_is_read():
    exif = Image.Exif()
    exif[0x0112] = 8
    exif[0x010F] = "a maker whose name does not fit"
    stream = io.BytesIO()
    Image.new("L", (8, 8)).save(stream, "JPEG", exif=exif)
    info = parse_jpeg(stream.getvalue())
    assert (info.orientation, info.dropped, info.notes) == (8, ("EXIF",), ())


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_is_none_counts_as_absent(value):
    tiff = directory((0x0112, 3, 1, struct.pack("<HH", value, 0)))
    assert read_orientation(tiff) == (0, True)


def test_an_orientation_of_another_type_counts_as_absent():
    assert read_orientation(directory((0x0112, 4, 1, struct.pack("<I", 6)))) == (0, True)


@pytest.mark.parametrize(
    "tiff",
    [
        b"",
        b"II*\0",
        b"XX*\0\x08\0\0\0\0\0",
        b"II*\0\x07\0\0\0\0\0",
        b"II*\0\xff\xff\xff\xff\0\0",
        directory((0x0112, 3, 1, b"\6\0\0\0"))[:-6],
        directory((0x010F, 2, 5, struct.pack("<I", 1 << 31))),
        directory((0x010F, 5, 1 << 31, bytes(4))),
    ],
)
def test_fields_outside_the_data_are_damage(tiff):
    assert read_orientation(tiff) == (0, False)


def test_orientation_survives_damage_elsewhere():
    tiff = directory((0x010F, 2, 99, b"\xff\xff\0\0"), (0x0112, 3, 1, b"\6\0\0\0"))
    assert read_orientation(tiff) == (6, False)


@given(st.sampled_from([b"II*\0", b"MM\0*", b""]), st.binary(max_size=200))
def test_any_bytes_are_read(order, data):
    orientation, intact = read_orientation(order + data)
    assert 0 <= orientation <= 8
    assert isinstance(intact, bool)
