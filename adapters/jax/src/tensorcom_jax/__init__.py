"""tensorcom streams and records as arrays on JAX devices."""

from __future__ import annotations

from typing import Any

from tensorcom_jax._version import __version__
from tensorcom_jax.data_source import PcrDataSource
from tensorcom_jax.functions import from_records, from_stream, pcr_iterator, stream_iterator
from tensorcom_jax.records import DeviceRecords
from tensorcom_jax.stream import DeviceStream

__all__ = [
    "DeviceRecords",
    "DeviceStream",
    "PcrDataSource",
    "__version__",
    "from_records",
    "from_stream",
    "pcr_iterator",
    "stream_iterator",
]

_OF_GRAIN = ("PcrIterDataset", "StreamIterDataset")


def __getattr__(name: str) -> Any:
    """Import what needs Grain when it is asked for."""
    if name in _OF_GRAIN:
        from tensorcom_jax import grain_datasets

        return getattr(grain_datasets, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
