"""The adapters under contract: one entry each.

An adapter turns a stream, or a set of records, into its framework's own object; the suite sees it
through this table only.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


def _rank_by_environment(patch: pytest.MonkeyPatch, rank: int, ranks: int) -> None:
    patch.setenv("RANK", str(rank))
    patch.setenv("WORLD_SIZE", str(ranks))


def _rank_of_jax(patch: pytest.MonkeyPatch, rank: int, ranks: int) -> None:
    jax = importlib.import_module("jax")
    patch.setattr(jax.distributed, "is_initialized", lambda: True)
    patch.setattr(jax, "process_index", lambda: rank)
    patch.setattr(jax, "process_count", lambda: ranks)


@dataclass(frozen=True)
class Adapter:
    """How the suite drives one adapter.

    Attributes:
        package: import package; its `from_stream(urls, *, length, layout, timeout_s,
            on_bad_message)` returns the framework's iterable, and so does its `from_records(root,
            *, batch_size, scan_groups, size, augment, layout, shuffle, seed, shard, end,
            on_error)`, with `scan_groups`, `state_dict` and `load_state_dict`.
        to_numpy: one yielded array as numpy.
        loaders: by name, how the framework wraps a data set; "plain" iterates it as it is. Each
            takes the data set and returns what yields its batches.
        workers: by loader name, how many readers it opens.
        closes: returns the function that gives a data set's resources back.
        quiet: variables with which the framework writes nothing to stderr of its own accord.
        lacks: by loader name, dtypes that it has no type for, which are errors that name them.
        keeps_axes: loaders of which each array of a stream keeps its number of axes.
        needs_samples: arrays of a stream have samples, the same number in each.
        drops: loaders that take batches ahead of use, and let go of them when they are left.
        be_rank: lets this process be one of several, of a job that is not there.
    """

    package: str
    to_numpy: Callable[[Any], NDArray[Any]]
    loaders: dict[str, Callable[[Any], Iterable[Any]]]
    workers: dict[str, int] = field(default_factory=dict)
    close: Callable[[Any], None] = lambda dataset: dataset.close()
    quiet: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    keeps_axes: tuple[str, ...] = ()
    needs_samples: bool = False
    drops: tuple[str, ...] = ()
    be_rank: Callable[[pytest.MonkeyPatch, int, int], None] = _rank_by_environment

    @property
    def name(self) -> str:
        """Its name in `ADAPTERS`."""
        return next(name for name, entry in ADAPTERS.items() if entry is self)

    def from_stream(self, urls: str | list[str], **arguments: Any) -> Any:
        """Call the package's `from_stream`; a missing framework is an error here, never a skip."""
        return importlib.import_module(self.package).from_stream(urls, **arguments)

    def from_records(self, root: str | os.PathLike[str], **arguments: Any) -> Any:
        """Call the package's `from_records`, as above."""
        return importlib.import_module(self.package).from_records(root, **arguments)


def _torch_loader(workers: int, start: str | None) -> Callable[[Any], Iterable[Any]]:
    def load(dataset: Any) -> Iterable[Any]:
        data = importlib.import_module("torch.utils.data")
        return data.DataLoader(
            dataset,
            batch_size=None,
            num_workers=workers,
            multiprocessing_context=start,
            persistent_workers=workers > 0,
        )

    return load


def _torch_to_numpy(value: Any) -> NDArray[Any]:
    torch = importlib.import_module("torch")
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    name = str(value.dtype).removeprefix("torch.")
    if not name.startswith(("bfloat16", "float8")):
        return value.numpy()
    bits = value.view(torch.int16 if value.itemsize == 2 else torch.uint8)
    return bits.numpy().view(getattr(importlib.import_module("ml_dtypes"), name))


class _KerasEpochs:
    """Drives a `PyDataset` as `fit` does on torch and jax: Keras looks at a batch, and begins."""

    def __init__(self, dataset: Any, workers: int) -> None:
        self._dataset = dataset
        dataset.workers = workers

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        module = importlib.import_module("keras.src.trainers.epoch_iterator")
        finite = self._dataset.num_batches is not None
        epochs = module.EpochIterator(self._dataset, shuffle=finite)
        try:
            next(iter(epochs))
            epochs.reset()
            for _, _, batches in epochs:
                yield from batches
        except OSError as error:
            # Keras has no end for what has no length: it comes as an error.
            if finite or "the stream ended" not in str(error):
                raise


class _TensorflowData:
    """Wraps a data set in tf.data, when it is first asked."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._wrapped = dataset, None

    def _wrap(self) -> Any:
        if self._wrapped is None:
            module = importlib.import_module("tensorcom_keras.tf_feed")
            self._wrapped = module.as_tf_dataset(self._dataset)
        return self._wrapped

    def __len__(self) -> int:
        return len(self._wrap())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._wrap())


_NOT_OF_DALI = ("complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2")

ADAPTERS = {
    "torch": Adapter(
        package="tensorcom_torch",
        to_numpy=_torch_to_numpy,
        loaders={
            "plain": lambda dataset: dataset,
            "workers0": _torch_loader(0, None),
            "fork1": _torch_loader(1, "fork"),
            "fork2": _torch_loader(2, "fork"),
            "spawn2": _torch_loader(2, "spawn"),
            "forkserver2": _torch_loader(2, "forkserver"),
        },
        workers={"fork2": 2, "spawn2": 2, "forkserver2": 2},
        drops=("fork1", "fork2", "spawn2", "forkserver2"),
        # At the end of a process, torch's threads may have removed a semaphore and not said so yet.
        quiet={"PYTHONWARNINGS": "ignore:resource_tracker:UserWarning"},
    ),
    "keras": Adapter(
        package="tensorcom_keras",
        to_numpy=np.asarray,
        loaders={
            "plain": lambda dataset: dataset,
            "keras1": lambda dataset: _KerasEpochs(dataset, 1),
            "keras2": lambda dataset: _KerasEpochs(dataset, 2),
            "tf.data": lambda dataset: _TensorflowData(dataset),
        },
        quiet={"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"},
        keeps_axes=("tf.data",),
    ),
    "dali": Adapter(
        package="tensorcom_dali",
        to_numpy=np.asarray,
        loaders={
            "plain": lambda dataset: dataset,
            "torch": lambda dataset: dataset.to("torch"),
            "jax": lambda dataset: dataset.to("jax"),
        },
        lacks={
            "plain": _NOT_OF_DALI,
            "torch": (*_NOT_OF_DALI, "uint16", "uint32", "uint64"),
            "jax": _NOT_OF_DALI,
        },
        keeps_axes=("plain", "torch", "jax"),
        needs_samples=True,
    ),
    "jax": Adapter(
        package="tensorcom_jax",
        to_numpy=np.asarray,
        loaders={"plain": lambda dataset: dataset},
        quiet={"JAX_PLATFORMS": "cpu"},
        be_rank=_rank_of_jax,
    ),
}


def error_of(batches: Any) -> Exception:
    """Return the error that iterating raises, without the frames that it holds.

    A loader that a frame holds is ended by the garbage collector, which takes torch 5 s a worker.
    """
    try:
        list(batches)
    except Exception as exc:
        return exc.with_traceback(None)
    raise AssertionError("no error")


def send_labels(name: str, dataset: Any, batches: int, connection: Any) -> None:
    """Send the labels of some batches: what a spawned process does."""
    adapter = ADAPTERS[name]
    taken = itertools.islice(dataset, batches)
    connection.send([adapter.to_numpy(labels).tolist() for _, labels in taken])
    adapter.close(dataset)
