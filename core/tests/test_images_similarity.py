"""MS-SSIM against pytorch-msssim, and what the measures are for special images."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorcom.images.similarity import WEIGHTS, Reference, levels_of, psnr_db

# pytorch_msssim 1.0.0 in float64: ms_ssim(other, image, data_range=255); below 161 pixels the same
# with the first weights, scaled to the sum of all.
EXPECTED = {
    (161, 161, "noise"): 0.942159,
    (161, 161, "blocks"): 0.687796,
    (161, 161, "darker"): 0.807217,
    (161, 161, "negative"): 0.0,
    (176, 200, "noise"): 0.941890,
    (176, 200, "blocks"): 0.654850,
    (176, 200, "darker"): 0.813426,
    (203, 330, "noise"): 0.941542,
    (203, 330, "blocks"): 0.727020,
    (203, 330, "darker"): 0.812070,
    (81, 100, "noise"): 0.934164,
    (41, 41, "noise"): 0.894407,
    (21, 30, "noise"): 0.788028,
    (11, 20, "noise"): 0.440060,
}


def pair(height, width, kind):
    y, x = np.mgrid[:height, :width]
    rng = np.random.default_rng(height * width)
    base = np.stack([x * 7 % 256, (x + y) * 3 % 256, 128 + 100 * ((x // 16 + y // 16) % 2)], 2)
    image = np.clip(base + rng.integers(-20, 21, base.shape), 0, 255).astype(np.uint8)
    if kind == "noise":
        other = np.clip(image.astype(int) + rng.integers(-40, 41, base.shape), 0, 255)
    elif kind == "blocks":
        other = np.repeat(np.repeat(image[::8, ::8], 8, 0), 8, 1)[:height, :width]
    elif kind == "negative":
        other = 255 - image
    else:
        other = image // 2 + 40
    return image, other.astype(np.uint8)


@pytest.mark.parametrize("case", EXPECTED, ids=str)
def test_ms_ssim_is_that_of_pytorch_msssim(case):
    image, other = pair(*case)
    assert Reference(image).ms_ssim(other) == pytest.approx(EXPECTED[case], abs=2e-5)
    assert Reference(other).ms_ssim(image) == pytest.approx(EXPECTED[case], abs=2e-5)


def test_equal_images_are_equal():
    image, _ = pair(170, 180, "noise")
    reference = Reference(image)
    assert reference.ms_ssim(image) == pytest.approx(1, abs=1e-6)
    assert reference.mean_squared_error(image) == 0
    assert Reference(np.full((161, 161, 3), 7, "u1")).ms_ssim(np.full((161, 161, 3), 7, "u1")) == 1


@pytest.mark.parametrize("levels", range(5))
def test_levels_need_sides_that_the_window_fits_in(levels):
    side = 10 * 2**levels
    assert levels_of(side, 1000) == levels
    assert levels_of(1000, side + 1) == levels + 1
    image, other = pair(side + 1, side + 9, "noise")
    reference = Reference(image)
    assert reference.levels == levels + 1
    assert 0.3 < reference.ms_ssim(other) < 1


def test_images_that_are_too_small_have_none():
    image, other = pair(10, 300, "noise")
    assert Reference(image).ms_ssim(other) is None
    assert Reference(image).mean_squared_error(other) > 0


def test_a_reference_is_not_changed_by_what_it_is_compared_with():
    image, other = pair(90, 90, "blocks")
    reference = Reference(image)
    first = reference.ms_ssim(other)
    reference.ms_ssim(image)
    assert reference.ms_ssim(other) == first


def test_weights_are_those_of_the_paper():
    assert WEIGHTS == (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def test_psnr():
    image = np.zeros((20, 20, 3), np.uint8)
    assert Reference(image).mean_squared_error(image + np.uint8(5)) == 25
    assert psnr_db(25) == pytest.approx(10 * math.log10(255**2 / 25))
    assert psnr_db(0) == math.inf
    assert Reference(image).mean_squared_error(image + np.uint8(255)) == 255**2
    assert psnr_db(255**2) == 0


def test_images_of_another_size_are_refused():
    image, _ = pair(50, 60, "noise")
    with pytest.raises(ValueError, match="broadcast"):
        Reference(image).mean_squared_error(image[:49])
