"""`tensorcom pcr fidelity`: table, JSON and plot."""

from __future__ import annotations

import json
import sys

import pytest
from jpeg_helpers import picture, saved
from pcr_helpers import make_set
from PIL import Image

from tensorcom.cli.pcr import fidelity
from tensorcom.pcr import PcrReader
from tensorcom.pcr.fidelity import measure_fidelity


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    images = [saved(picture("RGB", 165, 170 + i, seed=i)) for i in range(3)]
    images.append(saved(picture("RGB", 90, 90)))
    return make_set(tmp_path_factory.mktemp("set") / "set", images, labels=[0, 1, 2, 0])


def run(capsys, *args):
    code = fidelity.main([str(arg) for arg in args])
    found = capsys.readouterr()
    return code, found.out, found.err.splitlines()


def test_json_has_the_numbers(capsys, made):
    code, out, errors = run(capsys, made.root, "--json", "--seed", 3)
    assert (code, errors) == (0, [])
    values = json.loads(out)
    report = measure_fidelity(PcrReader(made.root), seed=3)
    assert (values["images"], values["levels"]) == (4, {"5": 3, "4": 1})
    assert (values["root"], values["scan_script"], values["seed"]) == (
        str(made.root), "standard", 3
    )  # fmt: skip
    assert values["groups"][4] == {
        "scan_groups": 5,
        "image_bytes": report.groups[4].image_bytes,
        "share": report.groups[4].share,
        "ms_ssim": report.groups[4].ms_ssim,
        "ms_ssim_low": report.groups[4].ms_ssim_low,
        "psnr_db": report.groups[4].psnr_db,
    }
    assert values["groups"][9]["psnr_db"] is None


def test_the_table_has_the_numbers(capsys, made):
    code, out, _ = run(capsys, made.root)
    assert code == 0
    assert out.startswith(f"{made.root}: 4 images, MS-SSIM: 3 of 5 levels, 1 of 4 levels\n")
    rows = measure_fidelity(PcrReader(made.root)).groups
    lines = {line.split()[0]: line for line in out.splitlines() if line.split()}
    for row in rows:
        line = lines[str(row.scan_groups)]
        assert f"{row.ms_ssim:.4f}" in line
        assert f"{row.share:.1%}" in line
        assert "4 to 5" in line
    assert lines["10"].split()[-1] == "equal"
    assert f"{rows[0].psnr_db:.1f}" in lines["1"]


def test_images_of_one_kind_and_smoothing(capsys, tmp_path):
    made = make_set(tmp_path / "set", [saved(picture("RGB", 165, 165))])
    code, out, _ = run(capsys, made.root)
    assert code == 0
    assert out.startswith(f"{made.root}: 1 image, MS-SSIM of 5 levels\n")
    assert run(capsys, made.root, "--smoothing")[1] != out
    tiny = make_set(tmp_path / "tiny", [saved(picture("RGB", 8, 8))])
    out = run(capsys, tiny.root)[1]
    assert "MS-SSIM: 1 too small" in out
    assert " - " in out


def test_a_plot_is_drawn(capsys, made, tmp_path):
    plot = tmp_path / "plot.png"
    code, _, errors = run(capsys, made.root, "--plot", plot)
    assert code == 0
    assert errors == [f"tensorcom pcr fidelity: wrote {plot}"]
    with Image.open(plot) as image:
        assert image.size == (960, 600)
        colours = image.convert("RGB").getcolors(1 << 24)
    assert any(colour == (0x1F, 0x4E, 0x79) and count > 500 for count, colour in colours)
    for suffix, start in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = plot.with_suffix(f".{suffix}")
        assert run(capsys, made.root, "-n", 1, "--plot", path)[0] == 0
        assert path.read_bytes().startswith(start)


def test_a_plot_is_not_overwritten_unasked(capsys, made, tmp_path):
    plot = tmp_path / "plot.svg"
    plot.write_text("mine")
    code, out, errors = run(capsys, made.root, "--plot", plot)
    assert (code, out) == (1, "")
    assert "exists; give --overwrite" in errors[0]
    assert run(capsys, made.root, "-n", 1, "--plot", plot, "--overwrite")[0] == 0
    assert plot.read_text() != "mine"


def test_what_keeps_a_plot_from_being_drawn_is_said_first(capsys, made, tmp_path, monkeypatch):
    code, out, errors = run(capsys, made.root, "--plot", tmp_path / "plot.gif")
    assert (code, out) == (1, "")
    assert "suffix is none of .png, .svg, .pdf" in errors[0]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "tensorcom.cli.pcr.plot", raising=False)
    code, out, errors = run(capsys, made.root, "--plot", tmp_path / "plot.png")
    assert (code, out) == (1, "")
    assert len(errors) == 1
    assert "pip install 'tensorcom[fidelity]'" in errors[0]
    assert run(capsys, made.root, "-n", 1)[0] == 0  # the table needs none


def test_arguments_out_of_range(capsys, made, tmp_path):
    assert run(capsys, made.root, "-n", 0)[0] == 2
    assert run(capsys, tmp_path)[0] == 1
