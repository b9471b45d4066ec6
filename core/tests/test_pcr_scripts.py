"""Scan scripts: the built-in ones, their forms, files and manifests, the split into groups."""

from __future__ import annotations

import json

import pytest
from jpeg_helpers import joined, picture, run_jpegtran, saved

from tensorcom.errors import PcrFormatError
from tensorcom.pcr.jpeg import EOI, parse_jpeg
from tensorcom.pcr.scripts import (
    BALANCED,
    FAST,
    STANDARD,
    ScanScript,
    ScanSpec,
    groups_of,
    load_script,
    split_groups,
)

BUILT_IN = [STANDARD, FAST, BALANCED]
COLOR = saved(picture())
GRAY = saved(picture("L"))
CMYK = saved(picture("CMYK"))
RGB = saved(picture(), keep_rgb=True)


def scripted(data: bytes, script: ScanScript, tmp_path) -> bytes:
    """Run jpegtran with the script's form for the image."""
    info = parse_jpeg(data)
    path = tmp_path / "script.txt"
    path.write_text(script.text_of(len(info.frame.components), ycc=info.ycc))
    return run_jpegtran(data, "-optimize", "-scans", str(path))


def test_the_names_and_numbers_of_groups():
    assert [(script.name, script.groups) for script in BUILT_IN] == [
        ("standard", 10),
        ("fast", 10),
        ("balanced", 9),
    ]


@pytest.mark.parametrize("data", [COLOR, GRAY, CMYK, RGB], ids=["color", "gray", "cmyk", "rgb"])
def test_standard_is_what_jpegtran_does_by_itself(data, tmp_path):
    expected = run_jpegtran(data, "-optimize", "-progressive")
    assert scripted(data, STANDARD, tmp_path) == expected
    info = parse_jpeg(expected)
    specs = STANDARD.scans_of(len(info.frame.components), ycc=info.ycc)
    assert [scan[3:] for scan in info.scans] == list(specs)


def test_gray_scans_fall_in_the_group_of_their_band():
    assert STANDARD.group_of(1) == (0, 1, 4, 5, 6, 9)
    assert FAST.group_of(1) == (0, 1, 4, 5, 6, 7)
    assert BALANCED.group_of(1) == (0, 1, 4, 7, 8)
    assert FAST.text_of(1).splitlines()[:2] == ["0: 0-0, 0, 0;", "0: 1-5, 0, 0;"]


def test_the_components_of_other_images_are_equals():
    assert STANDARD.group_of(3) == tuple(range(10))
    assert STANDARD.group_of(3, ycc=False) == (0, *[1] * 3, *[4] * 3, *[5] * 3, 6, *[9] * 3)
    assert STANDARD.group_of(4) == (0, *[1] * 4, *[4] * 4, *[5] * 4, 6, *[9] * 4)
    assert STANDARD.scans_of(4)[:2] == (((0, 1, 2, 3), 0, 0, 0, 1), ((0,), 1, 5, 0, 2))


@pytest.mark.parametrize("script", BUILT_IN, ids=lambda script: script.name)
@pytest.mark.parametrize("data", [COLOR, GRAY, CMYK, RGB], ids=["color", "gray", "cmyk", "rgb"])
def test_groups_join_to_the_image(data, script, tmp_path):
    image = scripted(data, script, tmp_path)
    info = parse_jpeg(image)
    expected = script.group_of(len(info.frame.components), ycc=info.ycc)
    assert groups_of(info, script) == expected
    groups = split_groups(image, info, script)
    assert len(groups) == script.groups
    assert joined(groups) == image
    assert [bool(group) for group in groups] == [i in expected for i in range(script.groups)]
    for count in range(1, script.groups + 1):
        prefix = parse_jpeg(joined(groups, count))
        assert len(prefix.scans) == sum(group < count for group in expected)


def test_other_scans_fall_in_groups_by_number(tmp_path):
    baseline = parse_jpeg(COLOR)
    assert groups_of(baseline, STANDARD) is None
    assert split_groups(COLOR, baseline, STANDARD) == [COLOR[:-2], *[b""] * 9]
    many = run_jpegtran(COLOR, "-optimize", "-progressive")
    info = parse_jpeg(many)
    assert groups_of(info, BALANCED) is None
    groups = split_groups(many, info, BALANCED)
    assert joined(groups) == many
    assert [len(parse_jpeg(joined(groups, k)).scans) for k in range(1, 10)] == [*range(1, 9), 10]


@pytest.mark.parametrize("script", BUILT_IN, ids=lambda script: script.name)
def test_a_manifest_keeps_a_script(script):
    value = json.loads(json.dumps(script.to_json()))
    assert value["name"] == script.name
    assert ScanScript.from_json(value) is script
    assert load_script(script.name) is script


def test_scripts_compare_by_their_scans():
    other = ScanScript("standard", FAST.color)
    assert other != STANDARD
    assert len({other, STANDARD, ScanScript("standard", STANDARD.color)}) == 2


def test_a_file_is_read_as_jpegtran_reads_it(tmp_path):
    path = tmp_path / "mine.scans"
    path.write_text("# luma first\n0:0-0,0,0; 1,2: 0-0, 0, 0 ;\n0: 1-63, 0, 0; # AC\n"
                    "1: 1 - 63, 0, 0;2: 1-63 ,0,0;\n")  # fmt: skip
    script = load_script(path)
    assert (script.name, script.groups) == ("mine.scans", 5)
    assert script.color[1] == ScanSpec((1, 2), 0, 0, 0, 0)
    assert script.group_of(1) == (0, 2)
    assert script.scans_of(2) == (
        ((0,), 0, 0, 0, 0),
        ((1,), 0, 0, 0, 0),
        ((0,), 1, 63, 0, 0),
        ((1,), 1, 63, 0, 0),
    )
    assert ScanScript.from_json(script.to_json()) == script
    image = run_jpegtran(COLOR, "-optimize", "-scans", str(path))
    assert groups_of(parse_jpeg(image), script) == (0, 1, 2, 3, 4)
    assert joined(split_groups(image, parse_jpeg(image), script)) == image


def test_a_file_that_repeats_a_built_in_script_is_that_script(tmp_path):
    path = tmp_path / "copy.txt"
    path.write_text(FAST.text_of(3))
    assert load_script(str(path)) is FAST


DC = "0,1,2: 0-0, 0, 0;"
CHROMA = "1: 1-63, 0, 0; 2: 1-63, 0, 0;"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 scans, expected 1 to 64"),
        ("0;1;2;", "scan '0', expected 'COMPONENTS: SS-SE, AH, AL'"),
        (DC + "0: 1-63, 0;", "scan '0: 1-63, 0', expected 'COMPONENTS: SS-SE, AH, AL'"),
        ("1: 0-0, 0, 0; 0: 0-0, 0, 0;", "the first scan leaves out component 0"),
        ("0,3: 0-0, 0, 0;", "scan '0,3: 0-0, 0, 0': components are not of 0,1,2 in order"),
        ("1,0: 0-0, 0, 0;", "scan '1,0: 0-0, 0, 0': components are not of 0,1,2 in order"),
        ("0,0: 0-0, 0, 0;", "scan '0,0: 0-0, 0, 0': components are not of 0,1,2 in order"),
        (
            "0,1,2: 0-5, 0, 0;",
            "scan '0,1,2: 0-5, 0, 0': neither DC (0-0) nor AC (in 1-63) of one component",
        ),
        (
            DC + "0,1: 1-5, 0, 0;",
            "scan '0,1: 1-5, 0, 0': neither DC (0-0) nor AC (in 1-63) of one component",
        ),
        (
            DC + "0: 1-64, 0, 0;",
            "scan '0: 1-64, 0, 0': neither DC (0-0) nor AC (in 1-63) of one component",
        ),
        (
            DC + "0: 1-63, 0, 11;",
            "scan '0: 1-63, 0, 11': precision, expected at most 10, refined one bit at a time",
        ),
        (
            DC + "0: 1-63, 0, 2; 0: 1-63, 2, 0;",
            "scan '0: 1-63, 2, 0': precision, expected at most 10, refined one bit at a time",
        ),
        (
            "0: 0-0, 0, 0; 1: 1-5, 0, 0;",
            "scan '1: 1-5, 0, 0': AC of component 1 comes before its DC",
        ),
        (
            DC + "0: 1-5, 0, 0; 0: 5-63, 0, 0;",
            "scan '0: 5-63, 0, 0': coefficients in another state, "
            "expected each sent once and then refined",
        ),
        (
            DC + "0: 1-63, 1, 0;",
            "scan '0: 1-63, 1, 0': coefficients in another state, "
            "expected each sent once and then refined",
        ),
        (
            DC + CHROMA + "0: 1-60, 0, 0;",
            "coefficient 61 and 2 more are not sent to the last bit: the script would lose data",
        ),
        (
            DC + CHROMA + "0: 1-63, 0, 1;",
            "coefficient 1 and 62 more are not sent to the last bit: the script would lose data",
        ),
        (
            "0,1: 0-0, 0, 0; 0: 1-63, 0, 0; 1: 1-63, 0, 0;",
            "coefficient 0 and 63 more are not sent to the last bit: the script would lose data",
        ),
        (DC + "0: 1-1, 0, 9; " * 64, "65 scans, expected 1 to 64"),
        ("#" * 65537, "more than 65536 bytes of scan script"),
    ],
)  # fmt: skip
def test_scripts_that_lose_data_or_are_none_are_refused(text, reason, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(PcrFormatError) as caught:
        load_script(path)
    assert str(caught.value) == f"{path}: {reason}"


@pytest.mark.parametrize("name", ["nothing", "no/such", "nul\0byte", "."])
def test_a_name_that_is_no_script_is_refused(name):
    with pytest.raises(PcrFormatError, match=r"is neither a scan script \(standard, fast, bal"):
        load_script(name)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "scan script is None, expected an object"),
        ({}, "scan script without a name and a list of scans"),
        ({"name": 3, "scans": []}, "scan script without a name and a list of scans"),
        ({"name": "x", "scans": "0: 0-0"}, "scan script without a name and a list of scans"),
        ({"name": "x", "scans": [3]}, "scan script without a name and a list of scans"),
        ({"name": "x", "scans": ["0"]}, "scan '0', expected 'COMPONENTS: SS-SE, AH, AL'"),
        (
            {"name": "fast", "scans": [DC[:-1], "0: 1-63, 0, 0", *CHROMA[:-1].split("; ")]},
            "scan script 'fast' differs from the built-in one",
        ),
    ],
)
def test_a_manifest_without_a_script_is_refused(value, reason):
    with pytest.raises(PcrFormatError) as caught:
        ScanScript.from_json(value, path="m.json")
    assert str(caught.value) == f"m.json: {reason}"


def test_numbers_of_any_length_are_refused(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(f"0: 0-{'9' * 10000}, 0, 0;")
    with pytest.raises(PcrFormatError, match="neither DC"):
        load_script(path)


def test_a_prefix_of_groups_ends_where_the_scan_ends(tmp_path):
    image = scripted(COLOR, FAST, tmp_path)
    info = parse_jpeg(image)
    groups = split_groups(image, info, FAST)
    for count, scan in enumerate(info.scans, 1):
        assert joined(groups, count) == image[: scan.stop] + EOI


def test_separators_are_those_of_jpegtran(tmp_path) -> None:
    path = tmp_path / "script"
    path.write_text(
        "0 1 2: 0 0 0 1;\n# a comment\n0: 1 63 0 0;\n1: 1-63 0 0; 2: 1/63, 0 0;\n0 1 2: 0 0 1 0;\n"
    )
    assert load_script(path).text_of(3).splitlines() == [
        "0,1,2: 0-0, 0, 1;",
        "0: 1-63, 0, 0;",
        "1: 1-63, 0, 0;",
        "2: 1-63, 0, 0;",
        "0,1,2: 0-0, 1, 0;",
    ]
