"""What the tests of TensorcomDataset share: numbered batches, and their ids back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

WAIT_S = 30
SAMPLES = 4


def batch(number: int, samples: int = SAMPLES) -> list[NDArray[Any]]:
    """Return images of which each pixel is the sample's id, and the ids."""
    ids = np.arange(samples, dtype="i4") + number * samples
    return [np.broadcast_to(ids.reshape(-1, 1, 1, 1) % 251, (samples, 4, 3, 2)).astype("u1"), ids]


def counting() -> Iterator[list[NDArray[Any]]]:
    number = 0
    while True:
        yield batch(number)
        number += 1


def ids(batches: Any) -> list[int]:
    """Return the sample ids of batches, having checked their pixels."""
    found: list[int] = []
    for images, labels in batches:
        assert torch.equal(images[:, 0, 0, 0], (labels % 251).to(torch.uint8))
        found.extend(labels.tolist())
    return found


def read_all(datasets: list[Any]) -> list[list[int]]:
    """Iterate data sets to their ends at the same time."""
    with ThreadPoolExecutor(len(datasets)) as threads:
        return list(threads.map(ids, datasets))
