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
        sizes: int64 (N, k), bytes of each image in each group.

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
        if metadata.groups < groups:
            raise PcrFormatError(
                f"metadata says {metadata.groups} scan groups, but the index has {groups} or more",
                path=path,
                offset=0,
            )
        if sizes is not None and (len(sizes) != count or sizes.shape[1] < groups):
            raise PcrFormatError(
                f"record holds {count} images, but there are sizes of {len(sizes)}", path=path
            )
        self.labels = metadata.labels
        self._data, self._path = data, path
        self._starts = np.empty((count, groups), np.int64)
        self.sizes = np.empty((count, groups), np.int64)
        for group in range(groups):
            start, stop = int(ends[group]), int(ends[group + 1])
            known = None if sizes is None else sizes[:, group].astype(np.int64)
            self._place(group, start, stop, known, raw=metadata.is_raw)

    def _place(
        self, group: int, start: int, stop: int, sizes: NDArray[np.int64] | None, *, raw: bool
    ) -> None:
        """Find the images of a group that lies at [start, stop)."""
        if raw:
            if sizes is None:
                raise PcrFormatError(
                    "record of version 2 needs the image sizes, which only PCR.db has",
                    path=self._path,
                )
            if (sizes < 0).any() or int(sizes.sum()) != stop - start:
                raise PcrFormatError(
                    f"scan group of {stop - start} bytes, but its image sizes make "
                    f"{int(sizes.sum())}",
                    path=self._path,
                    offset=start,
                )
            starts = np.cumsum(sizes) - sizes
        elif stop == start:  # a record of fewer groups than others
            starts = sizes = np.zeros(len(self.labels), np.int64)
        elif sizes is None:
            starts, sizes = wire.group_spans(
                self._data[start:stop], len(self.labels), path=self._path, base=start
            )
        else:
            starts = wire.group_starts(self._data[start:stop], sizes, path=self._path, base=start)
        self._starts[:, group] = start + starts
        self.sizes[:, group] = sizes

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def scan_groups(self) -> int:
        """Groups that the prefix holds."""
        return int(self.sizes.shape[1])

    def jpeg(self, image: int) -> bytes:
        """Return an image: its scans joined, and the end marker."""
        data = self._data
        spans = zip(self._starts[image].tolist(), self.sizes[image].tolist(), strict=True)
        return join_scans([data[start : start + size] for start, size in spans])


def join_scans(scans: Sequence[bytes | memoryview]) -> bytes:
    """Join the scans of an image to a JPEG, which ends in FF D9 once."""
    last = next((scan for scan in reversed(scans) if len(scan)), b"")
    return b"".join([*scans, b"" if last[-2:] == EOI else EOI])
