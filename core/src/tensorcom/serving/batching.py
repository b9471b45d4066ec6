"""From image files to batches: decoded ahead of use, in order.

Owns the assembly of a batch; knows nothing of where samples come from or go to.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tensorcom.errors import ImageError
from tensorcom.images import (
    decode_image,
    evaluation_view,
    map_ordered,
    normalize,
    sample_rng,
    training_view,
)
from tensorcom.message import Message
from tensorcom.meta import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

INFOS = ("image", "cls")
_BATCHES_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """One encoded image.

    Attributes:
        load: returns the bytes of the file.
        label: its class, from 0.
        number: its number in the epoch, over all senders; seeds its augmentation.
        path: its name, for errors.
    """

    load: Callable[[], bytes]
    label: int
    number: int
    path: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """How samples become batches.

    Attributes:
        batch_size: samples in a batch.
        size: side of the images in pixels.
        augment: random resized crop and flip; else the centre.
        normalize: float32 by ImageNet's mean and deviation; else uint8.
        threads: threads that read and decode.
        seed: seed of the augmentation, with epoch and sample number.
        drop_last: leave out a last batch of fewer samples.
        on_error: "raise" ImageError on a bad image, or "skip" it.
        on_skip: called with the error of each image that is skipped.
    """

    batch_size: int
    size: int = 224
    augment: bool = True
    normalize: bool = False
    threads: int = 1
    seed: int = 0
    drop_last: bool = False
    on_error: str = "raise"
    on_skip: Callable[[Exception], object] | None = None

    def prepare(self, sample: Sample, epoch: int) -> NDArray[np.uint8] | None:
        """Decode and augment one sample; None if it is bad and skipped."""
        try:
            image = decode_image(sample.load(), path=sample.path)
        except ImageError as exc:
            if self.on_error != "skip":
                raise
            if self.on_skip is not None:
                self.on_skip(exc)
            return None
        if not self.augment:
            return evaluation_view(image, self.size)
        return training_view(image, sample_rng(self.seed, epoch, sample.number), self.size)


def epoch_batches(samples: Iterable[Sample], recipe: Recipe, epoch: int) -> Iterator[Message]:
    """Yield the batches of one epoch, in the order of the samples.

    Args:
        samples: what the epoch consists of for this sender; drawn as threads have time.
        recipe: how they become batches.
        epoch: number of the epoch, from 0.

    Yields:
        Messages of images (N,size,size,3), uint8 or float32, and labels int32 (N,), both new.

    Raises:
        ImageError: an image is bad and the recipe says to raise.
    """
    # One more than whole batches: none then straddles a wait for the reader of the one before.
    ahead = max(_BATCHES_AHEAD * recipe.batch_size, recipe.threads) + 1
    batch = _Batch(recipe, epoch)
    prepare = partial(_prepare_timed, recipe, epoch)
    with closing(map_ordered(prepare, samples, threads=recipe.threads, ahead=ahead)) as prepared:
        for sample in prepared:
            if batch.add(sample):
                yield batch.take()
    if batch.count and not recipe.drop_last:
        yield batch.take()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A decoded sample, None if it was skipped, and the Unix seconds of its start and end."""

    image: NDArray[np.uint8] | None
    label: int
    started: float
    ended: float


def _prepare_timed(recipe: Recipe, epoch: int, sample: Sample) -> _Prepared:
    # Taken in the thread: samples are decoded ahead, while the reader of batches is slow.
    started = time.time()
    image = recipe.prepare(sample, epoch)
    return _Prepared(image, sample.label, started, time.time())


class _Batch:
    """A batch that fills up; each one is in new memory, which the reader may keep."""

    def __init__(self, recipe: Recipe, epoch: int) -> None:
        self._recipe, self._epoch = recipe, epoch
        self._index = 0
        self._start()

    def _start(self) -> None:
        recipe = self._recipe
        self.count = 0
        self._read, self._decoded = math.inf, 0.0
        self._images = np.empty((recipe.batch_size, recipe.size, recipe.size, 3), np.uint8)
        self._labels = np.empty(recipe.batch_size, np.int32)

    def add(self, sample: _Prepared) -> bool:
        """Add an image unless it was skipped; return whether the batch is full."""
        if sample.image is None:
            return False
        self._read = min(self._read, sample.started)
        self._decoded = max(self._decoded, sample.ended)
        self._images[self.count] = sample.image
        self._labels[self.count] = sample.label
        self.count += 1
        return self.count == self._recipe.batch_size

    def take(self) -> Message:
        images: NDArray[np.uint8] | NDArray[np.float32] = self._images[: self.count]
        if self._recipe.normalize:
            images = normalize(self._images[: self.count])
        times = {"read": self._read, "decoded": self._decoded}
        meta = Meta(epoch=self._epoch, index=self._index, times=times)
        message = Message([images, self._labels[: self.count]], INFOS, meta=meta)
        self._index += 1
        self._start()
        return message
