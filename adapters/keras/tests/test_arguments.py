"""Arguments that are wrong are errors at once, which name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from fit_helpers import SAMPLES, write_records

from tensorcom_keras import (
    FidelitySchedule,
    PcrPyDataset,
    StreamPyDataset,
    as_tf_dataset,
    close_stream,
    from_records,
    from_stream,
    pcr_dataset,
    stream_dataset,
)

URL = "zsub://127.0.0.1:9"
SPEC = [tf.TensorSpec((None,), tf.int32)]
SHARDS: list[Any] = [(3, 2), (0, 0), (-1, 2), (2, 2), (0.5, 2), (0.0, 1.0), (True, 2), ("0", "2")]
SHARDS += [3, (1,), (0, 1, 2), ()]
NO_COUNTS = [2.5, True, "3", -1]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("sets") / "set")


def stream(**arguments: Any) -> Any:
    return StreamPyDataset(URL, **arguments)


def tf_stream(**arguments: Any) -> Any:
    return stream_dataset(URL, **{"spec": SPEC, **arguments})


def records(root: Path, **arguments: Any) -> PcrPyDataset:
    return PcrPyDataset(root, **{"batch_size": 2, "size": 8, **arguments})


def tf_records(root: Path, **arguments: Any) -> Any:
    return pcr_dataset(root, **{"batch_size": 2, "size": 8, **arguments})


@pytest.mark.parametrize("shard", SHARDS, ids=str)
def test_a_shard_is_a_number_from_0_and_the_count_over_it(root: Path, shard: Any) -> None:
    for call in (
        lambda: stream(shard=shard),
        lambda: tf_stream(shard=shard),
        lambda: records(root, shard=shard),
        lambda: tf_records(root, shard=shard),
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
    for call in (stream, lambda: records(root), lambda: from_records(root, batch_size=2)):
        with pytest.raises(ValueError, match=text):
            call()
    assert len(records(root, shard=(1, 2))) == 6


@pytest.mark.parametrize("value", [*NO_COUNTS, 0], ids=repr)
def test_counts_are_integers(root: Path, value: Any) -> None:
    zero_too = {"buffer", "length", "seed"}
    for make, names in (
        (stream, ["rebatch", "length", "workers", "max_queue_size"]),
        (tf_stream, ["prefetch", "prefetch_bytes", "length"]),
        (
            lambda **arguments: records(root, **arguments),
            ["batch_size", "size", "workers", "max_queue_size", "seed", "buffer", "read_threads"],
        ),
        (
            lambda **arguments: tf_records(root, **arguments),
            ["batch_size", "size", "num_parallel_reads", "num_parallel_calls", "seed", "buffer"],
        ),
    ):
        for name in names if value else set(names) - zero_too:
            with pytest.raises(
                ValueError, match=f"^{name}={value!r}, expected (an integer|at least)"
            ):
                make(**{name: value})


@pytest.mark.parametrize("value", NO_COUNTS, ids=repr)
def test_other_numbers_are_integers(root: Path, value: Any) -> None:
    text = f"={value!r}, expected (an integer|at least)"
    data = records(root)
    schedule = FidelitySchedule([1])
    for call in (
        lambda: stream(rebatch=2, shuffle=value),
        lambda: from_stream(URL, length=value),
        lambda: from_records(root, size=8, batch_size=value),
        lambda: data.set_epoch(value),
        lambda: data.state_after(value, epoch=0),
        lambda: data.state_after(1, epoch=value),
        lambda: schedule.set_epoch(value),
        lambda: FidelitySchedule({0: 1, value: 2}),
        lambda: FidelitySchedule([value]),
        lambda: FidelitySchedule({0: value}),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    if value != -1:
        with pytest.raises(ValueError, match=f"seed{text}"):
            stream(rebatch=2, shuffle=3, seed=value)


@pytest.mark.parametrize("name", ["batch_size", "seed", "buffer"])
def test_what_has_no_default_of_none_is_given(root: Path, name: str) -> None:
    for make in (records, tf_records):
        with pytest.raises(ValueError, match=f"{name}=None, expected an integer"):
            make(root, **{name: None})


def test_integers_of_numpy_are_integers(root: Path) -> None:
    arguments = {"batch_size": np.int64(4), "shard": (np.int32(0), np.int32(1))}
    batches = -(-SAMPLES // 4)
    assert len(records(root, **arguments)) == batches
    assert len(tf_records(root, **arguments, size=np.int64(8))) == batches
    assert len(tf_stream(length=np.int64(4))) == 4


@pytest.mark.parametrize("name", ["bogus", "timeout"])
def test_unknown_keywords_are_named(root: Path, name: str) -> None:
    for call in (
        stream,
        tf_stream,
        lambda **options: records(root, **options),
        lambda **options: tf_records(root, **options),
        lambda **options: from_stream(URL, **options),
        lambda **options: from_records(root, batch_size=2, **options),
        lambda **options: as_tf_dataset([[1]], **options),
        lambda **options: FidelitySchedule([1], **options),
    ):
        with pytest.raises(TypeError, match=f"'{name}'"):
            call(**{name: 1})


@pytest.mark.parametrize("name", ["epoch", "raw", "split", "lazy", "noexpand", "topic", "copy"])
def test_what_streams_would_not_heed_is_refused(name: str) -> None:
    for make in (stream, tf_stream):
        with pytest.raises(TypeError, match=f"^{name}: no option of a data set"):
            make(**{name: True})


@pytest.mark.parametrize("name", ["threads", "prefetch", "decode", "worker"])
def test_what_records_would_not_heed_is_refused(root: Path, name: str) -> None:
    with pytest.raises(TypeError, match=f"'{name}'"):
        records(root, **{name: 1})


def test_options_of_the_reader_reach_it(root: Path) -> None:
    data = records(root, retries=3)
    assert data.state_after(1, epoch=0)["epoch"] == 0
    data.close()


@pytest.mark.parametrize("schedule", [3, None, 2.5, {1}], ids=repr)
def test_what_is_no_schedule(schedule: Any) -> None:
    with pytest.raises(TypeError, match="^schedule=.*, expected a mapping, a sequence or a fun"):
        FidelitySchedule(schedule)


@pytest.mark.parametrize("spec", [3, SPEC[0], [np.uint8]], ids=repr)
def test_what_is_no_spec(spec: Any) -> None:
    with pytest.raises(TypeError, match=r"expected .*tf\.TensorSpec"):
        tf_stream(spec=spec)


@pytest.mark.parametrize("value", [3, None, [], tf.data.Dataset.range(3)], ids=repr)
def test_what_is_no_stream(value: Any) -> None:
    with pytest.raises(TypeError, match=r"was not made by stream_dataset"):
        close_stream(value)
