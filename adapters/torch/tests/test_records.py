"""PcrDataset in one process: the batches of core as tensors, and what arguments mean."""

from __future__ import annotations

import inspect
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from record_helpers import (
    GOLDEN,
    GROUPS,
    SAMPLES,
    flat,
    make_dataset,
    noise_jpeg,
    samples_of,
    write_records,
)

from tensorcom.errors import PcrIndexError, SourceError
from tensorcom.pcr import PcrSource
from tensorcom_torch import PcrDataset, from_records, workers


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "gray")


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "noise", make=noise_jpeg)


# -- what is yielded -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 16},
        {"size": 16, "augment": "eval", "shuffle": False, "drop_last": True},
        {"size": 16, "augment": None, "seed": 3, "buffer": 2, "scan_groups": 2, "guard": False},
        {"size": 16, "shard": (1, 3), "end": "uneven"},
        {"size": 16, "transform": lambda image, rng: image[:4].astype("f4") + rng.random()},
        {"size": None, "augment": None},
        {"decode": False},
    ],
    ids=lambda arguments: ",".join(arguments),
)
@pytest.mark.parametrize("original", [False, True])
def test_batches_are_those_of_core(noise: Path, arguments: dict[str, Any], original: bool) -> None:
    root = GOLDEN / "sqlite" if original else noise
    dataset = PcrDataset(root, batch_size=4, **arguments)
    core = PcrSource(root, batch_size=4, **arguments)
    assert len(dataset) == len(core)
    for _ in range(2):
        batches = list(core)
        found = list(dataset)
        assert len(found) == len(batches) == len(core)
        for (images, labels), (wanted, numbers) in zip(found, batches, strict=True):
            assert labels.dtype == torch.int32
            np.testing.assert_array_equal(labels.numpy(), numbers)
            if isinstance(wanted, np.ndarray):
                assert images.numpy().dtype == wanted.dtype
                np.testing.assert_array_equal(images.numpy(), wanted)
                continue
            assert type(images) is list
            assert len(images) == len(wanted)
            for image, expected in zip(images, wanted, strict=True):
                if not isinstance(expected, bytes):
                    image = image.numpy()
                np.testing.assert_array_equal(image, expected)
    dataset.close()
    core.close()


@pytest.mark.parametrize("size", [16, None])
def test_nchw_is_a_view_of_nhwc(noise: Path, size: int | None) -> None:
    augment = "train" if size else None
    for (last, _), (first, _) in zip(
        make_dataset(noise, size=size, augment=augment),
        make_dataset(noise, size=size, augment=augment, layout="NCHW"),
        strict=True,
    ):
        if size:
            assert first.shape == (len(last), 3, size, size)
            assert first.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(first.permute(0, 2, 3, 1), last)
            continue
        for one, other in zip(first, last, strict=True):
            assert one.shape == (3, 40, 48)
            assert torch.equal(one.permute(1, 2, 0), other)


def test_bytes_have_no_layout(root: Path) -> None:
    dataset = make_dataset(root, decode=False, layout="NCHW", shuffle=False)
    images, labels = next(iter(dataset))
    assert labels.tolist() == [0, 1, 2, 3]
    assert [image[:2] + image[-2:] for image in images] == [b"\xff\xd8\xff\xd9"] * 4


def test_tensors_are_writable_and_keep_their_values(root: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = list(make_dataset(root, shuffle=False))
        for images, labels in kept:
            images[0] = 7
            labels[0] = -1
    assert [int(labels[0]) for _, labels in kept] == [-1] * 6
    assert samples_of([[images[1:], labels[1:]] for images, labels in kept])[5] == [21, 22]
    for images, _ in kept:
        assert (images[0] == 7).all()


def test_the_module_function_is_the_class(noise: Path) -> None:
    arguments = {"batch_size": 5, "scan_groups": 3, "size": 12, "augment": "eval", "seed": 4}
    arguments |= {"layout": "NCHW", "shard": (1, 2), "end": "pad", "on_error": "skip"}
    assert set(inspect.signature(from_records).parameters) == {*arguments, "root", "shuffle"}
    for shuffle in (False, True):
        one = from_records(noise, shuffle=shuffle, **arguments)
        other = PcrDataset(noise, shuffle=shuffle, **arguments)
        for mine, wanted in zip(one, other, strict=True):
            assert torch.equal(mine[0], wanted[0])
            assert torch.equal(mine[1], wanted[1])


def test_class_names(root: Path) -> None:
    assert make_dataset(root).class_names == tuple(map(str, range(SAMPLES)))
    assert make_dataset(GOLDEN / "protobuf").class_names is None


@pytest.mark.parametrize("kind", ["sqlite", "protobuf", "protobuf_raw"])
def test_every_fidelity_of_original_sets(kind: str) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())[kind]
    labels = sorted(label for record in expected.values() for label in record["labels"])
    for groups in range(1, GROUPS + 1):
        batches = list(make_dataset(GOLDEN / kind, scan_groups=groups, size=16))
        assert sorted(torch.cat([found for _, found in batches]).tolist()) == labels
        assert all(images.float().std() > 1 for images, _ in batches)


# -- fidelity ------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", range(1, GROUPS + 1))
def test_scan_groups_are_those_of_core(noise: Path, groups: int) -> None:
    dataset = make_dataset(noise, scan_groups=groups, decode=False, shuffle=False, batch_size=23)
    assert dataset.scan_groups == groups
    ((images, _),) = dataset
    expected = [dataset.reader.sample(i, scan_groups=groups)[0] for i in range(SAMPLES)]
    assert images == expected


def test_scan_groups_hold_from_the_next_record_on(noise: Path) -> None:
    dataset = make_dataset(noise, decode=False, shuffle=False, batch_size=5, scan_groups=1)
    sizes = []
    for epoch in range(2):
        dataset.scan_groups = (1, None)[epoch]
        sizes.append(sum(len(image) for images, _ in dataset for image in images))
    ends = dataset.reader.group_bytes
    assert sizes[0] < ends[0] * 1.1 < sizes[1]
    assert dataset.scan_groups is None


@pytest.mark.parametrize("groups", [0, 11, -1, True, 2.0])
def test_scan_groups_out_of_range_change_nothing(root: Path, groups: Any) -> None:
    with pytest.raises(ValueError, match="scan_groups"):
        make_dataset(root, scan_groups=groups)
    dataset = make_dataset(root, scan_groups=3)
    with pytest.raises(ValueError, match="scan_groups"):
        dataset.scan_groups = groups
    assert dataset.scan_groups == 3


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"layout": "NWHC"}, "layout"),
        ({"on_error": "ignore"}, "on_error"),
        ({"end": "stop"}, "end="),
        ({"batch_size": 0}, "batch_size"),
        ({"augment": "test"}, "augment"),
        ({"size": None}, "augment"),
        ({"shard": (2, 2)}, "shard"),
    ],
)
def test_a_wrong_argument_is_an_error_here_and_not_in_a_worker(
    root: Path, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make_dataset(root, **arguments)


def test_what_is_no_set_or_too_small_is_an_error_here(root: Path, tmp_path: Path) -> None:
    with pytest.raises(PcrIndexError, match="holds no set of records"):
        make_dataset(tmp_path)
    with pytest.raises(SourceError, match="drop_last leaves no batch"):
        make_dataset(root, batch_size=24, drop_last=True)


@pytest.mark.parametrize("end", ["wrap", "pad", "drop", "uneven"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_length_is_exact_on_every_rank(root: Path, end: str, drop_last: bool) -> None:
    found: list[list[int]] = []
    for rank in range(3):
        dataset = make_dataset(root, end=end, drop_last=drop_last, shard=(rank, 3), batch_size=3)
        batches = samples_of(dataset)
        assert len(batches) == len(dataset)
        found.append(flat(batches))
        assert not drop_last or {len(batch) for batch in batches} == {3}
    counts, samples = [len(mine) for mine in found], sorted(sum(found, []))
    if end == "uneven":
        assert max(counts) - min(counts) <= (3 if drop_last else 1)
    else:
        assert len(set(counts)) == 1
    if end in ("drop", "uneven"):
        assert len(set(samples)) == len(samples)
    if end != "drop" and not drop_last:
        assert set(samples) == set(range(SAMPLES))


def test_the_rank_is_that_of_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(root, end="uneven")
    found = [samples_of(dataset)]
    dataset.set_epoch(0)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        dataset.set_epoch(0)
        assert len(dataset) == 3
        found.append(samples_of(dataset))
    assert sorted(flat(found[1]) + flat(found[2])) == sorted(flat(found[0])) == list(range(SAMPLES))
    assert samples_of(make_dataset(root, shard=(0, 1))) == found[0], "what is given comes first"


def test_a_spawned_worker_has_the_rank_of_its_parent(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workers, "current_shard", lambda: (1, 2))
        expected = samples_of(make_dataset(root))
        pickled = pickle.dumps(make_dataset(root))
    assert len(flat(expected)) == 12
    assert samples_of(pickle.loads(pickled)) == expected


def test_bytes_read_are_those_of_this_process(root: Path) -> None:
    dataset = make_dataset(root, scan_groups=2)
    assert dataset.bytes_read == 0
    for epoch in (1, 2):
        list(dataset)
        assert dataset.bytes_read == epoch * dataset.reader.group_bytes[1]
