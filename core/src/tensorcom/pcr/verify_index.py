"""The files that say what is in a set: each by itself, and against the others.

Owns the checks that need no record file; finds the best table of records that can be had.
"""

from __future__ import annotations

import mmap
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tensorcom.errors import PcrFormatError, PcrIndexError
from tensorcom.pcr.layout import RecordTable
from tensorcom.pcr.manifest import INDEX_NAME, MANIFEST_NAME, SAMPLES_NAME, Manifest, SampleTable
from tensorcom.pcr.problems import Problem, problem_of
from tensorcom.pcr.reader import MAX_INDEX_BYTES, MAX_MANIFEST_BYTES
from tensorcom.pcr.scripts import ScanScript
from tensorcom.pcr.sqlite_index import FILE_NAME as SQLITE_NAME
from tensorcom.pcr.sqlite_index import SqliteIndex, read_sqlite_index
from tensorcom.pcr.wire import decode_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tensorcom.pcr.storage import Storage

T = TypeVar("T")
_MAX_ORIENTATION = 8
_NO_RECORDS = RecordTable((), np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64))


@dataclass(frozen=True, slots=True)
class Contents:
    """What the files say of a set, as far as they can be believed.

    Attributes:
        table: names and part lengths of the records.
        samples: the table of samples, None if there is none, or none that can be read.
        script: scan script, None if unknown.
        sqlite: the older index, None if there is none, or none that can be read.
    """

    table: RecordTable
    samples: SampleTable | None
    script: ScanScript | None
    sqlite: SqliteIndex | None


@dataclass(frozen=True, slots=True)
class Found:
    """The contents of a set, and what is wrong with the files that say them."""

    contents: Contents
    problems: Sequence[Problem]


def read_contents(storage: Storage) -> Found:
    """Read and check all files of a set that are no records.

    Raises:
        PcrReadError: storage failed.
    """
    return _Reading(storage).read()


class _Reading:
    """Reads the files one after the other, and gathers what is wrong with them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._is_ours = storage.exists(MANIFEST_NAME)
        self._problems: list[Problem] = []

    def read(self) -> Found:
        manifest = samples = script = None
        tables: dict[str, RecordTable] = {}
        if self._is_ours:
            manifest = self._try(MANIFEST_NAME, self._read_manifest)
            samples = self._try(SAMPLES_NAME, self._read_samples, manifest)
        if manifest is not None:
            script = self._try(MANIFEST_NAME, ScanScript.from_json, manifest.script)
        if samples is not None:
            table = self._try(SAMPLES_NAME, samples.record_table)
            if table is None:
                samples = None
            else:
                tables[SAMPLES_NAME] = table
                self._problems += _check_samples(samples)
                if manifest is not None:
                    self._problems += _check_manifest(manifest, samples, table)
        if self._is_ours or self._storage.exists(INDEX_NAME):
            self._add_table(tables, INDEX_NAME, self._try(INDEX_NAME, self._read_index))
        sqlite = None
        if self._storage.exists(SQLITE_NAME):
            sqlite = self._try(SQLITE_NAME, self._read_sqlite)
            entries = None if sqlite is None else sqlite.entries
            self._add_table(tables, SQLITE_NAME, entries)
        names = list(tables)
        for name in names[1:]:
            self._problems += _differences(name, tables[name], names[0], tables[names[0]])
        table = tables[names[0]] if names else _NO_RECORDS
        return Found(Contents(table, samples, script, sqlite), self._problems)

    def _try(self, name: str, function: Callable[..., T], *arguments: object) -> T | None:
        """Call a function; if the file is damaged or missing, note that and return None."""
        try:
            return function(*arguments)
        except (PcrFormatError, PcrIndexError) as exc:
            self._problems.append(problem_of(exc, name))
            return None

    def _add_table(
        self,
        tables: dict[str, RecordTable],
        name: str,
        entries: Sequence[tuple[str, tuple[int, ...]]] | None,
    ) -> None:
        if entries is not None:
            table = self._try(name, RecordTable.from_entries, entries)
            if table is not None:
                tables[name] = table

    def _read_manifest(self) -> Manifest:
        return Manifest.from_json(self._storage.read_all(MANIFEST_NAME, MAX_MANIFEST_BYTES))

    def _read_samples(self, manifest: Manifest | None) -> SampleTable:
        data = _map(self._storage, SAMPLES_NAME)
        found = zlib.crc32(data)
        if manifest is not None and found != manifest.samples_crc32:
            reason = f"checksum is {found:08x}, but {manifest.samples_crc32:08x} in the manifest"
            self._problems.append(Problem(SAMPLES_NAME, reason))
        return SampleTable.decode(data)

    def _read_index(self) -> list[tuple[str, tuple[int, ...]]]:
        return decode_index(self._storage.read_all(INDEX_NAME, MAX_INDEX_BYTES))

    def _read_sqlite(self) -> SqliteIndex:
        return read_sqlite_index(self._storage.read_all(SQLITE_NAME, MAX_INDEX_BYTES))


def _map(storage: Storage, name: str) -> memoryview:
    """Return a file's bytes, mapped if it is on this machine and not empty."""
    local = storage.local_path(name)
    if local is None or not storage.size(name):
        return memoryview(storage.read_all(name, MAX_INDEX_BYTES))
    with local.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _check_samples(samples: SampleTable) -> Iterator[Problem]:
    """Look for rows that cannot be; sizes are compared with the records."""
    ends = samples.nameends
    steps = np.diff(ends, prepend=0)
    if (steps < 0).any():
        yield _row("its name ends before it begins", steps < 0)
    elif len(ends) and ends[-1] != len(samples.names):
        reason = f"names end at {ends[-1]}, but there are {len(samples.names)} bytes of them"
        yield Problem(SAMPLES_NAME, reason)
    if (samples.labels < 0).any():
        yield _row("its label is negative", samples.labels < 0)
    if (samples.orient > _MAX_ORIENTATION).any():
        yield _row("its orientation is not in 0 to 8", samples.orient > _MAX_ORIENTATION)


def _row(reason: str, wrong: NDArray[np.bool_]) -> Problem:
    rows = np.flatnonzero(wrong)
    more = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
    return Problem(SAMPLES_NAME, f"sample {rows[0]}: {reason}{more}")


def _check_manifest(
    manifest: Manifest, samples: SampleTable, table: RecordTable
) -> Iterator[Problem]:
    """Compare what the manifest says with the table of samples."""
    said: dict[str, tuple[object, object]] = {
        "images": (manifest.images, len(samples.labels)),
        "records": (manifest.records, len(table)),
        "scan_groups": (manifest.scan_groups, table.groups),
        "group_bytes": (manifest.group_bytes, tuple(table.ends.sum(axis=0)[1:].tolist())),
    }
    for key, (value, found) in said.items():
        if value != found:
            reason = f"{key} is {value}, but by {SAMPLES_NAME} {found}"
            yield Problem(MANIFEST_NAME, reason)
    most = int(np.diff(samples.firsts).max(initial=0))
    if most > manifest.images_per_record:
        reason = f"images_per_record is {manifest.images_per_record}, but a record has {most}"
        yield Problem(MANIFEST_NAME, reason)
    classes = len(manifest.class_names)
    if (samples.labels >= classes).any():
        yield _row(f"its label has no name, of {classes}", samples.labels >= classes)


def _differences(
    name: str, table: RecordTable, other_name: str, other: RecordTable
) -> Iterator[Problem]:
    """Compare an index with the one that is believed."""
    lengths = dict(zip(table.names, table.parts.tolist(), strict=True))
    expected = dict(zip(other.names, other.parts.tolist(), strict=True))
    for record, parts in expected.items():
        if record not in lengths:
            yield Problem(name, f"lacks {record}, which {other_name} names")
        elif lengths[record] != parts:
            yield Problem(name, f"lengths of {record} are not those in {other_name}")
    for record in lengths.keys() - expected.keys():
        yield Problem(name, f"names {record}, which {other_name} lacks")
