"""Images that DALI cannot decode: each costs its own batch only, and is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dali_helpers import check_gray, flat, labels_of
from nvidia.dali import fn, pipeline_def
from pcr_set_helpers import gray_jpeg, write_set

from tensorcom import JpegError, PcrError
from tensorcom_dali import Loader, PcrSource, external_source, train_pipeline, val_pipeline
from tensorcom_dali.mending import find_undecodable

SIZES = [6, 6, 6, 6]
SAMPLES = sum(SIZES)


def write_damaged(root: Path, bad: set[int]) -> Path:
    """Write a set, of the original kind that has no checksums, with images of no frame header."""
    write_set(root, SIZES)
    for sample in bad:
        path = root / f"PCR_{sample // 6}.pcr"
        data = bytearray(path.read_bytes())
        start = -1
        for _ in range(sample % 6 + 1):
            start = data.index(b"\xff\xd8", start + 1)
        place = data.index(b"\xff\xc2", start)
        data[place + 2 : place + 10] = bytes(8)
        path.write_bytes(data)
    return root


@pytest.fixture
def make(tmp_path):
    made = []

    def make(bad: set[int], pipeline=val_pipeline, to="numpy", **arguments) -> Loader:
        root = write_damaged(tmp_path / str(len(made)), bad)
        source = PcrSource(root, **{"batch_size": 4, "shuffle": False, **arguments})
        made.append(Loader(source, pipeline, size=8, dtype="uint8", layout="NHWC", to=to))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
def test_raised_errors_name_record_and_image_and_cost_their_batch_only(make, to) -> None:
    # Three batches in a row: more than DALI has under way, after which its own iterator ends.
    bad = {5, 9, 12, 14, 23}
    one = make(bad, to=to)
    for _ in range(2):
        batches, found, errors = iter(one), [], []
        while True:
            try:
                images, labels = next(batches)
            except StopIteration:
                break
            except JpegError as exc:
                errors.append(str(exc))
            else:
                check_gray(images, labels)
                found.append(np.asarray(labels).tolist())
        assert [error.split(":")[0] for error in errors] == [
            "PCR_0.pcr image 5",
            "PCR_1.pcr image 3",
            "PCR_2.pcr image 0",
            "PCR_3.pcr image 5",
        ]
        assert all("JPEG cannot be decoded" in error for error in errors)
        assert found == [[0, 1, 2, 3], [16, 17, 18, 19]]


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("pipeline", [train_pipeline, val_pipeline])
def test_skipped_images_are_left_out_of_their_batches(make, to, pipeline) -> None:
    bad = {0, 5, 8, 9, 10, 11, 14, 23}
    skipped = []
    one = make(bad, pipeline, to, on_error="skip", on_skip=lambda e: skipped.append(str(e)))
    for epoch in range(2):
        found = []
        for images, labels in one:
            check_gray(images, labels)
            found.append(np.asarray(labels).tolist())
        assert [len(labels) for labels in found] == [3, 3, 3, 4, 3]
        assert sorted(flat(found)) == sorted(set(range(SAMPLES)) - bad)
        assert one.source.skipped == len(skipped) == len(bad) * (epoch + 1)
    assert skipped[1].startswith("PCR_0.pcr image 5: ")


def test_a_state_after_a_damaged_batch_goes_on_after_it(make) -> None:
    one = make({5})
    batches = iter(one)
    next(batches)
    with pytest.raises(JpegError):
        next(batches)
    one.load_state_dict(one.state_dict())
    assert flat(labels_of(one)) == list(range(8, SAMPLES))


def test_an_image_that_is_cut_before_its_header_is_named(make, tmp_path) -> None:
    def headless(sample: int) -> bytes:
        return gray_jpeg(sample)

    root = write_set(tmp_path / "set", SIZES, headless)
    path = root / "PCR_1.pcr"
    data = path.read_bytes()
    start = data.index(b"\xff\xd8", data.index(b"\xff\xd8") + 1)
    path.write_bytes(data[:start] + b"\0\0" + data[start + 2 :])
    for on_error in ("raise", "skip"):
        source = PcrSource(root, batch_size=4, shuffle=False, on_error=on_error)
        with Loader(source, val_pipeline, size=8) as one:
            if on_error == "skip":
                assert flat(labels_of(one)) == [n for n in range(SAMPLES) if n != 7]
                assert source.skipped == 1
                continue
            with pytest.raises(JpegError, match=r"PCR_1\.pcr image 1: \d+ bytes that are no JPEG"):
                list(one)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_record_that_cannot_be_read_costs_its_samples(make, on_error) -> None:
    one = make(set(), on_error=on_error)
    path = Path(one.source.reader.root) / "PCR_2.pcr"
    path.write_bytes(path.read_bytes()[:40])
    if on_error == "raise":
        with pytest.raises(PcrError, match=r"PCR_2\.pcr"):
            list(one)
    else:
        assert flat(labels_of(one)) == [n for n in range(SAMPLES) if n // 6 != 2]


@pytest.mark.parametrize("decode", [False, True])
def test_an_error_that_is_not_of_an_image_is_that_of_dali(make, decode) -> None:
    made = []

    def define(source, **options):
        @pipeline_def(batch_size=4, num_threads=1, device_id=None)
        def pipeline():
            images, labels = external_source(source)
            if not decode:
                images = fn.decoders.image(images)
            return fn.crop(images, crop=[500, 500]), labels

        made.append(source)
        return pipeline()

    one = make(set(), define, on_error="skip", decode=decode)
    for number in range(1, 3):
        with pytest.raises(RuntimeError, match="crop"):
            list(one)
        assert len(made) == number, "nothing was made again"


def test_the_search_says_what_dali_says() -> None:
    good = np.frombuffer(gray_jpeg(1), np.uint8)
    bad = np.frombuffer(gray_jpeg(1)[:60] + b"\xff\xd9", np.uint8)
    found = find_undecodable([good, bad, good, bad])
    assert list(found) == [1, 3]
    assert all("\n" not in reason and reason for reason in found.values())
