"""What the benchmarks share: processes to measure, alternated rounds, medians, tables, JSON.

Figures are compared only within one run: every round measures each way once, in an order that
turns, so that whatever else the machine does is spread over all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HERE = Path(__file__).parent
CACHE = HERE / ".cache"


def arguments(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write all figures there; - prints them")
    parser.add_argument("--quick", action="store_true", help="few and short rounds, rough figures")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    return parser


def original_python(given: str | None) -> str:
    """Return a python with the original tensorcom 0.1.0: the given one, or that of a new venv."""
    given = given or os.environ.get("TENSORCOM_ORIGINAL_PYTHON")
    if given:
        return given
    python = CACHE / "original" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "numpy", "pyzmq", "braceexpand"], check=True)
    subprocess.run([*pip, "--no-deps", "tensorcom==0.1.0"], check=True)
    return str(python)


def free_port() -> int:
    """Return a TCP port that nothing on the loopback interface listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A measured process: says "ready", begins at a line, and prints one JSON object at its end."""

    def __init__(self, command: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._child.pid

    def line(self) -> str:
        """Return the next line that the process prints.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._child.args} ended with {self._child.wait()}")
        return line.strip()

    def proceed(self) -> None:
        """Let the process go on."""
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Return what the process prints at its end, and wait for that."""
        found: dict[str, Any] = json.loads(self.line())
        self._child.wait()
        return found

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@contextlib.contextmanager
def processes(*commands: Sequence[str]) -> Iterator[list[Process]]:
    """Start processes, wait until all are ready, and end them at the end."""
    started: list[Process] = []
    try:
        for command in commands:
            process = Process(command)
            started.append(process)
            if process.line() != "ready":
                raise RuntimeError(f"{command} did not say that it is ready")
        yield started
    finally:
        for process in started:
            process.end()


def alternate(
    ways: Sequence[str], measure: Callable[[str], dict[str, float]], rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Measure each way once per round, the first one another each time."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(rounds):
        turn = number % len(ways)
        for way in (*ways[turn:], *ways[:turn]):
            found[way].append(measure(way))
            show_progress(f"round {number + 1} of {rounds}: {way}")
    show_progress("")
    return found


def show_progress(text: str) -> None:
    """Show what is being done, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def median(rows: Sequence[dict[str, float]], key: str) -> float:
    """Return the median of one figure."""
    return statistics.median(row[key] for row in rows)


def ratio(rows: Sequence[dict[str, float]], others: Sequence[dict[str, float]], key: str) -> float:
    """Return the median of the ratios within each round."""
    return statistics.median(a[key] / b[key] for a, b in zip(rows, others, strict=True))


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table whose columns are as wide as they need."""
    texts = [list(head), *[[_text(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    print(f"\n{title}")
    for number, row in enumerate(texts):
        cells = [
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def _text(cell: object) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def write_json(path: str | None, figures: dict[str, Any]) -> None:
    """Write all figures where `--json` says."""
    if path == "-":
        print(json.dumps(figures, indent=1))
    elif path is not None:
        Path(path).write_text(json.dumps(figures, indent=1) + "\n")
