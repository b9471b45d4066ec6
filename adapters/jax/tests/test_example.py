"""The example trains, on records and on a stream."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from jax_helpers import RUN_S, saved, simulated
from numpy.typing import NDArray

from tensorcom.pcr import PcrWriter

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


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve an image folder as the example's text says; give the URL to read."""
    (line,) = re.findall(r"^    serve-imagenet-dir (.*)$", EXAMPLE.read_text(), re.MULTILINE)
    assert line.startswith("-d /data/imagenet -b 64 ")
    options = [option for option in shlex.split(line)[4:] if "://" not in option]
    url = f"zrpush+ipc://{folder.parent}/socket"
    command = [sys.executable, "-m", "tensorcom.cli.serve_dir", "-d", folder, "-b", "8"]
    server = subprocess.Popen(
        [*map(str, command), "--size", "32", *options, url], stderr=subprocess.DEVNULL
    )
    try:
        yield url.replace("zrpush", "zrpull")
    finally:
        server.terminate()
        server.wait()


def test_it_learns_from_a_stream_served_as_it_says(tmp_path: Path) -> None:
    for label, kind in enumerate(("bright", "dark")):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for sample in range(9 - label):  # the last batch of an epoch would be for one device
            jpeg = saved(images_of(1 - label, 1, sample)[0])
            (tmp_path / "images" / kind / f"{sample}.jpg").write_bytes(jpeg)
    with served(tmp_path / "images") as url:
        losses, out = train("--source", "stream", url, "--steps", 16, "--classes", 2)
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
