"""JPEG files from a set of records.

Owns what is written where and what is never overwritten; names are `file_names`'s.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tensorcom.errors import PcrError, PcrWriteError
from tensorcom.images import map_ordered, usable_cores
from tensorcom.images.folder import printable
from tensorcom.pcr.file_names import FileNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorcom.pcr.reader import PcrReader


@dataclass(frozen=True, slots=True)
class ExtractReport:
    """What was written.

    Attributes:
        files: images.
        size_bytes: bytes of them.
        skipped: images in records that could not be read.
    """

    files: int
    size_bytes: int
    skipped: int


def extract(
    reader: PcrReader,
    folder: str | os.PathLike[str],
    *,
    scan_groups: int | None = None,
    samples: range | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    on_error: str = "raise",
    on_skip: Callable[[PcrError], object] | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> ExtractReport:
    """Write the images of a set as JPEG files, in a folder for each class.

    Each file is there as a whole or not at all. A file that exists is an error before anything is
    written.

    Args:
        reader: the set.
        folder: where they go; it is made if it is missing.
        scan_groups: groups to read; None reads all.
        samples: numbers of the images; None takes all.
        overwrite: replace files that exist.
        threads: that read and write; None is one for each core that the process may use.
        on_error: "raise" on a record that cannot be read, or "skip" its images.
        on_skip: called with the error of each record that is skipped.
        on_progress: called with how many images are done.

    Raises:
        PcrFormatError: a record is damaged.
        PcrReadError: a record is shorter than the index says, or storage failed.
        PcrWriteError: a file exists, or cannot be written.
        ValueError: `scan_groups` or `samples` is out of range.
    """
    reader.table.check_groups(scan_groups)
    samples = range(len(reader)) if samples is None else samples
    if len(samples) and not (min(samples) >= 0 and max(samples) < len(reader)):
        raise ValueError(f"samples={samples}, expected numbers in 0 to {len(reader) - 1}")
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error={on_error!r}, expected 'raise' or 'skip'")
    writer = _Writer(reader, Path(folder), scan_groups, skips=on_error == "skip")
    if not overwrite:
        writer.check_free(samples)
    threads = threads or usable_cores()
    works = _works(reader, samples)
    files = size_bytes = skipped = 0
    with closing(map_ordered(writer, works, threads=threads, ahead=threads + 1)) as results:
        for done in results:
            files += done.files
            size_bytes += done.size_bytes
            skipped += done.skipped
            if done.error is not None and on_skip is not None:
                on_skip(done.error)
            if on_progress is not None:
                on_progress(files + skipped)
    return ExtractReport(files, size_bytes, skipped)


class _Work(NamedTuple):
    """A record, and the numbers of its samples that are wanted."""

    record: int
    samples: list[int]


class _Done(NamedTuple):
    """What came of it."""

    files: int
    size_bytes: int
    skipped: int
    error: PcrError | None


def _works(reader: PcrReader, samples: range) -> Iterator[_Work]:
    numbers = np.array(sorted(samples), np.int64)
    cuts = np.searchsorted(numbers, reader.starts)
    for record in range(len(reader.table)):
        wanted = numbers[cuts[record] : cuts[record + 1]]
        if len(wanted):
            yield _Work(record, wanted.tolist())


class _Writer:
    """Reads records and writes their images; called in threads."""

    def __init__(
        self, reader: PcrReader, folder: Path, scan_groups: int | None, *, skips: bool
    ) -> None:
        self._reader, self._folder = reader, folder
        self._scan_groups, self._skips = scan_groups, skips
        self._names = FileNames(reader)

    def check_free(self, samples: range) -> None:
        """Raise PcrWriteError if a file exists."""
        if not self._folder.exists():
            return
        for sample in samples:
            path = self._folder / self._names.path(sample)
            if os.path.lexists(path):
                raise PcrWriteError("exists; allow to overwrite", path=printable(str(path)))

    def __call__(self, work: _Work) -> _Done:
        try:
            prefix = self._reader.read_prefix(work.record, scan_groups=self._scan_groups)
        except PcrError as exc:
            if not self._skips:
                raise
            return _Done(0, 0, len(work.samples), exc)
        first = int(self._reader.starts[work.record])
        size_bytes = 0
        for sample in work.samples:
            jpeg = prefix.jpeg(sample - first)
            write_file(self._folder / self._names.path(sample), jpeg)
            size_bytes += len(jpeg)
        return _Done(len(work.samples), size_bytes, 0, None)


def write_file(path: Path, data: bytes) -> None:
    """Write a file that is there as a whole or not at all, and its folder if that is missing.

    Raises:
        PcrWriteError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{uuid.uuid4().hex}.partial")
        try:
            partial.write_bytes(data)
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
    except OSError as exc:
        reason = f"cannot be written: {exc.strerror or exc}"
        raise PcrWriteError(reason, path=printable(str(path))) from exc
