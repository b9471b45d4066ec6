"""Which samples a rank reads in an epoch, and in which order, as TensorFlow operations.

Owns the order as a function of the seed and of a number drawn for each iteration, and its cut into
the parts of ranks; the cut is that of core's `PcrSource`, the permutations are TensorFlow's own.
Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ENDS = ("wrap", "pad", "drop", "uneven")
_SEED = 1  # second of TensorFlow's seeds: with two zeros, it takes others


class Piece(NamedTuple):
    """A part of a record that a rank reads.

    Attributes:
        record: int64, its number.
        start: int64, first of its samples, in the order of the record's own permutation.
        stop: int64, the end of them.
        draw: int64, the number drawn for the iteration.
    """

    record: Any
    start: Any
    stop: Any
    draw: Any


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an epoch that is one rank's.

    Attributes:
        total: samples of the set.
        rank: number of the rank.
        ranks: how many there are.
        end: what makes their counts equal, as for `PcrSource`.
    """

    total: int
    rank: int
    ranks: int
    end: str

    def span(self) -> tuple[int, int]:
        """Return [start, stop) of the rank's places; those from `total` on are repeats."""
        if self.end == "uneven":
            start, stop = (self.total * (self.rank + i) // self.ranks for i in (0, 1))
            return start, stop
        share = self.total // self.ranks if self.end == "drop" else -(-self.total // self.ranks)
        return self.rank * share, (self.rank + 1) * share

    def __len__(self) -> int:
        """Return the number of samples that the rank reads."""
        start, stop = self.span()
        return stop - start

    def spans(self) -> list[tuple[int, int]]:
        """Return the rank's places as ranges within [0, total)."""
        start, stop = self.span()
        if stop <= self.total:
            return [(start, stop)] if start < stop else []
        if self.end == "pad":
            own = [(start, self.total)] if start < self.total else []
            repeats = stop - max(start, self.total)
            return own + [(self.total - 1, self.total)] * repeats
        found = []
        while start < stop:
            place = start % self.total
            size = min(stop - start, self.total - place)
            found.append((place, place + size))
            start += size
        return found


def epoch_dataset(
    make_epoch: Callable[[Any], tf.data.Dataset], *, seed: int, shuffle: bool
) -> tf.data.Dataset:
    """Return a data set whose iterations are epochs.

    Args:
        make_epoch: returns the data set of an epoch, from a number drawn for it, int64 ().
        seed: of the numbers; each iteration draws another one.
        shuffle: draw numbers; else it is always the same one.
    """
    if not shuffle:
        return make_epoch(tf.constant(0, tf.int64))
    draws = _random_dataset(seed).take(1)
    # All of an epoch is made from its number, so that the generator's state is part of what
    # a checkpoint saves for as long as the epoch lasts.
    return draws.flat_map(tf.autograph.experimental.do_not_convert(make_epoch))


def piece_dataset(
    starts: NDArray[np.int64], part: Part, draw: Any, *, seed: int, shuffle: bool
) -> tf.data.Dataset:
    """Return the pieces of records that a rank reads in an epoch.

    Args:
        starts: int64 (R + 1,), first sample of each record and the number of samples.
        part: the rank's part.
        draw: int64 (), the number of the epoch.
        seed: of the order, at least 0; ranks that have the same one get parts of the same order.
        shuffle: permute the records; else they come as they lie.

    Returns:
        A data set of `Piece`.
    """
    counts = np.diff(starts)
    spans = np.array(part.spans(), np.int64).reshape(-1, 2)
    if shuffle:
        order = permutation(len(counts), seed, draw)
    else:
        order = tf.range(len(counts), dtype=tf.int64)
    sizes = tf.gather(tf.constant(counts), order)
    stops = tf.cumsum(sizes)
    firsts = stops - sizes
    # One row for each range of places, one column for each record.
    begins = tf.maximum(firsts, spans[:, :1]) - firsts
    ends = tf.minimum(stops, spans[:, 1:]) - firsts
    rows = tf.where(begins < ends)
    pieces = Piece(
        record=tf.gather(order, rows[:, 1]),
        start=tf.gather_nd(begins, rows),
        stop=tf.gather_nd(ends, rows),
        draw=tf.repeat(draw, tf.shape(rows)[0]),
    )
    return tf.data.Dataset.from_tensor_slices(pieces)


def split_piece_dataset(
    starts: NDArray[np.int64],
    part: Part,
    epoch: Callable[[], Any],
    *,
    seed: int,
    shuffle: bool,
) -> tf.data.Dataset:
    """Return the pieces of `piece_dataset` as elements that tf.data service can deal out.

    Args:
        starts: as for `piece_dataset`.
        part: as for `piece_dataset`.
        epoch: makes the operation that reads the number of the epoch, int64 ().
        seed: of the order, which is a function of it and of the epoch: workers agree about it.
        shuffle: permute the pieces; else they come as they lie.
    """
    fixed = piece_dataset(starts, part, tf.constant(0, tf.int64), seed=seed, shuffle=False)
    rows = np.array([piece[:3] for piece in fixed.as_numpy_iterator()], np.int64).reshape(-1, 3)

    def piece(number: Any, place: Any) -> tuple[Any, Piece]:
        # Read once: an order that changes under way would lose samples, and repeat others.
        number = tf.cond(number < 0, epoch, lambda: number)
        if shuffle:
            key = tf.bitcast(random_number(seed, number), tf.int32)  # int32 (2,)
            place = tf.random.experimental.index_shuffle(place, key, len(rows) - 1)
        record, start, stop = tf.unstack(tf.constant(rows)[place])
        return number, Piece(record, start, stop, number)

    places = tf.data.Dataset.range(len(rows))
    unread = tf.constant(-1, tf.int64)
    return places.scan(unread, tf.autograph.experimental.do_not_convert(piece))


def shuffled(dataset: tf.data.Dataset, buffer: int, seed: Any) -> tf.data.Dataset:
    """Return `dataset.shuffle` in the order of `seed`, int64 (), whatever `set_seed` says."""
    spec = dataset.element_spec
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=tf.constant(buffer, tf.int64),
        seed=tf.cast(seed, tf.int64),
        seed2=tf.constant(_SEED, tf.int64),
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=False,
        **_structure(spec),
    )
    return tf.data.experimental.from_variant(variant, spec)


def _random_dataset(seed: int) -> tf.data.Dataset:
    """Return random numbers of `seed`, int64 (), other ones in each iteration.

    As `Dataset.random`, which adds `tf.random.set_seed` to its seed: ranks that call that with
    numbers of their own would draw epochs of their own, and share none.
    """
    spec = tf.TensorSpec([], tf.int64)
    variant = tf.raw_ops.RandomDatasetV2(
        seed=tf.constant(seed, tf.int64),
        seed2=tf.constant(_SEED, tf.int64),
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        rerandomize_each_iteration=True,
        **_structure(spec),
    )
    return tf.data.experimental.from_variant(variant, spec)


def _structure(spec: Any) -> dict[str, Any]:
    specs = tf.nest.flatten(spec)
    return {
        "output_types": [each.dtype for each in specs],
        "output_shapes": [each.shape for each in specs],
    }


def permutation(count: Any, *numbers: Any) -> Any:
    """Return a permutation of 0 to `count` - 1, int64 (count,): a function of some numbers."""
    draws = tf.random.stateless_uniform(
        [count], seed=random_key(*numbers), minval=None, maxval=None, dtype=tf.int64
    )
    return tf.cast(tf.argsort(draws), tf.int64)


def random_number(*numbers: Any) -> Any:
    """Return a number of all of int64, (): a function of some numbers."""
    return tf.random.stateless_uniform(
        [], seed=random_key(*numbers), minval=None, maxval=None, dtype=tf.int64
    )


def random_key(*numbers: Any) -> Any:
    """Return a seed for TensorFlow's stateless generators, int64 (2,), from some numbers.

    Only both of its numbers together depend on all that it is made from.
    """
    key = tf.zeros([2], tf.int64)
    for number in numbers:
        key = tf.random.experimental.stateless_fold_in(key, tf.cast(number, tf.int64))
    return key
