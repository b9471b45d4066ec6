"""Arguments out of range, of another type, or unknown: errors that name them, up front."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dali_helpers import write_records
from nvidia.dali import Pipeline, fn

from tensorcom_dali import (
    Loader,
    PcrSource,
    StreamSource,
    train_images,
    train_pipeline,
    val_images,
    val_pipeline,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_records(tmp_path_factory.mktemp("gray") / "set", samples=7)


@pytest.mark.parametrize("value", [2.5, "2", True])
@pytest.mark.parametrize("name", ["batch_size", "prefetch", "seed", "buffer", "threads"])
def test_what_is_counted_in_records_is_an_integer(root, name, value) -> None:
    with pytest.raises(ValueError, match=f"{name}={value!r}, expected an integer"):
        PcrSource(root, **{"batch_size": 2, name: value})


@pytest.mark.parametrize("name", ["length", "batch_size", "prefetch"])
def test_what_is_counted_in_streams_is_an_integer(name) -> None:
    with pytest.raises(ValueError, match=f"{name}=2.5, expected an integer"):
        StreamSource("zrpull://127.0.0.1:1", **{name: 2.5})


@pytest.mark.parametrize("shard", [(0.5, 2), 3, (2, 2), (0, 0)])
def test_a_shard_is_a_number_and_a_count(root, shard) -> None:
    for make in (
        lambda: PcrSource(root, batch_size=2, shard=shard),
        lambda: StreamSource("zrpull://127.0.0.1:1", shard=shard),
    ):
        with pytest.raises(ValueError, match="expected a number from 0 and the count over it"):
            make()


def test_numpy_integers_are_integers_and_states_stay_json(root) -> None:
    with PcrSource(root, batch_size=np.int64(2), seed=np.int64(3), shard=(np.int8(0), 1)) as one:
        batches = iter(one)
        next(batches)
        state = json.loads(json.dumps(one.state_dict()))
        assert state["seed"] == 3
        again = PcrSource(root, batch_size=2)
        again.load_state_dict(state)
        assert [labels.tolist() for _, labels in again] == [
            labels.tolist() for _, labels in batches
        ]


@pytest.mark.parametrize("option", ["worker", "epoch", "batchsize"])
def test_unknown_options_are_named(root, option) -> None:
    with pytest.raises(TypeError, match=option):
        PcrSource(root, batch_size=2, **{option: (0, 1)})


def test_options_of_the_reader_are_passed_on(root) -> None:
    with PcrSource(root, batch_size=2, retries=7) as one:
        assert one._set[1]["retries"] == 7
        assert sum(len(labels) for _, labels in one) == 7
    with pytest.raises(ValueError, match="retries"):
        PcrSource(root, batch_size=2, retries=-1)


@pytest.mark.parametrize("option", ["split", "lazy", "send_meta", "topic"])
def test_options_that_are_set_here_or_say_what_is_sent_are_refused(option) -> None:
    with pytest.raises(TypeError, match=f"^{option}: no option of a data set"):
        StreamSource("zrpull://127.0.0.1:1", **{option: True})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"std": (0, 1, 1)}, r"std=\(0, 1, 1\), expected numbers above 0"),
        ({"std": (float("nan"),) * 3}, "std=.*, expected numbers above 0"),
        ({"workers": -1}, "workers=-1, expected at least 0"),
        ({"workers": 1.5}, "workers=1.5, expected an integer"),
    ],
)
def test_options_of_pipelines(root, options, text) -> None:
    with PcrSource(root, batch_size=2) as source, pytest.raises(ValueError, match=text):
        train_pipeline(source, **options).build()


def test_a_state_of_another_pipeline_is_refused_and_can_be_loaded_without_its_generators(
    root,
) -> None:
    def make(pipeline):
        return Loader(PcrSource(root, batch_size=2), pipeline, size=8, checkpoints=True)

    with make(train_pipeline) as one:
        batches = iter(one)
        next(batches)
        state = one.state_dict()
        rest = [labels.tolist() for _, labels in batches]
    with make(val_pipeline) as other:
        for damaged in (state, {**state, "dali": [*state["dali"][:-1], "00000"]}):
            other.load_state_dict(damaged)
            with pytest.raises(ValueError, match="without its key 'dali' it can be loaded"):
                next(iter(other))
        del state["dali"]
        other.load_state_dict(state)
        assert [labels.tolist() for _, labels in other] == rest


# -- GPUs, of which there need be none -----------------------------------------------------------


@pytest.fixture
def two_gpus(monkeypatch) -> None:
    import ctypes

    real = ctypes.CDLL

    def load_library(name, *arguments, **options):
        if name != "libcuda.so.1":
            return real(name, *arguments, **options)

        def count(out):
            out._obj.value = 2
            return 0

        return SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=count)

    monkeypatch.setattr("ctypes.CDLL", load_library)


@pytest.mark.parametrize("options", [{}, {"device_id": None}, {"device_id": 0}])
def test_the_gpu_is_that_of_the_local_rank(root, two_gpus, monkeypatch, options) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    expected = 0 if options.get("device_id") == 0 else 1
    with PcrSource(root, batch_size=2) as source:
        for pipeline in (train_pipeline, val_pipeline):
            assert pipeline(source, device="gpu", size=8, **options).device_id == expected


def test_a_gpu_that_is_not_there_is_an_error_before(root, two_gpus, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    with PcrSource(root, batch_size=2) as source:
        for options in ({"device": "gpu"}, {"device_id": 2}):
            with pytest.raises(ValueError, match="device_id=2, but CUDA finds 2 GPUs here"):
                train_pipeline(source, size=8, **options)
        with pytest.raises(ValueError, match="device_id='0', expected an integer"):
            train_pipeline(source, size=8, device_id="0")


@pytest.mark.parametrize("decode_device", [None, "cpu", "mixed"])
@pytest.mark.parametrize("step", [train_images, val_images])
def test_steps_for_a_gpu_are_defined_on_it(monkeypatch, step, decode_device) -> None:
    name = "image_random_crop" if step is train_images else "image"
    real, decoders = getattr(fn.decoders, name), []

    def decode(*arguments, **options):
        decoders.append(options["device"])
        return real(*arguments, **options)

    monkeypatch.setattr(fn.decoders, name, decode)
    with Pipeline(batch_size=2, num_threads=1, device_id=0):
        jpegs = fn.external_source(source=lambda: [np.zeros(3, np.uint8)] * 2, batch=True)
        images = step(jpegs, device="gpu", decode_device=decode_device, size=8)
    assert images.device == "gpu"
    assert decoders == [decode_device or "mixed"]


# -- ranks ---------------------------------------------------------------------------------------


def test_the_rank_is_that_of_the_job_that_is_in_use(root, monkeypatch) -> None:
    import jax

    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with PcrSource(root, batch_size=2) as source:
        assert source.shard == (2, 3)
        monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        monkeypatch.setattr(jax, "process_count", lambda: 5)
        assert source.shard == (1, 5)


def test_asking_for_the_rank_starts_no_backend_of_jax(root) -> None:
    script = (
        "import sys, jax\n"
        "from tensorcom_dali import PcrSource\n"
        "assert PcrSource(sys.argv[1], batch_size=2).shard == (0, 1)\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
