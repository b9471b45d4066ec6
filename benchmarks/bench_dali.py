"""DALI pipelines on records, beside DALI's own reader of JPEG files: images/s, and a source's cost.

Three questions, on the same images, through the same steps of a training pipeline:
 - images/s from disk with nothing but CPUs as the limit, beside `fn.readers.file`;
 - images/s over a web server that gives 20 MB/s, beside the JPEG files in tars, which are read from
   start to end, since DALI's own readers know no web servers;
 - the share of the pipeline's CPU time that a source takes, and of its time that it waits for one.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _harness import alternate, arguments, ratio, write_json
from _photos import PER_RECORD, add_images_argument, files_of, photographs, write_tars
from bench_pcr_read import LIMIT_MB_S, Handler, Throttle, read_ahead, read_tars, show, timed
from nvidia.dali import fn, pipeline_def

from tensorcom.images import usable_cores
from tensorcom.pcr import convert
from tensorcom_dali import PcrSource, train_images, train_pipeline
from tensorcom_dali.feed import Feed

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 64
SIZE = 224
GROUPS = (1, 2, 5, 10)
SCRIPTS = ("balanced", "fast")  # measured at k=5 too
LEAST = 2000  # images in an epoch, so that begin and end weigh little: small sets are repeated


# -- the ways: each builds its pipeline, so that none begins with batches that are made ----------


def run(pipeline: Any, batches: int | None = None) -> int:
    """Run a pipeline for some batches, or to its end; return the images."""
    images = number = 0
    while batches is None or number < batches:
        try:
            outputs = pipeline.run()
        except StopIteration:
            break
        images += len(outputs[0])
        number += 1
    return images


def file_reader_way(root: Path, images: int) -> int:
    """Read files by DALI's own reader."""

    @pipeline_def(batch_size=BATCH, num_threads=usable_cores(), device_id=None, seed=0)
    def define() -> Any:
        jpegs, labels = fn.readers.file(file_root=str(root), random_shuffle=True)
        return train_images(jpegs, size=SIZE), labels

    return run(define(), images // BATCH)


def records_way(root: str | Path, groups: int, **options: Any) -> int:
    """Read an epoch of records."""
    with PcrSource(root, batch_size=BATCH, scan_groups=groups, **options) as source:
        return run(train_pipeline(source, size=SIZE))


def tars_way(urls: list[str]) -> int:
    """Read JPEG files out of tars on a web server, ahead by a thread."""

    @pipeline_def(batch_size=BATCH, num_threads=usable_cores(), device_id=None, seed=0)
    def define() -> Any:
        (jpegs,) = fn.external_source(source=batches_of(urls), num_outputs=1, batch=True)
        return train_images(jpegs, size=SIZE)

    return run(define())


def batches_of(urls: list[str]) -> Iterator[tuple[list[Any]]]:
    """Yield the images of tars as DALI takes them."""
    held = []
    for _, jpeg in read_ahead(read_tars(urls, 1), 4 * PER_RECORD):
        held.append(np.frombuffer(jpeg, np.uint8))
        if len(held) == BATCH:
            yield (held,)
            held = []
    if held:
        yield (held,)


def source_alone_way(root: str | Path, groups: int) -> int:
    """Take an epoch of a source without a pipeline."""
    with PcrSource(root, batch_size=BATCH, scan_groups=groups) as source:
        return sum(len(labels) for _, labels in source)


class TimedFeed(Feed):
    """A feed that knows how long it was asked for."""

    spent_s = 0.0

    def __call__(self, iteration: int) -> tuple[Any, ...]:
        start = time.perf_counter()
        try:
            return super().__call__(iteration)
        finally:
            self.spent_s += time.perf_counter() - start


def wait_share(root: str | Path, groups: int) -> float:
    """Return the share of an epoch's time in which the pipeline asks for batches."""
    with PcrSource(root, batch_size=BATCH, scan_groups=groups) as source:
        feed = TimedFeed(source)
        pipeline = train_pipeline(feed, size=SIZE)
        start = time.perf_counter()
        run(pipeline)
        return feed.spent_s / (time.perf_counter() - start)


def repeated(items: list[Any], count: int) -> list[Any]:
    """Return so many of the items, again from the first one where there are fewer."""
    return (items * -(-count // len(items)))[:count]


def copy_files(files: list[tuple[Path, int]], root: Path) -> None:
    """Copy files, each to one of its own: a repeated one would be in the CPU's caches."""
    for number, (path, label) in enumerate(files):
        folder = root / f"{label:04}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / f"{number:06}.jpg")


def convert_files(files: list[tuple[Path, int]], records: Path, script: str) -> None:
    """Convert files to a set."""
    jpegs = ((path.read_bytes(), label) for path, label in files)
    convert(jpegs, records, images_per_record=PER_RECORD, script=script)


def main() -> None:
    """Run the benchmark."""
    parser = arguments(__doc__, rounds=5)
    add_images_argument(parser)
    args = parser.parse_args()
    rounds = 2 if args.quick else args.rounds
    share = 4 if args.quick else 1
    root = photographs(args.images)
    files = repeated(files_of(root), LEAST // share)
    with tempfile.TemporaryDirectory() as folder:
        copies, records, tars = (Path(folder, name) for name in ("copies", "standard", "tars"))
        copy_files(files, copies)
        for script in ("standard", *SCRIPTS):
            convert_files(files, Path(folder, script), script)
        names = [path.name for path in write_tars(root, tars)]
        names = repeated(names, len(files) // PER_RECORD)
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"

        ways: dict[str, Any] = {"file reader": partial(file_reader_way, copies, len(files))}
        for k in GROUPS:
            ways[f"records, k={k}"] = partial(records_way, records, k)
        for script in SCRIPTS:
            ways[f"records, k=5, {script}"] = partial(records_way, Path(folder, script), 5)
        ways["records, k=5, no pipeline"] = partial(source_alone_way, records, 5)
        for way in ways.values():
            way()  # files are in the page cache then
        local = alternate(list(ways), lambda way: timed(ways[way]), rounds)
        show("From disk, in the page cache", local, "file reader")
        overhead = ratio(local["records, k=5, no pipeline"], local["records, k=5"], "cpu_ms")
        waits = wait_share(records, 5)
        print(f"\nat k=5 a source takes {overhead:.1%} of the pipeline's CPU time")
        print(f"at k=5 the pipeline spends {waits:.1%} of its time on asking for batches")

        Handler.throttle = Throttle(LIMIT_MB_S * 1e6)
        slow: dict[str, Any] = {"tars": partial(tars_way, [f"{base}/tars/{n}" for n in names])}
        for k in GROUPS:
            slow[f"records, k={k}"] = partial(records_way, f"{base}/standard", k, shuffle=False)
        throttled = alternate(list(slow), lambda way: timed(slow[way]), rounds)
        show(f"Over a web server that gives {LIMIT_MB_S} MB/s", throttled, "tars")
        server.shutdown()
        server.server_close()
    write_json(
        args.json,
        {"local": local, "throttled": throttled, "overhead": overhead, "waits": waits},
    )


if __name__ == "__main__":
    sys.exit(main())
