"""What TensorFlow's generator data sets do to a process, and how that is made good.

Owns the iterations that TensorFlow's threads call, and how these threads leave Python before it
ends. Knows nothing of what the batches are.
"""

from __future__ import annotations

import atexit
import math
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_EXIT_S = 3.0  # longest that the end of the process waits
_IDLE_S = 1.0  # an iteration that was not called for so long has nobody who waits for it
_POLL_S = 0.02

_exiting: list[bool] = []  # whether the process ends
_iterations: weakref.WeakSet[Flagged] = weakref.WeakSet()


class Flagged:
    """Iterates over batches, each behind a flag that says whether there is one.

    Attributes:
        busy_since: when it last returned, infinite while it is called; None before, and after a
            batch, since who got one need not call again at once.
    """

    def __init__(self, batches: Iterator[Sequence[Any] | None], nothing: Sequence[Any]) -> None:
        self._batches, self._nothing = batches, nothing
        self.busy_since: float | None = None
        _iterations.add(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.busy_since = math.inf
        try:
            if _exiting:
                raise StopIteration
            batch = next(self._batches)
        finally:
            self.busy_since = time.monotonic()
        if batch is None:
            return self._nothing
        self.busy_since = None
        return (np.True_, *batch)


def _end_all() -> None:
    """Let TensorFlow's threads leave Python before it ends: they would hang in it, and so would it.

    A thread that reads ahead calls again at once. It is told that there is no more, and its
    iteration is gone as soon as it knows.
    """
    _exiting.append(True)
    now = deadline = time.monotonic()
    deadline += _EXIT_S
    while now < deadline and any(_is_busy(iteration, now) for iteration in list(_iterations)):
        time.sleep(_POLL_S)
        now = time.monotonic()
    if _iterations:
        time.sleep(_POLL_S)


def _is_busy(iteration: Flagged, now: float) -> bool:
    since = iteration.busy_since
    return since is not None and now - since < _IDLE_S


atexit.register(_end_all)
