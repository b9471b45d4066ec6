"""Resuming a PcrDataset in loaders: StatefulDataLoader, and states for other workers and ranks."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from record_helpers import SAMPLES, error_of, flat, load, make_dataset, samples_of, write_records
from torchdata.stateful_dataloader import StatefulDataLoader

from tensorcom.errors import PcrError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than CPUs
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated"),  # what torchdata calls
]

BATCHES = 6
# Workers, and whether they persist.
LOADERS = [(0, False), (1, False), (1, True), (2, False), (2, True)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "gray")


def stateful(root: Path, workers: int, persistent: bool = False, **options: Any) -> Any:
    return StatefulDataLoader(
        make_dataset(root),
        batch_size=None,
        num_workers=workers,
        persistent_workers=persistent,
        **options,
    )


def stored(state: Any) -> Any:
    return pickle.loads(pickle.dumps(state))


def epochs_of(root: Path, workers: int, count: int) -> list[list[list[int]]]:
    loader = load(make_dataset(root), workers, persistent_workers=workers > 0)
    return [samples_of(loader) for _ in range(count)]


# -- StatefulDataLoader --------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "persistent"), LOADERS)
def test_a_state_of_each_batch_gives_the_rest_and_then_whole_epochs(
    root: Path, workers: int, persistent: bool
) -> None:
    first, second, third = epochs_of(root, workers, 3)
    for taken in range(BATCHES + 1):
        loader = stateful(root, workers, persistent)
        assert samples_of(itertools.islice(loader, taken)) == first[:taken]
        state = stored(loader.state_dict())
        again = stateful(root, workers, persistent)
        again.load_state_dict(state)
        rest = [samples_of(again) for _ in range(3)]
        assert rest == [first[taken:], second, third], f"after {taken} batches"
        del loader, again


@pytest.mark.parametrize(("workers", "persistent"), LOADERS)
def test_a_state_of_an_epochs_end_gives_the_next(
    root: Path, workers: int, persistent: bool
) -> None:
    epochs = epochs_of(root, workers, 4)
    for ended in range(2):
        loader = stateful(root, workers, persistent)
        for epoch in epochs[: ended + 1]:
            assert samples_of(loader) == epoch
        again = stateful(root, workers, persistent)
        again.load_state_dict(stored(loader.state_dict()))
        assert samples_of(again) == epochs[ended + 1]
        again.load_state_dict(stored(again.state_dict()))
        assert samples_of(again) == epochs[ended + 2]
        del loader, again


@pytest.mark.parametrize(("workers", "persistent"), LOADERS)
def test_a_job_that_is_resumed_again_and_again(root: Path, workers: int, persistent: bool) -> None:
    epochs = epochs_of(root, workers, 3)
    found: list[list[int]] = []
    state: Any = {}
    for taken in (2, 0, 3, 1):
        loader = stateful(root, workers, persistent)
        loader.load_state_dict(state)
        found += samples_of(itertools.islice(loader, taken))
        state = stored(loader.state_dict())
        del loader
    assert found == epochs[0]
    loader = stateful(root, workers, persistent, snapshot_every_n_steps=3)
    loader.load_state_dict(state)
    assert samples_of(loader) == []
    assert samples_of(itertools.islice(loader, 4)) == epochs[1][:4]
    again = stateful(root, workers, persistent, snapshot_every_n_steps=3)
    again.load_state_dict(stored(loader.state_dict()))
    assert [samples_of(again), samples_of(again)] == [epochs[1][4:], epochs[2]]
    del loader, again


RESUME = """
import pickle
import sys

from record_helpers import samples_of
from test_records_state import stateful

if __name__ == "__main__":
    root, method = sys.argv[1:]
    loader = stateful(root, 2, persistent=True, multiprocessing_context=method)
    loader.load_state_dict(pickle.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(pickle.dumps([samples_of(loader), samples_of(loader)]))
"""


def test_a_state_is_resumed_in_another_process_by_spawned_workers(
    root: Path, tmp_path: Path
) -> None:
    first, second = epochs_of(root, 2, 2)
    loader = stateful(root, 2)
    assert samples_of(itertools.islice(loader, 3)) == first[:3]
    script = tmp_path / "resume.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{RESUME}")
    state = pickle.dumps(loader.state_dict())
    done = subprocess.run(
        [sys.executable, str(script), str(root), "spawn"],
        input=state,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert pickle.loads(done.stdout) == [first[3:], second]
    del loader


def test_the_state_of_a_worker_is_for_that_worker_only(root: Path) -> None:
    loader = stateful(root, 2)
    samples_of(itertools.islice(loader, 3))
    again = stateful(root, 1)
    again.load_state_dict(stored(loader.state_dict()))
    error = error_of(again)
    assert type(error) is ValueError
    assert "state is that of worker 0 of 2" in str(error)
    assert "state_after(batches)" in str(error)
    del loader, again


# -- other workers and ranks ---------------------------------------------------------------------


@pytest.mark.parametrize("before", [(1, 0), (1, 2), (2, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("after", [(1, 0), (1, 3), (2, 1), (2, 2)], ids=str)
def test_other_ranks_and_workers_get_the_rest_once(
    root: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    found: list[int] = []
    states = []
    for rank in range(before[0]):
        dataset = make_dataset(root, end="uneven", batch_size=3, shard=(rank, before[0]))
        loader = load(dataset, before[1])
        found += flat(samples_of(itertools.islice(loader, 2)))
        states.append(dataset.state_after(2, epoch=0, num_workers=before[1]))
        del loader
    assert len({json.dumps(state) for state in states}) == 1, "ranks agree on the state"
    nexts: list[int] = []
    for rank in range(after[0]):
        dataset = make_dataset(root, end="uneven", batch_size=3, shard=(rank, after[0]))
        dataset.load_state_dict(json.loads(json.dumps(states[0])))
        loader = load(dataset, after[1], persistent_workers=after[1] > 0)
        found += flat(samples_of(loader))
        nexts += flat(samples_of(loader))
        del loader
    assert sorted(found) == sorted(nexts) == list(range(SAMPLES))
    assert found != nexts


@pytest.mark.parametrize(("workers", "persistent"), LOADERS)
def test_the_same_workers_go_on_in_order(root: Path, workers: int, persistent: bool) -> None:
    epochs = epochs_of(root, workers, 3)
    for taken in (1, 2, 5):
        dataset = make_dataset(root)
        dataset.load_state_dict(dataset.state_after(taken, epoch=1, num_workers=workers))
        dataset.set_epoch(1)  # as training loops do
        loader = load(dataset, workers, persistent_workers=persistent)
        assert [samples_of(loader), samples_of(loader)] == [epochs[1][taken:], epochs[2]]
        del loader


def test_a_resumed_epoch_is_saved_again(root: Path) -> None:
    found: list[int] = []
    state = make_dataset(root).state_dict()
    for workers, taken in ((2, 2), (3, 2), (1, 1), (0, 1)):
        dataset = make_dataset(root)
        dataset.load_state_dict(state)
        loader = load(dataset, workers)
        found += flat(samples_of(itertools.islice(loader, taken)))
        state = dataset.state_after(taken, epoch=0, num_workers=workers)
        del loader
    assert len(found) == len(set(found)) >= 20
    dataset.load_state_dict(state)
    assert sorted(found + flat(samples_of(load(dataset, 2)))) == list(range(SAMPLES))


# -- where a state cannot be had -----------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_the_parent_does_not_know_how_far_workers_are(root: Path, persistent: bool) -> None:
    dataset = make_dataset(root)
    assert dataset.state_dict()["epoch"] == 0
    loader = load(dataset, 2, persistent_workers=persistent)
    samples_of(itertools.islice(loader, 3))
    with pytest.raises(PcrError, match=r"StatefulDataLoader, or state_after\(batches, epoch="):
        dataset.state_dict()
    dataset.set_epoch(4)
    assert dataset.state_dict()["epoch"] == 4
    del loader
    samples_of(dataset)
    assert dataset.state_dict()["epoch"] == 5


def test_a_state_that_running_workers_cannot_see_is_an_error(root: Path) -> None:
    dataset = make_dataset(root)
    state = dataset.state_after(2, epoch=0, num_workers=2)
    loader = load(dataset, 2, persistent_workers=True)
    epochs = [samples_of(loader), samples_of(loader)]
    dataset.load_state_dict(state)
    for _ in range(2):
        error = error_of(loader)
        assert type(error) is PcrError
        assert "a state was loaded while loader workers run" in str(error)
    fresh = load(dataset, 2, persistent_workers=True)
    assert [samples_of(fresh), samples_of(fresh)] == [epochs[0][2:], epochs[1]]
    dataset.load_state_dict(state)
    dataset.set_epoch(1)
    assert samples_of(fresh) == epochs[1], "an epoch that is set takes the state's place"
    del loader, fresh


def test_a_state_that_workers_began_with_is_over_in_the_parent(root: Path) -> None:
    dataset = make_dataset(root)
    state = dataset.state_after(2, epoch=0)
    dataset.load_state_dict(state)
    rest = samples_of(load(dataset, 1))
    assert sorted(flat(rest)) == sorted(flat(samples_of(make_dataset(root))[2:]))
    one = make_dataset(root)
    one.set_epoch(1)
    assert samples_of(dataset) == samples_of(one)


def test_a_loaders_state_comes_before_the_data_sets(root: Path) -> None:
    first, second, third = epochs_of(root, 2, 3)
    loader = stateful(root, 2)
    samples_of(itertools.islice(loader, 4))
    dataset = make_dataset(root)
    dataset.load_state_dict(dataset.state_after(1, epoch=0))
    again = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    again.load_state_dict(stored(loader.state_dict()))
    assert [samples_of(again) for _ in range(3)] == [first[4:], second, third]
    del loader, again
