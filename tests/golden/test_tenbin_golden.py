"""Files of the original program decode, and come out again byte for byte; its live peer agrees."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
import webdataset.tenbin as peer

from tensorcom import tenbin

ROOT = Path(__file__).parent / "tenbin"
EXPECTED = json.loads((ROOT / "expected.json").read_text())
PEER_DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u8"]


def describe(arrays, infos):
    return [
        {
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "info": info,
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
        }
        for array, info in zip(arrays, infos, strict=True)
    ]


def test_every_golden_file_is_tested():
    assert {path.stem for path in ROOT.glob("*.ten")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_golden_files_decode(name):
    path = ROOT / f"{name}.ten"
    data = path.read_bytes()
    chunks = tenbin.decode_chunks(data)
    for found in (
        tenbin.decode_buffer_with_infos(data),
        tenbin.decode_list_with_infos(chunks),
        tenbin.read_with_infos(io.BytesIO(data)),
        tenbin.load_with_infos(path),
        tenbin.load_with_infos(path, mmap=True),
    ):
        assert describe(*found) == EXPECTED[name]
    assert all(tenbin.looks_like_header(chunk) for chunk in chunks[::2])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_golden_files_are_encoded_byte_for_byte(name, tmp_path):
    data = (ROOT / f"{name}.ten").read_bytes()
    arrays, infos = tenbin.decode_buffer_with_infos(data)
    stream = io.BytesIO()
    tenbin.write(stream, arrays, infos)
    tenbin.save(tmp_path / "a.ten", *arrays, infos=infos)
    assert tenbin.encode_buffer(arrays, infos) == data
    assert tenbin.encode_chunks(tenbin.encode_list(arrays, infos)) == data
    assert stream.getvalue() == data
    assert (tmp_path / "a.ten").read_bytes() == data


def test_literal_buffer():
    assert tenbin.encode_buffer([np.array([[1, 2], [3, 4]], ">i2")], ["x"]) == (
        # header chunk
        b"~TenBin~" + b"\x28\0\0\0\0\0\0\0"
        # dtype code, info, rank, two dimensions, padding
        + b"i2\0\0\0\0\0\0" + b"x\0\0\0\0\0\0\0" + b"\2\0\0\0\0\0\0\0"
        + b"\2\0\0\0\0\0\0\0" + b"\2\0\0\0\0\0\0\0" + bytes(24)
        # data chunk
        + b"~TenBin~" + b"\x08\0\0\0\0\0\0\0"
        + b"\1\0\2\0\3\0\4\0" + bytes(56)
    )  # fmt: skip


# The peer cannot read 0-d arrays, its own included.
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (0, 3), (1,) * 9])
@pytest.mark.parametrize("code", PEER_DTYPES)
def test_the_peer_reads_ours(code, shape):
    arrays = [np.arange(np.prod(shape)).reshape(shape).astype(code), np.ones(70, "u1")]
    found, infos = peer.decode_buffer(tenbin.encode_buffer(arrays, ["ab", "12345678"]), infos=True)
    assert infos == ["ab", "12345678"]
    for one, other in zip(found, arrays, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (0, 3), (), (1,) * 9])
@pytest.mark.parametrize("code", PEER_DTYPES)
def test_we_read_the_peers(code, shape):
    arrays = [np.arange(np.prod(shape)).reshape(shape).astype(code), np.ones(70, "u1")]
    found, infos = tenbin.decode_buffer_with_infos(peer.encode_buffer(arrays, ["ab", ""]))
    assert infos == ["ab", ""]
    for one, other in zip(found, arrays, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.array_equal(one, other)


def test_files_of_each_are_read_by_the_other(tmp_path):
    arrays = [np.arange(24, dtype="f4").reshape(2, 3, 4), np.arange(70, dtype="i8")]
    tenbin.save(tmp_path / "ours.ten", *arrays)
    peer.save(str(tmp_path / "theirs.ten"), *arrays, infos=["", ""])
    assert (tmp_path / "ours.ten").read_bytes() == (tmp_path / "theirs.ten").read_bytes()
    for found in (
        peer.load(str(tmp_path / "ours.ten")),
        tenbin.load(tmp_path / "theirs.ten", mmap=True),
    ):
        assert all(np.array_equal(one, two) for one, two in zip(found, arrays, strict=True))


def test_uint32_is_ours_alone():
    # the original misspells the name in its table and so cannot send it
    array = np.arange(3, dtype="u4")
    with pytest.raises(ValueError, match="unsupported"):
        peer.encode_buffer([array])
    assert tenbin.decode_buffer(tenbin.encode_buffer([array]))[0].dtype == "u4"
