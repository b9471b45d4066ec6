"""Arguments that are wrong are errors at once, which name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax_helpers import write_records

from tensorcom_jax import (
    DeviceRecords,
    DeviceStream,
    PcrDataSource,
    PcrIterDataset,
    StreamIterDataset,
    from_records,
    from_stream,
    pcr_iterator,
    stream_iterator,
)

URL = "zsub://127.0.0.1:9"
SHARDS = [(3, 2), (0, 0), (-1, 2), (2, 2), (0.5, 2), (True, 2), ("0", "2"), 3, (1,), (0, 1, 2), ()]
NO_COUNTS = [2.5, True, "3", -1]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("sets") / "set", 6)


def records(root: Path, **arguments: Any) -> DeviceRecords:
    return DeviceRecords(root, **{"batch_size": 2, "size": 8, **arguments})


def batches(root: Path, **arguments: Any) -> PcrIterDataset:
    return PcrIterDataset(root, **{"batch_size": 2, "size": 8, **arguments})


def check_refused(calls: Any, value: Any) -> None:
    """Check that each call says that what it was given, by name, is no count."""
    for name, call in calls:
        with pytest.raises(ValueError, match=f"^{name}={value!r}, expected (an integer|at least)"):
            call(**{name: value})


@pytest.mark.parametrize("shard", SHARDS, ids=str)
def test_a_shard_is_a_number_from_0_and_the_count_over_it(root: Path, shard: Any) -> None:
    for call in (
        lambda: DeviceStream(URL, shard=shard),
        lambda: StreamIterDataset(URL, shard=shard),
        lambda: records(root, shard=shard),
        lambda: batches(root, shard=shard),
        lambda: from_records(root, batch_size=2, shard=shard),
    ):
        with pytest.raises(ValueError, match=r"^shard=.*, expected a number from 0 and the count"):
            call()


@pytest.mark.parametrize("value", NO_COUNTS, ids=repr)
def test_counts_are_integers(root: Path, value: Any) -> None:
    def of(make: Any, *names: str) -> list[tuple[str, Any]]:
        return [(name, lambda **given: make(**given)) for name in names]

    dataset = records(root)
    calls = of(lambda **given: stream_iterator(URL, **given), "length", "prefetch")
    calls += of(lambda **given: from_stream(URL, **given), "length")
    calls += of(lambda **given: StreamIterDataset(URL, **given), "length")
    counts = ["batch_size", "prefetch", "size", "threads", "read_threads", "seed", "buffer"]
    calls += of(lambda **given: records(root, **given), *counts)
    calls += of(lambda **given: pcr_iterator(root, **{"batch_size": 2, **given}), *counts[:2])
    calls += of(lambda **given: batches(root, **given), *counts, "epochs")
    calls += of(lambda **given: PcrDataSource(root, **given), "size", "cache_bytes")
    calls += of(dataset.set_epoch, "epoch")
    check_refused(calls, value)


def test_0_is_too_few_of_some(root: Path) -> None:
    for name in ("batch_size", "prefetch", "size", "threads"):
        check_refused([(name, lambda **given: records(root, **given))], 0)
        check_refused([(name, lambda **given: batches(root, **given))], 0)
    check_refused([("prefetch", lambda **given: DeviceStream(URL, **given))], 0)
    check_refused([("size", lambda **given: PcrDataSource(root, **given))], 0)


@pytest.mark.parametrize("name", ["batch_size", "prefetch", "seed", "buffer"])
def test_what_has_no_default_of_none_is_given(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}=None, expected an integer"):
        records(root, **{name: None})


def test_integers_of_numpy_are_integers(root: Path) -> None:
    shard = (np.int32(0), np.int32(1))
    dataset = records(root, batch_size=np.int64(2), prefetch=np.int8(1), shard=shard)
    assert [len(labels) for _, labels in dataset] == [2, 2, 2]
    assert len(DeviceStream(URL, length=np.int64(4))) == 4


@pytest.mark.parametrize("groups", [0, 11, True, 2.5, "3"])
def test_scan_groups_are_those_of_the_set(root: Path, groups: Any) -> None:
    dataset, source = records(root), PcrDataSource(root)
    for call in (
        lambda: records(root, scan_groups=groups),
        lambda: batches(root, scan_groups=groups),
        lambda: PcrDataSource(root, scan_groups=groups),
        lambda: setattr(dataset, "scan_groups", groups),
        lambda: setattr(source, "scan_groups", groups),
    ):
        with pytest.raises(ValueError, match=f"^scan_groups={groups!r}, expected"):
            call()
    assert dataset.scan_groups is source.scan_groups is None


@pytest.mark.parametrize("name", ["bogus", "worker"])
def test_unknown_keywords_are_named(root: Path, name: str) -> None:
    for call in (
        lambda **options: stream_iterator(URL, **options),
        lambda **options: StreamIterDataset(URL, **options),
        lambda **options: records(root, **options),
        lambda **options: batches(root, **options),
        lambda **options: PcrDataSource(root, **options),
    ):
        with pytest.raises(TypeError, match=name):
            call(**{name: (0, 1)})


def test_options_of_source_and_reader_reach_them(root: Path, tmp_path: Path) -> None:
    options = {"retries": 3, "cache": tmp_path, "cache_bytes": 1 << 20}
    dataset = records(root, buffer=7, read_threads=2, **options)
    assert sum(len(labels) for _, labels in dataset) == 6
    assert dataset.state_dict()["done"] == []
    iterator = iter(dataset)
    next(iterator)
    assert dataset.state_dict()["done"] == [[1, 1, 2, "wrap", False, 7, 1]]
    iterator.close()
    dataset.close()
    with pytest.raises(ValueError, match="retries is -1"):
        records(root, retries=-1)


NOT_OF_READERS = ["allow64", "converters", "copy", "device", "epoch", "lazy", "multipart"]
NOT_OF_READERS += ["noexpand", "raw", "send_meta", "split", "topic"]


@pytest.mark.parametrize("name", NOT_OF_READERS)
def test_options_of_a_connection_that_mean_nothing_here_are_refused(name: str) -> None:
    for make in (DeviceStream, StreamIterDataset):
        with pytest.raises(TypeError, match=f"^{name}: no option of a data set"):
            make(URL, **{name: 1})


def test_shardings_are_one_for_each_array(root: Path) -> None:
    device = jax.devices()[0]
    for given in ([device], [device] * 3, (None,)):
        with pytest.raises(ValueError, match=f"{len(given)} shardings for 2 arrays"):
            records(root, sharding=given)
    for given in ([], ()):
        with pytest.raises(ValueError, match="sharding is empty, expected one for each array"):
            DeviceStream(URL, sharding=given)
    dataset = records(root, sharding=(device, None))
    assert [images.committed for images, _ in dataset] == [True] * 3
