"""`tensorcom pcr verify`: what it writes and how it ends."""

from __future__ import annotations

import json

import pytest
from pcr_helpers import GOLDEN_SETS, cut, flip, make_set

from tensorcom.cli import main
from tensorcom.cli.pcr import verify


@pytest.fixture
def made(tmp_path):
    return make_set(tmp_path / "set")


def run(capsys, *args):
    code = verify.main([str(arg) for arg in args])
    found = capsys.readouterr()
    return code, found.out.splitlines(), found.err.splitlines()


def test_a_whole_set(capsys, made):
    size = sum(path.stat().st_size for path in made.root.glob("*.pcr")) / 1000
    text = f"{made.root}: whole: 8 images in 3 records, {size:.3g} kB"
    assert run(capsys, made.root) == (0, [text], [])
    decoded = f"{text}, decoded at each number of scan groups"
    assert run(capsys, made.root, "--decode", "--threads", 1) == (0, [decoded], [])
    assert run(capsys, made.root, "-q") == (0, [], [])


def test_a_set_of_the_original_has_no_checksums(capsys):
    code, lines, _ = run(capsys, GOLDEN_SETS / "sqlite")
    assert code == 0
    assert "whole: 12 images in 3 records" in lines[0]
    assert lines[0].endswith(", without checksums")


def test_damage_is_a_line_each_and_exit_code_1(capsys, made):
    flip(made.file(0), 100)
    size = made.file(2).stat().st_size
    cut(made.file(2))
    code, lines, errors = run(capsys, made.root)
    assert code == 1
    assert errors == []
    assert lines[0].startswith("PCR_0.pcr group 1 at byte ")
    assert "checksum is" in lines[0]
    assert f"PCR_2.pcr at byte {size - 1}: file ends in group 10, expected {size} bytes" in lines
    assert f"{made.root}: {len(lines) - 1} problems: 8 images in 3 records" in lines[-1]
    assert run(capsys, made.root, "-q")[1] == lines[:-1]


def test_json_is_one_object(capsys, made):
    flip(made.file(1), 100)
    code, lines, _ = run(capsys, made.root, "--json")
    assert code == 1
    (line,) = lines
    values = json.loads(line)
    assert (values["is_whole"], values["images"], values["records"]) == (False, 8, 3)
    first = values["problems"][0]
    assert (first["path"], first["part"], first["image"]) == ("PCR_1.pcr", 1, None)
    assert "checksum" in first["reason"]


def test_other_files_are_noted_and_harm_nothing(capsys, made):
    (made.root / "x\x1b[0m").write_text("")
    code, lines, errors = run(capsys, made.root)
    assert code == 0
    assert "whole" in lines[0]
    assert errors == ["tensorcom pcr verify: x\\x1b[0m: not a file of the set"]
    values = json.loads(run(capsys, made.root, "--json")[1][0])
    assert values["others"] == {"x\x1b[0m": "not a file of the set"}


def test_an_unfinished_set_is_an_error(capsys, made):
    (made.root / "PCR_manifest.json").unlink()
    (made.root / "PCR_unfinished.json").write_text("{}")
    code, lines, errors = run(capsys, made.root)
    assert (code, lines) == (1, [])
    assert "conversion is unfinished" in errors[0]


def test_the_command_is_found_by_its_name(capsys, made):
    assert main.main(["pcr", "verify", str(made.root)]) == 0
    assert "whole" in capsys.readouterr().out
