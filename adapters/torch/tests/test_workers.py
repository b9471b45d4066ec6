"""Which part of a job a data set takes, in each process that it gets to."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from record_helpers import SAMPLES, flat, load, make_dataset, samples_of, write_records
from stream_helpers import SAMPLES as SAMPLES_EACH
from stream_helpers import WAIT_S, counting, ids
from torch import distributed

from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset, workers
from tensorcom_torch.workers import Shard


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture
def set_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Make this process a rank of torch.distributed."""

    def set_one(rank: int, ranks: int) -> None:
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(distributed, "get_world_size", lambda: ranks)

    return set_one


def copy_of(shard: Shard) -> Shard:
    return pickle.loads(pickle.dumps(shard))


def be_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    info = SimpleNamespace(id=0, num_workers=1, seed=0)
    monkeypatch.setattr(workers, "get_worker_info", lambda: info)


def test_what_is_given_comes_first(monkeypatch: pytest.MonkeyPatch, set_rank: Any) -> None:
    set_rank(2, 3)
    given = copy_of(Shard((0, 2)))
    assert given.current() == (0, 2)
    be_worker(monkeypatch)
    assert given.current() == (0, 2)


def test_without_a_job_it_is_the_whole() -> None:
    assert Shard(None).current() == copy_of(Shard(None)).current() == (0, 1)


def test_a_rank_that_got_a_copy_takes_its_own_part(
    monkeypatch: pytest.MonkeyPatch, set_rank: Any
) -> None:
    """As ranks do that torch.multiprocessing.spawn started from a process with these variables."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    shard = copy_of(Shard(None))
    assert shard.current() == (0, 1)
    set_rank(1, 2)
    assert shard.current() == (1, 2)


def test_a_spawned_worker_takes_the_part_of_its_rank(
    monkeypatch: pytest.MonkeyPatch, set_rank: Any
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    shard = copy_of(Shard(None))  # in the rank
    set_rank(1, 2)
    pickled = pickle.dumps(shard)
    monkeypatch.setattr(distributed, "is_initialized", lambda: False)
    be_worker(monkeypatch)
    assert pickle.loads(pickled).current() == (1, 2)


def test_a_forked_worker_takes_the_part_of_its_rank(
    monkeypatch: pytest.MonkeyPatch, set_rank: Any
) -> None:
    shard = copy_of(Shard(None))  # in the rank
    set_rank(1, 2)
    be_worker(monkeypatch)
    pid = os.getpid()
    monkeypatch.setattr(workers.os, "getpid", lambda: pid + 1)
    assert shard.current() == (1, 2)


def test_a_stream_follows_a_rank_that_comes_between_iterations(set_rank: Any) -> None:
    with LoopbackServer(counting(), scheme="zpub") as server:
        dataset = TensorcomDataset(server.url, length=4, timeout_s=WAIT_S)
        found = []
        for rank in range(2):
            found.append({sample // SAMPLES_EACH % 2 for sample in ids(dataset)})
            set_rank(rank, 2)
            found.append({sample // SAMPLES_EACH % 2 for sample in ids(dataset)})
        dataset.close()
    assert found == [{0, 1}, {0}, {0}, {1}]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_ranks_that_got_a_copy_share_a_set(
    tmp_path: Path, start: str, set_rank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "set")
    copies = [pickle.loads(pickle.dumps(make_dataset(tmp_path / "set"))) for _ in range(2)]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    found = []
    for rank, dataset in enumerate(copies):
        set_rank(rank, 2)
        found += flat(samples_of(load(dataset, 1, multiprocessing_context=start)))
    assert set(found) == set(range(SAMPLES))
    assert len(found) == SAMPLES + 1
