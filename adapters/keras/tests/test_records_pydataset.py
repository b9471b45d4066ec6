"""PcrPyDataset: its options, states and life; what fits do is in `test_fit_backends`."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pcr_set_helpers import noise_jpeg, write_set

from tensorcom import PcrError, SourceError
from tensorcom.pcr import PcrSource
from tensorcom_keras import PcrPyDataset, as_tf_dataset

SIZES = [6, 1, 9, 7]
SAMPLES, BATCH, SIZE = 23, 4, 16


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("records") / "set", SIZES, noise_jpeg)


@pytest.fixture
def data(root: Path) -> Iterator[PcrPyDataset]:
    dataset = made(root)
    yield dataset
    dataset.close()
    assert not threads()


def made(root: Path, **arguments: Any) -> PcrPyDataset:
    return PcrPyDataset(root, **{"batch_size": BATCH, "size": SIZE, **arguments})


def core(root: Path, epoch: int, **arguments: Any) -> list[list[int]]:
    """Return labels and pixel sums of the batches of an epoch."""
    with PcrSource(root, **{"batch_size": BATCH, "size": SIZE, **arguments}) as source:
        source.set_epoch(epoch)
        return told(source)


def told(batches: Any) -> list[list[int]]:
    return [[*labels.tolist(), int(images.sum())] for images, labels in batches]


def begun(data: PcrPyDataset, count: int) -> list[list[int]]:
    """Take batches as Keras does, which looks at one first."""
    assert data.use_multiprocessing is False
    data.on_epoch_begin()
    data[0]
    data.on_epoch_end()
    data.on_epoch_begin()
    return told(data[index] for index in range(count))


def threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("tensorcom-")}


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"size": None, "augment": None}, "size=None with batch_size=4: images of different sizes"),
        ({"layout": "CHWN"}, "layout"),
        ({"scan_groups": 11}, "scan_groups=11, expected 1 to 10"),
        ({"workers": 0}, "workers=0, expected at least 1"),
        ({"end": "never"}, "end='never'"),
        ({"shard": (2, 2)}, "shard"),
        ({"use_multiprocessing": True}, "share neither a socket nor decoding threads"),
    ],
)
def test_wrong_arguments_are_errors_at_once(
    root: Path, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        made(root, **arguments)


def test_whole_images_come_one_by_one(root: Path) -> None:
    data = made(root, size=None, augment=None, batch_size=1, layout="NCHW", shuffle=False)
    shapes = {images.shape for images, _ in data}
    data.close()
    assert shapes == {(1, 3, 60, 80)}


def test_options_reach_the_source(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def transform(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return image[:8, :8] + np.float32(rng.random())

    arguments = {"transform": transform, "drop_last": True, "seed": 5, "end": "drop", "buffer": 3}
    data = made(root, arrange=lambda images, labels: {"x": images, "y": labels}, **arguments)
    found = list(data)
    data.close()
    with PcrSource(root, batch_size=BATCH, size=SIZE, shard=(1, 2), **arguments) as source:
        for batch, (images, labels) in zip(found, source, strict=True):
            np.testing.assert_array_equal(batch["x"], images)
            np.testing.assert_array_equal(batch["y"], labels)
    assert len(found) == len(data) == 2


def test_workers_decode_and_batches_wait(root: Path) -> None:
    decoding: set[str] = set()

    def transform(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
        decoding.add(threading.current_thread().name)
        return image

    data = made(root, transform=transform, workers=1, max_queue_size=8)
    list(data)
    assert len(decoding) == 1
    data.workers, data.max_queue_size = 3, 1
    assert (data.workers, data.max_queue_size) == (1, 1)
    begun(data, 1)
    assert (data._source.threads, data._source.prefetch) == (3, 1)
    data.close()


def test_what_the_set_is(root: Path, data: PcrPyDataset) -> None:
    assert data.reader.scan_groups == 10
    assert data.class_names is None
    assert len(data) == data.num_batches == 6
    list(data)
    assert data.bytes_read == sum(path.stat().st_size for path in root.glob("*.pcr"))


# -- looks and fidelity ----------------------------------------------------------------------------


def test_a_look_costs_no_batch_and_no_epoch(root: Path, data: PcrPyDataset) -> None:
    first = data[0]
    assert data[0] is not data[1]
    np.testing.assert_array_equal(data[0][0], first[0])
    assert data.state_dict() == data.state_after(0, epoch=0)
    assert begun(data, 6) == core(root, 0)
    assert told(data) == core(root, 1)


def test_an_iteration_begins_with_what_was_looked_at(root: Path, data: PcrPyDataset) -> None:
    assert told([data[0], data[1]]) == core(root, 0)[:2]
    assert told(data) == core(root, 0)
    assert told([data[0]]) == core(root, 1)[:1]


def test_fidelity_set_after_a_look_holds_for_the_whole_epoch(
    root: Path, data: PcrPyDataset
) -> None:
    data[0], data[1]
    data.scan_groups = 1
    assert begun(data, 6) == core(root, 0, scan_groups=1)
    data.scan_groups = None
    data.on_epoch_end()
    data.on_epoch_begin()
    assert told(data[index] for index in range(6)) == core(root, 1)


# -- states ----------------------------------------------------------------------------------------


def test_a_state_within_an_epoch_keras_began(root: Path, data: PcrPyDataset) -> None:
    assert begun(data, 2) == core(root, 0)[:2]
    state = json.loads(json.dumps(data.state_dict()))
    assert state == data.state_after(2, epoch=0)
    again = made(root)
    again.load_state_dict(state)
    assert (again.num_batches, len(again)) == (4, 6)
    assert again.state_after(1, epoch=0) == data.state_after(3, epoch=0)
    assert begun(again, 4) == core(root, 0)[2:]
    again.on_epoch_end()
    with pytest.raises(PcrError, match="4 batches left, which Keras takes for the length of all"):
        again.on_epoch_begin()
    assert begun(again, 6) == core(root, 1)
    assert again.num_batches == 6
    again.close()


def test_the_seed_of_a_state_is_kept(root: Path, data: PcrPyDataset) -> None:
    other = made(root, seed=9)
    data.load_state_dict(other.state_after(2, epoch=3))
    other.close()
    assert begun(data, 4) == core(root, 3, seed=9)[2:]
    assert begun(data, 6) == core(root, 4, seed=9)
    assert data.state_after(1, epoch=5)["seed"] == 9


def test_an_epoch_can_be_set(root: Path, data: PcrPyDataset) -> None:
    begun(data, 2)
    data.set_epoch(7)
    assert begun(data, 6) == core(root, 7)
    data.load_state_dict(data.state_after(4, epoch=2))
    data.set_epoch(2)
    assert data.num_batches == 2
    assert told(data) == core(root, 2)[4:]
    data.set_epoch(0)
    assert data.num_batches == 6
    with pytest.raises(ValueError, match="epoch=-1, expected at least 0"):
        data.set_epoch(-1)


def test_a_state_of_another_set_is_refused(root: Path, data: PcrPyDataset) -> None:
    begun(data, 2)
    with pytest.raises(ValueError, match="shuffle=True, but it is False"):
        made(root, shuffle=False).load_state_dict(data.state_dict())
    with pytest.raises(ValueError, match="no state|expected what state_dict returned"):
        data.load_state_dict({})
    assert told([data[2]]) == core(root, 0)[2:3]


def test_the_rest_of_an_epoch_is_no_length(root: Path, data: PcrPyDataset) -> None:
    data.load_state_dict(data.state_after(4, epoch=0))
    assert begun(data, 2) == core(root, 0)[4:]
    assert data.use_multiprocessing is False
    assert data.num_batches == 6


def test_a_state_from_the_end_of_an_epoch(root: Path, data: PcrPyDataset) -> None:
    data.load_state_dict(data.state_after(6, epoch=0))
    assert data.num_batches == 6
    assert begun(data, 6) == core(root, 1)


def test_what_an_iterator_that_is_gone_took_is_no_part_of_the_next_epoch(
    root: Path, data: PcrPyDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begun(data, 2) == core(root, 0)[:2]
    take = data._take
    with monkeypatch.context() as patch:
        # Another iterator is made while tf.data's thread is at work for this one.
        patch.setattr(data, "_take", lambda: (data.use_multiprocessing, take())[1])
        data[2]
    data.on_epoch_end()
    data.on_epoch_begin()
    assert told(data[index] for index in range(6)) == core(root, 1)


def test_wrapped_in_tf_data_an_iteration_that_is_left_costs_its_epoch_only(
    root: Path, data: PcrPyDataset
) -> None:
    for epoch in range(3):
        # Wrapping looks at a batch, when the last iteration was left in the middle of its epoch.
        batches = iter(as_tf_dataset(data))
        images, labels = next(batches)
        assert told([(images.numpy(), labels.numpy())]) == core(root, epoch)[:1]
        del batches
    assert told(data) == core(root, 3)


# -- damage ----------------------------------------------------------------------------------------


def test_what_skips_is_told_once(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", SIZES, noise_jpeg)
    (root / "PCR_2.pcr").write_bytes((root / "PCR_2.pcr").read_bytes()[:99])
    errors: list[Exception] = []
    data = made(root, batch_size=2, shuffle=False, on_error="skip", on_skip=errors.append)
    found = begun(data, len(data))
    data.close()
    assert len(found) == 12
    assert (
        len({text for error in errors if "PCR_2.pcr" in (text := str(error))}) == len(errors) == 1
    )


def test_an_epoch_of_which_nothing_is_left(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", [4], noise_jpeg)
    (root / "PCR_0.pcr").write_bytes((root / "PCR_0.pcr").read_bytes()[:99])
    data = made(root, on_error="skip")
    with pytest.raises(SourceError, match="all images of the epoch were skipped"):
        data[0]
    data.close()


# -- life ------------------------------------------------------------------------------------------


def test_copies_go_on_from_where_it_is(root: Path, data: PcrPyDataset) -> None:
    data[0], data[1]
    copy = pickle.loads(pickle.dumps(data))
    assert begun(copy, 6) == core(root, 0)
    copy.close()
    begun(data, 6)
    copy = pickle.loads(pickle.dumps(data))
    assert begun(copy, 6) == core(root, 1)
    copy.close()


def test_closing_in_an_epoch_ends_it(root: Path, data: PcrPyDataset) -> None:
    begun(data, 2)
    assert threads()
    data.close()
    assert not threads()
    assert begun(data, 6) == core(root, 1)


def test_closing_after_a_look_loses_nothing(root: Path, data: PcrPyDataset) -> None:
    data[0]
    data.close()
    assert begun(data, 6) == core(root, 0)


def test_dropping_it_ends_its_threads(root: Path) -> None:
    data = made(root)
    begun(data, 2)
    assert threads()
    del data
    gc.collect()
    assert not threads()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_for_itself(root: Path) -> None:
    script = textwrap.dedent("""
        import os, sys, warnings
        from pathlib import Path

        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
        from test_records_pydataset import begun, core, made

        root = Path(sys.argv[1])
        data = made(root)
        assert begun(data, 2) == core(root, 0)[:2]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = begun(data, 6) != core(root, 1)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert [data[2][1].tolist()] == [core(root, 0)[2][:-1]]
    """)
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "core/tests")]
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)],
        env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
