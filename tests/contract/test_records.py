"""What every adapter promises of a set of records, whatever the framework."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_adapters import ADAPTERS, Adapter, error_of
from numpy.typing import NDArray
from PIL import Image

from tensorcom.pcr import PcrReader, PcrSource, PcrWriter
from tensorcom.testing.http_ranges import RangeServer

SAMPLES, PER_RECORD, BATCH, SIZE = 23, 5, 4, 16
Batches = list[tuple[NDArray[Any], NDArray[Any]]]


def jpeg(sample: int) -> bytes:
    """Return an image of which no crop is like another."""
    pixels = np.random.default_rng(sample).integers(0, 256, (40, 48, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def write_records(root: Path) -> Path:
    """Write a set in which each sample is a class of its own."""
    with PcrWriter(root, images_per_record=PER_RECORD) as writer:
        for sample in range(SAMPLES):
            writer.add(jpeg(sample), sample)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "set")


@pytest.fixture
def own_root(tmp_path: Path) -> Path:
    return write_records(tmp_path / "set")


def opened(adapter: Adapter, root: Path | str, **arguments: Any) -> Any:
    return adapter.from_records(root, **{"batch_size": BATCH, "size": SIZE, **arguments})


def taken(batches: Any, adapter: Adapter) -> Batches:
    """Return the arrays of batches."""
    return [(adapter.to_numpy(images), adapter.to_numpy(labels)) for images, labels in batches]


def core(root: Path | str, epoch: int, *, readers: int = 1, **arguments: Any) -> Batches:
    """Return an epoch of core, whose readers take turns."""
    found = []
    for reader in range(readers):
        arguments = {"batch_size": BATCH, "size": SIZE, **arguments}
        with PcrSource(root, worker=(reader, readers), **arguments) as source:
            source.set_epoch(epoch)
            found.append(list(source))
    return [batch for turn in itertools.zip_longest(*found) for batch in turn if batch is not None]


def check(found: Batches, expected: Batches) -> None:
    assert [len(labels) for _, labels in found] == [len(labels) for _, labels in expected]
    for (images, labels), (wanted, numbers) in zip(found, expected, strict=True):
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
        np.testing.assert_array_equal(labels, numbers)
        np.testing.assert_array_equal(images, wanted)


def samples_of(batches: Batches) -> list[int]:
    return [label for _, labels in batches for label in labels.tolist()]


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


def test_layout_is_as_stated(adapter: Adapter, root: Path) -> None:
    dataset = opened(adapter, root, layout="NCHW")
    found = taken(dataset, adapter)
    check([(images.transpose(0, 2, 3, 1), labels) for images, labels in found], core(root, 0))
    adapter.close(dataset)


@pytest.mark.parametrize("end", ["wrap", "pad", "drop", "uneven"])
def test_ranks_share_an_epoch(adapter: Adapter, root: Path, end: str) -> None:
    ranks = []
    for rank in range(3):
        dataset = opened(adapter, root, shard=(rank, 3), end=end)
        ranks.append(samples_of(taken(dataset, adapter)))
        adapter.close(dataset)
    samples = sum(ranks, [])
    counts = {"wrap": [8, 8, 8], "pad": [8, 8, 8], "drop": [7, 7, 7], "uneven": [7, 8, 8]}
    assert sorted(map(len, ranks)) == counts[end]
    assert len(set(samples)) == (21 if end == "drop" else SAMPLES)


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


# -- life ----------------------------------------------------------------------------------------


def test_closing_leaves_no_thread_and_no_file(adapter: Adapter, own_root: Path) -> None:
    threads = set(threading.enumerate())
    dataset = opened(adapter, own_root)
    for _ in dataset:
        break
    adapter.close(dataset)
    assert set(threading.enumerate()) <= threads
    files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [name for name in files if name.endswith(".pcr")]
    check(taken(dataset, adapter), core(own_root, 1))
    adapter.close(dataset)


def test_a_break_after_the_first_batch_ends_the_process(
    adapter: Adapter, loader: str, root: Path
) -> None:
    script = textwrap.dedent("""
        import sys
        import test_records
        from contract_adapters import ADAPTERS

        if __name__ == "__main__":
            adapter, loader = ADAPTERS[sys.argv[1]], sys.argv[2]
            dataset = test_records.opened(adapter, sys.argv[3], batch_size=1)
            for images, labels in adapter.loaders[loader](dataset):
                break
            print("done")
    """)
    name = next(name for name, entry in ADAPTERS.items() if entry is adapter)
    done = subprocess.run(
        [sys.executable, "-c", script, name, loader, str(root)],
        cwd=Path(__file__).parent,
        env={**os.environ, **adapter.quiet},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")
