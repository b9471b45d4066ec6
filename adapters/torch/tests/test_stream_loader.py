"""TensorcomDataset in a DataLoader: start methods, sharing, epochs, ends, dead workers."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from tensorcom import Connection, MessageError, ReceiveTimeoutError, ZmqUrlError
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset, stream

WAIT_S = 60
# (start method, workers, persistent)
STARTS = [
    ("fork", 1, False),
    ("fork", 1, True),
    ("fork", 2, False),
    ("fork", 2, True),
    ("spawn", 2, False),
    ("spawn", 2, True),
    ("forkserver", 1, True),
    ("forkserver", 2, False),
]
FORKS = [start for start in STARTS if start[0] == "fork"]


def batch(number: int) -> list[NDArray[Any]]:
    return [np.full((2, 3), number % 251, "u1"), np.full((2,), number, "i4")]


def counting() -> Iterator[list[NDArray[Any]]]:
    number = 0
    while True:
        yield batch(number)
        number += 1


def numbers(batches: Any) -> list[int]:
    """Return the number of each batch, having checked its arrays."""
    found = []
    for values in batches:
        assert type(values) is list
        images, labels = values
        assert (images == int(labels[0]) % 251).all()
        found.append(int(labels[0]))
    return found


def note_worker(labels: Any) -> Any:
    """Add to the labels which worker received them."""
    return labels + 1000 * get_worker_info().id


def load(dataset: TensorcomDataset, workers: int, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=None, num_workers=workers, **arguments)


def load_as(dataset: TensorcomDataset, start: tuple[str, int, bool]) -> DataLoader[Any]:
    method, workers, persistent = start
    return load(dataset, workers, multiprocessing_context=method, persistent_workers=persistent)


# -- start methods and epochs --------------------------------------------------------------------


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_each_epoch_has_its_length_though_seeded_alike_and_no_message_comes_twice(
    start: tuple[str, int, bool],
) -> None:
    epochs = 2 if start[0] != "fork" and not start[2] else 3
    with LoopbackServer(counting()) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = load_as(TensorcomDataset(server.url, length=9, timeout_s=WAIT_S), start)
        assert len(loader) == 9
        found = []
        for _ in range(epochs):
            torch.manual_seed(0)
            found.append(numbers(loader))
        del loader
    assert [len(epoch) for epoch in found] == [9] * epochs
    assert max(Counter(sum(found, [])).values()) == 1
    if start[1:] == (1, True):
        assert sum(found, []) == list(range(9 * epochs)), "one worker that stays misses nothing"


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_without_length_each_message_comes_once(scheme: str, workers: int) -> None:
    with LoopbackServer(
        [batch(n) for n in range(20)], scheme=scheme, readers=max(workers, 1)
    ) as server:
        dataset = TensorcomDataset(server.url, timeout_s=WAIT_S)
        with closing(dataset):
            assert sorted(numbers(load(dataset, workers))) == list(range(20))


@pytest.mark.parametrize("start", FORKS, ids=str)
def test_after_a_break_the_next_epoch_is_whole(start: tuple[str, int, bool]) -> None:
    with LoopbackServer(counting()) as server:
        loader = load_as(TensorcomDataset(server.url, length=12, timeout_s=WAIT_S), start)
        found = []
        for stop_at in (1, 5, 12):
            torch.manual_seed(0)
            epoch: list[int] = []
            for values in loader:
                epoch += numbers([values])
                if len(epoch) == stop_at:
                    break
            found.append(epoch)
        last = numbers(loader)
        del loader
    assert len(last) == 12
    assert max(Counter(sum(found, last)).values()) == 1


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)], ids=["same-seed", "other-seed"])
@pytest.mark.parametrize("workers", [1, 2])
def test_two_loaders_at_once_each_have_their_length(workers: int, seeds: Any) -> None:
    with LoopbackServer(counting()) as server:
        dataset = TensorcomDataset(server.url, length=8, timeout_s=WAIT_S)
        iterators = []
        for seed in seeds:
            torch.manual_seed(seed)
            iterators.append(iter(load(dataset, workers)))
        found: list[list[int]] = [[], []]
        for _ in range(9):
            for mine, iterator in zip(found, iterators, strict=True):
                mine += numbers([values for values in [next(iterator, None)] if values])
        del iterators, iterator
    assert [len(mine) for mine in found] == [8, 8]
    assert max(Counter(sum(found, [])).values()) == 1


def test_persistent_workers_go_to_the_end_of_sources_that_end_in_different_epochs() -> None:
    with (
        LoopbackServer([batch(n) for n in range(3)], scheme="zpub") as one,
        LoopbackServer([batch(n) for n in range(3, 14)], scheme="zpub") as two,
    ):
        dataset = TensorcomDataset([one.url, two.url], length=6, timeout_s=10)
        loader = load(dataset, 1, persistent_workers=True, prefetch_factor=1)
        found = [numbers(loader) for _ in range(3)]
        del loader
    assert [len(epoch) for epoch in found] == [6, 6, 2]
    assert sorted(sum(found, [])) == list(range(14))


# -- sharing publishers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "workers"), [(2, 2), (4, 2), (3, 2), (2, 1)], ids=lambda n: str(n)
)
def test_publishers_are_dealt_out_to_workers(servers: int, workers: int) -> None:
    with ExitStack() as stack:
        ports = []
        for server in range(servers):
            batches = [batch(100 * server + n) for n in range(4 + 3 * server)]
            running = stack.enter_context(LoopbackServer(batches, scheme="zpub"))
            ports.append(running.url.rpartition(":")[2])
        url = f"zsub://127.0.0.1:{{{','.join(ports)}}}"
        dataset = TensorcomDataset(url, batch_transforms=[None, note_worker], timeout_s=WAIT_S)
        found = [int(labels[0]) for _, labels in load(dataset, workers)]
    expected = [
        1000 * (server % workers) + 100 * server + n
        for server in range(servers)
        for n in range(4 + 3 * server)
    ]
    assert sorted(found) == sorted(expected)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than CPUs
@pytest.mark.parametrize(("servers", "workers"), [(1, 2), (1, 3), (2, 3)])
def test_fewer_publishers_than_workers_are_split_by_number(servers: int, workers: int) -> None:
    with ExitStack() as stack:
        urls = []
        for server in range(servers):
            batches = [batch(100 * server + n) for n in range(7)]
            running = LoopbackServer(batches, scheme="zpub", readers=workers)
            urls.append(stack.enter_context(running).url)
        dataset = TensorcomDataset(urls, batch_transforms=[None, note_worker], timeout_s=WAIT_S)
        found = [int(labels[0]) for _, labels in load(dataset, workers)]
    expected = [
        1000 * (n % workers) + 100 * server + n for server in range(servers) for n in range(7)
    ]
    assert sorted(found) == sorted(expected)


def test_length_over_a_split_publisher_counts_all_workers() -> None:
    with LoopbackServer([batch(n) for n in range(40)], scheme="zpub", readers=2) as server:
        loader = load(TensorcomDataset(server.url, length=15, timeout_s=WAIT_S), 2)
        found = numbers(loader)
    assert len(found) == len(set(found)) == 15


def test_a_publisher_without_numbers_cannot_be_split() -> None:
    with LoopbackServer(counting(), scheme="zpub", readers=2, send_meta=False) as server:
        loader = load(TensorcomDataset(server.url, timeout_s=WAIT_S), 2)
        with pytest.raises(MessageError, match="several readers cannot split this publisher"):
            list(loader)


# -- errors --------------------------------------------------------------------------------------


def test_a_binding_url_with_two_workers_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(ZmqUrlError, match=r"\(zrpush\) and read with zrpull") as caught:
        list(load(TensorcomDataset("zpull://127.0.0.1:0"), 2))
    assert "zpull://127.0.0.1:0" in str(caught.value)


def test_workers_that_last_say_each_time_what_is_wrong() -> None:
    loader = load(TensorcomDataset("zpull://127.0.0.1:0"), 2, persistent_workers=True)
    for _ in range(2):
        with pytest.raises(ZmqUrlError, match=r"\(zrpush\) and read with zrpull"):
            list(loader)


def test_a_binding_subscriber_has_another_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    info = SimpleNamespace(id=1, num_workers=2, seed=1)
    monkeypatch.setattr(stream, "get_worker_info", lambda: info)
    urls = ["zsub://127.0.0.1:1", "zrsub://127.0.0.1:0"]
    with pytest.raises(ZmqUrlError, match=r"\(zpub\) and read with zsub") as caught:
        next(iter(TensorcomDataset(urls)))
    assert caught.value.url == urls[1]


def test_a_binding_url_with_one_worker_works(tmp_path: Any) -> None:
    address = f"ipc://{tmp_path}/socket"
    dataset = TensorcomDataset(f"zpull+{address}", length=3, timeout_s=WAIT_S)
    with Connection(f"zpush+{address}") as server:
        for number in range(4):
            server.send(batch(number))
        assert numbers(load(dataset, 1)) == [0, 1, 2]
        server.close(flush=False)


def test_a_timeout_arrives_with_its_class_and_text() -> None:
    with LoopbackServer([]) as server:
        url = server.url
    with pytest.raises(ReceiveTimeoutError, match="is the server running") as caught:
        list(load(TensorcomDataset(url, timeout_s=0.2), 1))
    assert url in str(caught.value)


KILL = """
import os
import signal
import sys
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader

from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset

directory, persistent = Path(sys.argv[1]), sys.argv[2] == "True"


def note_pid(worker):
    (directory / f"{worker}.new").write_text(str(os.getpid()))
    (directory / f"{worker}.new").rename(directory / f"{worker}")


def endless():
    while True:
        yield [np.zeros((2, 3), "u1")]


def load(dataset, workers):
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        worker_init_fn=note_pid,
        persistent_workers=persistent,
    )


with LoopbackServer(endless()) as server:
    dataset = TensorcomDataset(server.url, length=10**9, timeout_s=60)
    iterator = iter(load(dataset, 2))
    while not (directory / "1").exists():
        next(iterator)
    try:  # torch notices in one of several ways, at any moment
        os.kill(int((directory / "1").read_text()), signal.SIGKILL)
        for batch in iterator:
            pass
    except Exception:
        print("error")
    del iterator
    again = iter(load(dataset, 2))
    print(sum(len(next(again)) for _ in range(5)))
    del again
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_an_error_and_the_data_set_can_be_loaded_again(
    tmp_path: Path, persistent: bool
) -> None:
    script = tmp_path / "kill.py"  # torch raises from a signal handler: not among our tests
    script.write_text(KILL)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(persistent)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.splitlines() == ["error", "5"], done.stderr
    assert done.returncode == 0


# -- what is yielded -----------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [0, 6])
@pytest.mark.parametrize("start", FORKS, ids=str)
def test_rebatched_epochs_have_their_length(start: tuple[str, int, bool], shuffle: int) -> None:
    with LoopbackServer(counting()) as server:
        dataset = TensorcomDataset(
            server.url, length=7, rebatch=3, shuffle=shuffle, timeout_s=WAIT_S
        )
        loader = load_as(dataset, start)
        epochs = []
        for _ in range(2):
            torch.manual_seed(0)
            epochs.append([labels for _, labels in loader])
        del loader
    assert [[len(labels) for labels in epoch] for epoch in epochs] == [[3] * 7] * 2
    samples = Counter(torch.cat(sum(epochs, [])).tolist())
    assert max(samples.values()) <= 2, "a message has two samples of its number"


def test_rebatched_workers_yield_every_sample_of_a_stream_that_ends() -> None:
    with LoopbackServer([batch(n) for n in range(11)], readers=2) as server:
        loader = load(TensorcomDataset(server.url, rebatch=4, shuffle=5, timeout_s=WAIT_S), 2)
        found = torch.cat([labels for _, labels in loader])
    assert Counter(found.tolist()) == dict.fromkeys(range(11), 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_are_writable_and_dtypes_stay(workers: int) -> None:
    sent = [np.ones((2, 3), "f2"), np.ones(2, "u2"), np.array([b"one", b"two"])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with LoopbackServer([sent] * 4, readers=max(workers, 1)) as server:
            dataset = TensorcomDataset(server.url, timeout_s=WAIT_S)
            with closing(dataset):
                found = list(load(dataset, workers))
        for half, short, text in found:
            assert [half.dtype, short.dtype, text.dtype] == [torch.float16, torch.uint16, "S3"]
            assert half.add_(1).unique().tolist() == [2]
            short.fill_(0)
            assert text.tolist() == [b"one", b"two"]
    assert len(found) == 4


def test_bfloat16_crosses_processes() -> None:
    with LoopbackServer([[torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)]]) as server:
        ((values,),) = list(load(TensorcomDataset(server.url, timeout_s=WAIT_S), 1))
    assert values.dtype == torch.bfloat16
    assert values.tolist() == [[1.5, -2.0]]


# -- StatefulDataLoader --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_iterates(workers: int) -> None:
    with LoopbackServer(counting()) as server:
        dataset = TensorcomDataset(server.url, length=6, timeout_s=WAIT_S)
        loader = StatefulDataLoader(dataset, batch_size=None, num_workers=workers)
        found = []
        for _ in range(2):
            torch.manual_seed(0)
            found.append(numbers(loader))
        del loader
        dataset.close()
    assert [len(epoch) for epoch in found] == [6, 6]
    assert max(Counter(sum(found, [])).values()) == 1
