"""Train a ResNet-18 on records that DALI decodes, and validate it on an image folder.

    python examples/train_dali.py SET FOLDER --scan-groups 5
    torchrun --nproc-per-node 2 examples/train_dali.py SET FOLDER

SET is a set of progressive compressed records, FOLDER a folder of class folders of JPEG files, of
which those count that have the name of a class of the set.
Without them, a small set of drawn images is made. Each rank writes `train_data_<rank>.csv`, with
load time, loss and accuracy of each step; rank 0 draws its own, and validates after each epoch.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import torch
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator
from PIL import Image
from torch import Tensor, distributed, nn

from tensorcom.images import usable_cores
from tensorcom.pcr import convert
from tensorcom_dali import Loader, PcrSource, train_pipeline, val_images

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

mpl.use("Agg")  # no screen is needed
from matplotlib import pyplot  # noqa: E402 - the choice comes first

Row = tuple[int, int, float, float, float, float]
COLUMNS = ("epoch", "step", "load_s", "step_s", "loss", "accuracy")


# -- the network ----------------------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.around(x))


def make_resnet18(classes: int) -> nn.Module:
    """Return a ResNet-18."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


# -- the data -------------------------------------------------------------------------------------


def draw_images(root: Path, *, classes: int = 3, images: int = 24) -> Path:
    """Draw a folder of class folders, whose classes differ in colour."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(images):
            grain = rng.integers(0, 120, (12, 16, 3))
            grain[..., label % 3] += 110
            picture = Image.fromarray(grain.astype(np.uint8)).resize((160, 120))
            picture.save(folder / f"{number:03}.jpg")
    return root


def list_images(folder: Path, names: Sequence[str] | None) -> tuple[list[str], list[int]]:
    """Return the images of a folder, and their labels: the numbers of their classes in the set.

    Sets of the original release do not name their classes: they are those of the folder, in order.
    """
    if names is None:
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    files, labels = [], []
    for label, name in enumerate(names):
        found = [
            str(path.relative_to(folder))
            for path in sorted((folder / name).glob("*"))
            if path.suffix.lower() in (".jpg", ".jpeg")
        ]
        files += found
        labels += [label] * len(found)
    if not files:
        raise SystemExit(f"{folder}: no JPEG files in folders of the names of the set's classes")
    return files, labels


def validation(
    folder: Path, names: Sequence[str] | None, args: argparse.Namespace, device: str
) -> Any:
    """Return DALI's iterator over an image folder, with the same last steps as for records."""
    files, numbers = list_images(folder, names)

    @pipeline_def(
        batch_size=args.batch_size,
        num_threads=args.threads,
        device_id=None if device == "cpu" else torch.cuda.current_device(),
    )
    def define() -> tuple[Any, Any]:
        jpegs, labels = fn.readers.file(
            file_root=str(folder), files=files, labels=numbers, name="files"
        )
        images = val_images(jpegs, size=args.size, device=dali_device(device))
        return images, labels if device == "cpu" else labels.gpu()

    return DALIClassificationIterator(
        [define()],
        reader_name="files",
        auto_reset=True,
        last_batch_policy=LastBatchPolicy.PARTIAL,
    )


def dali_device(device: str) -> str:
    """Return what DALI calls a device."""
    return "cpu" if device == "cpu" else "gpu"


# -- training -------------------------------------------------------------------------------------


def train_epoch(
    model: nn.Module, loader: Loader, optimizer: torch.optim.Optimizer, epoch: int
) -> Iterator[Row]:
    """Train for an epoch; yield what each step took and gave."""
    model.train()
    start = time.perf_counter()
    for step, (images, labels) in enumerate(loader):
        loaded = time.perf_counter()
        labels = labels.long()
        outputs = model(images)
        loss = nn.functional.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (outputs.argmax(1) == labels).float().mean().item()
        end = time.perf_counter()
        yield epoch, step, loaded - start, end - loaded, loss.item(), accuracy
        start = time.perf_counter()


def validate(model: nn.Module, batches: Any) -> float:
    """Return the share of images that the network recognises."""
    right = total = 0
    model.eval()
    with torch.no_grad():
        for (batch,) in batches:
            labels = batch["label"].squeeze(-1).long()
            right += int((model(batch["data"]).argmax(1) == labels).sum())
            total += len(labels)
    return right / total


def draw(rows: list[Row], scores: list[float], out: Path) -> None:
    """Draw loss, accuracy and load time over the steps."""
    figure, axes = pyplot.subplots(3, figsize=(7, 7), layout="constrained", sharex=True)
    steps = range(1, len(rows) + 1)
    axes[0].plot(steps, [row[4] for row in rows], lw=1)
    axes[0].set(ylabel="loss", title="Training")
    axes[1].plot(steps, [row[5] for row in rows], lw=1, label="training, each step")
    ends = [
        max(i for i, row in enumerate(rows, 1) if row[0] == epoch) for epoch in range(len(scores))
    ]
    axes[1].plot(ends, scores, "o-", label="validation, each epoch")
    axes[1].set(ylabel="accuracy", ylim=(0, 1.05))
    axes[1].legend()
    axes[2].plot(steps, [1000 * row[2] for row in rows], lw=1, label="waiting for data")
    axes[2].plot(steps, [1000 * row[3] for row in rows], lw=1, label="training")
    axes[2].set(xlabel="step", ylabel="ms", yscale="log")
    axes[2].legend()
    axes[2].xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


def set_up(args: argparse.Namespace) -> tuple[int, int, str]:
    """Join the job of torchrun, if there is one; return rank, ranks and device."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if ranks > 1:
        distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    return rank, ranks, device


def find_data(args: argparse.Namespace, rank: int, ranks: int) -> tuple[Path, Path]:
    """Return the set and the folder: the given ones, or drawn ones, made by rank 0."""
    if args.records is not None:
        return args.records, args.folder
    folder, records = args.out / "drawn", args.out / "records"
    if rank == 0 and not (records / "PCR_manifest.json").exists():
        draw_images(folder)
        convert(folder, records, images_per_record=16)
    if ranks > 1:
        distributed.barrier()
    return records, folder


def train(args: argparse.Namespace) -> list[float]:
    """Train; return the accuracy of each epoch's validation."""
    rank, ranks, device = set_up(args)
    args.out.mkdir(parents=True, exist_ok=True)
    records, folder = find_data(args, rank, ranks)
    # Ranks get equal parts, so that all take the same number of steps.
    source = PcrSource(
        records,
        batch_size=args.batch_size,
        scan_groups=args.scan_groups,
        seed=args.seed,
        shard=(rank, ranks),
        drop_last=True,
    )
    loader = Loader(
        source,
        train_pipeline,
        to="torch",
        size=args.size,
        device=dali_device(device),
        num_threads=args.threads,
    )
    torch.manual_seed(args.seed)
    # Sets of the original release do not name their classes.
    classes = len(source.class_names or ()) or int(source.reader.labels.max()) + 1
    model: nn.Module = make_resnet18(classes).to(device)
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    batches = validation(folder, source.class_names, args, device) if rank == 0 else None
    rows: list[Row] = []
    scores: list[float] = []
    with (args.out / f"train_data_{rank}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for epoch in range(args.epochs):
            for row in train_epoch(model, loader, optimizer, epoch):
                writer.writerow(row)
                rows.append(row)
            schedule.step()
            if batches is not None:
                scores.append(validate(getattr(model, "module", model), batches))
                waited = sum(row[2] for row in rows if row[0] == epoch)
                print(f"epoch {epoch}: {scores[-1]:.1%} right, {waited:.1f} s spent on waiting")
    if rank == 0:
        draw(rows, scores, args.out / "training.png")
        print(f"see {args.out}/train_data_0.csv and {args.out}/training.png")
    loader.close()
    if ranks > 1:
        distributed.destroy_process_group()
    return scores


def main() -> int:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="?", type=Path, help="set to train on")
    parser.add_argument("folder", nargs="?", type=Path, help="image folder to validate on")
    parser.add_argument("--scan-groups", type=int, metavar="K", help="default: all")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="on each rank (default: 16)")
    parser.add_argument("--size", type=int, default=64, help="side of the images (default: 64)")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of DALI")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("dali"), help="(default: dali)")
    args = parser.parse_args()
    if (args.records is None) != (args.folder is None):
        parser.error("give a set and a folder, or neither")
    train(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
