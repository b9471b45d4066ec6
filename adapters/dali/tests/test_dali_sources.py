"""PcrSource as an external source of pipelines that users write themselves."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from dali_helpers import (
    SAMPLES,
    check_gray,
    define_raw,
    epoch_of,
    flat,
    noise_jpeg,
    write_records,
)
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from pcr_set_helpers import WatchedReader

from tensorcom import PcrError, SourceError
from tensorcom.images import decode_image
from tensorcom.pcr import PcrReader
from tensorcom.pcr import PcrSource as CoreSource
from tensorcom_dali import PcrSource, external_source


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_records(tmp_path_factory.mktemp("gray") / "set")


@pytest.fixture(scope="module")
def noise_root(tmp_path_factory) -> Path:
    return write_records(tmp_path_factory.mktemp("noise") / "set", make=noise_jpeg)


@pytest.fixture
def source(root):
    """Return a function that makes sources of 4 samples, closed with the test."""
    made = []

    def make(where=root, **arguments) -> PcrSource:
        made.append(PcrSource(where, **{"batch_size": 4, **arguments}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def core_labels(root: Path, epoch: int, **arguments) -> list[list[int]]:
    with CoreSource(root, **{"batch_size": 4, "decode": False, **arguments}) as core:
        core.set_epoch(epoch)
        return [labels.tolist() for _, labels in core]


def test_it_is_iterated_as_core_is_and_iter_alone_does_nothing(source, root) -> None:
    one = source()
    for _ in range(3):
        iter(one)
    epochs = [[labels.tolist() for _, labels in one] for _ in range(2)]
    assert epochs == [core_labels(root, number) for number in range(2)]
    assert one.epoch == 2


def test_images_are_arrays_of_the_files_with_guards(source, noise_root) -> None:
    groups = 1  # of which nothing was sent in part, so that a guard is exact
    batches = list(source(noise_root, scan_groups=groups, shuffle=False))
    with PcrReader(noise_root) as reader:
        plain = [reader.sample(n, scan_groups=groups)[0] for n in range(SAMPLES)]
    files = [image.tobytes() for images, _ in batches for image in images]
    assert all(len(ours) > len(theirs) for ours, theirs in zip(files, plain, strict=True))
    with CoreSource(
        noise_root, batch_size=4, scan_groups=groups, shuffle=False, size=None, augment=None
    ) as core:
        pixels = [image for images, _ in core for image in images]
    for data, expected in zip(files, pixels, strict=True):
        np.testing.assert_array_equal(decode_image(data), expected)
    unguarded = list(source(noise_root, scan_groups=groups, shuffle=False, guard=False))
    assert [image.tobytes() for images, _ in unguarded for image in images] == plain
    for images, labels in batches:
        assert {image.dtype for image in images} == {np.dtype("uint8")}
        assert labels.dtype == np.int32


def test_pixels_of_dali_are_those_of_core_at_each_fidelity(source, noise_root) -> None:
    for groups in (1, 2, 5, 10):
        one = source(noise_root, scan_groups=groups, shuffle=False)

        @pipeline_def(batch_size=4, num_threads=2, device_id=None)
        def define(one=one):
            images, labels = external_source(one)
            return fn.decoders.image(images), labels

        whole = {"size": None, "augment": None, "shuffle": False}
        with CoreSource(noise_root, batch_size=4, scan_groups=groups, **whole) as core:
            expected = [image for images, _ in core for image in images]
        pipeline, found = define(), []
        for _ in range(len(one)):
            images, _ = pipeline.run()
            found += [np.array(images.at(place)) for place in range(len(images))]
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("arguments", [{}, {"drop_last": True}, {"shard": (1, 2), "end": "uneven"}])
def test_len_is_that_of_core(source, root, arguments) -> None:
    one = source(**arguments)
    epoch = [labels.tolist() for _, labels in one]
    assert len(one) == len(epoch)
    assert epoch == core_labels(root, 0, **arguments)


def test_raw_arguments_make_an_external_source_without_our_function(source) -> None:
    one = source(shuffle=False)

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def define():
        return tuple(fn.external_source(source=one, **one.arguments))

    pipeline = define()
    assert flat(epoch_of(pipeline)) == list(range(SAMPLES))
    assert flat(epoch_of(pipeline)) == list(range(SAMPLES))


@pytest.mark.parametrize("policy", list(LastBatchPolicy))
def test_iterators_of_dali_get_each_sample_whatever_their_policy(source, policy) -> None:
    # Their policies do nothing for external sources; so the source's drop_last is what counts.
    for drop_last, batches in ((False, 6), (True, 5)):
        one = source(decode=True, size=8, augment=None, drop_last=drop_last)
        iterator = DALIGenericIterator(
            [define_raw(one)], ["images", "labels"], auto_reset=True, last_batch_policy=policy
        )
        for _ in range(2):
            epoch = [next(iter(found.values())) for (found,) in iterator]
            assert len(epoch) == batches == len(one)


def test_decoded_pixels_come_as_core_makes_them(source) -> None:
    pipeline = define_raw(source(decode=True, size=8))
    for _ in range(6):
        images, labels = pipeline.run()
        assert images.layout() == "HWC"
        check_gray(images.as_array(), labels.as_array())


def test_scan_groups_set_between_epochs_hold_for_the_whole_next_one(source, noise_root) -> None:
    one = source(noise_root, scan_groups=1, guard=False)
    pipeline = define_raw(one)
    sizes = []
    for groups in (1, 4, 2):
        one.scan_groups = groups
        epoch = []
        while True:
            try:
                images, labels = pipeline.run()
            except StopIteration:
                pipeline.reset()
                break
            for place, label in enumerate(labels.as_array().ravel().tolist()):
                epoch.append((label, len(images.at(place))))
        sizes.append(dict(epoch))
    with PcrReader(noise_root) as reader:
        for groups, found in zip((1, 4, 2), sizes, strict=True):
            assert found == {
                n: len(reader.sample(n, scan_groups=groups)[0]) for n in range(SAMPLES)
            }


def test_scan_groups_set_during_an_epoch_keep_guards_exact(source, noise_root) -> None:
    whole = {"shuffle": False, "size": None, "augment": None, "batch_size": 4}
    expected = {}
    for groups in (1, 2):
        with CoreSource(noise_root, scan_groups=groups, **whole) as core:
            expected[groups] = [image for images, _ in core for image in images]
    one = source(noise_root, scan_groups=1, shuffle=False, prefetch=1)
    one._reader = reader = WatchedReader(noise_root)
    gate = reader.gates[2] = threading.Event()
    batches = iter(one)
    found = [next(batches)]
    deadline = time.monotonic() + 30
    while 2 not in reader.begun and time.monotonic() < deadline:
        time.sleep(0.01)
    one.scan_groups = 2  # while record 2, of sample 10, is still read with one group
    gate.set()
    found += list(batches)
    seen = []
    for images, labels in found:
        for image, label in zip(images, labels.tolist(), strict=True):
            pixels = decode_image(image.tobytes())
            seen += [g for g in (1, 2) if np.array_equal(pixels, expected[g][label])]
    assert seen == [1] * 15 + [2] * 8


def test_states_count_what_was_taken_and_go_on_from_there(source, root) -> None:
    one = source(seed=5)
    batches = iter(one)
    found = [next(batches)[1].tolist() for _ in range(2)]
    state = one.state_dict()
    assert state == one.state_after(2, epoch=0)
    again = source()
    again.load_state_dict(state)
    found += [labels.tolist() for _, labels in again]
    assert found == core_labels(root, 0, seed=5)
    assert [labels.tolist() for _, labels in again] == core_labels(root, 1, seed=5)
    with pytest.raises(ValueError, match="saved with another set or order"):
        source(shuffle=False).load_state_dict(state)


def test_a_pickle_goes_on_with_what_comes_next(source, root) -> None:
    one = pickle.loads(pickle.dumps(source()))
    assert [labels.tolist() for _, labels in one] == core_labels(root, 0)
    next(iter(one))
    with pickle.loads(pickle.dumps(one)) as copy:
        assert [labels.tolist() for _, labels in copy] == core_labels(root, 2)
    one.close()


def test_two_pipelines_cannot_read_one_source(source) -> None:
    one = source()
    first, second = define_raw(one), define_raw(one)
    first.run()
    with pytest.raises(SourceError, match="two pipelines read the same source"):
        second.run()
    assert len(epoch_of(first)) == 5, "the first one goes on"


def test_a_pipeline_of_smaller_batches_is_an_error_where_it_is_defined(source) -> None:
    with pytest.raises(SourceError, match=r"batch_size=4, but the pipeline 3: give the pipeline"):
        define_raw(source(), batch_size=3)


@pytest.mark.parametrize("what", [iter([]), [([], [])], None])
def test_what_is_no_source_is_an_error_that_says_what_is(what) -> None:
    with pytest.raises(SourceError, match="expected a PcrSource or StreamSource"):

        @pipeline_def(batch_size=3, num_threads=1, device_id=None)
        def define():
            return tuple(external_source(what))

        define()


def test_a_generator_is_told_that_it_has_no_second_epoch() -> None:
    with pytest.raises(SourceError, match="iterated once only gives a pipeline no second epoch"):

        @pipeline_def(batch_size=3, num_threads=1, device_id=None)
        def define():
            return tuple(external_source(batch for batch in []))

        define()


def test_an_error_keeps_its_type_and_text(source, tmp_path) -> None:
    root = write_records(tmp_path / "set")
    path = root / "PCR_3.pcr"
    path.write_bytes(path.read_bytes()[:50])
    pipeline = define_raw(source(root, shuffle=False))
    with pytest.raises(PcrError, match=r"PCR_3\.pcr"):
        epoch_of(pipeline)


def test_no_thread_is_left_after_an_epoch_or_a_close(source) -> None:
    before = set(threading.enumerate())
    one = source()
    list(one)
    assert set(threading.enumerate()) <= before
    next(iter(one))
    one.close()
    assert set(threading.enumerate()) <= before


def test_no_copy_gives_the_same_batches(source) -> None:
    one = source(decode=True, size=8, shuffle=False)

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def define():
        return tuple(external_source(one, no_copy=True))

    pipeline, kept = define(), []
    for _ in range(2):
        kept += [pipeline.run() for _ in range(len(one))]
        with pytest.raises(StopIteration):
            pipeline.run()
        pipeline.reset()
    for images, labels in kept:
        check_gray(images.as_array(), labels.as_array())
    assert [len(labels) for _, labels in kept] == [4, 4, 4, 4, 4, 3] * 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"scan_groups": 11}, "scan_groups=11, expected 1 to 10"),
        ({"batch_size": 0}, "batch_size=0, expected at least 1"),
        ({"end": "never"}, "end='never'"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
    ],
)
def test_wrong_arguments_are_errors_at_once(source, arguments, text) -> None:
    with pytest.raises(ValueError, match=text):
        source(**arguments)
