"""`verify` of records: every damage is found, and named by record, group, image and byte."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from pcr_helpers import cut, flip, make_set, small_jpegs, split

from tensorcom.errors import MissingDependencyError
from tensorcom.pcr import PcrReader
from tensorcom.pcr.manifest import INDEX_NAME
from tensorcom.pcr.record import encode_record
from tensorcom.pcr.verify import verify
from tensorcom.pcr.wire import encode_index


@pytest.fixture
def made(tmp_path):
    return make_set(tmp_path / "set")


def ends_of(made, record):
    return np.cumsum(PcrReader(made.root).records[record].parts).tolist()


def found(root, **options):
    return [str(problem) for problem in verify(root, **options).problems]


def only(root, **options):
    problems = verify(root, **options).problems
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


# -- damage in records ------------------------------------------------------------------------


def test_any_changed_byte_of_a_record_is_found(made):
    path = made.file(2)
    ends = ends_of(made, 2)
    for offset in range(0, ends[-1], 29):
        flip(path, offset, 0x10)
        problems = verify(made.root, threads=1).problems
        flip(path, offset, 0x10)
        part = int(np.searchsorted(ends, offset, side="right"))
        checksum = next(problem for problem in problems if "checksum" in problem.reason)
        start = ends[part - 1] if part else 0
        assert (checksum.path, checksum.part, checksum.offset) == ("PCR_2.pcr", part, start)
        assert {problem.path for problem in problems} == {"PCR_2.pcr"}
    assert verify(made.root).is_whole


def test_damage_inside_an_image_names_the_image(made):
    ends = ends_of(made, 1)
    sizes = [len(made.groups[sample][0]) for sample in (3, 4, 5)]
    # The second image's size in its frame header: found by its marker.
    data = made.file(1).read_bytes()
    start = ends[0] + 2 * 3 + sizes[0]
    frame = data.index(b"\xff\xc2", start)
    flip(made.file(1), frame + 4, 0x04)  # precision
    checksum, image = verify(made.root).problems
    assert checksum.part == 1
    assert (image.image, image.sample) == (1, 4)
    assert "precision" in image.reason
    assert str(image).startswith("PCR_1.pcr image 1 (sample 4): precision")


def test_framing_that_is_damaged_names_the_image_and_its_place(made):
    ends = ends_of(made, 0)
    size = len(made.groups[0][4])
    place = ends[4] + 2 + (size > 127) + size
    flip(made.file(0), place, 0x08)
    checksum, framing = verify(made.root).problems
    assert (framing.part, framing.image, framing.sample, framing.offset) == (5, 1, 1, place)
    assert "not framed" in framing.reason
    assert str(framing).startswith(f"PCR_0.pcr group 5 image 1 (sample 1) at byte {place}: ")


def test_a_record_cut_by_one_byte(made):
    size = made.file(2).stat().st_size
    cut(made.file(2))
    problem = only(made.root)
    assert (problem.path, problem.offset) == ("PCR_2.pcr", size - 1)
    assert problem.reason == f"file ends in group 10, expected {size} bytes"


@pytest.mark.parametrize("keep", [0, 3])
def test_a_record_of_which_little_is_left(made, keep):
    made.file(2).write_bytes(made.file(2).read_bytes()[:keep])
    assert "file ends in metadata" in only(made.root).reason


def test_damage_before_a_cut_is_found_too(made):
    ends = ends_of(made, 2)
    flip(made.file(2), ends[2] + 30)
    cut(made.file(2), ends[-1] - ends[7] - 5)
    texts = found(made.root)
    assert f"file ends in group 8, expected {ends[-1]} bytes" in texts[0]
    assert f"group 3 at byte {ends[2]}: checksum" in texts[1]


def test_bytes_after_the_last_group(made):
    size = made.file(0).stat().st_size
    with made.file(0).open("ab") as file:
        file.write(b"tail")
    problem = only(made.root)
    assert (problem.reason, problem.offset) == ("4 bytes after the last group", size)


def test_records_that_are_missing_or_no_files(made):
    made.file(0).unlink()
    made.file(1).unlink()
    made.file(1).mkdir()
    texts = found(made.root)
    assert texts == ["PCR_0.pcr: no such file", "PCR_1.pcr: is no regular file"]
    assert verify(made.root).images == 2


def test_damage_everywhere_is_named_everywhere(made):
    for record in range(3):
        flip(made.file(record), 100)
    assert {text.split()[0] for text in found(made.root)} == {
        "PCR_0.pcr",
        "PCR_1.pcr",
        "PCR_2.pcr",
    }


def test_labels_that_are_not_those_of_the_table(made):
    labels = made.table().labels.copy()
    labels[4] = 2
    made.rewrite_table(labels=labels)
    problem = only(made.root)
    assert (problem.path, problem.part, problem.image, problem.sample) == ("PCR_1.pcr", 0, 1, 4)
    assert problem.reason == "label is 1, but 2 in the table of samples"


def test_sizes_that_are_not_those_of_the_record(made):
    sizes = made.table().sizes.copy()
    sizes[3, 2] += 1
    sizes[4, 2] -= 1
    sizes[7, 0] = -5
    made.rewrite_table(sizes=sizes)
    first, second = verify(made.root).problems
    assert (first.path, first.part, first.image, first.sample) == ("PCR_1.pcr", 3, 0, 3)
    assert (second.path, second.part, second.image, second.sample) == ("PCR_2.pcr", 1, 1, 7)
    assert second.reason == "size is -5 in the table of samples"


def test_scans_in_the_wrong_groups(tmp_path):
    made = make_set(tmp_path / "set")
    images = [list(split(jpeg)) for jpeg in small_jpegs()]
    images[1][1:3] = [images[1][1] + images[1][2], b""]
    images[5][4:6] = [images[5][4] + images[5][5][:9], images[5][5][9:]]
    root = _rewritten(made, images)
    first, second, third = verify(root).problems
    assert (first.path, first.image) == ("PCR_0.pcr", 1)
    assert first.reason == "scans are not in the groups of the script standard"
    assert (second.path, second.part, second.image) == ("PCR_1.pcr", 5, 2)
    assert second.reason == "image's bytes do not end with a scan"
    assert third.image == 2


def _rewritten(made, images):
    """Write a set of the same shape with other bytes, and right checksums."""
    records = [
        encode_record(images[first:stop], list(made.labels[first:stop]))
        for first, stop in zip(made.starts[:-1], made.starts[1:], strict=True)
    ]
    for i, record in enumerate(records):
        made.file(i).write_bytes(b"".join(record.pieces))
    made.rewrite_table(
        sizes=np.concatenate([record.sizes for record in records]),
        parts=np.stack([record.parts for record in records]),
        crc32=np.stack([record.crc32 for record in records]),
    )
    entries = [(p.name, r.parts.tolist()) for p, r in zip(
        map(made.file, range(3)), records, strict=True)]  # fmt: skip
    (made.root / INDEX_NAME).write_bytes(encode_index(*zip(*entries, strict=True)))
    ends = np.cumsum([record.parts for record in records], axis=1).sum(axis=0)
    made.rewrite_manifest(group_bytes=tuple(ends[1:].tolist()))
    return made.root


def test_images_that_are_none(tmp_path):
    images = [list(split(jpeg)) for jpeg in small_jpegs()]
    images[0][0] = b"no JPEG" + images[0][0]
    images[1][0] = b""
    images[2] = [b""] * 10
    images[3][9] += b"\xff\xd9tail"
    problems = verify(_rewritten(make_set(tmp_path / "set"), images)).problems
    reasons = {(p.sample, p.part): p.reason for p in problems}
    assert "no JPEG" in reasons[0, None] or "JPEG" in reasons[0, None]
    assert (1, None) in reasons
    assert (2, None) in reasons
    assert any(sample == 3 for sample, _ in reasons)
    assert {sample for sample, _ in reasons} == {0, 1, 2, 3}


def test_bytes_after_an_image_are_found_without_a_script(tmp_path):
    images = [list(split(jpeg)) for jpeg in small_jpegs()]
    images[3][9] += b"\xff\xd9tail"
    root = _rewritten(make_set(tmp_path / "set"), images)
    for name in ("PCR_manifest.json", "PCR_samples.ten"):
        (root / name).unlink()
    problem = only(root)
    assert (problem.path, problem.image, problem.part) == ("PCR_1.pcr", 0, None)
    assert problem.reason == "scans do not end where the image ends"


def test_of_a_damaged_part_the_images_that_cannot_be_decoded_are_named(made):
    data = bytearray(made.file(2).read_bytes())
    scan = made.groups[6][4]
    place = data.index(scan) + len(scan)
    data[place - 12 : place] = b"\x00" * 12  # codes that are none
    made.file(2).write_bytes(data)
    checksum, image = verify(made.root).problems
    assert checksum.part == 5
    assert (image.image, image.sample, image.part) == (0, 6, None)
    assert "cannot be decoded" in image.reason


def test_only_decoding_finds_damage_that_has_a_right_checksum(tmp_path):
    images = [list(split(jpeg)) for jpeg in small_jpegs()]
    scan = bytearray(images[6][4])
    scan[-12:] = b"\x00" * 12  # codes that are none
    images[6][4] = bytes(scan)
    root = _rewritten(make_set(tmp_path / "set"), images)
    assert found(root) == []
    problem = only(root, decode=True)
    assert (problem.path, problem.part, problem.image, problem.sample) == ("PCR_2.pcr", 5, 0, 6)
    assert "cannot be decoded" in problem.reason


def test_decoding_needs_its_package_and_says_so(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert verify(made.root).is_whole
    flip(made.file(0), 200)
    assert not verify(made.root).is_whole
    with pytest.raises(MissingDependencyError, match="simplejpeg"):
        verify(made.root, decode=True)
