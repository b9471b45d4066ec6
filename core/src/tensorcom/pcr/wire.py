"""The protobuf wire form of records and indexes.

Owns the three messages of the format, MetadataRecord, ScanGroup and DatasetOffsetsIndex, as pure
functions on bytes; knows nothing of files, JPEG or what the numbers mean.

Written by hand, not with the protobuf library: readers need the offset of every image in a buffer
that they do not copy, and the offset of every fault (docs/decisions/0007).

Source: docs/formats/pcr.md, "Record files" and "Index".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorcom.errors import PcrFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

VERSION_GROUPS = 1  # each scan group is a ScanGroup message
VERSION_RAW = 2  # each scan group is the images' bytes, one after the other
MAX_GROUPS = 1024
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LABELS, _GROUPS, _VERSION = 1, 2, 3
_IMAGE_TAG = 0x0A  # field 1, bytes
_NAME, _LENGTHS = 1, 2
_MAX_VARINT_BYTES = 10
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """What the head of a record file says.

    Attributes:
        labels: int32 (N,), the class of each image.
        groups: scan groups that follow.
        version: VERSION_GROUPS or VERSION_RAW.
    """

    labels: NDArray[np.int32]
    groups: int
    version: int

    @property
    def is_raw(self) -> bool:
        """Whether the groups are bare bytes, which only an index can tell apart."""
        return self.version == VERSION_RAW


def encode_varint(value: int) -> bytes:
    """Encode an integer from 0."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: memoryview, position: int, path: str | None, base: int) -> tuple[int, int]:
    """Return the varint at `position` and the position after it."""
    value = shift = 0
    for count in range(_MAX_VARINT_BYTES):
        if position + count >= len(data):
            raise PcrFormatError("number is cut", path=path, offset=base + position)
        byte = data[position + count]
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value < 1 << 64:
            return value, position + count + 1
        shift += 7
    raise PcrFormatError("number has more than 64 bits", path=path, offset=base + position)


def _fields(
    data: memoryview, path: str | None, base: int
) -> Iterator[tuple[int, int | memoryview, int, int]]:
    """Yield (field, value, offset of the field, position after it) of a message; bytes are views.

    Numbers come as int, and everything else as a view.
    """
    position = 0
    while position < len(data):
        start = position
        tag, position = _read_varint(data, position, path, base)
        field, kind = tag >> 3, tag & 7
        value: int | memoryview
        if field == 0:
            raise PcrFormatError("field 0, expected 1 or more", path=path, offset=base + start)
        if kind == _VARINT:
            value, position = _read_varint(data, position, path, base)
        elif kind in (_BYTES, _FIXED64, _FIXED32):
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
            if size is None:
                size, position = _read_varint(data, position, path, base)
            if size > len(data) - position:
                raise PcrFormatError(
                    f"field {field} of {size} bytes exceeds the {len(data) - position} bytes left",
                    path=path,
                    offset=base + start,
                )
            value = data[position : position + size]
            position += size
        else:
            raise PcrFormatError(
                f"wire type {kind} of field {field} is none that is used",
                path=path,
                offset=base + start,
            )
        yield field, value, base + start, position


def encode_metadata(labels: Sequence[int] | NDArray[np.int32], groups: int) -> bytes:
    """Encode the head of a record file, as the original does: labels unpacked, version 1."""
    out = bytearray()
    for label in np.asarray(labels).tolist():
        out += b"\x08" + encode_varint(label & 0xFFFFFFFFFFFFFFFF)
    return bytes(out) + b"\x10" + encode_varint(groups) + b"\x18\x01"


def decode_metadata(
    data: bytes | bytearray | memoryview, *, path: str | None = None
) -> RecordMetadata:
    """Decode the head of a record file.

    Args:
        data: the metadata part, whole.
        path: the file, for errors.

    Raises:
        PcrFormatError: the bytes are no MetadataRecord, or of a version that is not known.
    """
    view = memoryview(data)
    labels: list[int] = []
    groups = version = None
    for field, value, _, stop in _fields(view, path, 0):
        if field == _LABELS and isinstance(value, memoryview):
            position = 0
            while position < len(value):
                label, position = _read_varint(value, position, path, stop - len(value))
                labels.append(label)
        elif not isinstance(value, int):
            continue  # an unknown field
        elif field == _LABELS:
            labels.append(value)
        elif field == _GROUPS:
            groups = value
        elif field == _VERSION:
            version = value
    if groups is None or not 1 <= groups <= MAX_GROUPS:
        raise PcrFormatError(
            f"metadata says {groups} scan groups, expected 1 to {MAX_GROUPS}", path=path, offset=0
        )
    version = VERSION_GROUPS if version is None else version
    if version not in (VERSION_GROUPS, VERSION_RAW):
        raise PcrFormatError(
            f"record version {version} is not known, expected 1 or 2", path=path, offset=0
        )
    return RecordMetadata(_labels(labels, path), groups, version)


def _labels(values: list[int], path: str | None) -> NDArray[np.int32]:
    # Negative numbers of protobuf are 64-bit two's complement.
    signed = [value - (1 << 64) if value >> 63 else value for value in values]
    wrong = next((v for v in signed if not _INT32_MIN <= v <= _INT32_MAX), None)
    if wrong is not None:
        raise PcrFormatError(f"label {wrong} is no 32-bit integer", path=path, offset=0)
    return np.array(signed, np.int32)


def varint_sizes(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes each value from 0 takes as a varint, int64 of the same shape."""
    sizes = np.ones(values.shape, np.int64)
    for shift in range(7, 63, 7):
        sizes += values >= (1 << shift)
    return sizes


def image_frame(size: int) -> bytes:
    """Return what comes before the bytes of an image in a ScanGroup message."""
    return b"\x0a" + encode_varint(size)


def group_parts(images: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a ScanGroup message; images are passed on without a copy."""
    for image in images:
        yield image_frame(len(image))
        yield image


def group_starts(
    data: memoryview,
    sizes: NDArray[np.int64],
    *,
    path: str | None = None,
    base: int = 0,
) -> NDArray[np.int64]:
    """Return where each image begins in a ScanGroup message whose image sizes are known.

    Args:
        data: the message.
        sizes: int64 (N,), bytes of each image, which the framing must agree with.
        path: the file, for errors.
        base: offset of `data` in the file, for errors.

    Returns:
        int64 (N,), offsets in `data`.

    Raises:
        PcrFormatError: the framing disagrees with the sizes.
    """
    lengths = varint_sizes(sizes)
    ends = np.cumsum(1 + lengths + sizes)
    if not len(sizes) or int(ends[-1]) != len(data):
        total = int(ends[-1]) if len(sizes) else 0
        raise PcrFormatError(
            f"scan group of {len(data)} bytes, but its image sizes make {total}",
            path=path,
            offset=base,
        )
    raw = np.frombuffer(data, np.uint8)
    starts = ends - sizes
    tags = starts - lengths - 1
    good = raw[tags] == _IMAGE_TAG
    for place in range(int(lengths.max())):
        wanted = sizes >> (7 * place)
        byte = np.where(place < lengths - 1, wanted & 0x7F | 0x80, wanted & 0x7F)
        at = np.minimum(tags + 1 + place, len(raw) - 1)
        good &= (place >= lengths) | (raw[at] == byte)
    if not good.all():
        wrong = int(np.flatnonzero(~good)[0])
        raise PcrFormatError(
            f"image {wrong} of the scan group is not framed as {int(sizes[wrong])} bytes",
            path=path,
            offset=base + int(tags[wrong]),
            image=wrong,
        )
    return starts


def group_spans(
    data: memoryview, count: int, *, path: str | None = None, base: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each image of a ScanGroup message lies, by reading its framing.

    Args:
        data: the message.
        count: images that it must hold.
        path: the file, for errors.
        base: offset of `data` in the file, for errors.

    Returns:
        Starts and sizes, int64 (count,) each; starts are offsets in `data`.

    Raises:
        PcrFormatError: the bytes are no ScanGroup of that many images.
    """
    starts = np.empty(count, np.int64)
    sizes = np.empty(count, np.int64)
    found = 0
    for field, value, offset, stop in _fields(data, path, base):
        if field != 1 or not isinstance(value, memoryview):
            raise PcrFormatError(
                f"field {field} in a scan group, expected images only", path=path, offset=offset
            )
        if found == count:
            raise PcrFormatError(
                f"scan group holds more than the {count} images of the record",
                path=path,
                offset=offset,
            )
        sizes[found] = len(value)
        starts[found] = stop - len(value)
        found += 1
    if found != count:
        raise PcrFormatError(
            f"scan group holds {found} images, but the record {count}", path=path, offset=base
        )
    return starts, sizes


def encode_index(names: Iterable[str], lengths: Iterable[Sequence[int]]) -> bytes:
    """Encode a DatasetOffsetsIndex.

    Args:
        names: file names of the records.
        lengths: for each record, the bytes of its metadata and of each scan group.
    """
    out = bytearray()
    for name, parts in zip(names, lengths, strict=True):
        text = name.encode("utf-8", "surrogateescape")
        packed = b"".join(encode_varint(int(part)) for part in parts)
        entry = b"\x0a" + encode_varint(len(text)) + text
        entry += b"\x12" + encode_varint(len(packed)) + packed
        out += b"\x0a" + encode_varint(len(entry)) + entry
    return bytes(out)


def decode_index(
    data: bytes | bytearray | memoryview, *, path: str | None = None
) -> list[tuple[str, tuple[int, ...]]]:
    """Decode a DatasetOffsetsIndex.

    Returns:
        (name, part lengths) of each entry in order; an entry that repeats the one before it, as the
        original writes them, is left out.

    Raises:
        PcrFormatError: the bytes are no DatasetOffsetsIndex.
    """
    entries: list[tuple[str, tuple[int, ...]]] = []
    previous: memoryview | None = None
    for field, value, offset, stop in _fields(memoryview(data), path, 0):
        if field != 1 or not isinstance(value, memoryview):
            raise PcrFormatError(
                f"field {field} in an index, expected records only", path=path, offset=offset
            )
        if previous is None or value != previous:
            entries.append(_decode_entry(value, path, stop - len(value)))
            previous = value
    return entries


def _decode_entry(data: memoryview, path: str | None, base: int) -> tuple[str, tuple[int, ...]]:
    name: str | None = None
    lengths: list[int] = []
    for field, value, _, stop in _fields(data, path, base):
        if field == _NAME and isinstance(value, memoryview):
            name = bytes(value).decode("utf-8", "surrogateescape")
        elif field == _LENGTHS and isinstance(value, memoryview):
            position = 0
            while position < len(value):
                length, position = _read_varint(value, position, path, base + stop - len(value))
                lengths.append(length)
        elif field == _LENGTHS and isinstance(value, int):
            lengths.append(value)
    if name is None or not lengths:
        raise PcrFormatError("entry without a name or without lengths", path=path, offset=base)
    return name, tuple(lengths)
