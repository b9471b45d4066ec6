"""Where the images of a conversion come from: folders, shards, iterables.

Owns the order of a source, the same each time, and what tells that it has changed; opens each file
to read only, and transcodes nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensorcom.errors import SourceError
from tensorcom.images import ImageFolder, training_folder
from tensorcom.images.folder import printable
from tensorcom.pcr.conversion.spans import SpanTable, read_span
from tensorcom.shards import expand_shards, is_plain_tar, local_path, read_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

# One file that cannot be read is that file's fault; a failing system or network is not.
_FAULTS_OF_FILES = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One image of a source.

    Attributes:
        name: kept with the image.
        path: where it is, for the report and for errors.
        label: its class, checked later; None if it is not known.
        load: returns the bytes of the file; called in any thread. Raises SourceError.
    """

    name: str
    path: str
    label: object
    load: Callable[[], bytes]


class ImageSource(ABC):
    """Images in an order that is the same each time, unless the source has changed.

    Attributes:
        kind: one word for what it is.
        directory: where its files are, which nothing is written to; None if it has none.
        class_names: name of each label; None if they have none.
        count: how many images there are; None if that is not known.
        seed: of its permutation; None if it is not permuted.
        passed_over: how many names are no images, by reason.
    """

    kind: str
    directory: str | None = None
    class_names: tuple[str, ...] | None = None
    count: int | None = None
    seed: int | None = None

    def __init__(self) -> None:
        self.passed_over: Mapping[str, int] = {}

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Yield the images.

        Raises:
            SourceError: the source as a whole cannot be read.
        """

    def fingerprint(self) -> dict[str, Any]:
        """Return what is to be the same when a conversion goes on, as JSON."""
        return {"kind": self.kind}


def open_source(
    source: Any,
    *,
    shuffle: bool | None,
    seed: int,
    class_names: Sequence[str] | None,
    allow_empty_class: bool,
) -> ImageSource:
    """Return the source that the user means.

    Args:
        source: a directory; the names or URLs of shards, braces expanded; or an iterable of
            (jpeg, label) or (jpeg, label, name).
        shuffle: permute it; None permutes folders only.
        seed: of the permutation.
        class_names: name of each label; folders have their own.
        allow_empty_class: keep the labels of classes without images.

    Raises:
        SourceError: there is no such source, or it cannot be permuted.
        ValueError: `class_names` for a folder.
    """
    names = None if class_names is None else tuple(class_names)
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str) and Path(source).is_dir():
        if names is not None:
            raise ValueError("class_names is for shards and iterables: folders name their classes")
        return FolderSource(
            source, seed=None if shuffle is False else seed, allow_empty=allow_empty_class
        )
    if isinstance(source, str) or _are_names(source):
        return ShardSource(source, seed=seed if shuffle else None, class_names=names)
    if shuffle:
        _no_shuffle("an iterable comes in its own order")
    return IterableSource(source, class_names=names)


def _are_names(source: object) -> bool:
    return (
        isinstance(source, (list, tuple))
        and bool(source)
        and all(isinstance(name, str) for name in source)
    )


def _no_shuffle(reason: str) -> NoReturn:
    raise SourceError(f"{reason}, which cannot be shuffled: shuffle=False (--no-shuffle)")


def _permutation(count: int, seed: int | None) -> NDArray[np.int64]:
    """Return a permutation by raw bits, which no version of numpy changes; None is no change."""
    if seed is None:
        return np.arange(count)
    bits = np.random.PCG64(np.random.SeedSequence(seed))
    order: NDArray[np.int64] = np.argsort(np.asarray(bits.random_raw(count)), kind="stable")
    return order


class FolderSource(ImageSource):
    """An image folder, or the folder `train` in it.

    Args:
        root: the folder.
        seed: of the permutation; None keeps the folder's order.
        allow_empty: keep the labels of classes without images.

    Raises:
        SourceError: there are no images, or a class is empty.
    """

    kind = "folder"

    def __init__(self, root: str, *, seed: int | None, allow_empty: bool) -> None:
        super().__init__()
        self.directory = root
        self._folder = ImageFolder(training_folder(root), allow_empty=allow_empty)
        self.class_names = self._folder.classes
        self.count = len(self._folder)
        self.passed_over = self._folder.skipped
        self.seed = seed
        self._name_start = len(str(Path(self._folder.root, "x"))) - 1  # no Path for each name

    def entries(self) -> Iterator[Entry]:
        """Yield the images, by their paths from the folder on."""
        start = self._name_start
        for position in _permutation(len(self._folder), self.seed).tolist():
            path = self._folder.path(position)
            label = int(self._folder.labels[position])
            yield Entry(path[start:], path, label, partial(read_file, path))

    def fingerprint(self) -> dict[str, Any]:
        """Return a hash of names, sizes and times."""
        digest, start = hashlib.sha256(), self._name_start
        for folder in self._folder.classes:
            digest.update(os.fsencode(folder) + b"/")
        for path in self._folder.paths:
            try:
                status = os.stat(path)  # noqa: PTH116 - a million of them
            except OSError as exc:
                raise _unreadable(exc, path) from exc
            name = os.fsencode(path[start:])
            digest.update(b"%b\0%d %d " % (name, status.st_size, status.st_mtime_ns))
        return {"kind": self.kind, "images": len(self._folder), "listing": digest.hexdigest()}


class ShardSource(ImageSource):
    """WebDataset shards.

    Args:
        shards: their names or URLs, braces expanded.
        seed: of the permutation, for plain tars on this machine; None keeps their order.
        class_names: name of each label.

    Raises:
        SourceError: a shard is missing, or cannot be permuted.
    """

    kind = "shards"

    def __init__(
        self,
        shards: str | Iterable[str],
        *,
        seed: int | None,
        class_names: tuple[str, ...] | None,
    ) -> None:
        super().__init__()
        self._shards = expand_shards(shards)
        self.class_names = class_names
        self.seed = seed
        self._table: SpanTable | None = None
        if seed is not None:
            for shard in self._shards:
                path = local_path(shard)
                if path is None or not is_plain_tar(path):
                    _no_shuffle(f"{printable(shard)} is no plain tar on this machine")
            self._table = SpanTable(self._shards)
            self.count = len(self._table)

    def entries(self) -> Iterator[Entry]:
        """Yield the images; a sample that lacks image or label raises when it is loaded."""
        if self._table is None:
            for shard in self._shards:
                for sample in read_shard(shard, on_bad=_bad_entry):
                    if isinstance(sample, Entry):
                        yield sample
                    else:
                        load = partial(bytes, sample.image)
                        yield Entry(sample.name, sample.place, sample.label, load)
            return
        for position in _permutation(len(self._table), self.seed).tolist():
            row = self._table.row(position)
            if row.fault is not None:
                yield _bad_entry(row.fault)
            else:
                yield Entry(row.name, row.place, row.label, partial(read_span, row))

    def fingerprint(self) -> dict[str, Any]:
        """Return the names of the shards, and their sizes where they are known."""
        sizes = []
        for shard in self._shards:
            path = local_path(shard)
            sizes.append(None if path is None else path.stat().st_size)
        return {"kind": self.kind, "shards": self._shards, "sizes": sizes}


def _bad_entry(error: SourceError) -> Entry:
    return Entry("", error.path or "", None, partial(_raise, error))


def _raise(error: SourceError) -> NoReturn:
    raise error


class IterableSource(ImageSource):
    """An iterable of (jpeg, label) or (jpeg, label, name).

    Args:
        samples: the iterable.
        class_names: name of each label.
    """

    kind = "iterable"

    def __init__(self, samples: Iterable[Any], *, class_names: tuple[str, ...] | None) -> None:
        super().__init__()
        try:
            self._samples = iter(samples)
        except TypeError:
            raise SourceError(
                f"source is {type(samples).__name__}, expected a directory, names of shards, or an "
                "iterable of (jpeg, label)"
            ) from None
        self.class_names = class_names
        if isinstance(samples, Sized):
            self.count = len(samples)

    def entries(self) -> Iterator[Entry]:
        """Yield the samples."""
        for number, sample in enumerate(self._samples):
            if not isinstance(sample, (tuple, list)) or len(sample) not in (2, 3):
                raise SourceError(
                    f"sample {number} is {type(sample).__name__}, expected (jpeg, label) or "
                    "(jpeg, label, name)"
                )
            jpeg, label, name = (*sample, "")[:3]
            if not isinstance(jpeg, (bytes, bytearray, memoryview)) or not isinstance(name, str):
                kinds = f"{type(jpeg).__name__} and {type(name).__name__}"
                raise SourceError(
                    f"sample {number} has jpeg and name of {kinds}, expected bytes and str"
                )
            yield Entry(name, name or f"sample {number}", label, partial(bytes, jpeg))


def read_file(path: str) -> bytes:
    """Return a file, without a trace in its times where the system allows that.

    Raises:
        SourceError: it cannot be read.
        OSError: the system is at fault, not the file.
    """
    try:
        with os.fdopen(_open(path), "rb", buffering=0) as file:
            return file.readall()
    except OSError as exc:
        raise _unreadable(exc, path) from exc


def _open(path: str) -> int:
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    quiet = getattr(os, "O_NOATIME", 0)
    try:
        return os.open(path, flags | quiet)
    except PermissionError:
        if not quiet:
            raise
        return os.open(path, flags)  # O_NOATIME is for the owner


def _unreadable(error: OSError, path: str) -> Exception:
    if error.errno not in _FAULTS_OF_FILES:
        return error
    return SourceError(f"cannot be read: {error.strerror}", path=printable(path))
