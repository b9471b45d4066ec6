"""The marker structure: scans and their bytes, what is dropped and noted, limits."""

from __future__ import annotations

import struct

import pytest
from jpeg_helpers import after_soi, picture, saved, segment

from tensorcom.errors import JpegError
from tensorcom.pcr import segments as segments_module
from tensorcom.pcr.jpeg import EOI, Component, parse_jpeg
from tensorcom.pcr.segments import segments

BASELINE = saved(picture())
PROGRESSIVE = saved(picture(), progressive=True)
FRAME = b"\x08\x00\x10\x00\x18\x01\x01\x11\x00"  # gray, 24 x 16
SCAN = segment(0xDA, b"\x01\x01\x00\x00\x3f\x00") + b"\x55\xaa"


def tiny(frame: bytes = FRAME, kind: int = 0xC0, scans: bytes = SCAN) -> bytes:
    return b"\xff\xd8" + segment(kind, frame) + segment(0xC4, b"") + scans + EOI


def refusal(data: bytes, **options) -> str:
    with pytest.raises(JpegError) as caught:
        parse_jpeg(data, path="x.jpg", **options)
    assert caught.value.path == "x.jpg"
    return str(caught.value)


def test_a_baseline_file_is_one_scan():
    info = parse_jpeg(BASELINE)
    assert (info.frame.kind, info.frame.precision) == (0xC0, 8)
    assert (info.frame.width, info.frame.height) == (90, 70)
    assert info.frame.components == (Component(1, 2, 2), Component(2, 1, 1), Component(3, 1, 1))
    assert not info.frame.progressive
    (scan,) = info.scans
    assert (scan.start, scan.stop, info.end) == (0, len(BASELINE) - 2, len(BASELINE) - 2)
    assert (scan.components, scan.ss, scan.se, scan.ah, scan.al) == ((0, 1, 2), 0, 63, 0, 0)
    assert BASELINE[scan.data - 3 : scan.data] == b"\x00\x3f\x00"
    assert info.has_eoi
    assert info.complete
    assert info.ycc
    assert (info.tail_bytes, info.orientation, info.dropped, info.notes) == (0, 0, (), ())


def test_slices_of_scans_join_to_the_file():
    info = parse_jpeg(PROGRESSIVE)
    assert info.frame.progressive
    assert info.complete
    assert len(info.scans) == 10
    assert info.scans[5][3:] == ((0,), 1, 63, 2, 1)
    parts = [PROGRESSIVE[scan.start : scan.stop] for scan in info.scans]
    assert b"".join(parts) + EOI == PROGRESSIVE
    for part in parts[1:]:
        assert part[:2] in (b"\xff\xc4", b"\xff\xda")  # tables go with the scan that they precede


def test_a_memoryview_is_taken_too():
    assert parse_jpeg(memoryview(PROGRESSIVE)) == parse_jpeg(PROGRESSIVE)


@pytest.mark.parametrize(
    ("h", "v", "width", "height", "blocks"),
    [
        (1, 1, 24, 16, [6, 6]),
        (2, 2, 17, 17, [9, 4]),
        (2, 1, 1, 1, [1, 1]),
        (3, 1, 25, 9, [8, 4]),
        (4, 2, 61, 45, [48, 6]),
    ],
)
def test_blocks_of_a_component_are_those_of_its_own_scan(h, v, width, height, blocks):
    head = struct.pack(">BHHB", 8, height, width, 2) + bytes([1, h << 4 | v, 0, 2, 0x11, 0])
    frame = parse_jpeg(tiny(head)).frame
    assert [frame.blocks(index) for index in range(2)] == blocks


def test_markers_inside_segments_are_no_markers():
    inside = b"\xff\xda\xff\xd9\xff\xc2\xff\xd8"
    data = after_soi(PROGRESSIVE, segment(0xE5, inside), segment(0xFE, inside))
    info = parse_jpeg(data)
    assert len(info.scans) == 10
    assert info.dropped == ("APP5", "COM")


@pytest.mark.parametrize("filler", [b"\xff", b"\xff" * 1000])
def test_fill_bytes_come_before_any_marker(filler):
    data = PROGRESSIVE.replace(b"\xff\xc4", filler + b"\xff\xc4").replace(EOI, filler + EOI)
    info = parse_jpeg(data)
    assert [scan[3:] for scan in info.scans] == [scan[3:] for scan in parse_jpeg(PROGRESSIVE).scans]
    assert info.notes == ()
    assert info.has_eoi


def test_restart_markers_and_stuffed_bytes_do_not_end_a_scan():
    body = b"\x11" + b"".join(b"\xff" + bytes([0xD0 + i % 8]) for i in range(20)) + b"\xff\x00\x22"
    info = parse_jpeg(tiny(scans=SCAN + body))
    assert info.end == len(tiny(scans=SCAN + body)) - 2


def test_what_a_transcode_drops_is_named_once():
    extra = [
        segment(0xE0, b"JFXX\0\x10"),
        segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\0\0"),
        segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"),
        segment(0xE2, b"ICC_PROFILE\0\x01\x02"),
        segment(0xE2, b"ICC_PROFILE\0\x02\x02"),
        segment(0xE2, b"MPF\0"),
        segment(0xED, b"Photoshop 3.0\0"),
        segment(0xEE, b"Adobe\0\x64\0\0\0\0\x01"),
        segment(0xEB, b""),
        segment(0xFE, b"\xc3\x28"),
    ]
    info = parse_jpeg(after_soi(BASELINE, *extra) + BASELINE)
    assert info.dropped == (
        "JFXX", "EXIF", "XMP", "ICC", "MPF", "IPTC", "APP11", "COM", "MPO frames",
    )  # fmt: skip
    assert info.tail_bytes == len(BASELINE)


def test_a_tail_that_is_no_image_is_counted():
    info = parse_jpeg(BASELINE + b"\0" * 77)
    assert (info.tail_bytes, info.dropped) == (77, ())


def test_a_missing_eoi_is_no_error_here():
    info = parse_jpeg(BASELINE[:-2])
    assert (info.has_eoi, info.end) == (False, len(BASELINE) - 2)


@pytest.mark.parametrize(("scans", "complete"), [(10, True), (9, False), (1, False)])
def test_left_out_bits_are_seen(scans, complete):
    info = parse_jpeg(PROGRESSIVE)
    cut = parse_jpeg(PROGRESSIVE[: info.scans[scans - 1].stop] + EOI)
    assert cut.complete is complete
    assert cut.notes == (() if complete else ("the scans leave out bits of the coefficients",))


def test_a_component_without_a_scan_is_seen():
    frame = FRAME[:5] + b"\x02\x01\x11\x00\x02\x11\x00"
    assert not parse_jpeg(tiny(frame)).complete


@pytest.mark.parametrize(
    ("jfif", "adobe", "ids", "ycc"),
    [
        (True, 0, b"RGB", True),
        (False, 0, b"\1\2\3", False),
        (False, 1, b"RGB", True),
        (False, None, b"\1\2\3", True),
        (False, None, b"RGB", False),
        (False, None, b"\0\1\2", True),
        (True, None, b"\1", True),
        (True, None, b"\1\2", False),
        (False, 2, b"\1\2\3\4", False),
    ],
)
def test_colours_are_guessed_as_libjpeg_does(jfif, adobe, ids, ycc):
    head = struct.pack(">BHHB", 8, 8, 8, len(ids)) + b"".join(bytes([i, 0x11, 0]) for i in ids)
    scan = bytes([len(ids)]) + b"".join(bytes([i, 0]) for i in ids) + b"\0\x3f\0"
    data = tiny(head, scans=segment(0xDA, scan) + b"\x12")
    if adobe is not None:
        data = after_soi(data, segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([adobe])))
    if jfif:
        data = after_soi(data, segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"))
    assert parse_jpeg(data).ycc is ycc


def test_equal_ids_are_taken_in_order():
    frame = FRAME[:5] + b"\x02\x01\x11\x00\x01\x11\x00"
    scan = segment(0xDA, b"\x02\x01\x00\x01\x00\x00\x3f\x00")
    assert parse_jpeg(tiny(frame, scans=scan)).scans[0].components == (0, 1)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "file is empty, expected a JPEG"),
        (b"\xff", r"starts with b'\xff', expected JPEG"),
        (b"\x89PNG\r\n\x1a\n", "is PNG, expected JPEG"),
        (b"\n" + BASELINE, r"starts with b'\n', expected SOI, which comes at byte 1"),
        (b"\xff\xd8", "holds no image: data end before any scan"),
        (b"\xff\xd8\xff\xd9", "holds no image: EOI comes before any scan"),
        (tiny(scans=b""), "holds no image: EOI comes before any scan"),
        (b"\xff\xd8" + SCAN, "at byte 2: scan before the frame header"),
        (b"\xff\xd8\xff\xe0\x00\x01", "at byte 2: segment 0xE0 has length 1, expected 2 or more"),
        (b"\xff\xd8\xff\xe0\x00\x09ab", "at byte 2: truncated: segment 0xE0 of 9 bytes has 4 left"),
        (b"\xff\xd8\xff\xe0\x00", "at byte 2: truncated: segment 0xE0 of 0 bytes has 1 left"),
        (after_soi(BASELINE, b"\xff\xd8"), "at byte 2: second SOI, expected a segment of a JPEG"),
        (
            after_soi(BASELINE, segment(0xF0, b"")),
            "at byte 2: unknown marker 0xF0, expected a segment of a JPEG",
        ),
        (tiny(FRAME, 0xC3), "at byte 2: SOF3 is lossless JPEG, which has no DCT coefficients"),
        (tiny(FRAME, 0xC6), "at byte 2: SOF6 is hierarchical JPEG, which is not supported"),
        (tiny(b"\x0c" + FRAME[1:]), "at byte 2: precision 12 is not supported, expected 8 bits"),
        (
            tiny(b"\x08\0\0" + FRAME[3:]),
            "at byte 2: height 0, to come from DNL, is not supported",
        ),
        (tiny(FRAME[:3] + b"\0\0" + FRAME[5:]), "at byte 2: width 0"),
        (
            tiny(b"\x08\xff\xdd" + FRAME[3:]),
            "at byte 2: 24 x 65501 pixels, at most 65500 a side",
        ),
        (
            tiny(b"\x08\xff\xdc\xff\xdc" + FRAME[5:]),
            "at byte 2: 65500 x 65500 pixels exceed the limit of 178956970",
        ),
        (tiny(FRAME[:-1]), "at byte 2: frame header of 8 bytes, expected 6 + 3 each"),
        (tiny(FRAME[:5] + b"\0"), "at byte 2: 0 components, expected 1 to 4"),
        (tiny(FRAME[:5] + b"\5" + b"\1\x11\0" * 5), "at byte 2: 5 components, expected 1 to 4"),
        (tiny(FRAME[:7] + b"\x51\0"), "at byte 2: sampling factors are not in 1 to 4"),
        (tiny(FRAME[:7] + b"\x10\0"), "at byte 2: sampling factors are not in 1 to 4"),
        (after_soi(tiny(), segment(0xC0, FRAME)), "at byte 15: second frame header"),
        (
            tiny(scans=segment(0xDA, b"\x01\x07\0\0\x3f\0")),
            "at byte 19: scan of component 7, which the frame lacks",
        ),
        (
            tiny(scans=segment(0xDA, b"\x02\x01\0\0\x3f\0")),
            "at byte 19: scan header of 6 bytes for 2 components",
        ),
        (
            tiny(scans=segment(0xDA, b"")),
            "at byte 19: scan header of 0 bytes for 0 components",
        ),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused_with_what_was_found(data, text):
    assert refusal(data) == f"x.jpg{' ' if text.startswith('at') else ': '}{text}"


def test_the_limit_of_pixels_is_exact():
    assert parse_jpeg(BASELINE, max_pixels=6300).frame.width == 90
    assert "90 x 70 pixels exceed the limit of 6299" in refusal(BASELINE, max_pixels=6299)


def test_scans_are_counted():
    assert len(parse_jpeg(tiny(scans=SCAN * 500)).scans) == 500
    assert "more than 500 scans" in refusal(tiny(scans=SCAN * 501))


def test_scans_of_a_large_image_are_bounded_together():
    wide = struct.pack(">BHHB", 8, 13000, 13000, 1) + FRAME[6:]
    assert len(parse_jpeg(tiny(wide, scans=SCAN * 105)).scans) == 105
    text = refusal(tiny(wide, scans=SCAN * 106))
    assert text == "x.jpg: 106 scans of 13000 x 13000 pixels exceed 17895697000 pixels in all scans"


def test_segments_are_counted(monkeypatch):
    monkeypatch.setattr(segments_module, "MAX_SEGMENTS", 100)
    data = after_soi(BASELINE, *[segment(0xFE, b"")] * 100)
    assert refusal(data) == "x.jpg: more than 100 segments"


@pytest.mark.parametrize("marker", [b"\xff\xd0", b"\xff\xd7", b"\xff\x01"])
def test_markers_without_a_length_are_passed_over(marker):
    assert parse_jpeg(after_soi(BASELINE, marker)).scans[0].stop == len(BASELINE)


def test_bytes_between_segments_are_noted():
    data = after_soi(BASELINE, b"junk")
    assert parse_jpeg(data).notes == ("4 bytes between segments",)
    assert next(iter(segments(data))).at == 6


def test_runs_of_marker_bytes_take_linear_time():
    # In quadratic time the limit of every test would stop it.
    info = parse_jpeg(after_soi(BASELINE, b"\xff" * 3_000_000 + b"\0") + b"\xff" * 3_000_000)
    assert info.tail_bytes == 3_000_000
