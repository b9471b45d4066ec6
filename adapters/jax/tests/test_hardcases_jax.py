"""Hard cases of data loaders, each by its id, and the end of the process."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax_helpers import (
    GROUPS,
    SAMPLES,
    WAIT_S,
    batch,
    counting,
    flat,
    ids,
    noise_jpeg,
    run_script,
    samples_of,
    write_records,
)

from tensorcom import SourceError
from tensorcom.images import center_crop, decode_image
from tensorcom.pcr import PcrReader, guarded
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_jax import DeviceRecords, DeviceStream

EXIT_S = 5  # the import apart


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "set")


def records(root: Path, **arguments: Any) -> Any:
    return closing(DeviceRecords(root, **{"batch_size": 4, "size": 8, **arguments}))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_C01_ranks_get_each_sample_of_records_once(root: Path, ranks: int) -> None:
    found = []
    for rank in range(ranks):
        with records(root, shard=(rank, ranks), end="uneven") as data:
            found += flat(samples_of(data))
    assert Counter(found) == Counter(range(SAMPLES))


@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_C01_ranks_get_each_batch_of_a_stream_once(scheme: str) -> None:
    sent = [batch(number) for number in range(12)]
    with LoopbackServer(sent, scheme=scheme, readers=2) as server:
        streams = [DeviceStream(server.url, shard=(r, 2), timeout_s=WAIT_S) for r in range(2)]
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(ids, streams))
        for stream in streams:
            stream.close()
    assert Counter(sum(found, [])) == Counter(range(12 * 4))


def test_C02_more_ranks_than_samples_are_an_error_up_front(tmp_path: Path) -> None:
    root = write_records(tmp_path / "set", samples=3)
    for end in ("drop", "uneven"):
        with pytest.raises(SourceError, match="3 samples are fewer than 4 ranks"):
            DeviceRecords(root, batch_size=2, shard=(3, 4), end=end)
    found = []
    for rank in range(4):
        with records(root, shard=(rank, 4), end="pad") as data:
            found += samples_of(data)
    assert [len(samples) for samples in found] == [1] * 4
    assert set(flat(found)) == {0, 1, 2}


def test_C02_a_rank_of_a_stream_without_a_batch_ends_quietly() -> None:
    with LoopbackServer([batch(n) for n in range(3)], scheme="zpub", readers=4) as server:
        streams = [DeviceStream(server.url, shard=(r, 4), timeout_s=WAIT_S) for r in range(4)]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(ids, streams))
        for stream in streams:
            stream.close()
    assert [len(samples) for samples in found] == [4, 4, 4, 0]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 23])
def test_C03_len_is_the_number_of_batches(root: Path, batch_size: int, *, drop_last: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with records(root, batch_size=batch_size, drop_last=drop_last) as data:
            assert len(data) == len(list(data)) == len(list(data))
            # Also where the iteration goes on from a state, it is the length of whole epochs.
            next(iter(data))
            data.load_state_dict(data.state_dict())
            assert len(data) == len(list(data)) + 1


@pytest.mark.parametrize("length", [0, 1, 5])
def test_C03_len_of_a_stream_is_what_was_given(length: int) -> None:
    with LoopbackServer(counting()) as server:
        stream = DeviceStream(server.url, length=length, timeout_s=WAIT_S)
        assert len(stream) == len(list(stream)) == len(list(stream)) == length
        stream.close()


@pytest.mark.parametrize("end", ["wrap", "pad", "drop"])
def test_C04_ranks_end_at_the_same_step(tmp_path: Path, end: str) -> None:
    root = write_records(tmp_path / "set", samples=21)
    steps = []
    for rank in range(2):
        with records(root, batch_size=3, shard=(rank, 2), end=end) as data:
            steps.append([len(labels) for labels in samples_of(data)])
            assert len(data) == len(steps[-1])
    assert steps[0] == steps[1]
    assert sum(steps[0]) == (10 if end == "drop" else 11)


def first_of(data: Any) -> list[int]:
    labels = next(iter(data))[1].tolist()
    data.close()
    return labels


def test_C05_iterators_are_used_by_a_spawned_process_also_after_use(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with LoopbackServer(counting()) as server, context.Pool(1) as pool:
        stream = DeviceStream(server.url, timeout_s=WAIT_S)
        assert first_of_open(stream) == [0, 1, 2, 3]
        with records(root) as data:
            expected = [samples_of(itertools.islice(data, 1)) for _ in range(2)][1][0]
            data.set_epoch(1)
            assert pool.apply(first_of, (data,)) == expected
        assert min(pool.apply(first_of, (stream,))) > 3
        stream.close()
        pool.close()
        pool.join()


def first_of_open(data: Any) -> list[int]:
    return next(iter(data))[1].tolist()


C09 = """
import os, sys
import jax, numpy as np

forks = []
os.register_at_fork(before=lambda: forks.append(1))
assert jax.jit(lambda x: x + 1)(1) == 2  # JAX has its threads

from jax_helpers import counting
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_jax import DeviceRecords, DeviceStream

step = jax.jit(lambda x: x.astype("f4").sum())
records = DeviceRecords(sys.argv[1], batch_size=4, size=8, threads=2)
for _ in range(2):
    assert sum(len(labels) for images, labels in records if step(images) >= 0) == 23
with LoopbackServer(counting()) as server:
    stream = DeviceStream(server.url, length=5, timeout_s=30)
    assert sum(len(labels) for images, labels in stream if step(images) >= 0) == 20
    stream.close()
records.close()
print(forks)
"""


def test_C09_nothing_forks_and_nothing_warns(root: Path) -> None:
    done = run_script(C09, root, flags=("-W", "error"))
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_C09_a_forked_child_has_a_source_of_its_own(root: Path, monkeypatch: Any) -> None:
    """C09: what a child does that the user forked all the same, seen from a copy of the object."""
    with records(root) as data, records(root) as other:
        iterator = iter(data)
        found = samples_of([next(iterator)])
        child = object.__new__(DeviceRecords)
        child.__dict__.update(data.__dict__)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            of_child = samples_of(child)
            child.close()
        assert found + samples_of(iterator) == samples_of(other)
        assert of_child == samples_of(other), "the next epoch"


def test_C09_a_forked_child_gets_nothing_that_its_parent_received(monkeypatch: Any) -> None:
    """C09: the same of a stream."""
    with LoopbackServer(counting()) as server:
        stream = DeviceStream(server.url, prefetch=3, timeout_s=WAIT_S)
        assert ids(itertools.islice(stream, 1)) == [0, 1, 2, 3]
        assert stream._live is not None
        assert stream._live._waiting
        child = object.__new__(DeviceStream)
        child.__dict__.update(stream.__dict__)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            of_child = child._open()
            assert of_child is not stream._live
            assert not of_child._waiting
        assert ids(itertools.islice(stream, 2)) == list(range(4, 12))
        stream.close()


def test_C11_epochs_leave_no_arrays_and_no_memory_behind(root: Path) -> None:
    def live() -> int:
        gc.collect()
        return len(jax.live_arrays())

    with records(root, batch_size=1) as data, LoopbackServer(counting()) as server:
        stream = DeviceStream(server.url, length=20, timeout_s=WAIT_S)
        before = live()
        for _ in range(5):
            assert len(list(data)) == SAMPLES
            assert len(list(itertools.islice(data, 2))) == 2
            assert len(list(stream)) == 20
            assert live() <= before
        stream.close()


@pytest.mark.parametrize("groups", range(1, GROUPS + 1))
def test_C12_pixels_of_prefixes_are_those_of_the_guarded_prefix(
    tmp_path: Path, groups: int
) -> None:
    root = write_records(tmp_path / "set", samples=5, make=noise_jpeg)
    reader = PcrReader(root)
    with records(root, scan_groups=groups, augment=None, shuffle=False, size=16) as data:
        found = np.concatenate([np.asarray(images) for images, _ in data])
    for sample, pixels in enumerate(found):
        jpeg, _ = reader.sample(sample, scan_groups=groups)
        if groups < GROUPS:
            jpeg = guarded(jpeg, script=reader.script, scan_groups=groups)
        expected = center_crop(decode_image(jpeg, path="here"), 16, resize=16)
        np.testing.assert_array_equal(pixels, expected)


EXIT = """
import sys, time
import tensorcom_jax, jax
from jax_helpers import counting
from tensorcom.testing.loopback import LoopbackServer

jax.devices()
if "://" in sys.argv[1]:
    data = tensorcom_jax.DeviceStream(sys.argv[1], timeout_s=None)
else:
    data = tensorcom_jax.DeviceRecords(sys.argv[1], batch_size=1, size=8)
iterator = iter(data)
kept = [next(iterator) for _ in range(2)]
print(time.time(), flush=True)
if sys.argv[2] == "raise":
    raise SystemExit
"""


@pytest.mark.parametrize("how", ["end", "raise"])
@pytest.mark.parametrize("kind", ["stream", "records"])
def test_a_process_ends_with_an_iteration_under_way(root: Path, kind: str, how: str) -> None:
    with LoopbackServer([batch(0), batch(1)], end=False) as server:
        done = run_script(EXIT, server.url if kind == "stream" else root, how)
        assert time.time() - float(done.stdout) < EXIT_S
    assert done.stderr == ""
