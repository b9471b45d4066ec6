"""Conversion: lossless, in order, the same bytes whatever the threads, every odd file told."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from convert_helpers import (
    CLASSES,
    contents,
    converted,
    jpeg,
    make_folder,
    make_shard,
    samples_of,
    shard_members,
)
from jpeg_helpers import TRAIN, coef_digest, picture, saved

from tensorcom.errors import PcrWriteError
from tensorcom.pcr import PcrReader
from tensorcom.pcr.conversion import ConversionReport, convert, job
from tensorcom.pcr.conversion.report import Tally
from tensorcom.pcr.verify import verify

GOLDEN_TRAIN = TRAIN[0].parents[1]


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path / "images")


def test_a_folder_becomes_a_set(folder, tmp_path) -> None:
    report = convert(folder, tmp_path / "set", shuffle=False, images_per_record=5)
    assert samples_of(tmp_path / "set") == [
        (f"{CLASSES[n // 4]}/{n:03}.jpg", n // 4, converted(jpeg(n))) for n in range(12)
    ]
    with PcrReader(tmp_path / "set") as reader:
        assert reader.class_names == CLASSES
        assert [info.samples for info in reader.records] == [5, 5, 2]
        assert reader.manifest.source_bytes == sum(len(jpeg(n)) for n in range(12))
    assert verify(tmp_path / "set", decode=True).is_whole
    files = contents(tmp_path / "set")
    assert set(files) == {
        *(f"PCR_{number}.pcr" for number in range(3)),
        "PCR_index.pb",
        "PCR_manifest.json",
        "PCR_samples.ten",
        "PCR_report.jsonl",
    }
    assert report == ConversionReport(
        root=str(tmp_path / "set"),
        finished=True,
        images=12,
        records=3,
        resumed=0,
        tally=Tally(files=12, source_bytes=sum(len(jpeg(n)) for n in range(12))),
        set_bytes=sum(len(files[f"PCR_{number}.pcr"]) for number in range(3)),
        report=str(tmp_path / "set" / "PCR_report.jsonl"),
    )
    assert files["PCR_report.jsonl"] == b""


def test_coefficients_of_the_photographs_stay(tmp_path) -> None:
    convert(GOLDEN_TRAIN, tmp_path / "set", images_per_record=5)
    found = {name: image for name, _, image in samples_of(tmp_path / "set")}
    assert set(found) == {str(path.relative_to(GOLDEN_TRAIN)) for path in TRAIN}
    for name, image in found.items():
        source = (GOLDEN_TRAIN / name).read_bytes()
        assert coef_digest(image, tmp_path) == coef_digest(source, tmp_path)


def test_bytes_depend_on_neither_threads_nor_runs(folder, tmp_path) -> None:
    options = {"images_per_record": 2, "sqlite_index": True, "seed": 5}
    roots = [tmp_path / name for name in "abc"]
    for root, workers in zip(roots, (1, 4, None), strict=True):
        convert(folder, root, workers=workers, **options)
    assert contents(roots[0]) == contents(roots[1]) == contents(roots[2])
    assert "PCR.db" in contents(roots[0])
    assert samples_of(roots[0]) != samples_of_seed(folder, tmp_path / "d", 6)


def samples_of_seed(folder, root, seed):
    convert(folder, root, images_per_record=2, seed=seed)
    return samples_of(root)


def test_shards_become_a_set(tmp_path) -> None:
    make_shard(tmp_path / "0.tar", shard_members(range(4)))
    make_shard(tmp_path / "1.tgz", shard_members(range(4, 7)))
    shards = [str(tmp_path / "0.tar"), str(tmp_path / "1.tgz")]
    convert(shards, tmp_path / "set", images_per_record=3, class_names=["x", "y", "z"])
    assert samples_of(tmp_path / "set") == [
        (f"{n:03}.jpg", n % 3, converted(jpeg(n))) for n in range(7)
    ]
    with PcrReader(tmp_path / "set") as reader:
        assert reader.class_names == ("x", "y", "z")


def test_plain_shards_can_be_permuted(tmp_path) -> None:
    shard = make_shard(tmp_path / "0.tar", shard_members(range(9)))
    convert(shard, tmp_path / "set", images_per_record=4, shuffle=True)
    expected = [(f"{n:03}.jpg", n % 3, converted(jpeg(n))) for n in range(9)]
    found = samples_of(tmp_path / "set")
    assert found != expected
    assert sorted(found) == expected


def test_an_iterable_becomes_a_set(tmp_path) -> None:
    samples = ((jpeg(n), n, f"{n}") for n in range(5))
    report = convert(samples, tmp_path / "set", images_per_record=2, workers=3)
    assert samples_of(tmp_path / "set") == [(f"{n}", n, converted(jpeg(n))) for n in range(5)]
    assert report.records == 3


def test_other_scripts(folder, tmp_path) -> None:
    convert(folder, tmp_path / "set", script="fast")
    with PcrReader(tmp_path / "set") as reader:
        assert reader.script.name == "fast"


# -- the target --------------------------------------------------------------------------------


def test_a_set_that_is_there_is_refused_or_replaced(folder, tmp_path) -> None:
    root = tmp_path / "set"
    convert(folder, root, images_per_record=2)
    (root / "mine.txt").write_text("mine")
    before = contents(root)
    with pytest.raises(PcrWriteError, match="holds a set; force=True"):
        convert(folder, root, images_per_record=2)
    assert contents(root) == before
    convert(folder, root, images_per_record=100, force=True)
    after = contents(root)
    assert after["mine.txt"] == b"mine"
    assert [name for name in after if name.endswith(".pcr")] == ["PCR_0.pcr"]


@pytest.mark.parametrize("inside", [".", "set", "ant", "ant/deep/set"])
def test_a_target_in_the_source_is_refused(folder, tmp_path, inside) -> None:
    before = sorted(folder.rglob("*"))
    (tmp_path / "link").symlink_to(folder)
    for root in (folder / inside, tmp_path / "link" / inside):
        with pytest.raises(PcrWriteError, match="is in the folder of the images"):
            convert(folder, root, force=True)
    assert sorted(folder.rglob("*")) == before


def test_a_target_beside_the_source_is_none_in_it(folder, tmp_path) -> None:
    convert(folder, f"{folder}-set")
    assert len(samples_of(f"{folder}-set")) == 12


def test_two_converters_do_not_share_a_directory(tmp_path) -> None:
    caught = []

    def samples():
        yield jpeg(0), 0
        with pytest.raises(PcrWriteError, match="another process is writing a set here") as found:
            convert([(jpeg(1), 0)], tmp_path / "set", force=True)
        caught.append(found)

    convert(samples(), tmp_path / "set")
    assert len(caught) == 1
    assert len(samples_of(tmp_path / "set")) == 1


def test_a_full_disk_says_how_to_go_on(folder, tmp_path, monkeypatch) -> None:
    convert(folder, tmp_path / "whole", images_per_record=2)
    writes = []
    write_whole = job.Target.write

    def full(target, name, pieces):
        writes.append(name)
        if name == "PCR_3.pcr" and len(writes) < 12:
            raise PcrWriteError("cannot be written: No space left on device", path=name)
        write_whole(target, name, pieces)

    monkeypatch.setattr(job.Target, "write", full)
    with pytest.raises(PcrWriteError) as caught:
        convert(folder, tmp_path / "set", images_per_record=2)
    assert str(caught.value) == (
        "PCR_3.pcr: cannot be written: No space left on device; finished records stay, and the "
        "same conversion, run again, goes on"
    )
    monkeypatch.undo()
    report = convert(folder, tmp_path / "set", images_per_record=2)
    assert report.resumed == 3
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


# -- memory, progress, arguments ---------------------------------------------------------------


def test_images_in_flight_are_bounded(tmp_path, monkeypatch) -> None:
    """Count scan groups that are alive: of two records, and of what the threads work on."""
    alive, most = 0, 0
    lock = threading.Lock()

    class Counted(bytes):
        def __init__(self, *_):
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)

        def __del__(self):
            nonlocal alive
            with lock:
                alive -= 1

    class Counting(job.Transcoder):
        def transcode(self, data, *, path=None):
            image = super().transcode(data, path=path)
            image.groups[0] = Counted(image.groups[0])
            return image

    write = job.Target.write

    def slowly(target, name, pieces):
        time.sleep(0.01)  # so that records would pile up
        write(target, name, pieces)

    monkeypatch.setattr(job, "Transcoder", Counting)
    monkeypatch.setattr(job.Target, "write", slowly)
    pictures = [jpeg(number) for number in range(5)]
    samples = ((pictures[number % 5], 0) for number in range(400))
    workers, size = 2, 10
    convert(samples, tmp_path / "set", images_per_record=size, workers=workers)
    assert len(samples_of(tmp_path / "set")) == 400
    assert alive == 0
    # A record that is complete waits until the one before it is written.
    assert size <= most <= 2 * size + 4 * workers + 2


def test_progress(folder, tmp_path) -> None:
    seen = []
    convert(folder, tmp_path / "set", on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 12) for number in range(1, 13)]
    seen.clear()
    samples = ((jpeg(0), 0) for _ in range(2))
    convert(samples, tmp_path / "b", on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, None), (2, None)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"images_per_record": 0}, "images_per_record=0, expected at least 1"),
        ({"workers": -1}, "workers=-1, expected at least 1"),
        ({"on_error": "ignore"}, "on_error='ignore', expected 'raise' or 'skip'"),
        ({"reencode": 0}, "reencode=0, expected a quality of 1 to 100"),
        ({"class_names": ["a"]}, "class_names is for shards and iterables"),
    ],
)
def test_wrong_arguments_touch_nothing(folder, tmp_path, options, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        convert(folder, tmp_path / "set", **options)
    assert not (tmp_path / "set").exists()


def test_a_picture_with_exif_keeps_its_orientation_beside_it(tmp_path) -> None:
    exif = picture().getexif()
    exif[0x0112] = 8
    convert([(saved(picture(), exif=exif), 0)], tmp_path / "set")
    with PcrReader(tmp_path / "set") as reader:
        assert reader._samples.orient.tolist() == [8]
