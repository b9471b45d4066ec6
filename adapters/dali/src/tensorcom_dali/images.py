"""The JPEG files of a set as DALI takes them.

Owns guard scans, the check of what DALI would stop at without a name, and what is done about
damage; knows nothing of order or threads.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom import JpegError
from tensorcom.pcr import guarded
from tensorcom_dali.feed import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from numpy.typing import NDArray

    from tensorcom.pcr import PcrReader, PcrSource

_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"


class Damage:
    """What is done about damaged images and records.

    Args:
        reader: the set.
        on_error: "raise" or "skip".
        on_skip: called with each error that is skipped.

    Attributes:
        skipped: images that were skipped here.
    """

    def __init__(
        self, reader: PcrReader, on_error: str, on_skip: Callable[[Exception], object] | None
    ) -> None:
        self._reader, self.skips, self._on_skip = reader, on_error == "skip", on_skip
        self.skipped = 0

    def path_of(self, sample: int) -> str:
        """Return record and number of an image."""
        record, image = self._reader.record_of(sample)
        return f"{self._reader.table.names[record]} image {image}"

    def report(self, sample: int, reason: str) -> JpegError | None:
        """Skip an image, or return its error if errors are not skipped."""
        error = JpegError(reason, path=self.path_of(sample))
        if not self.skips:
            return error
        self.skipped += 1
        self.note(error)
        return None

    def note(self, error: Exception) -> None:
        """Tell of an error that was skipped."""
        if self._on_skip is not None:
            self._on_skip(error)


class Guard:
    """Adds guard scans to images of a set.

    Args:
        reader: the set.
        groups: how many groups are read; None for all.

    Attributes:
        is_mixed: images may have other numbers of groups too.
    """

    def __init__(self, reader: PcrReader, groups: int | None) -> None:
        self._groups = None if groups == reader.scan_groups else groups
        self._script = reader.script
        self.is_mixed = False

    def apply(self, jpeg: bytes) -> bytes:
        """Return an image with guard scans where they are exact."""
        if self.is_mixed:
            return guarded(jpeg)
        if self._groups is None:
            return jpeg
        if self._script is None:
            return guarded(jpeg)
        return guarded(jpeg, script=self._script, scan_groups=self._groups)


def encoded_batch(
    jpegs: Sequence[bytes],
    labels: NDArray[np.int32],
    samples: NDArray[np.int64],
    guard: Guard | None,
    damage: Damage,
) -> Batch:
    """Return a batch of JPEG files as DALI takes them, without those that are none.

    DALI stops at an image without a start or end marker, and does not say which; if errors are not
    skipped, such a batch has one.
    """
    arrays, kept = [], []
    error: JpegError | None = None
    for place, jpeg in enumerate(jpegs):
        if len(jpeg) > 4 and jpeg[:2] == _SOI and jpeg[-2:] == _EOI:
            data = jpeg if guard is None else guard.apply(jpeg)
            arrays.append(np.frombuffer(data, np.uint8))
            kept.append(place)
        else:
            reason = f"{len(jpeg)} bytes that are no JPEG from start to end marker"
            error = error or damage.report(int(samples[place]), reason)
    if error is not None and not arrays:
        arrays, kept = [np.zeros(1, np.uint8)], [0]  # a pipeline runs no batch without samples
    if len(kept) < len(jpegs):
        labels, samples = labels[kept], samples[kept]
    return Batch((arrays, labels), None, samples, error)


class Run:
    """What the thread of one epoch does. Refers to nothing that would keep the thread alive.

    Args:
        core: the source of the epoch, which the thread alone iterates.
        damage: what is done about damage.
        encodes: the images are JPEG files.
        guards: add guard scans to these.
    """

    def __init__(self, core: PcrSource, damage: Damage, *, encodes: bool, guards: bool) -> None:
        self.core = core
        self._damage, self._encodes = damage, encodes
        self._guard = Guard(core.reader, core.scan_groups) if guards else None

    def set_groups(self, value: int | None) -> None:
        """Read so many groups of what is read from now on."""
        if self._guard is not None:
            self._guard.is_mixed = True  # before the first record of the other kind is read
        self.core.scan_groups = value

    def batches(self, stopping: Callable[[], bool]) -> Generator[Batch, None, None]:
        """Yield the batches of the epoch."""
        del stopping  # a wait for storage cannot be cut short
        iterator: Any = iter(self.core)
        with closing(iterator) as batches:
            for images, labels in batches:
                batch = Batch((images, labels), None, self.core.samples)
                if self._encodes:
                    batch = encoded_batch(
                        images, labels, self.core.samples, self._guard, self._damage
                    )
                if batch.samples is not None and len(batch.samples):
                    yield batch._replace(state=self.core.state_dict())
