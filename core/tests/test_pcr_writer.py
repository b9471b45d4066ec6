"""PcrWriter: what is added comes out again, in records; a failure leaves no half of anything."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from convert_helpers import contents, converted, jpeg, samples_of
from jpeg_helpers import picture, saved

from tensorcom import SourceError
from tensorcom.errors import JpegError, PcrError, PcrFormatError, PcrIndexError, PcrWriteError
from tensorcom.pcr import PcrReader, record
from tensorcom.pcr.scripts import load_script
from tensorcom.pcr.writer import PcrWriter

COUNT = 7


def write(root, count=COUNT, **options) -> None:
    with PcrWriter(root, **{"images_per_record": 3, **options}) as writer:
        for number in range(count):
            writer.add(jpeg(number), number % 2, name=f"{number}.jpg")


def test_what_is_written_is_read(tmp_path) -> None:
    write(tmp_path / "set", class_names=["cat", "dog"])
    assert samples_of(tmp_path / "set") == [
        (f"{number}.jpg", number % 2, converted(jpeg(number))) for number in range(COUNT)
    ]
    with PcrReader(tmp_path / "set") as reader:
        assert reader.class_names == ("cat", "dog")
        assert [info.samples for info in reader.records] == [3, 3, 1]
        assert reader.manifest.images_per_record == 3
        assert reader.manifest.source_bytes == sum(len(jpeg(n)) for n in range(COUNT))
        assert reader.sample(4)[0] == converted(jpeg(4))
    assert set(contents(tmp_path / "set")) == {
        *(f"PCR_{number}.pcr" for number in range(3)),
        "PCR_index.pb",
        "PCR_manifest.json",
        "PCR_samples.ten",
    }


def test_a_full_last_record_is_the_last(tmp_path) -> None:
    write(tmp_path, 6)
    with PcrReader(tmp_path) as reader:
        assert [info.samples for info in reader.records] == [3, 3]


def test_notes_and_orientation_are_kept(tmp_path) -> None:
    exif = picture().getexif()
    exif[0x0112] = 6
    with PcrWriter(tmp_path) as writer:
        assert writer.add(saved(picture(), exif=exif), np.int32(0)) == ("dropped EXIF",)
        assert writer.add(memoryview(jpeg(1)), 5) == ()
    with PcrReader(tmp_path) as reader:
        assert reader._samples.orient.tolist() == [6, 0]
        assert reader.name(0) == ""
        assert reader.class_names == ("0", "1", "2", "3", "4", "5")


@pytest.mark.parametrize("script", ["fast", load_script("balanced")], ids=["fast", "balanced"])
def test_other_scripts(tmp_path, script) -> None:
    write(tmp_path, script=script)
    with PcrReader(tmp_path) as reader:
        assert reader.script == (load_script(script) if isinstance(script, str) else script)
        assert reader.scan_groups == reader.script.groups


def test_the_older_index_is_written_if_asked_for(tmp_path) -> None:
    write(tmp_path, sqlite_index=True)
    assert "PCR.db" in contents(tmp_path)


def test_a_bad_image_or_label_leaves_the_set_as_it_was(tmp_path) -> None:
    with PcrWriter(tmp_path, class_names=["a"], images_per_record=2) as writer:
        writer.add(jpeg(0), 0, name="0")
        with pytest.raises(JpegError, match=r"bad\\xff\.jpg: is PNG, expected JPEG"):
            writer.add(b"\x89PNG\r\n\x1a\n", 0, name="bad\udcff.jpg")
        with pytest.raises(JpegError, match="image 1: file is empty"):
            writer.add(b"", 0)
        with pytest.raises(SourceError, match="image 1: label is 1, expected at most 0"):
            writer.add(jpeg(1), 1)
        writer.add(jpeg(2), 0, name="2")
        writer.add(jpeg(3), 0, name="3")
        assert writer.images == 3
    assert [name for name, _, _ in samples_of(tmp_path)] == ["0", "2", "3"]


def test_damaged_images_are_taken_if_asked_for(tmp_path) -> None:
    cut = saved(picture())[:-300]
    with PcrWriter(tmp_path, lenient=True) as writer:
        (*_, note) = writer.add(cut, 0)
    assert note.startswith("truncated, kept what can be decoded")
    with PcrWriter(tmp_path, force=True) as writer:
        with pytest.raises(JpegError, match="truncated"):
            writer.add(cut, 0)
        writer.add(jpeg(0), 0)


def test_a_set_is_unfinished_until_it_is_closed(tmp_path) -> None:
    writer = PcrWriter(tmp_path, images_per_record=1)
    writer.add(jpeg(0), 0)
    writer.add(jpeg(1), 0)
    assert "PCR_0.pcr" in contents(tmp_path)
    with pytest.raises(PcrIndexError, match="unfinished"):
        PcrReader(tmp_path)
    with pytest.raises(PcrWriteError, match="another process is writing"):
        PcrWriter(tmp_path, force=True)
    writer.close()
    writer.close()
    writer.abort()
    assert len(samples_of(tmp_path)) == 2
    with pytest.raises(PcrError, match="writer is closed"):
        writer.add(jpeg(2), 0)


def test_an_exception_removes_what_was_written_and_nothing_else(tmp_path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(KeyboardInterrupt), PcrWriter(tmp_path, images_per_record=1) as writer:
        for number in range(3):
            writer.add(jpeg(number), 0)
        raise KeyboardInterrupt
    assert set(contents(tmp_path)) == {"mine.txt"}
    writer.abort()


def test_a_set_that_is_there_is_refused_or_replaced(tmp_path) -> None:
    write(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(PcrWriteError, match="holds a set; force=True"):
        PcrWriter(tmp_path)
    assert contents(tmp_path) == before
    write(tmp_path, 2, force=True)
    assert len(samples_of(tmp_path)) == 2
    assert "PCR_2.pcr" not in contents(tmp_path)


def test_a_set_of_no_image_is_an_error(tmp_path) -> None:
    with pytest.raises(PcrError, match="no image was added"), PcrWriter(tmp_path):
        pass
    assert contents(tmp_path) == {}


def test_a_full_disk_is_named_and_room_lets_the_set_be_finished(tmp_path, monkeypatch) -> None:
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = PcrWriter(tmp_path, images_per_record=2)
    writer.add(jpeg(0), 0)
    writer.add(jpeg(1), 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for _ in range(2):
            with pytest.raises(PcrWriteError, match=r"PCR_0\.pcr: cannot be written: No space"):
                writer.add(jpeg(2), 0)
    writer.add(jpeg(2), 0)
    writer.close()
    assert [image for _, _, image in samples_of(tmp_path)] == [
        converted(jpeg(number)) for number in range(3)
    ]


def test_X06_a_record_over_the_limit_is_refused_and_the_set_goes_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tensorcom.pcr.assemble.MAX_PART_BYTES", 3000)
    monkeypatch.setattr(record, "MAX_PART_BYTES", 3000)
    with PcrWriter(tmp_path) as writer:
        writer.add(jpeg(0), 0)
        with pytest.raises(PcrError, match=r"of 2 images has \d+ bytes.*put fewer images into a"):
            writer.add(saved(picture("RGB", 400, 500)), 0)
        writer.add(jpeg(1), 0)
    assert len(samples_of(tmp_path)) == 2


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"images_per_record": 0}, ValueError, "images_per_record=0, expected at least 1"),
        ({"class_names": "ab"}, ValueError, "class_names='ab', expected a sequence of names"),
        ({"script": "none"}, PcrFormatError, "is neither a scan script"),
    ],
)
def test_wrong_arguments_touch_nothing(tmp_path, options, error, reason) -> None:
    with pytest.raises(error, match=reason):
        PcrWriter(tmp_path / "set", **options)
    assert not (tmp_path / "set").exists()
