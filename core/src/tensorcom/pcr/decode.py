"""From the images of a record to pixels of one size.

Owns what is done to one image between its bytes and its place in a batch, and how its errors are
named; knows nothing of reading, of threads or of batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorcom.images import (
    center_crop,
    decode_image,
    evaluation_view,
    sample_rng,
    training_view,
)
from tensorcom.pcr.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from tensorcom.pcr.record import RecordPrefix
    from tensorcom.pcr.scripts import ScanScript

AUGMENTATIONS = ("train", "eval", None)


class Place(NamedTuple):
    """Where an image is.

    Attributes:
        prefix: what was read of its record.
        record: file name of the record, for errors.
        image: its number there.
        sample: its number in the set.
        is_complete: the prefix holds all scan groups.
    """

    prefix: RecordPrefix
    record: str
    image: int
    sample: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Decoder:
    """What is done to an image.

    Attributes:
        size: side of the crop in pixels; None keeps images whole.
        augment: which crop. "train" is random, and mirrored half of the time; "eval" is the usual
            one for evaluation; None is the largest square in the centre.
        transform: called with the image and the sample's own random generator, after the crop.
        guard: add guard scans to incomplete images, where they are exact.
        script: scan script of the images, which makes adding guards cheap; None if unknown.
        seed: of the random generators, with the numbers of epoch and sample.
    """

    size: int | None = 224
    augment: str | None = "train"
    transform: Callable[[NDArray[np.uint8], np.random.Generator], Any] | None = None
    guard: bool = True
    script: ScanScript | None = None
    seed: int = 0

    def decode(self, place: Place, epoch: int, out: NDArray[np.uint8] | None = None) -> Any:
        """Decode an image.

        Args:
            place: where it is.
            epoch: number of the epoch.
            out: uint8 (size, size, 3) that a crop is written to; else it is new.

        Returns:
            The crop, uint8 (size, size, 3); the image, uint8 (H, W, 3), if there is no size; or
            what the transform returned.

        Raises:
            ImageError: it cannot be decoded; record and image are named.
        """
        path = f"{place.record} image {place.image}"
        jpeg = place.prefix.jpeg(place.image)
        if self.guard and not place.is_complete:
            groups = None if self.script is None else place.prefix.scan_groups
            jpeg = guarded(jpeg, script=self.script, scan_groups=groups)
        image = decode_image(jpeg, path=path)
        rng = None
        if self.augment == "train" or self.transform is not None:
            rng = sample_rng(self.seed, epoch, place.sample)
        if self.size is not None:
            image = self._crop(image, self.size, rng, out)
        return image if self.transform is None or rng is None else self.transform(image, rng)

    def _crop(
        self,
        image: NDArray[np.uint8],
        size: int,
        rng: np.random.Generator | None,
        out: NDArray[np.uint8] | None,
    ) -> NDArray[np.uint8]:
        if self.augment == "train" and rng is not None:
            return training_view(image, rng, size, out=out)
        if self.augment == "eval":
            return evaluation_view(image, size, out=out)
        return center_crop(image, size, resize=size, out=out)
