"""The order of an epoch: each sample once, equal ranks, few records read twice, always the same."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, zip_longest

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tensorcom.pcr.order import ENDS, Dealt, Split, deal_epoch

sizes = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)


def starts_of(sizes) -> np.ndarray:
    return np.cumsum([0, *sizes])


def split(ranks=1, workers=1, batch_size=4, end="wrap", drop_last=False, buffer=0) -> Split:
    return Split(ranks, workers, batch_size, end, drop_last, buffer)


splits = st.builds(
    Split,
    ranks=st.integers(1, 5),
    workers=st.integers(1, 4),
    batch_size=st.integers(1, 7),
    end=st.sampled_from(ENDS),
    drop_last=st.booleans(),
    buffer=st.sampled_from([0, 1, 3, 100]),
)


def reader_batches(dealt: Dealt, rank: int, worker: int) -> list[list[int]]:
    order, size = dealt.order(rank, worker).tolist(), dealt.split.batch_size
    return [order[start : start + size] for start in range(0, len(order), size)]


def rank_batches(dealt: Dealt, rank: int) -> list[list[int]]:
    """Return the batches of a rank as a loader hands them out: from each worker in turn."""
    workers = [reader_batches(dealt, rank, w) for w in range(dealt.split.workers)]
    rounds = zip_longest(*workers)
    return [batch for batches in rounds for batch in batches if batch is not None]


def samples(dealt: Dealt, rank: int) -> list[int]:
    return sum(rank_batches(dealt, rank), [])


@given(sizes=sizes, split=splits, seed=st.integers(0, 2**70), epoch=st.integers(0, 2**40))
def test_readers_together_have_what_the_end_says(sizes, split, seed, epoch) -> None:
    total = sum(sizes)
    whole = Split(1, 1, 1, "uneven", drop_last=False, buffer=0)
    places = deal_epoch(starts_of(sizes), whole, seed=seed, epoch=epoch).order(0, 0).tolist()
    assert sorted(places) == list(range(total))
    dealt = deal_epoch(starts_of(sizes), split, seed=seed, epoch=epoch)
    parts = [samples(dealt, rank) for rank in range(split.ranks)]
    found = Counter(sum(parts, []))
    share = -(-total // split.ranks)
    if split.end == "drop":
        share = total // split.ranks
    kept = share // split.batch_size * split.batch_size if split.drop_last else share
    if split.end == "uneven":
        low, high = total // split.ranks, share
        if not split.drop_last:
            assert found == Counter(range(total))
            assert {len(part) for part in parts} <= {low, high}
        assert max(found.values(), default=1) == 1
        return
    assert {len(part) for part in parts} == {kept}
    if split.drop_last:
        return
    extra = share * split.ranks - total
    if split.end == "drop":
        assert found == Counter(places[: share * split.ranks])
    elif split.end == "wrap":
        assert found == Counter(places) + Counter(places[i % total] for i in range(extra))
    else:
        assert found == Counter(places) + Counter({places[-1]: extra})


@given(sizes=sizes, split=splits)
def test_batches_in_turn_are_full_but_the_last(sizes, split) -> None:
    dealt = deal_epoch(starts_of(sizes), split)
    for rank in range(split.ranks):
        batches = rank_batches(dealt, rank)
        assert len(batches) == dealt.batches(rank)
        assert all(len(batch) == split.batch_size for batch in batches[:-1])
        assert not batches or len(batches[-1]) == split.batch_size or not split.drop_last
        counts = [len(reader_batches(dealt, rank, w)) for w in range(split.workers)]
        assert counts == [split.turns(len(batches), w) for w in range(split.workers)]


def test_the_last_batch_may_be_of_any_worker() -> None:
    for batches in range(1, 9):
        dealt = deal_epoch(np.array([0, 4 * batches - 1]), split(workers=4), shuffle=False)
        assert [len(b) for b in rank_batches(dealt, 0)] == [4] * (batches - 1) + [3]


def test_without_shuffle_all_is_as_it_lies() -> None:
    dealt = deal_epoch(starts_of([5, 5, 3]), split(ranks=2, workers=2), shuffle=False)
    assert [reader_batches(dealt, 0, w) for w in (0, 1)] == [[[0, 1, 2, 3]], [[4, 5, 6]]]
    assert [reader_batches(dealt, 1, w) for w in (0, 1)] == [[[7, 8, 9, 10]], [[11, 12, 0]]]


def rests(starts, steps, last, **arguments) -> tuple[list[int], list[int]]:
    """Hand out batches under each split in turn; return these samples and then what is left."""
    found, done = [], []
    for split, batches in steps:
        dealt = deal_epoch(starts, split, done=done, **arguments)
        for rank in range(split.ranks):
            found += sum(rank_batches(dealt, rank)[:batches], [])
        done.append((split, batches))
    dealt = deal_epoch(starts, last, done=done, **arguments)
    return found, [sample for rank in range(last.ranks) for sample in samples(dealt, rank)]


uneven = st.builds(
    Split,
    ranks=st.integers(1, 5),
    workers=st.integers(1, 4),
    batch_size=st.integers(1, 7),
    end=st.just("uneven"),
    drop_last=st.booleans(),
    buffer=st.sampled_from([0, 3, 100]),
)


@given(
    sizes=sizes,
    steps=st.lists(st.tuples(uneven, st.integers(0, 6)), max_size=4),
    ranks=st.integers(1, 5),
    workers=st.integers(1, 4),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_the_rest_is_each_other_sample_once(sizes, steps, ranks, workers, shuffle, epoch) -> None:
    last = Split(ranks, workers, 3, "uneven", drop_last=False, buffer=5)
    found, left = rests(starts_of(sizes), steps, last, shuffle=shuffle, epoch=epoch)
    assert Counter(found) + Counter(left) == Counter(range(sum(sizes)))


@given(sizes=sizes, steps=st.lists(st.tuples(splits, st.integers(0, 6)), max_size=4))
@example(sizes=[1], steps=[(split(ranks=5, end="pad"), 0), (split(ranks=3), 1)])
def test_repeats_are_no_part_of_the_rest(sizes, steps) -> None:
    """What a split repeats or leaves out is decided anew each time."""
    last = Split(1, 1, 3, "uneven", drop_last=False, buffer=0)
    found, left = rests(starts_of(sizes), steps, last)
    assert max(Counter(left).values(), default=1) == 1
    assert set(found) | set(left) == set(range(sum(sizes)))
    if not any(split.end in ("wrap", "pad") for split, _ in steps):
        assert not set(found) & set(left)


@pytest.mark.parametrize("end", ["wrap", "pad"])
@pytest.mark.parametrize("batches", range(4))
def test_repeats_that_were_shuffled_are_found(end, batches) -> None:
    last = Split(1, 1, 3, "uneven", drop_last=False, buffer=0)
    for seed in range(50):
        step = split(3, batch_size=2, end=end, buffer=100), batches
        found, left = rests(np.array([0, 7]), [step], last, seed=seed)
        assert max(Counter(left).values(), default=1) == 1
        assert set(found) | set(left) == set(range(7))
        assert len(left) >= 7 - len(found)


@given(sizes=sizes, steps=st.lists(st.tuples(splits, st.integers(0, 6)), max_size=3), last=splits)
def test_the_rest_is_dealt_out_as_an_epoch_is(sizes, steps, last) -> None:
    starts = starts_of(sizes)
    whole = Split(1, 1, 1, "uneven", drop_last=False, buffer=0)
    total = len(deal_epoch(starts, whole, done=steps).order(0, 0))
    assume(total)
    dealt = deal_epoch(starts, last, done=steps)
    counts = [len(samples(dealt, rank)) for rank in range(last.ranks)]
    if last.end != "uneven":
        assert len(set(counts)) == 1
    assert [dealt.batches(rank) for rank in range(last.ranks)] == [
        last.batches(total, rank) for rank in range(last.ranks)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 7])
@pytest.mark.parametrize("workers", [1, 4])
def test_only_records_at_the_cuts_are_read_twice(ranks, workers) -> None:
    starts = starts_of([64] * 100 + [17])
    dealt = deal_epoch(starts, split(ranks, workers, batch_size=10, buffer=50))
    orders = [dealt.order(r, w) for r in range(ranks) for w in range(workers)]
    reads = [len(set(np.searchsorted(starts, order, side="right").tolist())) for order in orders]
    # Each cut is in one record, and the last part wraps into one more.
    assert sum(reads) <= 101 + ranks * workers - 1 + (ranks > 1)
    done = [(dealt.split, 3)]
    later = split(3, 2, batch_size=16, buffer=50)
    dealt = deal_epoch(starts, later, done=done)
    orders = [dealt.order(r, w) for r in range(3) for w in range(2)]
    reads = [len(set(np.searchsorted(starts, order, side="right").tolist())) for order in orders]
    assert sum(reads) <= 101 + (ranks * workers + 1) + 6 + 1


def test_nothing_moves_as_much_as_the_buffer() -> None:
    plain = deal_epoch(starts_of([50] * 40), split()).order(0, 0)
    for buffer in (2, 30, 500):
        order = deal_epoch(starts_of([50] * 40), split(buffer=buffer)).order(0, 0)
        place = np.empty(2000, np.int64)
        place[plain] = np.arange(2000)
        moved = np.abs(place[order] - np.arange(2000))
        assert buffer / 2 <= moved.max() < buffer
        assert moved.mean() > buffer / 10


def test_records_are_mixed_by_the_buffer() -> None:
    order = deal_epoch(starts_of([50] * 40), split(buffer=200)).order(0, 0)
    batches = (order // 50).reshape(-1, 50)
    assert min(len(set(batch)) for batch in batches.tolist()) >= 2
    assert np.mean([len(set(batch)) for batch in batches.tolist()]) > 3.5


def test_epochs_seeds_and_readers_have_orders_of_their_own() -> None:
    starts = starts_of([20] * 20)
    orders = [
        deal_epoch(starts, split(buffer=50), seed=seed, epoch=epoch).order(0, 0).tobytes()
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1), (2**64, 0), (0, 2**40)]
    ]
    assert len(set(orders)) == len(orders)
    records = {
        tuple(deal_epoch(starts, split(), epoch=epoch).order(0, 0)[::20] // 20)
        for epoch in range(4)
    }
    assert len(records) == 4
    one_record = deal_epoch(np.array([0, 1000]), split(workers=2, buffer=500, batch_size=500))
    plain = deal_epoch(np.array([0, 1000]), split(workers=2, batch_size=500))
    moves = []
    for worker in (0, 1):
        place = {sample: i for i, sample in enumerate(plain.order(0, worker).tolist())}
        moves.append([place[sample] for sample in one_record.order(0, worker).tolist()])
    assert moves[0] != moves[1]


def test_the_order_is_the_same_for_ever() -> None:
    """A change here would hand out samples twice to jobs that go on from an earlier state."""
    starts = starts_of([3, 5, 0, 4])
    dealt = deal_epoch(starts, split(ranks=2, workers=2, batch_size=2, buffer=4), seed=7, epoch=2)
    assert [dealt.order(r, w).tolist() for r in (0, 1) for w in (0, 1)] == GOLDEN
    done = [(dealt.split, 2)]
    later = deal_epoch(starts, split(buffer=3), seed=7, epoch=2, done=done)
    assert later.order(0, 0).tolist() == GOLDEN_REST


GOLDEN = [[3, 4, 6, 5], [9, 7], [8, 11, 10, 2], [0, 1]]
GOLDEN_REST = [6, 5, 10, 2]


def test_numbers_beyond_32_bits() -> None:
    """Thirty thousand million samples; only the reader's own part is made."""
    starts = np.arange(3_001) * 10_000_000
    many = split(ranks=5000, workers=1000, batch_size=100)
    dealt = deal_epoch(starts, many, shuffle=False)
    order = dealt.order(4999, 999)
    assert order[-1] == 30_000_000_000 - 1
    assert np.array_equal(order, np.arange(order[0], order[-1] + 1))
    ends = [dealt.split.span(30_000_000_000, 4999, w) for w in range(1000)]
    assert all(a[1] == b[0] for a, b in pairwise(ends))


@given(sizes=sizes, split=splits, batches=st.integers(0, 10))
def test_what_was_taken_is_whole_batches(sizes, split, batches) -> None:
    total = sum(sizes)
    for rank in range(split.ranks):
        taken = [split.taken(total, rank, w, batches) for w in range(split.workers)]
        start, stop = split.rank_span(total, rank)
        whole = stop - start
        if split.drop_last:
            whole -= whole % split.batch_size
        assert sum(taken) == min(batches * split.batch_size, whole)
