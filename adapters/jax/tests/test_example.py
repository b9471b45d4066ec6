"""The example trains, on records and on a stream."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jax_helpers import RUN_S, saved, simulated
from numpy.typing import NDArray

from tensorcom.pcr import PcrWriter
from tensorcom.testing.loopback import LoopbackServer

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_jax.py"
LOSS = re.compile(r"step +(\d+): loss ([\d.]+)")


def train(*arguments: object, devices: int = 2) -> tuple[list[float], str]:
    """Run the example; return the losses that it prints, and all that it prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *map(str, arguments)],
        env=simulated(devices),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [float(loss) for _, loss in LOSS.findall(done.stdout)], done.stdout


def images_of(label: int, count: int, seed: int) -> NDArray[np.uint8]:
    """Return images of one of two kinds: dark ones and bright ones."""
    noise = np.random.default_rng(seed).integers(0, 100, (count, 32, 32, 3), np.uint8)
    return noise + np.uint8(120 * label)


def stream() -> Iterator[list[NDArray[np.generic]]]:
    for seed in range(100):
        images = np.concatenate([images_of(label, 4, seed) for label in (0, 1)])
        yield [images, np.repeat(np.arange(2, dtype=np.int32), 4)]


def test_it_learns_from_a_stream() -> None:
    with LoopbackServer(stream()) as server:
        losses, out = train("--source", "stream", server.url, "--steps", 16, "--classes", 2)
    assert losses[-1] < losses[0]
    assert out.endswith("16 steps on 2 devices\n")


def test_it_learns_from_records_at_several_fidelities(tmp_path: Path) -> None:
    with PcrWriter(tmp_path / "set", images_per_record=8, class_names=["dark", "bright"]) as writer:
        for sample in range(36):
            writer.add(saved(images_of(sample % 2, 1, sample)[0]), sample % 2)
    options = ["--epochs", 4, "--batch-size", 8, "--size", 32, "--steps", 16]
    losses, out = train("--source", "records", tmp_path / "set", *options, "--scan-groups", 2, 5)
    assert losses[-1] < losses[0]
    assert out.endswith("16 steps on 2 devices\n")
    assert re.findall(r"epoch \d+:", out) == ["epoch 0:", "epoch 1:", "epoch 2:"]
