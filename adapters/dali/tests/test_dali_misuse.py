"""Loader and pipelines where they are used in ways that nobody meant."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from dali_helpers import SAMPLES, WAIT_S, define_raw, flat, labels_of, noise_jpeg, write_records

from tensorcom import ClosedError, Connection, SourceError
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_dali import (
    Loader,
    PcrSource,
    StreamSource,
    plain_pipeline,
    train_pipeline,
    val_pipeline,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_records(tmp_path_factory.mktemp("noise") / "set", make=noise_jpeg)


@pytest.fixture
def loader(root):
    """Return a function that makes loaders of 4 samples, closed with the test."""
    made = []

    def make(pipeline, *, source=None, **options) -> Loader:
        given = {} if pipeline is plain_pipeline else {"size": 16}
        one = PcrSource(root, batch_size=4, **(source or {}))
        made.append(Loader(one, pipeline, **{**given, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def taken(loader: Loader) -> list[tuple[list[int], bytes]]:
    """Return labels and pixels of an epoch."""
    return [(np.asarray(labels).tolist(), images.tobytes()) for images, labels in loader]


def test_a_loader_that_was_dropped_leaves_its_source_to_another(root) -> None:
    with PcrSource(root, batch_size=4) as source:
        gc.disable()  # what follows must not wait for it
        try:
            for _ in Loader(source, val_pipeline, size=16):
                break
            assert sorted(flat(labels_of(Loader(source, val_pipeline, size=16)))) == [
                *range(SAMPLES)
            ]
        finally:
            gc.enable()


@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_an_iteration_whose_loader_is_closed_meanwhile_says_so(loader, to) -> None:
    one = loader(val_pipeline, to=to)
    batches = iter(one)
    next(batches)
    delivery = one._delivery

    def close_first(take=delivery.take):
        one.close()  # as another thread may
        while True:
            take()

    delivery.take = close_first
    with pytest.raises(SourceError, match="or it was closed: this one is over"):
        next(batches)


@pytest.mark.parametrize("end", ["close", "load"])
def test_a_source_that_is_closed_during_an_epoch_does_not_look_as_if_it_had_ended(
    root, end
) -> None:
    with PcrSource(root, batch_size=4) as source:
        state = source.state_dict()
        pipeline = define_raw(source)
        pipeline.run()
        if end == "close":
            source.close()
        else:
            source.load_state_dict(state)
        with pytest.raises(ClosedError, match="before this iteration ended"):
            while True:
                pipeline.run()


def test_nor_does_a_stream_that_is_closed() -> None:
    sent = [[np.zeros((4, 3), np.uint8)]] * 3
    with LoopbackServer(sent) as server, StreamSource(server.url, timeout_s=WAIT_S) as source:
        batches = iter(source)
        next(batches)
        source.close()
        with pytest.raises(ClosedError, match="before this iteration ended"):
            next(batches)


def test_closing_wakes_who_waits_for_a_stream() -> None:
    with Connection("zrpush://127.0.0.1:0") as server:
        source = StreamSource(server.urls[0].replace("zrpush", "zrpull"), timeout_s=None)
        errors: list[Exception] = []

        def wait() -> None:
            with pytest.raises(ClosedError, match="before this iteration ended") as caught:
                next(iter(source))
            errors.append(caught.value)

        thread = threading.Thread(target=wait)
        thread.start()
        while source._ahead is None or not source._ahead._shelf._changed._waiters:
            time.sleep(0.005)
        source.close()
        thread.join(WAIT_S)
        assert errors


FORKED = """
import os, sys
from tensorcom import SourceError
from tensorcom_dali import Loader, PcrSource, val_pipeline

with Loader(PcrSource(sys.argv[1], batch_size=4), val_pipeline, size=16) as loader:
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except SourceError as error:
            print(error, flush=True)
        loader.close()
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(list(batches)))
"""


def test_a_forked_child_can_close_it(root) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    error, parent = done.stdout.splitlines()
    assert "begun in another process" in error
    assert parent == "7 5"


def test_a_transform_may_use_its_memory_again() -> None:
    memory = np.zeros((4, 3), np.uint8)

    def through_memory(array):
        memory[:] = array
        return memory

    with (
        LoopbackServer([[np.full((4, 3), number, np.uint8)] for number in range(8)]) as server,
        StreamSource(
            server.url, batch_transforms=through_memory, timeout_s=WAIT_S, prefetch=8
        ) as source,
    ):
        assert [set(array.ravel().tolist()) for (array,) in source] == [{n} for n in range(8)]


def test_a_pipeline_that_begins_in_a_later_epoch_draws_other_crops(loader) -> None:
    source = {"shuffle": False}
    first = taken(loader(train_pipeline, source=source))
    one = loader(train_pipeline, source=source)
    assert taken(one) == first
    state = one.state_dict()
    one.close()
    second = taken(one)
    again = loader(train_pipeline, source=source)
    again.load_state_dict(state)
    for found in (second, taken(again)):
        assert [labels for labels, _ in found] == [labels for labels, _ in first]
        assert all(a != b for (_, a), (_, b) in zip(found, first, strict=True))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"crop": 3}, TypeError, "crop: no option of this pipeline, which has device, size, "),
        ({"size": 0}, ValueError, "size=0, expected at least 1"),
        ({"size": True}, ValueError, "size=True, expected an integer"),
        ({"size": -3}, ValueError, "size=-3, expected"),
        ({"size": 2.5}, ValueError, "size=2.5, expected"),
        ({"scale": (0.5, 2)}, ValueError, r"scale=\(0.5, 2\), expected .* at most 1"),
        ({"ratio": (2, 1)}, ValueError, r"ratio=\(2, 1\), expected \(least, largest\), above 0$"),
        ({"mirror": 7}, ValueError, "mirror=7, expected a probability"),
    ],
)
def test_wrong_options_are_errors_and_not_for_dali_to_find(loader, options, error, text) -> None:
    with pytest.raises(error, match=text):
        next(iter(loader(train_pipeline, **options)))


def test_each_pipeline_says_which_options_it_has(loader) -> None:
    with pytest.raises(TypeError, match="scale: no option of this pipeline"):
        next(iter(loader(val_pipeline, scale=(0.5, 1))))
    with pytest.raises(ValueError, match="size=0, expected"):
        next(iter(loader(val_pipeline, size=0)))
    with pytest.raises(TypeError, match="size: no option of this pipeline, which has layout"):
        next(iter(loader(plain_pipeline, size=8)))


def test_a_checkpoint_is_gone_on_from_once(loader) -> None:
    one = loader(train_pipeline, checkpoints=True)
    next(iter(one))
    state = one.state_dict()
    again = loader(train_pipeline, checkpoints=True)
    again.load_state_dict(state)
    assert again.state_dict()["dali"] == state["dali"], "nothing was taken since"
    taken(again)
    assert again.state_dict()["dali"] != state["dali"]
    again.close()
    assert "dali" not in again.state_dict(), "the generators ended with the pipeline"
