"""`tensorcom pcr extract`: arguments, and what it tells."""

from __future__ import annotations

import pytest
from pcr_helpers import flip, make_set

from tensorcom.cli.pcr import extract


@pytest.fixture
def made(tmp_path):
    return make_set(tmp_path / "set")


def run(capsys, *args):
    code = extract.main([str(arg) for arg in args])
    found = capsys.readouterr()
    assert found.out == ""
    return code, found.err.splitlines()


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))


def test_all_images(capsys, made, tmp_path):
    out = tmp_path / "out"
    size = sum(len(made.jpeg(i)) for i in range(8)) / 1000
    told = f"tensorcom pcr extract: wrote 8 images, {size:.3g} kB to {out}"
    assert run(capsys, made.root, out) == (0, [told])
    assert names_in(out) == sorted(made.names)
    assert (out / made.names[5]).read_bytes() == made.jpeg(5)


def test_some_images_of_few_groups(capsys, made, tmp_path):
    out = tmp_path / "out"
    assert run(capsys, made.root, out, "-k", 2, "--samples", "3:5", "-q") == (0, [])
    assert names_in(out) == sorted(made.names[3:5])
    assert (out / made.names[4]).read_bytes() == made.jpeg(4, 2)
    assert run(capsys, made.root, tmp_path / "none", "--samples", "8:9")[0] == 0
    assert not (tmp_path / "none").exists()


def test_nothing_is_overwritten_unasked(capsys, made, tmp_path):
    out = tmp_path / "out"
    run(capsys, made.root, out, "--samples", "2:3", "-k", 1)
    code, errors = run(capsys, made.root, out)
    assert code == 1
    assert len(errors) == 1
    assert "cat/2.jpg: exists" in errors[0]
    assert names_in(out) == ["cat/2.jpg"]
    assert run(capsys, made.root, out, "--overwrite")[0] == 0
    assert (out / "cat" / "2.jpg").read_bytes() == made.jpeg(2)


def test_damage_ends_it_or_is_skipped(capsys, made, tmp_path):
    flip(made.file(0), 0)
    code, errors = run(capsys, made.root, tmp_path / "a")
    assert code == 1
    assert "PCR_0.pcr" in errors[-1]
    code, errors = run(capsys, made.root, tmp_path / "b", "--on-error", "skip")
    assert code == 0
    assert "skipped" in errors[0]
    assert "PCR_0.pcr" in errors[0]
    assert "wrote 5 images" in errors[1]
    assert ", 3 skipped to" in errors[1]
    assert names_in(tmp_path / "b") == sorted(made.names[3:])


def test_arguments_out_of_range(capsys, made, tmp_path):
    assert run(capsys, made.root, tmp_path / "a", "-k", 11)[0] == 2
    assert run(capsys, tmp_path, tmp_path / "a")[0] == 1
    assert run(capsys, made.root)[0] == 2
