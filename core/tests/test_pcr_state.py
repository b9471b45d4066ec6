"""States of a reading job: small, checked, exact under the same and under other readers."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcom.pcr.order import Split, deal_epoch
from tensorcom.pcr.state import Progress, WorkerCount, merge_states

STARTS = np.cumsum([0, 20, 1, 20, 30])
SPLIT = Split(2, 3, 4, "uneven", drop_last=False, buffer=7)
STATE = {"samples": 71, "layout": 9, "shuffle": True}


def stored(progress: Progress, seed: int = 5) -> dict:
    return json.loads(json.dumps(progress.to_state(seed=seed, **STATE)))


def load(state: object) -> Progress:
    return Progress.from_state(state, **STATE)[0]


def test_a_state_comes_back_from_json() -> None:
    for progress in (
        Progress(),
        Progress(3, ((SPLIT, 2), (Split(1, 1, 1, "wrap", drop_last=True, buffer=0), 9))),
        Progress(3, ((SPLIT, 2),), WorkerCount(1, 2, 4)),
    ):
        assert Progress.from_state(stored(progress), **STATE) == (progress, 5)
    assert len(json.dumps(stored(progress))) < 300


def hand_out(progress: Progress, split: Split, batches: int) -> tuple[list[int], Progress]:
    """Take batches from all ranks, each from its workers in turn, as a loader does."""
    found = []
    starts = [progress.start(split, worker) for worker in range(split.workers)]
    dealt = deal_epoch(STARTS, split, epoch=progress.epoch, done=starts[0].earlier)
    for rank in range(split.ranks):
        queues = []
        for start in starts:
            order = dealt.order(rank, start.turn).tolist()
            cut = range(start.batches * split.batch_size, len(order), split.batch_size)
            queues.append([order[place : place + split.batch_size] for place in cut])
        for number in range(batches):
            queue = queues[number % split.workers]
            if queue:
                found += queue.pop(0)
    done = (*starts[0].earlier, (split, starts[0].before + batches))
    return found, Progress(progress.epoch, done)


steps = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(0, 4))


@given(steps=st.lists(steps, max_size=5))
def test_each_sample_once_whatever_the_readers_are(steps) -> None:
    progress, found = Progress(1), []
    for ranks, workers, batch_size, batches in steps:
        split = Split(ranks, workers, batch_size, "uneven", drop_last=False, buffer=7)
        more, progress = hand_out(load(stored(progress)), split, batches)
        found += more
    more, _ = hand_out(load(stored(progress)), SPLIT, 100)
    assert Counter(found + more) == Counter(range(71))


@given(stops=st.lists(st.integers(0, 4), max_size=5), workers=st.integers(1, 4))
def test_the_same_readers_go_on_as_if_nothing_had_happened(stops, workers) -> None:
    split = Split(1, workers, 4, "wrap", drop_last=False, buffer=7)
    whole, _ = hand_out(Progress(), split, 100)
    progress, found = Progress(), []
    for batches in stops:
        more, progress = hand_out(load(stored(progress)), split, batches)
        found += more
    more, _ = hand_out(load(stored(progress)), split, 100)
    assert found + more == whole
    assert len(progress.done) <= 1


def test_a_workers_state_is_for_the_same_worker() -> None:
    done = ((Split(1, 1, 5, "wrap", drop_last=False, buffer=0), 1), (SPLIT, 4))
    progress = Progress(0, done, WorkerCount(0, 1, 5))
    start = progress.start(SPLIT, 0)
    assert (start.turn, start.batches, start.before) == (1, 5, 4)
    assert start.earlier == done[:1]
    for split, worker in [(SPLIT, 1), (Split(2, 2, 4, "uneven", drop_last=False, buffer=7), 0)]:
        with pytest.raises(ValueError, match=r"worker 0 of 3.*state_after\(batches\)"):
            progress.start(split, worker)


@given(before=st.integers(0, 9), more=st.integers(0, 9), order=st.permutations(range(3)))
def test_states_of_all_workers_make_a_global_one(before, more, order) -> None:
    progress = Progress(2, ((SPLIT, before),))
    batches = before + more
    states = []
    for worker in order:
        turn = progress.start(SPLIT, worker).turn
        count = WorkerCount(worker, turn, SPLIT.turns(batches, turn))
        states.append(stored(Progress(2, ((SPLIT, before),), count)))
    assert merge_states(states) == stored(Progress(2, ((SPLIT, batches),)))


def test_only_all_states_of_one_moment_merge() -> None:
    def state(worker, batches, epoch=0, done=((SPLIT, 0),)) -> dict:
        return stored(Progress(epoch, done, WorkerCount(worker, worker, batches)))

    with pytest.raises(ValueError, match="2 states are not those of 3 workers"):
        merge_states([state(0, 1), state(1, 1)])
    with pytest.raises(ValueError, match="3 states are not those of 3 workers"):
        merge_states([state(0, 1), state(1, 1), state(1, 1)])
    with pytest.raises(ValueError, match="not in turn"):
        merge_states([state(0, 1), state(1, 1), state(2, 3)])
    with pytest.raises(ValueError, match="2 epochs or orders"):
        merge_states([state(0, 1), state(1, 1), state(2, 1, epoch=1)])
    with pytest.raises(ValueError, match="a state is global"):
        merge_states([stored(Progress())])
    with pytest.raises(ValueError, match="0 epochs"):
        merge_states([])


GOOD = [2, 3, 4, "uneven", False, 7, 1]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 2}, "version 2, expected 1"),
        ({"samples": 70}, "samples=70, but it is 71 here"),
        ({"layout": 8}, "layout=8, but it is 9 here"),
        ({"shuffle": False}, "shuffle=False, but it is True"),
        ({"epoch": -1}, "epoch=-1, expected an integer of at least 0"),
        ({"epoch": True}, "epoch=True"),
        ({"seed": "0"}, "seed='0'"),
        ({"done": None}, "done=None"),
        ({"done": [GOOD] * 1001}, "at most 1000"),
        ({"done": [GOOD[:6]]}, "expected .*'batches'"),
        *(
            ({"done": [[*GOOD[:i], bad, *GOOD[i + 1 :]]]}, "expected .*'ranks'")
            for i, bad in enumerate([0, 2**20, 0, "both", 0, -1, 1.5])
        ),
        ({"worker": [0, 0, 1]}, "of 0, expected"),
        ({"done": [GOOD], "worker": [3, 0, 1]}, "of 3, expected"),
        ({"done": [GOOD], "worker": [0, 3, 1]}, "of 3, expected"),
        ({"done": [GOOD], "worker": [0, 0, -1]}, "of 3, expected"),
        ({"done": [GOOD], "worker": None}, "worker=None"),
    ],
)
def test_a_bad_state_is_refused(changes, text) -> None:
    with pytest.raises(ValueError, match=text):
        load({**stored(Progress()), **changes})


@pytest.mark.parametrize("state", [None, [], {}, {"epoch": 3}])
def test_something_else_is_no_state(state) -> None:
    with pytest.raises(ValueError, match="expected what state_dict returned"):
        load(state)
