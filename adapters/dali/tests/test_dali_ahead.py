"""The thread that makes items ahead: its end, whatever ends it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import pytest

from tensorcom_dali.ahead import Ahead

WAIT_S = 10


def counting(stopping):
    number = 0
    while True:
        yield number
        number += 1


def ended(before: set[threading.Thread]) -> bool:
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
    return set(threading.enumerate()) <= before


def test_items_in_order_and_then_the_end_again_and_again() -> None:
    before = set(threading.enumerate())
    ahead = Ahead(lambda stopping: iter_of(range(5)), depth=2, name="test")
    assert [ahead.pop() for _ in range(5)] == list(range(5))
    for _ in range(3):
        with pytest.raises(StopIteration):
            ahead.pop()
    assert ahead.is_over
    assert ended(before)


def iter_of(items):
    yield from items


def test_no_more_is_made_than_waits() -> None:
    made = []

    def noting(stopping):
        for number in range(100):
            made.append(number)
            yield number

    ahead = Ahead(noting, depth=3, name="test")
    assert ahead.pop() == 0
    deadline = time.monotonic() + WAIT_S
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert made == [0, 1, 2, 3]
    ahead.close()


def test_an_error_comes_once_after_the_items_before_it() -> None:
    def failing(stopping):
        yield 1
        raise OSError("no disk")

    ahead = Ahead(failing, depth=3, name="test")
    assert ahead.peek() == 1
    assert ahead.pop() == 1
    with pytest.raises(OSError, match="no disk"):
        ahead.pop()
    with pytest.raises(StopIteration):
        ahead.pop()


def test_an_error_may_come_before_there_is_a_generator() -> None:
    def failing(stopping):
        raise ValueError("at once")

    ahead = Ahead(failing, depth=1, name="test")
    with pytest.raises(ValueError, match="at once"):
        ahead.peek()
    assert ahead.is_over


def test_peek_leaves_the_item_and_tells_the_end() -> None:
    ahead = Ahead(lambda stopping: iter_of([7]), depth=1, name="test")
    assert ahead.peek() == ahead.peek() == ahead.pop() == 7
    assert ahead.peek() is None
    with pytest.raises(StopIteration):
        ahead.pop()


def test_closing_ends_thread_and_generator() -> None:
    closed = threading.Event()

    def noting(stopping):
        try:
            yield from counting(stopping)
        finally:
            closed.set()

    before = set(threading.enumerate())
    ahead = Ahead(noting, depth=1, name="test")
    assert ahead.pop() == 0
    ahead.close()
    assert closed.is_set()
    assert set(threading.enumerate()) <= before
    with pytest.raises(StopIteration):
        ahead.pop()


def test_closing_is_seen_by_a_generator_that_waits() -> None:
    def waiting(stopping):
        while not stopping():
            time.sleep(0.01)
        return
        yield

    before = set(threading.enumerate())
    Ahead(waiting, depth=1, name="test").close()
    assert set(threading.enumerate()) <= before


def test_dropping_it_ends_the_thread() -> None:
    before = set(threading.enumerate())
    ahead = Ahead(counting, depth=1, name="test")
    ahead.pop()
    del ahead
    gc.collect()
    assert ended(before)


def test_a_program_ends_although_a_thread_has_items_left() -> None:
    script = (
        "from tensorcom_dali.ahead import Ahead\n"
        "def numbers(stopping):\n"
        "    while True: yield 1\n"
        "kept = Ahead(numbers, depth=1, name='test')\n"
        "print(kept.pop())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
