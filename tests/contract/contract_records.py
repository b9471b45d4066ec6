"""Sets of records that the suite reads, and what core makes of them."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from contract_adapters import Adapter
from numpy.typing import NDArray
from PIL import Image

from tensorcom.pcr import PcrSource, PcrWriter

SAMPLES, PER_RECORD, BATCH, SIZE = 23, 5, 4, 16
Batches = list[tuple[NDArray[Any], NDArray[Any]]]


def jpeg(sample: int) -> bytes:
    """Return an image of which no crop is like another."""
    pixels = np.random.default_rng(sample).integers(0, 256, (40, 48, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def write_records(root: Path, samples: int = SAMPLES) -> Path:
    """Write a set in which each sample is a class of its own."""
    with PcrWriter(root, images_per_record=PER_RECORD) as writer:
        for sample in range(samples):
            writer.add(jpeg(sample), sample)
    return root


def opened(adapter: Adapter, root: Path | str, **arguments: Any) -> Any:
    """Return an adapter's data set, of small batches of small images."""
    return adapter.from_records(root, **{"batch_size": BATCH, "size": SIZE, **arguments})


def taken(batches: Any, adapter: Adapter) -> Batches:
    """Return the arrays of batches."""
    return [(adapter.to_numpy(images), adapter.to_numpy(labels)) for images, labels in batches]


def core(root: Path | str, epoch: int, *, readers: int = 1, **arguments: Any) -> Batches:
    """Return an epoch of core, whose readers take turns."""
    found = []
    for reader in range(readers):
        arguments = {"batch_size": BATCH, "size": SIZE, **arguments}
        with PcrSource(root, worker=(reader, readers), **arguments) as source:
            source.set_epoch(epoch)
            # Copies, so that memory that is used twice is seen in what is compared to them.
            found.append([(images.copy(), labels.copy()) for images, labels in source])
    return [batch for turn in itertools.zip_longest(*found) for batch in turn if batch is not None]


def check(found: Batches, expected: Batches) -> None:
    """Check that batches are equal, bit by bit."""
    assert [len(labels) for _, labels in found] == [len(labels) for _, labels in expected]
    for (images, labels), (wanted, numbers) in zip(found, expected, strict=True):
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
        np.testing.assert_array_equal(labels, numbers)
        np.testing.assert_array_equal(images, wanted)


def samples_of(batches: Batches) -> list[int]:
    """Return the samples of batches, in order."""
    return [label for _, labels in batches for label in labels.tolist()]
