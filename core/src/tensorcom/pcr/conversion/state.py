"""What lets a conversion go on after a kill: its options, and what it has finished.

Owns when a conversion may go on, and the file that says that a record is done, with all that is
known of it beside its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.errors import PcrFormatError, TenbinError
from tensorcom.pcr.conversion.report import Tally
from tensorcom.pcr.layout import record_name
from tensorcom.pcr.manifest import SampleTable
from tensorcom.pcr.target import done_name
from tensorcom.tenbin import decode_buffer_with_infos, encode_buffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tensorcom.pcr.target import Target

_COUNTS, _REPORT = "counts", "report"
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Done:
    """A finished record.

    Attributes:
        number: of the record.
        table: its rows of the table of samples; none if all its images were skipped.
        tally: counts of its files.
        lines: its lines of the report.
    """

    number: int
    table: SampleTable
    tally: Tally
    lines: bytes

    def encode(self) -> list[bytearray]:
        """Return the bytes of its file, in pieces."""
        tally = self.tally
        counts = [tally.files, tally.noted, tally.reencoded, tally.skipped, tally.source_bytes]
        arrays = [np.array(counts, np.int64), np.frombuffer(self.lines, np.uint8)]
        return [self.table.encode(), encode_buffer(arrays, [_COUNTS, _REPORT])]

    @classmethod
    def decode(cls, number: int, data: bytes, groups: int) -> Done:
        """Read the bytes of its file.

        Raises:
            PcrFormatError: they are damaged.
        """
        path = done_name(number)
        table = SampleTable.decode(data, path=path)
        try:
            arrays, infos = decode_buffer_with_infos(data)
        except TenbinError as exc:
            raise PcrFormatError(exc.reason, path=path) from exc
        found = dict(zip(infos, arrays, strict=True))
        if found.keys().isdisjoint((_COUNTS, _REPORT)) or table.sizes.shape[1] != groups:
            raise PcrFormatError("is of another set", path=path)
        tally = Tally(*(int(count) for count in found[_COUNTS]))
        return cls(number, table, tally, found[_REPORT].tobytes())


def load_done(target: Target, number: int, groups: int) -> Done | None:
    """Read what is known of a finished record; None if it is not there as that says."""
    try:
        done = Done.decode(number, target.read(done_name(number)), groups)
    except (PcrFormatError, OSError):
        return None
    if len(done.table.labels) and not target.has(record_name(number), int(done.table.parts.sum())):
        return None
    return done


def load_all(target: Target, numbers: Sequence[int], groups: int) -> Iterator[Done]:
    """Read what is known of finished records, one after the other.

    Raises:
        PcrFormatError: one is damaged, or its record gone.
    """
    for number in numbers:
        done = load_done(target, number, groups)
        if done is None:
            raise PcrFormatError("was changed during the conversion", path=record_name(number))
        yield done


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, skipped: int) -> list[str]:
    """Say why a conversion cannot go on with what another one has finished, in words.

    Args:
        old: what the unfinished set is made of.
        new: what it is to be made of.
        skipped: files that were skipped so far.

    Returns:
        What differs; nothing if it can go on.
    """
    if old.get("by") != new["by"]:
        return [f"{old.get('by')!r} began the unfinished set in it, which cannot go on"]
    found = []
    for part in ("source", "options", "policy"):
        before, now = old.get(part), new[part]
        if not isinstance(before, dict):
            return [f"its {part} is not known"]
        if part == "policy" and not skipped and _is_milder(before, now):
            continue
        names = [name for name in now if before.get(name) != now[name]]
        found += [_difference(name, before.get(name), now[name]) for name in names]
    return found


def _is_milder(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether what the old policy took, the new one takes in the same way.

    Then records without a skipped file are what the new policy makes of them.
    """
    return (not old.get("lenient") or new["lenient"]) and (
        old.get("reencode") is None or old.get("reencode") == new["reencode"]
    )


def _difference(name: str, old: object, new: object) -> str:
    if name == "listing":
        return "names, sizes or times of the source's files have changed"
    return f"{name} was {_text(old)} and is {_text(new)}"


def _text(value: object) -> str:
    if isinstance(value, dict) and "name" in value:
        return repr(value["name"])
    if isinstance(value, (list, tuple)) and len(value) > _MAX_NAMED:
        return f"{list(value[:_MAX_NAMED])} and {len(value) - _MAX_NAMED} more"
    return repr(value)
