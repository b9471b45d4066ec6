"""Hard cases of data loaders that are the same for every framework, each by its id."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from contract_adapters import Adapter
from contract_records import BATCH, core, opened, samples_of, taken, write_records
from contract_streams import batch, read_by_ranks

from tensorcom import SourceError
from tensorcom.testing.loopback import LoopbackServer


@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_C01_ranks_get_each_message_once(adapter: Adapter, scheme: str) -> None:
    batches = [batch(number) for number in range(13)]
    with LoopbackServer(batches, scheme=scheme, readers=2) as server:
        found = read_by_ranks(adapter, server.url, 2)
    assert Counter(sum(found, [])) == Counter(range(13))
    for share in found:
        assert share == sorted(share)
    if scheme == "zpub":
        assert [len(share) for share in found] == [7, 6]


def test_C02_a_rank_without_a_message_ends_quietly(adapter: Adapter) -> None:
    with LoopbackServer([batch(n) for n in range(2)], scheme="zpub", readers=3) as server:
        assert read_by_ranks(adapter, server.url, 3) == [[0], [1], []]


@pytest.mark.parametrize("end", ["drop", "uneven"])
def test_C02_more_ranks_than_samples_are_an_error_up_front(
    adapter: Adapter, tmp_path: Path, end: str
) -> None:
    root = write_records(tmp_path / "set", samples=3)
    with pytest.raises(SourceError, match="3 samples are fewer than 4 ranks"):
        opened(adapter, root, shard=(3, 4), end=end)


@pytest.mark.parametrize("batch_size", [1, 4, 23, 40])
def test_C03_len_is_the_number_of_batches(
    adapter: Adapter, tmp_path: Path, batch_size: int
) -> None:
    dataset = opened(adapter, write_records(tmp_path / "set"), batch_size=batch_size)
    assert len(dataset) == len(list(dataset)) == len(list(dataset)) == -(-23 // batch_size)
    adapter.close(dataset)


@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_C04_ranks_with_a_length_end_at_the_same_step(adapter: Adapter, scheme: str) -> None:
    batches = (batch(number) for number in range(11 if scheme == "zpub" else 1000))
    with LoopbackServer(batches, scheme=scheme, readers=2) as server:
        found = read_by_ranks(adapter, server.url, 2, length=5)
    assert [len(share) for share in found] == [5, 5]


@pytest.mark.parametrize("end", ["wrap", "pad", "drop"])
def test_C04_ranks_end_at_the_same_step(adapter: Adapter, tmp_path: Path, end: str) -> None:
    root = write_records(tmp_path / "set", samples=21)
    steps = []
    for rank in range(2):
        dataset = opened(adapter, root, shard=(rank, 2), end=end, batch_size=3)
        steps.append([len(labels) for _, labels in taken(dataset, adapter)])
        adapter.close(dataset)
    assert steps[0] == steps[1]
    assert sum(steps[0]) == (10 if end == "drop" else 11)


def test_C10_three_epochs_give_every_image(adapter: Adapter, loader: str, tmp_path: Path) -> None:
    root = write_records(tmp_path / "set", samples=10)
    dataset = opened(adapter, root)
    loading = adapter.loaders[loader](dataset)
    readers = adapter.workers.get(loader, 1)
    for epoch in range(3):
        found = taken(loading, adapter)
        assert sorted(len(labels) for _, labels in found) == [2, BATCH, BATCH]
        assert samples_of(found) == samples_of(core(root, epoch, readers=readers))
        assert sorted(samples_of(found)) == list(range(10))
    del loading
    adapter.close(dataset)
