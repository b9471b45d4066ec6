"""Resident memory of both ends of a stream whose reader does not keep up.

The reader is slow (5 ms more per batch), pauses (reads nothing for 2 s, three times) or is stopped
(SIGSTOP for 2 s, three times). The growth since before the first batch is to be flat from quarter
to quarter, and below `hwm_bytes` (256 MB) at each end. Needs Linux's /proc.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _harness import HERE, Process, arguments, free_port, print_table, processes, write_json

PEER = str(HERE / "_memory_peer.py")
LIMIT_MB = 256.0
STOP_S = 2.0
PATTERNS = {"PUSH/PULL": ("zpush", "zpull", 0.0), "PUB/SUB": ("zpub", "zsub", 0.002)}
MODES = ("slow", "paused", "stopped")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(pattern: str, mode: str, count: int) -> dict[str, list[float]]:
    """Return the largest growth in MB of sender and receiver in each quarter of the batches."""
    sends, receives, pause_s = PATTERNS[pattern]
    with tempfile.TemporaryDirectory() as folder:
        counter = np.memmap(f"{folder}/counter", np.uint64, "w+", shape=1)
        address = f"127.0.0.1:{free_port()}"
        common = ["--count", str(count), "--mode", mode, "--counter", f"{folder}/counter"]
        with processes(
            [sys.executable, PEER, "receive", *common, "--url", f"{receives}://{address}"],
            [sys.executable, PEER, "send", *common, "--url", f"{sends}://{address}"]
            + ["--pause-s", str(pause_s)],
        ) as (receiver, sender):
            return _watch(sender, receiver, counter, count, stops=mode == "stopped")


def _watch(
    sender: Process, receiver: Process, counter: np.ndarray, count: int, *, stops: bool
) -> dict[str, list[float]]:
    ends = {"sender": sender.pid, "receiver": receiver.pid}
    base = {name: resident_mb(pid) for name, pid in ends.items()}
    growth = {name: [0.0] * 4 for name in ends}
    receiver.proceed()
    sender.proceed()
    due = [count // 4, count // 2, 3 * count // 4] if stops else []
    resume_at = 0.0
    while (done := int(counter[0])) < count:
        quarter = min(4 * done // count, 3)
        for name, pid in ends.items():
            growth[name][quarter] = max(growth[name][quarter], resident_mb(pid) - base[name])
        if resume_at and time.monotonic() >= resume_at:
            os.kill(receiver.pid, signal.SIGCONT)
            resume_at = 0.0
        if due and done >= due[0] and not resume_at:
            due.pop(0)
            os.kill(receiver.pid, signal.SIGSTOP)
            resume_at = time.monotonic() + STOP_S
        time.sleep(0.005)
    return growth


def main() -> None:
    """Watch all patterns and modes."""
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--count", type=int, default=2000, help="batches of 9.6 MB (default 2000)")
    args = parser.parse_args()
    count = 300 if args.quick else args.count
    rows: list[list[object]] = []
    figures = {}
    for pattern in PATTERNS:
        for mode in MODES:
            for _ in range(args.rounds):
                found = measure(pattern, mode, count)
                figures[f"{pattern} {mode}"] = found
                for end, quarters in found.items():
                    within = "yes" if max(quarters) <= LIMIT_MB else "NO"
                    rows.append([f"{pattern}, reader {mode}: {end}", *map(round, quarters), within])
    print_table(
        f"largest growth of resident memory in MB, by quarter of {count} batches",
        ("", "25 %", "50 %", "75 %", "100 %", f"<= {LIMIT_MB:.0f}"),
        rows,
    )
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
