"""When an iteration is over."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading

import pytest

from tensorcom import progress as module
from tensorcom.errors import TransportError
from tensorcom.meta import Meta
from tensorcom.progress import Ends, IterationOver, Progress, ProgressBoard


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
