"""What a TensorFlow graph has to know of a set of records: constants, and files by tf.io.gfile.

Owns the way from a set to tensors; what the set says is core's `PcrReader`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorcom.errors import PcrFormatError, PcrIndexError, PcrReadError
from tensorcom.pcr import PcrReader
from tensorcom.pcr.storage.base import FileStat, Origin, Part, PcrEndError
from tensorcom_keras.tf_parse import RecordPlace

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOCAL = ("file", "local")


class GfileStorage(Origin):
    """Storage of every kind that TensorFlow has: gs, hdfs, ram, and what tensorflow-io adds.

    Args:
        root: URL of the set.
    """

    def __init__(self, root: str) -> None:
        self.root = self.key = self.shown = root

    def fetch(self, name: str, start: int, size: int) -> Part:
        """Read bytes of a file; see `Storage.read`."""
        path = self.path(name)
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                file.seek(start)
                data = file.read(size)
        except tf.errors.NotFoundError:
            raise PcrIndexError("there is no such file", path=path) from None
        except tf.errors.OpError as exc:
            raise PcrReadError(exc.message, path=path) from exc
        if len(data) < size:
            raise PcrEndError.of(path, start + len(data), start + size)
        return Part(memoryview(data), None)

    def stat(self, name: str) -> FileStat:
        """Ask for the size of a file."""
        path = self.path(name)
        try:
            found = tf.io.gfile.stat(path)
        except tf.errors.NotFoundError:
            raise PcrIndexError("there is no such file", path=path) from None
        except tf.errors.UnimplementedError as exc:
            reason = f"TensorFlow cannot read this kind of URL: {exc.message}"
            raise PcrReadError(reason, path=path) from None
        except tf.errors.OpError as exc:
            raise PcrReadError(exc.message, path=path) from exc
        return FileStat(found.length, str(found.mtime_nsec))


@dataclass(frozen=True, eq=False)
class RecordSet:
    """A set of records as the graph needs it.

    Attributes:
        root: where it is: an absolute path, or a URL.
        names: file name of each record.
        starts: int64 (R + 1,), first sample of each record and the number of samples.
        ends: int64 (R, 1 + G), offset at which each part of each record ends.
        levels: int64 (R,), groups that each record has.
        labels: int32 (N,), class of each sample.
        raw_sizes: int64 (N, G), bytes of each image in each group, for records of version 2;
            None for those that frame their images.
    """

    root: str
    names: NDArray[np.object_]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    levels: NDArray[np.int64]
    labels: NDArray[np.int32]
    raw_sizes: NDArray[np.int64] | None

    @classmethod
    def open(cls, root: str | os.PathLike[str]) -> RecordSet:
        """Read what a set says of itself.

        Raises:
            PcrError: there is no set, or what it says is damaged.
        """
        place = os.fspath(root)
        scheme, separator, rest = place.partition("://")
        if separator and scheme not in _LOCAL:
            place, source = place.rstrip("/"), PcrReader(GfileStorage(place))
        else:
            place = str(Path(rest if separator else place).absolute())
            source = PcrReader(place)
        with source as reader:
            table = reader.table
            if "://" not in place:
                _check_links(place, table.names)
            return cls(
                root=place,
                names=np.array(table.names, object),
                starts=reader.starts,
                ends=table.ends,
                levels=np.maximum.accumulate(
                    np.where(table.parts[:, 1:] > 0, np.arange(1, 1 + table.groups), 0), axis=1
                )[:, -1].astype(np.int64),
                labels=reader.labels,
                raw_sizes=reader.raw_sizes(),
            )

    @property
    def groups(self) -> int:
        """Scan groups of the set."""
        return int(self.ends.shape[1]) - 1

    @property
    def is_local(self) -> bool:
        """Whether the set is in a directory of this machine, mounted or not."""
        return "://" not in self.root

    def paths(self) -> Any:
        """Return the file of each record: string (R,)."""
        return tf.constant([f"{self.root}/{name}" for name in self.names], tf.string)

    def place(self, record: Any) -> RecordPlace:
        """Return where a record is."""
        return RecordPlace(
            path=tf.gather(self.paths(), record),
            ends=tf.gather(tf.constant(self.ends), record),
            groups=tf.gather(tf.constant(self.levels), record),
            samples=tf.gather(tf.constant(np.diff(self.starts)), record),
        )

    def labels_of(self, record: Any) -> Any:
        """Return the labels of a record's images, int32 (n,)."""
        start, stop = self._span(record)
        return tf.constant(self.labels)[start:stop]

    def image_sizes(self, record: Any) -> Any:
        """Return `raw_sizes` of a record's images, int64 (n, G)."""
        start, stop = self._span(record)
        return tf.constant(self.raw_sizes)[start:stop]

    def _span(self, record: Any) -> tuple[Any, Any]:
        start, stop = (tf.gather(tf.constant(self.starts), record + i) for i in (0, 1))
        return start, stop


def _check_links(root: str, names: Any) -> None:
    """Refuse records that are links, as core does when it opens them."""
    links = {entry.name for entry in os.scandir(root) if entry.is_symlink()}
    if found := sorted(links.intersection(names)):
        raise PcrFormatError(
            "is a link; records are files of the set's directory", path=f"{root}/{found[0]}"
        )
