"""Loader: epochs, lengths, frameworks, states and errors over a pipeline."""

from __future__ import annotations

import gc
import json
import pickle
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from dali_helpers import (
    SAMPLES,
    check_gray,
    define_raw,
    flat,
    labels_of,
    noise_jpeg,
    write_records,
)
from nvidia.dali import fn, pipeline_def
from pcr_set_helpers import progressive, write_set
from PIL import Image

from tensorcom import PcrError, SourceError
from tensorcom.pcr import PcrSource as CoreSource
from tensorcom_dali import (
    Loader,
    PcrSource,
    external_source,
    plain_pipeline,
    train_pipeline,
    val_pipeline,
)

FRAMEWORKS = {"numpy": np.ndarray, "torch": torch.Tensor, "jax": jax.Array}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_records(tmp_path_factory.mktemp("gray") / "set")


@pytest.fixture(scope="module")
def noise_root(tmp_path_factory) -> Path:
    return write_records(tmp_path_factory.mktemp("noise") / "set", make=noise_jpeg)


@pytest.fixture
def loader(root):
    """Return a function that makes loaders of 4 samples, closed with the test."""
    made = []

    def make(pipeline=val_pipeline, where=root, source=None, **options) -> Loader:
        arguments = {"batch_size": 4, **(source or {})}
        if pipeline in (val_pipeline, train_pipeline):
            size = {} if arguments.get("decode") else {"size": 16}
            options = {**size, "dtype": "uint8", "layout": "NHWC", **options}
        made.append(Loader(PcrSource(where, **arguments), pipeline, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def core_labels(root: Path, epoch: int, **arguments) -> list[list[int]]:
    with CoreSource(root, **{"batch_size": 4, "decode": False, **arguments}) as core:
        core.set_epoch(epoch)
        return [labels.tolist() for _, labels in core]


def taken(loader: Loader, batches: int | None = None) -> list[tuple[list[int], bytes]]:
    """Return labels and pixels of some batches."""
    found = []
    for images, labels in loader:
        found.append((np.asarray(labels).tolist(), np.asarray(images).tobytes()))
        if len(found) == batches:
            break
    return found


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_epochs_are_those_of_core_also_after_a_break(loader, root, to) -> None:
    one = loader(to=to)
    for epoch in range(4):
        found = []
        for images, labels in one:
            assert isinstance(images, FRAMEWORKS[to])
            assert isinstance(labels, FRAMEWORKS[to])
            assert images.shape == (len(labels), 16, 16, 3)
            assert str(labels.dtype).endswith("int32")
            check_gray(images, labels)
            found.append(np.asarray(labels).tolist())
            assert one.epoch == epoch
            if epoch == 1 and len(found) == 2:
                break
        expected = core_labels(root, epoch)
        assert found == (expected[:2] if epoch == 1 else expected)
    assert len(one) == 6


def test_a_break_is_no_matter_where_in_the_epoch(loader, root) -> None:
    one = loader()
    for epoch in range(7):
        if epoch:
            assert len(taken(one, epoch)) == min(epoch, 6)
        else:
            taken(one)
    assert [labels for labels, _ in taken(one)] == core_labels(root, 7)


def test_an_iteration_that_was_overtaken_is_over(loader, root) -> None:
    one = loader()
    first = iter(one)
    next(first)
    second = iter(one)
    assert np.asarray(next(second)[1]).tolist() == core_labels(root, 1)[0]
    with pytest.raises(SourceError, match="another iteration of this loader has begun"):
        next(first)
    assert labels_of(second) == core_labels(root, 1)[1:]
    assert list(second) == [], "an iteration that has ended stays so"


def test_iter_alone_begins_nothing(loader, root) -> None:
    one = loader()
    iter(one)
    iter(one)
    assert labels_of(one) == core_labels(root, 0)


@pytest.mark.parametrize("drop_last", [False, True])
def test_len_is_the_number_of_batches(loader, drop_last) -> None:
    one = loader(source={"drop_last": drop_last})
    assert len(one) == len(list(one)) == (5 if drop_last else 6)


def test_a_schedule_of_scan_groups_is_that_of_core_in_every_batch(loader, noise_root) -> None:
    one = loader(where=noise_root, source={"guard": False}, pipeline=define_raw)
    expected = []
    with CoreSource(noise_root, batch_size=4, decode=False) as core:
        for groups in (1, 5, 2):
            core.scan_groups = one.scan_groups = groups
            assert one.scan_groups == groups
            expected = [[len(image) for image in images] for images, _ in core]
            assert [[len(image) for image in images] for images, _ in one] == expected


# -- randomness and states -----------------------------------------------------------------------


def test_the_same_seed_gives_the_same_images_whatever_the_threads(loader, noise_root) -> None:
    first, again = (
        loader(train_pipeline, noise_root, num_threads=threads, source={"seed": 3})
        for threads in (1, 3)
    )
    epochs = [taken(first), taken(first)]
    assert [taken(again), taken(again)] == epochs
    assert epochs[0][0][1] != epochs[1][0][1]
    other = loader(train_pipeline, noise_root, source={"seed": 3}, seed=4)
    found = taken(other)
    assert [labels for labels, _ in found] == [labels for labels, _ in epochs[0]]
    assert [pixels for _, pixels in found] != [pixels for _, pixels in epochs[0]]


def test_ranks_draw_different_crops(loader, noise_root) -> None:
    seeds = {
        train_pipeline(PcrSource(noise_root, batch_size=4, shard=(rank, 2), seed=seed), size=8).seed
        for rank in range(2)
        for seed in range(2)
    }
    assert len(seeds) == 4


@pytest.mark.parametrize("to", ["numpy", "torch"])
@pytest.mark.parametrize("batches", [0, 1, 3, 6])
def test_a_checkpoint_gives_the_very_images_of_the_rest(loader, noise_root, to, batches) -> None:
    arguments = {"where": noise_root, "source": {"seed": 3}, "checkpoints": True, "to": to}
    whole = loader(train_pipeline, **arguments)
    expected = [taken(whole), taken(whole)]
    first = loader(train_pipeline, **arguments)
    found = taken(first, batches) if batches else []
    state = json.loads(json.dumps(first.state_dict()))
    assert json.loads(json.dumps(first.state_dict())) == state, "asking changes nothing"
    first.close()
    again = loader(train_pipeline, **arguments)
    again.load_state_dict(state)
    if batches:
        assert again.state_dict() == state
    found += taken(again)
    assert found == expected[0]
    assert taken(again) == expected[1]


def test_a_state_after_an_epoch_is_that_of_the_next_one(loader, noise_root) -> None:
    arguments = {"where": noise_root, "checkpoints": True}
    one = loader(train_pipeline, **arguments)
    taken(one)
    state = one.state_dict()
    assert state["epoch"] == 1
    again = loader(train_pipeline, **arguments)
    again.load_state_dict(state)
    assert taken(again) == taken(one)


def test_states_are_those_of_core_both_ways(loader, root) -> None:
    one = loader(source={"seed": 5})
    taken(one, 2)
    with CoreSource(root, batch_size=4, decode=False) as core:
        core.load_state_dict(one.state_dict())
        rest = [labels.tolist() for _, labels in core]
        assert rest == core_labels(root, 0, seed=5)[2:]
        batches = iter(core)
        next(batches)
        again = loader()
        again.load_state_dict(core.state_dict())
    assert [labels for labels, _ in taken(again)] == core_labels(root, 1, seed=5)[1:]


def test_a_checkpoint_of_another_batch_size_gives_the_samples_that_are_left(
    loader, noise_root
) -> None:
    one = loader(train_pipeline, noise_root, checkpoints=True)
    found = flat([labels for labels, _ in taken(one, 2)])
    again = loader(train_pipeline, noise_root, checkpoints=True, source={"batch_size": 3})
    again.load_state_dict(one.state_dict())
    found += flat([labels for labels, _ in taken(again)])
    assert sorted(found) == list(range(SAMPLES))


def test_a_state_of_another_set_is_refused(loader, tmp_path) -> None:
    other = write_records(tmp_path / "other", samples=7)
    state = loader(where=other).state_dict()
    with pytest.raises(ValueError, match="samples=7, but it is 23 here"):
        loader().load_state_dict(state)


def test_set_epoch_says_what_comes_next(loader, root) -> None:
    one = loader()
    taken(one, 1)
    one.set_epoch(5)
    assert [labels for labels, _ in taken(one)] == core_labels(root, 5)
    with pytest.raises(ValueError, match="epoch=-1"):
        one.set_epoch(-1)


def test_it_pickles_before_and_after_use(loader, root) -> None:
    one = pickle.loads(pickle.dumps(loader()))
    assert [labels for labels, _ in taken(one)] == core_labels(root, 0)
    taken(one, 2)
    with pickle.loads(pickle.dumps(one)) as copy:
        assert [labels for labels, _ in taken(copy)] == core_labels(root, 2)
    one.close()


# -- pipelines of one's own ----------------------------------------------------------------------


def test_a_pipeline_of_ones_own(loader, root) -> None:
    @pipeline_def(num_threads=2, device_id=None)
    def define(source, side):
        jpegs, labels = external_source(source)
        return fn.resize(fn.decoders.image(jpegs), size=[side, side]), labels, labels

    def make(source, **options):
        return define(source, batch_size=4, **options)

    one = loader(make, side=5)
    for images, labels, again in one:
        check_gray(images, labels)
        assert images.shape[1:] == (5, 5, 3)
        np.testing.assert_array_equal(labels, again)
    assert labels_of((i, n) for i, n, _ in one) == core_labels(root, 1)


def test_a_pipeline_that_reads_something_else_is_an_error(loader, root) -> None:
    other = PcrSource(root, batch_size=4)

    def make(source, **options):
        return define_raw(other, **options)

    with pytest.raises(SourceError, match="does not read, batch by batch, the source"):
        next(iter(loader(make)))
    with pytest.raises(SourceError, match="iterate pipelines with parallel=True or workers by"):
        next(iter(loader(workers=1)))
    other.close()


def test_images_of_different_sizes_are_lists_in_numpy(loader) -> None:
    one = loader(plain_pipeline, source={"decode": True, "size": None, "augment": None})
    for images, labels in one:
        check_gray(images, labels)


@pytest.mark.parametrize("pipeline", [train_pipeline, val_pipeline])
def test_orientation_tags_are_not_applied_as_in_core(loader, tmp_path, pipeline) -> None:
    def turned(sample: int) -> bytes:
        pixels = np.zeros((32, 32, 3), np.uint8)
        pixels[:, 16:] = 255
        exif = Image.Exif()
        exif[0x0112] = 6
        return progressive(pixels, exif=exif)

    # A set of the original kind, whose images keep their tags.
    root = write_set(tmp_path / "set", [3], turned)
    options = {"scale": (1, 1), "ratio": (1, 1), "mirror": 0} if pipeline is train_pipeline else {}
    for images, _ in loader(pipeline, root, **options):
        assert images[:, :, :6].mean() < 10
        assert images[:, :, 10:].mean() > 245


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_layout_and_dtype_are_as_asked_for(loader, layout, dtype) -> None:
    one = loader(train_pipeline, layout=layout, dtype=dtype, mean=(0,) * 3, std=(1,) * 3)
    for images, labels in one:
        assert images.dtype == dtype
        assert images.shape[1:] == ((3, 16, 16) if layout == "NCHW" else (16, 16, 3))
        check_gray(images, labels)


def test_the_mean_and_deviation_are_those_of_imagenet(loader) -> None:
    plain = taken(loader(dtype="uint8", layout="NHWC"))
    images, _ = next(iter(loader(dtype="float32", layout="NHWC")))
    raw = np.frombuffer(plain[0][1], np.uint8).reshape(images.shape)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(images, (raw / 255 - mean) / std, atol=0.02)


def test_decoded_sources_are_normalised_only(loader, noise_root) -> None:
    source = {"decode": True, "size": 16, "seed": 2}
    one = loader(train_pipeline, noise_root, source=source)
    with CoreSource(noise_root, batch_size=4, size=16, seed=2) as core:
        for (images, labels), (pixels, numbers) in zip(one, core, strict=True):
            np.testing.assert_array_equal(images, pixels)
            np.testing.assert_array_equal(labels, numbers)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "tpu"}, "device='tpu', expected 'cpu' or 'gpu'"),
        ({"decode_device": "gpu"}, "decode_device='gpu', expected 'cpu' or 'mixed'"),
        ({"decode_device": "mixed"}, "decode_device='mixed' needs device='gpu'"),
        ({"layout": "CHW"}, "layout='CHW'"),
        ({"dtype": "int8"}, "dtype='int8'"),
    ],
)
def test_wrong_options_are_errors(loader, options, text) -> None:
    with pytest.raises(ValueError, match=text):
        next(iter(loader(train_pipeline, **options)))


def test_a_wrong_framework_is_an_error(loader) -> None:
    with pytest.raises(ValueError, match="to='tf', expected one of numpy, torch, jax"):
        loader(to="tf")
    with pytest.raises(SourceError, match="expected a PcrSource or StreamSource"):
        Loader([])  # type: ignore[arg-type]


# -- errors and life -----------------------------------------------------------------------------


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_an_error_comes_after_the_batches_before_it_and_keeps_its_type(
    loader, tmp_path, to
) -> None:
    root = write_records(tmp_path / "set")
    path = root / "PCR_3.pcr"
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    one = loader(where=root, to=to, source={"shuffle": False})
    found = []
    with pytest.raises(PcrError, match=r"PCR_3\.pcr"):
        for _, labels in one:
            found += np.asarray(labels).tolist()
    assert found == list(range(12)), "record 3 begins with sample 15, of batch 3"
    state = one.state_dict()
    path.write_bytes(whole)
    assert flat(labels_of(one)) == list(range(SAMPLES)), "the next epoch"
    one.load_state_dict(state)
    assert flat(labels_of(one)) == list(range(12, SAMPLES))


def test_closing_leaves_no_thread(loader) -> None:
    before = set(threading.enumerate())
    one = loader()
    taken(one, 2)
    one.close()
    assert set(threading.enumerate()) <= before
    assert len(taken(one)) == 6, "it opens again"


def test_dropping_it_ends_its_thread(root) -> None:
    before = set(threading.enumerate())
    one = Loader(PcrSource(root, batch_size=1, decode=True, size=8), plain_pipeline)
    taken(one, 1)
    threads = set(threading.enumerate()) - before
    assert threads
    del one
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_what_was_handed_over_is_never_touched_again(loader, to) -> None:
    one = loader(plain_pipeline, to=to, source={"decode": True, "size": 64, "augment": None})
    kept = [batch for _ in range(3) for batch in one]
    assert len(kept) == 18
    for images, labels in kept:
        check_gray(images, labels)
