"""Small sets of records whose images tell their own numbers, and readers that fail or wait."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
from PIL import Image

from tensorcom.pcr import PcrReader
from tensorcom.pcr.jpeg import parse_jpeg
from tensorcom.pcr.record import encode_record
from tensorcom.pcr.scripts import STANDARD, split_groups
from tensorcom.pcr.wire import encode_index

WAIT_S = 60.0
GRAY_STEP = 37


def gray_of(number: int) -> int:
    return number * GRAY_STEP % 251


def gray_jpeg(number: int) -> bytes:
    """Return an image of which every pixel, at any number of scan groups, tells its number."""
    return progressive(np.full((30, 40, 3), gray_of(number), np.uint8))


def progressive(pixels: np.ndarray, **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(
        out, "JPEG", **{"quality": 95, "progressive": True, "optimize": True, **options}
    )
    return out.getvalue()


def noise_jpeg(number: int) -> bytes:
    rng = np.random.default_rng(number)
    small = rng.integers(0, 256, (6, 8, 3), np.uint8)
    return progressive(np.asarray(Image.fromarray(small).resize((80, 60), Image.BICUBIC)))


def write_set(folder: Path, sizes: list[int], make=gray_jpeg) -> Path:
    """Write a set with a record for each of `sizes`; labels are the numbers of the samples."""
    folder.mkdir(parents=True, exist_ok=True)
    names, parts, first = [], [], 0
    for number, size in enumerate(sizes):
        images = [make(sample) for sample in range(first, first + size)]
        groups = [split_groups(image, parse_jpeg(image), STANDARD) for image in images]
        record = encode_record(groups, list(range(first, first + size)))
        names.append(f"PCR_{number}.pcr")
        parts.append(record.parts.tolist())
        (folder / names[-1]).write_bytes(b"".join(record.pieces))
        first += size
    (folder / "PCR_index.pb").write_bytes(encode_index(names, parts))
    return folder


def labels_of(batches) -> list[int]:
    return [label for _, labels in batches for label in labels.tolist()]


def check_pixels(images, labels) -> None:
    """Check that each image is the one that its label says."""
    assert len(images) == len(labels)
    for image, label in zip(images, labels.tolist(), strict=True):
        assert abs(float(np.mean(image)) - gray_of(label)) < 3, label


class WatchedReader(PcrReader):
    """A reader that notes which records are read, and waits before some of them.

    Attributes:
        begun: records whose reading was begun, in order.
        gates: for a record, what its reading waits for.
    """

    def __init__(self, root) -> None:
        super().__init__(root)
        self.begun: list[int] = []
        self.gates: dict[int, threading.Event] = {}

    def read_prefix(self, record, *, scan_groups=None):
        self.begun.append(record)
        if record in self.gates:
            assert self.gates[record].wait(WAIT_S), "the gate was never opened"
        return super().read_prefix(record, scan_groups=scan_groups)
