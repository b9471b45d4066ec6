"""What the tests of Connection share: numbered batches, and their numbers back."""

from __future__ import annotations

import numpy as np

LONG_S = 30.0


def batch(number: int, samples: int = 4) -> list[np.ndarray]:
    return [np.full((samples, 2, 3, 1), number, "u1"), np.full(samples, number, "i4")]


def numbers(batches) -> list[int]:
    return [int(labels[0]) for _, labels in batches]
