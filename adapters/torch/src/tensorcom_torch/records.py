"""PcrDataset: a set of records as a torch IterableDataset.

Owns how loader workers and ranks share a set, and torch's kind of tensors; order, reading and
decoding are core's PcrSource.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from tensorcom import PcrError
from tensorcom.arguments import check_integers
from tensorcom.converters import check_layout, convert_layout, to_tensor
from tensorcom.images import usable_cores
from tensorcom.pcr import PcrReader, PcrSource
from tensorcom_torch.epochs import Epochs
from tensorcom_torch.workers import LoaderRole, Shard, current_role, failing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ALL_GROUPS = 0
# The other options are the reader's.
_OF_SOURCE = ("buffer", "guard", "on_skip", "prefetch", "read_threads")


class PcrDataset(IterableDataset[list[Any]]):
    """Batches of tensors from a set of progressive compressed records.

    Use it with `DataLoader(dataset, batch_size=None, num_workers=n)`: batches are made where images
    are decoded. Over all workers and ranks each sample comes once an epoch, or as `end` says where
    the ranks' counts would differ. Each worker decodes in threads of its own.

    The next iteration is the next epoch, also with new workers. A dataset is iterated by one loader
    at a time. Ranks that got it from one process count epochs each for itself.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch.
        scan_groups: groups to read, 1 to the set's; None reads all. Can be set at any time, also
            while workers run: it holds for the records that are read from then on.
        size: side of the images in pixels; None keeps each image's own, in lists.
        augment: "train" for random resized crops and flips, "eval" for the usual crop of the
            centre, None for the largest square.
        transform: called in the decoding threads; see `PcrSource`.
        decode: False gives JPEG files as bytes instead of images.
        layout: "NHWC", as images are decoded, or "NCHW", as torch's layers want them: a view in
            channels-last memory.
        shuffle: a new order each epoch; else that of the set.
        seed: of order and augmentation.
        end: what makes the counts of ranks equal: "wrap", "pad", "drop"; or "uneven".
        drop_last: leave out a last batch of fewer samples.
        threads: decoding threads of each worker; None shares the cores out.
        on_error: "raise" the error of a damaged image or record, or "skip" it.
        shard: (rank, ranks) of this process in its job; None takes them from torch.distributed if
            it is initialised, else from the variables RANK and WORLD_SIZE, else (0, 1), when the
            iteration begins.
        cache: local directory that keeps what was read of a remote set.
        storage_options: passed on to the fsspec file system.
        **options: further options of `PcrSource`: buffer, guard, on_skip, prefetch, read_threads;
            and of `PcrReader`: retries, timeout_s, cache_bytes.

    Yields:
        [images, labels]: uint8 (N, size, size, 3), or (N, 3, size, size) in layout "NCHW", and
        int32 (N,), in memory of their own. Without `size` or `decode`, images are a list.

    Raises:
        PcrError: the set, a record or an image is damaged, or storage failed.
        ValueError: an argument is out of range.

    Resuming: `state_dict()` in the process that iterates, as `StatefulDataLoader` asks each worker;
    or `state_after(batches)` in that of the loader, for any number of workers and ranks. A state
    is loaded before the loader starts its workers.
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
        decode: bool = True,
        layout: str = "NHWC",
        shuffle: bool = True,
        seed: int = 0,
        end: str = "wrap",
        drop_last: bool = False,
        threads: int | None = None,
        on_error: str = "raise",
        shard: tuple[int, int] | None = None,
        cache: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_layout(("NHWC", layout))
        check_integers(1, threads=threads, optional=True)
        self._layout = ("NHWC", layout)
        self._threads = threads
        self._shard = Shard(shard)
        of_source = {name: options.pop(name) for name in _OF_SOURCE if name in options}
        options_of_set = {"cache": cache, "storage_options": storage_options, **options}
        self._set = root, options_of_set
        self._reader: PcrReader | None = None
        self._config: dict[str, Any] = {
            "batch_size": batch_size,
            "size": size,
            "augment": augment,
            "transform": transform,
            "decode": decode,
            "shuffle": shuffle,
            "seed": seed,
            "end": end,
            "drop_last": drop_last,
            "on_error": on_error,
            **of_source,
        }
        self._epochs = Epochs()
        # In shared memory, so that workers see when it is set.
        self._groups = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._source: PcrSource | None = None
        self._owner = os.getpid()
        self.scan_groups = scan_groups
        # Wrong arguments are errors here.
        self._make_source((0, 1) if shard is None else shard, (0, 1))

    # -- what it is ----------------------------------------------------------------------------

    @property
    def reader(self) -> PcrReader:
        """The set. A copy opens it at first use: what fails in a worker then is seen here."""
        if self._reader is None:
            root, options = self._set
            self._reader = PcrReader(root, **options)
        return self._reader

    @property
    def scan_groups(self) -> int | None:
        """Groups that are read of each record; None for all."""
        value = int(self._groups.item())
        return None if value == _ALL_GROUPS else value

    @scan_groups.setter
    def scan_groups(self, value: int | None) -> None:
        self.reader.table.check_groups(value)
        self._groups[0] = _ALL_GROUPS if value is None else int(value)

    @property
    def bytes_read(self) -> int:
        """Bytes of records that this process has read so far; loader workers count their own."""
        return 0 if self._source is None else self._source.bytes_read

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Name of each label; None for sets of the original release, which do not say."""
        return self.reader.class_names

    def __len__(self) -> int:
        """Return the batches of an epoch on this rank, over all workers."""
        return len(self._make_source(self._shard.current(), (0, 1)))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration; what is open stays with its process."""
        return {**self.__dict__, "_reader": None, "_source": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._groups.is_shared():
            self._groups = self._groups.clone().share_memory_()

    # -- iterating -----------------------------------------------------------------------------

    def _make_source(
        self, shard: tuple[int, int], worker: tuple[int, int], threads: int | None = None
    ) -> PcrSource:
        return PcrSource(
            self.reader,
            scan_groups=self.scan_groups,
            shard=shard,
            worker=worker,
            threads=threads,
            **self._config,
        )

    def _own_source(self, role: LoaderRole) -> PcrSource:
        """Return the source of this process, which lives as long as the process or its shard."""
        shard, source = self._shard.current(), self._source
        if self._owner != os.getpid():
            self._owner, source = os.getpid(), None
        if source is None or (source.shard, source.worker) != (shard, role.worker):
            threads = self._threads or max(1, usable_cores() // role.worker[1])
            source = self._make_source(shard, role.worker, threads)
            self._source = source
        return source

    def __iter__(self) -> Iterator[list[Any]]:
        role = current_role()
        try:
            source = self._own_source(role)
            return self._batches(source, self._epochs.begin(role, source))
        except Exception as exc:
            if not role.is_worker:
                raise
            return failing(exc)

    def _batches(self, source: PcrSource, iteration: int) -> Iterator[list[Any]]:
        source.scan_groups = self.scan_groups
        for images, labels in source:
            self._epochs.note_moved(iteration)
            yield [self._tensors(images), to_tensor(labels)]
            source.scan_groups = self.scan_groups
        self._epochs.note_moved(iteration)

    def _tensors(self, images: Any) -> Any:
        if isinstance(images, np.ndarray):
            return convert_layout(to_tensor(images), self._layout)
        if self._layout[1] == "NHWC":
            return [to_tensor(image) for image in images]
        return [
            to_tensor(image).permute(2, 0, 1) if isinstance(image, np.ndarray) else image
            for image in images
        ]

    # -- epochs and resuming -------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch `epoch`, in all workers.

        A loaded state of that epoch that waits for the next iteration is kept.
        """
        check_integers(0, epoch=epoch)
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the iteration in this process is: a few numbers, JSON-compatible.

        Raises:
            PcrError: the last iteration was that of loader workers, and this is not one of them.
        """
        role = current_role()
        latest = self._epochs.latest(role)
        if role.is_worker or latest == role.key:
            return self._own_source(role).state_dict()
        if latest:
            raise PcrError(
                "loader workers iterate, and this process does not know how far they are: use "
                "torchdata's StatefulDataLoader, or state_after(batches, epoch=, num_workers=)"
            )
        state = self._epochs.waiting_state(role)
        if state is not None:
            return dict(state)
        source = self._make_source(self._shard.current(), role.worker)
        source.set_epoch(self._epochs.upcoming(role))
        return source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration yield what was left when `state` was taken, here or in workers.

        Order and augmentation have the seed of the state from then on.

        Raises:
            ValueError: it is no state, or one of another set, order or worker.
        """
        source = self._make_source(self._shard.current(), current_role().worker)
        source.load_state_dict(dict(state))
        self._config["seed"] = state["seed"]
        self._epochs.load(dict(state))

    def state_after(self, batches: int, *, epoch: int, num_workers: int = 0) -> dict[str, Any]:
        """Return the state after this rank was handed `batches` batches of an epoch.

        It can be loaded under any number of workers and ranks, where each rank was handed as many.

        Args:
            batches: batches that the training loop of this rank took: of the epoch, or since a
                state of that epoch was loaded. With workers, in their turn: not of a loader with
                `in_order=False`.
            epoch: the epoch that they are of.
            num_workers: of the loader that they came from.
        """
        check_integers(0, batches=batches, epoch=epoch, num_workers=num_workers)
        source = self._make_source(self._shard.current(), (0, max(1, num_workers)))
        state = self._epochs.loaded_state(epoch)
        if state is None:
            source.set_epoch(epoch)
        else:
            source.load_state_dict(state)
        return source.state_after(batches)

    def close(self) -> None:
        """Close what this process has open; iterating again opens it."""
        if self._source is not None and self._owner == os.getpid():
            self._source.close()
        self._source = None
        if self._reader is not None:
            self._reader.close()


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
) -> PcrDataset:
    """Return a data set over records; every adapter has this function with these arguments.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch.
        scan_groups: groups to read, 1 to the set's; None reads all.
        size: side of the images in pixels; None keeps each image's own.
        augment: "train", "eval" or None.
        layout: "NHWC" or "NCHW".
        shuffle: a new order each epoch.
        seed: of order and augmentation.
        shard: (rank, ranks); None asks the framework.
        end: "wrap", "pad", "drop" or "uneven".
        on_error: "raise" or "skip".
    """
    return PcrDataset(
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
