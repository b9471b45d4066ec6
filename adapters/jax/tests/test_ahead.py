"""Work ahead of use: how far, in which order, and how it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
from jax_helpers import own_threads, run_script, wait_for

from tensorcom import ClosedError
from tensorcom_jax.ahead import Ahead


def counted(made: list[int], *, stop: int = 100, error: Exception | None = None) -> Any:
    """Return a generator function that notes what it made, and that it was closed."""

    def make(_: Callable[[], bool]) -> Generator[int, None, None]:
        try:
            for number in range(stop):
                made.append(number)
                yield number
            if error is not None:
                raise error
        finally:
            made.append(-1)

    return make


def taken(ahead: Ahead[int]) -> list[int]:
    found = []
    while item := ahead.take():
        found += item
    return found


@pytest.mark.parametrize("depth", [1, 3])
def test_items_are_made_as_far_ahead_as_allowed_and_no_further(depth: int) -> None:
    made: list[int] = []
    ahead = Ahead(counted(made), depth=depth)
    for number in range(5):
        assert wait_for(lambda: len(made) == number + depth)  # noqa: B023 - used at once
        # What is one too far would be made at any moment: the thread waits, which can be seen.
        assert wait_for(lambda: ahead._changed._waiters)
        assert len(made) == number + depth
        assert ahead.take() == [number]
    assert wait_for(lambda: len(made) == 5 + depth)
    assert wait_for(lambda: ahead._changed._waiters)
    assert ahead.close() == list(range(5, 5 + depth))
    assert made[-1] == -1, "the generator is closed"
    assert own_threads() == []


def test_items_come_in_order_and_end() -> None:
    ahead = Ahead(counted([], stop=50), depth=2, first=[-3, -2])
    assert taken(ahead) == [-3, -2, *range(50)]
    assert ahead.take() == []
    assert ahead.is_over
    ahead.close()


def test_an_error_comes_after_the_items_before_it_and_once() -> None:
    made: list[int] = []
    ahead = Ahead(counted(made, stop=3, error=KeyError("three")), depth=2)
    assert [ahead.take() for _ in range(3)] == [[0], [1], [2]]
    assert not ahead.is_over
    with pytest.raises(KeyError, match="three"):
        ahead.take()
    assert ahead.is_over
    assert ahead.error is None
    assert ahead.take() == []
    ahead.close()


def test_an_error_that_was_not_taken_is_known_after_closing() -> None:
    ahead = Ahead(counted([], stop=1, error=KeyError("one")), depth=2)
    assert wait_for(lambda: ahead.error is not None)
    assert ahead.close() == [0]
    assert isinstance(ahead.error, KeyError)
    assert not ahead.is_over


def test_without_a_generator_there_is_no_thread() -> None:
    ahead: Ahead[int] = Ahead(None, depth=1, first=[1, 2], error=KeyError("last"))
    assert own_threads() == []
    assert [ahead.take(), ahead.take()] == [[1], [2]]
    with pytest.raises(KeyError, match="last"):
        ahead.take()


def test_a_generator_that_waits_is_told_to_stop() -> None:
    waits = threading.Event()

    def make(must_stop: Callable[[], bool]) -> Generator[int, None, None]:
        while not must_stop():
            waits.set()
        return
        yield

    ahead = Ahead(make, depth=1)
    assert waits.wait(30)
    assert ahead.close() == []
    assert own_threads() == []


def test_after_closing_nothing_is_taken_for_the_end() -> None:
    ahead = Ahead(counted([]), depth=2)
    assert ahead.take() == [0]
    ahead.close()
    with pytest.raises(ClosedError, match="another one began, or the object was closed"):
        ahead.take()


def test_a_forked_child_is_told_instead_of_waiting_for_ever(monkeypatch: Any) -> None:
    ahead = Ahead(counted([]), depth=2)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(ClosedError, match="a forked process does not have: iterate anew"):
        ahead.take()
    assert ahead.close() == []
    monkeypatch.undo()
    ahead.close()


EXIT = """
import sys, threading, time
from tensorcom_jax.ahead import Ahead

def make(must_stop):
    while True:
        yield 1

def take(count):
    # Slower than the thread looks whether the process ends, when the main thread is long over.
    for _ in range(count):
        assert ahead.take() == [1]
        time.sleep(0.3)
    print("took", count, flush=True)
    ahead.close()

ahead = Ahead(make, depth=1)
if sys.argv[1] == "main":
    ahead.take()
elif sys.argv[1] == "thread":
    threading.Thread(target=take, args=(4,)).start()
else:
    threading.Thread(target=take, args=(400,), daemon=True).start()
    time.sleep(0.5)
"""


@pytest.mark.parametrize(("taker", "out"), [("main", ""), ("thread", "took 4\n"), ("daemon", "")])
def test_the_process_ends_when_nobody_takes_any_more(taker: str, out: str) -> None:
    done = run_script(EXIT, taker)
    assert (done.stdout, done.stderr) == (out, "")
