"""Whether a set is whole: every file of it against every other.

Owns the report and the order of the checks; those of the index files are in `verify_index`, those
of a record in `verify_record`. Goes on after damage, so that all of it is named.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorcom.errors import PcrReadError
from tensorcom.images import map_ordered, usable_cores
from tensorcom.pcr.manifest import INDEX_NAME, MANIFEST_NAME, SAMPLES_NAME
from tensorcom.pcr.problems import Problem
from tensorcom.pcr.reader import UNFINISHED_NAME, check_is_set
from tensorcom.pcr.sqlite_index import FILE_NAME as SQLITE_NAME
from tensorcom.pcr.storage import open_storage
from tensorcom.pcr.verify_index import read_contents
from tensorcom.pcr.verify_record import RecordCheck

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from tensorcom.pcr.storage import Storage

__all__ = ["Problem", "VerifyReport", "verify"]

_REPORT_NAME = "PCR_report.jsonl"  # the converter's
_NAMES = frozenset((MANIFEST_NAME, INDEX_NAME, SAMPLES_NAME, SQLITE_NAME, _REPORT_NAME))


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked, and what was found.

    Attributes:
        root: the set.
        records: records that its index names.
        images: images in those that could be read.
        size_bytes: bytes of record files that were read.
        has_checksums: whether the set has checksums; those of the original have none.
        decoded: whether images were decoded.
        problems: what is damaged, in the order of the set.
        others: files beside the set that are not its own, each with what it seems to be.
        is_listed: whether the files could be listed.
    """

    root: str
    records: int
    images: int
    size_bytes: int
    has_checksums: bool
    decoded: bool
    problems: tuple[Problem, ...]
    others: Mapping[str, str] = field(default_factory=dict)
    is_listed: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems


def verify(
    root: str | os.PathLike[str],
    *,
    decode: bool = False,
    threads: int | None = None,
    on_problem: Callable[[Problem], object] | None = None,
    on_progress: Callable[[int, int], object] | None = None,
    **options: Any,
) -> VerifyReport:
    """Check a set: checksums, lengths, framing, labels, JPEG structure, and that its files agree.

    Each record is read whole, one for each thread at a time. A set of the original has no checksums
    and no table of samples: there, damage inside of a scan is only seen by decoding.

    Args:
        root: directory or URL of the set.
        decode: also decode each image at each number of scan groups.
        threads: that check records; None is one for each core that the process may use.
        on_problem: called with each problem as soon as it is found.
        on_progress: called with how many records are done, and how many there are.
        **options: passed on to `open_storage`: storage_options, retries and others.

    Raises:
        PcrIndexError: there is no set, or one whose conversion is unfinished.
        MissingDependencyError: images are to be decoded, and the package is not installed.
    """
    problems: list[Problem] = []

    def add(found: Iterable[Problem]) -> None:
        for problem in found:
            problems.append(problem)
            if on_problem is not None:
                on_problem(problem)

    storage = open_storage(root, **options)
    with closing(storage):
        check_is_set(storage)
        found = read_contents(storage)
        add(found.problems)
        images = size_bytes = 0
        table = found.contents.table
        check = RecordCheck(storage, found.contents, decode=decode)
        threads = threads or usable_cores()
        results = map_ordered(check, range(len(table)), threads=threads, ahead=threads + 1)
        with closing(results):
            for done, result in enumerate(results, 1):
                add(result.problems)
                images += result.images
                size_bytes += result.size_bytes
                if on_progress is not None:
                    on_progress(done, len(table))
        names = _list_names(storage)
        return VerifyReport(
            root=storage.root,
            records=len(table),
            images=images,
            size_bytes=size_bytes,
            has_checksums=found.contents.samples is not None,
            decoded=decode,
            problems=tuple(problems),
            others=_find_others(names or (), table.names),
            is_listed=names is not None,
        )


def _list_names(storage: Storage) -> list[str] | None:
    try:
        return storage.names()
    except PcrReadError:
        return None  # one that may not list can still read


def _find_others(names: Iterable[str], records: Iterable[str]) -> dict[str, str]:
    """Return the files that are not of the set, and what they seem to be."""
    known = _NAMES.union(records)
    return {name: _describe(name) for name in sorted(names) if name not in known}


def _describe(name: str) -> str:
    if name == UNFINISHED_NAME or name.startswith(".PCR_"):
        return "left by a conversion that was interrupted"
    if name.startswith("PCR_") and name.endswith(".pcr"):
        return "a record that the index does not name"
    return "not a file of the set"
