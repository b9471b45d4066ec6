"""Images taken without a transcoder: equal to what it gives, or not taken."""

from __future__ import annotations

import pytest
from jpeg_helpers import TRAIN, after_soi, coef_digest, hard, picture, run_jpegtran, saved, segment

from tensorcom.pcr.jpeg import EOI, parse_jpeg
from tensorcom.pcr.scripts import BALANCED, FAST, STANDARD
from tensorcom.pcr.strip import strip_metadata

EXIF = segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\0\0")
ICC = segment(0xE2, b"ICC_PROFILE\0\1\1\xff\xda")
COM = segment(0xFE, b"\xff\xd9")
PILLOW = {
    f"{mode} {subsampling}": saved(picture(mode), progressive=True, subsampling=subsampling)
    for mode in ("RGB", "L")
    for subsampling in (0, 1, 2)
}
COLOR = PILLOW["RGB 2"]


def strip(data: bytes, script=STANDARD) -> bytes | None:
    return strip_metadata(data, parse_jpeg(data), script)


def progressive(data: bytes) -> bytes:
    return run_jpegtran(data, "-optimize", "-progressive")


@pytest.mark.parametrize("name", PILLOW)
def test_pillows_progressive_files_come_out_as_from_jpegtran(name):
    data = PILLOW[name]
    assert strip(data) == progressive(data)
    marked = after_soi(data, EXIF, COM)
    assert strip(marked) == progressive(marked)


@pytest.mark.parametrize("path", TRAIN, ids=lambda path: path.stem)
def test_golden_images_come_out_as_from_jpegtran(path):
    """The golden sets hold what jpegtran makes of these."""
    data = progressive(path.read_bytes())
    assert strip(data) == data
    assert strip(after_soi(data, ICC)) == data


def test_density_is_kept_and_thumbnails_are_not():
    thumbnail = segment(0xE0, b"JFIF\0\1\2\1\0\x48\0\x49\1\1abc")
    data = COLOR[:2] + thumbnail + COLOR[20:]
    assert COLOR[2:4] == b"\xff\xe0"
    assert strip(data) == progressive(data)
    assert b"JFIF\0\1\2\1\0\x48\0\x49\0\0" in strip(data)


def test_an_unknown_version_becomes_the_one_that_libjpeg_writes():
    data = COLOR.replace(b"JFIF\0\1", b"JFIF\0\2")
    assert strip(data) == progressive(data)


def test_a_missing_jfif_segment_is_added():
    data = COLOR[:2] + COLOR[20:]
    assert b"JFIF" not in data
    assert strip(data) == progressive(data)


@pytest.mark.parametrize("script", [FAST, BALANCED], ids=lambda script: script.name)
@pytest.mark.parametrize("name", ["RGB 2", "L 0"])
def test_other_scripts_are_known(script, name, tmp_path):
    path = tmp_path / "script"
    path.write_text(script.text_of(len(parse_jpeg(PILLOW[name]).frame.components)))
    data = run_jpegtran(PILLOW[name], "-optimize", "-scans", str(path))
    assert strip(data, script) == data
    assert strip(after_soi(data, EXIF, ICC, COM), script) == data
    assert strip(data, STANDARD) is None
    assert strip(PILLOW[name], script) is None


def with_segment_before_scan(data: bytes, added: bytes) -> bytes:
    at = parse_jpeg(data).scans[4].stop
    return data[:at] + added + data[at:]


@pytest.mark.parametrize(
    "data",
    [
        saved(picture()),
        COLOR[:-2],
        COLOR.replace(b"\xff\xc4", b"\xff\xff\xc4"),
        after_soi(COLOR, b"\0"),
        after_soi(COLOR, segment(0xDD, b"\0\1")),
        with_segment_before_scan(COLOR, segment(0xDB, bytes(130))),
        with_segment_before_scan(COLOR, segment(0xDB, bytes(65))),
        COLOR[: parse_jpeg(COLOR).scans[8].stop] + EOI,
        COLOR[:-2] + b"\xff" + EOI,
        COLOR[:-2] + b"\xff\xd0" + EOI,
        saved(picture("CMYK"), progressive=True),
        saved(picture(), progressive=True, keep_rgb=True),
        *(hard(name) for name in ("A13.jpg", "A21b.jpg", "A25a.jpg", "A25b.jpg", "A25c.jpg")),
    ],
    ids=[
        *("baseline", "no eoi", "fill bytes", "junk", "restarts", "two tables", "late table"),
        *("a scan less", "fill at the end", "restart at the end", "cmyk", "rgb"),
        *("A13", "A21b", "A25a", "A25b", "A25c"),
    ],
)
def test_other_layouts_are_left_to_the_transcoder(data):
    assert strip(data) is None


def test_comments_between_scans_are_dropped(tmp_path):
    data = with_segment_before_scan(COLOR, COM + EXIF)
    assert strip(data) == progressive(data)
    assert coef_digest(strip(data), tmp_path) == coef_digest(data, tmp_path)
