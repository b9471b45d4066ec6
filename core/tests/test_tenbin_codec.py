"""Lists of frames and buffers of chunks: round trips, ownership and malformed input."""

from __future__ import annotations

import io
import math
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorcom import tenbin
from tensorcom.arrays import EXTENDED_NAMES, PLAIN_NAMES, extended_dtype
from tensorcom.errors import TenbinError

DTYPES = [
    *(np.dtype(name).newbyteorder(order) for name in sorted(PLAIN_NAMES) for order in "<>"),
    *(extended_dtype(name) for name in sorted(EXTENDED_NAMES)),
    *(np.dtype("S1"), np.dtype("S5")),
]
LAYOUTS = {
    "contiguous": lambda a: a,
    "fortran": np.asfortranarray,
    "transposed": np.transpose,
    "strided": lambda a: a[..., ::2] if a.ndim else a,
    "reversed": lambda a: a[::-1] if a.ndim else a,
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "sliced": lambda a: a[1:] if a.ndim else a,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "unaligned": lambda a: np.ndarray(a.shape, a.dtype, b"x" + a.tobytes(), 1),
}
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def valid(dtype, raw):
    """Return `raw` as bytes that `dtype` may hold: a bool is 0 or 1."""
    return bytearray(byte & 1 for byte in raw) if dtype.kind == "b" else bytearray(raw)


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=6)))
    size = math.prod(shape) * dtype.itemsize
    seed = draw(st.binary(min_size=1, max_size=40))
    raw = (seed * (size // len(seed) + 1))[:size]
    array = np.ndarray(shape, dtype, valid(dtype, raw))
    return LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](array)


def plain_bytes(array):
    """Little-endian C-order bytes, element by element, without the code under test."""
    wide = array.dtype.newbyteorder("<") if array.dtype.name in PLAIN_NAMES else array.dtype
    elements = (np.asarray(array[where]) for where in np.ndindex(array.shape))
    return b"".join(element.astype(wide).tobytes() for element in elements)


def assert_same(found, sent):
    assert len(found) == len(sent)
    for one, other in zip(found, sent, strict=True):
        assert one.shape == other.shape
        assert one.dtype.name == other.dtype.name
        assert one.dtype.byteorder in "|=<"
        assert one.tobytes() == plain_bytes(other)


@UNTIMED
@given(st.lists(arrays(), max_size=4), st.booleans(), st.data())
def test_round_trips(sent, aligned, data):
    info = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=8)
    infos = data.draw(st.lists(info, min_size=len(sent), max_size=len(sent)))
    parts = tenbin.encode_list(sent, infos)
    buffer = tenbin.encode_buffer(sent, infos, aligned=aligned)
    stream = io.BytesIO()
    tenbin.write(stream, sent, infos, aligned=aligned)
    assert stream.getvalue() == buffer == tenbin.encode_chunks(parts, aligned=aligned)
    assert len(buffer) == tenbin.encoded_size(sent, aligned=aligned)
    assert tenbin.decode_chunks(buffer) == parts
    stream.seek(0)
    for found, labels in (
        tenbin.decode_list_with_infos(parts),
        tenbin.decode_buffer_with_infos(buffer),
        tenbin.decode_buffer_with_infos(bytes(buffer), writable=True),
        tenbin.read_with_infos(stream),
    ):
        assert labels == infos
        assert_same(found, sent)
    again = tenbin.encode_buffer(tenbin.decode_buffer(buffer), infos, aligned=aligned)
    assert again == buffer


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_in_every_layout(dtype, layout):
    raw = valid(dtype, bytes(range(64)) * dtype.itemsize)
    for shape in [(), (0,), (5,), (3, 4), (4, 0, 2), (2, 1, 3, 2)]:
        array = LAYOUTS[layout](np.ndarray(shape, dtype, raw))
        assert_same(tenbin.decode_buffer(tenbin.encode_buffer([array])), [array])
        assert_same(tenbin.decode_list(tenbin.encode_list([array])), [array])


def test_nothing():
    assert tenbin.encode_list([]) == []
    assert tenbin.encode_buffer([]) == b""
    assert tenbin.decode_list([]) == []
    assert tenbin.decode_buffer(b"") == []


def test_encoding_does_not_copy_contiguous_arrays():
    array = np.zeros((2, 3), "<f4")
    _, data = tenbin.encode_list([array])
    assert (data.format, data.ndim, data.nbytes) == ("B", 1, 24)
    assert np.shares_memory(np.frombuffer(data, "u1"), array)


def test_0d_stays_0d_in_either_byte_order():
    for dtype in ("<f4", ">f4"):
        (found,) = tenbin.decode_list(tenbin.encode_list([np.array(3, dtype)]))
        assert (found.shape, found[()]) == ((), 3.0)


def test_scalars_and_generators_are_taken():
    found = tenbin.decode_buffer(tenbin.encode_buffer(x for x in (1, True, 0.5, np.int8(3))))
    assert [array.dtype.name for array in found] == ["int64", "bool", "float64", "int8"]


@pytest.mark.parametrize("owner", [bytes, bytearray, lambda b: memoryview(bytearray(b))])
def test_decoded_views_are_read_only_and_not_copied(owner):
    buffer = owner(tenbin.encode_buffer([np.arange(6)]))
    (found,) = tenbin.decode_buffer(buffer)
    assert np.shares_memory(found, np.frombuffer(buffer, "u1"))
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_writable_views_where_the_buffer_is_writable():
    buffer = tenbin.encode_buffer([np.arange(6)])
    (found,) = tenbin.decode_buffer(buffer, writable=True)
    assert np.shares_memory(found, np.frombuffer(buffer, "u1"))
    found[0] = 9
    assert tenbin.decode_buffer(buffer)[0][0] == 9


def test_writable_copies_where_it_is_not():
    buffer = bytes(tenbin.encode_buffer([np.arange(6), np.empty((0, 2))]))
    found, empty = tenbin.decode_buffer(buffer, writable=True)
    assert not np.shares_memory(found, np.frombuffer(buffer, "u1"))
    assert found.flags.writeable
    assert empty.flags.writeable


def test_mixed_frames_may_be_writable():
    head, data = tenbin.encode_list([np.arange(3)])
    (view,) = tenbin.decode_list([head, bytearray(data)], writable=True)
    (copy,) = tenbin.decode_list([head, bytes(data)], writable=True)
    assert view.flags.writeable
    assert copy.flags.writeable


def test_arrays_outlive_what_they_were_decoded_from():
    def decode():
        return tenbin.decode_buffer(bytes(tenbin.encode_buffer([np.arange(1000)])))

    (found,) = decode()
    assert found.sum() == 499500


def test_buffers_of_any_format():
    buffer = tenbin.encode_buffer([np.arange(3)])
    for other in (np.frombuffer(buffer, "<f8"), np.frombuffer(buffer, ">i2"), memoryview(buffer)):
        assert tenbin.decode_buffer(other)[0].tolist() == [0, 1, 2]


def test_iter_chunks_gives_payload_offsets():
    buffer = tenbin.encode_chunks([b"abc", b"", b"x" * 65])
    found = [(bytes(payload), offset) for payload, offset in tenbin.iter_chunks(buffer)]
    assert found == [(b"abc", 16), (b"", 96), (b"x" * 65, 112)]


def test_payload_alignment():
    arrays = [np.zeros(n, "u1") for n in (0, 1, 63, 64, 65)]
    plain = tenbin.iter_chunks(tenbin.encode_buffer(arrays))
    aligned = tenbin.iter_chunks(tenbin.encode_buffer(arrays, aligned=True))
    assert {offset % 16 for _, offset in plain} == {0}
    assert any(offset % 64 for _, offset in plain)
    assert {offset % 64 for _, offset in aligned} == {0}


def test_literal_aligned_chunk():
    assert tenbin.encode_chunks([b"ab"], aligned=True) == (
        b"~TenBnA~" + b"\2\0\0\0\0\0\0\0" + bytes(48) + b"ab" + bytes(62)
    )


def test_both_chunk_forms_in_one_buffer():
    first, second = np.arange(3), np.arange(5.0)
    mixed = tenbin.encode_buffer([first], aligned=True) + tenbin.encode_buffer([second])
    mixed += tenbin.encode_buffer([first], aligned=True)
    assert_same(tenbin.decode_buffer(mixed), [first, second, first])


# infos


def test_infos_when_encoding():
    pair = [np.zeros(1), np.zeros(2)]
    for infos, expected in [
        (None, ["", ""]),
        ("x", ["x", "x"]),
        (("a", "b"), ["a", "b"]),
        (["12345678", ""], ["12345678", ""]),
    ]:
        assert tenbin.decode_list_with_infos(tenbin.encode_list(pair, infos))[1] == expected


@pytest.mark.parametrize(
    ("infos", "text"),
    [
        (["a"], "1 infos for 2 arrays"),
        (["a", "b", "c"], "3 infos for 2 arrays"),
        (["a", "123456789"], "array 1: info '123456789' has 9 characters, at most 8 fit"),
        (["ä", ""], "array 0: info 'ä' is not ASCII"),
        (["", "a\0b"], r"array 1: info 'a\x00b' has a NUL in it"),
        ([1, 2], "array 0: info 1 is a int, expected a str"),
        (3, "infos is a int, expected a string or a sequence of them"),
    ],
)
def test_infos_that_cannot_be_encoded(infos, text):
    for encode in (tenbin.encode_list, tenbin.encode_buffer):
        with pytest.raises(TenbinError) as caught:
            encode([np.zeros(1), np.zeros(2)], infos)
        assert str(caught.value) == text


def test_infos_when_decoding():
    buffer = tenbin.encode_buffer([np.zeros(1), np.zeros(2)], ["a", "b"])
    for infos in (None, False, ["a", "b"], ("a", "b")):
        assert len(tenbin.decode_buffer(buffer, infos)) == 2
        assert len(tenbin.decode_list(tenbin.decode_chunks(buffer), infos)) == 2
        assert len(tenbin.read(io.BytesIO(buffer), infos=infos)) == 2


@pytest.mark.parametrize(
    ("infos", "text"),
    [
        (["a", "c"], "array 1: info 'b', expected 'c'"),
        (["a"], "2 arrays, expected 1 with infos ['a']"),
        ([], "2 arrays, expected 0 with infos []"),
        ("ab", "infos is a str, expected a sequence of strings"),
        (True, "infos is True, expected a sequence of strings: call {}_with_infos"),
    ],
)
def test_infos_that_are_not_expected(infos, text):
    buffer = tenbin.encode_buffer([np.zeros(1), np.zeros(2)], ["a", "b"])
    for name, source in [
        ("decode_buffer", buffer),
        ("decode_list", tenbin.decode_chunks(buffer)),
        ("read", io.BytesIO(buffer)),
    ]:
        with pytest.raises(TenbinError) as caught:
            getattr(tenbin, name)(source, infos=infos)
        assert str(caught.value) == text.format(name)


# what cannot be encoded or decoded


@pytest.mark.parametrize("arrays", [np.zeros((2, 2)), "ab", b"ab"])
def test_a_single_value_is_no_sequence_of_arrays(arrays):
    with pytest.raises(
        TenbinError, match=r"^a (ndarray|str|bytes) is no sequence of arrays: pass \[arr"
    ):
        tenbin.encode_list(arrays)


def test_refused_arrays_are_named_by_index():
    with pytest.raises(TenbinError, match=r"^array 1: object cannot be sent: convert the objects"):
        tenbin.encode_buffer([np.zeros(1), np.array([None])])


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="numpy 1 stops at 32")
def test_rank_33_is_refused():
    with pytest.raises(
        TenbinError, match=r"^array 0: rank 33 exceeds the limit of 32: reshape it$"
    ):
        tenbin.encode_buffer([np.zeros((1,) * 33)])
    assert tenbin.decode_buffer(tenbin.encode_buffer([np.zeros((1,) * 32)]))[0].ndim == 32


HEAD, DATA = (bytes(part) for part in tenbin.encode_list([np.zeros((2, 2), "<f4")]))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([HEAD], "array 0: header without data, the last part"),
        ([HEAD, DATA, HEAD], "array 1: header without data, the last part"),
        (
            [HEAD, DATA[:-1]],
            "array 0: data of 15 bytes, expected 16 for float32 of shape (2, 2)",
        ),
        (
            [HEAD, DATA, HEAD, DATA + b"x"],
            "array 1: data of 17 bytes, expected 16 for float32 of shape (2, 2)",
        ),
        ([DATA, HEAD], "array 0 at byte 0: header of 16 bytes, expected 8 * (3 + rank)"),
        (
            [HEAD, 5],
            "int is no bytes-like object: memoryview: a bytes-like object is required, not 'int'",
        ),
        (HEAD, "a bytes is no list of parts: use decode_buffer"),
    ],
)
def test_malformed_lists(parts, text):
    with pytest.raises(TenbinError) as caught:
        tenbin.decode_list(parts)
    assert str(caught.value) == text


GOOD = bytes(tenbin.encode_buffer([np.zeros((2, 2), "<f4")]))
ALIGNED = bytes(tenbin.encode_buffer([np.zeros((2, 2), "<f4")], aligned=True))


def length(value):
    return struct.pack("<q", value)


@pytest.mark.parametrize(
    ("buffer", "text"),
    [
        (b"x", "at byte 0: found b'x', expected b'~TenBin~'"),
        (b"~TenBax~" + GOOD, "at byte 0: found b'~TenBax~', expected b'~TenBin~'"),
        (b"~Ten", "at byte 0: chunk is truncated: 4 of the 16 bytes before its payload left"),
        (GOOD[:12], "at byte 0: chunk is truncated: 12 of the 16 bytes before its payload left"),
        (GOOD[:16], "at byte 0: chunk is truncated: length 40 exceeds the 0 bytes left"),
        (GOOD[:60], "at byte 0: chunk is truncated: 4 of 24 padding bytes left"),
        (GOOD[:80], "array 0 at byte 0: header chunk without a data chunk"),
        (GOOD[:111], "at byte 80: chunk is truncated: length 16 exceeds the 15 bytes left"),
        (GOOD[:-1], "at byte 80: chunk is truncated: 47 of 48 padding bytes left"),
        (GOOD + b"tail", "at byte 160: found b'tail', expected b'~TenBin~' or the end"),
        (
            GOOD + bytes(8),
            "at byte 160: found b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00', "
            "expected b'~TenBin~' or the end",
        ),
        (GOOD[:8] + length(-1), "at byte 0: chunk length -1 is negative"),
        (
            GOOD[:8] + length(0) + GOOD[80:],
            "array 0 at byte 16: header of 0 bytes, expected 8 * (3 + rank)",
        ),
        (
            GOOD[:88] + length(2**62) + GOOD[96:],
            f"at byte 80: chunk is truncated: length {2**62} exceeds the 64 bytes left",
        ),
        (
            GOOD[:88] + length(12) + GOOD[96:],
            "array 0 at byte 96: data of 12 bytes, expected 16 for float32 of shape (2, 2)",
        ),
        (
            GOOD[:88] + length(20) + GOOD[96:],
            "array 0 at byte 96: data of 20 bytes, expected 16 for float32 of shape (2, 2)",
        ),
        (ALIGNED[:30], "at byte 0: chunk is truncated: 30 of the 64 bytes before its payload left"),
        (
            ALIGNED[:40] + b"x" + ALIGNED[41:],
            "at byte 0: reserved bytes of an aligned chunk are not zero",
        ),
        (ALIGNED[:-1], "at byte 128: chunk is truncated: 47 of 48 padding bytes left"),
    ],
)
def test_malformed_buffers(buffer, text):
    for owner in (bytes, bytearray, io.BytesIO):
        with pytest.raises(TenbinError) as caught:
            tenbin.read(owner(buffer)) if owner is io.BytesIO else tenbin.decode_buffer(
                owner(buffer)
            )
        assert str(caught.value) == text
