"""DeviceRecords: a set of records as batches on devices.

Owns how far a set was handed out, which is not as far as it was read; order, reading and decoding
are core's PcrSource, and where arrays go `placement`'s.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.ahead import Ahead
from tensorcom.arguments import check_integers, check_share
from tensorcom.converters import check_layout, convert_layout
from tensorcom.pcr import PcrReader, PcrSource
from tensorcom_jax.placement import Placement, default_device

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from tensorcom_jax.placement import Shardings

    Batch = tuple[Any, ...]
    State = dict[str, Any]

_OF_SOURCE = ("buffer", "guard", "on_skip", "read_threads")  # the other options are the reader's


class DeviceRecords:
    """Batches of a set of progressive compressed records, as `jax.Array`s.

    Threads read and decode, and one puts batches on devices, before they are asked for. Each
    iteration is one epoch, and the next one is the next epoch, also after one that was left early.
    One iteration runs at a time; a new one ends the one before.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch of this process.
        scan_groups: groups to read, 1 to the set's; None reads all. Can be set at any time: it
            holds for the records that are read from then on, which are later ones than those that
            were read ahead.
        sharding: where images and labels go; see `Placement`. With one that spans processes, each
            gives `batch_size` samples of a global batch.
        prefetch: batches on devices before they are asked for.
        size: side of the images in pixels; None keeps each image's own, in lists.
        augment: "train" for random resized crops and flips, "eval" for the usual crop of the
            centre, None for the largest square.
        transform: called in the decoding threads; see `PcrSource`.
        decode: False gives JPEG files as bytes, which stay on the host, instead of images.
        layout: "NHWC", as images are decoded, or "NCHW".
        shuffle: a new order each epoch; else that of the set.
        seed: of order and augmentation.
        end: what makes the counts of ranks equal: "wrap", "pad", "drop"; or "uneven".
        drop_last: leave out a last batch of fewer samples.
        threads: decoding threads; None is one for each core.
        on_error: "raise" the error of a damaged image or record, or "skip" it. Devices that share a
            batch then get one cut to what they can share equally; processes cannot.
        shard: (rank, ranks) of this process; None takes them from the sharding if that spans
            processes, else from `jax.distributed` if it is initialised, else (0, 1), when the
            iteration begins.
        cache: local directory that keeps what was read of a remote set.
        storage_options: passed on to the fsspec file system.
        **options: further options of `PcrSource`: buffer, guard, on_skip, read_threads; and of
            `PcrReader`: retries, timeout_s, cache_bytes.

    Yields:
        (images, labels): uint8 (N, size, size, 3), or (N, 3, size, size) in layout "NCHW", and
        int32 (N,). Without `size` or `decode`, images are a list.

    Raises:
        PcrError: the set, a record or an image is damaged, or storage failed.
        ValueError: an argument is out of range, or batches cannot be split as the sharding says.

    Pickles as configuration, with the epoch or state of its next iteration.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        batch_size: int,
        scan_groups: int | None = None,
        sharding: Shardings = None,
        prefetch: int = 2,
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
        check_layout(("NHWC", layout))
        check_integers(1, prefetch=prefetch)
        self._layout, self._prefetch = layout, prefetch
        self._given_shard = None if shard is None else check_share("shard", shard)
        self._placement = Placement(sharding)
        self._placement.check_arrays(2)
        if self._placement.spans_processes and (end == "uneven" or on_error == "skip"):
            raise ValueError(
                f"end={end!r}, on_error={on_error!r}: processes that share arrays need batches of "
                "one size, so end='uneven' and on_error='skip' are not possible here"
            )
        if size is None and decode and self._placement.is_split:
            raise ValueError(
                "size=None gives images of different sizes, which devices cannot share: give a size"
            )
        of_source = {name: options.pop(name) for name in _OF_SOURCE if name in options}
        self._set = root, {"cache": cache, "storage_options": storage_options, **options}
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
            "threads": threads,
            "on_error": on_error,
            **of_source,
        }
        self._groups = scan_groups
        self._upcoming: State | int | None = None
        self._forget()
        self._check_batches(self._own_source())  # wrong arguments are errors here

    def _forget(self) -> None:
        """Begin as a new object of this process."""
        self._pid = os.getpid()
        self._reader: PcrReader | None = None
        self._source: PcrSource | None = None
        self._running: Ahead[tuple[list[Batch], State]] | None = None
        # Of the last iteration: the state after what was handed out, and whether that was anything.
        self._handed: State | None = None
        self._has_begun = False
        self._cut = 0

    # -- what it is ----------------------------------------------------------------------------

    @property
    def reader(self) -> PcrReader:
        """The set; a copy opens it at first use."""
        if self._reader is None:
            root, options = self._set
            self._reader = PcrReader(root, **options)
        return self._reader

    @property
    def scan_groups(self) -> int | None:
        """Groups that are read of each record; None for all."""
        return self._groups

    @scan_groups.setter
    def scan_groups(self, value: int | None) -> None:
        self.reader.table.check_groups(value)
        self._groups = value
        if self._source is not None:
            self._source.scan_groups = value

    @property
    def bytes_read(self) -> int:
        """Bytes of records that were read so far."""
        return 0 if self._source is None else self._source.bytes_read

    @property
    def skipped(self) -> int:
        """Samples that were left out so far, by `on_error="skip"`, of those that were read."""
        return self._cut + (0 if self._source is None else self._source.skipped)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Name of each label; None for sets of the original release, which do not say."""
        return self.reader.class_names

    @property
    def epoch(self) -> int:
        """Number of the epoch that is handed out, or of the next one between iterations."""
        return int(self.state_dict()["epoch"])

    def __len__(self) -> int:
        """Return the batches of an epoch on this process."""
        return len(self._own_source())

    def _shard(self) -> tuple[int, int]:
        return self._given_shard or self._placement.shard()

    def _own_source(self) -> PcrSource:
        """Return the source of this process, which lives as long as the process or its shard."""
        if self._pid != os.getpid():
            self._upcoming = self._next_start()
            self._forget()
        shard = self._shard()
        if self._source is not None and self._source.shard != shard:
            self._upcoming = self._next_start()
            self._source = self._handed = None
        if self._source is None:
            source = PcrSource(self.reader, scan_groups=self._groups, shard=shard, **self._config)
            if isinstance(self._upcoming, int):
                source.set_epoch(self._upcoming)
            elif self._upcoming is not None:
                source.load_state_dict(self._upcoming)
            self._source = source
        return self._source

    def _next_start(self) -> State | int | None:
        """Return what the next iteration starts from: a state, or the start of an epoch."""
        if self._handed is None:
            return self._upcoming if self._source is None else self._source.state_dict()
        return int(self._handed["epoch"]) + 1 if self._has_begun else self._handed

    def __getstate__(self) -> dict[str, Any]:
        shard, upcoming = self._shard(), self._next_start()
        kept = ("_layout", "_prefetch", "_placement", "_set", "_config", "_groups")
        state = {name: self.__dict__[name] for name in kept}
        return {**state, "_given_shard": shard, "_upcoming": upcoming}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _check_batches(self, source: PcrSource) -> None:
        """Refuse batches that the sharding cannot split, before any is read."""
        config, (rank, ranks) = self._config, source.shard
        samples, size = len(self.reader), config["batch_size"]
        share = samples // ranks if config["end"] == "drop" else -(-samples // ranks)
        if config["end"] == "uneven":
            share = samples * (rank + 1) // ranks - samples * rank // ranks
        if share >= size:
            self._placement.check_samples(size)
        if share % size and not config["drop_last"]:
            self._placement.check_samples(share % size)

    # -- iterating -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        self._end_iteration()
        source = self._own_source()
        self._check_batches(source)
        batches = iter(source)
        self._handed, self._has_begun = source.state_dict(), False
        ahead = self._running = Ahead(self._placing(source, batches), depth=self._prefetch)
        try:
            for batch, self._handed in ahead:
                self._has_begun = True
                yield batch.pop()
            self._has_begun, self._handed = True, None
        finally:
            if self._running is ahead:
                self._end_iteration()

    def _placing(
        self, source: PcrSource, batches: Any
    ) -> Callable[[Callable[[], bool]], Generator[tuple[list[Batch], State], None, None]]:
        placement, device = self._placement, default_device()
        layout = ("NHWC", self._layout)
        skips, pieces = self._config["on_error"] == "skip", placement.pieces
        # Without a size, images are the very arrays that a transform returned, and may use again.
        owned = self._config["size"] is not None or self._config["transform"] is None

        def place(_: Callable[[], bool]) -> Generator[tuple[list[Batch], State], None, None]:
            with device, closing(batches):
                for images, labels in batches:
                    too_many = len(labels) % pieces if skips else 0
                    self._cut += too_many
                    kept = len(labels) - too_many
                    if kept:
                        placement.check_samples(kept)
                        arrays = _with_layout(images[:kept], layout), labels[:kept]
                        yield [placement.put(arrays, owned=owned)], source.state_dict()

        return place

    def _end_iteration(self) -> None:
        running, self._running = self._running, None
        if running is None or self._pid != os.getpid():
            return
        running.close()
        if not self._has_begun and self._source is not None and self._handed is not None:
            # The epoch is still to come, whatever was read ahead.
            self._source.load_state_dict(self._handed)

    # -- epochs and resuming -------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch `epoch`; ends the one that runs.

        A loaded state of that epoch that waits for the next iteration is kept.
        """
        check_integers(0, epoch=epoch)
        self._end_iteration()
        source = self._own_source()
        source.set_epoch(epoch)
        self._handed = None

    def state_dict(self) -> State:
        """Return how far the set was handed out: a few numbers that JSON can hold.

        What was read, decoded or put on a device ahead counts as not read. The state holds for all
        ranks, when each was handed as many batches, and can be loaded under other ranks and batch
        sizes.
        """
        source = self._own_source()
        return dict(source.state_dict() if self._handed is None else self._handed)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration yield what was left when `state` was taken.

        Ends the iteration that runs. From then on, order and augmentation have the state's seed.

        Raises:
            ValueError: it is no state, or one of another set or order.
        """
        self._end_iteration()
        self._own_source().load_state_dict(dict(state))
        self._handed = None
        self._config["seed"] = state["seed"]

    def close(self) -> None:
        """End the iteration, and close what is open; iterating again opens it."""
        if self._pid == os.getpid():
            self._end_iteration()  # whose thread closes what it had of the source
            if self._reader is not None:
                self._reader.close()


def _with_layout(images: Any, layout: tuple[str, str]) -> Any:
    if isinstance(images, np.ndarray):
        return convert_layout(images, layout)
    if layout[1] == "NHWC":
        return images
    return [i.transpose(2, 0, 1) if isinstance(i, np.ndarray) else i for i in images]
