"""One record file: its bytes from the scans of its images, and the images from a prefix of it.

Owns how images and groups are arranged in a record; knows nothing of files, indexes or pixels.

Source: docs/formats/pcr.md, "Record files".
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorcom.errors import PcrError, PcrFormatError
from tensorcom.pcr import wire
from tensorcom.pcr.layout import MAX_PART_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

EOI = b"\xff\xd9"


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """A record ready to be written.

    Attributes:
        pieces: its bytes, in order; images are those that were given.
        parts: int64 (1 + G,), bytes of the metadata and of each group.
        crc32: uint32 (1 + G,), checksum of each of these.
        sizes: int32 (N, G), bytes of each image in each group.
        labels: int32 (N,).
    """

    pieces: Sequence[bytes | memoryview]
    parts: NDArray[np.int64]
    crc32: NDArray[np.uint32]
    sizes: NDArray[np.int32]
    labels: NDArray[np.int32]


def part_lengths(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes that each scan group takes, int64 (G,).

    Args:
        sizes: int64 (N, G), bytes of each image in each group.

    Raises:
        PcrError: a group exceeds 2 GiB, which is protobuf's limit.
    """
    lengths: NDArray[np.int64] = (1 + wire.varint_sizes(sizes) + sizes).sum(axis=0)
    if (lengths > MAX_PART_BYTES).any():
        group = int(np.argmax(lengths > MAX_PART_BYTES))
        raise PcrError(
            f"scan group {group + 1} of {len(sizes)} images has {int(lengths[group])} bytes, "
            f"expected at most {MAX_PART_BYTES}: put fewer images into a record"
        )
    return lengths


def encode_record(
    images: Sequence[Sequence[bytes]], labels: Sequence[int] | NDArray[np.int32]
) -> EncodedRecord:
    """Arrange images as a record.

    Args:
        images: for each image, its bytes in each group; empty where it has none.
        labels: for each image, its class.

    Raises:
        PcrError: a part exceeds 2 GiB.
    """
    sizes = np.array([[len(part) for part in image] for image in images], np.int64)
    part_lengths(sizes)
    groups = sizes.shape[1]
    parts: list[list[bytes | memoryview]] = [[wire.encode_metadata(labels, groups)]]
    parts += [list(wire.group_parts(image[g] for image in images)) for g in range(groups)]
    checksums = np.zeros(1 + groups, np.uint32)
    for index, pieces in enumerate(parts):
        checksum = 0
        for piece in pieces:
            checksum = zlib.crc32(piece, checksum)
        checksums[index] = checksum
    return EncodedRecord(
        pieces=[piece for pieces in parts for piece in pieces],
        parts=np.array([sum(map(len, pieces)) for pieces in parts], np.int64),
        crc32=checksums,
        sizes=sizes.astype(np.int32),
        labels=np.asarray(labels, np.int32),
    )


class RecordPrefix:
    """The images of a record, as far as a prefix of its file goes.

    Args:
        data: the file's bytes up to the end of a group.
        ends: int64 (1 + k,), offset at which the metadata and each group end.
        path: the file, for errors.
        sizes: integers (N, >= k), bytes of each image in each group; None where the file says them.
        labels: int32 (N,) that the file must agree with; None takes what it says.

    Attributes:
        labels: int32 (N,).
        scan_groups: groups that the prefix holds.

    Raises:
        PcrFormatError: the bytes disagree with the ends, the sizes or the labels.

    Ownership:
        Keeps `data`; each JPEG is a copy.
    """

    def __init__(
        self,
        data: memoryview,
        ends: NDArray[np.int64],
        *,
        path: str,
        sizes: NDArray[np.integer] | None = None,
        labels: NDArray[np.int32] | None = None,
    ) -> None:
        metadata = wire.decode_metadata(data[: int(ends[0])], path=path)
        count, groups = len(metadata.labels), len(ends) - 1
        if labels is not None and not np.array_equal(labels, metadata.labels):
            raise PcrFormatError(
                f"labels of the record's {count} images are not those of the table of samples",
                path=path,
                offset=0,
            )
        # A record may have fewer groups than others of its set; the rest take no memory here.
        filled = int(np.flatnonzero(np.diff(ends, prepend=0))[-1])
        if metadata.groups < filled:
            raise PcrFormatError(
                f"metadata says {metadata.groups} scan groups, but the index has {filled} or more",
                path=path,
                offset=0,
            )
        if sizes is not None and (len(sizes) != count or sizes.shape[1] < groups):
            raise PcrFormatError(
                f"record holds {count} images, but there are sizes of {len(sizes)}", path=path
            )
        self.labels, self.scan_groups = metadata.labels, groups
        self._data, self._path = data, path
        self._spans: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for group in range(filled):
            start, stop = int(ends[group]), int(ends[group + 1])
            known = None if sizes is None else sizes[:, group].astype(np.int64)
            starts, found = self._place(start, stop, known, raw=metadata.is_raw)
            self._spans.append((start + starts, found))

    def _place(
        self, start: int, stop: int, sizes: NDArray[np.int64] | None, *, raw: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and sizes of the images in a group that lies at [start, stop)."""
        if not raw:
            view = self._data[start:stop]
            if sizes is None:
                return wire.group_spans(view, len(self.labels), path=self._path, base=start)
            return wire.group_starts(view, sizes, path=self._path, base=start), sizes
        if sizes is None:
            raise PcrFormatError(
                "record of version 2 needs the image sizes, which only PCR.db has", path=self._path
            )
        if (sizes < 0).any() or int(sizes.sum()) != stop - start:
            raise PcrFormatError(
                f"scan group of {stop - start} bytes, but its image sizes make {int(sizes.sum())}",
                path=self._path,
                offset=start,
            )
        return np.cumsum(sizes) - sizes, sizes

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each image in each group: int64 (N, k)."""
        sizes = np.zeros((len(self), self.scan_groups), np.int64)
        for group, (_, found) in enumerate(self._spans):
            sizes[:, group] = found
        return sizes

    def jpeg(self, image: int) -> bytes:
        """Return an image: its scans joined, and the end marker."""
        return join_scans(self.scans(image))

    def scans(self, image: int) -> list[memoryview]:
        """Return the bytes of an image in each group, as views."""
        scans = [
            self._data[starts[image] : starts[image] + sizes[image]]
            for starts, sizes in self._spans
        ]
        return scans + [self._data[:0]] * (self.scan_groups - len(scans))


def join_scans(scans: Sequence[bytes | memoryview]) -> bytes:
    """Join the scans of an image to a JPEG, which ends in FF D9 once."""
    last = next((scan for scan in reversed(scans) if len(scan)), b"")
    return b"".join([*scans, b"" if last[-2:] == EOI else EOI])


def check_sums(
    data: memoryview, ends: NDArray[np.int64], crc32: NDArray[np.uint32], *, path: str
) -> None:
    """Compare the checksums of parts with those of the table of samples.

    Args:
        data: the file's bytes up to the end of a group.
        ends: int64 (1 + k,), offset at which the metadata and each group end.
        crc32: uint32 (>= 1 + k,), the checksum of each part.
        path: the file, for errors.

    Raises:
        PcrFormatError: one differs.
    """
    start = 0
    for part, (end, expected) in enumerate(zip(ends.tolist(), crc32.tolist(), strict=False)):
        if zlib.crc32(data[start:end]) != expected:
            name = f"scan group {part}" if part else "metadata"
            raise PcrFormatError(
                f"{name} is damaged: its checksum differs", path=path, offset=start
            )
        start = end
