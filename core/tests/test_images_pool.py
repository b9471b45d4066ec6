"""Work in threads: in order, within bounds, and nothing left behind."""

from __future__ import annotations

import gc
import itertools
import threading

import pytest

from tensorcom.images import WorkerThreads, keep_freed_memory, map_ordered, usable_cores

WAIT_S = 60.0


def threads_left() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tensorcom-decode")]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ahead", [1, 2, 50])
def test_results_come_in_the_order_of_the_items(threads, ahead) -> None:
    assert list(map_ordered(str, range(20), threads=threads, ahead=ahead)) == [
        str(i) for i in range(20)
    ]
    assert list(map_ordered(str, [], threads=threads, ahead=ahead)) == []
    assert not threads_left()


def test_no_more_items_are_drawn_than_may_wait() -> None:
    drawn = []
    items = (drawn.append(i) or i for i in itertools.count())
    results = map_ordered(str, items, threads=2, ahead=5)
    for taken in range(1, 10):
        next(results)
        assert len(drawn) == taken + 4
    results.close()


def test_calls_overlap() -> None:
    barrier = threading.Barrier(3)
    waits = map_ordered(lambda _: barrier.wait(WAIT_S), range(3), threads=3, ahead=3)
    assert sorted(waits) == [0, 1, 2]


def test_results_are_handed_out_while_an_item_is_not_ready() -> None:
    ready = True
    drawn = []

    def items():
        for i in range(6):
            drawn.append(i)
            yield i

    results = map_ordered(int, items(), threads=1, ahead=4, is_ready=lambda: ready)
    assert next(results) == 0
    ready = False
    assert [next(results) for _ in range(3)] == [1, 2, 3]
    assert drawn == [0, 1, 2, 3]
    assert list(results) == [4, 5]  # drawn with a wait, when nothing else is left
    ready = True


def test_an_error_comes_in_its_place() -> None:
    results = map_ordered(lambda i: 1 // (i - 3), range(9), threads=2, ahead=9)
    assert [next(results) for _ in range(3)] == [-1, -1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert not threads_left()


def test_an_error_of_the_items_ends_the_threads() -> None:
    def items():
        yield from range(3)
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        list(map_ordered(int, items(), threads=2, ahead=9))
    assert not threads_left()


def test_closing_drops_what_was_not_begun() -> None:
    gate, begun = threading.Event(), []

    def work(item: int) -> int:
        begun.append(item)
        assert item == 0 or gate.wait(WAIT_S)
        return item

    results = map_ordered(work, range(100), threads=1, ahead=50)
    assert next(results) == 0
    timer = threading.Timer(0.05, gate.set)
    timer.start()
    results.close()
    timer.join()
    assert len(begun) <= 2
    assert not threads_left()


def test_dropping_the_iterator_ends_the_threads() -> None:
    results = map_ordered(int, range(100), threads=2, ahead=5)
    next(results)
    assert threads_left()
    del results
    gc.collect()
    assert not threads_left()


def test_a_thread_may_drop_the_iterator() -> None:
    """The garbage collector runs in any thread, also in one that it makes end."""
    gate, dropped = threading.Event(), threading.Event()

    class Ring:
        """A ring of references, which only the garbage collector drops."""

    def collect(item: int) -> int:
        if item == 1:
            assert gate.wait(WAIT_S)
            gc.collect()
            dropped.set()
        return item

    ring = Ring()
    ring.ring, ring.results = ring, map_ordered(collect, range(9), threads=1, ahead=2)
    assert next(ring.results) == 0
    gc.disable()
    try:
        del ring
        gate.set()
        assert dropped.wait(WAIT_S)
    finally:
        gc.enable()


def test_a_call_that_hangs_is_not_waited_for_too_long() -> None:
    gate, begun = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        begun.set()
        assert gate.wait(WAIT_S)

    with WorkerThreads(1, "hangs", close_wait_s=0.01) as pool:
        future = pool.submit(hang, 0)
        waiting = pool.submit(hang, 1)
        assert begun.wait(WAIT_S)
    assert waiting.cancelled()
    assert not future.done()
    gate.set()
    assert future.result(WAIT_S) is None


def test_calls_that_hang_are_waited_for_together(monkeypatch) -> None:
    now = [100.0]

    class Hanging:
        def join(self, timeout: float) -> None:
            waited.append(timeout)
            now[0] += timeout

    waited: list[float] = []
    monkeypatch.setattr("tensorcom.images.pool.time.monotonic", lambda: now[0])
    with WorkerThreads(3, "hangs", close_wait_s=2.0) as pool:
        pool._threads.extend(Hanging() for _ in range(3))
    assert waited == [2.0, 0.0, 0.0]


FORK = """
import os, signal
from tensorcom.images import WorkerThreads

with WorkerThreads(1, "test") as pool:
    assert pool.submit(abs, -1).result() == 1
    # What another thread may be doing at the moment of the fork.
    with pool._pool._shutdown_lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            pool.__exit__(None, None, None)
            os._exit(0)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_leaves_the_threads_alone(start) -> None:
    out, _ = start(FORK).communicate(timeout=WAIT_S)
    assert out.split() == ["0"]


def test_the_allocator_is_told_once(monkeypatch) -> None:
    sizes = []
    monkeypatch.setattr("tensorcom.images.pool._tuned", False)
    monkeypatch.setattr("tensorcom.images.pool.bytearray", sizes.append, raising=False)
    keep_freed_memory()
    keep_freed_memory()
    assert sizes == [30 << 20]


def test_there_are_cores() -> None:
    assert usable_cores() >= 1
