"""Client-side steps on a stream: unbatch, shuffle, rebatch.

Owns what happens between received batches and the batches that a job wants; knows nothing of where
they came from.
"""

from __future__ import annotations

import random
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.arguments import check_integers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class Steps:
    """Steps for whatever iterates over tuples of arrays; each returns a new Stream to chain on."""

    _batched = True

    def __iter__(self) -> Iterator[Sequence[Any]]:
        raise NotImplementedError

    def unbatched(self) -> Stream:
        """Yield each sample of each batch; samples are views of their batch."""
        if not self._batched:
            raise ValueError("unbatched() needs batches, these are samples")
        return Stream(lambda: _unbatch(self), batched=False)

    def shuffled(self, buffer: int, *, seed: int | None = None) -> Stream:
        """Yield in random order through a buffer of `buffer` batches, or samples if unbatched.

        What waits in the buffer is copied, so that a sample does not keep its whole batch alive.
        """
        check_integers(1, buffer=buffer)
        return Stream(lambda: _shuffle(self, buffer, seed), batched=self._batched)

    def rebatch(self, n: int, *, partial: bool = True) -> Stream:
        """Yield batches of `n` samples, from batches or samples.

        Args:
            n: samples per batch.
            partial: whether a last batch of fewer is yielded.
        """
        check_integers(1, n=n)
        regroup = _rebatch if self._batched else _batch
        return Stream(lambda: regroup(self, n, partial=partial))


class Stream(Steps):
    """An iterable of batches or samples.

    Args:
        start: called at each iteration; returns the tuples of arrays.
        batched: whether the tuples are batches (leading axis N) or samples.
    """

    def __init__(
        self, start: Callable[[], Iterable[Sequence[Any]]], *, batched: bool = True
    ) -> None:
        self._start = start
        self._batched = batched

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self._start())


def _unbatch(batches: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*batch, strict=True)


def _own(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy() if value.base is not None else value
    return value.clone() if hasattr(value, "clone") else value


def _shuffle(
    items: Iterable[Sequence[Any]], buffer: int, seed: int | None
) -> Iterator[Sequence[Any]]:
    rng = random.Random(seed)  # noqa: S311 - order of samples, no secret
    held: list[Sequence[Any]] = []
    for item in items:
        owned = tuple(_own(value) for value in item)
        if len(held) < buffer:
            held.append(owned)
            continue
        position = rng.randrange(buffer)
        held[position], owned = owned, tuple(held[position])
        yield owned
    rng.shuffle(held)
    while held:
        yield held.pop()


def _stack(values: Sequence[Any]) -> Any:
    if hasattr(values[0], "clone"):
        return import_module("torch").stack(list(values))
    return np.stack(values)


def _concatenate(values: Sequence[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    if hasattr(values[0], "clone"):
        return import_module("torch").cat(list(values))
    return np.concatenate(values)


def _batch(samples: Iterable[Sequence[Any]], n: int, *, partial: bool) -> Iterator[list[Any]]:
    held: list[Sequence[Any]] = []
    for sample in samples:
        held.append(sample)
        if len(held) == n:
            yield [_stack(column) for column in zip(*held, strict=True)]
            held = []
    if held and partial:
        yield [_stack(column) for column in zip(*held, strict=True)]


def _rebatch(batches: Iterable[Sequence[Any]], n: int, *, partial: bool) -> Iterator[list[Any]]:
    held: list[Sequence[Any]] = []
    count = 0
    for batch in batches:
        start, size = 0, len(batch[0])
        while size - start >= n - count:
            stop = start + n - count
            held.append([array[start:stop] for array in batch])
            yield [_concatenate(column) for column in zip(*held, strict=True)]
            held, count, start = [], 0, stop
        if start < size:
            held.append([array[start:] for array in batch])
            count += size - start
    if held and partial:
        yield [_concatenate(column) for column in zip(*held, strict=True)]
