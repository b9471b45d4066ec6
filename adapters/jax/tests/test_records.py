"""DeviceRecords: epochs, states and fidelities as they are handed out, not as they are read."""

from __future__ import annotations

import itertools
import threading
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
    samples_of,
    wait_for,
    write_records,
)
from jax_record_helpers import BATCHES, core, opened, read_ahead
from numpy.typing import NDArray

from tensorcom import ClosedError
from tensorcom.buffers import BufferPool
from tensorcom.pcr import PcrSource
from tensorcom_jax import DeviceRecords, from_records, pcr_iterator


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("gray") / "set")


@pytest.fixture(scope="module")
def noise_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("noise") / "set", make=noise_jpeg)


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


def test_the_default_device_is_that_of_the_thread_that_iterates(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, put, device = set(), jax.device_put, jax.devices()[0]

    def noted(*arguments: Any) -> Any:
        seen.add(jax.config.jax_default_device)
        return put(*arguments)

    monkeypatch.setattr(jax, "device_put", noted)
    with opened(root) as records, jax.default_device(device):
        assert samples_of(records) == core(root)
    assert seen == {device}


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


def test_closing_before_anything_was_taken_loses_no_epoch(root: Path) -> None:
    reached, closed = threading.Event(), threading.Event()

    def wait_for_close(image: NDArray[np.uint8], _: Any) -> NDArray[np.uint8]:
        reached.set()
        assert wait_for(lambda: closed.is_set() or records._running is None)
        return image

    records = DeviceRecords(root, batch_size=4, size=8, transform=wait_for_close, threads=1)
    errors: list[Exception] = []
    taker = threading.Thread(target=lambda: errors.append(error_of(records)))
    taker.start()
    assert reached.wait(WAIT_S)
    records.close()
    taker.join(WAIT_S)
    closed.set()
    assert [type(error) for error in errors] == [ClosedError]
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
        ({"layout": "HWC"}, "layout="),
        ({"end": "stop"}, "end='stop'"),
        ({"on_error": "hide"}, "on_error='hide'"),
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


def test_closing_leaves_a_decoder_that_hangs_to_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorcom.ahead._CLOSE_WAIT_S", 0.0)
    reached, go_on = threading.Event(), threading.Event()

    def hang(image: NDArray[np.uint8], _: Any) -> NDArray[np.uint8]:
        reached.set()
        assert go_on.wait(WAIT_S)
        return image

    records = DeviceRecords(root, batch_size=4, size=8, transform=hang, threads=1)
    errors: list[Exception] = []
    taker = threading.Thread(target=lambda: errors.append(error_of(records)))
    taker.start()
    assert reached.wait(WAIT_S)
    records.close()
    taker.join(WAIT_S)
    assert [type(error) for error in errors] == [ClosedError]
    go_on.set()
    assert wait_for(lambda: own_threads() == [])


def test_functions_give_the_same_objects(root: Path) -> None:
    one = pcr_iterator(root, batch_size=4, scan_groups=2, prefetch=3, size=8, seed=1)
    two = from_records(root, batch_size=4, scan_groups=2, size=8, seed=1)
    assert type(one) is type(two) is DeviceRecords
    assert samples_of(one) == samples_of(two) == core(root, seed=1)
    assert one.class_names == two.class_names
    assert len(one.class_names or ()) == SAMPLES
    one.close()
    two.close()
