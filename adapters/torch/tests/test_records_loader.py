"""PcrDataset in a DataLoader: start methods, epochs over workers, threads and forks."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from record_helpers import (
    SAMPLES,
    flat,
    gray_jpeg,
    load,
    make_dataset,
    noise_jpeg,
    samples_of,
    write_records,
)

from tensorcom.images import usable_cores
from tensorcom.pcr import PcrSource
from tensorcom_torch import PcrDataset

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than CPUs

SIZE = 16
# (start method, workers, persistent)
STARTS = [
    (None, 0, False),
    ("fork", 1, False),
    ("fork", 1, True),
    ("fork", 2, False),
    ("fork", 2, True),
    ("fork", 3, False),
    ("fork", 3, True),
    ("spawn", 2, False),  # those that persist are in the contract suite
    ("forkserver", 1, True),
    ("forkserver", 2, False),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "gray", make=gray_jpeg)


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "noise", make=noise_jpeg)


def core_epoch(root: Path, epoch: int, workers: int, **arguments: Any) -> list[Any]:
    """Return the batches that core's readers give in turn."""
    readers = []
    for worker in range(max(workers, 1)):
        core = PcrSource(root, batch_size=4, worker=(worker, max(workers, 1)), **arguments)
        core.set_epoch(epoch)
        readers.append(list(core))
        core.close()
    turns = itertools.zip_longest(*readers)
    return [batch for turn in turns for batch in turn if batch is not None]


def check_epoch(found: list[Any], expected: list[Any]) -> None:
    assert [len(labels) for _, labels in found] == [4, 4, 4, 4, 4, 3], "the last one is last"
    assert sorted(torch.cat([labels for _, labels in found]).tolist()) == list(range(SAMPLES))
    for (images, labels), (wanted, numbers) in zip(found, expected, strict=True):
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int32)
        np.testing.assert_array_equal(labels.numpy(), numbers)
        np.testing.assert_array_equal(images.numpy(), wanted)
        images[0], labels[0] = 0, 0


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_epochs_are_those_of_core_in_turn_though_seeded_alike(
    noise: Path, start: tuple[str | None, int, bool]
) -> None:
    method, workers, persistent = start
    dataset = make_dataset(noise, size=SIZE, seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        loader = load(
            dataset, workers, multiprocessing_context=method, persistent_workers=persistent
        )
        assert len(loader) == 6
        epoch = 0
        check_epoch(list(loader), core_epoch(noise, epoch, workers, size=SIZE, seed=5))
        if method in (None, "fork") or persistent:
            epoch += 1
            torch.manual_seed(0)
            for _ in loader:
                break
        epoch += 1
        torch.manual_seed(0)
        dataset.scan_groups = 2
        expected = core_epoch(noise, epoch, workers, size=SIZE, seed=5, scan_groups=2)
        check_epoch(list(loader), expected)
        del loader
    dataset.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "arguments",
    [{"layout": "NCHW"}, {"size": None, "augment": None, "layout": "NCHW"}, {"decode": False}],
    ids=["NCHW", "whole", "bytes"],
)
def test_workers_yield_what_one_process_yields(
    noise: Path, workers: int, arguments: dict[str, Any]
) -> None:
    expected = {}
    for images, labels in make_dataset(noise, **arguments):
        expected |= dict(zip(labels.tolist(), images, strict=True))
    found = 0
    for images, labels in load(make_dataset(noise, **arguments), workers):
        for image, label in zip(images, labels.tolist(), strict=True):
            same = image == expected[label]
            assert same if isinstance(same, bool) else same.all()
            found += 1
    assert found == SAMPLES


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_after_breaks_the_next_epoch_is_whole(root: Path, workers: int, persistent: bool) -> None:
    loader = load(make_dataset(root), workers, persistent_workers=persistent)
    epochs = [samples_of(load(make_dataset(root), workers))]
    for stop_at in (1, 3, 6):
        torch.manual_seed(0)
        taken = samples_of(itertools.islice(loader, stop_at))
        assert len(taken) == stop_at
        torch.manual_seed(0)
        epochs.append(samples_of(loader))
        assert sorted(flat(epochs[-1])) == list(range(SAMPLES))
    assert len({str(epoch) for epoch in epochs}) == 4
    del loader


def test_two_loaders_at_once_have_an_epoch_each(root: Path) -> None:
    dataset = make_dataset(root)
    torch.manual_seed(0)
    one = iter(load(dataset, 2))
    torch.manual_seed(0)
    two = iter(load(dataset, 2))
    pairs = list(zip(samples_of(one), samples_of(two), strict=True))
    for mine in zip(*pairs, strict=True):
        assert sorted(flat(list(mine))) == list(range(SAMPLES))
    assert [a for a, _ in pairs] != [b for _, b in pairs]


def test_the_epoch_is_set_for_workers_that_run(root: Path) -> None:
    dataset = make_dataset(root)
    loader = load(dataset, 2, persistent_workers=True)
    first, second = samples_of(loader), samples_of(loader)
    dataset.set_epoch(0)
    assert [samples_of(loader), samples_of(loader)] == [first, second]
    dataset.set_epoch(7)
    assert samples_of(loader) not in (first, second)
    del loader
    assert samples_of(dataset) == samples_of(at_epoch(root, 8)), "workers or none, one count"


def at_epoch(root: Path, epoch: int) -> PcrDataset:
    dataset = make_dataset(root)
    dataset.set_epoch(epoch)
    return dataset


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("end", ["wrap", "uneven"])
def test_ranks_and_workers_share_a_set(
    root: Path, monkeypatch: pytest.MonkeyPatch, workers: int, end: str
) -> None:
    found = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        dataset = make_dataset(root, end=end, batch_size=2)
        loader = load(dataset, workers, persistent_workers=workers > 0)
        batches = [samples_of(loader) for _ in range(2)]
        assert [len(epoch) for epoch in batches] == [len(loader)] * 2
        assert all({len(batch) for batch in epoch[:-1]} == {2} for epoch in batches)
        found.append([flat(epoch) for epoch in batches])
        del loader
    for epoch in range(2):
        samples = sum((rank[epoch] for rank in found), [])
        assert set(samples) == set(range(SAMPLES))
        assert len(samples) == (SAMPLES if end == "uneven" else 24)


@pytest.mark.parametrize("workers", [2, 3])
def test_fewer_batches_than_workers(tmp_path: Path, workers: int) -> None:
    root = write_records(tmp_path / "small", 3)
    loader = load(make_dataset(root, batch_size=3), workers, persistent_workers=True)
    for _ in range(3):
        (batch,) = samples_of(loader)
        assert sorted(batch) == [0, 1, 2]
    del loader


# -- threads and forks ---------------------------------------------------------------------------


def note_thread(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.array([os.getpid(), threading.get_native_id()])


@pytest.mark.parametrize("threads", [1, None])
def test_each_worker_decodes_in_threads_of_its_own(root: Path, threads: int | None) -> None:
    dataset = make_dataset(root, threads=threads, transform=note_thread)
    found = defaultdict(set)
    for notes, _ in itertools.chain(dataset, load(dataset, 2)):
        for pid, thread in notes.tolist():
            found[pid].add(thread)
    assert len(found) == 3
    assert os.getpid() in found
    for pid, idents in found.items():
        share = usable_cores() if pid == os.getpid() else max(1, usable_cores() // 2)
        assert len(idents) <= (threads or share)


def test_a_loader_forks_while_the_parent_iterates(root: Path) -> None:
    dataset = make_dataset(root, batch_size=1, threads=4)
    expected = samples_of(make_dataset(root, batch_size=1))
    iterator = iter(dataset)
    found = samples_of(itertools.islice(iterator, 3))
    assert [t for t in threading.enumerate() if t.name.startswith("tensorcom")]
    for persistent in (False, True):
        loader = load(dataset, 2, persistent_workers=persistent)
        for _ in range(2):
            assert sorted(flat(samples_of(loader))) == list(range(SAMPLES))
        del loader
        found += samples_of(itertools.islice(iterator, 3))
    assert found + samples_of(iterator) == expected
    assert not [t for t in threading.enumerate() if t.name.startswith("tensorcom")]


def report(dataset: PcrDataset, queue: Any) -> None:
    queue.put((samples_of(dataset), dataset.bytes_read))


def test_a_forked_process_iterates_for_itself(root: Path) -> None:
    dataset = make_dataset(root)
    epochs = [samples_of(dataset) for _ in range(3)]
    dataset.set_epoch(1)
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    iterator = iter(dataset)
    next(iterator)
    for _ in range(2):  # neither counts for the other, nor for the parent
        child = context.Process(target=report, args=(dataset, queue))
        child.start()
        assert queue.get() == (epochs[2], dataset.reader.group_bytes[-1])
        child.join()
        child.close()
    iterator.close()
    assert samples_of(dataset) == epochs[2]
    queue.close()


def test_workers_leave_nothing_open_in_the_parent(root: Path) -> None:
    dataset = make_dataset(root)
    loader = load(dataset, 2)
    list(loader)
    handles = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        list(loader)
        next(iter(loader))
    assert len(os.listdir("/proc/self/fd")) <= handles
    assert not torch.multiprocessing.active_children()
