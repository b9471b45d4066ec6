"""Image folders: classes, labels, order, junk, odd names."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorcom.errors import SourceError
from tensorcom.images import ImageFolder, training_folder
from tensorcom.images.folder import printable

HARDCASES = Path(__file__).parents[2] / "tests" / "golden" / "hardcases"


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def relative(folder: ImageFolder) -> list[str]:
    return [os.path.relpath(path, folder.root) for path in folder.paths]


def test_junk_is_skipped_and_counted():
    folder = ImageFolder(HARDCASES / "T01_tree")
    assert folder.classes == ("cat", "dog")
    assert relative(folder) == ["cat/1.jpg", "dog/1.jpg", "dog/nested/2.jpg"]
    assert folder.labels.tolist() == [0, 1, 1]
    assert folder.skipped == {"hidden": 3, "not an image": 2, "loose file": 2}


def test_a_hidden_folder_is_no_class(tmp_path):
    folder = ImageFolder(make(tmp_path, ".ipynb_checkpoints/1.jpg", "a/1.jpg"))
    assert folder.classes == ("a",)
    assert folder.skipped == {"hidden": 1}


def test_an_empty_class_is_named():
    with pytest.raises(SourceError, match="no images in class 'b'.*allow_empty=True"):
        ImageFolder(HARDCASES / "T02_tree")


def test_an_empty_class_keeps_its_label_if_allowed():
    folder = ImageFolder(HARDCASES / "T02_tree", allow_empty=True)
    assert folder.classes == ("a", "b", "c")
    assert folder.labels.tolist() == [0, 2]


def test_many_empty_classes_are_counted(tmp_path):
    for name in range(8):
        (tmp_path / str(name)).mkdir()
    with pytest.raises(SourceError, match="classes '0', '1', '2', '3', '4' and 3 more"):
        ImageFolder(tmp_path)


def test_labels_follow_sorted_names(tmp_path):
    names = ["10", "2", "B", "a", "a b", "é", "Z"]
    make(tmp_path, *(f"{name}/1.JPG" for name in names))
    folder = ImageFolder(tmp_path)
    assert folder.classes == tuple(sorted(names))
    assert relative(folder) == [f"{name}/1.JPG" for name in sorted(names)]


def test_suffixes_match_in_any_case(tmp_path):
    good = ["1.JPEG", "2.PnG", "3.ppm", "4.bmp", "5.pgm", "6.TIF", "7.tiff", "8.WebP", "9.jpg"]
    make(tmp_path, *(f"a/{name}" for name in good), "a/1.gif", "a/jpg", "a/2.jpg.txt")
    folder = ImageFolder(tmp_path)
    assert relative(folder) == [f"a/{name}" for name in good]
    assert folder.skipped == {"not an image": 3}


def test_nested_images_are_ordered_by_directory_path(tmp_path):
    make(tmp_path, "c/b/1.jpg", "c/b-x/2.jpg", "c/b/d/3.jpg", "c/z.jpg", "c/a/4.jpg")
    expected = []
    for here, _, names in sorted(os.walk(tmp_path / "c", followlinks=True)):
        expected += [os.path.join(here, name) for name in sorted(names)]
    assert list(ImageFolder(tmp_path).paths) == expected


def test_links_are_followed_but_not_upwards(tmp_path):
    make(tmp_path, "set/a/1.jpg", "elsewhere/2.jpg")
    (tmp_path / "set/a/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/a/up").symlink_to(tmp_path / "set")
    (tmp_path / "set/b").symlink_to(tmp_path / "elsewhere")
    folder = ImageFolder(tmp_path / "set")
    assert relative(folder) == ["a/1.jpg", "a/more/2.jpg", "b/2.jpg"]
    assert folder.skipped == {"link to a folder above": 1}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_or_dangling_link_is_no_image(tmp_path):
    make(tmp_path, "a/1.jpg")
    os.mkfifo(tmp_path / "a/2.jpg")
    (tmp_path / "a/3.jpg").symlink_to(tmp_path / "nothing")
    folder = ImageFolder(tmp_path)
    assert len(folder) == 1
    assert folder.skipped == {"not a file": 2}


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="names there are Unicode")
def test_names_that_are_no_utf8(tmp_path):
    directory = os.path.join(os.fsencode(tmp_path), b"cl\xff")
    twins = ["\u00e9.jpg".encode(), "e\u0301.jpg".encode()]  # one letter, composed or not
    names = [b"\xff.jpg", *twins, b"a\n'$(x).jpg", b"b" * 251 + b".jpg"]
    os.mkdir(directory)
    for name in names:
        Path(os.fsdecode(os.path.join(directory, name))).write_bytes(b"x")
    folder = ImageFolder(tmp_path)
    assert folder.classes == (os.fsdecode(b"cl\xff"),)
    assert sorted(os.fsencode(os.path.basename(path)) for path in folder.paths) == sorted(names)
    assert all(Path(path).read_bytes() == b"x" for path in folder.paths)
    assert printable(folder.classes[0]) == r"cl\xff"


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="names there are Unicode")
def test_errors_over_odd_names_can_be_printed(tmp_path):
    root = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"ro\xff"))
    os.mkdir(root)
    os.mkdir(os.path.join(root, os.fsdecode(b"cl\xfe")))
    with pytest.raises(SourceError) as caught:
        ImageFolder(root)
    assert "ro\\xff" in str(caught.value).encode("utf-8").decode()


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ((), "holds no folders, expected one per class"),
        (("1.jpg",), "holds no folders, expected one per class"),
    ],
)
def test_a_root_without_classes_is_an_error(tmp_path, names, reason):
    with pytest.raises(SourceError) as caught:
        ImageFolder(make(tmp_path, *names))
    assert str(caught.value) == f"{tmp_path}: {reason}"


def test_a_missing_root_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="nowhere: cannot be listed: No such file"):
        ImageFolder(tmp_path / "nowhere")


def test_only_empty_classes_are_an_error_even_if_allowed(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(SourceError, match="holds no images"):
        ImageFolder(tmp_path, allow_empty=True)


def test_paths_are_a_sequence(tmp_path):
    folder = ImageFolder(make(tmp_path, "a/1.jpg", "a/2.jpg", "b/3.jpg"))
    assert len(folder) == len(folder.paths) == 3
    assert folder.path(2) == folder.paths[-1] == str(tmp_path / "b/3.jpg")
    assert folder.paths[1:] == [folder.path(1), folder.path(2)]
    assert folder.labels.dtype == np.int32
    assert not folder.labels.flags.writeable
    with pytest.raises(IndexError):
        folder.path(3)


def test_a_folder_survives_pickling(tmp_path):
    folder = ImageFolder(make(tmp_path, "a/1.jpg", "b/2.jpg"))
    again = pickle.loads(pickle.dumps(folder))
    assert list(again.paths) == list(folder.paths)
    assert again.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("train/a/1.jpg", "val/a/2.jpg"), "train"),
        (("train/a/1.jpg", "train/.hidden.jpg", "train/list.txt"), "train"),
        (("train/1.jpg", "car/2.jpg"), "."),
        (("a/1.jpg",), "."),
        (("train/notes.txt", "a/1.jpg"), "."),
    ],
)
def test_the_training_folder(tmp_path, names, expected):
    make(tmp_path, *names)
    assert Path(training_folder(tmp_path)) == tmp_path / expected
