"""What our sets add to the format: a manifest, and a table of samples.

Owns `PCR_manifest.json`, small, and `PCR_samples.ten`, which grows with the data and is mapped into
memory; knows nothing of record files.

Source: docs/formats/pcr.md, "Manifest" and "Samples".
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.errors import PcrFormatError, TenbinError
from tensorcom.pcr.layout import RecordTable, record_name
from tensorcom.pcr.wire import MAX_GROUPS
from tensorcom.tenbin import decode_buffer_with_infos, encode_buffer, load_with_infos

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

MANIFEST_NAME = "PCR_manifest.json"
SAMPLES_NAME = "PCR_samples.ten"
INDEX_NAME = "PCR_index.pb"
FORMAT = "tensorcom-pcr"
FORMAT_VERSION = 1
_ARRAYS: dict[str, tuple[str, int]] = {
    "sizes": ("int32", 2),
    "labels": ("int32", 1),
    "orient": ("uint8", 1),
    "nameends": ("int64", 1),
    "names": ("uint8", 1),
    "firsts": ("int64", 1),
    "numbers": ("int64", 1),
    "parts": ("int64", 2),
    "crc32": ("uint32", 2),
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a set says of itself.

    Attributes:
        images: images in the set.
        records: record files.
        scan_groups: groups in each record.
        images_per_record: most images in a record.
        class_names: name of each label from 0.
        script: the scan script, as `ScanScript.to_json` gives it.
        group_bytes: bytes of the whole set at 1 to `scan_groups` groups.
        samples_crc32: checksum of `PCR_samples.ten`.
        created_by: name and version of the program that wrote it.
        source_bytes: bytes of the files that the images come from, None if not known.
    """

    images: int
    records: int
    scan_groups: int
    images_per_record: int
    class_names: tuple[str, ...]
    script: Mapping[str, Any]
    group_bytes: tuple[int, ...]
    samples_crc32: int
    created_by: str
    source_bytes: int | None = None

    def to_json(self) -> bytes:
        """Return the file's bytes."""
        value = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "images": self.images,
            "records": self.records,
            "scan_groups": self.scan_groups,
            "images_per_record": self.images_per_record,
            "source_bytes": self.source_bytes,
            "group_bytes": list(self.group_bytes),
            "scan_script": dict(self.script),
            "samples_crc32": self.samples_crc32,
            "created_by": self.created_by,
            "class_names": list(self.class_names),
        }
        value["crc32"] = _checksum(value)
        return json.dumps(value, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, *, path: str | None = None) -> Manifest:
        """Read the file's bytes.

        Raises:
            PcrFormatError: they are no manifest, or of a version that is not known.
        """
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise PcrFormatError(f"is no JSON: {exc}", path=path) from exc
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise PcrFormatError(f'has no "format": "{FORMAT}"', path=path)
        version = value.get("format_version")
        if version != FORMAT_VERSION:
            raise PcrFormatError(
                f"format version {version!r} is not known, expected {FORMAT_VERSION}; "
                "a newer tensorcom may read it",
                path=path,
            )
        groups = _count(value, "scan_groups", path)
        if not 1 <= groups <= MAX_GROUPS:
            raise PcrFormatError(f"scan_groups is {groups}, expected 1 to {MAX_GROUPS}", path=path)
        script = value.get("scan_script")
        if not isinstance(script, dict):
            raise PcrFormatError("scan_script is no object", path=path)
        source = value.get("source_bytes")
        manifest = cls(
            images=_count(value, "images", path),
            records=_count(value, "records", path),
            scan_groups=groups,
            images_per_record=_count(value, "images_per_record", path),
            class_names=_list(value, "class_names", str, path),
            script=script,
            group_bytes=_list(value, "group_bytes", int, path),
            samples_crc32=_count(value, "samples_crc32", path),
            created_by=str(value.get("created_by", "")),
            source_bytes=None if source is None else _count(value, "source_bytes", path),
        )
        if value.pop("crc32", None) != _checksum(value):
            raise PcrFormatError("is damaged: crc32 is not that of the other keys", path=path)
        return manifest


def _checksum(value: Mapping[str, Any]) -> int:
    """Return the checksum of a manifest's other keys, whatever their order and layout."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return zlib.crc32(text.encode())


def _count(value: Mapping[str, Any], key: str, path: str | None) -> int:
    found = value.get(key)
    if type(found) is not int or not 0 <= found < 1 << 62:
        raise PcrFormatError(f"{key} is {found!r}, expected an integer from 0", path=path)
    return found


def _list(value: Mapping[str, Any], key: str, kind: type, path: str | None) -> tuple[Any, ...]:
    found = value.get(key)
    if not isinstance(found, list) or not all(type(item) is kind for item in found):
        raise PcrFormatError(f"{key} is no list of {kind.__name__}", path=path)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class SampleTable:
    """One row for each image, and one for each record, as flat arrays.

    Attributes:
        sizes: int32 (N, G), bytes of each image in each group.
        labels: int32 (N,).
        orient: uint8 (N,), EXIF orientation of the source, 0 if it had none.
        nameends: int64 (N,), where each name ends in `names`.
        names: uint8, UTF-8 names of the sources, one after the other; bytes that are no UTF-8 stay.
        firsts: int64 (R + 1,), first sample of each record, and N.
        numbers: int64 (R,), the number in each record's file name, ascending.
        parts: int64 (R, 1 + G), bytes of each record's metadata and groups.
        crc32: uint32 (R, 1 + G), checksum of each of these parts.

    Ownership:
        Arrays of a table that was loaded are read-only views of one map.
    """

    sizes: NDArray[np.int32]
    labels: NDArray[np.int32]
    orient: NDArray[np.uint8]
    nameends: NDArray[np.int64]
    names: NDArray[np.uint8]
    firsts: NDArray[np.int64]
    numbers: NDArray[np.int64]
    parts: NDArray[np.int64]
    crc32: NDArray[np.uint32]

    def encode(self) -> bytearray:
        """Return the file's bytes."""
        return encode_buffer([getattr(self, name) for name in _ARRAYS], list(_ARRAYS))

    @classmethod
    def load(cls, path: Path) -> SampleTable:
        """Map a file.

        Raises:
            PcrFormatError: it is no table of samples, or contradicts itself.
        """
        try:
            arrays, infos = load_with_infos(path, mmap=True)
        except TenbinError as exc:
            raise _no_table(exc, str(path)) from exc
        return cls._of(arrays, infos, str(path))

    @classmethod
    def decode(cls, data: bytes | memoryview, *, path: str | None = None) -> SampleTable:
        """Decode the file's bytes, as views.

        Raises:
            PcrFormatError: they are no table of samples, or contradict themselves.
        """
        try:
            arrays, infos = decode_buffer_with_infos(data)
        except TenbinError as exc:
            raise _no_table(exc, path) from exc
        return cls._of(arrays, infos, path)

    @classmethod
    def _of(cls, arrays: list[NDArray[Any]], infos: list[str], path: str | None) -> SampleTable:
        found = dict(zip(infos, arrays, strict=True))
        for name, (dtype, ndim) in _ARRAYS.items():
            array = found.get(name)
            if array is None or array.dtype.name != dtype or array.ndim != ndim:
                what = "nothing" if array is None else f"{array.dtype.name} {array.shape}"
                raise PcrFormatError(
                    f"array {name!r} is {what}, expected {dtype} of {ndim} axes", path=path
                )
        table = cls(**{name: found[name] for name in _ARRAYS})
        table._check(path)
        return table

    def _check(self, path: str | None) -> None:
        images, records = len(self.labels), len(self.numbers)
        width = self.parts.shape[1]
        shapes = {
            "sizes": (images, width - 1),
            "orient": (images,),
            "nameends": (images,),
            "firsts": (records + 1,),
            "parts": (records, width),
            "crc32": (records, width),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise PcrFormatError(
                    f"array {name!r} has shape {getattr(self, name).shape}, expected {shape}",
                    path=path,
                )
        firsts, numbers = self.firsts, self.numbers
        if firsts[0] != 0 or firsts[-1] != images or (np.diff(firsts) < 1).any():
            raise PcrFormatError("samples of the records do not follow each other", path=path)
        if records and (numbers[0] < 0 or (np.diff(numbers) < 1).any()):
            raise PcrFormatError("numbers of the records do not ascend", path=path)

    def record_table(self, *, path: str | None = None) -> RecordTable:
        """Return names and part lengths of the records.

        Raises:
            PcrFormatError: a length cannot be.
        """
        names = tuple(record_name(number) for number in self.numbers.tolist())
        return RecordTable.of(names, self.parts, path=path)

    def name(self, sample: int) -> str:
        """Return the name of a sample; bytes that are no UTF-8 come as surrogates.

        Raises:
            PcrFormatError: the names contradict themselves.
        """
        start = int(self.nameends[sample - 1]) if sample else 0
        stop = int(self.nameends[sample])
        if not 0 <= start <= stop <= len(self.names):
            raise PcrFormatError(f"name of sample {sample} is out of bounds", path=SAMPLES_NAME)
        return self.names[start:stop].tobytes().decode("utf-8", "surrogateescape")


def _no_table(error: TenbinError, path: str | None) -> PcrFormatError:
    return PcrFormatError(f"is no table of samples: {error.reason}", path=path, offset=error.offset)


def encode_name(name: str) -> bytes:
    """Return the bytes of a source's name: UTF-8, or as the file system has it."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that no file system gave
        return name.encode("utf-8", "backslashreplace")
