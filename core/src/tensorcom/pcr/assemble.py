"""From transcoded images to a set: one record at a time, and the files that describe them all.

Owns what is kept of each image beside its scans, and what is written last; knows nothing of where
images come from.
"""

from __future__ import annotations

import sqlite3
import zlib
from typing import TYPE_CHECKING

import numpy as np

from tensorcom._version import __version__
from tensorcom.errors import PcrError, SourceError
from tensorcom.pcr.layout import MAX_PART_BYTES, record_name
from tensorcom.pcr.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    SAMPLES_NAME,
    Manifest,
    SampleTable,
    encode_name,
)
from tensorcom.pcr.record import encode_record, part_lengths
from tensorcom.pcr.sqlite_index import FILE_NAME as SQLITE_NAME
from tensorcom.pcr.sqlite_index import write_sqlite_index
from tensorcom.pcr.wire import encode_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorcom.pcr.scripts import ScanScript
    from tensorcom.pcr.target import Target

MAX_LABEL = 2**31 - 1
MAX_UNNAMED = 1_000_000  # the manifest names each label from 0


class RecordBuilder:
    """Gathers the images of one record.

    Args:
        groups: scan groups of the set.
    """

    def __init__(self, groups: int) -> None:
        self._images: list[Sequence[bytes]] = []
        self._labels: list[int] = []
        self._names: list[bytes] = []
        self._orient: list[int] = []
        self._totals = np.zeros(groups, np.int64)

    def __len__(self) -> int:
        return len(self._images)

    def add(self, groups: Sequence[bytes], *, label: int, name: str, orientation: int) -> None:
        """Add an image.

        Args:
            groups: its bytes in each scan group.
            label: its class.
            name: of its source.
            orientation: EXIF orientation of its source, 0 if it had none.

        Raises:
            PcrError: with it, a scan group would exceed 2 GiB; the image is not added.
        """
        sizes = np.array([len(part) for part in groups], np.int64)
        if (self._totals + sizes > MAX_PART_BYTES).any():
            # Said before gigabytes more are gathered in vain.
            known = [[len(part) for part in image] for image in self._images]
            part_lengths(np.array([*known, sizes], np.int64))
        self._totals += sizes
        self._images.append(groups)
        self._labels.append(label)
        self._names.append(encode_name(name))
        self._orient.append(orientation)

    def build(self, number: int) -> tuple[Sequence[bytes | memoryview], SampleTable]:
        """Return the bytes of the record in pieces, and its rows of the table of samples.

        Args:
            number: of the record.

        Raises:
            PcrError: a scan group exceeds 2 GiB.
        """
        if not self._images:
            return (), _no_rows(len(self._totals))
        record = encode_record(self._images, self._labels)
        return record.pieces, SampleTable(
            sizes=record.sizes,
            labels=record.labels,
            orient=np.array(self._orient, np.uint8),
            nameends=np.cumsum([len(name) for name in self._names], dtype=np.int64),
            names=np.frombuffer(b"".join(self._names), np.uint8),
            firsts=np.array([0, len(self._images)], np.int64),
            numbers=np.array([number], np.int64),
            parts=record.parts[np.newaxis],
            crc32=record.crc32[np.newaxis],
        )


def check_label(label: object, classes: int | None, *, path: str) -> int:
    """Return a label, which must be an integer from 0.

    Args:
        label: what was given.
        classes: how many classes have names; None if names are made from labels.
        path: of its image, for errors.

    Raises:
        SourceError: it is none, or of no class.
    """
    limit = MAX_UNNAMED if classes is None else min(classes, MAX_LABEL + 1)
    if not isinstance(label, (int, np.integer)) or isinstance(label, bool) or label < 0:
        raise SourceError(f"label is {label!r}, expected an integer from 0", path=path)
    if label >= limit:
        what = "without names for classes" if classes is None else "the last that has a name"
        raise SourceError(f"label is {label}, expected at most {limit - 1}, {what}", path=path)
    return int(label)


def _no_rows(groups: int) -> SampleTable:
    """Return the rows of a record all of whose images were skipped."""
    return SampleTable(
        sizes=np.zeros((0, groups), np.int32),
        labels=np.zeros(0, np.int32),
        orient=np.zeros(0, np.uint8),
        nameends=np.zeros(0, np.int64),
        names=np.zeros(0, np.uint8),
        firsts=np.zeros(1, np.int64),
        numbers=np.zeros(0, np.int64),
        parts=np.zeros((0, 1 + groups), np.int64),
        crc32=np.zeros((0, 1 + groups), np.uint32),
    )


def merge_tables(tables: Sequence[SampleTable]) -> SampleTable:
    """Join the rows of records, in order."""

    def joined(column: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(table, column) for table in tables])

    def shifted(column: str, lengths: str) -> list[NDArray[np.int64]]:
        steps = np.cumsum([0, *(len(getattr(table, lengths)) for table in tables)])
        pairs = zip(tables, steps.tolist(), strict=False)
        return [getattr(table, column) + step for table, step in pairs]

    firsts = [np.zeros(1, np.int64), *(part[1:] for part in shifted("firsts", "labels"))]
    return SampleTable(
        nameends=np.concatenate(shifted("nameends", "names")),
        firsts=np.concatenate(firsts),
        **{
            column: joined(column)
            for column in ("sizes", "labels", "orient", "names", "numbers", "parts", "crc32")
        },  # type: ignore[arg-type]
    )


def write_set(
    target: Target,
    table: SampleTable,
    *,
    script: ScanScript,
    class_names: Sequence[str] | None,
    images_per_record: int,
    sqlite_index: bool,
    source_bytes: int,
) -> Manifest:
    """Write all that belongs to a set but its records: the manifest last, which finishes it.

    Args:
        target: where the records are.
        table: its samples.
        script: its scan script.
        class_names: name of each label; None names them by their numbers.
        images_per_record: most images in a record.
        sqlite_index: write a `PCR.db` too.
        source_bytes: bytes of the files that the images come from.

    Returns:
        The manifest.

    Raises:
        PcrError: there are no samples.
        PcrWriteError: a file cannot be written.
    """
    images, records = len(table.labels), len(table.numbers)
    if not images:
        raise PcrError("the set would hold no image")
    if class_names is None:
        class_names = [str(label) for label in range(int(table.labels.max()) + 1)]
    names = [record_name(number) for number in table.numbers.tolist()]
    samples = table.encode()
    target.write(SAMPLES_NAME, [samples])
    target.write(INDEX_NAME, [encode_index(names, table.parts.tolist())])
    if sqlite_index:
        _write_sqlite(target, names, table, classes=len(class_names), batch=images_per_record)
    ends = np.cumsum(table.parts, axis=1).sum(axis=0)
    manifest = Manifest(
        images=images,
        records=records,
        scan_groups=script.groups,
        images_per_record=images_per_record,
        class_names=tuple(class_names),
        script=script.to_json(),
        group_bytes=tuple(ends[1:].tolist()),
        samples_crc32=zlib.crc32(samples),
        created_by=f"tensorcom {__version__}",
        source_bytes=source_bytes,
    )
    target.write(MANIFEST_NAME, [manifest.to_json()])
    return manifest


def _write_sqlite(
    target: Target, names: Sequence[str], table: SampleTable, *, classes: int, batch: int
) -> None:
    entries = zip(names, table.parts.tolist(), strict=True)
    images = len(table.labels)
    with target.partial(SQLITE_NAME) as path:
        try:
            write_sqlite_index(path, entries, images=images, classes=classes, batch=batch)
        except sqlite3.Error as exc:
            raise OSError(str(exc)) from exc
