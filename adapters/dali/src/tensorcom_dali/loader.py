"""Loader: a pipeline and its source, iterated epoch after epoch.

Owns what DALI's iterators leave to their users: lengths, epochs that begin anew after a break, last
batches, errors that cost no batch but their own, and states that count what was handed out.
"""

from __future__ import annotations

import base64
import os
import weakref
from typing import TYPE_CHECKING, Any

from tensorcom import ReceiveTimeoutError, SourceError
from tensorcom_dali.delivery import FRAMEWORKS, Delivery, deliver
from tensorcom_dali.feed import FORKED, Batch, Feed, SingleFeed, as_feed
from tensorcom_dali.imports import import_dali
from tensorcom_dali.mending import without_undecodable
from tensorcom_dali.pipelines import train_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tensorcom_dali.records import PcrSource
    from tensorcom_dali.stream import StreamSource

_BLOB = "dali"
_NOT_READ = (
    "the pipeline does not read, batch by batch, the source that it was given: call "
    "external_source(source) in its definition, once"
)
_NOT_OF_PIPELINE = (
    "the state has random generators of another pipeline: without its key 'dali' it can be loaded, "
    "and generators begin anew"
)
_INHERITED: list[Delivery] = []  # pipelines of a process of which this one is a fork


class Loader:
    """Batches of a pipeline, as arrays of a framework.

    Each iteration is one epoch, also after one that was left early, or `length` batches of a
    stream, which goes on where the last iteration stopped. Last batches have as many samples as are
    left; with `drop_last` of the source there are none.

    An image that DALI cannot decode costs its own batch only: with the source's on_error="raise",
    `next` raises an error that names it, and can be called again for the batch that follows; with
    "skip" the batch is made again without it, with other crops, the same in each run.

    Args:
        source: a PcrSource or StreamSource, of this loader alone.
        pipeline: called with what stands for the source, and `options`, for a pipeline:
            `train_pipeline`, `val_pipeline`, or a `@pipeline_def` function of your own, which calls
            `external_source` with its first argument. Called again after `load_state_dict`.
        to: "numpy", "torch" or "jax": what is yielded.
        checkpoints: let states hold DALI's random generators too, so that a run that goes on makes
            the very images that the one before would have made.
        **options: arguments of `pipeline`.

    Attributes:
        source: as given.

    Yields:
        A list of the pipeline's outputs, on its device: images and labels. Each in memory of its
        own; a list of arrays where those of one output differ in shape (numpy only).

    Raises:
        PcrError, TransportError, MessageError: of the source, after the batches before it.
        JpegError: an image cannot be decoded.
        SourceError: the pipeline does not read the source, DALI's iterator for the framework lacks
            the type of an output, or another iteration has begun.
        MissingDependencyError: DALI, torch or JAX is not installed.
    """

    _dropped: weakref.finalize[Any, Loader] | None = None

    def __init__(
        self,
        source: PcrSource | StreamSource,
        pipeline: Callable[..., Any] = train_pipeline,
        *,
        to: str = "numpy",
        checkpoints: bool = False,
        **options: Any,
    ) -> None:
        as_feed(source)
        self.source: Any = source
        self._make, self._options, self._checkpoints = pipeline, options, checkpoints
        self._to = _check_framework(to)
        self._loaded: dict[str, Any] | None = None
        self._state: dict[str, Any] | None = None  # after what was handed out of an epoch
        self._forget()

    def _forget(self) -> None:
        """Let there be no pipeline."""
        self._feed = Feed(self.source, holds=True, grows="batch_size" not in self._options)
        # A pipeline may outlive a loader that is dropped, and must not keep the source to itself.
        if self._dropped is not None:
            self._dropped.detach()
        self._dropped = weakref.finalize(self, self._feed.abandon)
        self._dropped.atexit = False
        self._delivery: Delivery | None = None
        self._needs_reset = False  # the pipeline has told its end
        self.is_over = True  # there is no batch to be had before a new iteration begins
        self._count = 0  # of batches that left the pipeline
        self._pid = os.getpid()
        self._current: object = None  # what stands for the iteration that takes batches

    # -- what it is ----------------------------------------------------------------------------

    @property
    def scan_groups(self) -> int | None:
        """Groups that are read of each record; see `PcrSource` for when a change shows."""
        value: int | None = self._records("scan_groups", AttributeError).scan_groups
        return value

    @scan_groups.setter
    def scan_groups(self, value: int | None) -> None:
        self._records("scan_groups", AttributeError).scan_groups = value

    def _records(self, name: str, error: type[Exception] = TypeError) -> PcrSource:
        """Return the source, which has to be one of records for what is asked of it."""
        if self.source.is_stream:
            raise error(f"{name}: a stream has no scan groups, epochs or states")
        source: PcrSource = self.source
        return source

    @property
    def epoch(self) -> int:
        """Number of the epoch that is read, or of the next one between epochs."""
        source = self._records("epoch", AttributeError)
        return int(source.epoch if self._state is None else self._state["epoch"])

    def __len__(self) -> int:
        """Return the batches of an iteration."""
        return len(self.source)

    def to(self, framework: str) -> Loader:
        """Yield the arrays of another framework from the next iteration on; return this loader.

        An iteration that goes on is left, as by a break: no message of a stream is lost.
        """
        self._to = _check_framework(framework)
        self._drop_pipeline(keep=self.source.is_stream)
        return self

    # -- iterating -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[Any]]:
        """Return an iteration, which begins with its first batch."""
        return _Iteration(self)

    def begin(self, iteration: object) -> None:
        """Let an iteration be the one that takes batches."""
        self._check_process()
        self._current = iteration
        feed = self._feed
        if self.source.is_stream:
            if isinstance(feed.error, ReceiveTimeoutError):
                feed.error = None  # nobody asked then
            length = self.source.length
            feed.allowed = None if length is None else self._count + length
        else:
            if not self.is_over:
                self._drain()
            self._state = self.source.next_state()
            feed.error = None
            feed.resume()
        self.is_over = False

    def _check_process(self) -> None:
        """Refuse a pipeline that came here by a fork: it would wait for ever."""
        if self._pid != os.getpid():
            if self._delivery is not None:
                raise SourceError(FORKED)
            self._forget()

    def _drain(self) -> None:
        """Take what the pipeline has under way of an epoch that was left."""
        self._feed.abandon()
        while self._delivery is not None:
            try:
                self._delivery.take()
            except StopIteration:
                break
            except RuntimeError:
                self._delivery.recover()
        self._feed.under_way.clear()
        self._needs_reset = self._delivery is not None

    def take(self, iteration: object) -> list[Any]:
        """Return the next batch of an iteration; StopIteration at its end."""
        self._check_process()
        self._check_current(iteration)
        while True:
            delivery = self._opened()
            try:
                values = delivery.take()
            except StopIteration:
                self._check_current(iteration)
                self._needs_reset = True
                self._check_end()
                continue
            except (RuntimeError, SourceError) as exc:
                mended = self._mend(exc, delivery)
                if mended is None:
                    continue
                return mended
            self._check_current(iteration)  # which another thread may have ended
            if not self._feed.under_way:
                raise SourceError(_NOT_READ)
            error = self._next_batch().error
            if error is not None:
                raise error
            return values

    def _check_current(self, iteration: object) -> None:
        if self._current is not iteration:
            raise SourceError(
                "another iteration of this loader has begun, or it was closed: this one is over"
            )

    def _opened(self) -> Delivery:
        """Return what runs the pipeline, ready to run on."""
        if self._delivery is None:
            self._delivery = self._open()
        elif self._needs_reset:
            self._needs_reset = False  # first: it may ask the feed for batches, which may fail
            self._delivery.reset()
        return self._delivery

    def _next_batch(self) -> Batch:
        """Return the batch that left the pipeline, and count it."""
        batch = self._feed.under_way.popleft()
        self._state = batch.state
        self._count += 1
        return batch

    def _check_end(self) -> None:
        """Raise what ended the pipeline; return if it only was told to stop for a while."""
        feed = self._feed
        if feed.has_outgrown:
            self._delivery, self._needs_reset = None, False  # the next one is larger
            return
        error, feed.error = feed.error, None
        self.is_over = error is not None or feed.has_ended
        if error is not None:
            raise error
        if feed.has_ended:
            feed.has_ended, self._state = False, None
            raise StopIteration
        if not self.source.is_stream:
            raise SourceError(_NOT_READ)

    def _open(self) -> Delivery:
        """Build the pipeline. A stream is asked for its first message, which says what it holds."""
        if self.source.is_stream and not self._feed.has_more:
            self._check_end()
            if self.source.first() is None:
                self.is_over = True
                raise StopIteration
        options = dict(self._options)
        checkpoint = self._checkpoint_of(self._loaded) if self._checkpoints else None
        if self._checkpoints:
            options["enable_checkpointing"] = True
        if checkpoint is not None:
            options["checkpoint"] = checkpoint
        try:
            delivery = self._build(self._feed, options)
        except RuntimeError as exc:
            if checkpoint is None or "checkpoint" not in str(exc):
                raise
            raise ValueError(_NOT_OF_PIPELINE) from exc
        self._loaded = None
        return delivery

    def _build(self, feed: Feed, options: dict[str, Any]) -> Delivery:
        feed.max_batch_size = None
        pipeline = self._make(feed, **options)
        if feed.max_batch_size is None:
            pipeline.build()
        if feed.max_batch_size is None:
            raise SourceError(_NOT_READ)
        return deliver(pipeline, self._to)

    # -- damage --------------------------------------------------------------------------------

    def _mend(self, error: Exception, delivery: Delivery) -> list[Any] | None:
        """Make a batch without the images that cannot be decoded; None if none are left.

        Raises:
            JpegError: an image cannot be decoded, and errors are not skipped.
            Exception: the error itself, if that is not about an image.
        """
        batch = self._feed.under_way[0] if self._feed.under_way else None
        left = None
        if batch is not None and batch.error is not None:
            left = batch
        elif batch is not None and self.source.is_encoded:
            left = without_undecodable(batch, self.source.damage)
        if left is None:
            if self.source.is_stream and batch is not None:
                self._next_batch()  # the one that is lost
            self._drop_pipeline(keep=self.source.is_stream)
            raise error
        self._next_batch()
        if self._checkpoints:
            # Some of DALI's generators drew for this batch, which no checkpoint says.
            self._loaded = {_BLOB: self._blob(delivery)}
            self._feed.take_back()
            self._delivery = None
        else:
            delivery.recover()
        if left.error is not None:
            raise left.error from error
        if not len(left.arrays[-1]):
            return None
        return self._build(SingleFeed(self.source, left), self._options).take()

    # -- epochs and resuming -------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch `epoch`, unless it goes on from a state of that epoch."""
        self._records("set_epoch").set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return what was handed out: core's state, and DALI's generators with `checkpoints`.

        JSON-compatible. What the pipeline has under way counts as not read.

        Raises:
            TypeError: the source is a stream.
        """
        source = self._records("state_dict")
        state = dict(source.next_state() if self._state is None else self._state)
        if not self._checkpoints:
            return state
        if self._delivery is not None:
            state[_BLOB] = self._blob(self._delivery)
        elif self._loaded is not None and _BLOB in self._loaded:
            state[_BLOB] = self._loaded[_BLOB]
        return state

    def _blob(self, delivery: Delivery) -> list[Any]:
        """Return what DALI's generators are after the last batch, and what that depends on."""
        return [*self._kind(), base64.b85encode(delivery.checkpoint()).decode()]

    def _kind(self) -> list[Any]:
        """Return what a checkpoint of DALI depends on."""
        version = str(import_dali().__version__)
        return [version, self._to, self.source.batch_size, list(self.source.shard)]

    def _checkpoint_of(self, state: Mapping[str, Any] | None) -> bytes | None:
        """Return the checkpoint in a state, None if it has none, or one of another kind."""
        *kind, blob = (state or {}).get(_BLOB, [None])
        return base64.b85decode(blob) if blob and kind == self._kind() else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration yield what was left when `state` was taken.

        A state of core, or of another framework's adapter, is one of this loader too. Random
        generators of DALI are taken over under the same rank, batch size and version of DALI;
        otherwise they begin anew.

        Raises:
            TypeError: the source is a stream.
            ValueError: it is no state, or one of another set or order. The next iteration raises it
                if the generators are those of another pipeline.
        """
        self._records("load_state_dict").load_state_dict(
            {n: v for n, v in state.items() if n != _BLOB}
        )
        self._drop_pipeline()
        self._loaded, self._state = dict(state), None

    # -- life ----------------------------------------------------------------------------------

    def _drop_pipeline(self, *, keep: bool = False) -> None:
        """Let the next iteration build the pipeline anew.

        Args:
            keep: give it what the old one has under way.
        """
        if self._delivery is not None and self._pid != os.getpid():
            _INHERITED.append(self._delivery)  # to end it would wait for its threads, or crash
            keep = False
        if keep:
            self._feed.take_back()
            self._delivery, self._needs_reset, self.is_over = None, False, True
            self._current = None
        else:
            self._feed.abandon()
            self._forget()

    def close(self) -> None:
        """Drop the pipeline and close the source; iterating again opens both."""
        self._drop_pipeline()
        self.source.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration and what comes next; the pipeline stays with its process."""
        names = ("source", "_make", "_options", "_checkpoints", "_to", "_loaded")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._state = None
        self._forget()


class _Iteration:
    """One iteration over a loader, which goes on after an error that cost one batch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._turn = object()  # stands for it in the loader, which need not refer to it
        self._left: int | None = loader.source.length
        self._has_begun = self._is_done = False

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        if self._is_done or self._left == 0:
            raise StopIteration
        if not self._has_begun:
            self._loader.begin(self._turn)
            self._has_begun = True
        try:
            values = self._loader.take(self._turn)
        except BaseException:
            self._is_done = self._loader.is_over
            raise
        if self._left is not None:
            self._left -= 1
        return values


def _check_framework(name: str) -> str:
    if name not in FRAMEWORKS:
        raise ValueError(f"to={name!r}, expected one of {', '.join(FRAMEWORKS)}")
    return name
