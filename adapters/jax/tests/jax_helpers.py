"""What the tests of the JAX adapter share: sets and streams whose pixels tell their samples."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensorcom.pcr import PcrWriter

SAMPLES, PER_RECORD = 23, 5
GROUPS = 10
WAIT_S = 30
RUN_S = 90
DEVICES = "--xla_force_host_platform_device_count="


def gray_of(sample: int) -> int:
    return sample * 37 % 251


def gray_jpeg(sample: int) -> bytes:
    """Return an image of which every pixel, at any fidelity, tells its sample."""
    return saved(np.full((24, 32, 3), gray_of(sample), np.uint8))


def noise_jpeg(sample: int) -> bytes:
    """Return an image of which no crop is like another."""
    return saved(np.random.default_rng(sample).integers(0, 256, (40, 48, 3), np.uint8))


def saved(pixels: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def write_records(root: Path, samples: int = SAMPLES, make: Any = gray_jpeg) -> Path:
    """Write a set in which each sample is a class of its own."""
    with PcrWriter(root, images_per_record=PER_RECORD) as writer:
        for sample in range(samples):
            writer.add(make(sample), sample)
    return root


def batch(number: int, samples: int = 4) -> list[NDArray[Any]]:
    """Return images of which each pixel is the sample's id, and the ids."""
    ids = np.arange(samples, dtype="i4") + number * samples
    return [np.broadcast_to(ids.reshape(-1, 1, 1, 1) % 251, (samples, 4, 3, 2)).astype("u1"), ids]


def counting(samples: int = 4) -> Iterator[list[NDArray[Any]]]:
    number = 0
    while True:
        yield batch(number, samples)
        number += 1


def ids(batches: Any) -> list[int]:
    """Return the sample ids of a stream's batches, having checked types and pixels."""
    found: list[int] = []
    for images, labels in batches:
        assert isinstance(images, jax.Array)
        assert isinstance(labels, jax.Array)
        np.testing.assert_array_equal(np.asarray(images)[:, 0, 0, 0], np.asarray(labels) % 251)
        found.extend(labels.tolist())
    return found


def samples_of(batches: Any) -> list[list[int]]:
    """Return the samples of each batch of records, having checked types and pixels."""
    found = []
    for item in batches:
        assert type(item) is tuple
        images, labels = item
        assert all(isinstance(array, jax.Array) for array in item)
        assert labels.dtype == np.int32
        assert len(images) == len(labels)
        means = np.asarray(images).reshape(len(images), -1).mean(axis=1)
        for mean, label in zip(means, labels.tolist(), strict=True):
            assert abs(float(mean) - gray_of(label)) < 3, label
        found.append(labels.tolist())
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def error_of(batches: Any) -> Exception:
    """Return the error that iterating raises, without the frames that hold the iteration."""
    try:
        list(batches)
    except Exception as exc:
        return exc.with_traceback(None)
    raise AssertionError("no error")


def own_threads() -> list[threading.Thread]:
    """Return the threads of the adapter, and of core's sources, that live."""
    gc.collect()
    return [t for t in threading.enumerate() if t.name.startswith("tensorcom-")]


def wait_for(condition: Any, *, timeout_s: float = WAIT_S) -> bool:
    """Wait until something holds; return whether it does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def run_script(
    script: Path | str, *arguments: object, devices: int = 1, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with so many simulated CPU devices."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", str(script), *map(str, arguments)],
        env=simulated(devices),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def simulated(devices: int) -> dict[str, str]:
    """Return the environment of a process with so many simulated CPU devices."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "XLA_FLAGS": f"{DEVICES}{devices}", "PYTHONPATH": path}
    return {**env, "JAX_PLATFORMS": "cpu"}
