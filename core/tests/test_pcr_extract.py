"""`extract`: the bytes of every image, under names that stay where they belong."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pcr_helpers import CLASSES, GOLDEN_SETS, KINDS, cut, flip, make_set, small_jpegs

from tensorcom.errors import PcrFormatError, PcrReadError, PcrWriteError
from tensorcom.images import ImageFolder
from tensorcom.pcr import PcrReader
from tensorcom.pcr.extract import extract
from tensorcom.pcr.file_names import FileNames, safe_name


@pytest.fixture
def made(tmp_path):
    return make_set(tmp_path / "set")


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def expected(made, groups=None, samples=range(8)):
    return {made.names[i]: made.jpeg(i, groups) for i in samples}


# -- bytes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 5, None])
def test_every_image_is_written_under_its_name(made, tmp_path, groups):
    report = extract(PcrReader(made.root), tmp_path / "a" / "out", scan_groups=groups)
    found = files_of(tmp_path / "a" / "out")
    assert found == expected(made, groups)
    assert (report.files, report.skipped) == (8, 0)
    assert report.size_bytes == sum(map(len, found.values()))


def test_what_is_extracted_is_an_image_folder_with_the_same_labels(made, tmp_path):
    extract(PcrReader(made.root), tmp_path / "out")
    folder = ImageFolder(tmp_path / "out")
    assert folder.classes == CLASSES
    labels = {
        Path(path).name: label for path, label in zip(folder.paths, folder.labels, strict=True)
    }
    assert labels == {Path(n).name: label for n, label in zip(made.names, made.labels, strict=True)}


@pytest.mark.parametrize("samples", [range(2, 4), range(7, 8), range(0), range(0, 8, 3)])
def test_a_range_of_samples(made, tmp_path, samples):
    report = extract(PcrReader(made.root), tmp_path / "out", samples=samples)
    assert report.files == len(samples)
    assert files_of(tmp_path / "out") == expected(made, samples=samples)


@pytest.mark.parametrize("kind", KINDS)
def test_sets_of_the_original_have_numbers_for_names(kind, tmp_path):
    reader = PcrReader(GOLDEN_SETS / kind)
    extract(reader, tmp_path, scan_groups=3)
    assert files_of(tmp_path) == {
        f"{int(reader.labels[i])}/{i:02d}.jpg": reader.sample(i, scan_groups=3)[0]
        for i in range(len(reader))
    }


def test_progress_is_told(made, tmp_path):
    seen = []
    extract(PcrReader(made.root), tmp_path / "out", threads=1, on_progress=seen.append)
    assert seen == [3, 6, 8]


# -- what is there already --------------------------------------------------------------------


def test_a_file_that_exists_stops_everything_before_it_begins(made, tmp_path):
    out = tmp_path / "out"
    (out / "bee").mkdir(parents=True)
    (out / "bee" / "7.jpg").write_bytes(b"mine")
    with pytest.raises(PcrWriteError, match="7.jpg: exists; allow to overwrite"):
        extract(PcrReader(made.root), out)
    assert files_of(out) == {"bee/7.jpg": b"mine"}
    extract(PcrReader(made.root), out, samples=range(3))  # in its place is none of these
    extract(PcrReader(made.root), out, overwrite=True)
    assert files_of(out) == expected(made)


def test_a_link_is_replaced_and_not_followed(made, tmp_path):
    out = tmp_path / "out"
    (out / "ant").mkdir(parents=True)
    (tmp_path / "precious").write_bytes(b"mine")
    (out / "ant" / "0.jpg").symlink_to(tmp_path / "precious")
    with pytest.raises(PcrWriteError, match="exists"):
        extract(PcrReader(made.root), out)
    (out / "ant" / "0.jpg").unlink()
    (out / "ant" / "0.jpg").symlink_to(tmp_path / "absent")
    with pytest.raises(PcrWriteError, match="exists"):
        extract(PcrReader(made.root), out)
    extract(PcrReader(made.root), out, overwrite=True)
    assert (tmp_path / "precious").read_bytes() == b"mine"
    assert not (tmp_path / "absent").exists()


def test_what_cannot_be_written_leaves_nothing_half_written(made, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "bee").write_bytes(b"a file where the folder belongs")
    with pytest.raises(PcrWriteError, match="cannot be written") as caught:
        extract(PcrReader(made.root), out)
    assert isinstance(caught.value, OSError)
    for name, data in files_of(out).items():
        assert name == "bee" or data == expected(made)[name]


# -- damage -----------------------------------------------------------------------------------


def test_a_damaged_record_is_raised_or_skipped(made, tmp_path):
    flip(made.file(0), 0)
    cut(made.file(2))
    with pytest.raises(PcrFormatError):
        extract(PcrReader(made.root), tmp_path / "raised", threads=1)
    errors = []
    report = extract(PcrReader(made.root), tmp_path / "out", on_error="skip", on_skip=errors.append)
    assert files_of(tmp_path / "out") == expected(made, samples=range(3, 6))
    assert (report.files, report.skipped) == (3, 5)
    assert isinstance(errors[0], PcrFormatError)
    assert isinstance(errors[1], PcrReadError)
    assert len(errors) == 2


@pytest.mark.parametrize(
    "options", [{"samples": range(9)}, {"samples": range(-1, 2)}, {"scan_groups": 11},
                {"on_error": "warn"}]
)  # fmt: skip
def test_arguments_out_of_range_are_refused(made, tmp_path, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        extract(PcrReader(made.root), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


# -- names ------------------------------------------------------------------------------------


HOSTILE = {
    "../../up.jpg": "up.jpg",
    "/etc/passwd": "passwd.jpg",
    "ant/..": "_..jpg",
    "..": "_..jpg",
    ".hidden.jpg": "_hidden.jpg",
    "a\0b.jpg": "a_b.jpg",
    "a\nb\x1b[2J.jpg": "a_b_[2J.jpg",
    "a\\..\\b.jpg": "a_.._b.jpg",
    "": "8.jpg",
    "x/": "9.jpg",
    "photo.PNG": "photo.PNG.jpg",
    "photo.JPEG": "photo.JPEG",
    "deep/er/é.jpg": "é.jpg",
    "\udcff.jpg": "\udcff.jpg",
    "n" * 300 + ".jpg": "n" * 251 + ".jpg",
    "é" * 200 + ".jpg": "é" * 125 + ".jpg",
}


def test_hostile_names_stay_in_the_folder(tmp_path):
    names = list(HOSTILE)
    images = (small_jpegs() * 2)[: len(names)]
    made = make_set(tmp_path / "set", images, names=names, labels=[0] * len(names))
    extract(PcrReader(made.root), tmp_path / "in" / "out")
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["out"]
    assert [p.name for p in (tmp_path / "in" / "out").iterdir()] == ["ant"]
    found = {p.name: p.read_bytes() for p in (tmp_path / "in" / "out" / "ant").iterdir()}
    # ".." twice, and numbers of two digits
    wanted = ["_.-02.jpg", "_.-03.jpg", "08.jpg", "09.jpg"]
    plain = [name for i, name in enumerate(HOSTILE.values()) if i not in (2, 3, 8, 9)]
    assert sorted(found) == sorted(plain + wanted)
    assert found["_.-03.jpg"] == made.jpeg(3)


def test_hostile_class_names_stay_in_the_folder(tmp_path):
    classes = ("..", "../x", "/abs", "ant", "ANT", "", "a\0", ".git", "\ud800", "x" * 300)
    labels = [*range(10)]
    made = make_set(
        tmp_path / "set",
        (small_jpegs() * 2)[:10],
        labels=labels,
        names=["i.jpg"] * 10,
        class_names=classes,
    )
    extract(PcrReader(made.root), tmp_path / "in" / "out")
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["out"]
    found = {p.parent.name: p.read_bytes() for p in (tmp_path / "in" / "out").rglob("*.jpg")}
    assert list(found.values()) != []
    assert len(found) == 10
    for label, folder in enumerate(["_.", "_._x", "_abs", "ant", "ANT-4", "_", "a_", "_git"]):
        assert found[folder] == made.jpeg(label)


def test_twins_get_their_numbers(tmp_path):
    names = ["ant/1/a.jpg", "ant/2/A.JPG", "ant/a-0.jpg", "bee/a.jpg", "ant/a-1.JPG", "ant/b.jpg"]
    labels = [0, 0, 0, 1, 0, 0]
    made = make_set(tmp_path / "set", small_jpegs()[:6], names=names, labels=labels)
    paths = [str(FileNames(PcrReader(made.root)).path(i)) for i in range(6)]
    assert paths == [
        "ant/a-0_.jpg", "ant/A-1_.JPG", "ant/a-0.jpg", "bee/a.jpg", "ant/a-1.JPG", "ant/b.jpg"
    ]  # fmt: skip
    extract(PcrReader(made.root), tmp_path / "out", samples=range(1, 2))
    assert files_of(tmp_path / "out") == {"ant/A-1_.JPG": made.jpeg(1)}


@given(st.lists(st.sampled_from(
    ["a.jpg", "A.jpg", "a", "x/a.jpg", "a-0.jpg", "a-1.jpg", "a-1_.jpg", "", "..", "a.b.jpg",
     "n" * 260 + ".jpg", "n" * 240 + ".jpg"]), min_size=8, max_size=8))  # fmt: skip
def test_no_two_paths_are_alike(names):
    class Reader:
        class_names = None
        labels = np.zeros(8, np.int32)

        def __len__(self):
            return 8

        def name(self, sample):
            return names[sample]

    found = FileNames(Reader())
    paths = [found.path(i) for i in range(8)]
    assert len({str(path).casefold() for path in paths}) == 8
    assert all(len(os.fsencode(path.name)) <= 255 for path in paths)


@given(st.text(max_size=300) | st.binary(max_size=300).map(os.fsdecode))
def test_safe_names_are_plain_file_names(text):
    name = safe_name(text)
    assert PurePath(name).parts == (name,)
    assert name not in (".", "..")
    assert not name.startswith(".")
    assert 0 < len(os.fsencode(name)) <= 255
    assert "\0" not in name
    assert safe_name(name) == name
