"""What goes wrong under a PcrDataset: damaged sets, errors in workers, workers that die."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_helpers import (
    SAMPLES,
    error_of,
    flat,
    load,
    make_dataset,
    samples_of,
    write_records,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from tensorcom.errors import ImageError, PcrError, PcrIndexError
from tensorcom.pcr import PcrReader, PcrSource
from tensorcom.pcr.manifest import MANIFEST_NAME, SAMPLES_NAME, Manifest, SampleTable

RECORD = "PCR_1.pcr"  # samples 5 to 9
IMAGE = 7  # its third
# (start method, workers, persistent)
LOADERS = [(None, 0, False), ("fork", 1, True), ("fork", 2, True), ("fork", 2, False)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_records(tmp_path / "set")


def cut_record(root: Path) -> set[int]:
    data = (root / RECORD).read_bytes()
    (root / RECORD).write_bytes(data[: len(data) // 2])
    return set(range(5, 10))


def remove_record(root: Path) -> set[int]:
    (root / RECORD).unlink()
    return set(range(5, 10))


def break_frame(root: Path) -> set[int]:
    """Overwrite the frame header of an image, which is in the first scan group."""
    with PcrReader(root) as reader:
        head, _ = reader.sample(IMAGE, scan_groups=1)
    data = (root / RECORD).read_bytes()
    start = data.index(head[:-2]) + head.index(b"\xff\xc2") + 2
    (root / RECORD).write_bytes(data[:start] + bytes(8) + data[start + 8 :])
    return set(range(5, 10))  # the checksum of a group says nothing of single images


def store_bad_image(root: Path) -> set[int]:
    """Let the checksums agree with an image that cannot be decoded."""
    break_frame(root)
    table = SampleTable.load(root / SAMPLES_NAME)
    data, sums = (root / RECORD).read_bytes(), table.crc32.copy()
    start = 0
    for part, size in enumerate(table.parts[1].tolist()):
        sums[1, part] = zlib.crc32(data[start : start + size])
        start += size
    encoded = replace(table, crc32=sums).encode()
    manifest = Manifest.from_json((root / MANIFEST_NAME).read_bytes())
    del table
    (root / SAMPLES_NAME).unlink()
    (root / SAMPLES_NAME).write_bytes(encoded)
    summed = replace(manifest, samples_crc32=zlib.crc32(encoded))
    (root / MANIFEST_NAME).write_bytes(summed.to_json())
    return {IMAGE}


DAMAGES_OF_A_RECORD = [cut_record, remove_record, break_frame]
DAMAGES = [*DAMAGES_OF_A_RECORD, store_bad_image]


def load_as(root: Path, how: tuple[str | None, int, bool], **arguments: Any) -> Any:
    method, workers, persistent = how
    dataset = make_dataset(root, **arguments)
    return load(dataset, workers, multiprocessing_context=method, persistent_workers=persistent)


@pytest.mark.parametrize("damage", DAMAGES_OF_A_RECORD)
@pytest.mark.parametrize("how", LOADERS, ids=str)
def test_an_error_arrives_with_its_class_and_text_and_the_next_epoch_is_tried(
    root: Path, damage: Any, how: tuple[str | None, int, bool]
) -> None:
    whole = (root / RECORD).read_bytes()
    loader = load_as(root, how)
    samples_of(loader)
    damage(root)
    expected = error_of(PcrSource(root, batch_size=4, size=8))
    assert isinstance(expected, (PcrError, ImageError))
    assert RECORD in str(expected)
    found = error_of(loader)
    assert type(found) is type(expected)
    assert str(expected) in str(found)
    (root / RECORD).write_bytes(whole)
    assert sorted(flat(samples_of(loader))) == list(range(SAMPLES))
    del loader


class Notes:
    """Notes errors in a file, also from workers."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, error: Exception) -> None:
        with self._path.open("a") as file:
            file.write(f"{type(error).__name__} {error}\n")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_is_skipped_costs_itself_only(
    root: Path, tmp_path: Path, damage: Any, workers: int
) -> None:
    lost = damage(root)
    notes = tmp_path / "notes"
    dataset = make_dataset(root, on_error="skip", on_skip=Notes(notes), batch_size=1)
    batches = samples_of(load(dataset, workers))
    assert sorted(batches) == [[sample] for sample in range(SAMPLES) if sample not in lost]
    lines = notes.read_text().splitlines()
    assert all(RECORD in line for line in lines)
    assert 1 <= len(lines) <= max(workers, 1)


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # what torchdata calls
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_samples_do_not_shift_a_state(root: Path, damage: Any, workers: int) -> None:
    lost = damage(root)

    def stateful() -> Any:
        dataset = make_dataset(root, on_error="skip", batch_size=2)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    loader = stateful()
    epochs = [samples_of(loader) for _ in range(2)]
    assert sorted(flat(epochs[0])) == sorted(set(range(SAMPLES)) - lost)
    for taken in (1, 4, len(epochs[0])):
        loader, again = stateful(), stateful()
        iterator = iter(loader)
        found = [samples_of([next(iterator)])[0] for _ in range(taken)]
        again.load_state_dict(loader.state_dict())
        assert found + samples_of(again) == epochs[0]
        assert samples_of(again) == epochs[1]
        del loader, iterator, again


def test_a_set_that_is_deleted_under_way_is_an_error(root: Path) -> None:
    lasting = load_as(root, ("fork", 2, True))
    samples_of(lasting)
    forked, spawned = load_as(root, ("fork", 1, False)), load_as(root, ("spawn", 1, False))
    shutil.rmtree(root)
    for loader in (lasting, forked, spawned):
        error = error_of(loader)
        assert type(error) is PcrIndexError
        assert str(root) in str(error)
    del lasting, forked, spawned, loader


def fail(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    raise ArithmeticError(f"cannot transform {image.shape}")


@pytest.mark.parametrize("how", LOADERS, ids=str)
def test_an_error_of_a_transform_arrives(root: Path, how: tuple[str | None, int, bool]) -> None:
    loader = load_as(root, how, transform=fail)
    for _ in range(2):
        error = error_of(loader)
        assert type(error) is ArithmeticError
        assert "cannot transform (8, 8, 3)" in str(error)
    del loader


KILL = """
import os
import signal
import sys

import torch
from record_helpers import flat, load, make_dataset, samples_of

dataset = make_dataset(sys.argv[1], batch_size=1)
loader = load(dataset, 2, persistent_workers=True, prefetch_factor=1)
iterator = iter(loader)
next(iterator)
try:  # torch notices in one of several ways, at any moment
    os.kill(torch.multiprocessing.active_children()[0].pid, signal.SIGKILL)
    for batch in iterator:
        pass
except Exception:
    print("error")
del iterator, loader
print(len(set(flat(samples_of(load(dataset, 2))))))
"""


def test_a_killed_worker_is_an_error_and_the_data_set_can_be_loaded_again(
    root: Path, tmp_path: Path
) -> None:
    script = tmp_path / "kill.py"  # torch raises from a signal handler: not among our tests
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{KILL}")
    done = subprocess.run(
        [sys.executable, str(script), str(root)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.splitlines() == ["error", str(SAMPLES)], done.stderr
    assert done.returncode == 0
