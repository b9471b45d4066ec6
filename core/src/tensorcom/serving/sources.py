"""Data sources of the ready servers: image folders, WebDataset shards, recordings.

Owns which samples a sender sends, and in which order; decoding is in `batching`. Each takes
a sender's part, `index` of `count`: together the senders send each sample once an epoch.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tensorcom.errors import SourceError
from tensorcom.images import ImageFolder, training_folder
from tensorcom.images.folder import printable
from tensorcom.recording import read_recording
from tensorcom.serving.batching import Recipe, Sample, epoch_batches
from tensorcom.shards import expand_shards, read_shard

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from tensorcom.message import Message

SHUFFLE_BUFFER = 1000


def _epochs(count: int | None) -> Iterable[int]:
    return itertools.count() if count is None else range(count)


def folder_batches(
    root: str | os.PathLike[str],
    recipe: Recipe,
    *,
    shuffle: bool = True,
    epochs: int | None = None,
    index: int = 0,
    count: int = 1,
) -> Iterator[Message]:
    """Yield batches of an image folder.

    Args:
        root: holds a folder for each class, or a folder `train` that does.
        recipe: how images become batches.
        shuffle: a new order each epoch, the same for all senders; else the folder's.
        epochs: passes over the data, None for ever.
        index: this sender's number.
        count: how many senders there are.

    Raises:
        SourceError: the folder holds no images, or fewer than there are senders; or an epoch has no
            batch, since every image is bad or `drop_last` leaves none.
        ImageError: an image is bad and the recipe says to raise.
    """
    folder = ImageFolder(training_folder(root))
    if len(folder) < count:
        raise SourceError(
            f"{len(folder)} images are fewer than {count} senders; start fewer",
            path=printable(folder.root),
        )
    for epoch in _epochs(epochs):
        order = np.arange(len(folder))
        if shuffle:
            np.random.default_rng(np.random.SeedSequence([recipe.seed, epoch])).shuffle(order)
        samples = (
            _file_sample(folder, int(order[number]), number)
            for number in range(index, len(order), count)
        )
        sent = 0
        for message in epoch_batches(samples, recipe, epoch):
            sent += 1
            yield message
        if not sent:
            raise SourceError(
                f"epoch {epoch} gives no batch of {recipe.batch_size}: images are bad or too few",
                path=printable(folder.root),
            )


def _file_sample(folder: ImageFolder, position: int, number: int) -> Sample:
    path = folder.path(position)
    return Sample(partial(_read_file, path), int(folder.labels[position]), number, printable(path))


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise SourceError(f"cannot be read: {exc.strerror}", path=printable(path)) from exc


def shard_batches(
    shards: str | Iterable[str],
    recipe: Recipe,
    *,
    shuffle: bool = False,
    epochs: int | None = None,
    index: int = 0,
    count: int = 1,
) -> Iterator[Message]:
    """Yield batches of WebDataset shards: tars, compressed or not, of images and `cls` labels.

    Shards are dealt out to the senders; if there are fewer shards than senders, each reads all and
    keeps its part of the samples.

    Args:
        shards: names or URLs, braces expanded; whatever WebDataset opens.
        recipe: how images become batches.
        shuffle: shards in a new order each epoch, samples through a buffer of 1000.
        epochs: passes over the data, None for ever.
        index: this sender's number.
        count: how many senders there are.

    Raises:
        SourceError: a shard is missing or cut, or a sample lacks image or label.
        ImageError: an image is bad and the recipe says to raise.
    """
    names = expand_shards(shards)
    by_shard = len(names) >= count
    for epoch in _epochs(epochs):
        rng = random.Random(f"{recipe.seed}/{epoch}")  # noqa: S311 - an order, no secret
        order = rng.sample(names, len(names)) if shuffle else names
        mine = order[index::count] if by_shard else order
        samples: Iterable[Sample] = _shard_samples(mine)
        if not by_shard:
            samples = itertools.islice(samples, index, None, count)
        if shuffle:
            samples = _shuffled(samples, rng)
        # The same numbers for every sender would augment their samples alike.
        numbered = (
            replace(sample, number=index + count * position)
            for position, sample in enumerate(samples)
        )
        sent = 0
        for message in epoch_batches(numbered, recipe, epoch):
            sent += 1
            yield message
        if not sent and epochs is None:
            raise SourceError(
                "sender has no samples; start fewer senders", path=", ".join(mine[:3])
            )


def _shard_samples(shards: Iterable[str]) -> Iterator[Sample]:
    for shard in shards:
        for sample in read_shard(shard):
            yield Sample(partial(bytes, sample.image), sample.label, 0, printable(sample.place))


def _shuffled(samples: Iterable[Sample], rng: random.Random) -> Iterator[Sample]:
    held: list[Sample] = []
    for sample in samples:
        if len(held) < SHUFFLE_BUFFER:
            held.append(sample)
            continue
        position = rng.randrange(SHUFFLE_BUFFER)
        yield held[position]
        held[position] = sample
    rng.shuffle(held)
    yield from held


def replay_batches(
    path: str | os.PathLike[str],
    *,
    epochs: int | None = 1,
    rate: float | None = None,
    arrays_per_message: int = 2,
) -> Iterator[Message]:
    """Yield the messages of a recording.

    Args:
        path: a recording, or any tenbin file.
        epochs: how often, None for ever.
        rate: messages per second, None as fast as they are taken.
        arrays_per_message: for a tenbin file that is no recording.

    Raises:
        SourceError: the file cannot be read, is cut or empty.
        TenbinError: its bytes are no tenbin.
    """
    due = time.monotonic()
    for epoch in _epochs(epochs):
        sent = 0
        for message in read_recording(path, arrays_per_message=arrays_per_message):
            if not message.arrays:
                continue
            if rate is not None:
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due, time.monotonic() - 1) + 1 / rate
            # Numbers and end words are the new stream's own.
            meta = replace(message.meta, source=None, seq=None, end=None, sources=None, times={})
            yield replace(message, meta=replace(meta, epoch=epoch, index=sent))
            sent += 1
        if not sent:
            raise SourceError("holds no messages", path=printable(str(path)))


def repeat_one(source: Iterator[Message]) -> Iterator[Message]:
    """Yield the first batch of a source for ever, to measure everything but the source.

    Raises:
        SourceError: the source yields nothing.
    """
    first = next(source, None)
    close = getattr(source, "close", None)
    if close is not None:
        close()
    if first is None:
        raise SourceError("the source has no batch to repeat")
    meta = replace(first.meta, times={})
    while True:
        yield replace(first, meta=meta)
