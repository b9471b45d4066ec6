"""The example that trains runs, alone and under torchrun, and writes what it says."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_dali.py"


def run(*arguments: str, ranks: int = 1) -> str:
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_trains_and_writes_steps_and_a_plot(tmp_path, ranks) -> None:
    out = tmp_path / "out"
    options = ["--epochs", "2", "--size", "32", "--batch-size", "8", "--scan-groups", "2"]
    text = run("--out", str(out), "--device", "cpu", "--threads", "1", *options, ranks=ranks)
    assert "epoch 1: " in text
    assert "% right" in text
    for rank in range(ranks):
        with (out / f"train_data_{rank}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        steps = 9 // ranks  # 72 drawn images in batches of 8
        assert [(int(row["epoch"]), int(row["step"])) for row in rows] == [
            (epoch, step) for epoch in range(2) for step in range(steps)
        ]
        assert all(float(row["load_s"]) >= 0 and float(row["loss"]) > 0 for row in rows)
        assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    with Image.open(out / "training.png") as plot:
        assert plot.width > 500


def test_labels_of_the_folder_are_those_of_the_set_whatever_else_is_in_it(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    from train_dali import list_images

    for name in ("another/0.jpg", "grey/1.JPEG", "grey/0.jpg", "grey/notes.txt", "white/0.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    files, labels = list_images(tmp_path, ("black", "grey", "white"))
    assert files == ["grey/0.jpg", "grey/1.JPEG", "white/0.jpg"]
    assert labels == [1, 1, 2]
    files, labels = list_images(tmp_path, None)
    assert files == ["another/0.jpg", "grey/0.jpg", "grey/1.JPEG", "white/0.jpg"]
    assert labels == [0, 1, 1, 2]
    with pytest.raises(SystemExit, match="no JPEG files in folders of the names of the set's"):
        list_images(tmp_path, ("black",))


def test_it_wants_both_paths_or_neither(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "give a set and a folder, or neither" in done.stderr
