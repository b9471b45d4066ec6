"""How far an epoch was read: the state that is saved with a training run.

Owns the form of the state, its checks, and what it means under other ranks and workers; knows
nothing of records or threads. A state holds counts, from which `order` computes the rest.

Two forms. The global one counts the batches that each rank handed out; it may be loaded under any
ranks, workers and batch size. That of one of several workers counts the batches of that worker
alone, and may be loaded only by the same worker of as many: loaders that save every worker's state
do so. `merge_states` makes one global state of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorcom.pcr.order import ENDS, Split

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1
_MAX_SPLITS = 1000
_MAX_READERS = 1 << 20
_MAX_COUNT = 1 << 62
_BRIEF = 60
_NAMES = ("ranks", "workers", "batch_size", "end", "drop_last", "buffer", "batches")


class WorkerCount(NamedTuple):
    """What one of several workers handed out.

    Attributes:
        worker: its number.
        turn: its number in the order of turns; another one where an epoch went on with the worker
            whose turn it was.
        batches: handed out by whoever had this turn, since the epoch was dealt out.
    """

    worker: int
    turn: int
    batches: int


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader starts.

    Attributes:
        earlier: splits that the epoch was read under before, and the batches of each rank.
        before: batches that each rank already handed out under the reader's own split.
        turn: the reader's number in the order of turns.
        batches: how many of its batches were handed out.
    """

    earlier: tuple[tuple[Split, int], ...]
    before: int
    turn: int
    batches: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What was handed out of an epoch.

    Attributes:
        epoch: its number.
        done: the splits that it was read under, and the batches that each rank handed out.
        worker: set if the last of these counts is exact for one worker only.
    """

    epoch: int = 0
    done: tuple[tuple[Split, int], ...] = ()
    worker: WorkerCount | None = None

    def start(self, split: Split, worker: int) -> Start:
        """Return where `worker` of a rank goes on, when the ranks read under `split`.

        The split that the epoch was last read under goes on as if nothing had happened, with the
        worker whose turn it is; under another one, what is left is dealt out anew.

        Raises:
            ValueError: this is the state of another worker, or of one of another number.
        """
        *earlier, last = self.done or ((split, 0),)
        if self.worker is not None:
            if last[0] != split or self.worker.worker != worker:
                raise ValueError(
                    f"state is that of worker {self.worker.worker} of {last[0].workers} under "
                    f"{last[0]}; it cannot be loaded by worker {worker} under {split}: save "
                    "state_after(batches), or join all workers' states by merge_states"
                )
            return Start(tuple(earlier), last[1], *self.worker[1:])
        if last[0] != split:
            return Start(self.done, 0, worker, 0)
        turn = (worker + last[1]) % split.workers
        return Start(tuple(earlier), last[1], turn, split.turns(last[1], turn))

    def to_state(self, *, seed: int, samples: int, layout: int, shuffle: bool) -> dict[str, Any]:
        """Return the state: a few numbers that JSON can hold.

        Args:
            seed: of the order.
            samples: in the set.
            layout: a number that says how the samples are spread over records.
            shuffle: whether the order is not that of the set.
        """
        state: dict[str, Any] = {"version": VERSION, "seed": seed, "epoch": self.epoch}
        state |= {"samples": samples, "layout": layout, "shuffle": shuffle}
        state["done"] = [
            [*(getattr(split, name) for name in _NAMES[:-1]), batches]
            for split, batches in self.done
        ]
        if self.worker is not None:
            state["worker"] = list(self.worker)
        return state

    @classmethod
    def from_state(
        cls, state: object, *, samples: int, layout: int, shuffle: bool
    ) -> tuple[Progress, int]:
        """Check a state.

        Args:
            state: what `to_state` returned, or JSON made of it.
            samples: in the set that it is loaded for.
            layout: a number that says how its samples are spread over records.
            shuffle: whether the order is not that of the set.

        Returns:
            What was handed out, and the seed.

        Raises:
            ValueError: it is no state, or one of another set or order.
        """
        if not isinstance(state, dict) or "version" not in state:
            raise ValueError(f"state is {_brief(state)}, expected what state_dict returned")
        if state["version"] != VERSION:
            raise ValueError(f"state has version {_brief(state['version'])}, expected {VERSION}")
        for name, expected in (("samples", samples), ("layout", layout), ("shuffle", shuffle)):
            if state.get(name) != expected:
                raise ValueError(
                    f"state has {name}={_brief(state.get(name))}, but it is {expected} here: "
                    "it was saved with another set or order"
                )
        seed = _count(state, "seed")
        done = state.get("done")
        if not isinstance(done, list) or len(done) > _MAX_SPLITS:
            raise ValueError(f"state has done={_brief(done)}, expected a list of at most 1000")
        splits = tuple(_parse_split(entry) for entry in done)
        worker = _parse_worker(state["worker"], splits) if "worker" in state else None
        return cls(_count(state, "epoch"), splits, worker), seed


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make one state, for any ranks and workers, of those of all workers of a rank.

    Args:
        states: what `state_dict` returned in each worker, in any order, when the batches so far
            were taken from the workers in turn.

    Raises:
        ValueError: one is missing, or they are not of one moment.
    """
    kinds = set()
    counts: dict[int, int] = {}
    for state in states:
        kind: dict[str, Any] = {n: state.get(n, 0) for n in ("samples", "layout", "shuffle")}
        progress, seed = Progress.from_state(state, **kind)
        if progress.worker is None:
            raise ValueError("a state is global, expected those of the workers of a rank")
        counts[progress.worker.turn] = progress.worker.batches
        kinds.add((replace(progress, worker=None), seed, tuple(kind.items())))
    if len(kinds) != 1:
        raise ValueError(f"states are of {len(kinds)} epochs or orders, expected those of one")
    progress, seed, kind_items = kinds.pop()
    (*earlier, (split, _)), batches = progress.done, sum(counts.values())
    if len(states) != split.workers or len(counts) != split.workers:
        raise ValueError(f"{len(states)} states are not those of {split.workers} workers")
    if any(count != split.turns(batches, turn) for turn, count in counts.items()):
        raise ValueError(f"workers handed out {counts} batches, which is not in turn")
    merged = replace(progress, done=(*earlier, (split, batches)))
    return merged.to_state(seed=seed, **dict(kind_items))


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}..."


def _is_count(value: object, least: int = 0, most: int = _MAX_COUNT) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _count(state: dict[str, Any], name: str) -> int:
    value = state.get(name)
    if not _is_count(value):
        raise ValueError(f"state has {name}={_brief(value)}, expected an integer of at least 0")
    return int(value)  # type: ignore[arg-type]


def _parse_split(entry: object) -> tuple[Split, int]:
    if isinstance(entry, (list, tuple)) and len(entry) == len(_NAMES):
        ranks, workers, batch_size, end, drop_last, buffer, batches = entry
        counts = all(_is_count(value, 1, _MAX_READERS) for value in (ranks, workers))
        if (
            counts
            and ranks * workers <= _MAX_READERS
            and _is_count(batch_size, 1)
            and end in ENDS
            and isinstance(drop_last, bool)
            and _is_count(buffer)
            and _is_count(batches)
        ):
            return Split(ranks, workers, batch_size, end, drop_last, buffer), batches
    raise ValueError(f"state has {_brief(entry)} in done, expected {list(_NAMES)}")


def _parse_worker(entry: object, done: tuple[tuple[Split, int], ...]) -> WorkerCount:
    workers = done[-1][0].workers if done else 0
    if isinstance(entry, (list, tuple)) and len(entry) == len(WorkerCount._fields):
        worker, turn, batches = entry
        if (
            _is_count(worker, 0, workers - 1)
            and _is_count(turn, 0, workers - 1)
            and _is_count(batches)
        ):
            return WorkerCount(worker, turn, batches)
    raise ValueError(
        f"state has worker={_brief(entry)} of {workers}, expected {list(WorkerCount._fields)}"
    )
