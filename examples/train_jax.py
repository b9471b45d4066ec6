"""Train a small residual network in JAX, on a served stream or on records, over all local devices.

On records, with another number of scan groups in each epoch:

    tensorcom pcr convert /data/imagenet/train records
    python examples/train_jax.py --source records records --scan-groups 2 5 10 --epochs 3

On a stream; serve an image folder in another terminal, in batches of one size, which the devices
can share:

    serve-imagenet-dir -d /data/imagenet -b 64 --drop-last 'zrpush://127.0.0.1:788{0..1}'
    python examples/train_jax.py --source stream 'zrpull://127.0.0.1:788{0..1}' --steps 500

Needs `pip install optax`.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tensorcom_jax import pcr_iterator, stream_iterator

MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
STD = np.array([0.229, 0.224, 0.225], np.float32) * 255
WIDTHS = (32, 64, 128, 256)
Params = dict[str, Any]
OPTIMIZER = optax.adamw(1e-3, weight_decay=1e-2)


def make_params(seed: int, classes: int) -> Params:
    """Return the weights of a small residual network, on the host."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) * np.float32(2 / np.prod(shape[:-1])) ** 0.5

    blocks = [
        {
            "first": weights(3, 3, inputs, outputs),
            "second": weights(3, 3, outputs, outputs) / 2,
            "around": weights(1, 1, inputs, outputs),
        }
        for inputs, outputs in itertools.pairwise(WIDTHS)
    ]
    return {
        "stem": weights(7, 7, 3, WIDTHS[0]),
        "blocks": blocks,
        "head": weights(WIDTHS[-1], classes) / 10,
        "bias": np.zeros(classes, np.float32),
    }


def conv(x: Array, kernel: Array, stride: int = 1) -> Array:
    """Convolve images (N, H, W, C)."""
    layouts = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layouts)


def norm(x: Array) -> Array:
    """Give each image mean 0 and variance 1."""
    axes = (1, 2, 3)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5)


def logits_of(params: Params, images: Array) -> Array:
    """Return the network's output for uint8 images (N, H, W, 3)."""
    x = (images.astype(jnp.float32) - MEAN) / STD
    x = jax.nn.relu(norm(conv(x, params["stem"], 4)))
    for block in params["blocks"]:
        y = jax.nn.relu(norm(conv(x, block["first"], 2)))
        x = jax.nn.relu(norm(conv(y, block["second"])) + conv(x, block["around"], 2))
    return x.mean((1, 2)) @ params["head"] + params["bias"]


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(
    params: Params, state: optax.OptState, images: Array, labels: Array
) -> tuple[Params, optax.OptState, Array]:
    """Return the weights and the optimizer's state after one batch, and its loss."""

    def loss_of(params: Params) -> Array:
        logits = logits_of(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def batches_of(
    args: argparse.Namespace, sharding: NamedSharding
) -> tuple[Iterable[Any], int | None]:
    """Return the batches to train on, on their devices, and the classes if the data say them."""
    if args.source == "stream":
        return stream_iterator(args.data, sharding=sharding, length=args.steps), None
    # Batches of one size: others would be compiled for, and may not fit the devices.
    records = pcr_iterator(
        args.data[0],
        batch_size=args.batch_size,
        sharding=sharding,
        size=args.size,
        seed=args.seed,
        drop_last=True,
    )
    classes = records.class_names

    def epochs() -> Iterator[Any]:
        for epoch in range(args.epochs):
            if args.scan_groups:
                records.scan_groups = args.scan_groups[min(epoch, len(args.scan_groups) - 1)]
            yield from records
            print(f"epoch {epoch}: {records.bytes_read / 1e6:.1f} MB read so far", flush=True)

    return itertools.islice(epochs(), args.steps), len(classes) if classes else None


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", help="URLs of the servers, or the directory of a set")
    parser.add_argument("--source", choices=("stream", "records"), required=True)
    parser.add_argument("--steps", type=int, help="most batches to train on (default: all)")
    parser.add_argument("--classes", type=int, help="(default: those of the set, or 1000)")
    parser.add_argument("--seed", type=int, default=0)
    only = parser.add_argument_group("records only")
    only.add_argument("--epochs", type=int, default=1)
    only.add_argument("--batch-size", type=int, default=64, help="(default: 64)")
    only.add_argument("--size", type=int, default=224, help="side of the images (default: 224)")
    only.add_argument("--scan-groups", type=int, nargs="+", metavar="K", help="for each epoch")
    args = parser.parse_args()

    # Each device trains on a part of each batch, with weights of its own that stay equal.
    mesh = Mesh(np.array(jax.devices()), ("data",))
    batches, classes = batches_of(args, NamedSharding(mesh, PartitionSpec("data")))
    params = make_params(args.seed, args.classes or classes or 1000)
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    state = jax.jit(OPTIMIZER.init)(params)

    step, images_seen = 0, 0
    start = last = time.monotonic()
    for step, (images, labels) in enumerate(batches, 1):
        params, state, loss = train_step(params, state, images, labels)
        if step == 1:
            loss.block_until_ready()
            start = last = time.monotonic()  # compilation is no part of the rate
            print(f"step {step:5}: loss {loss:.3f}", flush=True)
            continue
        images_seen += len(images)
        if step == args.steps or time.monotonic() - last > 2:
            loss.block_until_ready()
            last = time.monotonic()
            rate = images_seen / (last - start)
            print(f"step {step:5}: loss {loss:.3f}, {rate:.0f} images/s", flush=True)
    print(f"{step} steps on {len(jax.devices())} devices")


if __name__ == "__main__":
    main()
