"""PcrDataset in one process: epochs, threads and files, copies, states."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from record_helpers import SAMPLES, flat, gray_jpeg, make_dataset, samples_of, write_records

from tensorcom_torch import PcrDataset


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "gray")


def open_files(root: Path) -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(str(root)):
            found.append(target)
    return found


def own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tensorcom")]


# -- epochs --------------------------------------------------------------------------------------


def test_each_iteration_is_an_epoch_of_its_own_order(root: Path) -> None:
    dataset = make_dataset(root)
    epochs = [samples_of(dataset) for _ in range(3)]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 4, 4, 4, 3]
    assert all(sorted(flat(epoch)) == list(range(SAMPLES)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    dataset.set_epoch(1)
    assert [samples_of(dataset), samples_of(dataset)] == epochs[1:]
    with pytest.raises(ValueError, match="epoch=-1"):
        dataset.set_epoch(-1)


def test_after_a_break_comes_the_next_epoch(root: Path) -> None:
    first = samples_of(make_dataset(root))
    dataset = make_dataset(root)
    iterator = iter(dataset)
    assert samples_of([next(iterator)]) == first[:1]
    other = make_dataset(root)
    other.set_epoch(1)
    assert samples_of(dataset) == samples_of(other)
    iterator.close()


def test_an_iteration_that_yields_nothing_is_no_epoch(root: Path) -> None:
    expected = samples_of(make_dataset(root))
    dataset = make_dataset(root)
    iter(dataset)
    iter(dataset)
    assert samples_of(dataset) == expected


def test_a_break_ends_all_threads_and_closing_all_files(tmp_path: Path) -> None:
    root = write_records(tmp_path / "set")
    dataset = make_dataset(root)
    for _ in dataset:
        assert own_threads()
        break
    assert own_threads() == []
    dataset.close()
    assert [Path(name).name for name in open_files(root)] == ["PCR_samples.ten"], "it is mapped"
    assert len(samples_of(dataset)) == 6, "iterating opens the others again"
    del dataset, _
    gc.collect()
    assert open_files(root) == []


def test_closing_ends_an_iteration(root: Path) -> None:
    dataset = make_dataset(root)
    iterator = iter(dataset)
    next(iterator)
    dataset.close()
    assert own_threads() == []
    assert list(iterator) == []


# -- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))]
)
def test_a_copy_goes_on_by_itself(root: Path, duplicate: Any) -> None:
    dataset = make_dataset(root, scan_groups=4)
    epochs = [samples_of(dataset) for _ in range(3)]
    dataset.set_epoch(1)
    iterator = iter(dataset)
    next(iterator)
    copied = duplicate(dataset)
    assert samples_of(copied) == epochs[2], "a copy of one that iterates begins the next epoch"
    copied.scan_groups = 2
    assert (dataset.scan_groups, copied.scan_groups) == (4, 2)
    assert samples_of(iterator) == epochs[1][1:]
    state = dataset.state_after(2, epoch=1)
    dataset.load_state_dict(state)
    again = [duplicate(dataset), dataset]
    assert [samples_of(one) for one in again] == [epochs[1][2:]] * 2
    assert samples_of(duplicate(dataset)) == epochs[2], "the state has begun"
    assert copied._groups.is_shared(), "workers see what is set"


# -- states --------------------------------------------------------------------------------------


def steps(dataset: PcrDataset, count: int) -> Iterator[Any]:
    iterator = iter(dataset)
    for _ in range(count):
        yield next(iterator)


@pytest.mark.parametrize("taken", range(7))
def test_a_state_gives_the_rest_once_and_then_whole_epochs(root: Path, taken: int) -> None:
    dataset = make_dataset(root)
    epochs = [samples_of(dataset) for _ in range(4)]
    dataset.set_epoch(1)
    iterator = iter(dataset)
    found = [samples_of([next(iterator)])[0] for _ in range(taken)]
    assert found == epochs[1][:taken]
    states = [json.loads(json.dumps(dataset.state_dict()))]
    states.append(json.loads(json.dumps(dataset.state_after(taken, epoch=1))))
    assert states[0] == states[1]
    for state in states:
        assert state["epoch"] == 1
        other = make_dataset(root)
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert samples_of(other) == epochs[1][taken:]
        assert samples_of(other) == epochs[2]
    assert samples_of(iterator) == epochs[1][taken:]
    ended = dataset.state_dict()
    assert ended["epoch"] == 2
    dataset.load_state_dict(ended)
    assert [samples_of(dataset), samples_of(dataset)] == epochs[2:]


def test_setting_the_epoch_of_a_state_that_waits_keeps_it(root: Path) -> None:
    dataset = make_dataset(root)
    epoch = samples_of(dataset)
    dataset.load_state_dict(dataset.state_after(2, epoch=0))
    dataset.set_epoch(0)
    assert samples_of(dataset) == epoch[2:]
    dataset.set_epoch(0)
    assert samples_of(dataset) == epoch, "it has begun before"
    dataset.load_state_dict(dataset.state_after(2, epoch=0))
    dataset.set_epoch(1)
    dataset.set_epoch(0)
    assert samples_of(dataset) == epoch, "another epoch was set since"


def test_a_state_says_which_epoch_was_set(root: Path) -> None:
    dataset = make_dataset(root)
    dataset.set_epoch(5)
    assert dataset.state_dict()["epoch"] == 5
    list(dataset)
    assert dataset.state_dict()["epoch"] == 6


def test_states_of_a_resumed_epoch_count_from_its_state(root: Path) -> None:
    found: list[int] = []
    state = make_dataset(root).state_dict()
    for size, taken in ((4, 2), (3, 1), (5, 1)):
        dataset = make_dataset(root, batch_size=size)
        dataset.load_state_dict(state)
        found += flat(samples_of(steps(dataset, taken)))
        state = dataset.state_after(taken, epoch=0)
        assert state == dataset.state_dict()
    dataset.load_state_dict(state)
    assert sorted(found + flat(samples_of(dataset))) == list(range(SAMPLES))
    assert sorted(flat(samples_of(dataset))) == list(range(SAMPLES))
    assert dataset.state_after(1, epoch=1)["done"][0][-1] == 1, "the next epoch has no state"


def test_the_seed_is_that_of_the_state(root: Path) -> None:
    dataset = make_dataset(root, seed=3)
    epochs = [samples_of(dataset) for _ in range(2)]
    other = make_dataset(root, seed=4)
    other.load_state_dict(dataset.state_after(2, epoch=0))
    assert [samples_of(other), samples_of(other)] == [epochs[0][2:], epochs[1]]
    assert other.state_after(1, epoch=1)["seed"] == 3


@pytest.mark.parametrize("state", [{}, {"version": 99}, None])
def test_what_is_no_state_is_an_error_and_changes_nothing(root: Path, state: Any) -> None:
    dataset = make_dataset(root)
    with pytest.raises((ValueError, TypeError)):
        dataset.load_state_dict(state)
    assert sorted(flat(samples_of(dataset))) == list(range(SAMPLES))


def test_a_state_of_another_set_is_an_error(root: Path, tmp_path: Path) -> None:
    other = make_dataset(write_records(tmp_path / "other", 7, gray_jpeg))
    with pytest.raises(ValueError, match="samples=7, but it is 23 here"):
        make_dataset(root).load_state_dict(other.state_dict())
