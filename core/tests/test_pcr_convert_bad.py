"""Conversion of what is bad, odd or no JPEG: named, skipped or noted, and never in silence."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from convert_helpers import contents, converted, jpeg, lines_of, make_folder, samples_of
from jpeg_helpers import HARDCASES, coef_digest, hard
from PIL import Image

from tensorcom import ImageError, SourceError
from tensorcom.errors import JpegError, MissingDependencyError, PcrError
from tensorcom.images import decode_image
from tensorcom.pcr import PcrReader
from tensorcom.pcr.conversion import convert


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path / "images")


@pytest.fixture
def mixed(folder) -> Path:
    """Add to the folder what is no JPEG, what is damaged, and what has something to be dropped."""
    (folder / "ant" / "png.jpg").write_bytes(hard("A01.JPEG"))
    (folder / "bee" / "cut.jpg").write_bytes(hard("A29a.jpg"))
    (folder / "bee" / "icc.jpg").write_bytes(hard("A08.jpg"))
    (folder / "cat" / "empty.jpg").write_bytes(b"")
    return folder


def test_a_bad_image_is_named_and_the_set_unfinished(mixed, tmp_path) -> None:
    with pytest.raises(JpegError) as caught:
        convert(mixed, tmp_path / "set", images_per_record=2, shuffle=False)
    assert str(caught.value) == f"{mixed}/ant/png.jpg: is PNG, expected JPEG"
    with pytest.raises(PcrError, match="unfinished"):
        PcrReader(tmp_path / "set")


def test_bad_images_are_skipped_and_reported_if_asked_for(mixed, tmp_path) -> None:
    report = convert(mixed, tmp_path / "set", shuffle=False, images_per_record=4, on_error="skip")
    assert lines_of(report) == [
        {"path": f"{mixed}/ant/png.jpg", "status": "skipped", "reason": "is PNG, expected JPEG"},
        {
            "path": f"{mixed}/bee/cut.jpg",
            "status": "skipped",
            "reason": lines_of(report)[1]["reason"],
        },
        {"path": f"{mixed}/bee/icc.jpg", "status": "noted", "notes": ["dropped ICC"]},
        {
            "path": f"{mixed}/cat/empty.jpg",
            "status": "skipped",
            "reason": "file is empty, expected a JPEG",
        },
    ]
    assert lines_of(report)[1]["reason"].startswith("truncated")
    assert (report.images, report.tally.files) == (13, 16)
    assert (report.tally.noted, report.tally.skipped, report.tally.reencoded) == (1, 3, 0)
    found = samples_of(tmp_path / "set")
    assert [name for name, _, _ in found if "0" not in name] == ["bee/icc.jpg"]
    # Records are ranges of the source: what is skipped makes them smaller and moves nothing.
    with PcrReader(tmp_path / "set") as reader:
        assert [info.samples for info in reader.records] == [4, 3, 3, 3]


def test_a_record_of_bad_images_only_leaves_a_hole(folder, tmp_path) -> None:
    for number in range(4, 8):
        (folder / "bee" / f"{number:03}.jpg").write_bytes(b"bad")
    report = convert(folder, tmp_path / "set", shuffle=False, images_per_record=2, on_error="skip")
    assert (report.images, report.records, report.tally.skipped) == (8, 4, 4)
    with PcrReader(tmp_path / "set") as reader:
        names = [info.name for info in reader.records]
    assert names == ["PCR_0.pcr", "PCR_1.pcr", "PCR_4.pcr", "PCR_5.pcr"]
    assert len(samples_of(tmp_path / "set")) == 8


def test_bad_images_only_are_an_error_with_a_report(folder, tmp_path) -> None:
    for path in folder.rglob("*.jpg"):
        path.write_bytes(b"bad")
    with pytest.raises(PcrError) as caught:
        convert(folder, tmp_path / "set", on_error="skip")
    report = tmp_path / "set" / "PCR_report.jsonl"
    assert str(caught.value) == f"none of the 12 files could be converted; {report} says why"
    assert len(report.read_text().splitlines()) == 12
    with pytest.raises(PcrError, match="unfinished"):
        PcrReader(tmp_path / "set")


def test_damaged_images_are_taken_if_asked_for(mixed, tmp_path) -> None:
    report = convert(mixed, tmp_path / "set", lenient=True, on_error="skip")
    said = {Path(line["path"]).name: line for line in lines_of(report)}
    assert said["cut.jpg"]["status"] == "noted"
    assert said["cut.jpg"]["notes"][-1].startswith("truncated, kept what can be decoded")


def test_what_is_no_jpeg_is_encoded_only_if_asked_for(folder, tmp_path) -> None:
    kinds = {"A01.JPEG": "PNG", "A02a.jpg": "GIF", "A02b.jpg": "WebP", "A02c.jpg": "TIFF"}
    for name in kinds:
        (folder / "ant" / name).write_bytes(hard(name))
    report = convert(folder, tmp_path / "set", reencode=95, shuffle=False)
    assert lines_of(report) == [
        {
            "path": f"{folder}/ant/{name}",
            "status": "reencoded",
            "notes": [f"{kind}, encoded as JPEG at quality 95"],
        }
        for name, kind in kinds.items()
    ]
    assert (report.tally.reencoded, report.tally.noted, report.images) == (4, 0, 16)
    images = {name: image for name, _, image in samples_of(tmp_path / "set")}
    for name in kinds:
        pixels, source = decode_image(images[f"ant/{name}"]), decode_image(hard(name))
        assert pixels.shape == source.shape
        assert abs(pixels.astype(int) - source).mean() < 8
    assert images["ant/000.jpg"] == converted(jpeg(0)), "a JPEG was encoded again"


def test_what_cannot_be_encoded_is_bad(folder, tmp_path) -> None:
    (folder / "ant" / "heic.jpg").write_bytes(hard("A02f.jpg"))
    with pytest.raises(ImageError, match=r"heic\.jpg: HEIC images are not decoded"):
        convert(folder, tmp_path / "a", reencode=90)
    (folder / "ant" / "heic.jpg").unlink()
    Image.new("RGB", (65501, 1)).save(folder / "ant" / "wide.png")
    with pytest.raises(ImageError, match=r"wide\.png: cannot be encoded as JPEG"):
        convert(folder, tmp_path / "b", reencode=90)


def test_files_that_cannot_be_read(folder, tmp_path, monkeypatch) -> None:
    real = os.open

    def failing(path, *more):
        if str(path).endswith("005.jpg"):
            raise OSError(code, os.strerror(code))
        return real(path, *more)

    monkeypatch.setattr(os, "open", failing)
    code = errno.EIO
    with pytest.raises(SourceError, match=r"005\.jpg: cannot be read: Input/output error"):
        convert(folder, tmp_path / "a")
    report = convert(folder, tmp_path / "b", on_error="skip")
    assert lines_of(report)[0]["reason"] == "cannot be read: Input/output error"
    code = errno.ESTALE  # the whole file system is at fault: nothing is skipped for that
    with pytest.raises(SourceError, match=r"005\.jpg: cannot be read: Stale file handle"):
        convert(folder, tmp_path / "c", on_error="skip")


def test_labels_are_checked(tmp_path) -> None:
    samples = [(jpeg(0), 0), (jpeg(1), 2), (jpeg(2), -1), (jpeg(3), 1)]
    with pytest.raises(SourceError, match="sample 1: label is 2, expected at most 1"):
        convert(samples, tmp_path / "a", class_names=["x", "y"])
    report = convert(samples, tmp_path / "b", class_names=["x", "y"], on_error="skip")
    assert [label for _, label, _ in samples_of(tmp_path / "b")] == [0, 1]
    assert report.tally.skipped == 2


def test_a_missing_tool_is_no_fault_of_an_image(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tensorcom.pcr.transcode.available", lambda: ())
    with pytest.raises(MissingDependencyError, match="apt-get install"):
        convert(folder, tmp_path / "set", on_error="skip")


def test_an_empty_source_is_an_error_that_leaves_nothing(tmp_path) -> None:
    with pytest.raises(PcrError, match="the source holds no images"):
        convert([], tmp_path / "set")
    assert contents(tmp_path / "set") == {}


def test_junk_is_counted_in_the_report(folder, tmp_path) -> None:
    (folder / "ant" / "Thumbs.db").touch()
    (folder / "loose.jpg").touch()
    report = convert(folder, tmp_path / "set")
    assert lines_of(report) == [
        {"path": str(folder), "status": "passed over", "reason": reason, "count": 1}
        for reason in ("loose file", "not an image")
    ]


def test_the_report_goes_where_it_is_asked_to(mixed, tmp_path) -> None:
    path = tmp_path / "said.jsonl"
    report = convert(mixed, tmp_path / "set", on_error="skip", report=path)
    assert report.report == str(path)
    assert len(lines_of(report)) == 4
    assert "PCR_report.jsonl" not in contents(tmp_path / "set")


def test_hard_cases_as_one_folder(tmp_path) -> None:
    """Each file of group A ends as the transcoder alone would have it; none stops the others."""
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    cases = sorted(path for path in HARDCASES.glob("A*") if path.is_file())
    assert len(cases) == 58
    for path in cases:
        # Names that end as images do: what is in them decides.
        (source / "a" / f"{path.stem}.jpg").write_bytes(path.read_bytes())
    report = convert(source, tmp_path / "set", on_error="skip", images_per_record=16)
    said = {Path(line["path"]).stem: line["status"] for line in lines_of(report)}
    skipped = {name for name, status in said.items() if status == "skipped"}
    found = {Path(name).stem: image for name, _, image in samples_of(tmp_path / "set")}
    assert skipped.isdisjoint(found)
    assert skipped | set(found) == {path.stem for path in cases}
    assert {"A01", "A02a", "A27", "A28", "A29a", "A30a", "A31"} <= skipped
    assert {"A03", "A06", "A15", "A16", "A17", "A18", "A25c"} <= set(found)
    for name in ("A03", "A04", "A09", "A15", "A16", "A20", "A23a", "A25a"):
        digest = coef_digest(hard(f"{name}.jpg"), tmp_path)
        assert coef_digest(found[name], tmp_path) == digest
    assert said["A15"] == said["A16"] == said["A17"] == said["A18"] == "noted"
