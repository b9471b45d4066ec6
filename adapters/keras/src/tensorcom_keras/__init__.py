"""tensorcom streams and records for TensorFlow and Keras."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorcom.errors import MissingDependencyError
from tensorcom_keras._version import __version__

if TYPE_CHECKING:
    from tensorcom_keras.fidelity import FidelitySchedule
    from tensorcom_keras.records import PcrPyDataset, from_records
    from tensorcom_keras.stream import StreamPyDataset, from_stream
    from tensorcom_keras.tf_feed import as_tf_dataset
    from tensorcom_keras.tf_records import pcr_dataset
    from tensorcom_keras.tf_stream import close_stream, stream_dataset

__all__ = [
    "FidelitySchedule",
    "PcrPyDataset",
    "StreamPyDataset",
    "__version__",
    "as_tf_dataset",
    "close_stream",
    "from_records",
    "from_stream",
    "pcr_dataset",
    "stream_dataset",
]

# Loaded at first use: users of Keras on torch or jax need no TensorFlow.
_HOMES = {
    "FidelitySchedule": "fidelity",
    "PcrPyDataset": "records",
    "StreamPyDataset": "stream",
    "as_tf_dataset": "tf_feed",
    "close_stream": "tf_stream",
    "from_records": "records",
    "from_stream": "stream",
    "pcr_dataset": "tf_records",
    "stream_dataset": "tf_stream",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    try:
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as exc:
        if exc.name != "tensorflow":
            raise
        command = "pip install 'tensorcom-keras[tensorflow]'"
        raise MissingDependencyError.for_package("tensorflow", name, command) from exc
