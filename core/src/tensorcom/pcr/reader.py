"""PcrReader: a set of records, at the fidelity that the reader chooses.

Owns which files make a set, and what is asked of storage; the bytes of a record are `record`'s.
"""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorcom.errors import PcrError, PcrFormatError, PcrIndexError
from tensorcom.images.folder import printable
from tensorcom.locks import ForkLock
from tensorcom.pcr.layout import Records, RecordTable
from tensorcom.pcr.manifest import INDEX_NAME, MANIFEST_NAME, SAMPLES_NAME, Manifest, SampleTable
from tensorcom.pcr.record import RecordPrefix, check_sums, join_scans
from tensorcom.pcr.scripts import ScanScript
from tensorcom.pcr.sqlite_index import FILE_NAME as SQLITE_NAME
from tensorcom.pcr.sqlite_index import SqliteIndex, read_sqlite_index
from tensorcom.pcr.storage import open_storage
from tensorcom.pcr.wire import decode_index, decode_metadata, image_frame, varint_sizes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tensorcom.pcr.layout import RecordInfo
    from tensorcom.pcr.storage import Storage
    from tensorcom.pcr.wire import RecordMetadata

UNFINISHED_NAME = "PCR_unfinished.json"
MAX_INDEX_BYTES = 1 << 33
MAX_MANIFEST_BYTES = 1 << 28
_HEADS_AT_ONCE = 16


def check_is_set(storage: Storage) -> bool:
    """Return whether a set is one of this version, and not of the original.

    Raises:
        PcrIndexError: there is no set, or one whose conversion is unfinished.
    """
    if storage.exists(MANIFEST_NAME):
        return True
    if storage.exists(UNFINISHED_NAME):
        raise PcrIndexError(
            "conversion is unfinished: run the same conversion again, and it goes on",
            path=storage.shown,
        )
    if not (storage.exists(INDEX_NAME) or storage.exists(SQLITE_NAME)):
        raise PcrIndexError(
            f"holds no set of records: none of {MANIFEST_NAME}, {INDEX_NAME}, {SQLITE_NAME}",
            path=storage.shown,
        )
    return False


class _Heads(NamedTuple):
    """What the heads of record files say: first samples, labels, and whether groups are raw."""

    starts: NDArray[np.int64]
    labels: NDArray[np.int32]
    raw: list[bool]


class PcrReader:
    """A set of progressive compressed records.

    Reads sets of this version, and those of the original release: with a protobuf index, with
    a SQLite index, and with raw groups (version 2).

    Args:
        root: directory of the set, or an fsspec URL of it; or a `Storage`, which the reader closes.
        cache: local directory that keeps what was read of a remote set; None keeps nothing.
        storage_options: passed on to the fsspec file system.
        **options: further options of `open_storage`: retries, timeout_s, cache_bytes.

    Attributes:
        root: where the set is, as given.
        is_local: whether that is a directory of this machine, mounted or not.
        manifest: what the set says of itself; None for sets of the original.
        class_names: name of each label; None for sets of the original, which do not say.
        scan_groups: groups of the set: scan_groups=1 to this many can be read.
        script: the scan script of its images; None for sets of the original.
        table: names and part lengths of the records.

    Raises:
        PcrIndexError: there is no set, or one whose conversion is unfinished.
        PcrFormatError: its index, manifest or table of samples is damaged, or they disagree.
        PcrReadError: storage failed.

    Safe in threads, after a fork, and pickled: the copy opens the set anew.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Storage,
        *,
        cache: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._arguments = (root, {"cache": cache, "storage_options": storage_options, **options})
        self._storage = open_storage(root, cache=cache, storage_options=storage_options, **options)
        self.root = self._storage.root
        self.is_local = self._storage.is_local
        self._lock = ForkLock()
        self._heads: _Heads | None = None
        self._last: tuple[int, RecordPrefix] | None = None
        self.manifest: Manifest | None = None
        self.class_names: tuple[str, ...] | None = None
        self.script: ScanScript | None = None
        self._samples: SampleTable | None = None
        self._sqlite: SqliteIndex | None = None
        try:
            is_ours = check_is_set(self._storage)
            self.table = self._open_ours() if is_ours else self._open_original()
        except BaseException:
            self._storage.close()
            raise
        self.scan_groups = self.table.groups

    # -- opening -------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._storage.shown.rstrip('/')}/{printable(name)}"

    def _open_ours(self) -> RecordTable:
        path = self._path(MANIFEST_NAME)
        data = bytes(self._storage.read_all(MANIFEST_NAME, MAX_MANIFEST_BYTES))
        manifest = Manifest.from_json(data, path=path)
        local = self._storage.local_path(SAMPLES_NAME)
        if local is not None:
            samples = SampleTable.load(local)
        else:
            raw = self._storage.read_all(SAMPLES_NAME, MAX_INDEX_BYTES)
            if zlib.crc32(raw) != manifest.samples_crc32:
                raise PcrFormatError(
                    "checksum is not the manifest's", path=self._path(SAMPLES_NAME)
                )
            samples = SampleTable.decode(raw, path=self._path(SAMPLES_NAME))
        found = (len(samples.labels), len(samples.numbers), samples.sizes.shape[1])
        said = (manifest.images, manifest.records, manifest.scan_groups)
        if found != said:
            raise PcrFormatError(
                f"images, records, groups are {said}, but in {SAMPLES_NAME} {found}", path=path
            )
        self.manifest, self._samples = manifest, samples
        self.class_names = manifest.class_names
        self.script = ScanScript.from_json(manifest.script, path=path)
        return samples.record_table(path=self._path(SAMPLES_NAME))

    def _open_original(self) -> RecordTable:
        if self._storage.exists(INDEX_NAME):
            path = self._path(INDEX_NAME)
            data = self._storage.read_all(INDEX_NAME, MAX_INDEX_BYTES)
            return RecordTable.from_entries(decode_index(data, path=path), path=path)
        path = self._path(SQLITE_NAME)
        return RecordTable.from_entries(self._sqlite_index().entries, path=path)

    def _sqlite_index(self) -> SqliteIndex:
        with self._lock:
            if self._sqlite is None:
                data = bytes(self._storage.read_all(SQLITE_NAME, MAX_INDEX_BYTES))
                self._sqlite = read_sqlite_index(data, path=self._path(SQLITE_NAME))
            return self._sqlite

    # -- what is in it -------------------------------------------------------------------------

    def _starts_and_labels(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return where each record's samples start, and all labels.

        Sets of the original say that only in the heads of the record files.
        """
        if self._samples is not None:
            return self._samples.firsts, self._samples.labels
        return self._read_heads()[:2]

    def _read_heads(self) -> _Heads:
        if self._heads is None:
            self.read_heads()
        assert self._heads is not None
        return self._heads

    def read_heads(self, *, on_error: Callable[[PcrError], object] | None = None) -> None:
        """Read the heads of all records, where only they say which samples there are.

        Args:
            on_error: called with the error of each record whose head cannot be read, which then
                counts as one without samples; None raises it.

        Raises:
            PcrError: a head cannot be read, and there is no `on_error`.
        """

        def read_head(record: int) -> RecordMetadata | PcrError:
            name = self.table.names[record]
            try:
                head = self._storage.read(name, 0, int(self.table.parts[record, 0]))
                return decode_metadata(head, path=self._path(name))
            except PcrError as exc:
                if on_error is None:
                    raise
                return exc

        with self._lock:
            if self._samples is not None or self._heads is not None:
                return
            with ThreadPoolExecutor(min(_HEADS_AT_ONCE, len(self.table))) as pool:
                found = list(pool.map(read_head, range(len(self.table))))
            heads = [None if isinstance(head, PcrError) else head for head in found]
            labels = [head.labels if head else np.zeros(0, np.int32) for head in heads]
            starts = np.cumsum([0, *(len(part) for part in labels)], dtype=np.int64)
            raw = [bool(head and head.is_raw) for head in heads]
            self._heads = _Heads(starts, np.concatenate(labels), raw)
        for error in found:
            if isinstance(error, PcrError) and on_error is not None:
                on_error(error)

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.starts[-1])

    @property
    def starts(self) -> NDArray[np.int64]:
        """First sample of each record, and the number of samples: int64 (R + 1,)."""
        return self._starts_and_labels()[0]

    @property
    def labels(self) -> NDArray[np.int32]:
        """Class of each sample: int32 (N,), read-only."""
        return self._starts_and_labels()[1]

    @property
    def records(self) -> Sequence[RecordInfo]:
        """The records, in order."""
        return Records(self.table, self.starts)

    @property
    def group_bytes(self) -> NDArray[np.int64]:
        """Bytes read of the whole set with scan_groups = 1, 2, ...: int64 (G,)."""
        totals: NDArray[np.int64] = self.table.ends.sum(axis=0)
        return totals[1:]

    def name(self, sample: int) -> str | None:
        """Return the name of a sample's source; None for sets of the original."""
        sample = self._check_sample(sample)
        return None if self._samples is None else self._samples.name(sample)

    def record_of(self, sample: int) -> tuple[int, int]:
        """Return the record that a sample is in, and its place there."""
        sample = self._check_sample(sample)
        record = int(np.searchsorted(self.starts, sample, side="right")) - 1
        return record, sample - int(self.starts[record])

    def _check_sample(self, sample: int) -> int:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of a set of {len(self)}")
        return int(sample)

    def _check_record(self, record: int) -> int:
        if not 0 <= record < len(self.table):
            raise IndexError(f"record {record} of a set of {len(self.table)}")
        return int(record)

    # -- reading -------------------------------------------------------------------------------

    def read_record(
        self, record: int, *, scan_groups: int | None = None
    ) -> tuple[list[bytes], NDArray[np.int32]]:
        """Read a record by one request for a prefix of its file.

        Args:
            record: its number in `records`.
            scan_groups: groups to read, 1 to the set's; None reads all.

        Returns:
            JPEG files, scans joined and FF D9 after them, and labels, int32 (N,).

        Raises:
            PcrFormatError: the file is damaged.
            PcrReadError: the file is shorter than the index says, or storage failed.
            ValueError: `scan_groups` is out of range.
        """
        prefix = self.read_prefix(record, scan_groups=scan_groups)
        return [prefix.jpeg(image) for image in range(len(prefix))], prefix.labels

    def read_prefix(self, record: int, *, scan_groups: int | None = None) -> RecordPrefix:
        """Read a record as `read_record` does; its images are joined when they are asked for.

        Raises:
            PcrError, ValueError: as for `read_record`.
        """
        groups = self.table.check_groups(scan_groups)
        record = self._check_record(record)
        name = self.table.names[record]
        ends = self.table.ends[record, : groups + 1]
        data = self._storage.read(name, 0, int(ends[-1]))
        sizes: NDArray[np.integer[Any]] | None = None
        labels = None
        if self._samples is not None:
            first, stop = (int(i) for i in self._samples.firsts[record : record + 2])
            sizes, labels = self._samples.sizes[first:stop], self._samples.labels[first:stop]
        elif decode_metadata(data[: int(ends[0])], path=self._path(name)).is_raw:
            sizes = self._sqlite_index().image_sizes(name, self.table.groups)
        prefix = RecordPrefix(data, ends, path=self._path(name), sizes=sizes, labels=labels)
        if self._samples is not None:
            check_sums(data, ends, self._samples.crc32[record], path=self._path(name))
        return prefix

    def sample(self, sample: int, *, scan_groups: int | None = None) -> tuple[bytes, int]:
        """Read one sample: a few bytes of each group where the set says where they are.

        Sets of the original do not, so that there its record is read, and the last one kept.

        Args:
            sample: its number in the set.
            scan_groups: groups to read, 1 to the set's; None reads all.

        Returns:
            A JPEG file and its label.

        Raises:
            IndexError: there is no such sample.
            PcrFormatError: the file is damaged where the sample should be.
            PcrReadError: the file is shorter than the index says, or storage failed.
        """
        jpeg = join_scans(self.sample_scans(sample, scan_groups=scan_groups))
        return jpeg, int(self.labels[sample])

    def sample_scans(
        self, sample: int, *, scan_groups: int | None = None
    ) -> list[memoryview | bytes]:
        """Read one sample as `sample` does; return its bytes in each group, which may be empty.

        Raises:
            IndexError: as for `sample`.
            PcrFormatError: as for `sample`.
            PcrReadError: as for `sample`.
        """
        groups = self.table.check_groups(scan_groups)
        record, place = self.record_of(sample)
        if self._samples is None:
            return list(self._kept_record(record, groups).scans(place))
        first = int(self._samples.firsts[record])
        before = self._samples.sizes[first : first + place, :groups].astype(np.int64)
        framed = (1 + varint_sizes(before) + before).sum(axis=0)
        starts = self.table.ends[record, :groups] + framed
        sizes = self._samples.sizes[sample, :groups]
        spans = zip(starts.tolist(), sizes.tolist(), strict=True)
        name = self.table.names[record]
        return [self._read_image(name, start, size) for start, size in spans]

    def _read_image(self, name: str, start: int, size: int) -> memoryview | bytes:
        """Read an image of a group with its framing, which tells that it is the right place."""
        if not size:
            return b""
        frame = image_frame(max(size, 0))
        data = self._storage.read(name, start, len(frame) + size)
        if data[: len(frame)] != frame:
            raise PcrFormatError(
                f"image is not framed as {size} bytes", path=self._path(name), offset=start
            )
        return data[len(frame) :]

    def image_sizes(self, record: int, *, scan_groups: int | None = None) -> NDArray[np.int64]:
        """Return the bytes of each image of a record in each group, int64 (N, groups).

        Sets of the original say them only in the record, which is read for it.

        Raises:
            PcrFormatError: as for `read_record`.
            PcrReadError: as for `read_record`.
            ValueError: as for `read_record`.
        """
        groups = self.table.check_groups(scan_groups)
        record = self._check_record(record)
        if self._samples is None:
            return self.read_prefix(record, scan_groups=groups).sizes
        first, stop = (int(i) for i in self._samples.firsts[record : record + 2])
        return self._samples.sizes[first:stop, :groups].astype(np.int64)

    def raw_sizes(self) -> NDArray[np.int64] | None:
        """Return the bytes of each image in each group where records do not frame their images.

        That is so in records of version 2, of the original release.

        Returns:
            int64 (N, G), or None if the set's records are of version 1.

        Raises:
            PcrFormatError: a record's sizes are missing, or records are of both versions.
            PcrReadError: storage failed.
        """
        if self._samples is not None:
            return None
        counts = np.diff(self.starts).tolist()  # 0 if its head could not be read
        raw = [raw for raw, count in zip(self._read_heads().raw, counts, strict=True) if count]
        if not any(raw):
            return None
        if not all(raw):
            raise PcrFormatError("records are of both versions", path=self._storage.shown)
        found = []
        for name, count in zip(self.table.names, counts, strict=True):
            if not count:
                continue
            sizes = self._sqlite_index().image_sizes(name, self.table.groups)
            if sizes is None or len(sizes) != count:
                said = "none" if sizes is None else f"those of {len(sizes)}"
                raise PcrFormatError(
                    f"record has {count} images, but of their sizes {SQLITE_NAME} says {said}",
                    path=self._path(name),
                )
            found.append(sizes)
        return np.concatenate(found)

    def _kept_record(self, record: int, groups: int) -> RecordPrefix:
        with self._lock:
            kept = self._last
        if kept is not None and kept[0] == record and kept[1].scan_groups == groups:
            return kept[1]
        prefix = self.read_prefix(record, scan_groups=groups)
        with self._lock:
            self._last = record, prefix
        return prefix

    # -- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close what is open; reading again opens it."""
        self._storage.close()
        self._last = None

    def __enter__(self) -> PcrReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PcrReader, **self._arguments[1]), self._arguments[:1]

    def __repr__(self) -> str:
        return f"PcrReader({self._storage.shown!r})"
