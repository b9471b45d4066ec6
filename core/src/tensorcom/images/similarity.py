"""How alike two images are: MS-SSIM and mean squared error.

Owns the measures; knows nothing of where the images come from.

Source: Wang, Simoncelli, Bovik, "Multi-scale structural similarity for image quality assessment",
2003. Details that the paper leaves open are those of the package pytorch-msssim, so that numbers
can be compared: each RGB channel by itself, windows that lie inside of the image only, a row or
column of zeros before an odd side that is halved, negative terms cut to 0.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Planes = NDArray[np.float32]

WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
WINDOW = 11
_SIGMA = 1.5
_RANGE = 255.0
_C1, _C2 = (0.01 * _RANGE) ** 2, (0.03 * _RANGE) ** 2


def levels_of(height: int, width: int) -> int:
    """Return how many of the five levels an image is large enough for.

    The window has to fit after each halving: five levels need sides of 161 pixels, four 81, three
    41, two 21 and one 11.
    """
    side = min(height, width)
    return sum(side > (WINDOW - 1) << level for level in range(len(WEIGHTS)))


class Reference:
    """An image that others are compared with.

    What depends on it alone is computed once.

    Args:
        image: uint8 (H, W, 3).

    Attributes:
        levels: levels of MS-SSIM that the image is large enough for, 0 to 5.
    """

    def __init__(self, image: NDArray[np.uint8]) -> None:
        self._image = image
        self.levels = levels_of(*image.shape[:2])
        self._scales: list[tuple[Planes, Planes, Planes]] = []
        planes = _planes(image)
        for level in range(self.levels):
            planes = _halve(planes) if level else planes
            mean = _blur(planes)
            self._scales.append((planes, mean, _blur(planes * planes) - mean * mean))

    def mean_squared_error(self, image: NDArray[np.uint8]) -> float:
        """Return the mean squared difference over all pixels and channels."""
        difference = image.astype(np.float32) - self._image
        return float(np.mean(np.square(difference), dtype=np.float64))

    def ms_ssim(self, image: NDArray[np.uint8]) -> float | None:
        """Return the MS-SSIM of an image of the same size, mean over the channels.

        With fewer than five levels, their weights are scaled to the same sum, and the number is
        another one than with five: compare it with its like only. None without any level.
        """
        if not self.levels:
            return None
        planes = _planes(image)
        weights = np.array(WEIGHTS[: self.levels])
        weights /= weights.sum() / sum(WEIGHTS)
        product = np.ones(3)
        for level, (reference, mean, variance) in enumerate(self._scales):
            planes = _halve(planes) if level else planes
            own_mean = _blur(planes)
            own_variance = _blur(planes * planes) - own_mean * own_mean
            covariance = _blur(planes * reference) - own_mean * mean
            likeness = (2 * covariance + _C2) / (own_variance + variance + _C2)
            if level == self.levels - 1:
                likeness *= (2 * own_mean * mean + _C1) / (own_mean**2 + mean**2 + _C1)
            found = likeness.mean(axis=(1, 2), dtype=np.float64)
            product *= np.maximum(found, 0) ** weights[level]
        return float(product.mean())


def psnr_db(mean_squared_error: float) -> float:
    """Return the peak signal-to-noise ratio in decibels, infinite for equal images."""
    if mean_squared_error == 0:
        return math.inf
    return 10 * math.log10(_RANGE**2 / mean_squared_error)


def _planes(image: NDArray[np.uint8]) -> Planes:
    return np.ascontiguousarray(np.moveaxis(image, -1, 0), np.float32)


def _halve(planes: Planes) -> Planes:
    """Average blocks of 2 x 2."""
    height, width = planes.shape[1:]
    if height % 2 or width % 2:
        planes = np.pad(planes, ((0, 0), (height % 2, 0), (width % 2, 0)))
    halved: Planes = planes[:, ::2] + planes[:, 1::2]
    return (halved[:, :, ::2] + halved[:, :, 1::2]) * np.float32(0.25)


@lru_cache(maxsize=1)
def _taps() -> tuple[np.float32, ...]:
    """Return the window, a Gaussian, up to and with its centre; it is symmetric."""
    window = np.exp(-(np.arange(-(WINDOW // 2), 1.0) ** 2) / (2 * _SIGMA**2))
    window /= 2 * window.sum() - 1
    return tuple(window.astype(np.float32))


def _blur(planes: Planes) -> Planes:
    """Average by the window, where it lies inside of the image."""
    # Plane by plane, which stays in a core's cache.
    return np.stack([_blur_rows(_blur_rows(plane).T).T for plane in planes])


def _blur_rows(plane: Planes) -> Planes:
    stop = len(plane) - WINDOW + 1
    *sides, centre = _taps()
    total: Planes = plane[WINDOW // 2 :][:stop] * centre
    for place, weight in enumerate(sides):
        pair = plane[place:][:stop] + plane[WINDOW - 1 - place :][:stop]
        pair *= weight
        total += pair
    return total
