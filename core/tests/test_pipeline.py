"""Unbatch, shuffle, rebatch."""

from __future__ import annotations

import numpy as np
import pytest

from tensorcom import Stream
from tensorcom.buffers import BufferPool


def batches(*sizes: int) -> Stream:
    """Return batches of the given sizes; samples are numbered through."""

    def make():
        start = 0
        for size in sizes:
            labels = np.arange(start, start + size, dtype="i4")
            yield [np.repeat(labels[:, None], 3, axis=1).astype("f4"), labels]
            start += size

    return Stream(make)


def labels(stream) -> list[list[int]]:
    return [item[1].tolist() for item in stream]


def assert_paired(stream) -> None:
    for item in stream:
        images, marks = np.asarray(item[0]), np.asarray(item[1])
        assert np.array_equal(images, np.repeat(marks[..., None], 3, axis=-1))


def test_unbatched_yields_each_sample() -> None:
    samples = list(batches(2, 0, 3).unbatched())
    assert [int(label) for _, label in samples] == [0, 1, 2, 3, 4]
    assert samples[0][0].shape == (3,)
    assert_paired(samples)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (1,) * 12, (12,), (5, 7), (3, 0, 9), (0, 12)])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 20])
@pytest.mark.parametrize("partial", [True, False])
def test_rebatch_keeps_every_sample_in_order(sizes, n, partial) -> None:
    expected = [list(range(start, min(start + n, 12))) for start in range(0, 12, n)]
    if not partial:
        expected = [batch for batch in expected if len(batch) == n]
    assert labels(batches(*sizes).rebatch(n, partial=partial)) == expected
    assert_paired(batches(*sizes).rebatch(n, partial=partial))
    assert labels(batches(*sizes).unbatched().rebatch(n, partial=partial)) == expected
    assert_paired(batches(*sizes).unbatched().rebatch(n, partial=partial))


def test_steps_can_be_iterated_again() -> None:
    stream = batches(4, 4).unbatched().shuffled(3, seed=1).rebatch(4)
    assert labels(stream) == labels(stream)


@pytest.mark.parametrize("buffer", [1, 2, 10, 100])
def test_shuffled_yields_each_once(buffer) -> None:
    order = [int(label) for _, label in batches(20, 20).unbatched().shuffled(buffer, seed=3)]
    assert sorted(order) == list(range(40))
    assert (order == list(range(40))) == (buffer == 1)
    assert_paired(batches(20, 20).unbatched().shuffled(buffer, seed=3))


def test_shuffled_depends_on_its_seed() -> None:
    def order(seed):
        return [int(label) for _, label in batches(40).unbatched().shuffled(20, seed=seed)]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(None) != order(None)


def test_shuffled_batches_stay_whole() -> None:
    found = labels(batches(2, 2, 2, 2).shuffled(4, seed=1))
    assert sorted(found) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_what_waits_in_the_buffer_keeps_no_batch_alive() -> None:
    pool = BufferPool()

    def source():
        for mark in range(10):
            memory = np.frombuffer(pool.take(1 << 20), "u1").reshape(16, -1)
            memory[:] = mark
            yield [memory]

    held = iter(Stream(source).unbatched().shuffled(32, seed=0))
    samples = [next(held)[0] for _ in range(40)]
    assert len(pool._leases) <= 3
    assert all((sample == sample[0]).all() for sample in samples)


def test_wrong_use_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="these are samples"):
        batches(2).unbatched().unbatched()
    with pytest.raises(ValueError, match="buffer=0"):
        batches(2).shuffled(0)
    with pytest.raises(ValueError, match="n=0"):
        batches(2).rebatch(0)
    with pytest.raises(ValueError, match="argument 2 is"):
        list(Stream(lambda: [[np.zeros(2), np.zeros(3)]]).unbatched())


def test_a_stream_from_any_iterable() -> None:
    stream = Stream(lambda: [(np.arange(3),)], batched=True)
    assert [int(x) for (x,) in stream.unbatched()] == [0, 1, 2]
