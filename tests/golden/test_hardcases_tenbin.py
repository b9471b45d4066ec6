"""Hostile and unusual tenbin files from public bug reports, one test for each id."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tensorcom import tenbin
from tensorcom.errors import TenbinError

ROOT = Path(__file__).parent / "hardcases"


class Pipe:
    """A stream of unknown length."""

    def __init__(self, data):
        self._stream = io.BytesIO(data)

    def read(self, size):
        return self._stream.read(size)


def accept(case):
    """Decode a case in every way; return its arrays and infos after comparing them."""
    path = ROOT / f"{case}.ten"
    data = path.read_bytes()
    results = [
        tenbin.decode_buffer_with_infos(data),
        tenbin.decode_list_with_infos(tenbin.decode_chunks(data)),
        tenbin.read_with_infos(io.BytesIO(data)),
        tenbin.read_with_infos(Pipe(data)),
        tenbin.load_with_infos(path),
        tenbin.load_with_infos(path, mmap=True),
    ]
    for arrays, infos in results:
        assert infos == results[0][1]
        assert [(a.dtype, a.shape, a.tobytes()) for a in arrays] == [
            (a.dtype, a.shape, a.tobytes()) for a in results[0][0]
        ]
    assert tenbin.encode_buffer(*results[0]) == data
    return results[0]


def refusal(call, *args, **options):
    """Return the text of the TenbinError of a call, which may not allocate much."""
    tracemalloc.start()
    try:
        with pytest.raises(TenbinError) as caught:
            call(*args, **options)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    return str(caught.value)


def refuse(case, offset, reason, *, index=None, piped=None):
    """Check the error of every reader; `piped` is that of a stream of unknown length if another."""
    path = ROOT / f"{case}.ten"
    data = path.read_bytes()
    array = "" if index is None else f"array {index} "
    text = f"{array}at byte {offset}: {reason}"
    assert refusal(tenbin.decode_buffer, data) == text
    assert refusal(tenbin.decode_buffer_with_infos, bytearray(data), writable=True) == text
    assert refusal(tenbin.read, io.BytesIO(data)) == text
    assert refusal(tenbin.read, Pipe(data)) == (piped or text)

    for mmap in (False, True):
        assert refusal(tenbin.load, path, mmap=mmap) == f"{path} {text}"


def refuse_list(case, text):
    """Check the error of the frames of a message with the same payloads."""
    frames = tenbin.decode_chunks((ROOT / f"{case}.ten").read_bytes())
    assert refusal(tenbin.decode_list, frames) == text


def test_K01():
    (first, second), infos = accept("K01")
    assert (first.dtype, first.shape, infos) == ("f4", (2, 3), ["", "x"])
    assert first.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert (second.dtype, second.tolist()) == ("u1", [1, 2, 3, 4])


def test_K02():
    refuse("K02", 80, "chunk length -64 is negative")


def test_K03():
    refuse(
        "K03",
        80,
        "chunk is truncated: length 4611686018427387904 exceeds the 64 bytes left",
        piped="array 0 at byte 96: data of 4611686018427387904 bytes, "
        "expected 24 for float32 of shape (2, 3)",
    )


def test_K04():
    refuse("K04", 80, "chunk is truncated: length 24 exceeds the 14 bytes left")


def test_K05a():
    reason = "shape (4294967296, 4294967296) of uint8 exceeds 2**63 - 1 bytes"
    refuse("K05a", 40, reason, index=0)
    refuse_list("K05a", f"array 0 at byte 24: {reason}")


def test_K05b():
    reason = "dimension 0 is -9223372036854775806, expected 0 or more"
    refuse("K05b", 40, reason, index=0)
    refuse_list("K05b", f"array 0 at byte 24: {reason}")


def test_K06a():
    refuse("K06a", 32, "rank -1 is not in 0 to 32", index=0)
    refuse_list("K06a", "array 0 at byte 16: rank -1 is not in 0 to 32")


def test_K06b():
    refuse("K06b", 32, "rank 1000000 is not in 0 to 32", index=0)
    refuse_list("K06b", "array 0 at byte 16: rank 1000000 is not in 0 to 32")


def test_K06c():
    reason = "header of 344 bytes exceeds the 280 bytes of rank 32"
    refuse("K06c", 16, reason, index=0)
    refuse_list("K06c", f"array 0 at byte 0: {reason}")


def test_K07():
    refuse("K07", 16, "unknown dtype code b'O8'", index=0)
    frames = tenbin.decode_chunks((ROOT / "K07.ten").read_bytes())
    assert refusal(tenbin.decode_list, frames[:2]) == "array 0 at byte 0: unknown dtype code b'O8'"
    assert refusal(tenbin.decode_list, frames[2:]) == "array 0 at byte 0: unknown dtype code b'zz'"
    assert not any(tenbin.looks_like_header(frame) for frame in frames)


def test_K08():
    reason = r"info b'\xff\xfe' is not ASCII"
    refuse("K08", 24, reason, index=0)
    refuse_list("K08", f"array 0 at byte 8: {reason}")
    for info, text in [
        ("123456789", "array 0: info '123456789' has 9 characters, at most 8 fit"),
        ("é", "array 0: info 'é' is not ASCII"),
    ]:
        assert refusal(tenbin.encode_buffer, [np.zeros(1)], [info]) == text


def test_K09():
    reason = "header of 20 bytes, expected 8 * (3 + rank)"
    refuse("K09", 16, reason, index=0)
    refuse_list("K09", f"array 0 at byte 0: {reason}")


def test_K10():
    refuse("K10", 160, "header chunk without a data chunk", index=1)
    refuse_list("K10", "array 1: header without data, the last part")


def test_K11():
    reason = "data of 24 bytes, expected 16 for float32 of shape (2, 2)"
    refuse("K11", 96, reason, index=0)
    refuse_list("K11", f"array 0: {reason}")


def test_K12():
    (empty, scalar), _ = accept("K12")
    assert (empty.dtype, empty.shape) == ("f4", (0, 3))
    assert (scalar.dtype, scalar.shape) == ("f4", ())


def test_K13():
    refuse("K13", 160, "found b'tail', expected b'~TenBin~' or the end")


# Scenarios of streams that the codec decides.

GRID = np.arange(12, dtype="f4").reshape(3, 4)


@pytest.mark.parametrize("way", ["buffer", "aligned", "list", "stream"])
def test_B15(way):
    sent = [
        *(GRID.astype(">f4"), np.asfortranarray(GRID), GRID.T, GRID[:, ::2], GRID[::-1]),
        np.broadcast_to(GRID, (2, 3, 4)),
    ]
    if way == "list":
        found = tenbin.decode_list(tenbin.encode_list(sent))
    elif way == "stream":
        stream = io.BytesIO()
        tenbin.write(stream, sent)
        stream.seek(0)
        found = tenbin.read(stream)
    else:
        found = tenbin.decode_buffer(tenbin.encode_buffer(sent, aligned=way == "aligned"))
    for one, other in zip(found, sent, strict=True):
        assert one.dtype == "<f4"
        assert np.array_equal(one, other)


def test_B16():
    names = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
    sent = [np.arange(4).astype(dtype) for dtype in ("?", "u4", "c8", "c16", "S3", *names)]
    for one, other in zip(tenbin.decode_buffer(tenbin.encode_buffer(sent)), sent, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
    for dtype, text in [
        ("M8[s]", "datetime64[s] cannot be sent: send .view('i8'), and the unit as its info"),
        ("O", "object cannot be sent: convert the objects to numbers, or to fixed bytes S<n>"),
        ("i4,i4", "[('f0', '<i4'), ('f1', '<i4')] cannot be sent: "
                  "send each field as an array of its own"),
        ("U2", "<U2 cannot be sent: encode to fixed bytes S<n>, "
               "as np.char.encode(array, 'utf-8') does"),
    ]:  # fmt: skip
        assert refusal(tenbin.encode_list, [np.zeros(2, dtype)]) == f"array 0: {text}"


def test_B17():
    sent = [np.array(3, "f4"), np.empty((0, 4)), np.empty((4, 0, 2))]
    found = tenbin.decode_buffer(tenbin.encode_buffer(sent))
    assert [array.shape for array in found] == [(), (0, 4), (4, 0, 2)]
    assert found[0] == 3


def test_B13():
    # No array of 2 GiB is made: a broadcast one has its shape but takes one byte.
    huge = np.broadcast_to(np.zeros(1, "u1"), (2**33,))
    assert tenbin.encoded_size([huge]) == 2**33 + 160 - 64
    header = tenbin.decode_header(tenbin.encode_header(huge.dtype, huge.shape))
    assert header.nbytes == 2**33
