"""examples/train_keras.py learns, on each backend of Keras."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_keras.py"


@pytest.mark.parametrize(
    ("backend", "source"),
    [
        ("tensorflow", ["stream"]),
        ("torch", ["records", "--scan-groups", "2", "5"]),
        ("jax", ["stream"]),
        ("tensorflow", ["records", "--scan-groups", "2", "5"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_the_example_learns(tmp_path: Path, backend: str, source: list[str]) -> None:
    command = [sys.executable, str(EXAMPLE), "--backend", backend, "--source", *source]
    done = subprocess.run(
        [*command, "--epochs", "3", "--size", "32", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"},
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"^loss ([\d.]+) -> ([\d.]+)$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    assert float(found[2]) < 0.8 * float(found[1])
    assert f"3 epochs on {backend}, from {source[0]}" in done.stdout
    assert "Error" not in done.stderr
