"""Between a source and a pipeline: whose turn it is, what was taken, and how DALI is told of it.

Owns the protocol of DALI's external sources, so that what DALI would answer by an assert, by
an epoch without batches or by wrong numbers is an error of ours before it happens.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorcom import SourceError
from tensorcom_dali.imports import import_dali

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

FORKED = (
    "this iteration was begun in another process, whose threads a forked one has not: begin it "
    "here, or start processes by spawn"
)
ENDED_EARLY = "the source was closed, or was given a state, before this iteration ended"
_MORE_KEPT = 2  # batches than a pipeline is told to have under way


class Batch(NamedTuple):
    """One batch on its way to a pipeline.

    Attributes:
        arrays: one for each output, or a list of the samples' arrays.
        state: of the source after this batch; None for streams.
        samples: int64 (N,), numbers of the samples in their set; None for streams.
        error: what is raised in its place, and costs no other batch.
    """

    arrays: tuple[Any, ...]
    state: dict[str, Any] | None = None
    samples: NDArray[np.int64] | None = None
    error: Exception | None = None


class Source(ABC):
    """Batches for DALI pipelines, iteration after iteration.

    Attributes:
        is_encoded: the first output holds JPEG files, not pixels.
        is_stream: iterations go on with each other, instead of being epochs.
        length: batches in an iteration, None for as many as there are.
    """

    is_encoded: bool
    is_stream = False
    length: int | None = None
    _active: weakref.ref[Batches] | None = None

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Most samples in a batch."""

    @property
    @abstractmethod
    def outputs(self) -> list[tuple[str, int, str]]:
        """Of each output the numpy name of its dtype, and axes and DALI layout of a sample."""

    @abstractmethod
    def parallel_source(self) -> dict[str, Any]:
        """Return the arguments of `fn.external_source` that say what its workers call."""

    @abstractmethod
    def begin(self) -> None:
        """Begin an iteration, or go on with one that a stream has under way."""

    @abstractmethod
    def pop(self) -> Batch:
        """Return the next batch of the iteration that was begun; StopIteration at its end."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Return an iteration, which begins with its first batch: DALI asks for more than it uses.

        Each is one epoch, or `length` batches of a stream, and ends by StopIteration once.
        """
        return Batches(self, self.length)

    @property
    def arguments(self) -> dict[str, Any]:
        """What `fn.external_source` has to be told beside `source`."""
        return {"cycle": "raise", **describe(self.outputs)}

    def grow(self, samples: int) -> bool:
        """Let batches have so many samples; return whether they may."""
        del samples
        return False

    def claim(self, batches: Batches) -> None:
        """Let an iteration be the one that takes batches.

        Raises:
            SourceError: another one that goes on does.
        """
        other = None if self._active is None else self._active()
        if other is not None and other is not batches and other.is_active_here:
            raise SourceError(
                "two pipelines read the same source, so that each would get a part of its "
                "batches: give each a source of its own, or let the first one end its epoch"
            )
        self._active = weakref.ref(batches)


def describe(outputs: Sequence[tuple[str, int, str]]) -> dict[str, Any]:
    """Return the arguments of `fn.external_source` for outputs as `Source.outputs` says."""
    types = import_dali("nvidia.dali.types")
    names = {"float32": "FLOAT"}
    return {
        "num_outputs": len(outputs),
        "batch": True,
        "dtype": [getattr(types, names.get(name, name.upper())) for name, _, _ in outputs],
        "ndim": [ndim for _, ndim, _ in outputs],
        "layout": [layout for _, _, layout in outputs],
    }


class Batches:
    """One iteration over a source.

    Args:
        source: what is iterated.
        limit: most batches, None for any number.
    """

    def __init__(self, source: Source, limit: int | None) -> None:
        self._source, self._limit = source, limit
        self._taken = 0
        self._is_active = self._is_over = False
        self._pid = os.getpid()

    @property
    def is_active_here(self) -> bool:
        """Whether it has begun, in this process, and goes on."""
        return self._is_active and self._pid == os.getpid()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> tuple[Any, ...]:
        batch = self.take()
        if batch.error is not None:
            raise batch.error
        return batch.arrays

    def take(self) -> Batch:
        """Return the next batch; begin with the first one."""
        if self._is_over:
            raise StopIteration
        if not self._is_active:
            self._source.claim(self)
            self._source.begin()
            self._is_active, self._pid = True, os.getpid()
        if self._taken == self._limit:
            self.end()
            raise StopIteration
        try:
            batch = self._source.pop()
        except BaseException:
            self.end()
            raise
        self._taken += 1
        return batch

    def end(self) -> None:
        """Let there be no more batches."""
        self._is_active, self._is_over = False, True


class Feed:
    """What a pipeline calls for its batches.

    DALI calls it ahead of use, in the thread of the training loop. An error raised there would
    take along the batches that DALI has under way; so a loader's feed holds it, and ends instead.

    Args:
        source: where batches come from.
        holds: keep errors, and the batches that are under way, for a loader.
        grows: a larger pipeline can be had for a batch that is larger than the ones before it.

    Attributes:
        under_way: batches that the pipeline took and the loader did not get yet, in order.
        taken: how many the pipeline took.
        holds: as given.
        allowed: how many it may take before it is told that there are no more; None for any number.
        error: what the source raised.
        has_ended: the source's iteration is over.
        has_outgrown: a batch waits for a pipeline as large as the source says by now.
        max_batch_size: of the pipeline, None before it is defined.
    """

    variant: tuple[int, ...] = ()  # what the seed of its pipeline is made of beside the source

    def __init__(self, source: Source, *, holds: bool = False, grows: bool = False) -> None:
        self.source = source
        self.under_way: deque[Batch] = deque(maxlen=None if holds else 0)
        self.taken = 0
        self.allowed: int | None = None
        self.error: Exception | None = None
        self.has_ended = self.has_outgrown = False
        self.max_batch_size: int | None = None
        self.holds, self._grows, self._stops = holds, grows, False
        self._waiting: deque[Batch] = deque()  # come before those of the source
        self._batches: Batches | None = None

    def __call__(self, iteration: int) -> tuple[Any, ...]:
        """Return the arrays of the next batch; StopIteration at the end of an iteration."""
        del iteration  # the source knows; DALI calls what takes no argument not after a checkpoint
        if self._stops or self.taken == self.allowed:
            raise StopIteration
        batch = self._next()
        if batch is None:
            raise StopIteration
        if batch.error is not None and not self.holds:
            raise batch.error
        self.taken += 1
        self.under_way.append(batch)
        return batch.arrays

    def _next(self) -> Batch | None:
        """Return the next batch, None if there is none that the pipeline can be given."""
        if not self._waiting and self.holds and (self.has_ended or self.error is not None):
            return None
        try:
            return self._take()
        except StopIteration:
            self._batches, self.has_ended = None, True
            return None
        except Exception as exc:
            if self._batches is not None:
                self._batches.end()
                self._batches = None
            if not self.holds:
                raise
            self.error = exc
            return None

    def _take(self) -> Batch | None:
        """Return the next batch, None if it waits for a larger pipeline."""
        if self._waiting:
            batch = self._waiting.popleft()
        else:
            if self._batches is None:
                limit = None if self.holds else self.source.length
                self._batches = Batches(self.source, limit)
                self.has_ended = False
            batch = self._batches.take()
        samples, most = len(batch.arrays[-1]), self.max_batch_size
        if most is None or samples <= most:
            return batch
        if self._grows and self.source.grow(samples):
            self._waiting.appendleft(batch)
            self.has_outgrown = True
            return None
        raise SourceError(
            f"batch of {samples} samples, but the pipeline has batch_size={most}: give the source "
            f"or the pipeline batch_size={samples} or more"
        )

    @property
    def has_more(self) -> bool:
        """Whether there are batches to be had without asking the source."""
        return bool(self._waiting)

    def take_back(self) -> None:
        """Let what is under way come again, for another pipeline."""
        self.taken -= len(self.under_way)
        self._waiting.extendleft(reversed(self.under_way))
        self.under_way.clear()

    @property
    def batch_size(self) -> int:
        """Most samples in a batch."""
        return self.source.batch_size

    def __repr__(self) -> str:
        return f"Feed({self.source!r})"

    def bind(self, pipeline: Any, *, keep: bool) -> None:
        """Note which pipeline takes the batches.

        Args:
            pipeline: the DALI pipeline.
            keep: keep each batch until the pipeline is done with it.
        """
        self.max_batch_size, self.has_outgrown = pipeline.max_batch_size, False
        if keep and not self.holds:
            depth = pipeline.prefetch_queue_depth
            depth = sum(depth.values()) if isinstance(depth, dict) else depth
            self.under_way = deque(maxlen=depth + _MORE_KEPT)

    def abandon(self) -> None:
        """Tell the pipeline, when it asks next, that the iteration is over."""
        self._stops = True
        self._waiting.clear()
        if self._batches is not None:
            self._batches.end()
            self._batches = None

    def resume(self) -> None:
        """Go on after `abandon`, with a new iteration."""
        self._stops = self.has_ended = False


class SingleFeed(Feed):
    """A feed of one batch.

    Args:
        source: what the batch is of.
        batch: of samples of a set.
    """

    def __init__(self, source: Source, batch: Batch) -> None:
        super().__init__(source)
        self._batch: Batch | None = batch
        if batch.state is not None and batch.samples is not None:
            self.variant = int(batch.state["epoch"]), int(batch.samples[0])

    def __call__(self, iteration: int) -> tuple[Any, ...]:
        """Return the arrays of the batch once."""
        del iteration
        batch, self._batch = self._batch, None
        if batch is None:
            raise StopIteration
        return batch.arrays


def as_feed(source: Source | Feed) -> Feed:
    """Return what a pipeline calls for the batches of a source.

    Raises:
        SourceError: it is no source of this package.
    """
    if isinstance(source, Feed):
        return source
    if isinstance(source, Source):
        return Feed(source)
    hint = "expected a PcrSource or StreamSource"
    if hasattr(source, "__next__"):
        hint += "; what can be iterated once only gives a pipeline no second epoch"
    raise SourceError(f"source is a {type(source).__name__}, {hint}")


def external_source(
    source: Source | Feed, *, no_copy: bool = False, parallel: bool = False, **options: Any
) -> list[Any]:
    """Make a source an input of the pipeline that is being defined.

    Args:
        source: a PcrSource or StreamSource, or what a Loader gave to the pipeline's function.
        no_copy: let DALI work on the memory of the batches, which is never written to again.
        parallel: call the source in DALI's worker processes: `py_num_workers` of the pipeline, with
            `py_start_method="spawn"`. Epochs are counted by DALI then, and `scan_groups` is that of
            this moment. Not for streams.
        **options: further arguments of `fn.external_source`.

    Returns:
        A DataNode for each output: JPEG files or pixels, and labels.

    Raises:
        SourceError: batches are larger than those of the pipeline, or `source` is none, or it is
            a loader's and `parallel` is asked for.
        ValueError: `parallel` is asked for, and the source is a stream, or gives pixels.
        MissingDependencyError: DALI is not installed.
    """
    dali, fn = import_dali(), import_dali("nvidia.dali.fn")
    feed = as_feed(source)
    pipeline = dali.Pipeline.current()
    most = pipeline.max_batch_size
    if feed.source.batch_size > most:
        raise SourceError(
            f"source has batch_size={feed.source.batch_size}, but the pipeline {most}: give the "
            "pipeline the batch_size of its source"
        )
    feed.bind(pipeline, keep=no_copy)
    arguments = {**describe(feed.source.outputs), **options}
    if parallel and feed.holds:
        raise SourceError(
            "a Loader gives batches itself, and cannot have DALI's workers do so: iterate "
            "pipelines with parallel=True or workers by DALI's own iterators"
        )
    if parallel:
        arguments |= {"parallel": True, **feed.source.parallel_source()}
        nodes: list[Any] = fn.external_source(**arguments)
    else:
        nodes = fn.external_source(source=feed, no_copy=no_copy, **arguments)
    return nodes
