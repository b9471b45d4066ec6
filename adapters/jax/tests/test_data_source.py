"""PcrDataSource: samples by number, and when their records are read whole."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax_helpers import GROUPS, PER_RECORD, SAMPLES, WAIT_S, noise_jpeg, write_records
from pcr_set_helpers import write_set

from tensorcom import ImageError, PcrError
from tensorcom.pcr import PcrReader, PcrSource
from tensorcom.testing.http_ranges import RangeServer
from tensorcom_jax import PcrDataSource
from tensorcom_jax.data_source import _RecordCache


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("noise") / "set", make=noise_jpeg)


def watched(source: PcrDataSource) -> list[tuple[str, int]]:
    """Return a list that notes what is read of the set from now on."""
    reader, read = source.reader, []
    prefix, sample = reader.read_prefix, reader.sample

    def read_prefix(record: int, **options: Any) -> Any:
        read.append(("record", record))
        return prefix(record, **options)

    def read_sample(number: int, **options: Any) -> Any:
        read.append(("sample", number))
        return sample(number, **options)

    reader.read_prefix, reader.sample = read_prefix, read_sample  # type: ignore[method-assign]
    return read


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
@pytest.mark.parametrize("scan_groups", [1, 4, None])
@pytest.mark.parametrize(("size", "augment"), [(None, None), (16, None), (16, "eval")])
def test_images_are_those_of_core_to_the_bit(
    root: Path, size: int | None, augment: str | None, scan_groups: int | None, cache_bytes: int
) -> None:
    arguments: dict[str, Any] = {"size": size, "augment": augment, "scan_groups": scan_groups}
    source = PcrDataSource(root, cache_bytes=cache_bytes, **arguments)
    assert len(source) == SAMPLES
    with PcrSource(root, batch_size=SAMPLES, shuffle=False, **arguments) as core:
        ((images, labels),) = list(core)
    for number in range(SAMPLES):
        item = source[number]
        assert sorted(item) == ["image", "label"]
        assert item["label"] == labels[number]
        assert item["label"].dtype == np.int32
        np.testing.assert_array_equal(item["image"], images[number])
        item["image"][...] = 0  # it is the caller's
        np.testing.assert_array_equal(source[number]["image"], images[number])
    source.close()


def test_files_are_those_of_the_reader(root: Path) -> None:
    source, reader = PcrDataSource(root, decode=False, scan_groups=3), PcrReader(root)
    for number in (*range(SAMPLES), -1, -SAMPLES, np.int64(7)):
        expected = reader.sample(int(number) % SAMPLES, scan_groups=3)
        assert tuple(source[number].values()) == expected
    for number in (SAMPLES, -SAMPLES - 1):
        with pytest.raises(IndexError, match=f"sample {number} of a set of {SAMPLES}"):
            source[number]
    with pytest.raises(TypeError):
        source["one"]  # type: ignore[index]


# -- what is read --------------------------------------------------------------------------------


def test_in_the_order_of_the_set_a_record_is_soon_read_whole_and_once(root: Path) -> None:
    source = PcrDataSource(root, decode=False)
    read = watched(source)
    for _ in range(2):
        for number in range(SAMPLES):
            source[number]
    expected: list[tuple[str, int]] = []
    for record in range(4):
        expected += [("sample", record * PER_RECORD + n) for n in range(3)] + [("record", record)]
    # The last record has 3 samples, so that it is read whole in the second pass.
    assert read == [*expected, *(("sample", n) for n in range(20, 23)), ("record", 4)]


def test_bytes_over_the_network_are_those_of_the_samples_that_are_asked_for(root: Path) -> None:
    with RangeServer(root) as server:
        source = PcrDataSource(server.url, decode=False, scan_groups=2)
        server.requests.clear()
        data = source[7]["image"]
        sent = sum(r.sent_bytes for r in server.requests if r.path.endswith(".pcr"))
        assert len(data) <= sent < len(data) + 20
        source.close()


def test_what_is_kept_is_bounded_in_bytes(root: Path) -> None:
    table = PcrReader(root).table
    size = int(table.ends[:, GROUPS].max())
    source = PcrDataSource(root, decode=False, cache_bytes=size * 2)
    read = watched(source)
    for record in (0, 1, 2):
        for _ in range(5):
            source[record * PER_RECORD]
    assert [what for what in read if what[0] == "record"] == [("record", r) for r in (0, 1, 2)]
    assert source._records._held_bytes <= size * 2
    assert len(source._records._held) == 2
    read.clear()
    source[1 * PER_RECORD]
    source[2 * PER_RECORD]
    assert read == [], "both are kept"


def test_random_access_to_more_than_is_kept_reads_samples_alone(root: Path) -> None:
    size = int(PcrReader(root).table.ends[:, GROUPS].max())
    source = PcrDataSource(root, decode=False, cache_bytes=size)
    read = watched(source)
    for number in range(60):  # never two in a row of one record
        source[number % 4 * PER_RECORD + number // 4 % PER_RECORD]
    assert {what for what, _ in read} == {"sample"}
    assert len(source._records._asked) == 1
    none = PcrDataSource(root, decode=False, cache_bytes=0)
    read = watched(none)
    for _ in range(10):
        none[0]
    assert {what for what, _ in read} == {"sample"}


def test_scan_groups_hold_from_the_next_sample_on(root: Path) -> None:
    source, reader = PcrDataSource(root, decode=False), PcrReader(root)
    for groups in (None, 1, 5, 1):
        source.scan_groups = groups
        for _ in range(6):  # alone, and then from the record
            assert source[3]["image"] == reader.sample(3, scan_groups=groups)[0]
    with pytest.raises(ValueError, match="scan_groups=11, expected 1 to 10"):
        source.scan_groups = 11
    assert source.scan_groups == 1


def test_threads_that_want_one_record_read_it_once(root: Path) -> None:
    source = PcrDataSource(root, decode=False)
    read = watched(source)
    for _ in range(3):
        source[0]
    started, real = threading.Barrier(8, timeout=WAIT_S), source.reader.record_of

    def together(number: int) -> Any:
        found = real(number)
        started.wait()
        return found

    source.reader.record_of = together  # type: ignore[method-assign]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: source[n % PER_RECORD]["image"], range(8)))
    reader = PcrReader(root)
    assert found == [reader.sample(n % PER_RECORD)[0] for n in range(8)]
    assert read.count(("record", 0)) == 1


def test_sets_of_the_original_are_read_by_record_from_the_first_sample_on(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", [3, 4])
    source = PcrDataSource(root, size=8)
    read = watched(source)
    assert [int(source[number]["label"]) for number in range(7)] == list(range(7))
    assert read == [("record", 0), ("record", 1)]
    assert source.class_names is None


# -- what it is ----------------------------------------------------------------------------------


def test_repr_tells_sets_apart_and_not_where_they_lie(root: Path, tmp_path: Path) -> None:
    source = PcrDataSource(root)
    text = repr(source)
    assert text.startswith(f"PcrDataSource(samples={SAMPLES}, records=5, crc32=")
    source.scan_groups = 2
    copy = pickle.loads(pickle.dumps(source))
    moved = PcrDataSource(write_records(tmp_path / "elsewhere", make=noise_jpeg), size=8)
    assert repr(copy) == repr(moved) == repr(source) == text
    assert repr(PcrDataSource(write_records(tmp_path / "other", samples=22))) != text


def test_a_pickle_is_the_configuration(root: Path) -> None:
    source = PcrDataSource(root, scan_groups=2, size=8, augment="eval")
    expected = [source[0]["image"] for _ in range(6)]
    copy = pickle.loads(pickle.dumps(source))
    assert copy._reader is None
    assert copy.scan_groups == 2
    np.testing.assert_array_equal(copy[0]["image"], expected[0])
    source.close()
    np.testing.assert_array_equal(source[0]["image"], expected[0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"augment": "train", "size": 8}, r"random crops are for random_map"),
        ({"augment": "eval"}, "augment='eval' needs a size"),
        ({"size": 8, "decode": False}, "size=8 needs decode=True"),
    ],
)
def test_wrong_arguments(root: Path, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PcrDataSource(root, **arguments)


def test_damage_names_record_and_image(tmp_path: Path) -> None:
    root = write_records(tmp_path / "set", make=noise_jpeg)
    head, _ = PcrReader(root).sample(7, scan_groups=1)
    path = root / "PCR_1.pcr"
    data = path.read_bytes()
    start = data.index(head[:-2]) + head.index(b"\xff\xc2") + 2
    path.write_bytes(data[:start] + bytes(8) + data[start + 8 :])
    source = PcrDataSource(root)
    with pytest.raises((ImageError, PcrError), match=r"PCR_1\.pcr image 2"):
        source[7]
    assert source[8]["label"] == 8
    path.write_bytes(b"")
    with pytest.raises(PcrError, match=r"PCR_1\.pcr"):
        source[6]


def test_the_record_that_was_asked_for_least_recently_is_dropped() -> None:
    cache = _RecordCache(10)
    records: list[Any] = [object(), object(), object()]
    cache._keep((0, 1), records[0], 5)
    cache._keep((1, 1), records[1], 5)
    assert cache._touch((0, 1)) is records[0]
    cache._keep((2, 1), records[2], 5)
    assert [cache._touch((number, 1)) for number in range(3)] == [records[0], None, records[2]]


def test_a_record_that_two_threads_read_counts_once() -> None:
    cache = _RecordCache(10)
    record: Any = object()
    for _ in range(3):  # it was dropped while others waited for it, so that they read it again
        cache._keep((0, 1), record, 6)
    cache._keep((1, 1), record, 4)
    assert [cache._touch((number, 1)) for number in range(2)] == [record, record]
    cache._keep((2, 1), record, 10)
    assert [cache._touch((number, 1)) for number in range(3)] == [None, None, record]
