"""DALI's dynamic mode: its operators called on a batch, without a pipeline.

Owns one step, from the JPEG files of a batch to images. The mode is in `nvidia.dali.experimental`
and may change with any version of DALI; pipelines are the stable way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.converters import check_layout
from tensorcom_dali.imports import check_gpu, import_dali
from tensorcom_dali.pipelines import IMAGENET_MEAN, IMAGENET_STD, check_size, check_std

if TYPE_CHECKING:
    from collections.abc import Sequence


def make_rng(seed: int) -> Any:
    """Return a random generator of the dynamic mode; its `state` can be saved and set."""
    return import_dali("nvidia.dali.experimental.dynamic").random.RNG(seed=seed)


def transform_batch(
    jpegs: Sequence[Any],
    *,
    rng: Any = None,
    size: int = 224,
    device: str = "cpu",
    layout: str = "NCHW",
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> Any:
    """Decode the JPEG files of a batch, crop, resize and normalise them, now.

    Args:
        jpegs: uint8 (bytes,) each, as a PcrSource yields them, or bytes.
        rng: of `make_rng`, for random crops that are mirrored half of the time; None cuts out the
            centre in the usual way for evaluation.
        size: side of the result in pixels.
        device: "cpu", or "gpu" to decode there as far as DALI can, and do the rest.
        layout: "NCHW" or "NHWC".
        mean: of each channel, from 0 to 255.
        std: of each channel.

    Returns:
        A batch of float32 images of DALI, with `.torch()`, `.cpu()` and others.

    Raises:
        MissingDependencyError: DALI is not installed, or there is no GPU for `device="gpu"`.
        ValueError: an argument is out of range.
    """
    check_size(size)
    check_std(std)
    check_layout(("NHWC", layout))
    if not len(jpegs):
        raise ValueError("jpegs is empty, expected at least 1 image")
    if device not in ("cpu", "gpu"):
        raise ValueError(f"device={device!r}, expected 'cpu' or 'gpu'")
    if device == "gpu":
        check_gpu()
    ndd, types = import_dali("nvidia.dali.experimental.dynamic"), import_dali("nvidia.dali.types")
    batch = ndd.as_batch([np.frombuffer(jpeg, np.uint8) for jpeg in jpegs])
    images = ndd.decoders.image(
        batch, device=device, output_type=types.RGB, adjust_orientation=False
    )
    finish: dict[str, Any] = {}
    if rng is None:
        images = ndd.resize(images, resize_shorter=float(round(size * 256 / 224)))
        finish["crop"] = (size, size)
    else:
        images = ndd.random_resized_crop(images, size=[size, size], rng=rng)
        finish["mirror"] = ndd.random.coin_flip(batch_size=len(jpegs), rng=rng)
    return ndd.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout=layout[1:],
        mean=list(mean),
        std=list(std),
        **finish,
    )
