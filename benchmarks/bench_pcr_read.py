"""Reading records: bytes per image at each fidelity, and images/s where bytes or CPUs limit them.

Three questions, on the same images:
 - how many bytes are read at k scan groups, counted by the kernel and by a web server;
 - images/s over a web server that gives 20 MB/s, beside the JPEG files in WebDataset tars;
 - images/s from disk with nothing but CPUs as the limit, beside the JPEG files themselves.

All ways end in batches of 224 x 224 pixels through the same decoder and the same threads.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _harness import alternate, arguments, median, print_table, ratio, write_json
from _photos import PER_RECORD, add_images_argument, files_of, photographs, write_tars

from tensorcom.images import (
    decode_image,
    keep_freed_memory,
    map_ordered,
    sample_rng,
    training_view,
    usable_cores,
)
from tensorcom.pcr import PcrReader, PcrSource, convert

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BATCH = 64
SIZE = 224
GROUPS = (1, 2, 5, 10)
LIMIT_MB_S = 20


# -- the ways ---------------------------------------------------------------------------------


def batches_of(jpegs: Iterable[tuple[int, bytes]], threads: int) -> Iterator[Any]:
    """Yield batches of JPEG files, decoded as PcrSource does."""

    def prepare(item: tuple[int, bytes]) -> Any:
        return training_view(decode_image(item[1]), sample_rng(0, 0, item[0]), SIZE)

    held = []
    ahead = 2 * BATCH
    with closing(map_ordered(prepare, jpegs, threads=threads, ahead=ahead)) as views:
        for view in views:
            held.append(view)
            if len(held) == BATCH:
                yield np.stack(held)
                held = []
    if held:
        yield np.stack(held)


def read_tars(urls: list[str], epochs: int) -> Iterator[tuple[int, bytes]]:
    """Yield the images of tars, each read from its start to its end."""
    number = 0
    for url in urls * epochs:
        with urllib.request.urlopen(url) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for entry in tar:
                if entry.name.endswith(".jpg"):
                    file = tar.extractfile(entry)
                    assert file is not None
                    yield number, file.read()
                    number += 1


def read_ahead(items: Iterator[tuple[int, bytes]], count: int) -> Iterator[tuple[int, bytes]]:
    """Read in a thread of its own, up to `count` images ahead, as PcrSource does."""
    import queue

    waiting: queue.Queue[tuple[int, bytes] | None] = queue.Queue(count)

    def fill() -> None:
        for item in items:
            waiting.put(item)
        waiting.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (item := waiting.get()) is not None:
        yield item


def files_way(files: list[tuple[Path, int]], epochs: int, threads: int) -> int:
    """Read JPEG files; return the images."""
    order = np.random.default_rng(0).permutation(len(files)).tolist() * epochs
    jpegs = ((number, files[place][0].read_bytes()) for number, place in enumerate(order))
    return sum(len(batch) for batch in batches_of(jpegs, threads))


def tars_way(urls: list[str], epochs: int, threads: int) -> int:
    """Read tars; return the images."""
    jpegs = read_ahead(read_tars(urls, epochs), 4 * PER_RECORD)
    return sum(len(batch) for batch in batches_of(jpegs, threads))


def records_way(root: str, groups: int, epochs: int, threads: int, **options: Any) -> int:
    """Read records; return the images."""
    images = 0
    source = PcrSource(
        root, batch_size=BATCH, scan_groups=groups, size=SIZE, threads=threads, **options
    )
    with closing(source):
        for _ in range(epochs):
            images += sum(len(labels) for _, labels in source)
    return images


def timed(way: Any) -> dict[str, float]:
    """Run a way; return images/s and CPU-milliseconds per image."""
    start, cpu = time.perf_counter(), time.process_time()
    images = way()
    spent, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"images_s": images / spent, "cpu_ms": 1000 * cpu / images}


# -- a web server that gives so many bytes a second ---------------------------------------------


class Throttle:
    """Lets so many bytes a second pass, over all connections."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s, self._lock, self._free_at = bytes_s, threading.Lock(), 0.0

    def wait(self, size: int) -> None:
        """Wait until `size` bytes may pass."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.02) + size / self._bytes_s
            due = self._free_at
        time.sleep(max(0.0, due - now))


class Handler(SimpleHTTPRequestHandler):
    """Serves files and ranges of them, and counts the bytes."""

    protocol_version = "HTTP/1.1"
    throttle = Throttle(LIMIT_MB_S * 1e6)
    sent_bytes = 0

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Send a file, or the range that is asked for."""
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        wanted = self.headers.get("Range")
        status, start, stop = 200, 0, len(data)
        if wanted is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            status, start = 206, int(first)
            stop = min(int(last) + 1, len(data)) if last else len(data)
        self.send_response(status)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.end_headers()
        for place in range(start, stop, 1 << 16):
            piece = data[place : min(place + (1 << 16), stop)]
            self.throttle.wait(len(piece))
            self.wfile.write(piece)
            Handler.sent_bytes += len(piece)


# -- the questions ------------------------------------------------------------------------------


def kernel_bytes() -> int:
    """Return the bytes that read calls of this process gave so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def count_bytes(root: Path, url: str, original: int) -> list[list[object]]:
    """Return the table of bytes per fidelity."""
    rows: list[list[object]] = []
    for groups in range(1, PcrReader(root).scan_groups + 1):
        reader = PcrReader(root)
        before = kernel_bytes()
        for record in range(len(reader.records)):
            reader.read_record(record, scan_groups=groups)
        read = kernel_bytes() - before
        with PcrReader(url) as remote:
            Handler.sent_bytes = 0
            for record in range(len(remote.records)):
                remote.read_record(record, scan_groups=groups)
            sent = Handler.sent_bytes
        rows.append([groups, read, read / original, sent, sent / original])
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = arguments(__doc__, rounds=5)
    add_images_argument(parser)
    args = parser.parse_args()
    keep_freed_memory()
    rounds = 2 if args.quick else args.rounds
    epochs = 1 if args.quick else 3
    threads = usable_cores()
    root = photographs(args.images)
    files = files_of(root)
    original = sum(path.stat().st_size for path, _ in files)
    with tempfile.TemporaryDirectory() as folder:
        records, tars = Path(folder, "records"), Path(folder, "tars")
        convert(root, records, images_per_record=PER_RECORD)
        names = [path.name for path in write_tars(root, tars)]
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        urls = [f"{base}/tars/{name}" for name in names]

        Handler.throttle = Throttle(1e12)
        counted = count_bytes(records, f"{base}/records", original)
        print_table(
            f"Bytes of {len(files)} images of {original / 1e6:.1f} MB, at each fidelity",
            ("k", "read calls", "of the files", "web server", "of the files"),
            counted,
        )

        Handler.throttle = Throttle(LIMIT_MB_S * 1e6)
        # Both in the order that they are stored in, and as one long epoch.
        longer = ((path.read_bytes(), label) for path, label in files * epochs)
        convert(longer, Path(folder, "longer"), images_per_record=PER_RECORD)
        ways = {"tars": partial(tars_way, urls, epochs, threads)}
        for k in GROUPS:
            ways[f"records, k={k}"] = partial(
                records_way, f"{base}/longer", k, 1, threads, shuffle=False
            )
        throttled = alternate(list(ways), lambda way: timed(ways[way]), rounds)
        show("Over a web server that gives 20 MB/s", throttled, "tars")

        ways = {"JPEG files": partial(files_way, files, epochs, threads)}
        for k in GROUPS:
            ways[f"records, k={k}"] = partial(records_way, str(records), k, epochs, threads)
        ways["records, k=5, one thread"] = partial(records_way, str(records), 5, epochs, 1)
        ways["records, k=5, not decoded"] = partial(
            records_way, str(records), 5, epochs, threads, decode=False
        )
        local = alternate(list(ways), lambda way: timed(ways[way]), rounds)
        show("From disk, in the page cache", local, "JPEG files")
        speedup = ratio(local["records, k=5"], local["records, k=5, one thread"], "images_s")
        overhead = ratio(local["records, k=5, not decoded"], local["records, k=5"], "cpu_ms")
        print(f"\n{threads} threads are {speedup:.2f} times one")
        print(f"reading without decoding takes {overhead:.1%} of the CPU time")
        server.shutdown()
        server.server_close()
    write_json(
        args.json,
        {
            "bytes": counted,
            "throttled": throttled,
            "local": local,
            "speedup": speedup,
            "overhead": overhead,
        },
    )


def show(title: str, found: dict[str, list[dict[str, float]]], base: str) -> None:
    """Print one table."""
    rows = [
        [
            way,
            median(runs, "images_s"),
            ratio(runs, found[base], "images_s"),
            median(runs, "cpu_ms"),
        ]
        for way, runs in found.items()
    ]
    print_table(title, ("way", "images/s", f"of {base}", "CPU ms/image"), rows)


if __name__ == "__main__":
    sys.exit(main())
