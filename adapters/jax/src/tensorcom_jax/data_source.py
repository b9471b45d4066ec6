"""PcrDataSource: the samples of a set of records by number, as Grain asks for them.

Owns when a sample is read by itself and when its record is read whole; needs no Grain, whose
`RandomAccessDataSource` is a protocol.
"""

from __future__ import annotations

import operator
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from tensorcom.arguments import check_integers
from tensorcom.images import center_crop, decode_image, evaluation_view
from tensorcom.locks import ForkLock
from tensorcom.pcr import PcrReader, guarded

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from tensorcom.pcr.record import RecordPrefix

_ASKS = 4  # samples of a record that are asked for before it is read whole
_RECENT = 64  # records that count as asked for lately


class PcrDataSource:
    """A `grain.sources.RandomAccessDataSource` over the samples of a set of records.

    A sample is read by itself, a few bytes of each group. A record of which several samples were
    asked for lately is read whole, once, and kept as long as `cache_bytes` lasts: so reading in the
    order of the set, or shuffled within records, costs one request a record.

    Args:
        root: directory of the set, or an fsspec URL of it.
        scan_groups: groups to read, 1 to the set's; None reads all. Can be set at any time, for the
            samples that are asked for later in this process; copies, as worker processes have
            them, keep their own.
        decode: give pixels; else the JPEG file, as bytes.
        size: side of the images in pixels; None gives whole images.
        augment: with a size: "eval" is the usual crop of the centre, None the largest square. For
            random crops leave images whole, and use `tensorcom.images.training_view` in Grain's
            `random_map`.
        guard: add guard scans where they are exact, as `PcrSource` does.
        cache_bytes: most bytes of records that are kept.
        **options: options of `PcrReader`: cache, storage_options, retries and others.

    Items are dicts: "image", uint8 (H, W, 3) or bytes, in new memory; "label", int32.

    Raises:
        PcrError: the set or a record is damaged, or storage failed; named by file.
        ImageError: an image cannot be decoded; record and image are named.
        IndexError: there is no such sample.
        ValueError: an argument is out of range.

    Used by any number of threads; pickles as configuration. Its `repr` tells the set from others
    wherever it lies, which Grain's checkpoints compare.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        scan_groups: int | None = None,
        decode: bool = True,
        size: int | None = None,
        augment: str | None = None,
        guard: bool = True,
        cache_bytes: int = 256 << 20,
        cache: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if augment not in ("eval", None):
            raise ValueError(
                f"augment={augment!r}, expected 'eval' or None: random crops are for random_map"
            )
        check_integers(0, cache_bytes=cache_bytes)
        check_integers(1, size=size, optional=True)
        if size is not None and not decode:
            raise ValueError(f"size={size} needs decode=True")
        if augment is not None and size is None:
            raise ValueError(f"augment={augment!r} needs a size; whole images need augment=None")
        self._arguments = root, {"cache": cache, "storage_options": storage_options, **options}
        self._decode, self._size, self._augment, self._guard = decode, size, augment, guard
        self._cache_bytes = cache_bytes
        self._forget()
        self.scan_groups = scan_groups

    def _forget(self) -> None:
        self._reader: PcrReader | None = None
        self._records = _RecordCache(self._cache_bytes)

    @property
    def reader(self) -> PcrReader:
        """The set; a copy opens it at first use."""
        if self._reader is None:
            root, options = self._arguments
            self._reader = PcrReader(root, **options)
        return self._reader

    @property
    def scan_groups(self) -> int | None:
        """Groups that are read, None for all."""
        return self._groups

    @scan_groups.setter
    def scan_groups(self, value: int | None) -> None:
        self.reader.table.check_groups(value)
        self._groups = value

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Name of each label; None for sets of the original release, which do not say."""
        return self.reader.class_names

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.reader)

    def __repr__(self) -> str:
        reader = self.reader
        content = (reader.starts.astype("<i8"), reader.labels.astype("<i4"))
        crc32 = zlib.crc32(b"".join(part.tobytes() for part in content))
        return f"PcrDataSource(samples={len(self)}, records={len(reader.table)}, crc32={crc32:08x})"

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of a set of {len(self)}")
        sample = number % len(self)
        reader = self.reader
        groups = reader.table.check_groups(self._groups)
        record, place = reader.record_of(sample)
        prefix = self._records.get(
            (record, groups),
            size_bytes=int(reader.table.ends[record, groups]),
            read=lambda: reader.read_prefix(record, scan_groups=groups),
            # Sets of the original do not say where a sample is, so that its record is read anyway.
            asks=_ASKS if reader.manifest is not None else 1,
        )
        if prefix is None:
            jpeg, _ = reader.sample(sample, scan_groups=groups)
        else:
            jpeg = prefix.jpeg(place)
        image = self._image(jpeg, record, place, groups) if self._decode else jpeg
        return {"image": image, "label": reader.labels[sample]}

    def _image(self, jpeg: bytes, record: int, place: int, groups: int) -> NDArray[np.uint8]:
        reader, size = self.reader, self._size
        if self._guard and groups < reader.scan_groups:
            script = reader.script
            jpeg = guarded(jpeg, script=script, scan_groups=None if script is None else groups)
        image = decode_image(jpeg, path=f"{reader.table.names[record]} image {place}")
        if size is None:
            return image
        if self._augment == "eval":
            return evaluation_view(image, size)
        return center_crop(image, size, resize=size)

    def close(self) -> None:
        """Close the set, and drop what is kept; asking again opens it."""
        if self._reader is not None:
            self._reader.close()
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n not in ("_reader", "_records")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


class _RecordCache:
    """Records that were read whole, the least recently used dropped first.

    Args:
        max_bytes: most bytes that are kept.

    A record is read once it was asked for several times, and few others since: fewer than would fit
    in here. Random access to a set that is larger than this does not come to that.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = ForkLock()
        self._held: OrderedDict[tuple[int, int], tuple[RecordPrefix, int]] = OrderedDict()
        self._held_bytes = 0
        self._asked: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        self._asked_bytes = 0
        self._reading: dict[tuple[int, int], ForkLock] = {}

    def get(
        self,
        key: tuple[int, int],
        *,
        size_bytes: int,
        read: Callable[[], RecordPrefix],
        asks: int,
    ) -> RecordPrefix | None:
        """Return a record that is kept, or should be; None if its sample should be read alone.

        Args:
            key: of the record and its groups.
            size_bytes: bytes that reading it takes.
            read: reads it; other threads that ask for it wait meanwhile.
            asks: how often it is asked for until it is read.
        """
        with self._lock:
            held = self._touch(key)
            if held is not None:
                return held
            if self._note(key, size_bytes) < asks or size_bytes > self._max_bytes:
                return None
            turn = self._reading.setdefault(key, ForkLock())
        with turn:
            with self._lock:
                held = self._touch(key)
            if held is None:
                held = read()
                with self._lock:
                    self._keep(key, held, size_bytes)
        return held

    def _touch(self, key: tuple[int, int]) -> RecordPrefix | None:
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def _note(self, key: tuple[int, int], size_bytes: int) -> int:
        """Count that a record was asked for; return how often it was lately."""
        count, size = self._asked.pop(key, (0, 0))
        self._asked[key] = count + 1, size_bytes
        self._asked_bytes += size_bytes - size
        while len(self._asked) > 1 and (
            len(self._asked) > _RECENT or self._asked_bytes > self._max_bytes
        ):
            _, (_, size) = self._asked.popitem(last=False)
            self._asked_bytes -= size
        return count + 1

    def _keep(self, key: tuple[int, int], prefix: RecordPrefix, size_bytes: int) -> None:
        self._reading.pop(key, None)
        # Two threads may have read it, where it was dropped again meanwhile.
        _, known_bytes = self._held.pop(key, (None, 0))
        self._held[key] = prefix, size_bytes
        self._held_bytes += size_bytes - known_bytes
        while self._held_bytes > self._max_bytes:
            _, (_, size) = self._held.popitem(last=False)
            self._held_bytes -= size
