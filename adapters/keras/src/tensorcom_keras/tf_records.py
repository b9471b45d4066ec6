"""pcr_dataset: a set of records as a tf.data.Dataset of stock TensorFlow operations.

Owns the pipeline from record names to batches; the order is `tf_order`'s, files are `tf_parse`'s
and pixels `tf_views`'s. No Python runs in the graph.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorcom.arguments import check_integers, check_share
from tensorcom.errors import SourceError
from tensorcom.images import usable_cores
from tensorcom_keras.tf_control import control_of
from tensorcom_keras.tf_memory import keep_freed_blocks
from tensorcom_keras.tf_order import (
    ENDS,
    Part,
    epoch_dataset,
    piece_dataset,
    random_number,
    shuffled,
    split_piece_dataset,
)
from tensorcom_keras.tf_readahead import AHEAD, Readahead
from tensorcom_keras.tf_set import RecordSet
from tensorcom_keras.tf_stages import BatchDecoder, RecordReader, drop_damaged, drop_places

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorcom_keras.fidelity import FidelitySchedule

BUFFER = 1000
_AUGMENTATIONS = ("train", "eval", None)
_BATCHES_AT_ONCE = 2
_WAITING = 2 + _BATCHES_AT_ONCE  # threads that wait for others


def pcr_dataset(
    root: str | os.PathLike[str],
    *,
    batch_size: int,
    scan_groups: int | tf.Variable | str | FidelitySchedule | None = None,
    decode: bool = True,
    size: int = 224,
    augment: str | None = "train",
    shuffle: bool = True,
    buffer: int = BUFFER,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    end: str = "wrap",
    drop_last: bool = False,
    on_error: str = "raise",
    deterministic: bool = True,
    num_parallel_reads: int = 2,
    num_parallel_calls: int | None = None,
    readahead: bool = True,
    service: bool = False,
) -> tf.data.Dataset:
    """Return a set of records as a data set of batches, read and decoded inside the graph.

    Reads sets of this version and of the original release. Each iteration is an epoch of the
    rank's part; with `shuffle` its order and its random crops are those of the seed and of
    the number of the iteration. Iterators can be saved with `tf.train.Checkpoint` and go on
    exactly. A checkpoint holds what was read ahead; with the option
    `experimental_symbolic_checkpoint`
    only where that was, but for the shuffle buffer.

    The order is TensorFlow's own. For batches equal to those of the other adapters, use
    `from_records`, or `as_tf_dataset` of it.

    Args:
        root: directory of the set, or a URL of it that `tf.io.gfile` knows. With tf.data service,
            a path that all workers see.
        batch_size: samples in a batch.
        scan_groups: groups to read, 1 to the set's, None for all; a tf.Variable or
            a `FidelitySchedule`, read for each record; or the path of a text file that holds the
            number, read for each record, which is the form that tf.data service follows.
        decode: False gives JPEG files, string (N,), the bytes that `PcrReader` gives.
        size: side of the crops in pixels.
        augment: "train" for random resized crops, mirrored half of the time; "eval" for the usual
            crop of the centre; None for the largest square.
        shuffle: a new order in each iteration; else that of the set.
        buffer: samples in the shuffle buffer, which holds them as JPEG.
        seed: of order and crops, at least 0; the same on all ranks.
        shard: (rank, ranks) of this process in its job.
        end: what makes the counts of ranks equal: "wrap", "pad", "drop"; or "uneven".
        drop_last: leave out a last batch of fewer samples.
        on_error: "raise" an error that names record and image, or "skip" what is damaged and print
            a line for it to stderr; the number of batches is then not known beforehand.
        deterministic: batches come in their order; False lets those that are ready overtake.
        num_parallel_reads: records that are read at the same time. Each is in memory, several times
            while it is taken apart.
        num_parallel_calls: images decoded at the same time; None takes the usable cores.
        readahead: on Linux, a thread asks the kernel ahead of time for the prefixes that will be
            read, which keeps it from reading more.
        service: make a data set that tf.data service can split between its workers, by records.
            Order and crops are those of the seed and of the epoch that a `FidelitySchedule` with
            a file as its target says, and the same each time without. Each worker has a last
            batch of its own.

    Returns:
        A data set of (images, labels): uint8 (N, size, size, 3) and int32 (N,). Its cardinality
        is the number of batches, unless it is for tf.data service or skips.

    Raises:
        PcrError: there is no such set, or its index is damaged.
        SourceError: it has no samples, or too few for these ranks and batches.
        ValueError: an argument is out of range.

    While iterating, errors are TensorFlow's and hold our text.
    """
    _check_choices(augment=augment, end=end, on_error=on_error)
    check_integers(1, batch_size=batch_size, size=size, num_parallel_reads=num_parallel_reads)
    check_integers(1, num_parallel_calls=num_parallel_calls, optional=True)
    check_integers(0, buffer=buffer, seed=seed)
    seed %= 1 << 63  # what TensorFlow takes
    keep_freed_blocks()
    skips = on_error == "skip"
    records = RecordSet.open(root, skips=skips)
    control = control_of(scan_groups, records.groups, service=service)
    part = _check_part(records, shard, end, batch_size, drop_last=drop_last)
    reads_ahead = readahead and not service and records.is_local and hasattr(os, "posix_fadvise")
    # Made inside a tf.function, a data set is none of Python's, whose end could be told.
    reads_ahead = reads_ahead and tf.executing_eagerly()
    steps = _Steps(
        reader=RecordReader(records, control.groups, seed=seed, shuffle=shuffle, skips=skips),
        decoder=BatchDecoder(
            records,
            seed=seed,
            size=size,
            augment=augment,
            skips=skips,
            num_parallel_calls=num_parallel_calls or usable_cores(),
        )
        if decode
        else None,
        ahead=Readahead(records.root, records.names, records.ends) if reads_ahead else None,
        batch_size=batch_size,
        drop_last=drop_last,
        buffer=buffer if shuffle else 0,
        num_parallel_reads=num_parallel_reads,
        deterministic=deterministic,
    )

    def make_epoch(draw: Any) -> tf.data.Dataset:
        pieces = piece_dataset(records.starts, part, draw, seed=seed, shuffle=shuffle)
        return steps.batches(pieces, random_number(seed, draw))

    if service:
        pieces = split_piece_dataset(
            records.starts, part, control.epoch, seed=seed, shuffle=shuffle
        )
        dataset = steps.batches(pieces, seed)
    else:
        dataset = epoch_dataset(make_epoch, seed=seed, shuffle=shuffle)
    if skips:
        dataset = dataset.filter(lambda _, labels: tf.size(labels) > 0)
    elif not service:
        whole, more = divmod(len(part), batch_size)
        batches = whole if drop_last or not more else whole + 1
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches))
    options = tf.data.Options()
    # Reading files inside of functions counts as state, which checkpoints could not hold.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    # TensorFlow has a thread for each core, and a read that waits for storage holds one: with as
    # many reads as cores, nothing would be decoded meanwhile.
    calls = num_parallel_calls or usable_cores()
    options.threading.private_threadpool_size = calls + num_parallel_reads + _WAITING
    dataset = dataset.with_options(options)
    if steps.ahead is not None:
        steps.ahead.start(dataset)
    return dataset


@dataclass(frozen=True)
class _Steps:
    """The way from pieces of records to batches; attributes as the arguments of `pcr_dataset`."""

    reader: RecordReader
    decoder: BatchDecoder | None
    ahead: Readahead | None
    batch_size: int
    drop_last: bool
    buffer: int
    num_parallel_reads: int
    deterministic: bool

    def batches(self, pieces: tf.data.Dataset, buffer_seed: Any) -> tf.data.Dataset:
        """Return the batches of an epoch; `buffer_seed` is that of the shuffle buffer."""
        ahead = self.ahead
        if ahead is not None:
            announce = _unconverted(lambda piece: ahead.announce(piece, self.reader.groups()))
            pieces = pieces.map(announce).prefetch(AHEAD)
        samples = pieces.map(
            _unconverted(self.reader.read),
            num_parallel_calls=self.num_parallel_reads,
            deterministic=self.deterministic,
        )
        samples = samples.unbatch()
        if self.buffer > 1:
            samples = shuffled(samples, self.buffer, buffer_seed)
        finish: Callable[..., Any]
        if self.decoder is not None:
            finish = self.decoder.decode
        else:
            finish = drop_damaged if self.reader.skips else drop_places
        return samples.batch(self.batch_size, drop_remainder=self.drop_last).map(
            _unconverted(finish),
            num_parallel_calls=_BATCHES_AT_ONCE,
            deterministic=self.deterministic,
        )


def _unconverted(function: Any) -> Any:
    return tf.autograph.experimental.do_not_convert(function)


def _check_choices(*, augment: str | None, end: str, on_error: str) -> None:
    if augment not in _AUGMENTATIONS:
        raise ValueError(f"augment={augment!r}, expected 'train', 'eval' or None")
    if end not in ENDS:
        raise ValueError(f"end={end!r}, expected one of {', '.join(ENDS)}")
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error={on_error!r}, expected 'raise' or 'skip'")


def _check_part(
    records: RecordSet, shard: tuple[int, int], end: str, batch_size: int, *, drop_last: bool
) -> Part:
    rank, ranks = check_share("shard", shard)
    samples = int(records.starts[-1])
    part = Part(samples, rank, ranks, end)
    if samples == 0:
        reason = "holds no samples"
    elif samples < ranks and end in ("drop", "uneven"):
        reason = f"{samples} samples are fewer than {ranks} ranks, with end={end!r}"
    elif drop_last and len(part) < batch_size:
        reason = f"drop_last leaves no batch of {batch_size} of a rank's {len(part)} samples"
    else:
        return part
    raise SourceError(reason, path=records.root)
