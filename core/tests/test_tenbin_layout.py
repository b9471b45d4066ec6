"""Headers: every byte of them, and every way in which they can be wrong."""

from __future__ import annotations

import array
import struct

import numpy as np
import pytest

from tensorcom.arrays import EXTENDED_NAMES, PLAIN_NAMES, extended_dtype
from tensorcom.errors import TenbinError
from tensorcom.tenbin import MAX_RANK, Header, decode_header, encode_header, looks_like_header
from tensorcom.tenbin.layout import CODES, byte_view, dtype_code


def header(code=b"f4", info=b"", rank=None, dims=(2, 3)):
    rank = len(dims) if rank is None else rank
    return struct.pack(f"<8s8sq{len(dims)}q", code, info, rank, *dims)


def test_literal_bytes():
    assert encode_header(np.dtype(">u2"), (258, 3), "cls") == (
        b"u2\0\0\0\0\0\0cls\0\0\0\0\0\x02\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0"
    )
    assert encode_header(np.dtype("i1"), ()) == b"i1" + bytes(22)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *(("float16", "f2"), ("float32", "f4"), ("float64", "f8")),
        *(("int8", "i1"), ("int16", "i2"), ("int32", "i4"), ("int64", "i8")),
        *(("uint8", "u1"), ("uint16", "u2"), ("uint32", "u4"), ("uint64", "u8")),
        *(("bool", "b1"), ("complex64", "c8"), ("complex128", "c16")),
        *(("bfloat16", "bf2"), ("float8_e4m3fn", "f8e4m3"), ("float8_e5m2", "f8e5m2")),
        *(("S1", "S1"), ("S12", "S12"), ("S9999999", "S9999999")),
    ],
)
def test_codes(name, code):
    dtype = extended_dtype(name) if name in EXTENDED_NAMES else np.dtype(name)
    assert dtype_code(dtype) == code
    found = decode_header(encode_header(dtype, (5, 2), "x"))
    assert found == Header(dtype, (5, 2), "x", 10 * dtype.itemsize)


def test_the_table_holds_what_arrays_may_be():
    assert set(CODES) == PLAIN_NAMES | EXTENDED_NAMES


def test_wire_dtypes_are_little_endian():
    assert decode_header(header(b"i8")).dtype == np.dtype("<i8")


def test_rank_limit():
    shape = (1,) * MAX_RANK
    encoded = encode_header(np.dtype("u1"), shape)
    assert len(encoded) == 280
    assert decode_header(encoded).shape == shape


def test_empty_shapes():
    assert decode_header(header(dims=(2**61 - 1, 0))).nbytes == 0


@pytest.mark.parametrize(
    ("encoded", "offset", "reason"),
    [
        (b"", 1000, "header of 0 bytes, expected 8 * (3 + rank)"),
        (header(dims=())[:16], 1000, "header of 16 bytes, expected 8 * (3 + rank)"),
        (header() + b"\0", 1000, "header of 41 bytes, expected 8 * (3 + rank)"),
        (header(dims=(1,) * 33), 1000, "header of 288 bytes exceeds the 280 bytes of rank 32"),
        (header() + bytes(8), 1000, "header of 48 bytes, expected 40 for rank 2"),
        (header(rank=3), 1000, "header of 40 bytes, expected 48 for rank 3"),
        (header(rank=-1), 1016, "rank -1 is not in 0 to 32"),
        (header(rank=33), 1016, "rank 33 is not in 0 to 32"),
        (header(rank=2**62), 1016, f"rank {2**62} is not in 0 to 32"),
        (header(b""), 1000, "unknown dtype code b''"),
        (header(b"O8"), 1000, "unknown dtype code b'O8'"),
        (header(b"f4\0x"), 1000, r"unknown dtype code b'f4\x00x'"),
        (header(b"\xff\xfe"), 1000, r"unknown dtype code b'\xff\xfe'"),
        (header(b"<f4"), 1000, "unknown dtype code b'<f4'"),
        (header(b"S0"), 1000, "unknown dtype code b'S0'"),
        (header(b"S03"), 1000, "unknown dtype code b'S03'"),
        (header(b"S"), 1000, "unknown dtype code b'S'"),
        (header(b"S1\n"), 1000, r"unknown dtype code b'S1\n'"),
        (header(info=b"\xff"), 1008, r"info b'\xff' is not ASCII"),
        (header(info=b"a\0b"), 1008, r"info b'a\x00b' has a NUL in it"),
        (header(dims=(2, -3)), 1032, "dimension 1 is -3, expected 0 or more"),
        (
            header(dims=(2**61, 1)),
            1024,
            f"shape ({2**61}, 1) of float32 exceeds 2**63 - 1 bytes",
        ),
        (
            header(dims=(2**62, 2**62, 0)),
            1024,
            f"shape ({2**62}, {2**62}, 0) of float32 exceeds 2**63 - 1 bytes",
        ),
    ],
)
def test_malformed_headers(encoded, offset, reason):
    with pytest.raises(TenbinError) as caught:
        decode_header(encoded, offset=1000, index=4)
    assert (caught.value.reason, caught.value.offset) == (reason, offset)
    assert str(caught.value) == f"array 4 at byte {offset}: {reason}"


@pytest.mark.parametrize(
    ("dtype", "shape", "info", "reason"),
    [
        ("f4", (1,) * 33, "", "rank 33 exceeds the limit of 32: reshape it"),
        ("f4", (-1,), "", "dimension 0 is -1, expected 0 to 2**63 - 1"),
        ("f4", (1, 2**63), "", f"dimension 1 is {2**63}, expected 0 to 2**63 - 1"),
        (
            "M8[s]",
            (),
            "",
            "datetime64[s] cannot be sent: send .view('i8'), and the unit as its info",
        ),
        ("f4", (), "123456789", "info '123456789' has 9 characters, at most 8 fit"),
        ("f4", (), "é", "info 'é' is not ASCII"),
        ("f4", (), "a\0", r"info 'a\x00' has a NUL in it"),
        ("f4", (), b"a", "info b'a' is a bytes, expected a str"),
    ],
)
def test_what_cannot_be_encoded(dtype, shape, info, reason):
    with pytest.raises(TenbinError) as caught:
        encode_header(np.dtype(dtype), shape, info, index=1)
    assert (caught.value.reason, caught.value.index) == (reason, 1)


@pytest.mark.parametrize(
    "buffer", [header(), bytearray(header(dims=())), np.frombuffer(header(b"S3"), "<i8")]
)
def test_what_looks_like_a_header(buffer):
    assert looks_like_header(buffer)


@pytest.mark.parametrize(
    "buffer",
    [
        *(b"", b"topic", bytes(24), header() + bytes(8), header(rank=3), header(rank=-1)),
        *(header(b"zz"), bytes(10**6), None, "f4", 3, np.zeros((4, 4))[:, ::2]),
    ],
)
def test_what_does_not_look_like_a_header(buffer):
    assert not looks_like_header(buffer)


@pytest.mark.parametrize(
    "buffer",
    [
        *(b"\1\2\3\4", bytearray(b"\1\2\3\4"), memoryview(b"\1\2\3\4").cast("B", (2, 2))),
        *(np.array([0x04030201], "<i4"), np.array([[0x0102, 0x0304]], ">i2")),
        *(np.array([1, 2, 3, 4], "i1"), array.array("b", [1, 2, 3, 4])),
    ],
)
def test_bytes_of_any_buffer(buffer):
    view = byte_view(buffer)
    assert (view.format, view.ndim, view.tobytes()) == ("B", 1, b"\1\2\3\4")


def test_byte_views_share_memory_and_stay_read_only():
    owner = np.zeros(2, "<i4")
    byte_view(owner)[0] = 5
    assert owner[0] == 5
    owner.flags.writeable = False
    assert byte_view(owner).readonly


def test_an_empty_buffer_of_any_shape():
    assert byte_view(np.empty((3, 0), "f4")).nbytes == 0


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (np.zeros(4, "u1")[::2], "the buffer is not contiguous: pass bytes(buffer)"),
        (
            "text",
            "str is no bytes-like object: memoryview: a bytes-like object is required, not 'str'",
        ),
    ],
)
def test_what_has_no_bytes(buffer, reason):
    with pytest.raises(TenbinError) as caught:
        byte_view(buffer)
    assert str(caught.value) == reason
