"""Records in TensorFlow: pcr_dataset beside TFRecord files and generators.

Four questions, on the same images:
 - images/s of JPEG bytes at each fidelity, beside TFRecord files that hold the same bytes, and
   beside a generator that yields one image at a time;
 - the same with decoding to 224 x 224 pixels;
 - images/s from a disk that gives 20 MB/s, beside TFRecord files of the images in full;
 - what the disk gives for a prefix that is not in the page cache, and which system calls read it.

Rates in the page cache are those after the first batch. What an iteration takes to begin, some
0.1 s more for pcr_dataset than for TFRecord files, is stated apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf
from _harness import alternate, arguments, median, print_table, ratio, write_json
from _photos import add_images_argument, files_of, photographs

from tensorcom.pcr import PcrReader, convert
from tensorcom.pcr.wire import encode_index
from tensorcom_keras import pcr_dataset
from tensorcom_keras.tf_memory import keep_freed_blocks
from tensorcom_keras.tf_views import decode_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BATCH = 64
PER_RECORD = 256
PER_COLD_RECORD = 64  # many records: the first two of an epoch are read before the kernel is asked
SIZE = 224
GROUPS = (1, 2, 5, 10)
LIMIT_MB_S = 20
COPIES = 4  # of the images, in the files
REPEATS = {"bytes": 4, "pixels": 1}  # of the files, in one iteration
FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}
BLKIO = Path("/sys/fs/cgroup/blkio")


# -- the ways ------------------------------------------------------------------------------------


def write_tfrecords(images: Iterable[tuple[bytes, int]], path: Path) -> None:
    """Write images as `tf.train.Example`."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for jpeg, label in images:
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def images_of(root: Path, groups: int) -> Iterator[tuple[bytes, int]]:
    """Yield the images of a set, one at a time."""
    with PcrReader(root) as reader:
        for record in range(len(reader.records)):
            yield from zip(*reader.read_record(record, scan_groups=groups), strict=True)


def view(jpeg: Any, label: Any) -> tuple[Any, Any]:
    """Decode as pcr_dataset does."""
    return decode_view(jpeg, None, size=SIZE, augment="eval"), label


def batched(dataset: tf.data.Dataset, what: str) -> tf.data.Dataset:
    """Batch single images, decoded or not."""
    if what == "pixels":
        dataset = dataset.map(view, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(BATCH).prefetch(2)


def native(root: Path, groups: int, what: str) -> tf.data.Dataset:
    """Read records in the graph."""
    return pcr_dataset(
        root,
        batch_size=BATCH,
        scan_groups=groups,
        decode=what == "pixels",
        size=SIZE,
        augment="eval",
        shuffle=False,
    )


def tfrecords(path: Path, repeats: int, what: str, *, by_batch: bool = False) -> tf.data.Dataset:
    """Read a TFRecord file, and parse its examples one by one, or batches of them."""
    examples = tf.data.TFRecordDataset([str(path)] * repeats, buffer_size=8 << 20)

    def parse(example: Any) -> tuple[Any, Any]:
        function = tf.io.parse_example if by_batch else tf.io.parse_single_example
        found = function(example, FEATURES)
        return found["image"], found["label"]

    if by_batch:
        examples = examples.batch(BATCH)
    parsed = examples.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return parsed.prefetch(2) if by_batch else batched(parsed, what)


def generated(root: Path, groups: int, what: str) -> tf.data.Dataset:
    """Read records in Python, and yield one image at a time."""
    signature = (tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int32))
    images = tf.data.Dataset.from_generator(
        lambda: images_of(root, groups), output_signature=signature
    )
    return batched(images, what)


def timed(dataset: tf.data.Dataset) -> dict[str, float]:
    """Iterate once; return seconds to the first batch, and from there on images/s and CPU time."""
    begin = time.perf_counter()
    batches = iter(dataset)
    next(batches)
    start, cpu = time.perf_counter(), time.process_time()
    images = sum(len(labels) for _, labels in batches)
    spent, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"begin_s": start - begin, "images_s": images / spent, "cpu_ms": 1000 * cpu / images}


def repeated(root: Path, repeats: int, target: Path) -> Path:
    """Return a set that has each record of another one several times, as links to its files."""
    target.mkdir()
    names, parts = [], []
    with PcrReader(root) as reader:
        for number in range(repeats):
            for record in reader.records:
                names.append(f"{number}_{record.name}")
                parts.append(record.parts.tolist())
                (target / names[-1]).hardlink_to(root / record.name)
    (target / "PCR_index.pb").write_bytes(encode_index(names, parts))
    return target


# -- a disk that gives so many bytes a second ----------------------------------------------------


def forget(*folders: Path) -> None:
    """Drop files from the page cache."""
    os.sync()
    for path in (path for folder in folders for path in folder.iterdir()):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


@contextmanager
def slow_disk(folder: Path) -> Iterator[bool]:
    """Limit what this process gets of the disk of a folder, if that can be done here."""
    group = BLKIO / f"tensorcom-bench-{os.getpid()}"
    device = folder.stat().st_dev
    try:
        group.mkdir()
    except OSError:
        yield False
        return
    try:
        limit = f"{os.major(device)}:{os.minor(device)} {LIMIT_MB_S * 1_000_000}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield True
    finally:
        (BLKIO / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def disk_bytes() -> int:
    """Return the bytes that this process had the disk read."""
    fields = Path("/proc/self/io").read_text().split()
    return int(fields[fields.index("read_bytes:") + 1])


def cold_reads(root: Path) -> list[list[object]]:
    """Return the table of what the disk reads for prefixes, with and without asking ahead."""
    with PcrReader(root) as reader:
        prefixes = reader.group_bytes.tolist()
    rows: list[list[object]] = []
    for groups in GROUPS:
        row: list[object] = [groups, prefixes[groups - 1]]
        for readahead in (False, True):
            dataset = pcr_dataset(
                root, batch_size=BATCH, scan_groups=groups, decode=False, readahead=readahead
            )
            forget(root)
            before = disk_bytes()
            for _batch in dataset:
                pass
            row.append((disk_bytes() - before) / prefixes[groups - 1])
        rows.append(row)
    return rows


def system_calls(root: Path) -> list[str]:
    """Return the calls that read the first record at k=1, as strace shows them."""
    if shutil.which("strace") is None:
        return ["strace is not installed"]
    code = (
        "import sys; from tensorcom_keras import pcr_dataset\n"
        f"for batch in pcr_dataset({str(root)!r}, batch_size=64, scan_groups=1, decode=False,"
        " readahead=False): pass"
    )
    command = ["strace", "-f", "-y", "-e", "trace=read,pread64", sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    calls = (line for line in run.stderr.splitlines() if "/PCR_0.pcr" in line)
    return [line.partition("pread64")[2] or line for line in calls]


# -- the questions -------------------------------------------------------------------------------


def measure(root: Path, folder: Path, what: str, groups: int, rounds: int) -> dict[str, Any]:
    """Measure all ways at one fidelity."""
    repeats = REPEATS[what]
    longer = repeated(root, repeats, folder / f"{what}{groups}")
    path = folder / f"k{groups}.tfrecord"
    ways = {
        "pcr_dataset": native(longer, groups, what),
        "TFRecord": tfrecords(path, repeats, what),
        "generator": generated(longer, groups, what),
    }
    if what == "bytes":
        ways["TFRecord by batch"] = tfrecords(path, repeats, what, by_batch=True)
    for dataset in ways.values():
        for _batch in dataset.take(2):
            pass
    return alternate(list(ways), lambda way: timed(ways[way]), rounds)


def measure_apart(folder: Path, what: str, rounds: int) -> dict[int, Any]:
    """Measure each fidelity in a process of its own, whose memory no other has used."""
    found = {}
    for groups in GROUPS:
        command = [sys.executable, __file__, "--inside", str(folder), what, str(groups)]
        command += ["--rounds", str(rounds)]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[groups] = json.loads(run.stdout.splitlines()[-1])
    return found


def show(title: str, found: dict[int, Any]) -> None:
    """Print one table."""
    rows = []
    for groups, ways in found.items():
        own, others, generator = (ways[way] for way in ("pcr_dataset", "TFRecord", "generator"))
        rows.append(
            [
                groups,
                median(own, "images_s"),
                ratio(own, others, "images_s"),
                ratio(own, ways.get("TFRecord by batch", others), "images_s"),
                ratio(own, generator, "images_s"),
                median(own, "cpu_ms"),
                median(others, "cpu_ms"),
                median(own, "begin_s"),
                median(others, "begin_s"),
            ]
        )
    head = ("k", "images/s", "of TFRecord", "by batch", "of a generator", "CPU ms/image")
    head += ("TFRecord's",)
    head += ("begins in s", "TFRecord's")
    print_table(title, head, rows)


def main() -> None:
    """Run the benchmark."""
    parser = arguments(__doc__, rounds=5)
    add_images_argument(parser)
    parser.add_argument("--inside", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    keep_freed_blocks()  # for all ways alike
    if args.inside:
        folder, what, groups = args.inside
        root = Path(folder, "records")
        print(json.dumps(measure(root, Path(folder), what, int(groups), args.rounds)))
        return
    rounds = 2 if args.quick else args.rounds
    source = photographs(args.images)
    files = [(path.read_bytes(), label) for path, label in files_of(source)]
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root, whole = folder / "records", folder / "whole"
        convert(iter(files * COPIES), root, images_per_record=PER_RECORD)
        whole.mkdir()
        write_tfrecords(files * COPIES, whole / "images.tfrecord")
        for groups in GROUPS:
            write_tfrecords(images_of(root, groups), folder / f"k{groups}.tfrecord")
        for what in ("bytes", "pixels"):
            figures[what] = measure_apart(folder, what, rounds)
            show(f"Batches of {what}, in the page cache", figures[what])

        cold_root = folder / "cold"
        convert(iter(files * COPIES), cold_root, images_per_record=PER_COLD_RECORD)
        ways = {"TFRecord of the images": tfrecords(whole / "images.tfrecord", 1, "pixels")}
        for groups in GROUPS:
            ways[f"pcr_dataset, k={groups}"] = native(cold_root, groups, "pixels")

        def cold(way: str) -> dict[str, float]:
            forget(cold_root, whole)
            start = time.perf_counter()
            images = sum(len(labels) for _, labels in ways[way])
            return {"images_s": images / (time.perf_counter() - start)}

        with slow_disk(folder) as is_slow:
            if is_slow:
                figures["slow"] = alternate(list(ways), cold, min(rounds, 3))
        if is_slow:
            base = figures["slow"]["TFRecord of the images"]
            rows = [
                [way, median(runs, "images_s"), ratio(runs, base, "images_s")]
                for way, runs in figures["slow"].items()
            ]
            print_table("From a disk that gives 20 MB/s", ("way", "images/s", "of TFRecord"), rows)
        else:
            print("\nA slow disk needs root and the blkio controller of cgroups, version 1")

        figures["cold"] = cold_reads(cold_root)
        head = ("k", "prefixes, bytes", "read by the disk", "asked ahead")
        print_table("What the disk reads, of the prefixes", head, figures["cold"])
        print("\nSystem calls that read the first record at k=1:")
        print("\n".join(f"  {call}" for call in system_calls(root)))
    write_json(args.json, figures)


if __name__ == "__main__":
    sys.exit(main())
