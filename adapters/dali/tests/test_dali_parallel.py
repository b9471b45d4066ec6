"""Batches made by the worker processes of DALI."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from dali_helpers import SAMPLES, noise_jpeg, write_records
from pcr_set_helpers import write_set

from tensorcom import JpegError, PcrError
from tensorcom.pcr import PcrSource as CoreSource
from tensorcom_dali import PcrSource

BATCH = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_records(tmp_path_factory.mktemp("noise") / "set", make=noise_jpeg)


def info(iteration: int, epoch: int = 0) -> SimpleNamespace:
    return SimpleNamespace(iteration=iteration, epoch_idx=epoch)


def batches_of(source: PcrSource):
    arguments = source.parallel_source()
    assert arguments["batch_info"] is True
    return pickle.loads(pickle.dumps(arguments["source"]))


def files_of(batch) -> tuple[list[bytes], list[int]]:
    images, labels = batch
    return [image.tobytes() for image in images], labels.tolist()


@pytest.mark.parametrize("arguments", [{}, {"drop_last": True}, {"shard": (1, 2)}])
def test_batches_are_those_of_one_process_in_any_order(root, arguments) -> None:
    arguments = {"batch_size": BATCH, "scan_groups": 1, "seed": 2, **arguments}
    with PcrSource(root, **arguments) as source:
        source.set_epoch(3)
        call = batches_of(source)
        epochs = [[files_of(batch) for batch in source] for _ in range(2)]
    for epoch in (1, 0):
        for number in reversed(range(len(epochs[epoch]))):
            assert files_of(call(info(number, epoch))) == epochs[epoch][number]
        for past in range(3):
            with pytest.raises(StopIteration):
                call(info(len(epochs[epoch]) + past, epoch))


def test_damage_is_raised_or_left_out(root, tmp_path) -> None:
    own = write_records(tmp_path / "set")
    path = own / "PCR_1.pcr"
    path.write_bytes(path.read_bytes()[:500])  # samples 5 to 9
    with PcrSource(own, batch_size=BATCH, shuffle=False) as source:
        call = batches_of(source)
        with pytest.raises(PcrError, match=r"PCR_1\.pcr"):
            call(info(1))
        assert call(info(0))[1].tolist() == [0, 1, 2, 3]
    with PcrSource(own, batch_size=BATCH, shuffle=False, on_error="skip") as source:
        call = batches_of(source)
        assert call(info(1))[1].tolist() == [4]
        assert call(info(2))[1].tolist() == [10, 11]
    with (
        PcrSource(own, batch_size=2, shuffle=False, on_error="skip") as source,
        pytest.raises(PcrError, match=r"PCR_1\.pcr"),
    ):
        batches_of(source)(info(3))


def test_an_image_without_its_markers_is_named_or_left_out(tmp_path) -> None:
    own = write_set(tmp_path / "set", [6])
    data = bytearray((own / "PCR_0.pcr").read_bytes())
    data[data.index(b"\xff\xd8")] = 0
    (own / "PCR_0.pcr").write_bytes(data)
    with (
        PcrSource(own, batch_size=BATCH, shuffle=False) as source,
        pytest.raises(JpegError, match=r"PCR_0\.pcr image 0: \d+ bytes that are no JPEG"),
    ):
        batches_of(source)(info(0))
    with PcrSource(own, batch_size=BATCH, shuffle=False, on_error="skip") as source:
        assert batches_of(source)(info(0))[1].tolist() == [1, 2, 3]


def test_what_it_cannot_do(root) -> None:
    with (
        PcrSource(root, batch_size=BATCH, decode=True) as source,
        pytest.raises(ValueError, match="parallel=True hands out JPEG files"),
    ):
        source.parallel_source()
    with PcrSource(root, batch_size=BATCH) as source:
        source.load_state_dict(source.state_after(2, epoch=1))
        with pytest.raises(ValueError, match="begins with a whole epoch"):
            source.parallel_source()


SCRIPT = """
import sys
from tensorcom_dali import PcrSource, train_pipeline

if __name__ == "__main__":
    source = PcrSource(sys.argv[1], batch_size=4, scan_groups=5, seed=2)
    pipeline = train_pipeline(source, size=8, workers=2, enable_checkpointing=True)
    epochs, images = [], []
    for _ in range(2):
        labels = []
        while True:
            try:
                outputs = pipeline.run()
            except StopIteration:
                pipeline.reset()
                break
            labels.append(outputs[1].as_array().ravel().tolist())
            images.append(outputs[0].as_array().tobytes())
            if len(images) == 8:
                checkpoint = pipeline.checkpoint()
        epochs.append(labels)
    print(epochs)
    again = train_pipeline(
        source, size=8, workers=2, enable_checkpointing=True, checkpoint=checkpoint
    )
    rest = [again.run()[0].as_array().tobytes() for _ in range(4)]
    print(rest == images[8:])
"""


def test_spawned_workers_give_the_epochs_of_one_process_and_resume(root, tmp_path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(root)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with CoreSource(root, batch_size=BATCH, decode=False, seed=2) as core:
        epochs = [[labels.tolist() for _, labels in core] for _ in range(2)]
    assert done.stdout.splitlines() == [str(epochs), "True"], done.stderr
    assert sorted(sum(epochs[1], [])) == list(range(SAMPLES))
