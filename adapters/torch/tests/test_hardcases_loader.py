"""Hard cases of data loaders, each by its id."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from tensorcom import Connection
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset

LIMIT_S = 10  # of the cases; a wait that takes longer is an error, never a hang
WAIT_S = 60

many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # than CPUs


def batch(number: int) -> list[NDArray[Any]]:
    return [np.full((2, 3), number % 251, "u1"), np.full((2,), number, "i4")]


def counting() -> Iterator[list[NDArray[Any]]]:
    number = 0
    while True:
        yield batch(number)
        number += 1


def note_worker(labels: Any) -> Any:
    """Put the worker in place of the labels; the parent keeps them."""
    info = get_worker_info()
    return labels if info is None else labels * 0 + info.id


def load(dataset: TensorcomDataset, workers: int, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=None, num_workers=workers, **arguments)


def numbers(batches: Any) -> list[int]:
    return [int(labels[0]) for _, labels in batches]


def test_B01_workers_forked_after_the_parent_received_each_get_a_batch() -> None:
    with LoopbackServer(counting()) as server:
        dataset = TensorcomDataset(
            server.url, batch_transforms=[None, note_worker], timeout_s=LIMIT_S
        )
        assert numbers([next(iter(dataset))]) == [0]
        # The parent's socket stays open, and the children must not touch it.
        iterator = iter(load(dataset, 2, multiprocessing_context="fork"))
        seen: set[int] = set()
        while seen != {0, 1}:
            seen |= set(numbers([next(iterator)]))
        del iterator
        assert numbers([next(iter(dataset))]) == [1], "the parent's own socket goes on"
        dataset.close()


def shuffled_by_workers(seed: int | None) -> list[list[int]]:
    """Return the orders that two workers make of the same samples."""
    with ExitStack() as stack:
        # As each worker has a server of its own, what it shuffles is the same in each run.
        servers = [
            LoopbackServer([[np.arange(64, dtype="i4") + 100 * n]], scheme="zpub") for n in range(2)
        ]
        urls = [stack.enter_context(server).url for server in servers]
        dataset = TensorcomDataset(
            urls, rebatch=64, shuffle=64, seed=seed, shard=(0, 1), timeout_s=WAIT_S
        )
        orders = [values.tolist() for (values,) in load(dataset, 2)]
    return [[n % 100 for n in order] for order in sorted(orders, key=max)]


@pytest.mark.parametrize("seed", [None, 5])
def test_B20_each_worker_shuffles_by_a_seed_of_its_own_and_again_alike(seed: int | None) -> None:
    runs = []
    for torch_seed in (1, 1, 2):
        torch.manual_seed(torch_seed)
        runs.append(shuffled_by_workers(seed))
    one, two = runs[0]
    assert sorted(one) == sorted(two) == list(range(64))
    assert one != two
    assert runs[1] == runs[0]
    assert (runs[2] == runs[0]) == (seed is not None)


@many_workers
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_C01_workers_and_ranks_get_each_batch_once(scheme: str, workers: int, ranks: int) -> None:
    readers = ranks * max(workers, 1)
    with LoopbackServer([batch(n) for n in range(12)], scheme=scheme, readers=readers) as server:
        datasets = [
            TensorcomDataset(server.url, shard=(rank, ranks), timeout_s=WAIT_S)
            for rank in range(ranks)
        ]
        iterators = [iter(load(dataset, workers)) for dataset in datasets]
        with ThreadPoolExecutor(ranks) as threads:
            found = list(threads.map(numbers, iterators))
        for dataset in datasets:
            dataset.close()
    assert Counter(sum(found, [])) == Counter(range(12))


@many_workers
@pytest.mark.parametrize("rebatch", [None, 2])
@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_C02_workers_without_a_batch_end_quietly(scheme: str, rebatch: int | None) -> None:
    with LoopbackServer([batch(7)], scheme=scheme, readers=4) as server:
        dataset = TensorcomDataset(server.url, rebatch=rebatch, timeout_s=WAIT_S)
        assert numbers(load(dataset, 4)) == [7]


def test_C02_a_rank_without_a_batch_ends_quietly() -> None:
    with LoopbackServer([batch(n) for n in range(3)], scheme="zpub", readers=4) as server:
        datasets = [
            TensorcomDataset(server.url, shard=(rank, 4), timeout_s=WAIT_S) for rank in range(4)
        ]
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(numbers, datasets)) == [[0], [1], [2], []]
        for dataset in datasets:
            dataset.close()


@many_workers
@pytest.mark.parametrize("workers", range(5))
def test_C03_len_is_the_number_of_batches(workers: int) -> None:
    with LoopbackServer(counting()) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        for length, rebatch in [(0, None), (1, None), (4, None), (10, None), (3, 3)]:
            dataset = TensorcomDataset(server.url, length=length, rebatch=rebatch, timeout_s=WAIT_S)
            loader = load(dataset, workers)
            assert len(loader) == len(dataset) == length
            assert len(numbers(loader)) == length
            dataset.close()


C04_JOB = """
import sys
import torch
from torch import distributed, multiprocessing
from torch.utils.data import DataLoader
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset

def rank_steps(rank, url, directory):
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=2
    )
    dataset = TensorcomDataset(url, length=10, timeout_s=20)
    steps = 0
    for images in DataLoader(dataset, batch_size=None, num_workers=1):
        distributed.all_reduce(images[0].float())
        steps += 1
    total = torch.tensor([steps])
    distributed.all_reduce(total)
    print(f"{steps} of {int(total)}\\n", end="", flush=True)
    distributed.destroy_process_group()

def endless():
    while True:
        yield [torch.ones(3, 4)]

if __name__ == "__main__":
    scheme, directory = sys.argv[1:]
    # A publisher's 21 batches are 11 and 10; what ranks pull is as it comes, so it has to go on.
    batches = [[torch.ones(3, 4)]] * 21 if scheme == "zpub" else endless()
    with LoopbackServer(batches, scheme=scheme, readers=2) as server:
        multiprocessing.start_processes(
            rank_steps, (server.url, directory), nprocs=2, start_method="fork"
        )
"""


@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_C04_ranks_with_a_length_end_at_the_same_step(tmp_path: Path, scheme: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(C04_JOB)
    done = subprocess.run(
        [sys.executable, str(script), scheme, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["10 of 20"] * 2


def test_C05_data_sets_are_loaded_by_spawned_workers_even_after_use() -> None:
    with LoopbackServer(counting()) as server:
        dataset = TensorcomDataset(server.url, length=6, timeout_s=WAIT_S)
        with closing(dataset):
            assert numbers([next(iter(dataset))]) == [0]
            found = numbers(load(dataset, 2, multiprocessing_context="spawn"))
    assert len(set(found)) == 6
    assert 0 not in found


def test_C05_connections_pickle_and_live_sockets_refuse() -> None:
    with Connection("zrpull://127.0.0.1:1", epoch=3, timeout_s=1, converters="torch") as connection:
        copy = pickle.loads(pickle.dumps(connection))
        assert (copy.urls, len(copy)) == (["zrpull://127.0.0.1:1"], 3)
        copy.close()
        with pytest.raises(TypeError, match=r"sockets cannot be pickled .*pickle the Connection"):
            pickle.dumps(connection._transport)


def one_batch(arguments: dict[str, Any], workers: int = 0) -> Any:
    sent = [np.ones((2, 3), "u1"), np.arange(2, dtype="i4"), np.array([b"one", b"two"])]
    with LoopbackServer([sent]) as server:
        dataset = TensorcomDataset(server.url, timeout_s=WAIT_S)
        with closing(dataset):
            (found,) = list(load(dataset, workers, **arguments))
    return found


def check_types(found: Any) -> None:
    assert type(found) is list
    assert [type(value) for value in found] == [torch.Tensor, torch.Tensor, np.ndarray]
    assert found[1].tolist() == [0, 1]
    assert found[2].tolist() == [b"one", b"two"]


def test_C06_the_pin_hook_keeps_list_and_items(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Any] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor.clone()  # as pinning does, in memory of another kind

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    found = one_batch({})
    check_types(pin_memory(found))
    assert all(mine is theirs for mine, theirs in zip(pinned, found[:2], strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_C06_a_loader_that_pins_yields_the_same_types(workers: int) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pin_memory.* no accelerator")  # here there is none
        check_types(one_batch({"pin_memory": True}, workers))
