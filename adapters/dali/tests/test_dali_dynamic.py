"""The dynamic mode: operators called on a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dali_helpers import check_gray, gray_jpeg, noise_jpeg, write_records

from tensorcom_dali import Loader, PcrSource, make_rng, transform_batch, val_pipeline

RAW = {"mean": (0, 0, 0), "std": (1, 1, 1)}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_records(tmp_path_factory.mktemp("noise") / "set", make=noise_jpeg)


def pixels(batch) -> np.ndarray:
    return batch.torch().numpy()


def test_crops_are_of_their_images_in_either_layout() -> None:
    jpegs = [gray_jpeg(n) for n in range(5)]
    for rng in (None, make_rng(1)):
        for layout, shape in (("NCHW", (5, 3, 16, 16)), ("NHWC", (5, 16, 16, 3))):
            images = pixels(transform_batch(jpegs, rng=rng, size=16, layout=layout, **RAW))
            assert images.shape == shape
            assert images.dtype == np.float32
            check_gray(images, np.arange(5))


def test_the_same_seed_and_state_give_the_same_images() -> None:
    jpegs = [noise_jpeg(n) for n in range(4)]
    first, again = make_rng(7), make_rng(7)
    one = [pixels(transform_batch(jpegs, rng=first, size=8)) for _ in range(2)]
    two = [pixels(transform_batch(jpegs, rng=again, size=8)) for _ in range(2)]
    np.testing.assert_array_equal(one, two)
    assert (one[0] != one[1]).any()


def test_without_randomness_it_is_what_the_pipeline_makes(root) -> None:
    source = PcrSource(root, batch_size=4, scan_groups=5, shuffle=False)
    with Loader(source, val_pipeline, size=16) as loader:
        expected = [images for images, _ in loader]
    for (jpegs, _), images in zip(source, expected, strict=True):
        np.testing.assert_allclose(pixels(transform_batch(jpegs, size=16)), images, atol=0.02)
    source.close()


@pytest.mark.parametrize(
    ("jpegs", "options", "text"),
    [
        ([], {}, "jpegs is empty, expected at least 1 image"),
        ([gray_jpeg(0)], {"size": 0}, "size=0, expected at least 1"),
        ([gray_jpeg(0)], {"std": (1, 0, 1)}, r"std=\(1, 0, 1\), expected numbers above 0"),
        ([gray_jpeg(0)], {"layout": "HWC"}, "layout="),
        ([gray_jpeg(0)], {"device": "tpu"}, "device='tpu', expected 'cpu' or 'gpu'"),
    ],
)
def test_wrong_arguments_are_errors(jpegs, options, text) -> None:
    with pytest.raises(ValueError, match=text):
        transform_batch(jpegs, **{"size": 8, **options})


def test_a_bad_image_is_an_error_at_the_call() -> None:
    with pytest.raises(RuntimeError):
        pixels(transform_batch([gray_jpeg(0)[:60] + b"\xff\xd9"], size=8))
