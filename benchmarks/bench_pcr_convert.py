"""Converting to records, and opening what came of it.

- images/s of a conversion, beside the original's way: one jpegtran process for each image, four
  times as many at once as there are cores;
- memory over a conversion of 20 000 small images, by quarter;
- milliseconds to open a set of 10 000 records, and to take the state of a reader.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
from _harness import alternate, arguments, median, print_table, ratio, write_json
from _photos import add_images_argument, files_of, photographs

from tensorcom.images import usable_cores
from tensorcom.pcr import PcrReader, PcrSource, convert

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGES, QUICK_IMAGES = 20_000, 2_000
RECORDS, QUICK_RECORDS = 10_000, 1_000
SAMPLING_S = 0.05


def original_way(files: list[Path], out: Path) -> None:
    """Convert with a process for each image."""

    def run(item: tuple[int, Path]) -> None:
        command = ["jpegtran", "-copy", "none", "-optimize", "-progressive", "-outfile"]
        subprocess.run([*command, str(out / f"{item[0]}.jpg"), str(item[1])], check=True)

    with ThreadPoolExecutor(4 * usable_cores()) as pool:
        list(pool.map(run, enumerate(files)))


def measure_conversion(way: str, root: Path) -> dict[str, float]:
    """Convert once; return images/s."""
    files = [path for path, _ in files_of(root)]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        if way == "tensorcom":
            convert(root, Path(folder, "set"))
        else:
            original_way(files, Path(folder))
        return {"images_s": len(files) / (time.perf_counter() - start)}


def resident_mb() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def small_images(count: int) -> Iterator[tuple[bytes, int]]:
    """Yield small JPEG files."""
    rng = np.random.default_rng(0)
    drawn = [
        simplejpeg.encode_jpeg(rng.integers(0, 256, (96, 128, 3), np.uint8), 90) for _ in range(64)
    ]
    for number in range(count):
        yield drawn[number % len(drawn)], number % 10


def measure_memory(count: int) -> list[list[object]]:
    """Convert many images; return the most memory in each quarter of the time."""
    seen: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLING_S):
            seen.append(resident_mb())

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=watch)
        thread.start()
        convert(small_images(count), Path(folder, "set"))
        done.set()
        thread.join()
    quarters = np.array_split(np.array(seen), 4)
    return [[f"quarter {i + 1}", float(part.max())] for i, part in enumerate(quarters)]


def measure_opening(records: int, rounds: int) -> list[list[object]]:
    """Open a set of many records; return milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "set")
        convert(small_images(records), root, images_per_record=1)
        opened, states = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            reader = PcrReader(root)
            opened.append(1000 * (time.perf_counter() - start))
            source = PcrSource(reader, batch_size=64, decode=False)
            batches = iter(source)
            next(batches)
            start = time.perf_counter()
            source.state_dict()
            states.append(1000 * (time.perf_counter() - start))
            source.close()
            reader.close()
    return [
        [f"open a set of {records} records", float(np.median(opened))],
        ["state_dict", float(np.median(states))],
    ]


def main() -> None:
    """Run the benchmark."""
    parser = arguments(__doc__, rounds=5)
    add_images_argument(parser)
    args = parser.parse_args()
    rounds = 2 if args.quick else args.rounds
    root = photographs(args.images)
    ways = ("one jpegtran per image", "tensorcom")
    speed = alternate(ways, lambda way: measure_conversion(way, root), rounds)
    print_table(
        "Conversion",
        ("way", "images/s", "of the first"),
        [
            [w, median(r, "images_s"), ratio(r, speed[ways[0]], "images_s")]
            for w, r in speed.items()
        ],
    )
    count = QUICK_IMAGES if args.quick else IMAGES
    memory = measure_memory(count)
    print_table(f"Memory while {count} images are converted", ("", "MB at most"), memory)
    opening = measure_opening(QUICK_RECORDS if args.quick else RECORDS, rounds)
    print_table("Opening", ("", "ms"), opening)
    write_json(args.json, {"conversion": speed, "memory": memory, "opening": opening})


if __name__ == "__main__":
    sys.exit(main())
