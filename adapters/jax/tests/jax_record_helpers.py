"""What the tests of DeviceRecords share: sets that are opened, read ahead, and read by core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from jax_helpers import wait_for

from tensorcom.pcr import PcrSource
from tensorcom_jax import DeviceRecords

BATCHES = 6  # of 4 samples


def opened(root: Path, **arguments: Any) -> Any:
    return closing(DeviceRecords(root, **{"batch_size": 4, "size": 8, "threads": 2, **arguments}))


@contextmanager
def read_ahead(records: DeviceRecords, batches: int) -> Iterator[Any]:
    """Iterate, and wait until the thread has read all that it may read ahead."""
    iterator = iter(records)
    next(iterator)
    running: Any = records._running._shelf
    assert wait_for(lambda: len(running._items) == batches or running._is_finished)
    yield iterator
    iterator.close()


def core(root: Path, epoch: int = 0, **arguments: Any) -> list[list[int]]:
    """Return the samples of core's batches."""
    with PcrSource(root, **{"batch_size": 4, "size": 8, **arguments}) as source:
        source.set_epoch(epoch)
        return [labels.tolist() for _, labels in source]
