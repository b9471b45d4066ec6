"""Hard cases of JPEG files, each under its id: what a conversion does with it.

`jpeg.json` holds the verdict on each and, for those that can be decoded, a hash of the
coefficients: equal hashes mean the same coefficients, tables, sampling and colour space.
"""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from jpeg_helpers import HARDCASES, coef_digest, joined
from PIL import Image

from tensorcom.errors import JpegError
from tensorcom.images import decode_image
from tensorcom.pcr import libjpeg
from tensorcom.pcr.jpeg import parse_jpeg
from tensorcom.pcr.scripts import BALANCED, FAST, STANDARD
from tensorcom.pcr.transcode import Transcoder

CASES = json.loads((HARDCASES / "jpeg.json").read_text())
SCRIPTS = [STANDARD, FAST, BALANCED]
PREMATURE = "Corrupt JPEG data: premature end of data segment"
EXTRANEOUS = "Corrupt JPEG data: 50 extraneous bytes before marker 0xd9"
ARITHMETIC = "coded arithmetically"

# What is converted, with the notes on it.
CONVERTED = {
    **dict.fromkeys(["A03", "A04", "A05a", "A05b"], ()),
    "A06": ("dropped EXIF",),
    "A07": ("dropped EXIF", "EXIF is damaged"),
    "A08": ("dropped ICC",),
    "A09": ("dropped EXIF",),
    "A10": ("dropped APP5, COM",),
    "A11": ("dropped COM",),
    **dict.fromkeys(["A12", "A13", "A14a", "A14b"], ()),
    "A15": ("dropped 200000 bytes after EOI",),
    "A16": ("dropped MPF, MPO frames", "dropped 797 bytes after EOI"),
    "A17": ("no EOI",),
    "A18": ("dropped 258 bytes before EOI",),
    "A19": ("no Huffman tables: the standard ones are implied",),
    "A20": (),
    **dict.fromkeys(["A21a", "A21b"], (ARITHMETIC,)),
    **dict.fromkeys([f"A23{letter}" for letter in "abcdefg"], ()),
    **dict.fromkeys(["A24", "A25a", "A25b", "A25c", "A26a", "A26b"], ()),
}
# What is refused, with the reason.
REFUSED = {
    "A01": "is PNG, expected JPEG",
    "A02a": "is GIF, expected JPEG",
    "A02b": "is WebP, expected JPEG",
    "A02c": "is TIFF, expected JPEG",
    "A02d": "is BMP, expected JPEG",
    "A02e": "is JPEG 2000, expected JPEG",
    "A02f": "is HEIC, expected JPEG",
    "A22a": "precision 12 is not supported, expected 8 bits",
    "A22b": "SOF3 is lossless JPEG, which has no DCT coefficients",
    "A22c": "SOF3 is lossless JPEG, which has no DCT coefficients",
    "A26c": "65535 x 1 pixels, at most 65500 a side",
    "A27": "65500 x 65500 pixels exceed the limit of 178956970",
    "A28": "height 0, to come from DNL, is not supported",
    "A29a": f"truncated: {PREMATURE}",
    "A29b": "truncated: no EOI, and only 6 scans",
    "A30a": "file is empty, expected a JPEG",
    "A30b": r"starts with b'\xff', expected JPEG",
    "A30c": "holds no image: data end before any scan",
    "A30d": "holds no image: EOI comes before any scan",
    "A30e": "holds no image: data end before any scan",
    "A30f": "holds no image: EOI comes before any scan",
    "A30g": r"starts with b'\r\n', expected SOI, which comes at byte 2",
    "A31": f"damaged: {EXTRANEOUS}",
}
# What the lenient policy converts of those, with its notes.
LENIENT = {
    "A29a": ("no EOI", f"truncated, kept what can be decoded: {PREMATURE}"),
    "A29b": (
        "the scans leave out bits of the coefficients",
        "no EOI",
        f"truncated, kept what can be decoded: {PREMATURE}",
    ),
    "A31": (f"damaged, kept what can be decoded: {EXTRANEOUS}",),
}


def read(case: str) -> bytes:
    return (HARDCASES / CASES[case]["file"]).read_bytes()


def pillow(data: bytes) -> tuple[str, np.ndarray]:
    with Image.open(io.BytesIO(data)) as image:
        return image.mode, np.asarray(image)


def image_of(case: str) -> bytes:
    return joined(Transcoder().transcode(read(case)).groups)


def test_every_case_has_a_verdict_here():
    assert set(CONVERTED) | set(REFUSED) == set(CASES)
    for case, facts in CASES.items():
        if facts["verdict"] in ("lossless", "lossless+note"):
            assert case in CONVERTED
            assert CONVERTED[case] or facts["verdict"] == "lossless"
        elif facts["verdict"] == "reject":
            assert case in REFUSED


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
@pytest.mark.parametrize("case", CONVERTED)
def test_converted(case, script, tmp_path):
    found = Transcoder(script).transcode(read(case), path=case)
    assert found.notes == CONVERTED[case]
    assert len(found.groups) == script.groups
    assert coef_digest(joined(found.groups), tmp_path) == CASES[case]["coef_digest"]
    for count in range(1, script.groups + 1):
        height, width, _ = decode_image(joined(found.groups, count)).shape
        assert (height, width) == (found.frame.height, found.frame.width)


@pytest.mark.parametrize("policy", ["strict", "lenient"])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, policy, tmp_path):
    transcoder = Transcoder(policy=policy)
    if policy == "lenient" and case in LENIENT:
        found = transcoder.transcode(read(case), path=case)
        assert found.notes == LENIENT[case]
        assert coef_digest(joined(found.groups), tmp_path) == CASES[case]["coef_digest"]
        return
    with pytest.raises(JpegError) as caught:
        transcoder.transcode(read(case), path=f"dir/{case}")
    assert caught.value.path == f"dir/{case}"
    assert caught.value.reason == REFUSED[case]
    assert str(caught.value).startswith(f"dir/{case}")


@pytest.mark.parametrize("case", [case for case in REFUSED if case not in LENIENT])
def test_refused_before_any_tool_sees_it(case, monkeypatch):
    """So that no header can make one take memory."""

    def called(*_, **__):
        raise AssertionError("a tool was called")

    monkeypatch.setattr(libjpeg, "run_library", called)
    monkeypatch.setattr(libjpeg, "run_program", called)
    for script in SCRIPTS:
        with pytest.raises(JpegError):
            Transcoder(script, policy="lenient").transcode(read(case))


@pytest.mark.parametrize(("case", "transform"), [("A03", 0), ("A04", 2)])
def test_cmyk_stays_cmyk(case, transform):
    image = image_of(case)
    at = image.index(b"\xff\xee\x00\x0eAdobe")
    assert image[at + 15] == transform
    mode, pixels = pillow(image)
    assert mode == "CMYK"
    np.testing.assert_array_equal(pixels, pillow(read(case))[1])


@pytest.mark.parametrize("case", ["A05a", "A05b"])
def test_rgb_stays_rgb(case):
    assert not parse_jpeg(image_of(case)).ycc
    np.testing.assert_array_equal(decode_image(image_of(case)), decode_image(read(case)))


def test_A06_orientation_is_kept_beside_the_image():
    assert Transcoder().transcode(read("A06")).orientation == 6
    np.testing.assert_array_equal(decode_image(image_of("A06")), decode_image(read("A06")))


@pytest.mark.parametrize("case", ["A09", "A10"])
def test_markers_inside_segments_are_not_taken_for_the_images(case):
    data = read(case)
    scans = parse_jpeg(data).scans
    assert data.count(b"\xff\xda") > len(scans)


def test_A15_the_tail_is_not_stored():
    assert sum(map(len, Transcoder().transcode(read("A15")).groups)) < 2000


def test_A19_is_the_same_as_with_the_standard_tables(tmp_path):
    np.testing.assert_array_equal(decode_image(image_of("A19")), decode_image(read("A12")))


def test_A25_all_groups_of_few_or_many_scans_are_the_image():
    for case in ("A25a", "A25b", "A25c"):
        np.testing.assert_array_equal(decode_image(image_of(case)), decode_image(read(case)))
