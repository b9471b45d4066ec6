"""`tensorcom pcr info`: figures against the files, in both forms, for every kind of set."""

from __future__ import annotations

import json

import pytest
from jpeg_helpers import picture, saved
from pcr_helpers import GOLDEN_SETS, KINDS, make_set

from tensorcom.cli.pcr import info
from tensorcom.cli.pcr.info import describe_scan
from tensorcom.pcr import PcrReader
from tensorcom.pcr.scripts import BALANCED, FAST, STANDARD


@pytest.fixture
def made(tmp_path):
    return make_set(tmp_path / "set")


def output(capsys, *args):
    assert info.main([str(arg) for arg in args]) == 0
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


def as_json(capsys, *args):
    return json.loads(output(capsys, "--json", *args))


def test_json_has_the_figures_of_the_files(capsys, made):
    made.rewrite_manifest(source_bytes=20_000)
    values = as_json(capsys, made.root)
    sizes = PcrReader(made.root).group_bytes.tolist()
    whole = sum(path.stat().st_size for path in made.root.glob("*.pcr"))
    assert values["size_bytes"] == sizes[-1] == whole
    assert (values["images"], values["records"], values["images_per_record"]) == (8, 3, 3)
    assert (values["scan_groups"], values["created_by"]) == (10, "tests")
    assert values["scan_script"] == STANDARD.to_json()
    assert values["source_bytes"] == 20_000
    assert values["classes"] == [
        {"label": 0, "name": "ant", "images": 3},
        {"label": 1, "name": "bee", "images": 3},
        {"label": 2, "name": "cat", "images": 2},
    ]
    for i, group in enumerate(values["groups"]):
        assert group == {
            "scan_groups": i + 1,
            "scan": str(STANDARD.color[i]),
            "size_bytes": sizes[i],
            "share": sizes[i] / whole,
            "source_share": sizes[i] / 20_000,
            "image_bytes": sizes[i] / 8,
        }
    assert values["groups"][-1]["share"] == 1


def test_text_says_the_same(capsys, made):
    made.rewrite_manifest(source_bytes=20_000)
    text = output(capsys, made.root, "--classes")
    lines = text.splitlines()
    sizes = PcrReader(made.root).group_bytes.tolist()
    assert lines[0].startswith(f"{made.root}: 8 images in 3 records of at most 3, 3 labels")
    assert lines[0].endswith(f"{sizes[-1] / 20_000:.1%} of the source's 20 kB")
    assert lines[1] == "scan script: standard; written by tests"
    row = next(line for line in lines if line.split()[:1] == ["5"])
    assert "Y 6-63 without the last 2 bits" in row
    assert f"{sizes[4] / sizes[-1]:.1%}" in row
    assert f"{sizes[4] / 20_000:.1%}" in row
    assert [line.split() for line in lines if "bee" in line] == [["1", "bee", "3"]]


def test_what_is_not_known_is_left_out(capsys, made):
    text = output(capsys, made.root)
    assert "of source" not in text
    assert "ant" not in text.replace(str(made.root), "")
    text = output(capsys, GOLDEN_SETS / "sqlite")
    assert "adds" not in text
    assert "scan script: not known; written by the original" in text


@pytest.mark.parametrize("kind", KINDS)
def test_sets_of_the_original(capsys, kind):
    values = as_json(capsys, GOLDEN_SETS / kind)
    reader = PcrReader(GOLDEN_SETS / kind)
    assert values["images"] == len(reader)
    assert (values["scan_script"], values["created_by"], values["source_bytes"]) == (None,) * 3
    assert [group["size_bytes"] for group in values["groups"]] == reader.group_bytes.tolist()
    assert values["groups"][0]["scan"] is None
    assert {row["label"]: row["name"] for row in values["classes"]} == dict.fromkeys(range(3))
    assert sum(row["images"] for row in values["classes"]) == len(reader)


def test_a_class_without_images_is_listed(capsys, tmp_path):
    made = make_set(tmp_path / "set", [saved(picture())], labels=[2])
    classes = as_json(capsys, made.root)["classes"]
    assert [row["images"] for row in classes] == [0, 0, 1]


def test_hostile_names_do_not_reach_the_terminal(capsys, tmp_path):
    names = ("a\x1b[2J\n", "[red]b[/red]", "\udcff")
    made = make_set(tmp_path / "s\x1b[0m", class_names=names)
    text = output(capsys, made.root, "--classes")
    assert "\x1b" not in text
    assert "a\\x1b[2J\\n" in text
    assert "[red]b[/red]" in text
    assert "\\xff" in text


@pytest.mark.parametrize("script", [STANDARD, FAST, BALANCED], ids=lambda script: script.name)
def test_every_scan_is_described(script):
    texts = [describe_scan(spec) for spec in script.color]
    assert len(set(texts)) == len(texts)


def test_scans_in_words():
    words = [describe_scan(spec) for spec in STANDARD.color]
    assert words[0] == "DC of all without the last bit"
    assert words[1] == "Y 1-5 without the last 2 bits"
    assert words[5] == "Y 1-63, one bit more, 1 missing"
    assert words[6] == "DC of all, one bit more"
    assert describe_scan(FAST.color[2]) == "Cr 1-5"


def test_what_is_no_set_is_one_line(capsys, tmp_path):
    assert info.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"tensorcom pcr info: error: {tmp_path}: holds no set of records")
