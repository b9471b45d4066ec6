"""`measure_fidelity`: which images, which numbers, and what it says of small and damaged ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from jpeg_helpers import picture, saved
from pcr_helpers import GOLDEN_SETS, KINDS, flip, make_set

from tensorcom.errors import ImageError, PcrError, SourceError
from tensorcom.images import decode_image
from tensorcom.images.similarity import Reference, psnr_db
from tensorcom.pcr import PcrReader, guarded
from tensorcom.pcr.fidelity import measure_fidelity


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    images = [saved(picture("RGB", 165 + i, 170 + 7 * i, seed=i)) for i in range(6)]
    return make_set(tmp_path_factory.mktemp("set") / "set", images, per_record=4)


def test_numbers_are_those_of_the_images(made):
    report = measure_fidelity(PcrReader(made.root))
    assert (report.images, report.levels, len(report.groups)) == (6, {5: 6}, 10)
    references = [Reference(decode_image(made.jpeg(i))) for i in range(6)]
    for groups in (1, 2, 5, 9):
        row = report.groups[groups - 1]
        jpegs = [made.jpeg(i, groups) for i in range(6)]
        pixels = [decode_image(guarded(jpeg)) for jpeg in jpegs]
        pairs = list(zip(references, pixels, strict=True))
        likeness = [reference.ms_ssim(image) for reference, image in pairs]
        error = np.mean([reference.mean_squared_error(image) for reference, image in pairs])
        assert row.scan_groups == groups
        assert row.image_bytes == np.mean([len(jpeg) for jpeg in jpegs])
        assert row.ms_ssim == pytest.approx(np.mean(likeness), abs=1e-12)
        assert row.ms_ssim_low == pytest.approx(np.percentile(likeness, 10), abs=1e-12)
        assert row.psnr_db == pytest.approx(psnr_db(error))


def test_more_groups_are_more_bytes_and_more_alike(made):
    reader = PcrReader(made.root)
    rows = measure_fidelity(reader).groups
    assert [row.share for row in rows] == (reader.group_bytes / reader.group_bytes[-1]).tolist()
    for less, more in zip(rows, rows[1:], strict=False):
        assert less.image_bytes < more.image_bytes
        assert less.share < more.share
        assert less.ms_ssim < more.ms_ssim + 0.001
    assert (rows[-1].ms_ssim, rows[-1].psnr_db, rows[-1].share) == (1, math.inf, 1)
    assert rows[0].ms_ssim < 0.9


def test_guards_leave_the_smoothing_out(made):
    reader = PcrReader(made.root)
    plain = measure_fidelity(reader, guard=False).groups
    guards = measure_fidelity(reader).groups
    assert plain[0].psnr_db != guards[0].psnr_db
    assert plain[-1] == guards[-1]


def test_a_seed_draws_the_same_images(made):
    reader = PcrReader(made.root)
    first = measure_fidelity(reader, samples=2, seed=1)
    assert first.images == 2
    assert measure_fidelity(reader, samples=2, seed=1, threads=1) == first
    others = [measure_fidelity(reader, samples=2, seed=seed) for seed in range(2, 6)]
    assert any(other != first for other in others)


def test_only_the_drawn_images_are_read(made):
    reader = PcrReader(made.root)
    reads = []
    read = reader._storage.read
    reader._storage.read = lambda name, start, size: reads.append(size) or read(name, start, size)
    measure_fidelity(reader, samples=1)
    assert sum(reads) < max(len(made.jpeg(i)) for i in range(6)) + 40


def test_small_and_gray_images_are_told_apart(tmp_path, monkeypatch):
    sizes = [(170, 170), (100, 100), (50, 200), (10, 50)]
    images = [saved(picture("L", *size)) for size in sizes]
    made = make_set(tmp_path / "set", images)
    report = measure_fidelity(PcrReader(made.root))
    assert report.levels == {5: 1, 4: 1, 3: 1, 0: 1}
    rows = report.groups
    for group in (2, 3, 7, 8):  # of colour alone
        before = rows[group - 1]
        assert rows[group].image_bytes == before.image_bytes
        assert rows[group].ms_ssim == before.ms_ssim
        assert rows[group].psnr_db == before.psnr_db
    decoded = []
    monkeypatch.setattr(
        "tensorcom.pcr.fidelity.decode_image",
        lambda jpeg, path: decoded.append(path) or decode_image(jpeg),
    )
    measure_fidelity(PcrReader(made.root), samples=1)
    assert len(decoded) == 6  # nothing twice
    tiny = make_set(tmp_path / "tiny", images[3:])
    report = measure_fidelity(PcrReader(tiny.root))
    assert report.groups[0].ms_ssim is None
    assert report.groups[0].ms_ssim_low is None
    assert report.groups[-1].ms_ssim is None
    assert report.groups[0].psnr_db < 60


@pytest.mark.parametrize("kind", KINDS)
def test_sets_of_the_original(kind):
    reader = PcrReader(GOLDEN_SETS / kind)
    report = measure_fidelity(reader)
    assert report.images == len(reader)
    assert report.groups[-1].psnr_db == math.inf
    assert report.groups[0].psnr_db < report.groups[4].psnr_db


def test_progress_is_told(made):
    seen = []
    measure_fidelity(PcrReader(made.root), samples=4, on_progress=lambda *n: seen.append(n))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_damaged_image_is_named(tmp_path):
    made = make_set(tmp_path / "set", [saved(picture())])
    data = made.file(0).read_bytes()
    flip(made.file(0), data.index(b"\xff\xc2") + 4, 0x04)  # precision
    with pytest.raises(ImageError, match="PCR_0.pcr image 0"):
        measure_fidelity(PcrReader(made.root))
    made.file(0).write_bytes(data[:-1])
    with pytest.raises(PcrError, match="PCR_0.pcr"):
        measure_fidelity(PcrReader(made.root))


def test_arguments_out_of_range_are_refused(made):
    for options in ({"samples": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match="expected at least 1 and 0"):
            measure_fidelity(PcrReader(made.root), **options)


def test_a_set_without_images_is_refused():
    class Empty:
        root = "x"

        def __len__(self):
            return 0

    with pytest.raises(SourceError, match="x: holds no samples"):
        measure_fidelity(Empty())
