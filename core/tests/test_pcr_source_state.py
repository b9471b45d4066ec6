"""PcrSource: epochs, and states that lose and repeat nothing under any readers."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pcr_set_helpers import noise_jpeg, write_set

from tensorcom.pcr import PcrReader, PcrSource, merge_states

SIZES = [6, 1, 9, 7]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    with PcrReader(write_set(tmp_path_factory.mktemp("set"), SIZES)) as opened:
        yield opened


@pytest.fixture(scope="module")
def source(reader):
    """Return a function that makes sources of batches of 3 JPEG files, not decoded."""

    def make(**arguments) -> PcrSource:
        return PcrSource(reader, **{"batch_size": 3, "decode": False, **arguments})

    return make


def stored(state: dict) -> dict:
    text = json.dumps(state)
    assert len(text) < 1000
    return json.loads(text)


def take(batches, count: int) -> list[list[int]]:
    return [labels.tolist() for _, labels in islice(batches, count)]


def rest(batches) -> list[list[int]]:
    return take(batches, 1000)


class Loader:
    """What torch's loader does: one source for each worker, batches from each in turn.

    Attributes:
        states: the state of each worker with the batch that it handed out last.
    """

    def __init__(self, source, workers: int, *, states=None, state=None, last=None, **arguments):
        self.workers = [source(worker=(w, workers), **arguments) for w in range(workers)]
        for number, worker in enumerate(self.workers):
            if states is not None:
                worker.load_state_dict(stored(states[number]))
            elif state is not None:
                worker.load_state_dict(stored(state))
        self.last = workers - 1 if last is None else last
        self.start()

    def start(self) -> None:
        self.iterators = [iter(worker) for worker in self.workers]
        self.states = [worker.state_dict() for worker in self.workers]

    def __iter__(self):
        ended = set()
        while len(ended) < len(self.workers):
            number = (self.last + 1) % len(self.workers)
            self.last = number
            if number in ended:
                continue
            batch = next(self.iterators[number], None)
            self.states[number] = self.workers[number].state_dict()
            if batch is None:
                ended.add(number)
            else:
                yield batch


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_source_goes_on_where_it_was(source, shuffle) -> None:
    whole = rest(source(shuffle=shuffle))
    second = source(shuffle=shuffle)
    second.set_epoch(1)
    after = rest(second)
    for batches in range(len(whole) + 1):
        one = source(shuffle=shuffle)
        found = take(iterator := iter(one), batches)
        state = stored(one.state_dict())
        iterator.close()
        again = source(shuffle=shuffle)
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert again.epoch == 0
        found += rest(again)
        assert found == whole
        assert again.epoch == 1
        assert rest(again) == after


def test_what_was_decoded_ahead_is_not_consumed(source) -> None:
    one = source(decode=True, size=8, prefetch=8)
    batches = iter(one)
    next(batches)
    state = stored(one.state_dict())
    next(batches)
    again = source()
    again.load_state_dict(state)
    assert len(rest(again)) == 7
    one.close()


def test_a_state_is_that_of_the_start_or_of_the_next_epoch(source) -> None:
    one = source()
    start = one.state_dict()
    batches = iter(one)
    assert one.state_dict() == start
    take(batches, 8)
    last = one.state_dict()
    assert (last["epoch"], last["done"][0][-1]) == (0, 8)
    assert next(batches, None) is None
    assert one.state_dict() == {**start, "epoch": 1}
    again = source()
    again.load_state_dict(last)
    assert rest(again) == [], "the epoch was handed out, but its end was not met"
    assert sorted(sum(rest(again), [])) == list(range(TOTAL))


def test_states_hold_no_integers_of_numpy(source) -> None:
    one = source(batch_size=np.int64(3), seed=np.int8(1), buffer=np.int32(4))
    other = source(batch_size=3, seed=1, buffer=4)
    for each in (one, other):
        each.set_epoch(np.int64(2) if each is one else 2)
        next(iter(each))
    assert stored(one.state_dict()) == other.state_dict()
    assert stored(one.state_after(np.int64(1))) == other.state_after(1)


def test_the_next_iteration_is_the_next_epoch(source) -> None:
    reference = source()
    epochs = [rest(reference) for _ in range(4)]
    one = source()
    assert take(one, 2) == epochs[0][:2]
    assert one.epoch == 0
    iter(one)
    assert one.epoch == 1
    iter(one)  # nothing was taken from the one before
    assert one.epoch == 1
    assert rest(one) == epochs[1]
    assert (one.epoch, rest(one), one.epoch) == (2, epochs[2], 3)
    one.set_epoch(1)
    assert rest(one) == epochs[1]
    assert take(one, 1) == epochs[2][:1]
    one.set_epoch(2)
    assert rest(one) == epochs[2], "from its start"
    with pytest.raises(ValueError, match="epoch=-1"):
        one.set_epoch(-1)


def test_a_loaded_state_is_kept_when_its_epoch_is_set(source) -> None:
    """Training loops set the epoch before each one, also before the one that goes on."""
    whole = rest(source())
    one = source()
    take(one, 3)
    state = one.state_dict()
    for epoch, expected in [(0, whole[3:]), (0, whole[3:])]:
        again = source()
        again.load_state_dict(state)
        again.set_epoch(epoch)
        assert rest(again) == expected
    again.load_state_dict(state)
    again.set_epoch(5)
    assert (again.epoch, len(rest(again))) == (5, 8)


def test_only_the_newest_iteration_counts(source) -> None:
    one = source()
    old, new = iter(one), None
    next(old)
    new = iter(one)
    take(new, 2)
    take(old, 3)
    assert (one.epoch, one.state_dict()["done"][0][-1]) == (1, 2)
    state = one.state_dict()
    one.load_state_dict(state)
    rest(new)
    assert one.state_dict() == state


steps = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 3, 5]), st.integers(0, 4)
)


@settings(max_examples=60)
@given(steps=st.lists(steps, max_size=3), shuffle=st.booleans())
def test_each_sample_once_whatever_the_readers_are(source, steps, shuffle) -> None:
    """The main process counts the batches of its loader; each rank is handed as many."""
    shared = {"end": "uneven", "shuffle": shuffle}
    state, found = source(**shared).state_dict(), []
    for ranks, workers, batch_size, batches in steps:
        states = []
        for rank in range(ranks):
            arguments = {**shared, "shard": (rank, ranks), "batch_size": batch_size}
            main = source(**arguments)
            main.load_state_dict(stored(state))
            loader = Loader(source, workers, state=state, **arguments)
            found += sum(take(loader, batches), [])
            states.append(stored(main.state_after(batches, workers=workers)))
        assert all(one == states[0] for one in states), "a state is global"
        state = states[0]
    last = source(**shared, batch_size=4)
    last.load_state_dict(state)
    assert Counter(found) + Counter(sum(rest(last), [])) == Counter(range(TOTAL))
    assert last.epoch == 1
    assert sorted(sum(rest(last), [])) == list(range(TOTAL))


@pytest.mark.parametrize("workers", [2, 3])
def test_a_loader_goes_on_with_the_worker_whose_turn_it_is(source, workers) -> None:
    whole = rest(Loader(source, workers))
    for first in range(len(whole) + 1):
        main = source()
        state = main.state_after(first, workers=workers)
        main.load_state_dict(stored(state))
        loader = Loader(source, workers, state=state)
        assert take(loader, 2) == whole[first : first + 2]
        main.load_state_dict(stored(main.state_after(2, workers=workers)))
        again = Loader(source, workers, state=main.state_dict())
        assert rest(again) == whole[first + 2 :]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("start", [0, 1])
def test_workers_go_on_from_states_of_their_own(source, workers, start) -> None:
    """As StatefulDataLoader does: each worker's state goes back to the worker of its number."""
    begin = source().state_after(start, workers=workers)
    whole = rest(Loader(source, workers, state=begin))
    for batches in range(len(whole) + 1):
        loader = Loader(source, workers, state=begin)
        found = take(loader, batches)
        again = Loader(source, workers, states=loader.states, last=loader.last)
        assert found + rest(again) == whole
        again.start()  # the same workers, next epoch
        assert [worker.epoch for worker in again.workers] == [1] * workers
        assert sorted(sum(rest(again), [])) == list(range(TOTAL))


def test_a_worker_that_has_ended_stays_ended_when_it_is_loaded(source) -> None:
    loader = Loader(source, 3)
    assert len(take(loader, 8)) == 8
    list(loader.iterators[2])
    ended = loader.workers[2].state_dict()
    again = source(worker=(2, 3))
    again.load_state_dict(stored(ended))
    assert rest(again) == []
    assert sorted(ended.items()) == sorted(again.state_dict().items())
    assert len(rest(again)) == len(again)
    assert again.epoch == 1


def test_a_workers_state_is_refused_elsewhere(source) -> None:
    worker = source(worker=(0, 2))
    take(worker, 1)
    state = worker.state_dict()
    text = r"state is that of worker 0 of 2.*state_after\(batches\).*merge_states"
    for arguments in (
        {},
        {"worker": (1, 2)},
        {"worker": (0, 3)},
        {"worker": (0, 2), "batch_size": 4},
        {"worker": (0, 2), "shard": (0, 2)},
    ):
        other = source(**arguments)
        with pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
        assert (other.epoch, len(rest(other))) == (0, len(other)), "it is as it was"


def test_states_of_all_workers_make_one_for_any(source) -> None:
    loader = Loader(source, 3)
    found = take(loader, 4)
    merged = merge_states([stored(state) for state in loader.states])
    assert merged == source().state_after(4, workers=3)
    other = source(batch_size=5)
    other.load_state_dict(merged)
    assert sorted(sum(found + rest(other), [])) == list(range(TOTAL))


def test_ranks_of_other_counts_take_the_state_of_any(source) -> None:
    found = []
    for rank in range(3):
        one = source(shard=(rank, 3), end="uneven")
        found += sum(take(one, 1), [])
        state = one.state_dict()
    for rank in range(2):
        one = source(shard=(rank, 2), end="uneven")
        one.load_state_dict(state)
        found += sum(rest(one), [])
    assert sorted(found) == list(range(TOTAL))


def test_the_seed_of_a_state_is_taken(reader, tmp_path) -> None:
    with PcrReader(write_set(tmp_path, SIZES, noise_jpeg)) as noise:

        def make(seed: int) -> PcrSource:
            return PcrSource(noise, batch_size=3, size=16, seed=seed, threads=1)

        reference = list(make(7))
        one = make(7)
        batches = iter(one)
        take(batches, 3)
        state = one.state_dict()
        batches.close()
        again = make(0)
        again.load_state_dict(state)
        for (images, labels), (expected, expected_labels) in zip(again, reference[3:], strict=True):
            np.testing.assert_array_equal(labels, expected_labels)
            np.testing.assert_array_equal(images, expected)


@pytest.mark.parametrize("taken", [0, 1, 3, 8])
@pytest.mark.parametrize("arguments", [{}, {"batch_size": 2}, {"shard": (1, 2), "end": "pad"}])
def test_batches_left_are_those_that_come(source, taken, arguments) -> None:
    one = source()
    assert one.batches_left == len(one) == 8
    take(one, taken)
    assert one.batches_left == len(one)  # what was left early is not gone on with
    again = source(**arguments)
    again.load_state_dict(one.state_dict())
    left = again.batches_left
    assert len(rest(again)) == left
    assert again.batches_left == len(again)


def test_a_state_of_another_set_or_order_is_refused(source, tmp_path) -> None:
    state = source().state_dict()
    with pytest.raises(ValueError, match="shuffle=True, but it is False"):
        source(shuffle=False).load_state_dict(state)
    with (
        PcrReader(write_set(tmp_path, [2])) as small,
        pytest.raises(ValueError, match="samples=23, but it is 2 here"),
    ):
        PcrSource(small, batch_size=1).load_state_dict(state)
    with pytest.raises(ValueError, match="batches=-1"):
        source().state_after(-1)


def test_without_a_shuffle_the_buffer_is_no_matter(source) -> None:
    one = source(shuffle=False, buffer=5)
    take(one, 2)
    again = source(shuffle=False, buffer=9)
    again.load_state_dict(one.state_dict())
    assert sum(rest(again), []) == list(range(6, TOTAL))


def test_a_state_of_other_records_is_refused(tmp_path) -> None:
    one = PcrSource(write_set(tmp_path / "one", [4, 4, 4]), batch_size=2, decode=False)
    other = PcrSource(write_set(tmp_path / "other", [6, 6]), batch_size=2, decode=False)
    with pytest.raises(ValueError, match="layout="):
        other.load_state_dict(one.state_after(1))
