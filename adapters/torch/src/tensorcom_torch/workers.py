"""Who reads: the rank of a process in its job, and the loader workers that belong together.

Owns what torch says of both; knows nothing of streams or records.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import NamedTuple

from torch import distributed
from torch.utils.data import get_worker_info


class LoaderRole(NamedTuple):
    """What a process is to a loader.

    Attributes:
        owner: number of the process that has the loader.
        key: 64 bits that the workers of one loader iterator have in common, and no others have.
        worker: its number among the workers, and their count.
        is_worker: whether it was started by the loader.
    """

    owner: int
    key: int
    worker: tuple[int, int]
    is_worker: bool


def current_shard() -> tuple[int, int] | None:
    """Return (rank, ranks) of this process, None if nothing says."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return None


def current_role() -> LoaderRole:
    """Return what this process is to the loader that it works for, or has."""
    info = get_worker_info()
    if info is None:
        return LoaderRole(os.getpid(), os.getpid(), (0, 1), is_worker=False)
    parent = multiprocessing.parent_process()
    owner = None if parent is None else parent.pid
    key = loader_key(info.seed - info.id, info.id)
    return LoaderRole(owner or os.getpid(), key, (info.id, info.num_workers), is_worker=True)


def loader_key(base_seed: int, worker: int) -> int:
    """Return a number that the workers of one loader iterator have in common, and no others have.

    The seed alone is not enough: a user may seed torch alike before each epoch or on each rank. So
    the process that started the worker counts, and which of its children the first worker was.
    """
    parent = multiprocessing.parent_process()
    children = multiprocessing.current_process()._identity
    first = children[-1] - worker if children else 0
    return hash((base_seed, 0 if parent is None else parent.pid, first))
