"""PcrSource: epochs of batches from a set of records.

Owns the arguments, which epoch is read and how far, and the threads of an iteration from its start
to its end; the order is `order`'s, the meaning of a state `state`'s, and the work `batches`'s.
"""

from __future__ import annotations

import atexit
import weakref
import zlib
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.arguments import check_integers, check_share
from tensorcom.errors import SourceError
from tensorcom.images import keep_freed_memory, usable_cores
from tensorcom.locks import ForkLock
from tensorcom.pcr.batches import Plan, Records, load_batches
from tensorcom.pcr.decode import AUGMENTATIONS, Decoder
from tensorcom.pcr.order import ENDS, Dealt, Split, deal_epoch
from tensorcom.pcr.reader import PcrReader
from tensorcom.pcr.state import Progress, Start, WorkerCount

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterator

    from numpy.typing import NDArray

    from tensorcom.pcr.record import RecordPrefix

    Batch = tuple[NDArray[Any] | list[Any], NDArray[np.int32]]

BUFFER = 1000
_REMOTE_READS = 4
_running: weakref.WeakSet[Generator[Batch, None, None]] = weakref.WeakSet()


class PcrSource:
    """Batches of images and labels from a set of records, epoch after epoch.

    Each iteration is one epoch, and the next one is the next epoch: also after one that was left
    early. A state that was loaded is gone on from by the iteration that follows. Threads read
    records and decode images ahead of use; they are started by an iteration, and end with it, when
    it is closed, or when its iterator is dropped.

    Args:
        root: directory or URL of a set, or an open `PcrReader`, which stays open.
        batch_size: samples in a batch.
        scan_groups: groups to read, 1 to the set's; None reads all.
        size: side of the crops in pixels; None gives whole images, and needs augment=None.
        augment: "train" is a random crop, mirrored half of the time, seeded by seed, epoch and
            sample; "eval" is the usual crop of the centre; None is its largest square.
        transform: called in a decoding thread with the crop or image, uint8 (H, W, 3), and the
            sample's own numpy Generator; what it returns takes the place of the crop.
        decode: give pixels; else JPEG files as bytes, as they were stored.
        shuffle: a new order each epoch, the same for all readers; else that of the set.
        buffer: no sample is moved as far as this many places in a reader's last shuffle, which
            mixes records that follow each other. As many images wait in memory.
        seed: of the order and of the augmentation.
        shard: number and count of ranks, which get equal parts.
        worker: number and count of readers that share the part of a rank, and hand out its batches
            in turn.
        end: what makes the ranks' counts equal: "wrap" goes on at the start, "pad" repeats the
            last sample, "drop" leaves out what is too much; "uneven" leaves counts that differ.
        drop_last: leave out a last batch of fewer samples.
        threads: that decode; None is one for each core that the process may use.
        read_threads: that read records, each one at a time; None is 1 for a directory, and 4
            elsewhere, where an answer may take long to come.
        guard: add guard scans where they are exact, which makes incomplete images cheaper to decode
            and their pixels independent of the decoder's version.
        on_error: "raise" on a record or image that is damaged, or "skip" it, so that its batch has
            fewer samples; a batch without any is left out.
        on_skip: called with the error of each image, and once of each record, that is skipped.
        prefetch: batches that are decoded before they are asked for.
        **options: passed on to `PcrReader`: cache, storage_options, retries and others.

    Yields:
        Images, uint8 (N, size, size, 3), and labels, int32 (N,), both in new memory. A list of
        uint8 (H, W, 3) if size is None, of bytes if decode is false. With a transform, its arrays
        stacked, or a list of what it returned if size is None.

    Attributes:
        reader: the set.
        samples: int64 (N,), numbers of the samples of the batch that was handed out last.
        threads, prefetch: as given; can be set, for the iterations that start later.
        skipped: samples that were skipped so far.
        bytes_read: bytes of records that were read so far, by this object in this process.

    Raises:
        PcrError: the set cannot be opened; iterating: a record or image is damaged, named by
            file and number.
        ImageError: iterating: an image cannot be decoded.
        SourceError: there are no samples, or so few that a rank or all batches would be empty.
        ValueError: an argument is out of range.

    Works in a forked child, and pickled, where it has the state of the original and no threads.
    An object is used by one thread at a time.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | PcrReader,
        *,
        batch_size: int,
        scan_groups: int | None = None,
        size: int | None = 224,
        augment: str | None = "train",
        transform: Callable[[NDArray[np.uint8], np.random.Generator], Any] | None = None,
        decode: bool = True,
        shuffle: bool = True,
        buffer: int = BUFFER,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        worker: tuple[int, int] = (0, 1),
        end: str = "wrap",
        drop_last: bool = False,
        threads: int | None = None,
        read_threads: int | None = None,
        guard: bool = True,
        on_error: str = "raise",
        on_skip: Callable[[Exception], object] | None = None,
        prefetch: int = 2,
        **options: Any,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={on_error!r}, expected 'raise' or 'skip'")
        if end not in ENDS:
            raise ValueError(f"end={end!r}, expected one of {', '.join(ENDS)}")
        _check_decoding(size=size, augment=augment, transform=transform, decode=decode)
        check_integers(1, batch_size=batch_size, prefetch=prefetch)
        check_integers(1, threads=threads, read_threads=read_threads, optional=True)
        check_integers(0, buffer=buffer, seed=seed)
        rank, ranks = check_share("shard", shard)
        reader_number, workers = check_share("worker", worker)
        self.shard, self.worker = (rank, ranks), (reader_number, workers)
        # Without a shuffle, nothing of the buffer shows: states then fit whatever it says.
        moves = buffer if shuffle else 0
        # States hold these, and JSON no numpy integers.
        self._split = Split(ranks, workers, int(batch_size), end, drop_last, int(moves))
        self._shuffle, self._seed = shuffle, int(seed)
        self.threads, self.prefetch = threads, prefetch
        self._read_threads = read_threads
        self._skips, self._on_skip = on_error == "skip", on_skip
        self.skipped, self.bytes_read = 0, 0
        self.samples: NDArray[np.int64] = np.zeros(0, np.int64)
        self._layout: int | None = None
        self._restart(Progress())
        self._forget_iterations()
        self._owns_reader = not isinstance(root, PcrReader)
        if isinstance(root, PcrReader):
            if options:
                raise TypeError(f"{', '.join(options)}: no option of a PcrSource on an open reader")
            self.reader = root
        else:
            self.reader = PcrReader(root, **options)
        self._decoder: Decoder | None = None
        if decode:
            self._decoder = Decoder(size, augment, transform, guard, self.reader.script, seed)
        try:
            self._scan_groups: int | None = None
            self.scan_groups = scan_groups
            if self._skips:
                self.reader.read_heads(on_error=lambda error: self._skip(0, error))
            self._check_samples()
        except BaseException:
            self.close()
            raise

    def _check_samples(self) -> None:
        samples, split = len(self.reader), self._split
        most = max(split.batches(samples, rank) for rank in range(split.ranks))
        if samples == 0:
            reason = "holds no samples"
        elif samples < split.ranks and split.end in ("drop", "uneven"):
            reason = f"{samples} samples are fewer than {split.ranks} ranks, with end={split.end!r}"
        elif most == 0:
            reason = f"drop_last leaves no batch of {split.batch_size} of {samples} samples"
        else:
            return
        raise SourceError(reason, path=self.reader.root)

    def _restart(self, base: Progress) -> None:
        """Let the next iteration start from `base`."""
        self._base = base
        self._start: Start | None = None  # where the last iteration started, None before it
        self._count = self._batches = 0  # of this reader: handed out, and in all
        self._has_moved = False

    def _forget_iterations(self) -> None:
        self._lock = ForkLock()
        self._current: object = None  # the iteration that moves the position
        self._running: weakref.WeakSet[Generator[Batch, None, None]] = weakref.WeakSet()

    # -- what it is ----------------------------------------------------------------------------

    @property
    def scan_groups(self) -> int | None:
        """Groups to read, None for all; holds for the records that are read after it was set."""
        return self._scan_groups

    @scan_groups.setter
    def scan_groups(self, value: int | None) -> None:
        self.reader.table.check_groups(value)
        self._scan_groups = value

    @property
    def epoch(self) -> int:
        """Number of the epoch that is read, or of the next one between iterations."""
        return self._base.epoch

    def epoch_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the samples of this reader in an epoch, int64 (n,): what batches are cut from."""
        starts, seed = self.reader.starts, self._seed
        dealt = deal_epoch(starts, self._split, seed=seed, epoch=epoch, shuffle=self._shuffle)
        return dealt.order(self.shard[0], self.worker[0])

    def __len__(self) -> int:
        """Return the number of batches that this reader has in a whole epoch."""
        batches = self._split.batches(len(self.reader), self.shard[0])
        return self._split.turns(batches, self.worker[0])

    @property
    def batches_left(self) -> int:
        """Batches that the next iteration has: fewer than `len()` if it goes on from a state."""
        if self._is_over():
            return len(self)
        start, dealt = self._deal()
        return self._split.turns(dealt.batches(self.shard[0]), start.turn) - start.batches

    def _is_over(self) -> bool:
        """Return whether the next iteration begins the next epoch."""
        return self._start is not None and (self._has_moved or self._count >= self._batches)

    def _deal(self) -> tuple[Start, Dealt]:
        """Return where the next iteration starts, and the order of its epoch."""
        start = self._base.start(self._split, self.worker[0])
        dealt = deal_epoch(
            self.reader.starts,
            self._split,
            seed=self._seed,
            epoch=self.epoch,
            shuffle=self._shuffle,
            done=start.earlier,
        )
        return start, dealt

    def __repr__(self) -> str:
        return f"PcrSource({self.reader.root!r}, shard={self.shard}, worker={self.worker})"

    # -- iterating -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """Start an epoch, or go on from a state that was loaded."""
        if self._is_over():
            self._restart(Progress(self._base.epoch + 1))
        start, dealt = self._deal()
        self._start, self._count, self._has_moved = start, start.batches, False
        self._batches = self._split.turns(dealt.batches(self.shard[0]), start.turn)
        self._current = iteration = object()
        batches = self._iterate(dealt, start, self.epoch, iteration)
        self._running.add(batches)
        _running.add(batches)
        return batches

    def _iterate(
        self, dealt: Dealt, start: Start, epoch: int, iteration: object
    ) -> Generator[Batch, None, None]:
        keep_freed_memory()
        reader = self.reader
        samples = dealt.order(self.shard[0], start.turn)[start.batches * self._split.batch_size :]
        records = Records(
            starts=reader.starts,
            labels=reader.labels,
            names=reader.table.names,
            groups=reader.scan_groups,
            read=self._read_record,
            size=self._record_bytes,
        )
        plan = Plan(
            batch_size=self._split.batch_size,
            decoder=self._decoder,
            threads=self.threads or usable_cores(),
            read_threads=self._read_threads or (1 if reader.is_local else _REMOTE_READS),
            prefetch=self.prefetch,
            skip=self._skip if self._skips else None,
        )
        with closing(load_batches(records, samples, plan, epoch=epoch)) as batches:
            for number, batch in enumerate(batches, start.batches + 1):
                if self._current is iteration:
                    self._count, self._has_moved = number, True
                if batch is not None:
                    images, labels, self.samples = batch
                    yield images, labels
        # One of several workers may end before the others, and must then stay at the end if its
        # state is loaded again; for it, the next epoch begins with the next iteration.
        if self._current is iteration and self._split.workers == 1:
            self._restart(Progress(epoch + 1))

    def _record_bytes(self, record: int) -> int:
        table = self.reader.table
        return int(table.ends[record, table.check_groups(self._scan_groups)])

    def _read_record(self, record: int) -> RecordPrefix:
        prefix = self.reader.read_prefix(record, scan_groups=self._scan_groups)
        with self._lock:
            self.bytes_read += int(self.reader.table.ends[record, prefix.scan_groups])
        return prefix

    def _skip(self, samples: int, error: Exception | None) -> None:
        self.skipped += samples
        if error is not None and self._on_skip is not None:
            self._on_skip(error)

    # -- epochs and states ---------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch `epoch`, from its start.

        A loaded state of that epoch that waits for the next iteration is kept.
        """
        check_integers(0, epoch=epoch)
        if self._start is not None or self._base.epoch != epoch:
            self._restart(Progress(int(epoch)))
            self._current = None

    def state_dict(self) -> dict[str, Any]:
        """Return how far the set was read: a few numbers that JSON can hold.

        What was decoded but not handed out counts as not read. For a single worker, the state holds
        for all ranks, when each was handed as many batches, and can be loaded under other ranks,
        workers and batch sizes. That of one of several workers can be loaded by the same worker
        only; the process that gets the batches of all has `state_after`.
        """
        return self._state(self._position())

    def _position(self) -> Progress:
        start, split = self._start, self._split
        if start is None:
            return self._base
        if split.workers == 1:
            done = ((split, self._count),) if self._count else ()
            return Progress(self.epoch, (*start.earlier, *done))
        count = WorkerCount(self.worker[0], start.turn, self._count)
        return Progress(self.epoch, (*start.earlier, (split, start.before)), count)

    def state_after(self, batches: int, *, workers: int | None = None) -> dict[str, Any]:
        """Return the global state after this rank was handed some batches of the epoch.

        Args:
            batches: how many the workers of this rank handed out together, each in turn, since the
                start of the epoch or the loaded state that this object is at. One that was left
                out since all of it was skipped counts.
            workers: how many workers they were of; None takes this object's count.
        """
        check_integers(0, batches=batches)
        split = replace(self._split, workers=workers or self._split.workers)
        start = self._base.start(split, self.worker[0])
        total = start.before + int(batches)
        done = ((split, total),) if total else ()
        return self._state(Progress(self.epoch, (*start.earlier, *done)))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from a state.

        Under the ranks, workers, batch size and end that it was saved with, all batches come as
        they would have come; otherwise the rest of the epoch is dealt out anew. The seed is that of
        the state.

        Raises:
            ValueError: it is no state, one of another set, of `shuffle` the other way, or that of
                another worker.
        """
        progress, seed = Progress.from_state(state, **self._kind())
        progress.start(self._split, self.worker[0])
        self._restart(progress)
        self._current = None
        self._seed = seed
        if self._decoder is not None:
            self._decoder = replace(self._decoder, seed=seed)

    def _state(self, progress: Progress) -> dict[str, Any]:
        return progress.to_state(seed=self._seed, **self._kind())

    def _kind(self) -> dict[str, Any]:
        """Return what the order depends on beside seed and epoch."""
        if self._layout is None:
            self._layout = zlib.crc32(self.reader.starts.astype("<i8").tobytes())
        return {"samples": len(self.reader), "layout": self._layout, "shuffle": self._shuffle}

    # -- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End all iterations, and close the reader unless it was given; iterating opens it."""
        for batches in list(self._running):
            batches.close()
        if self._owns_reader:
            self.reader.close()

    def __enter__(self) -> PcrSource:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle all but what is running."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_lock", "_current", "_running")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_iterations()


def _check_decoding(
    *, size: int | None, augment: str | None, transform: object, decode: bool
) -> None:
    if augment not in AUGMENTATIONS:
        raise ValueError(f"augment={augment!r}, expected 'train', 'eval' or None")
    if not decode:
        if transform is not None:
            raise ValueError("transform needs decode=True")
    elif size is None and augment is not None:
        raise ValueError(f"augment={augment!r} needs a size; whole images need augment=None")
    else:
        check_integers(1, size=size, optional=True)


def _close_all() -> None:
    for batches in list(_running):
        with suppress(ValueError):  # a thread that does not outlive the process is in it
            batches.close()


# Before the interpreter takes apart what closing needs.
atexit.register(_close_all)
