"""How long `import tensorcom` takes in a new process, beside what it cannot do without.

Wall time of the import statement alone, the start of Python apart; the files are in the system's
cache. To be under 0.2 s.
"""

from __future__ import annotations

import subprocess
import sys

from _harness import alternate, arguments, median, print_table, ratio, write_json

STATEMENTS = ("import tensorcom", "import numpy, zmq", "import numpy")
TARGET_S = 0.2


def measure(statement: str) -> dict[str, float]:
    """Return the seconds that a statement takes."""
    code = f"import time; t = time.perf_counter()\n{statement}\nprint(time.perf_counter() - t)"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return {"wall_s": float(result.stdout)}


def main() -> None:
    """Measure all imports."""
    parser = arguments(__doc__, rounds=15)
    args = parser.parse_args()
    rounds = 3 if args.quick else args.rounds
    for statement in STATEMENTS:
        measure(statement)  # fills the system's cache and writes the compiled modules
    found = alternate(STATEMENTS, measure, rounds)
    print_table(
        f"import, median of {rounds}",
        ("statement", "ms", "to numpy and zmq", "target"),
        [
            (
                statement,
                1000 * median(rows, "wall_s"),
                ratio(rows, found["import numpy, zmq"], "wall_s"),
                f"< {1000 * TARGET_S:.0f} ms" if statement == "import tensorcom" else "",
            )
            for statement, rows in found.items()
        ],
    )
    write_json(args.json, found)


if __name__ == "__main__":
    main()
