"""What a conversion says: counts, and a line for each file that is not just as it was.

Owns the form of the report; knows nothing of how images are converted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CONVERTED = "converted"  # nothing to say
NOTED = "noted"
REENCODED = "reencoded"
SKIPPED = "skipped"
PASSED_OVER = "passed over"


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of files.

    Attributes:
        files: files of the source that were looked at.
        noted: converted, with something to say: metadata dropped, an end mended.
        reencoded: encoded as JPEG before, because that was asked for; they may have notes too.
        skipped: not in the set.
        source_bytes: bytes of those that are in the set.
    """

    files: int = 0
    noted: int = 0
    reencoded: int = 0
    skipped: int = 0
    source_bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.files + other.files,
            self.noted + other.noted,
            self.reencoded + other.reencoded,
            self.skipped + other.skipped,
            self.source_bytes + other.source_bytes,
        )


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What came of a conversion.

    Attributes:
        root: directory of the set.
        finished: whether the set is complete; else it was stopped, and goes on if run again.
        images: images in the set.
        records: records in the set.
        resumed: records that an earlier run had finished.
        tally: counts of files, those of earlier runs included.
        set_bytes: bytes of all records.
        report: the file that has a line for each file that was noted or skipped; None if the
            conversion is not finished.
    """

    root: str
    finished: bool
    images: int
    records: int
    resumed: int
    tally: Tally
    set_bytes: int
    report: str | None


def report_line(path: str, status: str, notes: Sequence[str]) -> bytes:
    """Return a file's line: JSON in ASCII, where bytes of a name that are no UTF-8 are surrogates.

    Args:
        path: the file.
        status: NOTED, REENCODED or SKIPPED.
        notes: what there is to say; the reason, if it was skipped.
    """
    said = {"reason": "; ".join(notes)} if status == SKIPPED else {"notes": list(notes)}
    return json.dumps({"path": path, "status": status, **said}).encode() + b"\n"


def passed_over_lines(root: str, counts: Mapping[str, int]) -> Iterator[bytes]:
    """Yield a line for each reason for which names of a folder are no images."""
    for reason, count in sorted(counts.items()):
        line = {"path": root, "status": PASSED_OVER, "reason": reason, "count": count}
        yield json.dumps(line).encode() + b"\n"
