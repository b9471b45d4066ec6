"""Which reader gets which samples of an epoch, and in which order.

Owns the order as a function of seed and epoch, its cut into the parts of ranks and workers, and
what is left of it after some batches. Pure numbers: knows nothing of files, of pixels, or of who
keeps count. Random keys are the raw output of PCG64, which numpy keeps the same for ever, so that
an order is the same on every machine.

An epoch is a sequence of places. Records are permuted, samples are permuted inside each record; the
places are cut into one contiguous part for each rank, each of these into one for each worker, and
a worker shuffles its part within a bound. So only the records at the cuts are read twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

ENDS = ("wrap", "pad", "drop", "uneven")
_RECORDS, _SAMPLES, _READERS = 1, 2, 3  # streams of random keys


@dataclass(frozen=True, slots=True)
class Split:
    """How a sequence of places is dealt out to readers.

    Attributes:
        ranks: parts of equal rights; a rank is one process of a training job.
        workers: readers that share the part of a rank and hand out its batches in turn.
        batch_size: samples in a batch.
        end: what makes the ranks' counts equal. "wrap" goes on at the start, "pad" gives the last
            place again, "drop" leaves out what is too much; "uneven" has counts that differ by one
            at most, and each place once.
        drop_last: leave out a rank's last batch if it has fewer samples.
        buffer: no sample moves as much as this many places in a reader's shuffle; 0 and 1 keep the
            order.
    """

    ranks: int
    workers: int
    batch_size: int
    end: str
    drop_last: bool
    buffer: int

    def rank_span(self, total: int, rank: int) -> tuple[int, int]:
        """Return [start, stop) of a rank's places; those from `total` on are repeats."""
        if self.end == "uneven":
            return total * rank // self.ranks, total * (rank + 1) // self.ranks
        share = total // self.ranks if self.end == "drop" else -(-total // self.ranks)
        return rank * share, (rank + 1) * share

    def batches(self, total: int, rank: int) -> int:
        """Return how many batches a rank gets."""
        start, stop = self.rank_span(total, rank)
        whole, more = divmod(stop - start, self.batch_size)
        return whole if self.drop_last or not more else whole + 1

    def turns(self, batches: int, worker: int) -> int:
        """Return how many of a rank's first `batches` batches are of its worker `worker`."""
        return batches // self.workers + (worker < batches % self.workers)

    def span(self, total: int, rank: int, worker: int) -> tuple[int, int]:
        """Return [start, stop) of a reader's places.

        Workers take turns, and the last batch comes last; so it may be that of any of them.
        """
        start, stop = self.rank_span(total, rank)
        batches = self.batches(total, rank)
        missing = max(0, batches * self.batch_size - (stop - start))
        last = (batches - 1) % self.workers
        each, more = divmod(batches, self.workers)
        first = start + (worker * each + min(worker, more)) * self.batch_size
        size = self.turns(batches, worker) * self.batch_size
        if worker > last:
            return first - missing, first - missing + size
        return first, first + size - (missing if worker == last else 0)

    def taken(self, total: int, rank: int, worker: int, batches: int) -> int:
        """Return how many samples a reader handed out when its rank handed out `batches`."""
        start, stop = self.span(total, rank, worker)
        return min(stop - start, self.turns(batches, worker) * self.batch_size)


class Sequence(Protocol):
    """The samples of an epoch, or of the rest of it, by place."""

    @property
    def total(self) -> int:
        """Number of places."""
        ...

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples at places [start, stop), 0 <= start <= stop <= total."""
        ...


def _keys(count: int, seed: int, *path: int) -> NDArray[np.uint64]:
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=path))
    keys: NDArray[np.uint64] = np.asarray(bits.random_raw(count), np.uint64)
    return keys


def _permutation(count: int, seed: int, *path: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(_keys(count, seed, *path), kind="stable")
    return order


class Epoch:
    """All samples of a set, in the order of one epoch.

    Args:
        starts: int64 (R + 1,), first sample of each record and the number of samples.
        seed: of the order, at least 0.
        number: of the epoch.
        shuffle: permute records, and samples inside records; else they come as they lie.
    """

    def __init__(self, starts: NDArray[np.int64], *, seed: int, number: int, shuffle: bool) -> None:
        self._starts, self._seed, self._number = starts, seed, number
        self._records: NDArray[np.int64] | None = None
        if shuffle:
            records = len(starts) - 1
            self._records = _permutation(records, seed, _RECORDS, number)
            self._stops = np.cumsum(np.diff(starts)[self._records])

    @property
    def total(self) -> int:
        """Number of places."""
        return int(self._starts[-1])

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples at places [start, stop)."""
        if self._records is None or stop <= start:
            return np.arange(start, stop, dtype=np.int64)
        first, last = np.searchsorted(self._stops, (start, stop - 1), side="right").tolist()
        samples = [self._samples(int(record)) for record in self._records[first : last + 1]]
        before = int(self._stops[first]) - len(samples[0])
        return np.concatenate(samples)[start - before : stop - before]

    def _samples(self, record: int) -> NDArray[np.int64]:
        start, stop = self._starts[record : record + 2].tolist()
        order = _permutation(stop - start, self._seed, _SAMPLES, self._number, record)
        order += start
        return order


class Dealt:
    """A sequence that is dealt out to the readers of a split.

    Args:
        sequence: what is dealt out.
        split: how.
        seed: of the readers' shuffles.
        path: numbers that keep these shuffles apart from those of other epochs.
    """

    def __init__(self, sequence: Sequence, split: Split, *, seed: int, path: tuple[int, ...]):
        self.sequence, self.split = sequence, split
        self._seed, self._path = seed, path

    def batches(self, rank: int) -> int:
        """Return how many batches a rank gets."""
        return self.split.batches(self.sequence.total, rank)

    def order(self, rank: int, worker: int) -> NDArray[np.int64]:
        """Return all samples of a reader, in its order: its batches are cut from that."""
        start, stop = self.split.span(self.sequence.total, rank, worker)
        return self._take(start, stop)[self._moves(start, stop)]

    def tail(self, rank: int, worker: int, taken: int) -> NDArray[np.int64]:
        """Return a reader's samples but the first `taken`, without repeats of other places."""
        start, stop = self.split.span(self.sequence.total, rank, worker)
        moves = self._moves(start, stop)[taken:]
        return self._take(start, stop)[moves[moves < self.sequence.total - start]]

    def count_tail(self, rank: int, worker: int, taken: int) -> int:
        """Return the length of `tail`, mostly without making it."""
        start, stop = self.split.span(self.sequence.total, rank, worker)
        if stop <= self.sequence.total:
            return stop - start - taken
        moves = self._moves(start, stop)[taken:]
        return int(np.count_nonzero(moves < self.sequence.total - start))

    def _take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples at places that may be repeats."""
        sequence, total = self.sequence, self.sequence.total
        if stop <= total or start == stop:
            return sequence.take(start, stop)
        if self.split.end == "pad":
            last = np.repeat(sequence.take(total - 1, total), stop - max(start, total))
            return np.concatenate([sequence.take(min(start, total), total), last])
        pieces = []
        while start < stop:
            place = start % total
            size = min(stop - start, total - place)
            pieces.append(sequence.take(place, place + size))
            start += size
        return np.concatenate(pieces)

    def _moves(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the shuffle of a reader's places [start, stop), as numbers from 0."""
        count, buffer = stop - start, self.split.buffer
        if buffer <= 1:
            return np.arange(count, dtype=np.int64)
        # Each place is delayed by less than `buffer`: what lies further apart keeps its order.
        keys = _keys(count, self._seed, _READERS, *self._path, start)
        delays = (keys >> np.uint64(11)) * (buffer * 2.0**-53)
        moves: NDArray[np.int64] = np.argsort(np.arange(count) + delays, kind="stable")
        return moves


class Rest:
    """What is left of a sequence after each rank has handed out some batches.

    The readers' tails one after the other, and what the split left out. A place is left unless
    a batch held it; that a repeat of it was handed out does not count.

    Args:
        dealt: the sequence and its readers.
        batches: how many batches each rank handed out; a rank that has fewer handed out all.
    """

    def __init__(self, dealt: Dealt, batches: int) -> None:
        self._dealt = dealt
        split, total = dealt.split, dealt.sequence.total
        self._parts: list[tuple[int, int, int]] = []  # rank, worker, taken; or -1, start, stop
        self._made: dict[int, NDArray[np.int64]] = {}
        sizes = []
        for rank in range(split.ranks):
            for worker in range(split.workers):
                taken = split.taken(total, rank, worker, batches)
                self._parts.append((rank, worker, taken))
                sizes.append(dealt.count_tail(rank, worker, taken))
            start, stop = split.rank_span(total, rank)
            start += split.batches(total, rank) * split.batch_size
            self._parts.append((-1, min(start, total), min(stop, total)))
            sizes.append(max(0, min(stop, total) - min(start, total)))
        end = split.rank_span(total, split.ranks - 1)[1]
        self._parts.append((-1, min(end, total), total))
        sizes.append(total - min(end, total))
        self._stops = np.cumsum(sizes, dtype=np.int64)

    @property
    def total(self) -> int:
        """Number of places."""
        return int(self._stops[-1])

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples at places [start, stop)."""
        if stop <= start:
            return np.arange(0, dtype=np.int64)
        first, last = np.searchsorted(self._stops, (start, stop - 1), side="right").tolist()
        samples = [self._samples(part) for part in range(first, last + 1)]
        before = int(self._stops[first]) - len(samples[0])
        return np.concatenate(samples)[start - before : stop - before]

    def _samples(self, part: int) -> NDArray[np.int64]:
        # Kept, since readers of a rest of a rest ask for the same parts again.
        if part not in self._made:
            rank, start, stop = self._parts[part]
            if rank < 0:
                self._made[part] = self._dealt.sequence.take(start, stop)
            else:
                self._made[part] = self._dealt.tail(rank, start, stop)
        return self._made[part]


def deal_epoch(
    starts: NDArray[np.int64],
    split: Split,
    *,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    done: Iterable[tuple[Split, int]] = (),
) -> Dealt:
    """Deal out an epoch, or what is left of it.

    Args:
        starts: int64 (R + 1,), first sample of each record and the number of samples.
        split: the readers, batches and end.
        seed: of the order, at least 0.
        epoch: its number.
        shuffle: permute records and samples.
        done: earlier splits of the epoch, and how many batches each rank handed out under each.
    """
    sequence: Sequence = Epoch(starts, seed=seed, number=epoch, shuffle=shuffle)
    depth = 0
    for depth, (earlier, batches) in enumerate(done, start=1):
        before = Dealt(sequence, earlier, seed=seed, path=(epoch, depth - 1))
        sequence = Rest(before, batches)
    return Dealt(sequence, split, seed=seed, path=(epoch, depth))
