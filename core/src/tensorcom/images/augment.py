"""Crops, flips and normalization of decoded images.

Owns the usual training and evaluation transforms of image classification; knows nothing of files.
Random ones take their `numpy.random.Generator`, so that whoever calls decides what is reproducible.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tensorcom.images.decode import import_pillow

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_ATTEMPTS = 10


def sample_rng(seed: int, epoch: int, number: int) -> np.random.Generator:
    """Return the generator of one sample in one epoch, whoever prepares it and when."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, number])))


def random_resized_crop_box(
    rng: np.random.Generator,
    height: int,
    width: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """Choose the box of a random resized crop.

    Ten attempts draw an area, uniform in `scale` of the image's, and a width by height, log-uniform
    in `ratio`; the first that fits is placed uniformly. If none fits, the largest centred box whose
    aspect ratio is in `ratio` is taken.

    Args:
        rng: where the draws come from.
        height: of the image, in pixels.
        width: of the image, in pixels.
        scale: least and largest share of the image's area.
        ratio: least and largest width / height.

    Returns:
        (top, left, height, width) of the box, in pixels, at least 1 x 1 and inside the image.

    Source:
        `RandomResizedCrop.get_params` as documented by torchvision.
    """
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_ATTEMPTS):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(*log_ratio))
        box_width = round(math.sqrt(area * aspect))
        box_height = round(math.sqrt(area / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(rng.integers(0, height - box_height + 1))
            left = int(rng.integers(0, width - box_width + 1))
            return top, left, box_height, box_width
    box_height, box_width = height, width
    if width / height < ratio[0]:
        box_height = min(height, max(1, round(width / ratio[0])))
    elif width / height > ratio[1]:
        box_width = min(width, max(1, round(height * ratio[1])))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def resize_crop(
    image: NDArray[np.uint8], box: tuple[int, int, int, int], size: int
) -> NDArray[np.uint8]:
    """Cut `box` out of an image and resize it to a square, bilinear with antialiasing.

    Args:
        image: uint8 (H, W, 3).
        box: (top, left, height, width) in pixels, inside the image.
        size: side of the result in pixels.

    Returns:
        uint8 (size, size, 3), contiguous and new; pixels outside of the box have no influence.

    Raises:
        ValueError: `image` is of another kind, or `box` is not inside it.
    """
    _check_image(image)
    top, left, height, width = box
    if min(top, left) < 0 or min(height, width) < 1:
        raise ValueError(f"box {box} is not inside the image of shape {image.shape}")
    if top + height > image.shape[0] or left + width > image.shape[1]:
        raise ValueError(f"box {box} is not inside the image of shape {image.shape}")
    return _resize(image[top : top + height, left : left + width], (0, 0, width, height), size)


def random_resized_crop(
    image: NDArray[np.uint8], rng: np.random.Generator, size: int = 224
) -> NDArray[np.uint8]:
    """Return a random resized crop, uint8 (size, size, 3); see `random_resized_crop_box`."""
    _check_image(image)
    box = random_resized_crop_box(rng, image.shape[0], image.shape[1])
    return resize_crop(image, box, size)


def training_view(
    image: NDArray[np.uint8],
    rng: np.random.Generator,
    size: int = 224,
    *,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Return a random resized crop, mirrored left to right half of the time.

    The same as `random_flip` of `random_resized_crop`, at less cost.

    Args:
        image: uint8 (H, W, 3).
        rng: where the draws come from.
        size: side of the result in pixels.
        out: uint8 (size, size, 3) that the result is written to; else it is new.
    """
    _check_image(image)
    top, left, height, width = random_resized_crop_box(rng, image.shape[0], image.shape[1])
    crop = image[top : top + height, left : left + width]
    return _resize(crop, (0, 0, width, height), size, out=out, mirrored=rng.random() < 0.5)


def evaluation_view(
    image: NDArray[np.uint8], size: int = 224, *, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Return the usual crop for evaluation: for 224, the centre after resizing to 256.

    Args:
        image: uint8 (H, W, 3).
        size: side of the result in pixels.
        out: uint8 (size, size, 3) that the result is written to; else it is new.
    """
    return center_crop(image, size, resize=round(size * 256 / 224), out=out)


def random_flip(
    image: NDArray[np.uint8], rng: np.random.Generator, p: float = 0.5
) -> NDArray[np.uint8]:
    """Return the image, mirrored left to right with probability `p`.

    Ownership: the image itself if it is not mirrored and contiguous, else a contiguous copy.
    """
    flipped = image[:, ::-1] if rng.random() < p else image
    return np.ascontiguousarray(flipped)


def center_crop(
    image: NDArray[np.uint8],
    size: int = 224,
    resize: int = 256,
    *,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Return the centre of the image after its shorter side was resized to `resize`.

    Only the pixels of the result are computed, so that a long thin image costs no more than others.

    Args:
        image: uint8 (H, W, 3).
        size: side of the result in pixels.
        resize: length of the shorter side before the crop, at least `size`.
        out: uint8 (size, size, 3) that the result is written to; else it is new.

    Returns:
        uint8 (size, size, 3), `out` if there is one, else contiguous and new.

    Raises:
        ValueError: `image` is of another kind, or `resize` is less than `size`.
    """
    _check_image(image)
    if resize < size:
        raise ValueError(f"resize {resize} is less than size {size}")
    height, width = image.shape[:2]
    short = min(height, width)
    # The sizes and offsets of resizing everything, then the same pixels by a box of the source.
    full_height = int(resize * height / short)
    full_width = int(resize * width / short)
    top = round((full_height - size) / 2) * height / full_height
    left = round((full_width - size) / 2) * width / full_width
    box = (left, top, left + size * width / full_width, top + size * height / full_height)
    return _resize(image, (box[0], box[1], min(box[2], width), min(box[3], height)), size, out=out)


def normalize(batch: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale to 0..1, subtract the mean of ImageNet's channels and divide by their deviation.

    Args:
        batch: uint8 (..., 3), RGB in the last axis.

    Returns:
        float32 of the same shape, contiguous and new.

    Raises:
        ValueError: `batch` is of another kind.
    """
    if batch.dtype != np.uint8 or batch.ndim < 1 or batch.shape[-1] != 3:
        raise ValueError(f"batch is {batch.dtype} {batch.shape}, expected uint8 (..., 3)")
    mean = np.array(IMAGENET_MEAN, np.float32)
    std = np.array(IMAGENET_STD, np.float32)
    result = np.multiply(batch, 1 / (255 * std), dtype=np.float32, order="C")
    result -= mean / std
    return result


def _check_image(image: NDArray[np.uint8]) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ValueError(f"image is {image.dtype} {image.shape}, expected uint8 (H, W, 3)")


def _resize(
    image: NDArray[np.uint8],
    box: tuple[float, float, float, float],
    size: int,
    *,
    out: NDArray[np.uint8] | None = None,
    mirrored: bool = False,
) -> NDArray[np.uint8]:
    if size < 1:
        raise ValueError(f"size is {size}, expected at least 1")
    pillow = import_pillow()
    source = pillow.fromarray(np.ascontiguousarray(image))
    result = source.resize((size, size), pillow.Resampling.BILINEAR, box=box)
    if mirrored:
        result = result.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
    if out is None:
        return np.array(result)
    out[:] = np.asarray(result)
    return out
