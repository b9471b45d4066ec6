"""The adapters under contract: one entry each.

An adapter turns a stream, or a set of records, into its framework's own object; the suite sees it
through this table only.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
    """

    package: str
    to_numpy: Callable[[Any], NDArray[Any]]
    loaders: dict[str, Callable[[Any], Iterable[Any]]]
    workers: dict[str, int] = field(default_factory=dict)
    close: Callable[[Any], None] = lambda dataset: dataset.close()

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
    if value.dtype == torch.bfloat16:
        import ml_dtypes

        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


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
