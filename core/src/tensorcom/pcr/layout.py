"""Where everything lies: the records of a set and the lengths of their parts.

Owns the names and lengths as flat arrays, and every check of them that needs no file; knows nothing
of where they were read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from tensorcom.arguments import is_integer
from tensorcom.errors import PcrFormatError
from tensorcom.pcr.wire import MAX_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

MAX_PART_BYTES = (1 << 31) - 1  # protobuf's limit


def check_name(name: str, *, path: str | None = None) -> str:
    """Return the name of a record file, which must be a plain file name.

    Raises:
        PcrFormatError: it is empty, hidden, absolute, or could lead out of the directory.
    """
    if not name or name[0] == "." or any(c in name for c in "/\\\0:"):
        raise PcrFormatError(
            f"record name {name!r} is no plain file name of the set's directory", path=path
        )
    return name


@dataclass(frozen=True, slots=True)
class RecordTable:
    """The records of a set.

    Attributes:
        names: file names.
        parts: int64 (R, 1 + G), bytes of the metadata and of each scan group; a record of fewer
            groups than the most has zeros at the end.
        ends: int64 (R, 1 + G), offset at which each part ends.
    """

    names: Sequence[str]
    parts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(
        cls, names: Sequence[str], parts: NDArray[np.int64], *, path: str | None = None
    ) -> RecordTable:
        """Check lengths and build the table.

        Args:
            names: file name of each record, checked by the caller.
            parts: int64 (R, 1 + G).
            path: where they come from, for errors.

        Raises:
            PcrFormatError: a length is negative, or over what a part can hold.
        """
        wrong = (parts < 0) | (parts > MAX_PART_BYTES)
        wrong[:, :2] |= parts[:, :2] < 1
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            raise PcrFormatError(
                f"record {names[row]}: part {column} has the length {int(parts[row, column])}, "
                f"expected {1 if column < 2 else 0} to {MAX_PART_BYTES}",  # noqa: PLR2004
                path=path,
            )
        return cls(names, parts, np.cumsum(parts, axis=1))

    @classmethod
    def from_entries(
        cls, entries: Iterable[tuple[str, Sequence[int]]], *, path: str | None = None
    ) -> RecordTable:
        """Build the table from index entries; an entry that was there before is left out.

        Raises:
            PcrFormatError: a name leads out of the directory, an entry contradicts another one, or
                a length cannot be.
        """
        found: dict[str, tuple[int, ...]] = {}
        for name, lengths in entries:
            parts = tuple(lengths)
            if not 1 < len(parts) <= 1 + MAX_GROUPS:
                raise PcrFormatError(
                    f"record {name} has {len(parts) - 1} scan groups, expected 1 to {MAX_GROUPS}",
                    path=path,
                )
            if found.setdefault(check_name(name, path=path), parts) != parts:
                raise PcrFormatError(f"record {name} has two entries that differ", path=path)
            if not all(0 <= part <= MAX_PART_BYTES for part in parts):
                raise PcrFormatError(
                    f"record {name} has a part of impossible length: {parts}", path=path
                )
        if not found:
            raise PcrFormatError("index names no record", path=path)
        width = max(len(parts) for parts in found.values())
        table = np.zeros((len(found), width), np.int64)
        for row, parts in enumerate(found.values()):
            table[row, : len(parts)] = parts
        return cls.of(tuple(found), table, path=path)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.names)

    @property
    def groups(self) -> int:
        """Scan groups of the set: the most that a record has."""
        return int(self.parts.shape[1]) - 1

    def check_groups(self, scan_groups: int | None) -> int:
        """Return the number of groups to read; None is all.

        Raises:
            ValueError: it is not 1 to the number of groups.
        """
        if scan_groups is None:
            return self.groups
        if not is_integer(scan_groups):
            raise ValueError(f"scan_groups={scan_groups!r}, expected an integer or None")
        if not 1 <= scan_groups <= self.groups:
            raise ValueError(f"scan_groups={scan_groups}, expected 1 to {self.groups}")
        return int(scan_groups)


class RecordInfo(NamedTuple):
    """One record of a set.

    Attributes:
        name: its file name.
        samples: images in it.
        parts: int64 (1 + G,), bytes of its metadata and of each group.
    """

    name: str
    samples: int
    parts: NDArray[np.int64]


class Records(Sequence[RecordInfo]):
    """The records of a set, made when asked for.

    Args:
        table: their names and lengths.
        starts: int64 (R + 1,), first sample of each record and the number of samples.
    """

    def __init__(self, table: RecordTable, starts: NDArray[np.int64]) -> None:
        self._table, self._starts = table, starts

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> RecordInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordInfo]: ...
    def __getitem__(self, index: int | slice) -> RecordInfo | list[RecordInfo]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        samples = int(self._starts[place + 1] - self._starts[place])
        return RecordInfo(self._table.names[place], samples, self._table.parts[place])


def record_name(number: int) -> str:
    """Return the file name of record `number`."""
    return f"PCR_{number}.pcr"
