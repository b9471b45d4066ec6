"""Train a small VGG in Keras, on a served stream or on records, and test it on records.

    python examples/train_keras.py
    python examples/train_keras.py --data DATA --source records --scan-groups 1 2 5

DATA holds folders `train` and `valid`, each with a folder of JPEG files for each class; without it
a few simple images are drawn. Both are converted to records once, without loss. The stream is that
of a server which this program starts, or of yours:

    serve-imagenet-dir -d DATA -b 32 --size 64 'zrpush://127.0.0.1:788{0..1}'
    python examples/train_keras.py --data DATA 'zrpull://127.0.0.1:788{0..1}'

On TensorFlow data sets are tf.data pipelines; on torch and jax (`--backend`) they are PyDatasets.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from tensorcom.pcr import PcrReader, convert

MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
STD = np.array([0.229, 0.224, 0.225], np.float32) * 255
CLASSES = ("checks", "columns", "disc", "rows")
DRAWN = {"train": 60, "valid": 15}  # images of each class
DRAWN_SIZE = 80


# -- images --------------------------------------------------------------------------------------


def draw_image(kind: str, rng: np.random.Generator) -> bytes:
    """Draw one JPEG image: a shape or a texture in two random colours, under noise."""
    y, x = np.mgrid[0:DRAWN_SIZE, 0:DRAWN_SIZE] / DRAWN_SIZE - rng.uniform(0.4, 0.6, (2, 1, 1))
    period = rng.uniform(0.15, 0.2)
    wave_x, wave_y = np.sin(2 * np.pi * x / period), np.sin(2 * np.pi * y / period)
    inside = {
        "checks": wave_x * wave_y > 0,
        "columns": wave_x > 0,
        "disc": np.hypot(x, y) < rng.uniform(0.25, 0.35),
        "rows": wave_y > 0,
    }[kind]
    dark, bright = rng.uniform(20, 110, 3), rng.uniform(145, 235, 3)
    image = np.where(inside[..., None], bright, dark)
    image = image + rng.normal(0, 10, image.shape)
    return simplejpeg.encode_jpeg(image.clip(0, 255).astype(np.uint8), quality=90)


def draw_data_set(root: Path) -> None:
    """Draw folders `train` and `valid`, each with a folder for each class."""
    rng = np.random.default_rng(0)
    for part, count in DRAWN.items():
        for kind in CLASSES:
            folder = root / part / kind
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (folder / f"{number:03}.jpg").write_bytes(draw_image(kind, rng))


@contextlib.contextmanager
def served(folder: Path, args: argparse.Namespace) -> Iterator[list[str]]:
    """Serve a folder of images from another process; the value is what a reader connects to."""
    with tempfile.TemporaryDirectory() as sockets:  # ipc: no port to choose
        url = f"zrpush+ipc://{sockets}/train"
        command = [sys.executable, "-m", "tensorcom.cli.serve_dir", "-d", str(folder), "-r", "0"]
        command += ["-b", str(args.batch_size), "--size", str(args.size), "--drop-last", url]
        server = subprocess.Popen(command)
        try:
            yield [url.replace("zrpush", "zrpull")]
        finally:
            server.terminate()
            server.wait()


# -- data sets -----------------------------------------------------------------------------------


def normalized(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale images to about -2 to 2."""
    return (images - MEAN) / STD


def stream_data(urls: list[str], steps: int) -> Any:
    """Return batches of a stream, `steps` an epoch, normalized when they are received."""
    import keras

    import tensorcom_keras

    kind = tensorcom_keras.StreamPyDataset
    if keras.backend.backend() == "tensorflow":
        kind = tensorcom_keras.stream_dataset
    return kind(urls, length=steps, batch_transforms=[normalized, None])


def record_data(
    root: Path, args: argparse.Namespace, *, augment: str, scan_groups: Any = None
) -> tuple[Any, list[Any]]:
    """Return normalized batches of records, and the callbacks that they need.

    Args:
        root: the set.
        args: of the command line.
        augment: "train", which also shuffles, or "eval".
        scan_groups: groups to read in each epoch, the last of which stays; None reads all.
    """
    import keras

    import tensorcom_keras

    options = {"batch_size": args.batch_size, "size": args.size, "augment": augment}
    options["shuffle"] = augment == "train"
    if keras.backend.backend() == "tensorflow":
        schedule = tensorcom_keras.FidelitySchedule(scan_groups) if scan_groups else None
        dataset = tensorcom_keras.pcr_dataset(root, scan_groups=schedule, **options)
        dataset = dataset.map(lambda images, labels: (normalized_in_graph(images), labels))
        return dataset.prefetch(2), [schedule] if schedule else []
    dataset = tensorcom_keras.PcrPyDataset(
        root, arrange=lambda images, labels: (normalized(images), labels), **options
    )
    callbacks = []
    if scan_groups:
        callbacks.append(tensorcom_keras.FidelitySchedule(scan_groups, target=dataset))
    return dataset, callbacks


def normalized_in_graph(images: Any) -> Any:
    """Do what `normalized` does, to a tensor."""
    import tensorflow as tf

    return (tf.cast(images, tf.float32) - MEAN) / STD


# -- training ------------------------------------------------------------------------------------


def make_vgg(classes: int, size: int) -> Any:
    """Return a small VGG: stages of two convolutions each, with batch normalization."""
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input((size, size, 3))])
    for channels in (16, 32, 64):
        for _ in range(2):
            model.add(layers.Conv2D(channels, 3, padding="same", use_bias=False))
            model.add(layers.BatchNormalization(momentum=0.8))
            model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dropout(0.2))
    model.add(layers.Dense(classes))
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("urls", nargs="*", help="of your servers, for this end: zrpull")
    parser.add_argument("--data", type=Path, help="folder with `train` and `valid`")
    parser.add_argument("--source", choices=("stream", "records"), default="stream")
    parser.add_argument(
        "--scan-groups",
        type=int,
        nargs="+",
        metavar="K",
        help="of records, in each epoch; the last stays (default: all)",
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps of an epoch (default: once all images)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="side of the images (default: 64)")
    parser.add_argument("--backend", choices=("tensorflow", "torch", "jax"))
    parser.add_argument("--out", type=Path, default=Path("keras"), help="(default: keras)")
    args = parser.parse_args()
    if args.scan_groups and args.source == "stream":
        parser.error("--scan-groups is for --source records: the servers say what they send")
    if args.urls and args.source == "records":
        parser.error("--source records needs no URL")
    return args


def main() -> int:
    """Train."""
    args = arguments()
    if args.backend:
        os.environ["KERAS_BACKEND"] = args.backend  # Keras reads it when it is imported
    import keras

    keras.utils.set_random_seed(0)
    data = args.data or args.out / "data"
    if args.data is None:
        draw_data_set(data)
    sets = {part: args.out / part for part in ("train", "valid")}
    for part, root in sets.items():
        if not (root / "PCR_manifest.json").exists():
            convert(data / part, root, images_per_record=64, on_error="skip")
    samples = PcrReader(sets["train"])
    steps = args.steps or max(1, len(samples) // args.batch_size)
    model = make_vgg(len(samples.class_names or ()), args.size)
    valid, _ = record_data(sets["valid"], args, augment="eval")
    callbacks: list[Any] = []
    with contextlib.ExitStack() as stack:
        if args.source == "records":
            train, callbacks = record_data(
                sets["train"], args, augment="train", scan_groups=args.scan_groups
            )
        else:
            train = stream_data(
                args.urls or stack.enter_context(served(data / "train", args)), steps
            )
        print(f"{args.epochs} epochs on {keras.backend.backend()}, from {args.source}", flush=True)
        history = model.fit(
            train,
            epochs=args.epochs,
            validation_data=valid,
            callbacks=callbacks,
            shuffle=False,  # the data sets do it
            verbose=2,
        ).history
        if args.source == "stream":
            close(train)
    print(f"loss {history['loss'][0]:.3f} -> {history['loss'][-1]:.3f}")
    print(f"accuracy {history['val_accuracy'][-1]:.1%} of the validation images")
    return 0


def close(train: Any) -> None:
    """Close the socket of a stream."""
    import tensorcom_keras

    if hasattr(train, "close"):
        train.close()
    else:
        tensorcom_keras.close_stream(train)


if __name__ == "__main__":
    sys.exit(main())
