"""What fits are made of: learnable data, a model, and what tells which batches it got.

Labels number the halves of each batch of a stream, or the samples of a set; their parity is what
there is to learn. A metric counts the labels that a model got, and adds up the pixels of each.
"""

from __future__ import annotations

import io
import itertools
import time
from pathlib import Path

import keras
import numpy as np
from PIL import Image

from tensorcom.pcr import PcrWriter
from tensorcom.testing.loopback import LoopbackServer

LABELS, SIZE, PER_BATCH = 64, 8, 8
SAMPLES, BATCH = 23, 4


# -- data ------------------------------------------------------------------------------------------


def stream_batch(number: int, *more: np.ndarray) -> list[np.ndarray]:
    """Return dark and light images, with twice their batch's number, and one more if light."""
    rng = np.random.default_rng(number)
    light = np.arange(PER_BATCH) % 2
    images = rng.integers(0, 100, (PER_BATCH, SIZE, SIZE, 3)) + 100 * light[:, None, None, None]
    return [images.astype(np.uint8), (2 * number + light).astype(np.int32), *more]


def server(*more: np.ndarray, count: int | None = None, end: bool = True) -> LoopbackServer:
    numbers = itertools.count() if count is None else range(count)
    return LoopbackServer((stream_batch(number, *more) for number in numbers), end=end)


def write_records(root: Path) -> Path:
    """Write a set in which each sample has a label of its own."""
    with PcrWriter(root, images_per_record=5) as writer:
        for sample in range(SAMPLES):
            rng = np.random.default_rng(sample)
            pixels = rng.integers(0, 100, (40, 48, 3)) + sample % 2 * 100
            stream = io.BytesIO()
            Image.fromarray(pixels.astype(np.uint8)).save(stream, "JPEG", quality=90)
            writer.add(stream.getvalue(), sample)
    return root


# -- model -----------------------------------------------------------------------------------------


class Seen(keras.metrics.Metric):
    """Counts labels, and adds up the pixels of the images that came with each."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.counts = self.add_weight(shape=(LABELS,), initializer="zeros", name="counts")
        self.pixels = self.add_weight(shape=(LABELS,), initializer="zeros", name="pixels")

    def update_state(self, y_true, y_pred, sample_weight=None):  # noqa: ARG002
        hot = keras.ops.one_hot(keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int32"), LABELS)
        self.counts.assign_add(keras.ops.sum(hot, axis=0))
        self.pixels.assign_add(keras.ops.sum(hot * y_pred[:, 2:], axis=0))

    def result(self):
        return keras.ops.sum(self.counts)


def parity_loss(y_true, y_pred):
    labels = keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int32") % 2
    return keras.losses.sparse_categorical_crossentropy(labels, y_pred[:, :2], from_logits=True)


class Net(keras.Model):
    """Logits of two classes, and the sum of the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = keras.layers.Rescaling(1 / 255)
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(2)

    def call(self, images):
        pixels = keras.ops.sum(keras.ops.cast(images, "float32"), axis=(1, 2, 3))
        logits = self.dense(self.flatten(self.scale(images)))
        return keras.ops.concatenate([logits, pixels[:, None]], axis=1)


class Log(keras.callbacks.Callback):
    """Keeps what each epoch saw: {label: [count, sum of pixels]}; calls functions at its begin."""

    def __init__(self, *begins) -> None:
        super().__init__()
        self.begins, self.epochs = begins, []

    def on_epoch_begin(self, epoch, logs=None):  # noqa: ARG002
        for begin in self.begins:
            begin(epoch)

    def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
        self.epochs.append(seen(self.model))


def seen(model) -> dict[int, list[float]]:
    metric = next(m for m in metrics_of(model) if isinstance(m, Seen))
    counts, pixels = (
        keras.ops.convert_to_numpy(v).tolist() for v in (metric.counts, metric.pixels)
    )
    return {n: [counts[n], pixels[n]] for n in range(LABELS) if counts[n]}


def metrics_of(model):
    for metric in model.metrics:
        yield from getattr(metric, "metrics", [metric])


def new_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = Net()
    model.compile(optimizer=keras.optimizers.Adam(0.03), loss=parity_loss, metrics=[Seen()])
    return model


def fit(data, *, model=None, begins=(), **arguments):
    """Fit 3 epochs; return what each saw, and the losses."""
    log = Log(*begins)
    model = model or new_model()
    arguments = {"epochs": 3, "verbose": 0, "shuffle": data.num_batches is not None, **arguments}
    history = model.fit(data, callbacks=[log], **arguments).history
    return {"epochs": log.epochs, "loss": history["loss"], **history}


def message_of(call) -> str:
    started = time.monotonic()
    try:
        call()
    except Exception as exc:  # noqa: BLE001 - what it is depends on the backend
        assert time.monotonic() - started < 20
        return f"{type(exc).__name__}: {exc}"
    return "no error"
