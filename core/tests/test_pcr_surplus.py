"""Bytes before EOI: those that were added are found, those that are image data are not taken."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from jpeg_helpers import hard, picture, run_jpegtran, saved

from tensorcom.pcr import surplus
from tensorcom.pcr.jpeg import EOI, parse_jpeg
from tensorcom.pcr.surplus import find_surplus
from tensorcom.pcr.transcode import Transcoder

JUNK = random.Random(5).randbytes(300).replace(b"\xff", b"\xfe")
# Pictures whose data end in at least one bit of padding.
SOURCES = {
    "420": saved(picture(seed=2), subsampling=2),
    "444": saved(picture(seed=2), subsampling=0, optimize=True),
    "gray": saved(picture("L")),
    "cmyk": saved(picture("CMYK")),
    "A23a": hard("A23a.jpg"),
}


def find(data: bytes) -> int | None:
    return find_surplus(data, parse_jpeg(data))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("junk", [JUNK, bytes(300), bytes(range(1, 255)), b"\xff\0" * 50])
def test_added_bytes_are_found(name, junk):
    data = SOURCES[name]
    assert find(data[:-2] + junk + EOI) == len(data) - 2


@pytest.mark.parametrize("restart", ["1", "3B", "7B"])
def test_added_bytes_after_restarts_are_found(restart, tmp_path):
    data = run_jpegtran(SOURCES["420"], "-restart", restart)
    assert b"\xff\xd0" in data
    assert find(data[:-2] + JUNK + EOI) == len(data) - 2


def test_added_bytes_after_one_of_several_scans_are_found(tmp_path):
    script = tmp_path / "script"
    script.write_text("0;1;2;")
    data = run_jpegtran(SOURCES["420"], "-optimize", "-scans", str(script))
    assert len(parse_jpeg(data).scans) == 3
    assert find(data[:-2] + JUNK + EOI) == len(data) - 2


def test_a_sound_file_has_nothing_over():
    for data in SOURCES.values():
        assert find(data) is None


def test_image_data_that_lost_their_place_are_not_taken_for_added():
    """Of damage that libjpeg calls extraneous bytes, hardly any may pass."""
    chance = random.Random(11)
    strict = Transcoder()
    data = saved(picture(height=96, width=96), subsampling=0)
    info = parse_jpeg(data)
    seen = Counter()
    while seen["extraneous"] < 60:
        changed = bytearray(data)
        where = chance.randrange(info.scans[0].data, info.end)
        changed[where] ^= 1 << chance.randrange(8)
        try:
            strict.transcode(bytes(changed))
        except ValueError as exc:
            found = find(bytes(changed)) if "before marker 0xd9" in str(exc) else None
            seen["extraneous"] += "before marker 0xd9" in str(exc)
            seen["taken"] += found is not None
    assert seen["taken"] <= 1


def test_damage_is_left_alone():
    assert find(hard("A31.jpg")) is None


@pytest.mark.parametrize("name", ["A13.jpg", "A21a.jpg", "A21b.jpg"])
def test_other_codings_are_not_followed(name, monkeypatch):
    monkeypatch.setattr(surplus, "_read_tables", None)
    assert find(hard(name)) is None


@pytest.mark.parametrize(
    ("bits", "sound"),
    [
        ("0 0", True),  # DC, end of block
        ("0 10 110 1 0", True),  # DC, 16 zeros, 15 zeros and a value, end of block
        ("0 10 10 10 1110 1", True),  # the last coefficient: no end of block
        ("0 10 0", False),  # zeros before the end of block
        ("0 10 10 10 110 1", False),  # a value past the last coefficient
        ("0 110 1 110 1 110 1 10 0", False),  # zeros past the last coefficient
        ("1", False),  # no code
        ("0 10 10 10", False),  # too few bits
    ],
)
def test_only_what_an_encoder_writes_is_a_block(bits, sound):
    dc = surplus._build(bytes([1]) + bytes(15), b"\x00")
    ac = surplus._build(bytes([1, 1, 1, 1]) + bytes(12), b"\x00\xf0\xf1\xe1")
    digits = bits.replace(" ", "")
    digits += "1" * (-len(digits) % 8)
    data = int(digits, 2).to_bytes(len(digits) // 8, "big")
    followed = surplus._Bits(data, [(dc, ac)])
    if sound:
        assert followed.is_padding(followed.walk(1))
    else:
        with pytest.raises(surplus._LostError):
            followed.walk(1)


def test_a_scan_that_ends_without_padding_says_nothing():
    """One in eight does; all others end where they end."""
    found = []
    for seed in range(64):
        data = saved(picture(height=16, width=16, seed=seed))
        end = find(data[:-2] + JUNK + EOI)
        assert end in (None, len(data) - 2)
        found.append(end)
    assert 1 <= found.count(None) <= 24


def test_padding_of_other_bits_than_ones_is_no_sound_end():
    data = bytearray(SOURCES["420"][:-2] + JUNK + EOI)
    data[len(SOURCES["420"]) - 3] ^= 1
    assert find(bytes(data)) is None


def test_a_missing_table_says_nothing():
    data = hard("A19.jpg")
    assert find(data[:-2] + JUNK + EOI) is None


def test_a_table_of_more_codes_than_there_are_says_nothing():
    data = SOURCES["420"]
    at = data.index(b"\xff\xc4") + 5
    changed = bytearray(data)
    changed[at : at + 2] = b"\xff\xff"
    assert find(bytes(changed)) is None


def test_a_very_long_scan_says_nothing(monkeypatch):
    monkeypatch.setattr(surplus, "MAX_BYTES", len(SOURCES["420"]))
    assert find(SOURCES["420"][:-2] + JUNK + EOI) is not None
    assert find(SOURCES["420"][:-2] + JUNK * 100 + EOI) is None
