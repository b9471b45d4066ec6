"""What the tests of tensorcom_dali share: sets whose images tell their sample, and pipelines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import pipeline_def
from PIL import Image

from tensorcom.pcr import PcrWriter
from tensorcom_dali import external_source

SAMPLES, PER_RECORD = 23, 5
WAIT_S = 30


def gray_of(sample: int) -> int:
    return sample * 37 % 251


def gray_jpeg(sample: int) -> bytes:
    """Return an image of which every pixel, at any fidelity, tells its sample."""
    return saved(np.full((24, 32, 3), gray_of(sample), np.uint8))


def noise_jpeg(sample: int) -> bytes:
    """Return an image of which no crop is like another."""
    return saved(np.random.default_rng(sample).integers(0, 256, (40, 48, 3), np.uint8))


def saved(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def write_records(root: Path, samples: int = SAMPLES, make: Any = gray_jpeg) -> Path:
    """Write a set in which each sample is a class of its own."""
    with PcrWriter(root, images_per_record=PER_RECORD) as writer:
        for sample in range(samples):
            writer.add(make(sample), sample)
    return root


def define_raw(source: Any, **options: Any) -> Any:
    """Return a pipeline that hands on what the source gives: JPEG files of different lengths."""

    @pipeline_def(num_threads=1, device_id=None)
    def define() -> Any:
        return tuple(external_source(source))

    return define(**{"batch_size": source.batch_size, **options})


def epoch_of(pipeline: Any) -> list[list[int]]:
    """Run a pipeline to its end; return the labels of each batch."""
    found = []
    while True:
        try:
            outputs = pipeline.run()
        except StopIteration:
            pipeline.reset()
            return found
        found.append(np.asarray(outputs[-1].as_array()).ravel().tolist())


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def labels_of(batches: Any) -> list[list[int]]:
    return [np.asarray(labels).tolist() for _, labels in batches]


def check_gray(images: Any, labels: Any) -> None:
    """Check that each uint8 image is the one that its label says."""
    images, labels = np.asarray(images), np.asarray(labels).ravel()
    assert len(images) == len(labels)
    for image, label in zip(images, labels.tolist(), strict=True):
        assert abs(float(image.astype(float).mean()) - gray_of(label)) < 3, label
