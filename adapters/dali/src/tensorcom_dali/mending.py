"""What is left of a batch in which there are images that DALI cannot decode.

Owns the search for them: DALI stops at one, and does not say which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom import ImageError
from tensorcom.images import decode_image
from tensorcom_dali.feed import Batch, describe
from tensorcom_dali.imports import import_dali

if TYPE_CHECKING:
    from tensorcom import JpegError
    from tensorcom_dali.images import Damage


def without_undecodable(batch: Batch, damage: Damage) -> Batch | None:
    """Return a batch of JPEG files without those that DALI cannot decode; None if it can.

    Args:
        batch: images and labels.
        damage: what is done about the images. If they are not skipped, the batch has an error.
    """
    images, labels = batch.arrays
    bad = {} if batch.samples is None else find_undecodable(list(images))
    if batch.samples is None or not bad:
        return None
    error: JpegError | None = None
    for place, reason in bad.items():
        sample, said = int(batch.samples[place]), _reason_of_core(images[place])
        error = error or damage.report(sample, said or reason)
    kept = [place for place in range(len(images)) if place not in bad]
    arrays = [images[place] for place in kept], labels[kept]
    return Batch(arrays, batch.state, batch.samples[kept], error)


def find_undecodable(jpegs: list[Any]) -> dict[int, str]:
    """Return which images DALI's decoder refuses, each by itself, and what it says.

    Args:
        jpegs: uint8 (bytes,) each.
    """
    dali, fn = import_dali(), import_dali("nvidia.dali.fn")
    waiting: list[Any] = []

    def define() -> Any:
        (images,) = fn.external_source(
            source=lambda: ([waiting.pop()],), **describe([("uint8", 1, "")])
        )
        return fn.decoders.image(images, device="cpu")

    pipeline = dali.pipeline_def(define)(
        batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1
    )
    found = {}
    for place, jpeg in enumerate(jpegs):
        waiting.append(jpeg)
        try:
            pipeline.run()
        except RuntimeError as exc:
            lines = [line for line in str(exc).splitlines() if line]
            reasons = [line for line in lines if "pipeline" not in line and "File " not in line]
            found[place] = reasons[-1].strip() if reasons else lines[0]
    return found


def _reason_of_core(jpeg: Any) -> str:
    """Return what core's decoder says of an image, nothing if it takes it."""
    try:
        decode_image(np.asarray(jpeg).tobytes())
    except ImageError as exc:
        return exc.reason
    return ""
