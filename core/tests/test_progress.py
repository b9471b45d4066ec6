"""When an iteration is over."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading

import pytest

from tensorcom import progress as module
from tensorcom.errors import TransportError
from tensorcom.meta import Meta
from tensorcom.progress import Ends, EpochBoard, IterationOver, Progress, ProgressBoard


def end(source: str, sources: int | None = None) -> Meta:
    return Meta(source=source, end="stream", sources=sources)


def test_a_length_is_taken_once() -> None:
    progress = Progress(3)
    assert [progress.claim() for _ in range(5)] == [True, True, True, False, False]
    assert progress.complete
    with pytest.raises(IterationOver):
        progress.check()


def test_without_a_length_only_ends_count() -> None:
    progress = Progress(None)
    assert all(progress.claim() for _ in range(1000))
    progress.check()
    progress.note_end(end("a"))
    assert progress.complete


def test_length_0_is_over_at_once() -> None:
    assert Progress(0).complete


@pytest.mark.parametrize(
    ("servers", "ends", "over"),
    [
        (1, [end("a")], True),
        (2, [end("a")], False),
        (2, [end("a"), end("a"), end("a")], False),
        (2, [end("a"), end("b")], True),
        (1, [end("a", 3), end("b", 3)], False),
        (1, [end("a", 3), end("b", 3), end("c", 3)], True),
        (2, [end("a", 2), end("b", 2), end("c", 2)], False),
        (1, [Meta(end="stream")], True),
    ],
)
def test_the_end_is_when_every_source_has_ended(servers, ends, over) -> None:
    progress = Progress(None, servers=servers)
    for meta in ends:
        progress.note_end(meta)
    assert progress.complete == over


def test_ends_outlive_an_iteration() -> None:
    ends = Ends(2)
    first = Progress(1, ends=ends)
    first.note_end(end("a"))
    assert not first.ended
    second = ProgressBoard().join(1, 1, 0, None, ends=ends)
    second.check()
    second.note_end(end("b"))
    assert second.complete
    assert ends.complete


def test_workers_of_one_iteration_share_its_count() -> None:
    board = ProgressBoard()
    first = board.join(11, 0, 0, 5, servers=1)
    second = board.join(11, 0, 1, 5, servers=1)
    taken = [first.claim(), second.claim(), second.claim(), first.claim(), second.claim()]
    assert taken == [True] * 5
    assert not first.claim()
    assert first.complete
    assert second.complete


def test_another_iteration_or_loader_counts_anew() -> None:
    board = ProgressBoard()
    assert board.join(11, 0, 0, 1, servers=1).claim()
    assert board.join(11, 1, 0, 1, servers=1).claim()
    assert board.join(12, 0, 0, 1, servers=1).claim()
    assert not board.join(11, 0, 1, 1, servers=1).claim()


def test_a_worker_that_joins_again_starts_the_iteration_anew() -> None:
    board = ProgressBoard()
    assert board.join(11, 0, 0, 1, servers=1).claim()
    assert board.join(11, 0, 0, 1, servers=1).claim()


def test_old_iterations_make_room() -> None:
    board = ProgressBoard()
    for iteration in range(100):
        progress = board.join(11, iteration, 0, 2, servers=1)
        assert [progress.claim() for _ in range(3)] == [True, True, False]


def take(progress, count) -> None:
    while progress.claim():
        with count.get_lock():
            count.value += 1


@pytest.mark.parametrize("processes", [1, 3])
def test_forked_workers_take_exactly_the_length(processes) -> None:
    context = multiprocessing.get_context("fork")
    count = context.Value("i", 0)
    board = ProgressBoard()

    def work(index: int) -> None:
        take(board.join(5, 0, index, 3000, servers=1), count)

    workers = [context.Process(target=work, args=(i,)) for i in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert count.value == 3000
    for worker in workers:
        worker.close()


def test_a_plain_pickle_gets_a_board_of_its_own() -> None:
    board = ProgressBoard()
    copy = pickle.loads(pickle.dumps(board))
    assert board.join(1, 0, 0, 1, servers=1).claim()
    assert copy.join(1, 0, 1, 1, servers=1).claim()


def test_a_lock_that_died_with_a_worker_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0.05)
    board = ProgressBoard()
    progress = board.join(1, 0, 0, 1, servers=1)
    child = os.fork()
    if child == 0:
        board._lock.acquire()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(TransportError, match="a worker died while it held it"):
        progress.claim()


def test_threads_take_exactly_the_length() -> None:
    board = ProgressBoard()
    taken: list[int] = []

    def work(index: int) -> None:
        progress = board.join(1, 0, index, 500, servers=1)
        while progress.claim():
            taken.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 500


# -- the number of an epoch ----------------------------------------------------------------------

ME, OTHER = 501, 502  # processes that have loaders


def test_workers_of_one_iteration_agree_and_the_next_takes_the_next_number() -> None:
    board = EpochBoard()
    assert [board.join(ME, 11, 0) for _ in range(3)] == [0, 0, 0]
    assert board.upcoming(ME) == 1
    assert [board.join(ME, 11, 1) for _ in range(2)] == [1, 1]
    assert board.join(ME, 12, 0) == 2, "new workers, whose first iteration it is"
    assert board.join(ME, 11, 1) == 1, "a late one joins its own iteration"
    assert board.join(ME, 12, 1) == 3


def test_an_epoch_that_is_set_is_the_next_one() -> None:
    board = EpochBoard()
    board.join(ME, 11, 0)
    board.set_upcoming(ME, 7)
    assert board.upcoming(ME) == 7
    assert [board.join(ME, 11, 1), board.join(ME, 11, 1), board.join(ME, 11, 2)] == [7, 7, 8]
    assert [board.join(ME, 13, 0, epoch=3) for _ in range(2)] == [3, 3]
    assert board.join(ME, 13, 0) == 3
    assert board.join(ME, 13, 1) == 4


def test_owners_count_for_themselves_from_where_the_maker_was() -> None:
    board = EpochBoard()
    maker = os.getpid()
    board.set_upcoming(maker, 5)
    assert [board.join(ME, 11, 0), board.join(ME, 11, 1)] == [5, 6]
    assert board.join(OTHER, 12, 0) == 5
    assert [board.upcoming(owner) for owner in (maker, ME, OTHER)] == [5, 7, 6]
    board.set_upcoming(OTHER, 20)
    assert [board.join(OTHER, 12, 1), board.join(ME, 11, 2)] == [20, 7]


def test_the_latest_iteration_is_known_until_an_epoch_is_set() -> None:
    board = EpochBoard()
    assert board.latest(ME) == 0
    board.join(ME, 11, 0)
    board.join(OTHER, 12, 0)
    assert board.latest(ME) == 11
    board.join(ME, 13, 0)
    board.join(ME, 13, 0)
    assert board.latest(ME) == 13
    board.set_upcoming(ME, 0)
    assert [board.latest(ME), board.latest(OTHER)] == [0, 12]


def test_a_state_is_for_the_iteration_that_asks_first() -> None:
    board = EpochBoard()
    board.set_upcoming(ME, 4, serial=99)
    assert board.waiting(ME) == 99
    assert not board.has_begun(ME, 99)
    assert [board.begins_with(ME, 99, 11, 0) for _ in range(2)] == [True, True]
    assert board.waiting(ME) == 0
    assert board.has_begun(ME, 99)
    assert not board.begins_with(ME, 99, 11, 1)
    assert not board.begins_with(ME, 99, 12, 0), "new workers with a copy of the state"
    assert board.begins_with(ME, 99, 11, 0), "a late worker of the first iteration"
    board.set_upcoming(ME, 4, serial=100)
    assert board.begins_with(ME, 100, 12, 0)


def test_each_owner_begins_with_a_state_that_all_were_given() -> None:
    board = EpochBoard()
    board.set_upcoming(os.getpid(), 4, serial=99)
    for owner, key in ((ME, 11), (OTHER, 12)):
        assert board.waiting(owner) == 0
        assert not board.has_begun(owner, 99)
        assert board.begins_with(owner, 99, key, 0)
        assert not board.begins_with(owner, 99, key, 1)


def test_a_state_that_waits_is_over_once_an_iteration_begins_with_another() -> None:
    board = EpochBoard()
    board.set_upcoming(ME, 4, serial=99)
    board.join(ME, 11, 0, epoch=2)
    assert board.waiting(ME) == 0
    assert board.has_begun(ME, 99)
    assert not board.begins_with(ME, 99, 12, 0)


def test_old_iterations_and_owners_make_room_and_the_maker_stays() -> None:
    board = EpochBoard()
    board.set_upcoming(os.getpid(), 1000)
    for iteration in range(200):
        assert [board.join(ME, 11, iteration) for _ in range(2)] == [1000 + iteration] * 2
    for owner in range(1, 200):
        board.join(ME, 11, 200 + owner)
        assert [board.join(ME + owner, owner, 0), board.join(ME + owner, owner, 1)] == [1000, 1001]
    assert board.upcoming(ME) == 1000 + 399, "one that is used stays"
    assert board.upcoming(os.getpid()) == 1000


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_a_copy_is_a_board_of_its_own_that_goes_on_with_the_same_number(duplicate) -> None:
    board = EpochBoard()
    board.join(os.getpid(), 11, 0, epoch=6)
    board.set_upcoming(OTHER, 0, serial=99)
    copied = duplicate(board)
    assert copied.upcoming(os.getpid()) == 7
    assert copied.latest(os.getpid()) == copied.waiting(OTHER) == 0
    copied.set_upcoming(os.getpid(), 3)
    assert board.upcoming(os.getpid()) == 7


def join_twice(board: EpochBoard, owner: int) -> None:
    board.join(owner, 11, 0)
    board.join(owner, 11, 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_are_given_a_board_share_it(method) -> None:
    board = EpochBoard()
    board.set_upcoming(os.getpid(), 3)
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=join_twice, args=(board, os.getpid())) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
        worker.close()
    assert board.upcoming(os.getpid()) == 5
    assert board.join(os.getpid(), 11, 1) == 4


def test_a_lock_of_an_epoch_board_that_died_with_a_worker_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0.05)
    board = EpochBoard()
    board._lock.acquire()
    with pytest.raises(TransportError, match="a worker died while it held it"):
        board.join(ME, 11, 0)
