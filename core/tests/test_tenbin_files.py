"""Streams and `.ten` files: bounded reads, atomic saves, memory maps."""

from __future__ import annotations

import gc
import gzip
import io
import os
import stat
import struct
import threading

import numpy as np
import pytest

from tensorcom import tenbin
from tensorcom.errors import TenbinError

PAIR = [np.arange(6, dtype="<f4").reshape(2, 3), np.arange(5, dtype="u1")]


class Pipe:
    """A stream of unknown length that gives a few bytes at a time."""

    def __init__(self, data, step=7):
        self._stream = io.BytesIO(data)
        self._step = step
        self.largest = 0

    def read(self, size):
        self.largest = max(self.largest, size)
        return self._stream.read(min(size, self._step))


def assert_pair(found):
    assert len(found) == 2
    for one, other in zip(found, PAIR, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


# streams


@pytest.mark.parametrize("aligned", [False, True])
def test_streams_of_every_kind(tmp_path, aligned):
    data = bytes(tenbin.encode_buffer(PAIR, aligned=aligned))
    path = tmp_path / "a.ten"
    path.write_bytes(data)
    with path.open("rb") as buffered, path.open("rb", buffering=0) as raw:
        for stream in (io.BytesIO(data), Pipe(data), buffered, raw):
            assert_pair(tenbin.read(stream))
            assert tenbin.read(stream) == []


def test_writing_is_what_encode_buffer_gives(tmp_path):
    for aligned in (False, True):
        with (tmp_path / "a.ten").open("w+b", buffering=0) as stream:
            tenbin.write(stream, PAIR, ["a", "b"], aligned=aligned)
            stream.seek(0)
            assert stream.read() == tenbin.encode_buffer(PAIR, ["a", "b"], aligned=aligned)


def test_reading_in_parts():
    stream = io.BytesIO(tenbin.encode_buffer([*PAIR, *PAIR], ["a", "b", "c", "d"]))
    assert tenbin.read(stream, 0) == []
    assert tenbin.read_with_infos(stream, 1)[1] == ["a"]
    assert tenbin.read_with_infos(stream, 2)[1] == ["b", "c"]
    assert tenbin.read_with_infos(stream, 9)[1] == ["d"]
    assert tenbin.read_with_infos(stream, 9) == ([], [])


def test_a_negative_count_is_refused():
    with pytest.raises(TenbinError, match=r"^n is -1, expected 0 or more, or None for all$"):
        tenbin.read(io.BytesIO(), -1)


def test_expected_infos_of_a_stream():
    data = tenbin.encode_buffer(PAIR, ["a", "b"])
    assert_pair(tenbin.read(io.BytesIO(data), infos=["a", "b"]))
    with pytest.raises(TenbinError, match=r"^array 0: info 'a', expected 'x'$"):
        tenbin.read(io.BytesIO(data), 1, infos=["x"])


def test_read_arrays_are_their_own_and_writable():
    data = tenbin.encode_buffer([*PAIR, np.empty((0, 3)), np.float32(2)])
    for stream in (io.BytesIO(data), Pipe(bytes(data))):
        for array in tenbin.read(stream):
            assert array.flags.writeable
            array.fill(1)
    assert_pair(tenbin.decode_buffer(data)[:2])


def test_both_chunk_forms_in_one_stream():
    stream = io.BytesIO()
    tenbin.write(stream, PAIR[:1], aligned=True)
    tenbin.write(stream, PAIR[1:])
    assert_pair(tenbin.decode_buffer(stream.getbuffer()))
    stream.seek(0)
    assert_pair(tenbin.read(stream))


def test_nothing_is_written_if_one_array_is_refused():
    stream = io.BytesIO()
    with pytest.raises(TenbinError, match=r"^array 2: object cannot be sent"):
        tenbin.write(stream, [*PAIR, np.array([None])])
    assert stream.getvalue() == b""


def test_compressed_and_piped_streams(tmp_path):
    path = tmp_path / "a.ten.gz"
    with gzip.open(path, "wb") as stream:
        tenbin.write(stream, PAIR)
    with gzip.open(path) as stream:
        assert_pair(tenbin.read(stream))
    source, sink = os.pipe()

    def send():
        with open(sink, "wb", buffering=0) as stream:
            tenbin.write(stream, PAIR)

    sender = threading.Thread(target=send)
    sender.start()
    with open(source, "rb") as stream:
        assert_pair(tenbin.read(stream))
    sender.join()


def test_long_data_is_read_in_bounded_steps():
    data = np.arange(3 << 20, dtype="u4").view("u1")
    pipe = Pipe(bytes(tenbin.encode_buffer([data])), step=1 << 30)
    (found,) = tenbin.read(pipe)
    assert np.array_equal(found, data)
    assert pipe.largest == 1 << 20


def test_a_claimed_length_is_never_asked_for():
    head = tenbin.encode_header(np.dtype("u1"), (2**50,))
    data = bytes(tenbin.encode_chunks([head])) + b"~TenBin~" + struct.pack("<q", 2**50)
    pipe = Pipe(data)
    with pytest.raises(TenbinError) as caught:
        tenbin.read(pipe)
    assert str(caught.value) == (
        f"at byte 80: chunk is truncated: length {2**50} exceeds the 0 bytes left"
    )
    assert pipe.largest == 1 << 20


def test_offsets_are_positions_in_the_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"prelude." + tenbin.encode_buffer(PAIR)[:-1])
    with path.open("rb") as stream:
        stream.seek(8)
        with pytest.raises(
            TenbinError, match=r"^at byte 248: chunk is truncated: 58 of 59 padding"
        ):
            tenbin.read(stream)


class Shrinking(io.BytesIO):
    """A file that another process cuts while it is read."""

    def readinto(self, target):
        return super().readinto(target[:20]) if self.tell() < 96 + 20 else 0


def test_a_file_that_shrinks_is_truncated():
    with pytest.raises(TenbinError) as caught:
        tenbin.read(Shrinking(tenbin.encode_buffer(PAIR[:1])))
    assert str(caught.value) == (
        "at byte 80: chunk is truncated: length 24 exceeds the 20 bytes left"
    )


class Raw(io.RawIOBase):
    """A raw stream that takes at most five bytes, or nothing."""

    def __init__(self, takes):
        self.takes = takes
        self.data = b""

    def writable(self):
        return True

    def write(self, data):
        if self.takes is None:
            return None
        self.data += bytes(data[: self.takes])
        return min(self.takes, len(data))


def test_partial_writes_are_completed():
    stream = Raw(5)
    tenbin.write(stream, PAIR)
    assert stream.data == tenbin.encode_buffer(PAIR)


@pytest.mark.parametrize("takes", [0, None])
def test_a_stream_that_takes_nothing_is_an_error(takes):
    with pytest.raises(
        TenbinError, match=r"^the stream took none of 16 bytes: use a blocking one$"
    ):
        tenbin.write(Raw(takes), PAIR)


def test_a_writer_that_says_nothing_took_all():
    class Collector:
        data = b""

        def write(self, data):
            self.data += bytes(data)

    stream = Collector()
    tenbin.write(stream, PAIR)
    assert stream.data == tenbin.encode_buffer(PAIR)


class NoData:
    def read(self, size):
        return None


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (io.StringIO("~TenBin~"), "the stream gives str: open it in binary mode"),
        (NoData(), "the stream has no data now: use a blocking one"),
    ],
)
def test_streams_that_cannot_be_read(stream, text):
    with pytest.raises(TenbinError) as caught:
        tenbin.read(stream)
    assert str(caught.value) == text


# files


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("mmap", [False, True])
def test_saved_files_load(tmp_path, aligned, mmap):
    path = tmp_path / "a.ten"
    tenbin.save(path, *PAIR, infos=["a", "b"], aligned=aligned)
    assert path.read_bytes() == tenbin.encode_buffer(PAIR, ["a", "b"], aligned=aligned)
    assert_pair(tenbin.load(path, mmap=mmap))
    assert_pair(tenbin.load(str(path), ["a", "b"], mmap=mmap))
    found, infos = tenbin.load_with_infos(path, mmap=mmap)
    assert_pair(found)
    assert infos == ["a", "b"]
    with pytest.raises(TenbinError) as caught:
        tenbin.load(path, ["a"], mmap=mmap)
    assert str(caught.value) == f"{path}: 2 arrays, expected 1 with infos ['a']"
    with pytest.raises(TenbinError, match="call load_with_infos$"):
        tenbin.load(path, True, mmap=mmap)


def test_the_suffix_is_required_unless_told(tmp_path):
    path = tmp_path / "a.bin"
    for use in (lambda **o: tenbin.save(path, *PAIR, **o), lambda **o: tenbin.load(path, **o)):
        with pytest.raises(TenbinError) as caught:
            use()
        assert str(caught.value) == (
            f"{path}: the name does not end in .ten: rename it, or pass nocheck=True"
        )
        use(nocheck=True)
    with pytest.raises(TenbinError, match=r"does not end in \.ten"):
        tenbin.load_with_infos(path)
    assert tenbin.load_with_infos(path, nocheck=True)[1] == ["", ""]


def test_mapped_arrays_are_read_only_and_aligned(tmp_path):
    path = tmp_path / "a.ten"
    tenbin.save(path, *PAIR, np.zeros(100), np.empty(0), aligned=True)
    for array in tenbin.load(path, mmap=True):
        assert not array.flags.writeable
        assert array.__array_interface__["data"][0] % 64 == 0 or not array.size
    tenbin.save(path, *PAIR, np.zeros(100))
    addresses = [a.__array_interface__["data"][0] for a in tenbin.load(path, mmap=True)]
    assert {address % 16 for address in addresses} == {0}


def test_mapped_arrays_keep_the_map_alive(tmp_path):
    path = tmp_path / "a.ten"
    tenbin.save(path, *PAIR)
    found = tenbin.load(path, mmap=True)
    path.unlink()
    gc.collect()
    assert_pair(found)


def test_a_file_can_be_saved_over_its_own_map(tmp_path):
    path = tmp_path / "a.ten"
    tenbin.save(path, *PAIR)
    found = tenbin.load(path, mmap=True)
    tenbin.save(path, *found, np.zeros(3))
    assert_pair(found)
    assert_pair(tenbin.load(path)[:2])


@pytest.mark.parametrize("mmap", [False, True])
def test_an_empty_file_holds_no_arrays(tmp_path, mmap):
    path = tmp_path / "a.ten"
    tenbin.save(path)
    assert path.read_bytes() == b""
    assert tenbin.load(path, mmap=mmap) == []


@pytest.mark.parametrize("mmap", [False, True])
def test_errors_carry_path_offset_and_index(tmp_path, mmap):
    path = tmp_path / "a.ten"
    data = tenbin.encode_buffer(PAIR)
    data[176 : 176 + 8] = b"O8\0\0\0\0\0\0"
    path.write_bytes(data)
    with pytest.raises(TenbinError) as caught:
        tenbin.load(path, mmap=mmap)
    error = caught.value
    assert (error.path, error.offset, error.index) == (str(path), 176, 1)
    assert str(error) == f"{path} array 1 at byte 176: unknown dtype code b'O8'"


def test_missing_files_raise_what_open_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        tenbin.load(tmp_path / "a.ten")
    with pytest.raises(FileNotFoundError):
        tenbin.save(tmp_path / "none" / "a.ten", *PAIR)


def test_a_refused_save_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "a.ten"
    tenbin.save(path, *PAIR)
    with pytest.raises(TenbinError) as caught:
        tenbin.save(path, PAIR)
    assert str(caught.value) == (
        f"{path} array 0: a list is no array: "
        "send np.asarray(value), or its elements as arrays of their own"
    )
    assert os.listdir(tmp_path) == ["a.ten"]
    assert_pair(tenbin.load(path))


def test_a_failed_save_leaves_no_temporary_file(tmp_path, monkeypatch):
    path = tmp_path / "a.ten"
    tenbin.save(path, *PAIR)

    def fail(self, target):
        raise OSError("disk full")

    monkeypatch.setattr(type(path), "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        tenbin.save(path, np.zeros(1))
    assert os.listdir(tmp_path) == ["a.ten"]
    assert_pair(tenbin.load(path))


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_saved_files_have_the_mode_of_the_umask(tmp_path):
    path = tmp_path / ("x" * 251 + ".ten")
    (tmp_path / "other").touch()
    tenbin.save(path, *PAIR)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
