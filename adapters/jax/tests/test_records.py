"""DeviceRecords: epochs, states and fidelities as they are handed out, not as they are read."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax_helpers import (
    GROUPS,
    PER_RECORD,
    SAMPLES,
    WAIT_S,
    error_of,
    flat,
    gray_of,
    noise_jpeg,
    own_threads,
    run_script,
    samples_of,
    wait_for,
    write_records,
)
from numpy.typing import NDArray

from tensorcom import ClosedError
from tensorcom.buffers import BufferPool
from tensorcom.pcr import PcrSource
from tensorcom_jax import DeviceRecords, from_records, pcr_iterator

BATCHES = 6  # of 4 samples


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("gray") / "set")


@pytest.fixture(scope="module")
def noise_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("noise") / "set", make=noise_jpeg)


def opened(root: Path, **arguments: Any) -> Any:
    return closing(DeviceRecords(root, **{"batch_size": 4, "size": 8, "threads": 2, **arguments}))


@contextmanager
def read_ahead(records: DeviceRecords, batches: int) -> Iterator[Any]:
    """Iterate, and wait until the thread has read all that it may read ahead."""
    iterator = iter(records)
    next(iterator)
    running: Any = records._running._shelf
    assert wait_for(lambda: len(running._items) == batches or running._is_finished)
    yield iterator
    iterator.close()


def core(root: Path, epoch: int = 0, **arguments: Any) -> list[list[int]]:
    """Return the samples of core's batches."""
    with PcrSource(root, **{"batch_size": 4, "size": 8, **arguments}) as source:
        source.set_epoch(epoch)
        return [labels.tolist() for _, labels in source]


# -- what is yielded -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("scan_groups", [1, 4, None])
def test_batches_are_those_of_core_to_the_bit(
    noise_root: Path, layout: str, scan_groups: int | None
) -> None:
    arguments = {"scan_groups": scan_groups, "seed": 3, "size": 16}
    with opened(noise_root, layout=layout, **arguments) as records:
        found = list(records)
    with PcrSource(noise_root, batch_size=4, **arguments) as source:
        expected = list(source)
    assert [len(labels) for _, labels in found] == [4, 4, 4, 4, 4, 3]
    for (images, labels), (pixels, numbers) in zip(found, expected, strict=True):
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
        moved = pixels if layout == "NHWC" else pixels.transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(images, moved)
        np.testing.assert_array_equal(labels, numbers)


def test_decoded_memory_is_used_where_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorcom_jax.placement import Placement

    addresses = []
    put = Placement.put

    def noted(self: Placement, arrays: Any, **options: Any) -> Any:
        addresses.append(arrays[0].ctypes.data)
        return put(self, arrays, **options)

    monkeypatch.setattr(Placement, "put", noted)
    with opened(root, size=64) as records:
        kept = list(records)
    found = [images.addressable_shards[0].data.unsafe_buffer_pointer() for images, _ in kept]
    assert found == addresses
    assert flat(samples_of(kept)) == flat(core(root))


def test_whole_images_are_lists(noise_root: Path) -> None:
    with opened(noise_root, size=None, augment=None, layout="NCHW") as records:
        images, labels = next(iter(records))
    assert [image.shape for image in images] == [(3, 40, 48)] * 4
    assert all(isinstance(image, jax.Array) for image in images)
    assert labels.shape == (4,)


def test_files_stay_bytes(root: Path) -> None:
    with opened(root, decode=False) as records:
        files, labels = next(iter(records))
    assert all(file.startswith(b"\xff\xd8") and type(file) is bytes for file in files)
    assert isinstance(labels, jax.Array)


def test_what_a_transform_returned_it_may_change_later(root: Path) -> None:
    kept: list[NDArray[np.uint8]] = []

    def whole(image: NDArray[np.uint8], _: Any) -> NDArray[np.uint8]:
        own = BufferPool().take(image.nbytes)  # at an address that a device would use as it is
        kept.append(np.ndarray(image.shape, np.uint8, own))
        kept[-1][:] = image
        return kept[-1]

    with opened(root, size=None, augment=None, transform=whole) as records:
        images, labels = next(iter(records))
        for array in kept:
            array[:] = 255
        means = [int(image.mean()) for image in images]
        assert means == pytest.approx([gray_of(label) for label in labels.tolist()], abs=3)


SPLIT = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tensorcom_jax import pcr_iterator

split = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
options = {"decode": False, "sharding": split, "drop_last": True}
try:
    pcr_iterator(sys.argv[1], batch_size=3, **options)
except ValueError as error:
    print(error)
for size in ({}, {"size": None, "augment": None}):
    records = pcr_iterator(sys.argv[1], batch_size=4, **options, **size)
    jpegs, labels = next(iter(records))
    assert [jpeg[:2] for jpeg in jpegs] == [bytes([255, 216])] * 4
    assert labels.sharding == split
    records.close()
"""


def test_labels_alone_are_split_too(root: Path) -> None:
    done = run_script(SPLIT, root, devices=2)
    assert done.stdout.startswith("a batch of 3 samples cannot be split into 2 equal parts"), done


def test_what_a_transform_returns_is_stacked_and_keeps_its_dtype(noise_root: Path) -> None:
    def corner(image: NDArray[np.uint8], _: np.random.Generator) -> NDArray[Any]:
        return image[:2, :3, 0].astype(ml_dtypes.bfloat16)

    with opened(noise_root, transform=corner) as records:
        images, _ = next(iter(records))
    assert (images.dtype, images.shape) == (ml_dtypes.bfloat16, (4, 2, 3))


# -- epochs --------------------------------------------------------------------------------------


def test_each_iteration_is_the_next_epoch_also_after_a_break(root: Path) -> None:
    with opened(root) as records:
        assert (len(records), records.epoch) == (BATCHES, 0)
        assert samples_of(records) == core(root)
        assert samples_of(itertools.islice(records, 1)) == core(root, 1)[:1]
        assert records.epoch == 1
        assert samples_of(records) == core(root, 2)
        assert records.epoch == 3
        records.set_epoch(7)
        assert samples_of(records) == core(root, 7)


def test_the_epoch_is_that_of_what_was_handed_out(root: Path) -> None:
    with opened(root, prefetch=BATCHES) as records:
        with read_ahead(records, BATCHES):
            assert records._running._shelf._is_finished, "the thread is at the end"
            assert records.epoch == 0
            assert records.state_dict()["done"][0][-1] == 1
        assert samples_of(records) == core(root, 1)


def test_an_iteration_from_which_nothing_was_taken_is_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorcom.ahead import Ahead

    with opened(root) as records:
        with monkeypatch.context() as patch:

            def interrupted(self: Any) -> Any:
                assert wait_for(lambda: self._shelf._items)
                raise KeyboardInterrupt

            patch.setattr(Ahead, "__next__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(iter(records))
        assert own_threads() == []
        assert (records.epoch, records.state_dict()["done"]) == (0, [])
        assert samples_of(records) == core(root)


def test_a_new_iteration_ends_the_one_before_which_says_so(root: Path) -> None:
    with opened(root) as records:
        one, two = iter(records), iter(records)
        assert samples_of([next(one)]) == core(root)[:1]
        assert samples_of([next(two)]) == core(root, 1)[:1]
        with pytest.raises(ClosedError, match="another one began"):
            next(one)
        assert records.epoch == 1
        assert samples_of(two) == core(root, 1)[1:]


# -- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", range(BATCHES + 1))
def test_a_state_counts_what_was_handed_out_whatever_was_read_ahead(root: Path, taken: int) -> None:
    with opened(root, prefetch=BATCHES, seed=5) as records:
        iterator = iter(records)
        found = samples_of(itertools.islice(iterator, taken))
        if taken:
            assert wait_for(lambda: records._running._shelf._is_finished)
        state = json.loads(json.dumps(records.state_dict()))
        iterator.close()
        assert records.state_dict() == state
    with opened(root) as again:
        again.load_state_dict(state)
        assert again.state_dict() == state
        found += samples_of(again)
        assert samples_of(again) == core(root, 1, seed=5)
    assert found == core(root, seed=5)


def test_after_the_end_the_state_is_that_of_the_next_epoch(root: Path) -> None:
    with opened(root) as records, opened(root) as again:
        samples_of(records)
        again.load_state_dict(records.state_dict())
        assert samples_of(again) == core(root, 1)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_state_is_for_any_number_of_ranks(root: Path, ranks: int) -> None:
    found, states = [], []
    for rank in range(2):
        with opened(root, shard=(rank, 2), end="uneven", batch_size=2) as records:
            found += flat(samples_of(itertools.islice(records, 3)))
            states.append(records.state_dict())
    assert states[0] == states[1]
    for rank in range(ranks):
        with opened(root, shard=(rank, ranks), end="uneven", batch_size=3) as records:
            records.load_state_dict(states[0])
            found += flat(samples_of(records))
    assert sorted(found) == list(range(SAMPLES))


def test_loading_ends_the_iteration_that_runs(root: Path) -> None:
    with opened(root) as records:
        state = records.state_dict()
        with read_ahead(records, 2) as iterator:
            records.load_state_dict(state)
            with pytest.raises(ClosedError):
                next(iterator)
        assert samples_of(records) == core(root)


@pytest.mark.parametrize("taken", [0, 2, BATCHES])
def test_a_pickle_begins_with_the_epoch_that_comes_next(root: Path, taken: int) -> None:
    with opened(root, seed=2, scan_groups=3) as records:
        iterator = iter(records)
        assert len(list(itertools.islice(iterator, taken))) == taken
        copy = pickle.loads(pickle.dumps(records))
        assert copy._source is None
        assert copy.scan_groups == 3
        epoch = 1 if taken else 0
        assert samples_of(copy) == core(root, epoch, seed=2)
        assert samples_of(copy) == core(root, epoch + 1, seed=2)
        copy.close()
        iterator.close()


def test_a_pickle_has_the_state_that_waits(root: Path) -> None:
    with opened(root) as records, opened(root) as again:
        assert len(list(itertools.islice(records, 2))) == 2
        again.load_state_dict(records.state_dict())
        copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(again))))
        assert samples_of(copy) == core(root)[2:]
        copy.close()


# -- fidelity ------------------------------------------------------------------------------------


def test_scan_groups_set_between_epochs_hold_for_the_whole_next_one(noise_root: Path) -> None:
    with opened(noise_root, scan_groups=1, size=16) as records:
        read = []
        for groups in (1, 3, None):
            records.scan_groups = groups
            assert records.scan_groups == groups
            before = records.bytes_read
            found = list(records)
            read.append(records.bytes_read - before)
            with PcrSource(noise_root, batch_size=4, scan_groups=groups, size=16) as source:
                source.set_epoch(len(read) - 1)
                for (images, _), (pixels, _) in zip(found, source, strict=True):
                    np.testing.assert_array_equal(images, pixels)
        expected = records.reader.group_bytes[[0, 2, GROUPS - 1]]
    assert read == expected.tolist()


def test_scan_groups_set_while_running_hold_for_records_read_later(noise_root: Path) -> None:
    go_on = threading.Event()
    with opened(noise_root, scan_groups=1, batch_size=PER_RECORD, shuffle=False) as records:
        read: list[int | None] = []
        real = records.reader.read_prefix

        def noted(record: int, *, scan_groups: int | None = None) -> Any:
            read.append(scan_groups)
            assert record < 3 or go_on.wait(WAIT_S)
            return real(record, scan_groups=scan_groups)

        records.reader.read_prefix = noted
        iterator = iter(records)
        next(iterator)
        assert wait_for(lambda: len(read) == 4)
        records.scan_groups = 6
        go_on.set()
        assert len(list(iterator)) == 4
    assert read == [1, 1, 1, 1, 6]


# -- what goes wrong -----------------------------------------------------------------------------


def test_damage_is_an_error_in_its_place_with_the_text_of_core(tmp_path: Path) -> None:
    root = write_records(tmp_path / "set")
    (root / "PCR_3.pcr").write_bytes(b"")
    plain = {"batch_size": PER_RECORD, "shuffle": False}
    expected = error_of(PcrSource(root, size=8, **plain))
    with opened(root, prefetch=8, **plain) as records:
        iterator = iter(records)
        assert flat(samples_of(next(iterator) for _ in range(3))) == list(range(15))
        error = error_of(iterator)
        assert (type(error), str(error)) == (type(expected), str(expected))
        assert own_threads() == []
        assert records.epoch == 0
    with opened(root, on_error="skip", **plain) as records:
        found = flat(samples_of(records))
        assert found == [n for n in range(SAMPLES) if n not in range(15, 20)]
        assert records.skipped == 5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"prefetch": 0}, "prefetch=0, expected at least 1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"layout": "HWC"}, "layout="),
        ({"end": "stop"}, "end='stop'"),
        ({"on_error": "hide"}, "on_error='hide'"),
        ({"scan_groups": 11}, "scan_groups=11, expected 1 to 10"),
        ({"size": None}, "augment='train' needs a size"),
    ],
)
def test_wrong_arguments(root: Path, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DeviceRecords(root, **{"batch_size": 4, **arguments})


def test_states_of_other_sets_are_refused(root: Path, tmp_path: Path) -> None:
    other = write_records(tmp_path / "set", samples=7)
    with opened(root) as records, opened(other) as small:
        for state in (small.state_dict(), {"epoch": 3}, {**records.state_dict(), "seed": -1}):
            with pytest.raises(ValueError, match="state"):
                records.load_state_dict(state)
        with pytest.raises(ValueError, match="epoch=-1, expected at least 0"):
            records.set_epoch(-1)
        assert samples_of(records) == core(root), "what was refused changed nothing"


# -- life ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["drop", "close", "close records"])
def test_an_iteration_that_is_left_leaves_no_thread(root: Path, use: str) -> None:
    records = DeviceRecords(root, batch_size=1, size=8)
    iterator = iter(records)
    next(iterator)
    assert own_threads() != []
    if use == "drop":
        del iterator
    elif use == "close":
        iterator.close()
    else:
        records.close()
    assert own_threads() == []
    records.close()
    assert len(samples_of(records)) == SAMPLES, "iterating opens it again"
    records.close()


def test_functions_give_the_same_objects(root: Path) -> None:
    one = pcr_iterator(root, batch_size=4, scan_groups=2, prefetch=3, size=8, seed=1)
    two = from_records(root, batch_size=4, scan_groups=2, size=8, seed=1)
    assert type(one) is type(two) is DeviceRecords
    assert samples_of(one) == samples_of(two) == core(root, seed=1)
    assert one.class_names == two.class_names
    assert len(one.class_names or ()) == SAMPLES
    one.close()
    two.close()
