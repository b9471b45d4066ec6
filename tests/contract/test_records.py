"""What every adapter promises of a set of records, whatever the framework."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import time
from pathlib import Path
from typing import Any

import pytest
from contract_adapters import Adapter, error_of
from contract_records import (
    BATCH,
    SAMPLES,
    SIZE,
    check,
    core,
    opened,
    samples_of,
    taken,
    write_records,
)

from tensorcom.pcr import PcrReader, PcrSource
from tensorcom.testing.http_ranges import Fault, RangeServer

WAIT_S = 60  # bounds the wait for storage, which is asked several times


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "set")


@pytest.fixture
def own_root(tmp_path: Path) -> Path:
    return write_records(tmp_path / "set")


# -- epochs and order ----------------------------------------------------------------------------


def test_epochs_are_those_of_core_also_after_a_break_until_an_error(
    adapter: Adapter, loader: str, own_root: Path, root: Path
) -> None:
    readers = adapter.workers.get(loader, 1)
    dataset = opened(adapter, own_root, seed=3)
    loading = adapter.loaders[loader](dataset)
    assert len(loading) == 6
    # All batches are kept: what was handed over is never touched again.
    epochs = [taken(loading, adapter)]
    epochs.append(taken(itertools.islice(loading, 2), adapter))
    epochs.append(taken(loading, adapter))
    dataset.scan_groups = 1
    epochs.append(taken(loading, adapter))
    cut(own_root)
    error = error_of(loading)
    del loading
    adapter.close(dataset)
    assert str(error_of(PcrSource(own_root, batch_size=BATCH, scan_groups=1))) in str(error)
    for number, found in enumerate(epochs):
        groups = 1 if number == 3 else None
        expected = core(root, number, readers=readers, seed=3, scan_groups=groups)
        check(found, expected[:2] if number == 1 else expected)
        if number != 1:
            assert [len(labels) for _, labels in found] == [4, 4, 4, 4, 4, 3]
            assert sorted(samples_of(found)) == list(range(SAMPLES))


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": False, "augment": "eval"},
        {"augment": None, "scan_groups": 2, "batch_size": 23},
        {"shard": (1, 2), "end": "pad", "seed": 9},
    ],
    ids=lambda arguments: ",".join(arguments),
)
def test_arguments_mean_what_core_says(
    adapter: Adapter, root: Path, arguments: dict[str, Any]
) -> None:
    dataset = opened(adapter, root, **arguments)
    found = taken(dataset, adapter)
    assert len(found) == len(dataset)
    check(found, core(root, 0, **arguments))
    adapter.close(dataset)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_layout_is_as_stated_and_what_was_handed_over_stays(
    adapter: Adapter, loader: str, root: Path, layout: str
) -> None:
    readers, arguments = adapter.workers.get(loader, 1), {"size": 80, "seed": 1}  # large: pooled
    dataset = opened(adapter, root, layout=layout, **arguments)
    loading = adapter.loaders[loader](dataset)
    epochs = []
    for _ in range(2):
        epochs.append(taken(loading, adapter))
        for images, _ in epochs[-1]:
            if images.flags.writeable:
                images[0] ^= 255  # which must change no other
    del loading
    adapter.close(dataset)
    for epoch, found in enumerate(epochs):
        for images, _ in found:
            if images.flags.writeable:
                images[0] ^= 255
        wanted = core(root, epoch, readers=readers, **arguments)
        order = (0, 2, 3, 1) if layout == "NCHW" else (0, 1, 2, 3)
        check([(images.transpose(order), labels) for images, labels in found], wanted)


@pytest.mark.parametrize("end", ["wrap", "pad", "drop", "uneven"])
def test_ranks_share_an_epoch(adapter: Adapter, root: Path, end: str) -> None:
    ranks = []
    for rank in range(3):
        dataset = opened(adapter, root, shard=(rank, 3), end=end)
        found = taken(dataset, adapter)
        assert len(found) == len(dataset)
        adapter.close(dataset)
        check(found, core(root, 0, shard=(rank, 3), end=end))
        ranks.append(samples_of(found))
    samples = sum(ranks, [])
    counts = {"wrap": [8, 8, 8], "pad": [8, 8, 8], "drop": [7, 7, 7], "uneven": [7, 8, 8]}
    assert sorted(map(len, ranks)) == counts[end]
    assert len(set(samples)) == (21 if end == "drop" else SAMPLES)


def test_readers_of_ranks_share_an_epoch(
    adapter: Adapter, loader: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = adapter.workers.get(loader, 1)
    samples = []
    for rank in range(2):
        with monkeypatch.context() as patch:
            adapter.be_rank(patch, rank, 2)
            dataset = opened(adapter, root, end="uneven")
            found = taken(adapter.loaders[loader](dataset), adapter)
            adapter.close(dataset)
        check(found, core(root, 0, readers=readers, shard=(rank, 2), end="uneven"))
        samples += samples_of(found)
    assert sorted(samples) == list(range(SAMPLES))


# -- fidelity ------------------------------------------------------------------------------------


def test_each_fidelity_is_read_and_costs_its_bytes(adapter: Adapter, root: Path) -> None:
    with PcrReader(root) as reader:
        groups, expected = reader.scan_groups, reader.group_bytes.tolist()
    read = []
    for count in range(1, groups + 1):
        with RangeServer(root) as server:
            dataset = opened(adapter, server.url, scan_groups=count)
            found = taken(dataset, adapter)
            check(found, core(root, 0, scan_groups=count))
            adapter.close(dataset)
            records = (r for r in server.requests if r.path.endswith(".pcr"))
            read.append(sum(request.sent_bytes for request in records))
    assert read == expected
    assert read == sorted(set(read))


@pytest.mark.parametrize("groups", [0, 11])
def test_scan_groups_out_of_range(adapter: Adapter, root: Path, groups: int) -> None:
    with pytest.raises(ValueError, match=f"scan_groups={groups}, expected 1 to 10"):
        opened(adapter, root, scan_groups=groups)


# -- resuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [0, 1, 3, 6])
def test_a_state_gives_the_rest_once(adapter: Adapter, root: Path, batches: int) -> None:
    dataset = opened(adapter, root)
    iterator = iter(dataset)
    found = taken(itertools.islice(iterator, batches), adapter)
    state = json.loads(json.dumps(dataset.state_dict()))
    del iterator
    adapter.close(dataset)
    again = opened(adapter, root)
    again.load_state_dict(state)
    found += taken(again, adapter)
    check(found, core(root, 0))
    check(taken(again, adapter), core(root, 1))
    adapter.close(again)


def test_a_state_for_other_ranks(adapter: Adapter, root: Path) -> None:
    dataset = opened(adapter, root, end="uneven")
    found = samples_of(taken(itertools.islice(dataset, 2), adapter))
    state = dataset.state_dict()
    adapter.close(dataset)
    for rank in range(2):
        again = opened(adapter, root, end="uneven", shard=(rank, 2))
        again.load_state_dict(state)
        found += samples_of(taken(again, adapter))
        adapter.close(again)
    assert sorted(found) == list(range(SAMPLES))


def test_it_pickles_before_and_after_use(adapter: Adapter, root: Path) -> None:
    dataset = pickle.loads(pickle.dumps(opened(adapter, root, scan_groups=3)))
    check(taken(dataset, adapter), core(root, 0, scan_groups=3))
    copy = pickle.loads(pickle.dumps(dataset))
    adapter.close(dataset)
    check(taken(copy, adapter), core(root, 1, scan_groups=3))
    adapter.close(copy)


# -- what goes wrong -----------------------------------------------------------------------------


def cut(root: Path) -> tuple[str, set[int]]:
    """Cut a record; return its name and samples."""
    path = root / "PCR_1.pcr"
    path.write_bytes(path.read_bytes()[:99])
    return path.name, set(range(5, 10))


def blank(root: Path) -> tuple[str, set[int]]:
    """Overwrite the frame header of an image; return the record's name and its samples."""
    with PcrReader(root) as reader:
        head, _ = reader.sample(7, scan_groups=1)
        start, stop = reader.starts[1:3].tolist()
        samples = set(range(start, stop))
    path = root / "PCR_1.pcr"
    data = path.read_bytes()
    start = data.index(head[:-2]) + head.index(b"\xff\xc2") + 2
    path.write_bytes(data[:start] + bytes(8) + data[start + 8 :])
    return path.name, samples


@pytest.mark.parametrize("damage", [cut, blank])
def test_damage_is_an_error_with_our_text(adapter: Adapter, own_root: Path, damage: Any) -> None:
    name, _ = damage(own_root)
    expected = error_of(PcrSource(own_root, batch_size=BATCH, size=SIZE))
    assert name in str(expected)
    dataset = opened(adapter, own_root)
    assert str(expected) in str(error_of(dataset))
    adapter.close(dataset)


@pytest.mark.parametrize("damage", [cut, blank])
def test_damage_is_skipped_when_told_so(adapter: Adapter, own_root: Path, damage: Any) -> None:
    _, lost = damage(own_root)
    dataset = opened(adapter, own_root, on_error="skip")
    for epoch in range(2):
        found = taken(dataset, adapter)
        check(found, core(own_root, epoch, on_error="skip"))
        assert sorted(samples_of(found)) == sorted(set(range(SAMPLES)) - lost)
    adapter.close(dataset)


def test_what_is_no_set_is_an_error(adapter: Adapter, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no set of records"):
        opened(adapter, tmp_path)


def test_a_server_that_fails_is_an_error_with_our_text(adapter: Adapter, root: Path) -> None:
    with RangeServer(root) as server:
        dataset = opened(adapter, server.url)
        server.misbehave(*[Fault(cut_after=50)] * 200)
        begun = time.monotonic()
        error = error_of(dataset)
        assert time.monotonic() - begun < WAIT_S
        adapter.close(dataset)
        assert re.search(r"PCR_\d\.pcr at byte \d+: got \d+ of .* after \d attempts", str(error))
        assert server.url in str(error)
