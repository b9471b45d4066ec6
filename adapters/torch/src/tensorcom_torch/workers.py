"""Who reads: the rank of a process in its job, and the loader workers that belong together.

Owns what torch says of both; knows nothing of streams or records.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import distributed
from torch.utils.data import get_worker_info

from tensorcom.arguments import check_share, environment_share

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    """Return (rank, ranks) of this process, None if nothing says.

    Raises:
        ValueError: RANK and WORLD_SIZE are no such numbers.
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return environment_share()


class Shard:
    """The part of a job that a data set takes, in each process that it gets to.

    Args:
        given: (rank, ranks), None to ask torch and the environment.

    Raises:
        ValueError: it is not a number from 0 and the count over it.
    """

    def __init__(self, given: tuple[int, int] | None) -> None:
        self._given = None if given is None else check_share("shard", given)
        self._inherited: tuple[int, int] | None = None  # that of who pickled it, and was not given
        self._pid = 0

    def current(self) -> tuple[int, int]:
        """Return (rank, ranks) of this process.

        Raises:
            ValueError: RANK and WORLD_SIZE are no such numbers.
        """
        if self._given is not None:
            return self._given
        # A worker that was spawned got it from its rank, and is itself none of torch.distributed.
        if self._inherited and self._pid == os.getpid() and get_worker_info() is not None:
            return self._inherited
        return current_shard() or self._inherited or (0, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {"_given": self._given, "_inherited": self.current()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pid = os.getpid()


def failing(error: Exception) -> Iterator[Any]:
    """Return an iterator that raises an error.

    A worker that lasts dies of what `iter` raises; what `next` raises gets to the parent.
    """
    raise error
    yield


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
