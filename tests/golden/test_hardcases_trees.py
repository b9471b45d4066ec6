"""Image folders from public bug reports, converted: one test for each id.

What git does not keep, such as names that are no UTF-8, is made here.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from convert_helpers import jpeg, lines_of, samples_of
from jpeg_helpers import coef_digest
from PIL import Image

from tensorcom.cli.main import main
from tensorcom.errors import JpegError, SourceError
from tensorcom.images import decode_image
from tensorcom.pcr import PcrReader
from tensorcom.pcr.conversion import convert
from tensorcom.pcr.jpeg import parse_jpeg

ROOT = Path(__file__).parent / "hardcases"
OLD = 1_000_000_000


def tree(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / f"{name}_tree", tmp_path / "source"))


def names_of(root: Path) -> list[tuple[str | None, int]]:
    return [(name, label) for name, label, _ in samples_of(root)]


def test_T01_junk_is_skipped_counted_and_reported(tmp_path) -> None:
    source = tree("T01", tmp_path)
    (source / ".ipynb_checkpoints").mkdir()
    (source / ".ipynb_checkpoints" / "1-checkpoint.jpg").write_bytes(jpeg(0))
    report = convert(source, tmp_path / "set", shuffle=False)
    with PcrReader(tmp_path / "set") as reader:
        assert reader.class_names == ("cat", "dog")
    assert names_of(tmp_path / "set") == [
        ("cat/1.jpg", 0),
        ("dog/1.jpg", 1),
        ("dog/nested/2.jpg", 1),
    ]
    assert lines_of(report) == [
        {"path": str(source), "status": "passed over", "reason": reason, "count": count}
        for reason, count in [("hidden", 4), ("loose file", 2), ("not an image", 2)]
    ]


def test_T02_an_empty_class_is_named_or_keeps_its_label(tmp_path) -> None:
    source = tree("T02", tmp_path)
    with pytest.raises(SourceError, match="no images in class 'b'"):
        convert(source, tmp_path / "set")
    assert not (tmp_path / "set").exists()
    convert(source, tmp_path / "set", shuffle=False, allow_empty_class=True)
    assert names_of(tmp_path / "set") == [("a/x.jpg", 0), ("c/y.jpg", 2)]
    with PcrReader(tmp_path / "set") as reader:
        assert reader.class_names == ("a", "b", "c")


@pytest.mark.parametrize("order", [1, -1], ids=["made in order", "made in reverse"])
def test_T03_labels_are_those_of_sorted_names(tmp_path, order) -> None:
    classes = ["10", "2", "B", "a", "a b", "é", "Z"]
    for number, name in list(enumerate(classes))[::order]:
        (tmp_path / "source" / name).mkdir(parents=True)
        (tmp_path / "source" / name / "1.JPG").write_bytes(jpeg(number))
    convert(tmp_path / "source", tmp_path / "set", shuffle=False)
    expected = sorted(classes)
    assert expected == ["10", "2", "B", "Z", "a", "a b", "é"]
    assert names_of(tmp_path / "set") == [
        (f"{name}/1.JPG", label) for label, name in enumerate(expected)
    ]
    with PcrReader(tmp_path / "set") as reader:
        assert reader.class_names == tuple(expected)


ODD_NAMES = [
    b"\xff\xfe.jpg",
    "\u00e9.jpg".encode(),
    "e\u0301.jpg".encode(),
    b"a\n'$(x);*.jpg",
    b"%s %d {0}.jpg",
    b" -rf .jpg",
    b"b" * 251 + b".jpg",
]


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="names there are Unicode")
def test_T04_all_names_convert_and_come_back(tmp_path, capfd) -> None:
    folder = os.path.join(os.fsencode(tmp_path), b"source", b"cl\xfe")
    os.makedirs(folder)
    for number, name in enumerate(ODD_NAMES):
        Path(os.fsdecode(os.path.join(folder, name))).write_bytes(jpeg(number))
    bad = os.path.join(folder, b"bad\xfd.jpg")
    Path(os.fsdecode(bad)).write_bytes(b"bad")
    with pytest.raises(JpegError, match=r"cl\\xfe/bad\\xfd\.jpg: starts with b'bad'"):
        convert(tmp_path / "source", tmp_path / "set", shuffle=False)
    arguments = [str(tmp_path / "source"), str(tmp_path / "set"), "--no-shuffle"]
    assert main(["pcr", "convert", *arguments, "--on-error", "skip"]) == 0
    assert "7 images in 1 record" in capfd.readouterr().err
    found = [os.fsencode(name or "") for name, _ in names_of(tmp_path / "set")]
    # The order is that of the names as Python has them, like that of class names.
    assert found == [b"cl\xfe/" + os.fsencode(n) for n in sorted(map(os.fsdecode, ODD_NAMES))]
    with PcrReader(tmp_path / "set") as reader:
        assert reader.class_names == (os.fsdecode(b"cl\xfe"),)
    (line,) = (tmp_path / "set" / "PCR_report.jsonl").read_bytes().splitlines()
    line.decode("ascii")
    assert os.fsencode(json.loads(line)["path"]) == bad


@pytest.mark.parametrize("script", ["standard", "fast", "balanced"])
def test_T05_gray_colour_and_CMYK_each_end_at_their_own_last_scan(tmp_path, script) -> None:
    source = tree("T05", tmp_path)
    convert(source, tmp_path / "set", script=script)
    with PcrReader(tmp_path / "set") as reader:
        assert len(reader.records) == 1
        place = {reader.name(sample): sample for sample in range(3)}
        for kind in ("gray", "rgb", "cmyk"):
            original = (source / "c" / f"{kind}.jpg").read_bytes()
            images = [
                reader.sample(place[f"c/{kind}.jpg"], scan_groups=k)[0]
                for k in range(1, reader.scan_groups + 1)
            ]
            shape = decode_image(original).shape
            for image in images:
                assert image.endswith(b"\xff\xd9")
                assert not image.endswith(b"\xff\xd9\xff\xd9")
                assert Image.open(io.BytesIO(image)).mode == Image.open(io.BytesIO(original)).mode
                assert decode_image(image).shape == shape
            scans = [len(parse_jpeg(image).scans) for image in images]
            assert scans == sorted(scans)
            assert scans[0] >= 1
            assert coef_digest(images[-1], tmp_path) == coef_digest(original, tmp_path)
            if script == "standard":
                assert scans[-1] == {"gray": 6, "rgb": 10, "cmyk": 18}[kind]


def state_of(source: Path) -> dict[str, tuple[bytes, int, int, int]]:
    found = {}
    for path in [source, *sorted(source.rglob("*"))]:
        status = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (data, status.st_mtime_ns, status.st_mode, status.st_ino)
    return found


def test_T06_the_source_does_not_change(tmp_path) -> None:
    source = tree("T06", tmp_path)
    for path in [*source.rglob("*"), source]:
        os.utime(path, (OLD, OLD))
    before = state_of(source)
    data, mtime, _, _ = before[str(source / "c" / "1.jpg")]
    assert mtime == OLD * 10**9
    assert hashlib.sha256(data).hexdigest() == (
        "80fca860acd998ab7dcc853f0e2beefc0f895891bdf95a60314b338f87e6f260"
    )
    convert(source, tmp_path / "set")
    assert state_of(source) == before
    assert len(samples_of(tmp_path / "set")) == 1


def test_T06_the_source_does_not_change_by_a_conversion_that_fails(tmp_path) -> None:
    source = tree("T06", tmp_path)
    (source / "c" / "2.jpg").write_bytes((ROOT / "A31.jpg").read_bytes())
    (source / "c" / "3.jpg").write_bytes((ROOT / "A01.JPEG").read_bytes())
    for path in [*source.rglob("*"), source]:
        os.utime(path, (OLD, OLD))
    before = state_of(source)
    with pytest.raises(JpegError):
        convert(source, tmp_path / "set", shuffle=False)
    assert state_of(source) == before
    convert(source, tmp_path / "set", shuffle=False, on_error="skip", force=True)
    convert(source, tmp_path / "set", lenient=True, reencode=90, force=True)
    assert state_of(source) == before
