"""Small sets of records for tests, and ways to damage them.

Sets are built from the parts of the format, not by the converter, so that each is a witness against
the other.
"""

from __future__ import annotations

import shutil
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from jpeg_helpers import GOLDEN, joined, picture, saved

from tensorcom.pcr.layout import record_name
from tensorcom.pcr.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    SAMPLES_NAME,
    Manifest,
    SampleTable,
    encode_name,
)
from tensorcom.pcr.record import encode_record
from tensorcom.pcr.scripts import STANDARD, ScanScript
from tensorcom.pcr.sqlite_index import FILE_NAME as SQLITE_NAME
from tensorcom.pcr.sqlite_index import write_sqlite_index
from tensorcom.pcr.transcode import Transcoder
from tensorcom.pcr.wire import encode_index

GOLDEN_SETS = GOLDEN / "pcr"
KINDS = ("sqlite", "protobuf", "protobuf_raw")
CLASSES = ("ant", "bee", "cat")


@lru_cache(maxsize=512)
def split(jpeg: bytes, script: ScanScript = STANDARD) -> tuple[bytes, ...]:
    """Return the scan groups of an image."""
    return tuple(Transcoder(script).transcode(jpeg).groups)


@lru_cache
def small_jpegs(count: int = 8, mode: str = "RGB") -> tuple[bytes, ...]:
    """Return that many images, no two alike, of several sizes."""
    return tuple(
        saved(picture(mode, 24 + 3 * number, 32 + 5 * number, seed=number))
        for number in range(count)
    )


@dataclass(frozen=True)
class MadeSet:
    """A set that was written, and what must come out of it.

    Attributes:
        root: its directory.
        groups: for each sample, its scan groups.
        labels: for each sample.
        names: of the samples' sources.
        class_names: for each label.
        starts: first sample of each record, and the number of samples.
        numbers: in the names of the record files.
        script: the scan script.
    """

    root: Path
    groups: tuple[tuple[bytes, ...], ...]
    labels: tuple[int, ...]
    names: tuple[str, ...]
    class_names: tuple[str, ...]
    starts: tuple[int, ...]
    numbers: tuple[int, ...]
    script: ScanScript

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def scan_groups(self) -> int:
        return self.script.groups

    def jpeg(self, sample: int, scan_groups: int | None = None) -> bytes:
        """Return what reading a sample must give."""
        return joined(list(self.groups[sample]), scan_groups)

    def record(self, number: int, scan_groups: int | None = None) -> list[bytes]:
        """Return what reading record `number`, in order, must give."""
        samples = range(self.starts[number], self.starts[number + 1])
        return [self.jpeg(sample, scan_groups) for sample in samples]

    def table(self) -> SampleTable:
        """Return the table of samples that was written."""
        return SampleTable.decode((self.root / SAMPLES_NAME).read_bytes())

    def manifest(self) -> Manifest:
        """Return the manifest that was written."""
        return Manifest.from_json((self.root / MANIFEST_NAME).read_bytes())

    def rewrite_table(self, **changes: object) -> None:
        """Change columns of the table of samples, and keep the manifest's checksum right."""
        data = bytes(replace(self.table(), **changes).encode())
        (self.root / SAMPLES_NAME).write_bytes(data)
        self.rewrite_manifest(samples_crc32=zlib.crc32(data))

    def rewrite_manifest(self, **changes: object) -> None:
        """Change fields of the manifest."""
        (self.root / MANIFEST_NAME).write_bytes(replace(self.manifest(), **changes).to_json())

    def file(self, record: int) -> Path:
        """Return the file of the record at a place in the order of the set."""
        return self.root / record_name(self.numbers[record])


def make_set(
    root: Path,
    images: list[bytes] | tuple[bytes, ...] | None = None,
    *,
    labels: list[int] | None = None,
    names: list[str] | None = None,
    class_names: tuple[str, ...] = CLASSES,
    per_record: int = 3,
    script: ScanScript = STANDARD,
    numbers: list[int] | None = None,
    sqlite: bool = False,
) -> MadeSet:
    """Write a set as the converter would.

    Args:
        root: directory to make.
        images: JPEG files; None takes eight small ones.
        labels: of the images; None takes the classes in turn.
        names: of their sources; None makes some up.
        class_names: for each label.
        per_record: images in a record.
        script: the scan script.
        numbers: of the record files, ascending; None counts from 0.
        sqlite: write `PCR.db` too.
    """
    root.mkdir(parents=True)
    images = small_jpegs() if images is None else images
    labels = [i % len(class_names) for i in range(len(images))] if labels is None else labels
    if names is None:
        names = [f"{class_names[label]}/{i}.jpg" for i, label in enumerate(labels)]
    groups = [split(image, script) for image in images]
    starts = [*range(0, len(images), per_record), len(images)]
    numbers = list(range(len(starts) - 1)) if numbers is None else numbers
    records = []
    for number, first, stop in zip(numbers, starts[:-1], starts[1:], strict=True):
        record = encode_record(groups[first:stop], labels[first:stop])
        (root / record_name(number)).write_bytes(b"".join(record.pieces))
        records.append(record)
    parts = np.stack([record.parts for record in records])
    raw_names = [encode_name(name) for name in names]
    table = SampleTable(
        sizes=np.concatenate([record.sizes for record in records]),
        labels=np.array(labels, np.int32),
        orient=np.zeros(len(labels), np.uint8),
        nameends=np.cumsum([len(name) for name in raw_names], dtype=np.int64),
        names=np.frombuffer(b"".join(raw_names), np.uint8),
        firsts=np.array(starts, np.int64),
        numbers=np.array(numbers, np.int64),
        parts=parts,
        crc32=np.stack([record.crc32 for record in records]),
    )
    encoded = bytes(table.encode())
    (root / SAMPLES_NAME).write_bytes(encoded)
    entries = [(record_name(n), p) for n, p in zip(numbers, parts.tolist(), strict=True)]
    (root / INDEX_NAME).write_bytes(encode_index(*zip(*entries, strict=True)))
    if sqlite:
        write_sqlite_index(
            root / SQLITE_NAME,
            entries,
            images=len(images),
            classes=len(class_names),
            batch=per_record,
        )
    manifest = Manifest(
        images=len(images),
        records=len(records),
        scan_groups=script.groups,
        images_per_record=per_record,
        class_names=class_names,
        script=script.to_json(),
        group_bytes=tuple(np.cumsum(parts, axis=1).sum(axis=0)[1:].tolist()),
        samples_crc32=zlib.crc32(encoded),
        created_by="tests",
    )
    (root / MANIFEST_NAME).write_bytes(manifest.to_json())
    return MadeSet(
        root,
        tuple(groups),
        tuple(labels),
        tuple(names),
        class_names,
        tuple(starts),
        tuple(numbers),
        script,
    )


def copy_golden(kind: str, target: Path) -> Path:
    """Copy a set of the original, to be damaged."""
    shutil.copytree(GOLDEN_SETS / kind, target)
    return target


def flip(path: Path, offset: int, mask: int = 0x01) -> None:
    """Change a byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def cut(path: Path, size: int = 1) -> None:
    """Take bytes off the end of a file."""
    path.write_bytes(path.read_bytes()[:-size])
