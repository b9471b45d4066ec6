"""Train the same network at several fidelities, from one set of records.

    python examples/train_records.py DATA --scan-groups 1 2 5 10

DATA holds folders `train` and `test`, each with a folder of JPEG files for each class. Both are
converted once, without loss. Then the network is trained at each number of scan groups, and tested
at full fidelity. Prints the accuracy and the bytes that were read for it; draws both, and the same
images at each fidelity.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tensorcom.images import center_crop, decode_image
from tensorcom.pcr import PcrReader, convert
from tensorcom_torch import PcrDataset

mpl.use("Agg")  # no screen is needed
from matplotlib import pyplot  # noqa: E402 - the choice comes first


class Run(NamedTuple):
    """What came of training at one fidelity."""

    scan_groups: int
    accuracy: float
    bytes_read: int
    seconds: float


def make_model(classes: int) -> nn.Module:
    """Return a small residual-free CNN."""

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *stage(3, 24),
        *stage(24, 48),
        *stage(48, 96),
        *stage(96, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def as_input(images: Tensor) -> Tensor:
    """Scale uint8 images to about -1 to 1."""
    return images.float() / 127.5 - 1


def train(root: Path, groups: int, args: argparse.Namespace) -> tuple[nn.Module, int]:
    """Train at a fidelity; return the network and the bytes that were read."""
    torch.manual_seed(args.seed)
    dataset = PcrDataset(
        root,
        batch_size=args.batch_size,
        scan_groups=groups,
        size=args.size,
        layout="NCHW",
        seed=args.seed,
        drop_last=True,
    )
    model = make_model(len(dataset.class_names or ()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = args.epochs * len(dataset)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    loader = DataLoader(dataset, batch_size=None)
    model.train()
    for _ in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(as_input(images)), labels.long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model, dataset.bytes_read


def test(model: nn.Module, root: Path, args: argparse.Namespace) -> float:
    """Return the share of images that the network recognizes, at full fidelity."""
    dataset = PcrDataset(
        root, batch_size=64, size=args.size, augment="eval", layout="NCHW", shuffle=False
    )
    right = total = 0
    model.eval()
    with torch.no_grad():
        for images, labels in DataLoader(dataset, batch_size=None):
            right += int((model(as_input(images)).argmax(1) == labels).sum())
            total += len(labels)
    return right / total


def draw(runs: list[Run], out: Path) -> None:
    """Draw accuracy over bytes."""
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot([run.bytes_read / 1e6 for run in runs], [run.accuracy for run in runs], "o-")
    for run in runs:
        axes.annotate(
            f"k={run.scan_groups}",
            (run.bytes_read / 1e6, run.accuracy),
            textcoords="offset points",
            xytext=(6, 6),
        )
    axes.set(xlabel="MB read for training", ylabel="test accuracy", title="Fidelity and bytes")
    axes.margins(0.12)
    axes.grid(alpha=0.3)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


def draw_sheet(root: Path, groups: list[int], out: Path, *, images: int = 6) -> None:
    """Draw the same images at each fidelity, a row each."""
    reader = PcrReader(root)
    chosen = np.linspace(0, len(reader) - 1, images).astype(int).tolist()
    rows = []
    for k in groups:
        files = [reader.sample(sample, scan_groups=k)[0] for sample in chosen]
        rows.append(np.hstack([center_crop(decode_image(data), 160, resize=160) for data in files]))
    figure, axes = pyplot.subplots(len(rows), figsize=(9, 1.6 * len(rows)), layout="constrained")
    for axis, row, k in zip(np.atleast_1d(axes), rows, groups, strict=True):
        axis.imshow(row)
        axis.set(xticks=[], yticks=[], ylabel=f"k={k}")
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


def main() -> int:
    """Train at each fidelity."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with `train` and `test`")
    parser.add_argument("--scan-groups", type=int, nargs="+", default=[1, 2, 5, 10], metavar="K")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=96, help="side of the images (default: 96)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("records"), help="(default: records)")
    args = parser.parse_args()
    sets = {}
    for part in ("train", "test"):
        sets[part] = args.out / part
        if not (sets[part] / "PCR_manifest.json").exists():
            convert(args.data / part, sets[part], images_per_record=128, on_error="skip")
    draw_sheet(sets["test"], args.scan_groups, args.out / "fidelity.png")
    print(f"{len(PcrReader(sets['train']))} images, {args.epochs} epochs at each fidelity")
    print(f"{'k':>3}  {'MB read':>8}  {'seconds':>8}  accuracy at full fidelity")
    runs = []
    for groups in args.scan_groups:
        start = time.monotonic()
        model, bytes_read = train(sets["train"], groups, args)
        seconds = time.monotonic() - start
        runs.append(Run(groups, test(model, sets["test"], args), bytes_read, seconds))
        print(f"{groups:3}  {bytes_read / 1e6:8.1f}  {seconds:8.1f}  {runs[-1].accuracy:.1%}")
    draw(runs, args.out / "accuracy.png")
    print(f"see {args.out}/fidelity.png and {args.out}/accuracy.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
