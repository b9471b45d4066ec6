"""One image of a record: crops, guards, transforms, and errors that say which it is."""

from __future__ import annotations

import numpy as np
import pytest
from pcr_set_helpers import noise_jpeg, progressive, write_set

from tensorcom import ImageError
from tensorcom.images import center_crop, decode_image, evaluation_view, sample_rng, training_view
from tensorcom.pcr import PcrReader, guarded
from tensorcom.pcr.decode import Decoder, Place
from tensorcom.pcr.scripts import STANDARD

GROUPS = 10


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    with PcrReader(write_set(tmp_path_factory.mktemp("set"), [3], noise_jpeg)) as opened:
        yield opened


@pytest.fixture
def place(reader):
    """Return a function that gives the place of an image, at some groups."""

    def make(image=0, groups=GROUPS) -> Place:
        prefix = reader.read_prefix(0, scan_groups=groups)
        return Place(prefix, "PCR_0.pcr", image, image, groups == GROUPS)

    return make


def pixels(reader, image: int, groups: int, *, guard: bool) -> np.ndarray:
    jpeg = reader.sample(image, scan_groups=groups)[0]
    return decode_image(guarded(jpeg) if guard else jpeg)


def test_whole_images(reader, place) -> None:
    decoder = Decoder(size=None, augment=None)
    for groups in (1, 5, GROUPS):
        found = decoder.decode(place(1, groups), 0)
        np.testing.assert_array_equal(found, pixels(reader, 1, groups, guard=groups < GROUPS))


def test_guards_are_a_choice(reader, place) -> None:
    guarded_pixels, plain = (
        Decoder(size=None, augment=None, guard=guard).decode(place(0, 1), 0)
        for guard in (True, False)
    )
    np.testing.assert_array_equal(guarded_pixels, pixels(reader, 0, 1, guard=True))
    np.testing.assert_array_equal(plain, pixels(reader, 0, 1, guard=False))
    assert not np.array_equal(guarded_pixels, plain)


def test_a_known_script_gives_the_same_pixels(place) -> None:
    for groups in range(1, GROUPS + 1):
        known, unknown = (
            Decoder(size=None, augment=None, script=script).decode(place(2, groups), 0)
            for script in (STANDARD, None)
        )
        np.testing.assert_array_equal(known, unknown)


def test_crops(reader, place) -> None:
    image = pixels(reader, 2, GROUPS, guard=False)
    expected = {
        "train": training_view(image, sample_rng(5, 3, 2), 24),
        "eval": evaluation_view(image, 24),
        None: center_crop(image, 24, resize=24),
    }
    for augment, crop in expected.items():
        out = np.zeros((24, 24, 3), np.uint8)
        decoder = Decoder(24, augment, seed=5)
        assert decoder.decode(place(2), 3, out) is out
        np.testing.assert_array_equal(out, crop)
        np.testing.assert_array_equal(decoder.decode(place(2), 3), crop)
    assert len({crop.tobytes() for crop in expected.values()}) == 3


def test_a_transform_gets_the_crop_and_the_samples_generator(place) -> None:
    calls = []

    def transform(image, rng) -> str:
        calls.append((image.shape, rng.random()))
        return "done"

    assert Decoder(24, "eval", transform, seed=5).decode(place(1), 3) == "done"
    assert Decoder(None, None, transform, seed=5).decode(place(1), 3) == "done"
    draw = sample_rng(5, 3, 1).random()
    assert calls == [((24, 24, 3), draw), ((60, 80, 3), draw)]
    Decoder(24, "train", transform, seed=5).decode(place(1), 3)
    assert calls[-1][1] != draw  # the crop has drawn from it before


def test_an_error_names_record_and_image(tmp_path) -> None:
    def make(number: int) -> bytes:
        image = noise_jpeg(number)
        return image if number == 0 else image[:-200] + b"\0" * 198 + image[-2:]

    with PcrReader(write_set(tmp_path, [2], make)) as reader:
        bad = Place(reader.read_prefix(0), "PCR_0.pcr", 1, 1, is_complete=True)
        with pytest.raises(ImageError, match=r"^PCR_0\.pcr image 1: JPEG cannot be decoded"):
            Decoder(24).decode(bad, 0)


def test_gray_images_become_rgb(tmp_path) -> None:
    def make(number: int) -> bytes:
        return progressive(np.full((30, 40), 77, np.uint8))

    with PcrReader(write_set(tmp_path, [1], make)) as reader:
        for groups in (1, 6, GROUPS):
            prefix = reader.read_prefix(0, scan_groups=groups)
            place = Place(prefix, "PCR_0.pcr", 0, 0, groups == GROUPS)
            found = Decoder(16, "eval").decode(place, 0)
            np.testing.assert_allclose(found, 77, atol=2)
            assert found.shape == (16, 16, 3)
