"""Which epoch an iteration is, or which state it goes on from, in all processes of a loader.

Owns the agreement of loader workers, and what becomes of a state that was loaded; knows nothing of
records beyond the source that it sets.
"""

from __future__ import annotations

import os
import secrets
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorcom import PcrError
from tensorcom.progress import EpochBoard
from tensorcom_torch.workers import LoaderRole, current_role

if TYPE_CHECKING:
    from tensorcom.pcr import PcrSource

_SERIAL_BITS = 60


class _Loaded(NamedTuple):
    """A state that an iteration begins with.

    Attributes:
        state: what was loaded.
        serial: tells it from others, also in copies that workers have; 0 where a worker loaded it,
            for itself alone.
    """

    state: dict[str, Any]
    serial: int


class Epochs:
    """The epochs of a data set, each begun by all workers of a loader or by one process.

    Workers share it, through fork or while they are spawned. Other copies go on by themselves, from
    the epoch or the state that would have come next.
    """

    def __init__(self) -> None:
        self._board = EpochBoard()
        self._pid = os.getpid()
        self._iterations = 0
        self._loaded: _Loaded | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_iterations": 0}
        if get_spawning_popen() is None and self.waiting_state(current_role()) is None:
            state["_loaded"] = None  # the board of a copy does not know that it has begun
        return state

    # -- what was set --------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be an epoch, unless it goes on from a state of that epoch."""
        role = current_role()
        state = self.waiting_state(role)
        if state is None or state["epoch"] != epoch:
            self._set(role, epoch, None)

    def load(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from a state, here and in workers that start later.

        In a worker, it is for that worker alone.
        """
        role = current_role()
        if role.is_worker:
            self._loaded = _Loaded(state, 0)
        else:
            loaded = _Loaded(state, secrets.randbits(_SERIAL_BITS) + 1)
            self._set(role, state["epoch"], loaded)

    def _set(self, role: LoaderRole, epoch: int, loaded: _Loaded | None) -> None:
        self._loaded = loaded
        self._iterations += 1  # the one before is over, whether or not it yielded anything
        serial = 0 if loaded is None else loaded.serial
        self._board.set_upcoming(role.owner, epoch, serial=serial)

    def waiting_state(self, role: LoaderRole) -> dict[str, Any] | None:
        """Return the state that waits for the next iteration, None for none."""
        loaded = self._loaded
        if loaded is None or self._board.has_begun(role.owner, loaded.serial):
            return None
        return loaded.state

    def loaded_state(self, epoch: int) -> dict[str, Any] | None:
        """Return the state of an epoch that was loaded last, whether or not it waits."""
        loaded = self._loaded
        return None if loaded is None or loaded.state["epoch"] != epoch else loaded.state

    def upcoming(self, role: LoaderRole) -> int:
        """Return the number of the next epoch."""
        return self._board.upcoming(role.owner)

    def latest(self, role: LoaderRole) -> int:
        """Return the key of who iterated last; 0 if an epoch or a state was set since."""
        return self._board.latest(role.owner)

    # -- iterations ----------------------------------------------------------------------------

    def begin(self, role: LoaderRole, source: PcrSource) -> int:
        """Set a source to the epoch or state of a new iteration, and return its number.

        Raises:
            PcrError: a state was loaded that this worker cannot see.
        """
        if self._pid != os.getpid():
            self._pid, self._iterations = os.getpid(), 0
        iteration = self._iterations
        # Without workers, an iteration that yields nothing is none: loaders that are given their
        # state make one before the one that they use.
        self._iterations += role.is_worker
        state = self._take_state(role, iteration)
        if state is None:
            source.set_epoch(self._board.join(role.owner, role.key, iteration))
        else:
            source.load_state_dict(state)
            self._board.join(role.owner, role.key, iteration, epoch=source.epoch)
        return iteration

    def note_moved(self, iteration: int) -> None:
        """Take note that an iteration yielded something, or came to its end."""
        self._iterations = max(self._iterations, iteration + 1)

    def _take_state(self, role: LoaderRole, iteration: int) -> dict[str, Any] | None:
        """Return the state that an iteration begins with, None if it begins an epoch."""
        loaded, board = self._loaded, self._board
        if role.is_worker:
            self._loaded = None
            if loaded is not None and not loaded.serial:
                return loaded.state
            waiting = board.waiting(role.owner)
            if waiting and (loaded is None or loaded.serial != waiting):
                raise PcrError(
                    "a state was loaded while loader workers run, which they cannot see: make a "
                    "new loader after load_state_dict, or use persistent_workers=False"
                )
        if loaded is None:
            return None
        begins = board.begins_with(role.owner, loaded.serial, role.key, iteration)
        return loaded.state if begins else None
