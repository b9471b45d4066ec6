"""The data source of `tensorcom serve pcr`: a set of progressive compressed records.

Owns what a batch of records says of itself as a message; order, reading and decoding are those of
`PcrSource`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from tensorcom.errors import SourceError
from tensorcom.images import normalize
from tensorcom.message import Message
from tensorcom.meta import Meta
from tensorcom.pcr import PcrReader, PcrSource
from tensorcom.serving.batching import INFOS

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from tensorcom.serving.batching import Recipe


def pcr_batches(
    root: str | os.PathLike[str],
    recipe: Recipe,
    *,
    scan_groups: int | None = None,
    shuffle: bool = True,
    epochs: int | None = None,
    index: int = 0,
    count: int = 1,
) -> Iterator[Message]:
    """Yield batches of a set of records.

    Args:
        root: directory or URL of the set.
        recipe: how images become batches.
        scan_groups: groups to read; None reads all.
        shuffle: a new order each epoch, the same for all senders; else the set's.
        epochs: passes over the data, None for ever.
        index: this sender's number.
        count: how many senders there are.

    Raises:
        SourceError: the set holds fewer images than there are senders; or an epoch has no batch,
            since every image is bad or `drop_last` leaves none.
        PcrError: the set cannot be read, or is damaged and the recipe says to raise.
        ImageError: an image is bad and the recipe says to raise.
        ValueError: `scan_groups` is out of range.
    """
    with PcrReader(root) as reader:
        groups = reader.table.check_groups(scan_groups)
        if len(reader) < count:
            raise SourceError(
                f"{len(reader)} images are fewer than {count} senders; start fewer",
                path=reader.root,
            )
        source = PcrSource(
            reader,
            batch_size=recipe.batch_size,
            scan_groups=scan_groups,
            size=recipe.size,
            augment="train" if recipe.augment else "eval",
            shuffle=shuffle,
            seed=recipe.seed,
            shard=(index, count),
            end="uneven",
            drop_last=recipe.drop_last,
            threads=recipe.threads,
            on_error=recipe.on_error,
            on_skip=recipe.on_skip,
        )
        with source:
            for epoch in itertools.count() if epochs is None else range(epochs):
                yield from _epoch(source, recipe, epoch, groups)


def _epoch(source: PcrSource, recipe: Recipe, epoch: int, groups: int) -> Iterator[Message]:
    source.set_epoch(epoch)
    sent = 0
    for images, labels in source:
        assert isinstance(images, np.ndarray)  # crops are of one size
        array = normalize(images) if recipe.normalize else images
        meta = Meta(epoch=epoch, index=sent, samples=len(labels), scan_groups=groups)
        yield Message([array, labels], INFOS, meta=meta)
        sent += 1
    if not sent:
        raise SourceError(
            f"epoch {epoch} gives no batch of {recipe.batch_size}: images are bad or too few",
            path=source.reader.root,
        )
