"""Augmentation: the distribution of crops, exact resizing, flips, normalization."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from tensorcom.images import (
    center_crop,
    evaluation_view,
    normalize,
    random_flip,
    random_resized_crop,
    random_resized_crop_box,
    resize_crop,
    sample_rng,
    training_view,
)

DRAWS = 4000
KS_BOUND = 2.2 / math.sqrt(DRAWS)  # passed by about one true sample in ten thousand


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8)


def boxes(height: int, width: int, draws: int = DRAWS, **options: object) -> np.ndarray:
    rng = np.random.default_rng(11)
    return np.array([random_resized_crop_box(rng, height, width, **options) for _ in range(draws)])


def distance_from_uniform(values: np.ndarray) -> float:
    ordered = np.sort(values)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max()))


def reference_box(rng: np.random.Generator, height: int, width: int) -> tuple[int, int]:
    """Height and width, by the definition of the paper's and torchvision's crop, vectorised."""
    area = height * width * rng.uniform(0.08, 1.0, 10)
    aspect = np.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3), 10))
    widths = np.round(np.sqrt(area * aspect)).astype(int)
    heights = np.round(np.sqrt(area / aspect)).astype(int)
    for h, w in zip(heights, widths, strict=True):
        if 0 < w <= width and 0 < h <= height:
            return int(h), int(w)
    if width / height < 3 / 4:
        return round(width / (3 / 4)), width
    if width / height > 4 / 3:
        return height, round(height * (4 / 3))
    return height, width


def test_area_is_uniform_and_aspect_log_uniform_where_every_attempt_fits():
    # Half of the area at an aspect of 4/3 is 0.82 of a square's side: nothing is rejected.
    found = boxes(1000, 1000, scale=(0.08, 0.5))
    heights, widths = found[:, 2], found[:, 3]
    area = (heights * widths / 1e6 - 0.08) / 0.42
    aspect = (np.log(widths / heights) / math.log(4 / 3) + 1) / 2
    assert distance_from_uniform(area) < KS_BOUND + 0.005  # 0.005: whole pixels
    assert distance_from_uniform(aspect) < KS_BOUND + 0.005
    assert abs(np.corrcoef(area, aspect)[0, 1]) < 0.08


def test_a_box_lies_anywhere_in_the_image():
    found = boxes(1000, 1000, scale=(0.08, 0.5))
    top, left, height, width = found.T
    assert distance_from_uniform((top + 0.5) / (1001 - height)) < KS_BOUND + 0.005
    assert distance_from_uniform((left + 0.5) / (1001 - width)) < KS_BOUND + 0.005


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (224, 224), (100, 900)])
def test_shapes_are_distributed_as_by_the_definition(height, width):
    found = boxes(height, width)
    rng = np.random.default_rng(12)
    expected = np.array([reference_box(rng, height, width) for _ in range(DRAWS)])
    shares = np.linspace(0.05, 0.95, 19)
    for values, others in (
        (found[:, 2] * found[:, 3], expected[:, 0] * expected[:, 1]),
        (np.log(found[:, 3] / found[:, 2]), np.log(expected[:, 1] / expected[:, 0])),
    ):
        cuts = np.quantile(others, shares)
        below = np.array([(values <= cut).mean() for cut in cuts])
        other = np.array([(others <= cut).mean() for cut in cuts])
        assert np.abs(below - other).max() < 0.05


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (10, 1000, (0, 493, 10, 13)),
        (1000, 10, (493, 0, 13, 10)),
        (1, 65500, (0, 32749, 1, 1)),
        (65500, 1, (32749, 0, 1, 1)),
    ],
)
def test_where_nothing_fits_the_centre_is_taken(height, width, expected):
    rng = np.random.default_rng(0)
    box = random_resized_crop_box(rng, height, width, scale=(0.9, 1.0))
    assert box == expected


def test_boxes_are_inside_tiny_images():
    for height, width in [(1, 1), (1, 2), (2, 3), (3, 1), (7, 5)]:
        for top, left, h, w in boxes(height, width, draws=200):
            assert h >= 1
            assert w >= 1
            assert 0 <= top <= height - h
            assert 0 <= left <= width - w


def test_a_crop_is_the_cut_out_part_resized():
    image = noise(60, 80)
    part = Image.fromarray(np.ascontiguousarray(image[10:50, 20:70]))
    expected = np.asarray(part.resize((32, 32), Image.Resampling.BILINEAR))
    found = resize_crop(image, (10, 20, 40, 50), 32)
    np.testing.assert_array_equal(found, expected)
    assert found.flags.c_contiguous
    assert found.flags.writeable


def test_shrinking_is_antialiased():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    found = resize_crop(stripes, (0, 0, 64, 64), 16)[2:-2, 2:-2]
    assert found.min() > 110
    assert found.max() < 145


@pytest.mark.parametrize(
    "box", [(-1, 0, 4, 4), (0, 0, 9, 8), (0, 0, 8, 9), (5, 0, 4, 8), (0, 0, 0, 4)]
)
def test_a_box_outside_of_the_image_is_refused(box):
    with pytest.raises(ValueError, match="is not inside the image"):
        resize_crop(noise(8, 8), box, 4)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 4), (0, 8, 3), (2, 8, 8, 3)])
def test_an_array_that_is_no_image_is_refused(shape):
    with pytest.raises(ValueError, match="expected uint8"):
        center_crop(np.zeros(shape, np.uint8), 4, 4)
    with pytest.raises(ValueError, match="expected uint8"):
        random_resized_crop(np.zeros(shape, np.float32), np.random.default_rng(0), 4)


@pytest.mark.parametrize(("height", "width"), [(300, 400), (400, 300), (256, 256), (97, 131)])
def test_the_centre_is_that_of_the_whole_image_resized(height, width):
    y, x = np.mgrid[:height, :width]
    image = np.stack([x % 256, y % 256, (x * y) % 256], axis=2).astype(np.uint8)
    short = min(height, width)
    new_height, new_width = int(256 * height / short), int(256 * width / short)
    whole = Image.fromarray(image).resize((new_width, new_height), Image.Resampling.BILINEAR)
    top, left = round((new_height - 224) / 2), round((new_width - 224) / 2)
    expected = np.asarray(whole)[top : top + 224, left : left + 224]
    found = center_crop(image)
    assert found.shape == (224, 224, 3)
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_a_long_thin_image_is_no_burden():
    assert center_crop(noise(1, 65500)).shape == (224, 224, 3)
    assert center_crop(noise(65500, 1)).shape == (224, 224, 3)


def test_the_centre_cannot_exceed_the_resized_image():
    with pytest.raises(ValueError, match="resize 200 is less than size 224"):
        center_crop(noise(300, 300), 224, 200)


def test_flips():
    image = noise(4, 6)
    rng = np.random.default_rng(0)
    assert random_flip(image, rng, p=0.0) is image
    flipped = random_flip(image, rng, p=1.0)
    np.testing.assert_array_equal(flipped, image[:, ::-1])
    assert flipped.flags.c_contiguous
    share = np.mean([random_flip(image, rng) is not image for _ in range(2000)])
    assert 0.44 < share < 0.56


def test_the_training_view_is_a_random_crop_that_may_be_mirrored():
    image, mirrored = noise(90, 120), 0
    for number in range(40):
        rng, same = sample_rng(3, 1, number), sample_rng(3, 1, number)
        crop = random_resized_crop(image, same, 32)
        expected = random_flip(crop, same)
        mirrored += not np.array_equal(crop, expected)
        out = np.zeros((32, 32, 3), np.uint8)
        assert training_view(image, rng, 32, out=out) is out
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(training_view(image, sample_rng(3, 1, number), 32), expected)
    assert 10 < mirrored < 30


def test_the_evaluation_view_is_the_centre():
    image, out = noise(90, 120), np.zeros((32, 32, 3), np.uint8)
    assert evaluation_view(image, 32, out=out) is out
    np.testing.assert_array_equal(out, center_crop(image, 32, resize=37))
    np.testing.assert_array_equal(evaluation_view(image, 32), out)


def test_samples_and_epochs_have_generators_of_their_own():
    draws = {sample_rng(*key).random() for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]}
    assert len(draws) == 4
    assert sample_rng(7, 8, 9).random() == sample_rng(7, 8, 9).random()


def test_one_seed_gives_one_crop():
    image = noise(90, 120)
    first, again, other = (
        random_resized_crop(image, np.random.default_rng(seed), 32) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.shape == (32, 32, 3)
    assert first.dtype == np.uint8


def test_normalize():
    batch = noise(8, 8)[np.newaxis].repeat(2, axis=0)
    expected = (batch / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    found = normalize(batch)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("batch", [np.zeros((2, 3), np.float32), np.zeros((2, 4), np.uint8)])
def test_normalize_refuses_other_arrays(batch):
    with pytest.raises(ValueError, match="expected uint8"):
        normalize(batch)
