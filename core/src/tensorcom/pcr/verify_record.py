"""One record file: its length, checksums, framing, labels, and the structure of its images.

Owns the checks that need the bytes of a record; what the set says of it comes from `verify_index`.
"""

from __future__ import annotations

import contextlib
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tensorcom.errors import (
    ImageError,
    JpegError,
    MissingDependencyError,
    PcrError,
    PcrFormatError,
)
from tensorcom.images import decode_image
from tensorcom.pcr import wire
from tensorcom.pcr.jpeg import parse_jpeg
from tensorcom.pcr.problems import Problem, problem_of
from tensorcom.pcr.record import EOI, join_scans
from tensorcom.pcr.scripts import groups_of, split_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tensorcom.pcr.jpeg import JpegInfo
    from tensorcom.pcr.storage import Storage
    from tensorcom.pcr.verify_index import Contents


@dataclass(slots=True)
class RecordResult:
    """What was found in a record.

    Attributes:
        images: images that it holds, 0 if it does not say.
        size_bytes: bytes that were read.
        problems: what is damaged.
    """

    images: int = 0
    size_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)


class RecordCheck:
    """Checks records; called with the number of one, in any thread.

    Args:
        storage: where the set is.
        contents: what the set says of itself.
        decode: decode each image at each number of scan groups.
    """

    def __init__(self, storage: Storage, contents: Contents, *, decode: bool) -> None:
        self._storage, self._contents, self._decode = storage, contents, decode

    def __call__(self, record: int) -> RecordResult:
        """Check record number `record`."""
        result = RecordResult()
        name = self._contents.table.names[record]
        try:
            size = self._storage.size(name)
            total = int(self._contents.table.ends[record, -1])
            data = self._storage.read(name, 0, min(size, total))
        except PcrError as exc:
            result.problems.append(problem_of(exc, name))
            return result
        result.size_bytes = len(data)
        if size > total:
            reason = f"{size - total} bytes after the last group"
            result.problems.append(Problem(name, reason, offset=total))
        _Record(self._contents, record, data, result, decode=self._decode).check()
        return result


class _Record:
    """The checks of one record, each of which needs what those before have found."""

    def __init__(
        self,
        contents: Contents,
        record: int,
        data: memoryview,
        result: RecordResult,
        *,
        decode: bool,
    ) -> None:
        self._contents, self._record, self._data, self._result = contents, record, data, result
        self._name = contents.table.names[record]
        self._ends = contents.table.ends[record]
        # A record may have fewer groups than others of its set.
        self._filled = int(np.flatnonzero(np.diff(self._ends, prepend=0))[-1])
        self._decode = decode
        self._first: int | None = None  # number of the record's first sample
        self._sizes: NDArray[np.int64] | None = None
        self._labels: NDArray[np.int32] | None = None
        if contents.samples is not None:
            first, stop = (int(i) for i in contents.samples.firsts[record : record + 2])
            self._first = first
            self._sizes = contents.samples.sizes[first:stop].astype(np.int64)
            self._labels = contents.samples.labels[first:stop]

    def _add(self, reason: str, **place: int | None) -> None:
        self._result.problems.append(Problem(self._name, reason, **place))

    def _image(self, image: int | None, part: int | None = None) -> dict[str, int | None]:
        sample = None if self._first is None or image is None else self._first + image
        return {"part": part, "image": image, "sample": sample}

    def check(self) -> None:
        """Run all checks."""
        whole = self._check_length()
        if not whole:
            return
        damaged = self._check_sums(whole)
        metadata = self._check_metadata()
        if metadata is None:
            return
        spans = self._check_framing(metadata, min(whole - 1, metadata.groups, self._filled))
        if spans is not None:
            self._check_images(*spans, damaged=damaged)

    def _check_length(self) -> int:
        """Return how many parts are there whole."""
        whole = int(np.searchsorted(self._ends, len(self._data), side="right"))
        if whole < len(self._ends):
            part = "metadata" if not whole else f"group {whole}"
            reason = f"file ends in {part}, expected {int(self._ends[-1])} bytes"
            self._add(reason, offset=len(self._data))
        return whole

    def _check_sums(self, whole: int) -> bool:
        """Return whether a part is not what was written."""
        if self._contents.samples is None:
            return False
        damaged = False
        start = 0
        for part, stop in enumerate(self._ends[:whole].tolist()):
            found = zlib.crc32(self._data[start:stop])
            expected = int(self._contents.samples.crc32[self._record, part])
            if found != expected:
                damaged = True
                reason = f"checksum is {found:08x}, expected {expected:08x}"
                self._add(reason, part=part, offset=start)
            start = stop
        return damaged

    def _check_metadata(self) -> wire.RecordMetadata | None:
        try:
            metadata = wire.decode_metadata(self._data[: int(self._ends[0])])
        except PcrFormatError as exc:
            self._result.problems.append(problem_of(exc, self._name, part=0))
            return None
        count = self._result.images = len(metadata.labels)
        if metadata.groups < self._filled:
            reason = f"says {metadata.groups} scan groups, but the index has {self._filled}"
            self._add(reason, part=0)
        if self._labels is not None and self._sizes is not None:
            if count != len(self._labels):
                reason = f"holds {count} images, expected {len(self._labels)}"
                self._add(reason, part=0)
                self._sizes = None
            elif not np.array_equal(metadata.labels, self._labels):
                image = int(np.flatnonzero(metadata.labels != self._labels)[0])
                label, expected = int(metadata.labels[image]), int(self._labels[image])
                reason = f"label is {label}, but {expected} in the table of samples"
                self._add(reason, **self._image(image, 0))
        return metadata

    # -- framing -------------------------------------------------------------------------------

    def _check_framing(
        self, metadata: wire.RecordMetadata, groups: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return where each image lies in each group, as far as all groups up to there are good."""
        count = len(metadata.labels)
        raw = self._raw_sizes(count) if metadata.is_raw else None
        if metadata.is_raw and raw is None:
            return None
        starts = np.zeros((count, groups), np.int64)
        sizes = np.zeros((count, groups), np.int64)
        good = groups
        for group in range(groups):
            start, stop = (int(end) for end in self._ends[group : group + 2])
            known = None if self._sizes is None else self._sizes[:, group]
            try:
                if raw is not None:
                    found = _raw_spans(raw[:, group], stop - start, start)
                else:
                    found = self._spans(start, stop, count, known)
            except PcrFormatError as exc:
                image = self._image(getattr(exc, "image", None), group + 1)
                self._result.problems.append(problem_of(exc, self._name, **image))
                good = min(good, group)
                continue
            starts[:, group], sizes[:, group] = start + found[0], found[1]
        return starts[:, :good], sizes[:, :good]

    def _spans(
        self, start: int, stop: int, count: int, sizes: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        view = self._data[start:stop]
        if sizes is None:
            return wire.group_spans(view, count, base=start)
        if (sizes < 0).any():
            image = int(np.flatnonzero(sizes < 0)[0])
            reason = f"size is {int(sizes[image])} in the table of samples"
            raise PcrFormatError(reason, image=image)
        return wire.group_starts(view, sizes, base=start), sizes

    def _raw_sizes(self, count: int) -> NDArray[np.int64] | None:
        """Return the sizes of the images of a record of version 2, from `PCR.db`."""
        sqlite, groups = self._contents.sqlite, self._contents.table.groups
        try:
            sizes = None if sqlite is None else sqlite.image_sizes(self._name, groups)
        except PcrFormatError as exc:
            self._result.problems.append(problem_of(exc, self._name))
            return None
        if sizes is None or len(sizes) != count:
            found = "no" if sizes is None else len(sizes)
            self._add(f"is of version 2 with {count} images, but PCR.db has {found} sizes of it")
            return None
        return sizes

    # -- images --------------------------------------------------------------------------------

    def _check_images(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64], *, damaged: bool
    ) -> None:
        for image in range(len(sizes)):
            spans = list(zip(starts[image].tolist(), sizes[image].tolist(), strict=True))
            if not spans:
                continue
            scans = [self._data[start : start + size] for start, size in spans]
            for part, reason in self._faults_of(scans, damaged=damaged):
                offset = spans[part - 1][0] if part else None
                self._add(reason, offset=offset, **self._image(image, part))

    def _faults_of(
        self, scans: list[memoryview], *, damaged: bool
    ) -> Iterator[tuple[int | None, str]]:
        """Yield the group, if it is known, and what is wrong with an image."""
        jpeg = join_scans(scans)
        try:
            info = parse_jpeg(jpeg)
        except JpegError as exc:
            yield None, exc.reason
            return
        if info.tail_bytes or info.end != len(jpeg) - len(EOI):
            yield None, "scans do not end where the image ends"
        yield from _misplaced(scans, info)
        script = self._contents.script
        is_whole = len(scans) == self._contents.table.groups
        if script is not None and is_whole and groups_of(info, script) is None:
            yield None, f"scans are not those of the script {script.name}"
        elif script is not None and is_whole:
            expected = [len(part) for part in split_groups(jpeg, info, script)]
            if expected != [len(scan) for scan in scans]:
                yield None, f"scans are not in the groups of the script {script.name}"
        if self._decode:
            yield from _undecodable(scans)
        elif damaged:  # a checksum does not say which image it is
            with contextlib.suppress(MissingDependencyError):
                yield from _undecodable(scans, only_whole=True)


def _raw_spans(
    sizes: NDArray[np.int64], total: int, base: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if (sizes < 0).any() or int(sizes.sum()) != total:
        reason = f"has {total} bytes, but its image sizes in PCR.db make {int(sizes.sum())}"
        raise PcrFormatError(reason, offset=base)
    return np.cumsum(sizes) - sizes, sizes


def _misplaced(scans: list[memoryview], info: JpegInfo) -> Iterator[tuple[int, str]]:
    """Yield the groups that do not end with a scan."""
    stops = {scan.stop for scan in info.scans}
    end = 0
    for group, scan in enumerate(scans, 1):
        end += len(scan)
        if not end:
            yield group, "image has nothing in the first group"
            return
        if len(scan) and min(end, info.end) not in stops:
            yield group, "image's bytes do not end with a scan"


def _undecodable(
    scans: list[memoryview], *, only_whole: bool = False
) -> Iterator[tuple[int | None, str]]:
    """Yield the first group with which an image cannot be decoded."""
    for groups in [len(scans)] if only_whole else range(1, len(scans) + 1):
        if only_whole or len(scans[groups - 1]):
            try:
                decode_image(join_scans(scans[:groups]))
            except ImageError as exc:
                yield None if only_whole else groups, exc.reason
                return
