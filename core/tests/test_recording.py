"""Recordings: what was written comes back, any tenbin reader opens it, damage is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tensorcom import Message, Meta, SourceError, TenbinError, tenbin
from tensorcom.recording import RecordingWriter, read_recording


def message(number: int) -> Message:
    arrays = [np.full((2, 3), number, "f4"), np.arange(2, dtype="i4")]
    return Message(arrays, ["image", "cls"], b"cat", Meta(source="a", seq=number, extra={"x": 1}))


def record(path, count: int = 3) -> None:
    with RecordingWriter(path) as writer:
        for number in range(count):
            writer.write(message(number))


def test_messages_come_back(tmp_path) -> None:
    record(tmp_path / "a.ten")
    found = list(read_recording(tmp_path / "a.ten"))
    assert [m.meta for m in found] == [message(n).meta for n in range(3)]
    assert [m.topic for m in found] == [b"cat"] * 3
    assert [m.infos for m in found] == [["image", "cls"]] * 3
    np.testing.assert_array_equal(found[2].arrays[0], message(2).arrays[0])


def test_any_tenbin_reader_opens_it(tmp_path) -> None:
    record(tmp_path / "a.ten", 1)
    arrays, infos = tenbin.load_with_infos(tmp_path / "a.ten")
    assert infos == ["~message", "image", "cls"]
    assert json.loads(arrays[0].tobytes())["arrays"] == 2


def test_plain_files_are_read_in_groups(tmp_path) -> None:
    tenbin.save(tmp_path / "a.ten", *[np.full(2, n, "i4") for n in range(4)])
    found = list(read_recording(tmp_path / "a.ten", arrays_per_message=2))
    assert [[int(a[0]) for a in m.arrays] for m in found] == [[0, 1], [2, 3]]
    with pytest.raises(SourceError, match="has 1 arrays before the end, expected 3"):
        list(read_recording(tmp_path / "a.ten", arrays_per_message=3))


def test_the_name_appears_when_closed(tmp_path) -> None:
    with RecordingWriter(tmp_path / "a.ten") as writer:
        writer.write(message(0))
        assert not (tmp_path / "a.ten").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a.ten"]


def test_an_exception_leaves_nothing(tmp_path) -> None:
    with pytest.raises(KeyError), RecordingWriter(tmp_path / "a.ten"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "text"), [("a.bin", "ends in .ten"), ("no/dir/a.ten", "cannot be written: No such")]
)
def test_bad_names_are_errors(tmp_path, path, text) -> None:
    with pytest.raises(SourceError, match=text):
        RecordingWriter(tmp_path / path)


def test_a_cut_file_is_an_error_with_its_name(tmp_path) -> None:
    record(tmp_path / "a.ten")
    data = (tmp_path / "a.ten").read_bytes()
    (tmp_path / "b.ten").write_bytes(data[:-70])
    with pytest.raises(TenbinError, match=r"b\.ten"):
        list(read_recording(tmp_path / "b.ten"))
    whole = len(tenbin.encode_buffer(message(0).arrays[:1]))
    last = len(tenbin.encode_buffer(message(0).arrays[1:]))
    (tmp_path / "c.ten").write_bytes(data[:-last])
    assert whole
    with pytest.raises(SourceError, match="has 1 arrays before the end, expected 2"):
        list(read_recording(tmp_path / "c.ten"))


@pytest.mark.parametrize(
    "head",
    [
        b"junk",
        b"[]",
        b"[" * 100_000,
        b'{"arrays": -1, "topic": "", "meta": {}}',
        b'{"arrays": 1e999, "topic": "", "meta": {}}',
        b'{"arrays": 1}',
    ],
    ids=["junk", "list", "deep", "negative", "infinite", "short"],
)
def test_a_damaged_head_is_an_error(tmp_path, head) -> None:
    tenbin.save(tmp_path / "a.ten", np.frombuffer(head, np.uint8), infos=["~message"])
    with pytest.raises(SourceError, match="message at byte 0 is damaged"):
        list(read_recording(tmp_path / "a.ten"))


def test_a_missing_file_is_an_error(tmp_path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        list(read_recording(tmp_path / "none.ten"))
