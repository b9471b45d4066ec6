"""Which processes live: what tests ask after they killed one.

Owns the reading of Linux's `/proc`. Knows nothing of fleets.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

POLL_S = 0.05


class ProcessId(NamedTuple):
    """A process, told apart from a later one with the same number by its start time."""

    pid: int
    start_ticks: int


class _Stat(NamedTuple):
    state: str
    parent: int
    start_ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command before it may hold spaces
    return _Stat(fields[0], int(fields[1]), int(fields[19]))


def _all_stats() -> dict[int, _Stat]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return {pid: stat for pid in pids if (stat := _stat(pid)) is not None}


def descendants(pid: int) -> set[ProcessId]:
    """Return the children of `pid`, theirs, and so on."""
    stats = _all_stats()
    found: set[ProcessId] = set()
    parents = {pid}
    while parents:
        children = {child for child, stat in stats.items() if stat.parent in parents}
        found |= {ProcessId(child, stats[child].start_ticks) for child in children}
        parents = children
    return found


def zombies(pid: int) -> set[int]:
    """Return the children of `pid` that ended and were not waited for."""
    return {
        child for child, stat in _all_stats().items() if stat.parent == pid and stat.state == "Z"
    }


def process_id(pid: int) -> ProcessId:
    """Return the identity of the running process `pid`.

    Raises:
        ProcessLookupError: there is none.
    """
    stat = _stat(pid)
    if stat is None:
        raise ProcessLookupError(f"no process {pid}")
    return ProcessId(pid, stat.start_ticks)


def alive(processes: Iterable[ProcessId]) -> set[ProcessId]:
    """Return those of `processes` that run; a zombie does not."""
    found = set()
    for process in processes:
        stat = _stat(process.pid)
        if stat is not None and stat.start_ticks == process.start_ticks and stat.state not in "ZX":
            found.add(process)
    return found


def wait_until_gone(processes: Iterable[ProcessId], *, timeout_s: float) -> set[ProcessId]:
    """Wait until none of `processes` runs, at most `timeout_s` seconds; return those that do."""
    deadline = time.monotonic() + timeout_s
    left = alive(processes)
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = alive(left)
    return left
