"""PcrPyDataset: a set of records as a Keras PyDataset.

Owns what epochs, states and skipped batches mean to Keras; order, reading and decoding are core's
PcrSource, and what Keras asks `pydataset`'s.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom import PcrError, SourceError
from tensorcom.arguments import check_integers
from tensorcom.converters import check_layout, convert_layout
from tensorcom.pcr import PcrReader, PcrSource
from tensorcom_keras.pydataset import SequentialPyDataset, Taken, arranged, current_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_OF_SOURCE = ("buffer", "guard", "on_skip", "read_threads")
_NOT_OF_DATA_SETS = ("decode", "prefetch", "threads", "worker")  # of the source, but set here


class PcrPyDataset(SequentialPyDataset):
    """Batches from a set of progressive compressed records, for `fit` on any backend of Keras.

    The next epoch of `fit`, or the next `for`, is the next epoch of the set: also after one that
    was left early, as a fit with `steps_per_epoch` may leave the last one. What Keras only looks at
    comes again. A data set is used by one `fit` or loop at a time.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch. Keras accepts one in `fit` as well, and ignores it.
        scan_groups: groups to read, 1 to the set's; None reads all. Can be set at any time: before
            the first batch of an epoch, as in a callback's `on_epoch_begin`, it holds for all of
            the epoch; later, for the records that are read from then on.
        size: side of the images in pixels; None keeps each image's own, and needs batch_size=1.
        augment: "train" for random resized crops and flips, "eval" for the usual crop of the
            centre, None for the largest square.
        transform: called in the decoding threads; see `PcrSource`.
        layout: "NHWC", as images are decoded, or "NCHW", a view.
        shuffle: a new order each epoch; else that of the set. The `shuffle` of `fit` is no matter.
        seed: of order and augmentation.
        end: what makes the counts of ranks equal: "wrap", "pad", "drop"; or "uneven".
        drop_last: leave out a last batch of fewer samples.
        on_error: "raise" the error of a damaged image or record, or "skip" it. Where all of a batch
            is skipped, Keras gets one of the epoch's first batches again, since it counts batches.
        shard: (rank, ranks) of this process in its job; None takes them from the backend if that is
            distributed, else from the variables RANK and WORLD_SIZE, else (0, 1).
        arrange: called with images and labels, returns what Keras takes: (x, y) or (x, y,
            sample_weight), with dicts or tuples in it.
        cache: local directory that keeps what was read of a remote set.
        storage_options: passed on to the fsspec file system.
        workers: threads that decode; None is one for each core that the process may use.
        use_multiprocessing: must be False.
        max_queue_size: batches that are decoded before they are asked for.
        **options: further options of `PcrSource`: buffer, guard, on_skip, read_threads; and of
            `PcrReader`: retries, timeout_s, cache_bytes.

    Yields:
        (images, labels): uint8 (N, size, size, 3), or (N, 3, size, size) in layout "NCHW", and
        int32 (N,), in memory of their own; or what `arrange` returns.

    Raises:
        PcrError: the set, a record or an image is damaged, or storage failed.
        ValueError: an argument is out of range.

    Resuming: `state_dict()` between epochs, or `state_after(batches, epoch=)`. A state from within
    an epoch makes the next one shorter: fit that one alone, then the others.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        batch_size: int,
        scan_groups: int | None = None,
        size: int | None = 224,
        augment: str | None = "train",
        transform: Callable[..., Any] | None = None,
        layout: str = "NHWC",
        shuffle: bool = True,
        seed: int = 0,
        end: str = "wrap",
        drop_last: bool = False,
        on_error: str = "raise",
        shard: tuple[int, int] | None = None,
        arrange: Callable[..., Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        workers: int | None = None,
        use_multiprocessing: bool = False,
        max_queue_size: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(
            workers=workers,
            use_multiprocessing=use_multiprocessing,
            max_queue_size=max_queue_size,
        )
        for name in _NOT_OF_DATA_SETS:
            if name in options:
                raise TypeError(f"no option {name!r}; see workers, max_queue_size and shard")
        check_layout(("NHWC", layout))
        if size is None and batch_size != 1:
            raise ValueError(
                f"size=None with batch_size={batch_size}: images of different sizes make no batch; "
                "give a size, or batch_size=1"
            )
        self._layout, self._arrange = ("NHWC", layout), arrange
        self._config: dict[str, Any] = {
            "batch_size": batch_size,
            "size": size,
            "augment": augment,
            "transform": transform,
            "shuffle": shuffle,
            "seed": seed,
            "end": end,
            "drop_last": drop_last,
            "on_error": on_error,
            "shard": current_shard() if shard is None else shard,
            **{name: options.pop(name) for name in _OF_SOURCE if name in options},
        }
        self._source = PcrSource(
            root,
            scan_groups=scan_groups,
            cache=cache,
            storage_options=storage_options,
            **self._config,
            **options,
        )
        self._loaded: dict[str, Any] | None = None
        self._left: int | None = None  # batches of an epoch that goes on from a state

    def _reset_live(self) -> None:
        super()._reset_live()
        self._run = _Run()
        weakref.finalize(self, self._run.close)

    def _forget(self) -> None:
        """Let go of the iteration that Keras has."""
        self._run.close()
        self._left = None

    # -- what it is ----------------------------------------------------------------------------

    @property
    def reader(self) -> PcrReader:
        """The set."""
        return self._source.reader

    @property
    def scan_groups(self) -> int | None:
        """Groups that are read of each record; None for all."""
        return self._source.scan_groups

    @scan_groups.setter
    def scan_groups(self, value: int | None) -> None:
        self._source.scan_groups = value

    @property
    def bytes_read(self) -> int:
        """Bytes of records that this process has read so far."""
        return self._source.bytes_read

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Name of each label; None for sets of the original release, which do not say."""
        return self.reader.class_names

    def __len__(self) -> int:
        """Return the batches of a whole epoch on this rank."""
        return len(self._source)

    @property
    def num_batches(self) -> int:
        """Batches of the next epoch: fewer than `len()` if it goes on from a state."""
        return len(self) if self._left is None or self._cursor.over else self._left

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration and how far it is; what runs stays with its process."""
        with self._state:
            state = super().__getstate__()
            state["_waiting"] = self.state_dict() if self._cursor.waiting else None
            del state["_run"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        waiting = state.pop("_waiting")
        super().__setstate__(state)
        if waiting is not None:
            self._source.load_state_dict(waiting)

    # -- batches -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self._follow_fork()
        with self._pulling, self._state:
            self._settle()
            batches = self._begin()
        return self._iterate(batches)

    def _iterate(self, batches: Iterator[Any]) -> Iterator[Any]:
        for images, labels in batches:
            yield self._finish(images, labels)

    def _settle(self) -> None:
        """End what Keras has begun; what it only looked at is to come."""
        cursor = self._cursor
        cursor.open()
        if cursor.again and not cursor.over:
            self._source.load_state_dict(cursor.again[0].mark[0])
        cursor.reset()
        self._forget()

    def _begin(self) -> Iterator[Any]:
        self._source.threads, self._source.prefetch = self._threads, self._queue_size
        return iter(self._source)

    def _finish(self, images: Any, labels: Any) -> Any:
        if isinstance(images, list):
            images = np.stack(images)
        return arranged((convert_layout(images, self._layout), labels), self._arrange)

    def _take(self) -> Any:
        batch = self._next()
        if batch is None and self._cursor.position == 0:  # a state from the end of an epoch
            self._run.close()
            batch = self._next()
        return self._finish(*(self._filler() if batch is None else batch))

    def _next(self) -> Any:
        """Return the next batch of the epoch, None at its end."""
        batches = self._begun()
        try:
            return next(batches, None)
        except BaseException:
            self._run.batches = None
            raise

    def _begun(self) -> Iterator[Any]:
        """Return the batches of the epoch, which begins if none has."""
        run = self._run
        if run.batches is None:
            run.batches, run.epoch = self._begin(), self._source.epoch
        return run.batches

    def _filler(self) -> Any:
        """Return a batch of the epoch again, in the place of one that was skipped whole."""
        run = self._run
        batch = None if run.fillers is None else next(run.fillers, None)
        if batch is None:
            run.fillers = iter(self._copy(run.epoch))
            batch = next(run.fillers, None)
        if batch is None:
            raise SourceError("all images of the epoch were skipped", path=self.reader.root)
        return batch

    def _copy(self, epoch: int) -> PcrSource:
        """Return a source of the same batches that goes its own way, at the start of an epoch."""
        config = {**self._config, "on_skip": None}  # what it skips was reported
        source = PcrSource(self.reader, scan_groups=self.scan_groups, **config)
        source.set_epoch(epoch)
        return source

    # -- what Keras asks -----------------------------------------------------------------------

    def on_epoch_begin(self) -> None:
        """Take note that an epoch begins; Keras calls it.

        Raises:
            PcrError: the last one was the rest of an epoch, whose length Keras keeps.
        """
        with self._state:
            super().on_epoch_begin()
            cursor = self._cursor
            if self._left is not None and cursor.position >= self._left and not cursor.over:
                raise PcrError(
                    f"the state was that of an epoch with {self._left} batches left, which Keras "
                    "takes for the length of all epochs: fit that epoch alone, with "
                    "epochs=initial_epoch + 1, then the others in a fit of their own"
                )

    def _start_epoch(self) -> None:
        self._cursor.again.clear()  # of an epoch that was left
        self._forget()

    def _mark(self) -> Any:
        self._begun()  # until then, the source may be within an epoch that was left
        return self._source.state_dict(), self.scan_groups

    def _may_come_again(self, taken: Taken) -> bool:
        return bool(taken.mark[1] == self.scan_groups)

    def _go_back(self, mark: Any) -> None:
        self._run.close()
        self._source.load_state_dict(mark[0])

    def _forget_parent(self) -> None:
        self._run.close()

    # -- epochs and resuming -------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch `epoch`.

        A loaded state of that epoch that waits for the next iteration is kept.
        """
        check_integers(0, epoch=epoch)
        with self._pulling, self._state:
            self._settle()
            self._source.set_epoch(epoch)
            self._note_left()

    def _note_left(self) -> None:
        left = self._source.batches_left
        self._left = left if 0 < left < len(self) else None

    def state_dict(self) -> dict[str, Any]:
        """Return how far the set was read: a few numbers, JSON-compatible.

        On TensorFlow Keras takes batches before they are trained on: there it is exact between
        epochs without `steps_per_epoch`, and `state_after` at any time.
        """
        with self._state:
            waiting = self._cursor.waiting
            return dict(waiting.mark[0]) if waiting else self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration yield what was left when `state` was taken.

        Order and augmentation have the seed of the state from then on.

        Raises:
            ValueError: it is no state, or one of another set or order.
        """
        loaded = dict(state)
        with self._pulling, self._state:
            self._source.load_state_dict(loaded)
            self._config["seed"] = loaded["seed"]
            self._loaded = loaded
            self._cursor.reset()
            self._forget()
            self._note_left()

    def state_after(self, batches: int, *, epoch: int) -> dict[str, Any]:
        """Return the state after this rank was trained on `batches` batches of an epoch.

        Args:
            batches: of the epoch, or since a state of that epoch was loaded.
            epoch: the epoch that they are of.
        """
        source = self._copy(epoch)
        if self._loaded is not None and self._loaded["epoch"] == epoch:
            source.load_state_dict(self._loaded)
        return source.state_after(batches)

    def close(self) -> None:
        """End the threads and close the set; iterating again opens it."""
        with self._pulling, self._state:
            self._settle()
            if self._pid == os.getpid():
                self._source.close()


class _Run:
    """The iteration that Keras has: it ends with the data set, or before the interpreter does.

    Attributes:
        batches: of the epoch.
        epoch: its number.
        fillers: batches of the epoch again.
    """

    def __init__(self) -> None:
        self.batches: Iterator[Any] | None = None
        self.epoch = 0
        self.fillers: Iterator[Any] | None = None

    def close(self) -> None:
        """End the threads."""
        self.batches = self.fillers = None


def from_records(
    root: str | os.PathLike[str],
    *,
    batch_size: int,
    scan_groups: int | None = None,
    size: int | None = 224,
    augment: str | None = "train",
    layout: str = "NHWC",
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    end: str = "wrap",
    on_error: str = "raise",
) -> PcrPyDataset:
    """Return a data set over records; every adapter has this function with these arguments.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch.
        scan_groups: groups to read, 1 to the set's; None reads all.
        size: side of the images in pixels; None keeps each image's own, and needs batch_size=1.
        augment: "train", "eval" or None.
        layout: "NHWC" or "NCHW".
        shuffle: a new order each epoch.
        seed: of order and augmentation.
        shard: (rank, ranks); None asks the backend.
        end: "wrap", "pad", "drop" or "uneven".
        on_error: "raise" or "skip".
    """
    return PcrPyDataset(
        root,
        batch_size=batch_size,
        scan_groups=scan_groups,
        size=size,
        augment=augment,
        layout=layout,
        shuffle=shuffle,
        seed=seed,
        shard=shard,
        end=end,
        on_error=on_error,
    )
