"""PcrSource: what the batches hold, for every kind of reader and of image."""

from __future__ import annotations

import threading
from collections import Counter

import fsspec
import numpy as np
import pytest
from pcr_set_helpers import (
    WatchedReader,
    check_pixels,
    labels_of,
    noise_jpeg,
    write_set,
)

from tensorcom import SourceError
from tensorcom.images import decode_image
from tensorcom.pcr import PcrReader, PcrSource, guarded

SIZES = [6, 1, 9, 7]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("gray"), SIZES)


@pytest.fixture(scope="module")
def noise_root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("noise"), SIZES, noise_jpeg)


@pytest.fixture
def source(root):
    """Return a function that makes sources of 4 samples of 16 x 16, closed with the test."""
    made = []

    def make(where=root, **arguments) -> PcrSource:
        one = PcrSource(where, **{"batch_size": 4, "size": 16, "threads": 2, **arguments})
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def test_an_epoch_in_the_order_of_the_set(source) -> None:
    batches = list(source(shuffle=False))
    assert [len(labels) for _, labels in batches] == [4, 4, 4, 4, 4, 3]
    assert labels_of(batches) == list(range(TOTAL))
    for images, labels in batches:
        assert images.dtype == np.uint8
        assert images.shape == (len(labels), 16, 16, 3)
        assert labels.dtype == np.int32
        check_pixels(images, labels)


@pytest.mark.parametrize("decode", [True, False])
def test_samples_are_those_of_the_batch_handed_out_last(root, source, decode) -> None:
    one = source(decode=decode, shard=(1, 2), worker=(0, 2))
    order = one.epoch_order(0).tolist()
    found = []
    for _, labels in one:  # which are the numbers of the samples
        assert one.samples.tolist() == labels.tolist()
        found += labels.tolist()
    assert found == order
    assert order != one.epoch_order(1).tolist()


def test_samples_are_without_those_that_were_skipped(tmp_path) -> None:
    path = write_set(tmp_path / "set", SIZES) / "PCR_2.pcr"
    path.write_bytes(path.read_bytes()[:2000])
    with PcrSource(tmp_path / "set", batch_size=4, size=16, on_error="skip") as one:
        for _, labels in one:
            assert one.samples.tolist() == labels.tolist()
        assert one.skipped == SIZES[2]


@pytest.mark.parametrize("scan_groups", [1, 5, None])
def test_shuffled_epochs_have_each_sample_once(source, scan_groups) -> None:
    one, again = source(scan_groups=scan_groups), source(scan_groups=scan_groups)
    epochs = []
    for _ in range(3):
        batches = list(one)
        for images, labels in batches:
            check_pixels(images, labels)
        epochs.append(labels_of(batches))
        assert sorted(epochs[-1]) == list(range(TOTAL))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [labels_of(again) for _ in range(3)] == epochs
    assert labels_of(source(seed=1)) != epochs[0]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_images_are_aligned_for_frameworks_that_take_memory_as_it_is(source, batch_size) -> None:
    batches = list(source(batch_size=batch_size))
    assert {images.ctypes.data % 64 for images, _ in batches} == {0}
    assert all(images.flags.writeable and images.flags.c_contiguous for images, _ in batches)


def test_batches_stay_as_they_were_handed_out(source) -> None:
    batches = list(source())
    before = [(images.copy(), labels.copy()) for images, labels in batches]
    list(source())
    for (images, labels), (images_then, labels_then) in zip(batches, before, strict=True):
        np.testing.assert_array_equal(images, images_then)
        np.testing.assert_array_equal(labels, labels_then)
        images[:] = 0  # writable, and nobody else's
        labels[:] = 0
    assert not any(np.shares_memory(a[0], b[0]) for a in batches for b in batches if a is not b)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("end", ["wrap", "pad", "drop", "uneven"])
def test_len_is_exact_and_readers_share(source, end, ranks, workers, drop_last) -> None:
    found, lengths = Counter(), []
    shared = {"end": end, "drop_last": drop_last, "decode": False}
    for rank in range(ranks):
        whole = source(shard=(rank, ranks), **shared)
        sizes = []
        for worker in range(workers):
            part = source(shard=(rank, ranks), worker=(worker, workers), **shared)
            batches = list(part)
            assert len(batches) == len(part)
            sizes += [len(labels) for _, labels in batches]
            found.update(labels_of(batches))
        lengths.append(len(sizes))
        assert len(whole) == len(sizes)
        assert sum(size < 4 for size in sizes) <= (0 if drop_last else 1)
    if end != "uneven":
        assert len(set(lengths)) == 1
    if end == "uneven" and not drop_last:
        assert found == Counter(range(TOTAL))
    if end in ("wrap", "pad") and not drop_last:
        assert set(found) == set(range(TOTAL))
        assert sum(found.values()) == -(-TOTAL // ranks) * ranks


def test_pixels_depend_on_no_threads_readers_or_batches(source, noise_root) -> None:
    def by_sample(ranks=1, workers=1, **arguments) -> dict[int, bytes]:
        found = {}
        for rank in range(ranks):
            for worker in range(workers):
                part = source(
                    noise_root,
                    shard=(rank, ranks),
                    worker=(worker, workers),
                    end="uneven",
                    **arguments,
                )
                for images, labels in part:
                    found.update(zip(labels.tolist(), map(bytes, images), strict=True))
        return found

    reference = by_sample()
    assert len(set(reference.values())) == TOTAL
    assert by_sample(threads=1, prefetch=1) == reference
    assert by_sample(ranks=2, workers=2, batch_size=3, prefetch=5) == reference
    assert by_sample(shuffle=False) == reference
    assert not set(by_sample(seed=1).values()) & set(reference.values())
    later = source(noise_root)
    later.set_epoch(1)
    assert not {bytes(i) for images, _ in later for i in images} & set(reference.values())


def test_evaluation_crops_are_the_same_each_epoch(source, noise_root) -> None:
    for augment in ("eval", None):
        one = source(noise_root, augment=augment, shuffle=False)
        first, second = ([images for images, _ in one] for _ in range(2))
        np.testing.assert_array_equal(np.concatenate(first), np.concatenate(second))


@pytest.mark.parametrize("scan_groups", [2, None])
def test_bytes_are_those_of_the_reader(source, root, scan_groups) -> None:
    with PcrReader(root) as reader:
        expected = [
            jpeg
            for record in range(len(SIZES))
            for jpeg in reader.read_record(record, scan_groups=scan_groups)[0]
        ]
    batches = list(source(decode=False, scan_groups=scan_groups))
    assert labels_of(batches) != list(range(TOTAL))
    for images, labels in batches:
        assert isinstance(images, list)
        assert images == [expected[label] for label in labels.tolist()]


@pytest.mark.parametrize("scan_groups", [1, 3])
def test_whole_images_are_lists(source, noise_root, scan_groups) -> None:
    one = source(noise_root, size=None, augment=None, scan_groups=scan_groups)
    found = 0
    with PcrReader(noise_root) as reader:
        for images, labels in one:
            assert isinstance(images, list)
            for image, label in zip(images, labels.tolist(), strict=True):
                jpeg = reader.sample(label, scan_groups=scan_groups)[0]
                np.testing.assert_array_equal(image, decode_image(guarded(jpeg)))
                found += 1
    assert found == TOTAL


def test_without_guard_pixels_are_the_decoders_own(source, noise_root) -> None:
    one = source(noise_root, size=None, augment=None, scan_groups=1, guard=False)
    images, labels = next(iter(one))
    with PcrReader(noise_root) as reader:
        jpeg = reader.sample(int(labels[0]), scan_groups=1)[0]
    np.testing.assert_array_equal(images[0], decode_image(jpeg))
    assert not np.array_equal(images[0], decode_image(guarded(jpeg)))


def test_what_a_transform_returns_is_stacked(source) -> None:
    def transform(image, rng):
        return np.float32(image.transpose(2, 0, 1)) + rng.random(dtype=np.float32) / 8

    for images, labels in source(transform=transform):
        assert images.shape == (len(labels), 3, 16, 16)
        assert images.dtype == np.float32
        check_pixels(images, labels)
        assert len({float(image.flat[0]) % 1 for image in images}) == len(labels)
    one = source(transform=lambda image, _: image.shape, size=None, augment=None)
    assert next(iter(one))[0] == [(30, 40, 3)] * 4


def test_bytes_read_are_those_of_the_groups(source, root) -> None:
    with PcrReader(root) as reader:
        group_bytes = reader.group_bytes.tolist()
    for groups in (1, 5, 10, None):
        one = source(scan_groups=groups, decode=False)
        list(one)
        assert one.bytes_read == group_bytes[(groups or 10) - 1]
        list(one)
        assert one.bytes_read == 2 * group_bytes[(groups or 10) - 1]


def test_each_record_is_read_once_in_the_order_of_use(source, root) -> None:
    with WatchedReader(root) as reader:
        labels = labels_of(source(reader, buffer=8))
        assert sorted(reader.begun) == list(range(len(SIZES)))
        records = np.searchsorted(reader.starts, labels, side="right") - 1
        assert reader.begun == list(dict.fromkeys(records.tolist()))


def test_more_threads_may_read_at_the_same_time(source, root) -> None:
    together = threading.Barrier(2)  # there are four records

    class Pairs(PcrReader):
        def read_prefix(self, record, **arguments):
            together.wait(60)
            return super().read_prefix(record, **arguments)

    expected = labels_of(source())
    with Pairs(root) as reader:
        one = source(reader, read_threads=2)
        assert labels_of(one) == expected
        assert one.bytes_read == reader.group_bytes[-1]


def test_a_remote_set_is_read_by_several_threads(source, root) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(f"{root}/", "/remote/", recursive=True)
    together = threading.Barrier(4)

    class Fours(PcrReader):
        def read_prefix(self, record, **arguments):
            together.wait(60)
            return super().read_prefix(record, **arguments)

    with Fours("memory://remote") as reader:
        assert not reader.is_local
        assert labels_of(source(reader)) == labels_of(source())
    memory.rm("/remote", recursive=True)


def test_scan_groups_can_change_while_running(source, root, monkeypatch) -> None:
    monkeypatch.setattr("tensorcom.pcr.feed.AHEAD_BYTES", 0)
    with WatchedReader(root) as reader:
        one = source(reader, shuffle=False, decode=False, scan_groups=1, batch_size=1)
        batches = iter(one)
        sizes = [len(next(batches)[0][0]) for _ in range(6)]
        assert reader.begun in ([0], [0, 1])
        one.scan_groups = 10
        sizes += [len(images[0]) for images, _ in batches]
        full = [len(reader.sample(sample)[0]) for sample in range(TOTAL)]
        first = [len(reader.sample(sample, scan_groups=1)[0]) for sample in range(TOTAL)]
        assert sizes[:6] == first[:6]
        assert sizes[7:] == full[7:]  # the one at 6 may have been read ahead


def test_a_sample_that_comes_twice_is_held_for_both(source) -> None:
    """The last of five ranks wraps into records that it has already read."""
    for end in ("wrap", "pad"):
        found = Counter()
        for rank in range(20):
            one = source(shard=(rank, 20), end=end, batch_size=1)
            for images, labels in one:
                check_pixels(images, labels)
                found.update(labels.tolist())
        assert set(found) == set(range(TOTAL))
        assert sum(found.values()) == 40


def test_a_source_describes_itself(source, root) -> None:
    one = source(shard=(1, 2), worker=(0, 3))
    assert repr(one) == f"PcrSource({str(root)!r}, shard=(1, 2), worker=(0, 3))"
    assert one.scan_groups is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 0}, "batch_size=0, expected at least 1"),
        ({"buffer": -1}, "buffer=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"threads": 0}, "threads=0"),
        ({"read_threads": 0}, "read_threads=0"),
        ({"size": 0}, "size=0"),
        ({"scan_groups": 11}, "scan_groups=11, expected 1 to 10"),
        ({"scan_groups": 0}, "scan_groups=0"),
        ({"end": "both"}, "end='both', expected one of wrap, pad, drop, uneven"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"augment": "test"}, "augment='test'"),
        ({"size": None}, "augment='train' needs a size"),
        ({"decode": False, "transform": len}, "transform needs decode=True"),
        ({"shard": (2, 2)}, r"shard=\(2, 2\)"),
        ({"worker": (-1, 2)}, r"worker=\(-1, 2\)"),
    ],
)
def test_wrong_arguments(source, arguments, text) -> None:
    with pytest.raises(ValueError, match=text):
        source(**arguments)


def test_options_are_the_readers(source, root) -> None:
    with pytest.raises(TypeError):
        source(no_such_option=1)
    with PcrReader(root) as reader, pytest.raises(TypeError, match="retries: no option of a Pcr"):
        source(reader, retries=1)


def test_scan_groups_are_checked_when_they_are_set(source) -> None:
    one = source(scan_groups=2)
    with pytest.raises(ValueError, match="scan_groups=11"):
        one.scan_groups = 11
    assert one.scan_groups == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"shard": (0, 24), "end": "drop"}, "23 samples are fewer than 24 ranks"),
        ({"shard": (0, 24), "end": "uneven"}, "23 samples are fewer than 24 ranks"),
        ({"batch_size": 24, "drop_last": True}, "drop_last leaves no batch of 24 of 23 samples"),
    ],
)
def test_a_rank_without_batches_is_an_error(source, root, arguments, text) -> None:
    with pytest.raises(SourceError, match=text) as caught:
        source(**arguments)
    assert caught.value.path == str(root)


def test_more_ranks_than_samples_share_by_repeats(source) -> None:
    for end in ("wrap", "pad"):
        found = [labels_of(source(shard=(rank, 50), end=end)) for rank in range(50)]
        assert {len(labels) for labels in found} == {1}


def test_a_worker_without_batches_ends_at_once(source) -> None:
    one = source(worker=(8, 9))
    assert len(one) == 0
    assert list(one) == list(one) == []
