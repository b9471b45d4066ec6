"""Keras fits, evaluates and predicts on each of its backends, from streams and from records.

Each backend runs all cases of `fit_cases` in one process of its own.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorcom.pcr import PcrSource

BACKENDS = ["tensorflow", "torch", "jax"]
SAMPLES, BATCH, SIZE = 23, 4, 8
LIMIT_S = 300

pytestmark = pytest.mark.timeout(LIMIT_S + 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fits")
    script = (
        "import sys, pathlib, fit_helpers; fit_helpers.write_records(pathlib.Path(sys.argv[1]))"
    )
    _python("jax", "-c", script, str(folder / "set"))
    return folder


def _python(backend: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=Path(__file__).parent,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _results(backend: str, folder: Path) -> dict[str, Any]:
    return json.loads(_python(backend, "fit_cases.py", str(folder)))


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def results(backend: str, folder: Path) -> dict[str, Any]:
    """Return by case what it returned and the warnings that it gave."""
    return _results(backend, folder)


def counts(epochs: list[dict[str, list[float]]]) -> list[dict[int, int]]:
    return [{int(label): int(count) for label, (count, _) in epoch.items()} for epoch in epochs]


def batches(*numbers: int) -> dict[int, int]:
    """Return how often the labels of some batches of a stream come."""
    return {2 * number + half: 4 for number in numbers for half in range(2)}


def core(folder: Path, epoch: int, **arguments: Any) -> dict[str, list[float]]:
    """Return what a model sees in an epoch of core."""
    found = {}
    arguments = {"batch_size": BATCH, "size": SIZE, **arguments}
    with PcrSource(folder / "set", **arguments) as source:
        source.set_epoch(epoch)
        for images, labels in source:
            for image, label in zip(images, labels.tolist(), strict=True):
                found[str(label)] = [1.0, float(image.sum())]
    return {label: found[label] for label in sorted(found, key=int)}


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    ["finite 1", "finite 2", "endless 1", "endless 2", "in steps"],
)
def test_each_epoch_takes_the_next_batches(results: dict[str, Any], case: str) -> None:
    found = results[f"stream {case}"]
    assert counts(found["result"]["epochs"]) == [
        batches(*range(start, start + 4)) for start in (0, 4, 8)
    ]
    first, second, third = found["result"]["loss"]
    assert first > second > third
    assert found["warnings"] == []


@pytest.mark.parametrize("case", ["single batch", "single step"])
def test_an_epoch_of_one_batch_is_no_look(results: dict[str, Any], case: str) -> None:
    epochs = results[f"stream {case}"]["result"]["epochs"]
    assert counts(epochs) == [batches(0), batches(1), batches(2)]


def test_another_fit_goes_on(results: dict[str, Any]) -> None:
    found = results["stream two fits"]["result"]
    assert counts(found) == [batches(*range(start, start + 4)) for start in (0, 4, 8)]


def test_evaluate_and_predict_lose_and_repeat_nothing(results: dict[str, Any]) -> None:
    found = results["stream evaluate"]["result"]
    assert found["first"] == 0
    evaluated, predicted = found["found"][:2], found["found"][2:]
    assert [[int(label) for label in labels] for labels in evaluated] == [
        list(range(8)),
        list(range(8, 16)),
    ]
    assert predicted == [pixels(range(8, 12)), pixels(range(12, 16))]


def pixels(numbers: range) -> list[float]:
    """Return the sum of the pixels of each image of some batches of a stream."""
    import fit_helpers

    sums = [fit_helpers.stream_batch(n)[0].sum(axis=(1, 2, 3), dtype=np.float64) for n in numbers]
    return np.concatenate(sums).tolist()


def test_validation_goes_on_by_itself(results: dict[str, Any]) -> None:
    found = results["stream validation"]["result"]
    # The metric was reset by the evaluation, and saw its batches.
    assert counts(found["epochs"]) == [batches(0, 1), batches(2, 3), batches(4, 5)]
    assert len(found["val_loss"]) == 3
    assert found["next"] == 6


def test_a_generator_goes_to_the_end_of_a_stream(results: dict[str, Any]) -> None:
    assert results["stream to its end"]["result"] == pixels(range(5))


def test_a_fit_needs_nothing_after_its_last_batch(results: dict[str, Any]) -> None:
    found = results["stream silent at the end"]["result"]
    assert counts(found) == [batches(0, 1), batches(2, 3), batches(4, 5)]


def test_batches_are_handed_over_without_a_copy(results: dict[str, Any], backend: str) -> None:
    found = results["conversion"]["result"]
    kind = "Tensor" if backend == "torch" else "ndarray"
    expected = {name: [kind, True] for name in ("uint8", "float32", "bool")}
    assert found == {**expected, "uint32": ["ndarray", True], "label": kind}


def test_weights_are_applied(results: dict[str, Any]) -> None:
    found = results["weights"]["result"]
    assert found["class"] == found["sample"] == [0.0, 0.0, 0.0]
    assert "`class_weight` and `sample_weight` at the same time" in found["both"]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("silent", "no message in 3 s (1 of 1 or more peers connected; last message from"),
        ("gone", "none ever came: is the server running?"),
        ("ended", "the stream ended after 2 batches of this epoch; length=4 batches were expected"),
        ("endless", "the stream ended after 6 batches of this epoch; give a length, steps_per"),
        ("four", "a message of 4 arrays; Keras takes x, (x, y) or (x, y, sample_weight)"),
    ],
)
def test_what_goes_wrong_ends_a_fit_with_our_text(
    results: dict[str, Any], case: str, text: str
) -> None:
    assert text in results["stream errors"]["result"][case]


# -- records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_epochs_of_records_are_those_of_core_at_their_fidelity(
    results: dict[str, Any], folder: Path, workers: int
) -> None:
    found = results[f"records {workers}"]
    expected = [core(folder, epoch, scan_groups=(1, 2, None)[epoch]) for epoch in range(3)]
    assert found["result"]["epochs"] == expected
    first, second, third = found["result"]["loss"]
    assert first > second > third
    assert found["warnings"] == []


def test_steps_divide_an_epoch_of_records(results: dict[str, Any], folder: Path) -> None:
    parts = results["records in steps"]["result"]
    for epoch in range(2):
        first, second = parts[2 * epoch : 2 * epoch + 2]
        assert len(first) == 3 * BATCH
        assert not set(first) & set(second)
        whole = {label: (first | second)[label] for label in sorted(first | second, key=int)}
        assert whole == core(folder, epoch)


def test_a_single_batch_of_records_is_an_epoch(results: dict[str, Any], folder: Path) -> None:
    found = results["records single batch"]["result"]
    assert found == [core(folder, epoch, batch_size=SAMPLES) for epoch in range(5)]


def test_a_state_from_the_end_of_an_epoch(results: dict[str, Any], folder: Path) -> None:
    assert results["records saved"]["result"] == [core(folder, 1), core(folder, 2)]


def test_a_fit_after_a_stop_begins_the_next_epoch(results: dict[str, Any], folder: Path) -> None:
    found = results["records after a stop"]["result"]
    assert found["epochs"] == [core(folder, 1)]
    assert found["next"]


def test_a_state_within_an_epoch_is_gone_on_from(results: dict[str, Any], folder: Path) -> None:
    found = results["records resumed"]["result"]
    assert found["counts"] == [4, 6]
    rest, whole = found["epochs"]
    assert len(rest) == SAMPLES - 2 * BATCH
    assert rest.items() <= core(folder, 1).items()
    assert whole == core(folder, 2)
    assert "fit that epoch alone" in found["wrong"]


def test_validation_and_prediction_from_records(results: dict[str, Any], folder: Path) -> None:
    found = results["records validation"]["result"]
    arguments = {"augment": "eval", "shuffle": False}
    whole = core(folder, 0, **arguments)
    first = {str(label): whole[str(label)] for label in range(2 * BATCH)}
    assert found["validated"] == [first] * 3
    assert found["evaluated"] == [first] * 2
    assert found["predicted"] == [total for _, total in whole.values()]
    assert len(found["val_loss"]) == 3


def test_records_are_arranged(results: dict[str, Any]) -> None:
    assert results["records weighted"]["result"] == [0.0, 0.0, 0.0]


def test_damage_ends_a_fit_or_is_skipped(results: dict[str, Any], folder: Path) -> None:
    found = results["records damaged"]["result"]
    assert "PCR_1.pcr at byte 99: the file has only 99 bytes" in found["raised"]
    assert len(found["skipped"]) == 3
    for number, epoch in enumerate(found["skipped"]):
        expected = core(folder, number, shuffle=False)
        assert set(expected) - set(epoch) == {"5", "6", "7", "8", "9"}
        # Batches of samples 6, 7 and 8, 9 were skipped whole; the first two came in their place.
        for label, (count, total) in epoch.items():
            times = 2 if int(label) < 4 else 1
            assert [count, total] == [times, times * expected[label][1]]
