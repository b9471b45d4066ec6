"""PcrSource: a set of records as a source of DALI pipelines.

Owns which epoch the next iteration is, and the form that DALI takes images in; order, reading and
states are core's PcrSource.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensorcom import ClosedError, SourceError
from tensorcom.ahead import Ahead
from tensorcom.arguments import check_integers, check_share
from tensorcom.pcr import PcrReader
from tensorcom.pcr import PcrSource as CoreSource
from tensorcom.pcr.source import BUFFER
from tensorcom_dali.feed import ENDED_EARLY, FORKED, Batch, Source
from tensorcom_dali.images import Damage, Run
from tensorcom_dali.parallel import RecordBatches
from tensorcom_dali.ranks import current_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray


class PcrSource(Source):
    """Batches of JPEG files and labels, or of pixels and labels, from a set of records.

    Give it to `external_source` in a pipeline, or to a `Loader`. Each iteration is one epoch, and
    the next one the next epoch, also after one that was left early. Records are read and batches
    made ahead by a thread, which an iteration starts and which ends with it.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch.
        scan_groups: groups to read, 1 to the set's; None reads all. Set between two epochs, it
            holds for the whole of the next one; during one, for the records that are read from then
            on, which is after up to 64 MB of records, `prefetch` batches and those that the
            pipeline has under way.
        decode: give pixels instead of JPEG files: decoded, cropped and mirrored as core does it.
        size: with `decode`, side of the images in pixels; None keeps each image's own.
        augment: with `decode`, "train", "eval" or None, as in core.
        shuffle: a new order each epoch; else that of the set.
        seed: of order and augmentation.
        shard: (rank, ranks) of this process in its job; None takes them from torch.distributed or
            jax.distributed if it is in use, else from the variables RANK and WORLD_SIZE, else
            (0, 1).
        end: what makes the counts of ranks equal: "wrap", "pad", "drop"; or "uneven".
        drop_last: leave out a last batch of fewer samples. DALI's own last batch policies do
            nothing for external sources.
        guard: add guard scans where they are exact, which make incomplete images cheaper to decode.
        on_error: "raise" the error of a damaged image or record, or "skip" it.
        on_skip: called with the error of each image or record that is skipped.
        prefetch: batches that are made before they are asked for.
        threads: with `decode`, decoding threads; None is one for each core.
        buffer: how far a shuffle moves a sample, as in core.
        transform: with `decode`, a function of crop and generator, as in core.
        read_threads: that read records; None is 1 for a directory, and 4 elsewhere.
        cache: local directory that keeps what was read of a remote set.
        storage_options: passed on to the fsspec file system.
        **options: further options of `PcrReader`: retries, timeout_s, cache_bytes.

    Yields:
        Images, a list of uint8 (bytes,), or uint8 (N, size, size, 3) with `decode`; and labels,
        int32 (N,). All in memory that is never written to again.

    Raises:
        PcrError: the set, a record or an image is damaged, or storage failed.
        SourceError: there are no samples, or too few; or two pipelines read this source.
        ClosedError: it was closed while a pipeline read it.
        TypeError: there is no such option.
        ValueError: an argument is out of range.

    Pickles: the copy begins with what the next iteration here would be.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        batch_size: int,
        scan_groups: int | None = None,
        decode: bool = False,
        size: int | None = 224,
        augment: str | None = "train",
        shuffle: bool = True,
        seed: int = 0,
        shard: tuple[int, int] | None = None,
        end: str = "wrap",
        drop_last: bool = False,
        guard: bool = True,
        on_error: str = "raise",
        on_skip: Callable[[Exception], object] | None = None,
        prefetch: int = 2,
        threads: int | None = None,
        buffer: int = BUFFER,
        transform: Callable[[NDArray[np.uint8], np.random.Generator], Any] | None = None,
        read_threads: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        of_reader = {"cache": cache, "storage_options": storage_options, **options}
        self._set: tuple[Any, dict[str, Any]] = root, of_reader
        self._reader: PcrReader | None = None
        self._shard = None if shard is None else check_share("shard", shard)
        self.is_encoded = not decode
        self._config: dict[str, Any] = {
            "batch_size": batch_size,
            "decode": decode,
            "size": size,
            "augment": augment,
            "shuffle": shuffle,
            "seed": seed,
            "end": end,
            "drop_last": drop_last,
            "guard": guard,
            "on_error": on_error,
            "prefetch": prefetch,
            "threads": threads,
            "buffer": buffer,
            "transform": transform,
            "read_threads": read_threads,
        }
        self._on_skip = on_skip
        self._damage: Damage | None = None
        self._skipped = self._bytes_read = 0
        self._next: int | dict[str, Any] = 0  # an epoch, or a state to go on from
        self._position: dict[str, Any] | None = None  # after what was taken of an epoch
        self._forget()
        self._scan_groups: int | None = None
        self.scan_groups = scan_groups
        self._make_core()  # wrong arguments are errors here

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._run: Run | None = None
        self._ahead: Ahead[Batch] | None = None
        self._active = None

    # -- what it is ----------------------------------------------------------------------------

    @property
    def reader(self) -> PcrReader:
        """The set. A copy opens it at first use."""
        if self._reader is None:
            root, options = self._set
            self._reader = PcrReader(root, **options)
        return self._reader

    @property
    def scan_groups(self) -> int | None:
        """Groups that are read of each record; None for all."""
        return self._scan_groups

    @scan_groups.setter
    def scan_groups(self, value: int | None) -> None:
        self.reader.table.check_groups(value)
        self._scan_groups = value
        if self._run is not None:
            self._run.set_groups(value)

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return int(self._config["batch_size"])

    @property
    def seed(self) -> int:
        """Seed of order and augmentation."""
        return int(self._config["seed"])

    @property
    def shard(self) -> tuple[int, int]:
        """Number and count of ranks."""
        return self._shard or current_shard()

    @property
    def damage(self) -> Damage:
        """What is done about damaged images."""
        if self._damage is None:
            self._damage = Damage(self.reader, self._config["on_error"], self._on_skip)
        return self._damage

    @property
    def skipped(self) -> int:
        """Samples that were skipped so far."""
        running = 0 if self._run is None else self._run.core.skipped
        return self._skipped + running + self.damage.skipped

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Name of each label; None for sets of the original release, which do not say."""
        return self.reader.class_names

    @property
    def outputs(self) -> list[tuple[str, int, str]]:
        """Of images and labels the dtype, axes and DALI layout of a sample."""
        images = ("uint8", 1, "") if self.is_encoded else ("uint8", 3, "HWC")
        return [images, ("int32", 0, "")]

    @property
    def bytes_read(self) -> int:
        """Bytes of records that this process has read so far."""
        return self._bytes_read + (0 if self._run is None else self._run.core.bytes_read)

    def __len__(self) -> int:
        """Return the batches of an epoch on this rank."""
        return len(self._make_core())

    def __repr__(self) -> str:
        return f"PcrSource({self._set[0]!r}, batch_size={self.batch_size}, shard={self.shard})"

    # -- iterating -----------------------------------------------------------------------------

    def _make_core(self) -> CoreSource:
        return CoreSource(
            self.reader,
            scan_groups=self._scan_groups,
            shard=self.shard,
            on_skip=self.damage.note,
            **self._config,
        )

    def begin(self) -> None:
        """Begin the next epoch, or go on from a state that was loaded."""
        self._end()
        core = self._make_core()
        self._load_next(core)
        self._position, self._next = core.state_dict(), core.epoch + 1
        guards = bool(self._config["guard"])
        self._run = Run(core, self.damage, encodes=self.is_encoded, guards=guards)
        self._ahead = Ahead(
            self._run.batches, depth=self._config["prefetch"], name="tensorcom-dali"
        )

    def _load_next(self, core: CoreSource) -> None:
        if isinstance(self._next, dict):
            core.load_state_dict(self._next)
        else:
            core.set_epoch(self._next)

    def pop(self) -> Batch:
        """Return the next batch of the epoch; StopIteration at its end.

        Raises:
            ClosedError: the source was closed meanwhile.
        """
        if self._pid != os.getpid():
            raise SourceError(FORKED)
        ahead = self._ahead
        if ahead is None:
            raise ClosedError(ENDED_EARLY)
        try:
            batch = next(ahead)
        except ClosedError:
            raise ClosedError(ENDED_EARLY) from None
        except StopIteration:
            if ahead is not self._ahead:
                raise ClosedError(ENDED_EARLY) from None
            self._end()
            self._position = None
            raise
        self._position = batch.state
        return batch

    def _end(self) -> None:
        """End what runs, and keep its counts."""
        ahead, run = self._ahead, self._run
        if self._pid != os.getpid():
            self._forget()
        elif ahead is not None and run is not None:
            self._ahead = self._run = None  # first, for a pipeline that waits in another thread
            ahead.close()
            self._bytes_read += run.core.bytes_read
            self._skipped += run.core.skipped

    def parallel_source(self) -> dict[str, Any]:
        """Return what DALI's workers call: any batch of any epoch, by its number."""
        if not self.is_encoded:
            raise ValueError("parallel=True hands out JPEG files, expected decode=False")
        if isinstance(self._next, dict) and self._next["done"]:
            raise ValueError(
                "parallel=True begins with a whole epoch: go on from a checkpoint of the pipeline"
            )
        copy = PcrSource.__new__(PcrSource)
        copy.__setstate__(self.__getstate__())
        batches = RecordBatches(copy, self.epoch, guards=bool(self._config["guard"]))
        return {"source": batches, "batch_info": True}

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the samples of this rank in an epoch, int64 (n,): what batches are cut from."""
        return self._make_core().epoch_order(epoch)

    # -- epochs and states ---------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Number of the epoch that is read, or of the next one between epochs."""
        if self._position is not None:
            return int(self._position["epoch"])
        return self._next if isinstance(self._next, int) else int(self._next["epoch"])

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch `epoch`, unless it goes on from a state of that epoch."""
        check_integers(0, epoch=epoch)
        if not (isinstance(self._next, dict) and self._next["epoch"] == epoch):
            self._next = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return how far pipelines have taken the epoch: a few numbers, JSON-compatible.

        A pipeline takes some batches more than it has handed out. A `Loader` knows how many, and
        has a `state_dict` of its own; else count the batches that came, and use `state_after`.
        """
        return self.next_state() if self._position is None else dict(self._position)

    def next_state(self) -> dict[str, Any]:
        """Return the state that the next iteration begins with."""
        core = self._make_core()
        self._load_next(core)
        return core.state_dict()

    def state_after(self, batches: int, *, epoch: int) -> dict[str, Any]:
        """Return the state after this rank was handed `batches` batches of an epoch."""
        core = self._make_core()
        core.set_epoch(epoch)
        return core.state_after(batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration yield what was left when `state` was taken.

        Order and augmentation have the seed of the state from then on.

        Raises:
            ValueError: it is no state, or one of another set or order.
        """
        self._make_core().load_state_dict(dict(state))
        self._end()
        self._position = None
        self._config["seed"] = state["seed"]
        self._next = dict(state)

    # -- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End the iteration and close what is open; iterating again opens it."""
        self._end()
        self._active = None
        if self._reader is not None:
            self._reader.close()

    def __enter__(self) -> PcrSource:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration and what comes next; what runs stays with its process."""
        state = {**self.__dict__, "_shard": self.shard}
        state |= {"_position": None, "_reader": None, "_damage": None}
        return {n: v for n, v in state.items() if n not in ("_run", "_ahead", "_active", "_pid")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
