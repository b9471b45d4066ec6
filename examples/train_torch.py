"""Train a small residual network on a served stream, with two loader workers.

Serve an image folder in another terminal, then train on it:

    serve-imagenet-dir -d /data/imagenet -b 64 'zrpush://127.0.0.1:788{0..1}'
    python examples/train_torch.py 'zrpull://127.0.0.1:788{0..1}' --classes 1000 --steps 500
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tensorcom_torch import TensorcomDataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1) * 255
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1) * 255


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.around(x))


def make_model(classes: int) -> nn.Module:
    """Return a small residual network."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, 4, 3, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        Block(32, 64, 2),
        Block(64, 128, 2),
        Block(128, 256, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("urls", nargs="+", help="what the servers serve on, for this end: zrpull")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    mean, std = MEAN.to(device), STD.to(device)
    model = make_model(args.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)

    # The servers make the batches: batch_size=None. Each batch comes once over all workers.
    dataset = TensorcomDataset(args.urls, length=args.steps, layout=("NHWC", "NCHW"))
    loader = DataLoader(
        dataset, batch_size=None, num_workers=args.workers, pin_memory=device == "cuda"
    )
    start = last = time.monotonic()
    images_seen = 0
    for step, (images, labels) in enumerate(loader, 1):
        images = (images.to(device, non_blocking=True).float() - mean) / std
        labels = labels.to(device, non_blocking=True).long()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        images_seen += len(images)
        now = time.monotonic()
        if step == 1:
            start, images_seen = now, 0  # the loader's start is no part of the rate
        elif now - last > 2 or step == args.steps:
            rate = images_seen / (now - start)
            print(f"step {step:5}: loss {loss.item():.3f}, {rate:.0f} images/s", flush=True)
            last = now


if __name__ == "__main__":
    main()
