"""From an order of samples to batches.

Owns how reading and decoding overlap, and what becomes of samples that cannot be had; knows nothing
of epochs, readers or states. Two sorts of thread work ahead of the caller: some read records, the
others decode images into the batches that they belong to.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.buffers import aligned_array
from tensorcom.errors import ImageError, JpegError, PcrError
from tensorcom.images import map_ordered
from tensorcom.pcr.decode import Decoder, Place
from tensorcom.pcr.feed import RecordFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tensorcom.pcr.record import RecordPrefix

    Images = NDArray[Any] | list[Any]
    Loaded = tuple[Images, NDArray[np.int32], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Records:
    """The records that samples are taken from.

    Attributes:
        starts: int64 (R + 1,), first sample of each record and the number of samples.
        labels: int32 (N,), class of each sample.
        names: file name of each record.
        groups: scan groups of a complete record.
        read: reads a record; called in a thread.
        size: bytes that reading a record takes.
    """

    starts: NDArray[np.int64]
    labels: NDArray[np.int32]
    names: Sequence[str]
    groups: int
    read: Callable[[int], RecordPrefix]
    size: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Plan:
    """How samples become batches.

    Attributes:
        batch_size: samples in a batch.
        decoder: what is done to images; None hands out their bytes.
        threads: threads that decode.
        read_threads: threads that read records.
        prefetch: batches that are decoded before they are asked for.
        skip: called with the number of samples that are skipped and the error, once for a record;
            None raises the error.
    """

    batch_size: int
    decoder: Decoder | None
    threads: int
    read_threads: int
    prefetch: int
    skip: Callable[[int, Exception | None], object] | None


def load_batches(
    records: Records, samples: NDArray[np.int64], plan: Plan, *, epoch: int
) -> Generator[Loaded | None, None, None]:
    """Yield the batches of an order of samples.

    Args:
        records: where the samples are.
        samples: int64 (n,), their numbers.
        plan: how they become batches.
        epoch: seeds the augmentation, with the numbers of the samples.

    Yields:
        For each batch_size samples, images, labels and numbers of those that could be had, in new
        memory; None if there are none.

    Raises:
        PcrError: a record cannot be read, or one of its images not decoded, and none are skipped.
        ImageError: the same of an image.
    """
    uses = _Uses(records.starts, samples)
    decoder = plan.decoder
    first_use = uses.first_use()
    with RecordFeed(records.read, records.size, first_use, threads=plan.read_threads) as feed:
        tasks = _Tasks(records, uses, feed, plan)
        work = _Work(decoder, epoch, skips=plan.skip is not None)
        with ExitStack() as stack:
            results: Iterator[Any] = map(work, tasks)
            if decoder is not None:
                ahead = max(plan.prefetch * plan.batch_size, plan.threads) + 1
                results = stack.enter_context(
                    closing(
                        map_ordered(
                            work,
                            tasks,
                            threads=plan.threads,
                            ahead=ahead,
                            is_ready=tasks.is_ready,
                        )
                    )
                )
            yield from _collect(results, tasks, records.labels, samples, plan)


def _collect(
    results: Iterator[Any],
    tasks: _Tasks,
    labels: NDArray[np.int32],
    samples: NDArray[np.int64],
    plan: Plan,
) -> Generator[Loaded | None, None, None]:
    reported: list[Exception] = []
    for start in range(0, len(samples), plan.batch_size):
        numbers = samples[start : start + plan.batch_size]
        found = [next(results) for _ in range(len(numbers))]
        images: Images = tasks.take_array() if tasks.has_arrays else found
        kept = [i for i, result in enumerate(found) if not isinstance(result, Exception)]
        if len(kept) < len(found):
            _report(found, reported, plan)
            numbers = numbers[kept]
            images = images[kept] if isinstance(images, np.ndarray) else [found[i] for i in kept]
        del found
        yield (_stacked(images, plan.decoder), labels[numbers], numbers) if kept else None
        del images


def _stacked(images: Images, decoder: Decoder | None) -> Images:
    """Make one array of what a transform made of crops."""
    if decoder is None or decoder.size is None or isinstance(images, np.ndarray):
        return images
    return np.stack(images)


def _report(found: list[Any], reported: list[Exception], plan: Plan) -> None:
    if plan.skip is None:
        return
    for result in found:
        if isinstance(result, Exception):
            # All samples of a record that cannot be read share its error.
            known = any(error is result for error in reported)
            if not known and not isinstance(result, (ImageError, JpegError)):
                reported.append(result)
            plan.skip(1, None if known else result)


class _Uses:
    """Which record each sample is in, and when a record is needed first and last.

    Attributes:
        samples: int64 (n,), numbers of the samples.
        records: int64 (n,), number of each one's record.
        images: int64 (n,), number of each one in its record.
        is_last: bool (n,), true where a record is needed for the last time.
    """

    def __init__(self, starts: NDArray[np.int64], samples: NDArray[np.int64]) -> None:
        self.samples = samples
        self.records = np.searchsorted(starts, samples, side="right") - 1
        self.images = samples - starts[self.records]
        _, reverse = np.unique(self.records[::-1], return_index=True)
        self.is_last = np.zeros(len(samples), np.bool_)
        self.is_last[len(samples) - 1 - reverse] = True

    def first_use(self) -> Iterable[int]:
        """Return the records in the order of their first use."""
        records, first = np.unique(self.records, return_index=True)
        order: list[int] = records[np.argsort(first)].tolist()
        return order


class _Task:
    """One sample to work on.

    Attributes:
        place: where it is, or why its record cannot be read.
        out: where its pixels go.
    """

    __slots__ = ("out", "place")

    def __init__(self, place: Place | Exception, out: NDArray[np.uint8] | None) -> None:
        self.place, self.out = place, out


class _Tasks:
    """The samples of an order, each with its record: drawn as there is time to work on them.

    Attributes:
        has_arrays: crops go straight into arrays of whole batches.
    """

    def __init__(self, records: Records, uses: _Uses, feed: RecordFeed, plan: Plan) -> None:
        self._records, self._uses, self._feed = records, uses, feed
        self._batch_size = plan.batch_size
        decoder = plan.decoder
        self._side = None if decoder is None or decoder.transform is not None else decoder.size
        self.has_arrays = self._side is not None
        self._arrays: deque[NDArray[np.uint8]] = deque()
        self._batch: deque[tuple[int, int, int, bool]] = deque()
        self._start = 0
        self._fill()

    def take_array(self) -> NDArray[np.uint8]:
        """Return the array of the next batch."""
        return self._arrays.popleft()

    def is_ready(self) -> bool:
        """Tell whether the next sample can be had without waiting for its record."""
        return not self._batch or self._feed.is_ready(self._batch[0][0])

    def __iter__(self) -> Iterator[_Task]:
        return self

    def __next__(self) -> _Task:
        if not self._batch:
            raise StopIteration
        record, image, sample, is_last = self._batch.popleft()
        prefix = self._feed.get(record)
        out = None
        if self._side is not None:
            array = self._arrays[-1]
            out = array[len(array) - len(self._batch) - 1]
        if is_last:
            self._feed.release(record)
        if not self._batch:
            self._fill()
        if isinstance(prefix, Exception):
            return _Task(prefix, out)
        complete = prefix.scan_groups == self._records.groups
        return _Task(Place(prefix, self._records.names[record], image, sample, complete), out)

    def _fill(self) -> None:
        part = slice(self._start, self._start + self._batch_size)
        uses = self._uses
        columns = (uses.records, uses.images, uses.samples, uses.is_last)
        self._batch.extend(zip(*(column[part].tolist() for column in columns), strict=True))
        self._start = part.stop
        if self._batch and self._side is not None:
            shape = (len(self._batch), self._side, self._side, 3)
            # Aligned, since frameworks then take the memory as it is instead of a copy.
            self._arrays.append(aligned_array(prod(shape)).reshape(shape))


class _Work:
    """What a thread does with a task: the image, or the error if such are skipped."""

    def __init__(self, decoder: Decoder | None, epoch: int, *, skips: bool) -> None:
        self._decoder, self._epoch, self._skips = decoder, epoch, skips

    def __call__(self, task: _Task) -> Any:
        place = task.place
        try:
            if isinstance(place, Exception):
                raise place
            if self._decoder is None:
                return place.prefix.jpeg(place.image)
            return self._decoder.decode(place, self._epoch, task.out)
        except (PcrError, ImageError) as exc:
            if not self._skips:
                raise
            return exc
