"""Hard cases of data loaders, each by its id."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import subprocess
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from dali_helpers import (
    SAMPLES,
    WAIT_S,
    define_raw,
    epoch_of,
    flat,
    labels_of,
    write_records,
)
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, DALIGenericIterator
from PIL import Image

from tensorcom import SourceError
from tensorcom.images import decode_image
from tensorcom.pcr import PcrReader, PcrWriter
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_dali import Loader, PcrSource, StreamSource, plain_pipeline, val_pipeline


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_records(tmp_path_factory.mktemp("gray") / "set", samples=10)


def load(root: Path, pipeline=val_pipeline, *, to: str = "numpy", **arguments) -> Loader:
    options = {"size": 8} if pipeline is val_pipeline else {}
    source = PcrSource(root, **{"batch_size": 4, **arguments})
    return Loader(source, pipeline, to=to, **options)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_C01_ranks_get_each_sample_once(root, ranks) -> None:
    found = []
    for rank in range(ranks):
        with load(root, shard=(rank, ranks), end="uneven", batch_size=1) as loader:
            found += flat(labels_of(loader))
    assert sorted(found) == list(range(10))


@pytest.mark.parametrize("end", ["drop", "uneven"])
def test_C02_a_rank_without_samples_is_an_error_up_front(root, end) -> None:
    with pytest.raises(SourceError, match="10 samples are fewer than 11 ranks"):
        PcrSource(root, batch_size=4, shard=(10, 11), end=end)


def test_C02_a_set_of_one_sample_is_a_batch_of_one(tmp_path) -> None:
    with load(write_records(tmp_path / "set", samples=1)) as loader:
        assert [labels_of(loader) for _ in range(3)] == [[[0]]] * 3


def test_C02_batches_that_would_all_be_dropped_are_an_error_up_front(root) -> None:
    with pytest.raises(SourceError, match="drop_last leaves no batch of 11 of 10 samples"):
        PcrSource(root, batch_size=11, drop_last=True)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 5, 10, 16])
def test_C03_len_is_the_number_of_batches(root, batch_size, drop_last) -> None:
    if drop_last and batch_size > 10:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with load(root, batch_size=batch_size, drop_last=drop_last) as loader:
            assert len(loader) == len(list(loader)) == len(list(loader))


@pytest.mark.parametrize("end", ["wrap", "pad", "drop"])
def test_C04_ranks_end_at_the_same_step(tmp_path, end) -> None:
    root = write_records(tmp_path / "set", samples=21)

    def steps(rank: int) -> list[int]:
        with load(root, shard=(rank, 2), end=end, batch_size=3) as loader:
            return [len(labels) for _ in range(2) for labels in labels_of(loader)]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(steps, range(2))
    assert first == second


def count_of(loader: Loader) -> int:
    return sum(len(labels) for _, labels in loader)


def test_C05_sources_and_loaders_pickle_even_in_use(root) -> None:
    with load(root) as loader:
        next(iter(loader))
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            assert pool.apply(count_of, (loader,)) == 10
            pool.close()
            pool.join()
    with (
        LoopbackServer([[np.zeros(2, "i4")]] * 2) as server,
        StreamSource(server.url, timeout_s=WAIT_S) as source,
    ):
        next(iter(source))
        copy = pickle.loads(pickle.dumps(source))
        assert repr(copy) == repr(source)


FORK = """
import multiprocessing
import sys
from tensorcom_dali import Loader, PcrSource, val_pipeline

def send(batches, connection):
    try:
        connection.send(sorted(label for _, labels in batches for label in labels.tolist()))
    except Exception as exc:
        connection.send(str(exc))

def in_fork(batches):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=send, args=(batches, theirs))
    process.start()
    found = ours.recv() if ours.poll(30) else "the child waits for ever"
    process.join(10)
    return found

with PcrSource(sys.argv[1], batch_size=4) as source:
    batches = iter(source)
    next(batches)
    print(in_fork(batches))
    print(in_fork(source))
    list(batches)
loader = Loader(PcrSource(sys.argv[1], batch_size=4), val_pipeline, size=8)
print(in_fork(loader))
batches = iter(loader)
next(batches)
print(in_fork(batches))
print(in_fork(loader))
loader.close()
"""


def test_C05_a_fork_is_an_error_where_it_would_wait_for_ever(root) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(root)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    raw, own, built, left, again = done.stdout.splitlines()
    assert own == built == str(list(range(10))), "iterations and pipelines of their own"
    for text in (raw, left, again):
        assert "begun in another process" in text


def test_C06_types_are_those_of_the_framework(root) -> None:
    with load(root, plain_pipeline, to="torch", decode=True, size=8) as loader:
        for batch in loader:
            assert type(batch) is list
            assert [type(value) for value in batch] == [torch.Tensor, torch.Tensor]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_C10_every_epoch_gives_every_image(root, depth) -> None:
    with PcrSource(root, batch_size=4) as source:
        pipeline = define_raw(source, prefetch_queue_depth=depth)
        for _ in range(3):
            epoch = epoch_of(pipeline)
            assert [len(labels) for labels in epoch] == [4, 4, 2]
            assert sorted(flat(epoch)) == list(range(10))


@pytest.mark.parametrize("iterator", [DALIGenericIterator, DALIClassificationIterator])
@pytest.mark.parametrize("auto_reset", [False, True])
def test_C10_the_iterators_of_dali_get_every_image_too(root, iterator, auto_reset) -> None:
    names = [["data", "label"]] if iterator is DALIGenericIterator else []
    with PcrSource(root, batch_size=4, decode=True, size=8) as source:
        batches = iterator([define_raw(source)], *names, auto_reset=auto_reset)
        for _ in range(3):
            epoch = [found["label"].ravel().tolist() for (found,) in batches]
            assert [len(labels) for labels in epoch] == [4, 4, 2]
            assert sorted(flat(epoch)) == list(range(10))
            if not auto_reset:
                batches.reset()
        del batches


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
def test_C10_a_loader_gives_every_image_after_any_break(root, to) -> None:
    with load(root, to=to) as loader:
        for batches in (1, 3, 2, 3):
            for number, _ in enumerate(loader, 1):
                if number == batches:
                    break
            epoch = labels_of(loader)
            assert [len(labels) for labels in epoch] == [4, 4, 2]
            assert sorted(flat(epoch)) == list(range(10))


def test_C11_epochs_leave_nothing_behind(root) -> None:
    with load(root) as loader:
        counts = []
        for _ in range(4):
            list(loader)
            gc.collect()
            objects = (type(value).__name__ for value in gc.get_objects())
            counts.append(Counter(n for n in objects if n in ("Batch", "Batches", "Ahead", "Run")))
    assert counts[1] == counts[2] == counts[3]


def smooth_jpeg() -> bytes:
    """Return the image of the case: 16 x 48, 4:2:0, a ramp of few details."""
    import io

    ramp = np.linspace(0, 255, 48).astype(np.uint8)
    pixels = np.repeat(np.stack([ramp, ramp[::-1], ramp // 2], -1)[None], 16, axis=0)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90, subsampling="4:2:0")
    return stream.getvalue()


def test_C12_pixels_of_prefixes_are_those_of_core(tmp_path) -> None:
    with PcrWriter(tmp_path / "set") as writer:
        writer.add(smooth_jpeg(), 0)
    with PcrReader(tmp_path / "set") as reader:
        for groups in range(1, reader.scan_groups + 1):
            with PcrSource(tmp_path / "set", batch_size=1, scan_groups=groups) as source:
                ((images, _),) = list(source)
                options = {"size": 14, "dtype": "uint8", "layout": "NHWC"}
                with Loader(source, val_pipeline, **options) as loader:
                    ((pixels, _),) = list(loader)
                # Of the size that the resize has no part in: 16 rows, of which 14 are cut out.
                expected = decode_image(images[0].tobytes())[1:15, 17:31]
                np.testing.assert_array_equal(pixels[0], expected)


BREAK = """
import sys
from tensorcom_dali import Loader, PcrSource, StreamSource, plain_pipeline, train_pipeline

if __name__ == "__main__":
    kind, where = sys.argv[1:]
    if kind == "raw":
        source = PcrSource(where, batch_size=1)
        next(iter(source))
    else:
        loader = Loader(PcrSource(where, batch_size=1), train_pipeline, size=8, to=kind)
        for _ in loader:
            break
    print("done")
"""


@pytest.mark.parametrize("kind", ["raw", "numpy", "torch", "jax"])
def test_a_program_that_leaves_an_epoch_ends(root, tmp_path, kind) -> None:
    script = tmp_path / "job.py"
    script.write_text(BREAK)
    done = subprocess.run(
        [sys.executable, str(script), kind, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_all_of_the_set_is_read_by_default(root) -> None:
    assert SAMPLES > 10
    with PcrSource(root, batch_size=4) as source:
        assert source.scan_groups is None
        list(source)
        assert source.bytes_read == source.reader.group_bytes[-1]
