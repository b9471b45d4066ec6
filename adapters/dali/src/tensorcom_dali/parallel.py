"""Batches of records by their numbers, for the worker processes of DALI.

Owns nothing that changes: any worker can be asked for any batch of any epoch, in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorcom import PcrError
from tensorcom_dali.images import Guard, encoded_batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tensorcom_dali.records import PcrSource


class RecordBatches:
    """Returns a batch by its number: what `fn.external_source(parallel=True)` calls.

    The batches are those of the source in one process. Each image is read by itself, by a small
    read for each group: right for disks, slow for storage that takes long to answer.

    Args:
        source: where they come from.
        epoch: the number of DALI's epoch 0.
        guards: add guard scans.
    """

    def __init__(self, source: PcrSource, epoch: int, *, guards: bool) -> None:
        self._source, self._epoch, self._guards = source, epoch, guards
        self._batches: int | None = None
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def __call__(self, info: Any) -> tuple[Any, ...]:
        """Return the arrays of a batch; StopIteration past the end.

        Args:
            info: DALI's BatchInfo: `iteration` and `epoch_idx`.

        Raises:
            PcrError: an image cannot be read; with on_error="skip", none of the batch can.
        """
        source = self._source
        if self._batches is None:
            self._batches = len(source)
        if info.iteration >= self._batches:
            raise StopIteration
        epoch = self._epoch + info.epoch_idx
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, source.order(epoch)
        start = info.iteration * source.batch_size
        samples = self._order[1][start : start + source.batch_size]
        jpegs, kept = [], []
        failure: PcrError | None = None
        for place, sample in enumerate(samples.tolist()):
            try:
                jpegs.append(source.reader.sample(sample, scan_groups=source.scan_groups)[0])
                kept.append(place)
            except PcrError as exc:
                if not source.damage.skips:
                    raise
                source.damage.note(exc)
                failure = exc
        samples = samples[kept]
        guard = Guard(source.reader, source.scan_groups) if self._guards else None
        labels = source.reader.labels[samples]
        batch = encoded_batch(jpegs, labels, samples, guard, source.damage)
        if batch.error is not None:
            raise batch.error
        if not batch.arrays[0]:
            reason = "no image can be read, and DALI's workers cannot leave a batch out"
            raise failure or PcrError(f"batch {info.iteration}: {reason}")
        return batch.arrays
