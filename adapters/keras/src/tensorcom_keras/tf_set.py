"""What a TensorFlow graph has to know of a set of records: constants, and files by tf.io.gfile.

Owns the way from a set to tensors; what the set says is core's `PcrReader`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorcom.errors import PcrError, PcrFormatError, PcrIndexError, PcrReadError
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
    def open(cls, root: str | os.PathLike[str], *, skips: bool = False) -> RecordSet:
        """Read what a set says of itself.

        Args:
            root: directory of the set, or a URL of it.
            skips: take a record whose head cannot be read, where only that says which samples there
                are, as one without samples, and write a line about it to stderr.

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
                _check_files(place, table.names)
            if skips:
                reader.read_heads(on_error=_tell)
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

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        """The columns as tensors of this process, which graphs refer to.

        As constants in graphs they would be copied at every step of their optimization.
        """
        with tf.init_scope():
            return {
                "path": tf.constant([os.fsencode(f"{self.root}/{name}") for name in self.names]),
                "end": tf.constant(self.ends),
                "level": tf.constant(self.levels),
                "start": tf.constant(self.starts),
                "label": tf.constant(self.labels),
                "raw_size": tf.constant(0 if self.raw_sizes is None else self.raw_sizes),
            }

    def paths(self, records: Any) -> Any:
        """Return the files of records, strings of the shape of their numbers."""
        return tf.gather(self._tensors["path"], records)

    def firsts(self, records: Any) -> Any:
        """Return the first samples of records, int64 of the shape of their numbers."""
        return tf.gather(self._tensors["start"], records)

    def place(self, record: Any) -> RecordPlace:
        """Return where a record is."""
        return RecordPlace(
            path=self.paths(record),
            ends=tf.gather(self._tensors["end"], record),
            groups=tf.gather(self._tensors["level"], record),
            samples=self.firsts(record + 1) - self.firsts(record),
        )

    def labels_of(self, record: Any) -> Any:
        """Return the labels of a record's images, int32 (n,)."""
        return self._tensors["label"][self.firsts(record) : self.firsts(record + 1)]

    def image_sizes(self, record: Any) -> Any:
        """Return `raw_sizes` of a record's images, int64 (n, G)."""
        return self._tensors["raw_size"][self.firsts(record) : self.firsts(record + 1)]


def _check_files(root: str, names: Any) -> None:
    """Refuse records that are links, or no files, as core does when it opens them."""
    others = {entry.name for entry in os.scandir(root) if not entry.is_file(follow_symlinks=False)}
    for name in sorted(others.intersection(names)):
        path = Path(root, name)
        reason = "is a link; records are files of the set's directory"
        raise PcrFormatError(reason if path.is_symlink() else "is no regular file", path=str(path))


def _tell(error: PcrError) -> None:
    sys.stderr.write(f"tensorcom: {error}: record skipped\n")
