"""The demonstration: draw a data set, and train a CNN on it as a stream, and as records.

First two processes serve the images. Then they are converted to progressive compressed records, and
the CNN is trained on a prefix of each record, and on all of it.

Leaves in `demo/`: the data set, `sheet.png` (what the stream holds), `throughput.png`,
`server.log`, and the records. Exits with 1 if a network recognizes 90 % of the held-out images or
fewer.

    python examples/demo.py
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tensorcom.pcr import convert
from tensorcom_torch import PcrDataset, TensorcomDataset

mpl.use("Agg")  # no screen is needed
from matplotlib import pyplot  # noqa: E402 - the choice comes first

SIZE = 64
BATCH = 64
CLASSES = ("checks", "columns", "disc", "ring", "rows", "spots")
TRAIN_PER_CLASS, VALID_PER_CLASS = 300, 60
ENOUGH = 0.90
PREFIX = 2  # scan groups of the cheaper training run
PYTHON = sys.executable


# -- the data set ---------------------------------------------------------------------------------


def draw_image(kind: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw one image: a shape or a texture in two random colours, anywhere, under noise."""
    y, x = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)
    centre_x, centre_y = rng.uniform(0.35, 0.65, 2) * SIZE
    radius = rng.uniform(0.25, 0.4) * SIZE
    distance = np.hypot(x - centre_x, y - centre_y)
    period = rng.uniform(8, 14)
    wave_x = np.sin(2 * np.pi * (x - centre_x) / period)
    wave_y = np.sin(2 * np.pi * (y - centre_y) / period)
    inside = {
        "checks": wave_x * wave_y > 0,
        "columns": wave_x > 0,
        "disc": distance < radius,
        "ring": np.abs(distance - radius) < 0.25 * radius,
        "rows": wave_y > 0,
        "spots": (wave_x > 0.3) & (wave_y > 0.3),
    }[kind]
    dark, bright = rng.uniform(20, 110, 3), rng.uniform(145, 235, 3)
    image = np.where(inside[..., None], bright, dark)
    return (image + rng.normal(0, 18, image.shape)).clip(0, 255).astype(np.uint8)


def draw_data_set(root: Path) -> None:
    """Draw folders `train` and `valid`, each with a folder of JPEG files for each class."""
    for part, count, seed in (("train", TRAIN_PER_CLASS, 1), ("valid", VALID_PER_CLASS, 2)):
        rng = np.random.default_rng(seed)
        for kind in CLASSES:
            folder = root / part / kind
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                path = folder / f"{number:04}.jpg"
                Image.fromarray(draw_image(kind, rng)).save(path, quality=90)


# -- serving --------------------------------------------------------------------------------------


@dataclass
class Server:
    """A running server, and what it said it had sent.

    Attributes:
        process: the command.
        sent: (seconds, images sent so far) of each of its reports.
    """

    process: subprocess.Popen[str]
    sent: list[tuple[float, int]] = field(default_factory=list)

    def follow(self, log: Path) -> None:
        """Write down what the server says, until it ends."""
        assert self.process.stderr is not None
        with log.open("a") as file:
            for line in self.process.stderr:
                file.write(line)
                file.flush()
                if found := re.search(r"(\d+) samples: ", line):
                    self.sent.append((time.monotonic(), int(found[1])))


@contextlib.contextmanager
def serving(log: Path, *args: str) -> Iterator[Server]:
    """Run `serve-imagenet-dir` beside what is done inside; then let it drain."""
    command = [
        PYTHON,
        "-m",
        "tensorcom.cli.serve_dir",
        "-b",
        str(BATCH),
        "--size",
        str(SIZE),
        *args,
    ]
    server = Server(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    thread = threading.Thread(target=server.follow, args=(log,))
    thread.start()
    try:
        yield server
    finally:
        server.process.terminate()
        try:
            server.process.wait(30)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
        thread.join()


# -- training -------------------------------------------------------------------------------------


def make_model() -> nn.Module:
    """Return a small CNN."""

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *stage(3, 16),
        *stage(16, 32),
        *stage(32, 64),
        *stage(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, len(CLASSES)),
    )


def as_input(images: Tensor) -> Tensor:
    """Scale uint8 images to about -1 to 1."""
    return images.float() / 127.5 - 1


def train_on_stream(model: nn.Module, url: str, steps: int) -> list[tuple[float, int]]:
    """Train on a stream; return (seconds, images so far) after each step."""
    dataset = TensorcomDataset(url, length=steps, layout=("NHWC", "NCHW"))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    return train(model, loader, steps)


def train_on_records(model: nn.Module, root: Path, scan_groups: int | None, steps: int) -> int:
    """Train on records, of which so many scan groups are read; return the bytes read."""
    dataset = PcrDataset(
        root, batch_size=BATCH, scan_groups=scan_groups, size=SIZE, layout="NCHW", drop_last=True
    )
    epochs = (batch for _ in range(steps) for batch in DataLoader(dataset, batch_size=None))
    train(model, itertools.islice(epochs, steps), steps)
    return dataset.bytes_read


def train(model: nn.Module, batches: Iterable[list[Tensor]], steps: int) -> list[tuple[float, int]]:
    """Train on batches; return (seconds, images so far) after each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    recent: deque[float] = deque(maxlen=50)
    taken: list[tuple[float, int]] = []
    count = 0
    model.train()
    for step, (images, labels) in enumerate(batches, 1):
        labels = labels.long()
        output = model(as_input(images))
        loss = nn.functional.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        count += len(images)
        taken.append((time.monotonic(), count))
        recent.append((output.argmax(1) == labels).float().mean().item())
        if step % 50 == 0:
            accuracy = sum(recent) / len(recent)
            print(f"  step {step:4}: loss {loss.item():.3f}, training accuracy {accuracy:.1%}")
    return taken


def evaluate(model: nn.Module, dataset: Iterable[list[Tensor]]) -> tuple[int, int]:
    """Return how many images the model recognizes, and how many there are."""
    right = total = 0
    model.eval()
    with torch.no_grad():
        for images, labels in dataset:
            right += int((model(as_input(images)).argmax(1) == labels).sum())
            total += len(labels)
    return right, total


def compare_fidelities(data: Path, records: Path, steps: int) -> float:
    """Train on a prefix of each record, and on all of it; return the lower accuracy."""
    for part in ("train", "valid"):
        report = convert(data / part, records / part, images_per_record=256, force=True)
        print(f"converted {report.images} images to {records / part}")
    accuracies = []
    for groups in (PREFIX, None):
        name = "all groups" if groups is None else f"{groups} of 10 groups"
        print(f"training for {steps} steps on records, {name}")
        torch.manual_seed(0)
        model = make_model()
        bytes_read = train_on_records(model, records / "train", groups, steps)
        valid = PcrDataset(
            records / "valid", batch_size=BATCH, size=SIZE, augment=None, layout="NCHW"
        )
        right, total = evaluate(model, valid)
        accuracies.append(right / total)
        print(f"records, {name}: {right / total:.1%} of {total}, {bytes_read / 1e6:.1f} MB read")
    return min(accuracies)


# -- what is left ---------------------------------------------------------------------------------


def draw_sheet(url: str, out: Path) -> None:
    """Let tensorshow draw what the stream holds."""
    names = out.with_name("classes.txt")
    names.write_text("\n".join(CLASSES) + "\n")
    command = [PYTHON, "-m", "tensorcom.cli.show", url, "--out", str(out), "--count", "48"]
    subprocess.run([*command, "--class-names", str(names)], check=True)


def rate(points: list[tuple[float, int]]) -> float:
    """Return images per second over all points."""
    if len(points) < 2:
        return 0.0
    return (points[-1][1] - points[0][1]) / max(points[-1][0] - points[0][0], 1e-9)


def rates_by_second(
    points: list[tuple[float, int]], start: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return times and images per second, one value a second."""
    times, counts = (np.array(values, np.float64) for values in zip(*points, strict=True))
    grid = np.arange(np.ceil(times[0] - start), times[-1] - start)
    smooth = np.interp(grid, times - start, counts)
    return (grid[1:] + grid[:-1]) / 2, np.diff(smooth)


def draw_throughput(curves: dict[str, list[tuple[float, int]]], out: Path) -> None:
    """Draw images per second over time."""
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    start = min(points[0][0] for points in curves.values() if points)
    for (name, points), style in zip(curves.items(), ("-", "--"), strict=True):
        if len(points) > 1:
            label = f"{name}, {rate(points):.0f} on average"
            axes.plot(*rates_by_second(points, start), style, label=label)
    axes.set(xlabel="seconds", ylabel="images/s", title="Throughput: 2 senders, 1 training job")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


def main() -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="training steps (default: 500)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="(default: demo)")
    args = parser.parse_args()
    start = time.monotonic()
    torch.manual_seed(0)
    data, log = args.out / "data", args.out / "server.log"
    args.out.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    print(f"drawing {len(CLASSES) * (TRAIN_PER_CLASS + VALID_PER_CLASS)} images in {data}")
    draw_data_set(data)
    model = make_model()
    with tempfile.TemporaryDirectory() as sockets:  # ipc: no port to choose
        theirs = f"zrpull+ipc://{sockets}/train{{0..1}}"
        # Short queues, since the images are small: the senders feel at once what the job takes.
        ours = theirs.replace("zrpull", "zrpush") + "?hwm_bytes=16M"
        with serving(log, "-d", str(data / "train"), "-r", "10", ours) as server:
            draw_sheet(theirs, args.out / "sheet.png")
            print(f"training for {args.steps} steps of {BATCH} images, served by 2 processes")
            taken = train_on_stream(model, theirs, args.steps)
            sent = [point for point in server.sent if point[0] >= taken[0][0]]
        flags = ["--epochs", "1", "--no-augment", "--no-shuffle"]
        url = f"zrpush+ipc://{sockets}/valid"
        with serving(log, "-d", str(data / "valid"), *flags, url):
            theirs = url.replace("zrpush", "zrpull")
            right, total = evaluate(model, TensorcomDataset(theirs, layout=("NHWC", "NCHW")))
    draw_throughput({"served": sent, "consumed": taken}, args.out / "throughput.png")
    accuracy = right / total
    print(f"served   {rate(sent):7.0f} images/s")
    print(f"consumed {rate(taken):7.0f} images/s")
    print(f"accuracy {accuracy:7.1%} of {total} held-out images, more than {ENOUGH:.0%} expected")
    worst = min(accuracy, compare_fidelities(data, args.out / "records", args.steps // 2))
    print(f"see {args.out}/sheet.png and {args.out}/throughput.png")
    print(f"{time.monotonic() - start:.0f} s in all")
    return 0 if worst > ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
