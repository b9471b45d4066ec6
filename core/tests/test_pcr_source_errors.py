"""PcrSource: damaged images and records are named, fatal or skipped, and the rest is delivered."""

from __future__ import annotations

import pytest
from pcr_helpers import copy_golden
from pcr_set_helpers import check_pixels, gray_jpeg, labels_of, write_set

from tensorcom import ImageError
from tensorcom.errors import PcrError, PcrFormatError
from tensorcom.pcr import PcrReader, PcrSource

SIZES = [6, 4, 5]
BAD = {2, 7}


def make(number: int) -> bytes:
    image = bytearray(gray_jpeg(number))
    if number in BAD:
        image[image.index(b"\xff\xc2") + 12] = 3  # a quantisation table that is not there
    return bytes(image)


@pytest.fixture
def root(tmp_path):
    """A set of which images 2 and 7 cannot be decoded."""
    return write_set(tmp_path / "images", SIZES, make)


@pytest.fixture
def cut(tmp_path):
    """A set of which the second record, images 6 to 9, is cut."""
    folder = write_set(tmp_path / "cut", SIZES)
    record = folder / "PCR_1.pcr"
    record.write_bytes(record.read_bytes()[:-10])
    return folder


@pytest.fixture
def source():
    """Return a function that makes sources of 4 samples in order, closed with the test."""
    made = []

    def make(where, **arguments) -> PcrSource:
        defaults = {"batch_size": 4, "size": 16, "threads": 2, "shuffle": False}
        made.append(PcrSource(where, **{**defaults, **arguments}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_bad_image_is_named_after_the_batches_before_it(root, source) -> None:
    batches = iter(source(root, batch_size=1))
    assert labels_of(next(batches) for _ in range(2)) == [0, 1]
    with pytest.raises(ImageError, match=r"^PCR_0\.pcr image 2: JPEG cannot be decoded"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_bad_images_make_their_batches_smaller(root, source) -> None:
    errors = []
    one = source(root, on_error="skip", on_skip=errors.append)
    batches = list(one)
    assert [labels.tolist() for _, labels in batches] == [
        [0, 1, 3],
        [4, 5, 6],
        [8, 9, 10, 11],
        [12, 13, 14],
    ]
    for images, labels in batches:
        check_pixels(images, labels)
    assert [error.path for error in errors] == ["PCR_0.pcr image 2", "PCR_1.pcr image 1"]
    assert one.skipped == 2
    list(one)
    assert one.skipped == 4


@pytest.mark.parametrize("kind", ["stacked", "list"])
def test_bad_images_are_left_out_of_lists_too(root, source, kind) -> None:
    arguments = {"transform": lambda image, _: image.astype("f4")}
    if kind == "list":
        arguments = {"size": None, "augment": None}
    batches = list(source(root, on_error="skip", **arguments))
    assert labels_of(batches) == [n for n in range(15) if n not in BAD]
    for images, labels in batches:
        check_pixels(images, labels)


def test_a_batch_without_images_is_left_out(root, source) -> None:
    one = source(root, batch_size=1, on_error="skip")
    batches = iter(one)
    assert labels_of(next(batches) for _ in range(2)) == [0, 1]
    state = one.state_dict()
    assert state["done"][0][-1] == 2
    assert labels_of([next(batches)]) == [3]
    assert one.state_dict()["done"][0][-1] == 4, "the one that was left out counts"
    assert len(one) == 15
    again = source(root, batch_size=1, on_error="skip")
    again.load_state_dict(state)
    assert labels_of(again) == [n for n in range(3, 15) if n != 7]


def test_bad_images_are_no_matter_for_those_who_take_bytes(root, source) -> None:
    assert labels_of(source(root, decode=False)) == list(range(15))


@pytest.mark.parametrize("decode", [True, False])
def test_a_cut_record_is_named_after_the_batches_before_it(cut, source, decode) -> None:
    batches = iter(source(cut, batch_size=2, decode=decode))
    assert labels_of(next(batches) for _ in range(3)) == list(range(6))
    with pytest.raises(PcrError, match=r"PCR_1\.pcr"):
        next(batches)


@pytest.mark.parametrize("decode", [True, False])
def test_a_cut_record_is_reported_once_and_the_rest_comes(cut, source, decode) -> None:
    errors = []
    one = source(cut, on_error="skip", on_skip=errors.append, decode=decode)
    batches = list(one)
    assert labels_of(batches) == [*range(6), *range(10, 15)]
    assert [len(labels) for _, labels in batches] == [4, 2, 2, 3]
    assert len(errors) == 1
    assert isinstance(errors[0], PcrError)
    assert "PCR_1.pcr" in str(errors[0])
    assert one.skipped == 4
    list(one)
    assert len(errors) == 2, "once each epoch"


def test_shuffled_samples_of_a_cut_record_are_skipped_each(cut, source) -> None:
    errors = []
    one = source(cut, on_error="skip", on_skip=errors.append, shuffle=True, batch_size=1)
    assert sorted(labels_of(one)) == [*range(6), *range(10, 15)]
    assert len(errors) == 1
    assert one.skipped == 4


def test_a_cut_record_is_whole_at_fewer_groups(cut, source) -> None:
    assert labels_of(source(cut, scan_groups=5)) == list(range(15))


def test_records_of_nonsense_or_none_are_skipped_too(tmp_path, source) -> None:
    folder = write_set(tmp_path / "set", SIZES)
    errors = []
    one = source(folder, on_error="skip", on_skip=errors.append)
    record = folder / "PCR_0.pcr"
    one.reader.starts  # noqa: B018 - the labels are read before the damage
    record.write_bytes(b"\xff" * record.stat().st_size)
    (folder / "PCR_2.pcr").unlink()
    one.reader.close()
    assert labels_of(one) == list(range(6, 10))
    assert isinstance(errors[0], PcrFormatError)
    assert len(errors) == 2
    assert one.skipped == 11


def test_all_damaged_is_an_empty_epoch(tmp_path, source) -> None:
    folder = write_set(tmp_path / "set", [3], lambda _: make(2))
    one = source(folder, on_error="skip")
    assert list(one) == []
    assert (one.skipped, one.epoch) == (3, 1)


def test_an_error_of_the_transform_is_the_users_own(root, source) -> None:
    def transform(image, rng) -> None:
        raise ZeroDivisionError("in the transform")

    with pytest.raises(ZeroDivisionError, match="in the transform"):
        list(source(root, transform=transform, on_error="skip"))


@pytest.mark.parametrize("kind", ["sqlite", "protobuf", "protobuf_raw"])
def test_a_missing_record_of_an_original_set_is_skipped_too(tmp_path, kind) -> None:
    root = copy_golden(kind, tmp_path / "set")
    samples = len(PcrReader(root))
    lost = PcrReader(root).records[2].samples
    (root / "PCR_2.pcr").unlink()
    with pytest.raises(PcrError, match=r"PCR_2\.pcr"):
        PcrSource(root, batch_size=4)
    errors = []
    with PcrSource(root, batch_size=4, on_error="skip", on_skip=errors.append) as one:
        assert sum(len(labels) for _, labels in one) == samples - lost
    assert [str(error) for error in errors if "PCR_2.pcr" in str(error)] != []
    assert len(errors) == 1
