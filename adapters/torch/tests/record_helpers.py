"""What the tests of PcrDataset share: small sets whose images tell their sample, and loaders."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from tensorcom.pcr import PcrWriter
from tensorcom_torch import PcrDataset

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "pcr"
SAMPLES, PER_RECORD = 23, 5
GROUPS = 10


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


def make_dataset(root: Path, **arguments: Any) -> PcrDataset:
    return PcrDataset(root, **{"batch_size": 4, "size": 8, "threads": 2, **arguments})


def load(dataset: PcrDataset, workers: int, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=None, num_workers=workers, **arguments)


def samples_of(batches: Any) -> list[list[int]]:
    """Return the samples of each batch, having checked types and pixels."""
    found = []
    for batch in batches:
        assert type(batch) is list
        images, labels = batch
        assert labels.dtype == torch.int32
        assert len(images) == len(labels)
        for image, label in zip(images, labels.tolist(), strict=True):
            assert abs(float(image.float().mean()) - gray_of(label)) < 3, label
        found.append(labels.tolist())
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def error_of(batches: Any) -> Exception:
    """Return the error that iterating raises, without what it holds.

    A loader that is held by a traceback is closed by the garbage collector, which closes the queues
    to its workers first: each then takes torch 5 s to end.
    """
    try:
        list(batches)
    except Exception as exc:
        return exc.with_traceback(None)
    raise AssertionError("no error")
