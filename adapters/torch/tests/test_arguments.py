"""Arguments that are wrong are errors at once, which name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_helpers import write_records

from tensorcom_torch import PcrDataset, TensorcomDataset, from_records, from_stream

URL = "zsub://127.0.0.1:9"
SHARDS = [(3, 2), (0, 0), (-1, 2), (2, 2), (0.5, 2), (0.0, 1.0), (True, 2), ("0", "2")]
SHARDS += [3, (1,), (0, 1, 2), ()]  # type: ignore[list-item]
NO_COUNTS = [2.5, True, "3", -1]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("sets") / "set", 6)


def stream(**arguments: Any) -> Any:
    return TensorcomDataset(URL, **arguments)


def records(root: Path, **arguments: Any) -> PcrDataset:
    return PcrDataset(root, **{"batch_size": 2, "size": 8, **arguments})


@pytest.mark.parametrize("shard", SHARDS, ids=str)
def test_a_shard_is_a_number_from_0_and_the_count_over_it(root: Path, shard: Any) -> None:
    for call in (
        lambda: stream(shard=shard),
        lambda: records(root, shard=shard),
        lambda: from_records(root, batch_size=2, size=8, shard=shard),
    ):
        with pytest.raises(ValueError, match=r"^shard=.*, expected a number from 0 and the count"):
            call()


@pytest.mark.parametrize(
    ("rank", "ranks"), [("3", "2"), ("0", "0"), ("-1", "2"), ("a", "2"), ("0", "")]
)
def test_the_environment_holds_a_shard(
    root: Path, monkeypatch: pytest.MonkeyPatch, rank: str, ranks: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    text = f"^RANK='{rank}' and WORLD_SIZE='{ranks}' in the environment, expected a number"
    for call in (lambda: iter(stream()), lambda: iter(records(root)), lambda: len(records(root))):
        with pytest.raises(ValueError, match=text):
            call()
    assert len(records(root, shard=(0, 1))) == 3


@pytest.mark.parametrize("value", [*NO_COUNTS, 0], ids=repr)
def test_counts_are_integers(root: Path, value: Any) -> None:
    counts = ["batch_size", "size", "threads", "read_threads", "prefetch"]
    counts += ["seed", "buffer"] if value else []
    for name in counts:
        with pytest.raises(ValueError, match=f"^{name}={value!r}, expected (an integer|at least)"):
            records(root, **{name: value})
    for name in ["rebatch", *(["length"] if value else [])]:
        with pytest.raises(ValueError, match=f"^{name}={value!r}, expected (an integer|at least)"):
            stream(**{name: value})


@pytest.mark.parametrize("value", NO_COUNTS, ids=repr)
def test_other_numbers_are_integers(root: Path, value: Any) -> None:
    text = f"={value!r}, expected (an integer|at least)"
    dataset = records(root)
    for call in (
        lambda: stream(rebatch=2, shuffle=value),
        lambda: from_stream(URL, length=value),
        lambda: from_records(root, size=8, batch_size=value),
        lambda: dataset.set_epoch(value),
        lambda: dataset.state_after(value, epoch=0),
        lambda: dataset.state_after(1, epoch=value),
        lambda: dataset.state_after(1, epoch=0, num_workers=value),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    if value != -1:
        with pytest.raises(ValueError, match=f"seed{text}"):
            stream(rebatch=2, shuffle=3, seed=value)


@pytest.mark.parametrize("name", ["batch_size", "seed", "buffer", "prefetch"])
def test_what_has_no_default_of_none_is_given(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=None, expected an integer"):
        records(root, **{name: None})


def test_integers_of_numpy_are_integers(root: Path) -> None:
    dataset = records(root, batch_size=np.int64(2), shard=(np.int32(0), np.int32(1)))
    assert len(dataset) == 3
    assert len(stream(length=np.int64(4))) == 4


@pytest.mark.parametrize("name", ["bogus", "timeout", "worker"])
def test_unknown_keywords_are_named(root: Path, name: str) -> None:
    for call in (
        lambda **options: stream(**options),
        lambda **options: records(root, **options),
        lambda **options: from_stream(URL, **options),
        lambda **options: from_records(root, batch_size=2, **options),
    ):
        with pytest.raises(TypeError, match=f"'?{name}'?"):
            call(**{name: (0, 1)})


@pytest.mark.parametrize("name", ["epoch", "raw", "split", "lazy", "noexpand", "topic", "copy"])
def test_what_would_be_without_effect_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name}: no option of a data set"):
        stream(**{name: True})


def test_options_of_the_reader_reach_it(root: Path) -> None:
    dataset = records(root, retries=3)
    assert len(dataset) == 3
    assert dataset.state_after(1, epoch=0)["epoch"] == 0
