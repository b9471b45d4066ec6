"""Work ahead of use: how far, in which order, and how it ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from tensorcom import ClosedError
from tensorcom.ahead import Ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

WAIT_S = 30


def wait_for(condition: Callable[[], object]) -> bool:
    """Wait until a condition holds; return whether it does."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


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


def waits(ahead: Ahead[Any]) -> bool:
    """Tell whether the thread has nothing to do: what is one too far would have been made."""
    return bool(ahead._shelf._changed._waiters)  # type: ignore[attr-defined]


@pytest.mark.parametrize("depth", [1, 3])
def test_items_are_made_as_far_ahead_as_allowed_and_no_further(depth: int) -> None:
    made: list[int] = []
    ahead = Ahead(counted(made), depth=depth)
    for number in range(5):
        assert wait_for(lambda: len(made) == number + depth)  # noqa: B023 - used at once
        assert wait_for(lambda: waits(ahead))
        assert len(made) == number + depth
        assert next(ahead) == number
    assert wait_for(lambda: len(made) == 5 + depth)
    assert wait_for(lambda: waits(ahead))
    assert ahead.close() == list(range(5, 5 + depth))
    assert made[-1] == -1, "the generator is closed"


def test_items_come_in_order_and_then_the_end_again_and_again() -> None:
    ahead = Ahead(counted([], stop=50), depth=2, first=[-3, -2])
    assert not ahead.is_over
    assert list(ahead) == [-3, -2, *range(50)]
    assert ahead.is_over
    assert list(ahead) == []
    assert ahead.peek() is None
    assert ahead.close() == []


def test_first_items_count_as_made_ahead() -> None:
    made: list[int] = []
    ahead = Ahead(counted(made), depth=2, first=[-3, -2])
    assert wait_for(lambda: waits(ahead))
    assert made == []
    assert next(ahead) == -3
    assert wait_for(lambda: made == [0])
    assert ahead.close() == [-2, 0]


def test_an_error_comes_after_the_items_before_it_and_once() -> None:
    ahead = Ahead(counted([], stop=3, error=KeyError("three")), depth=2)
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    assert not ahead.is_over
    with pytest.raises(KeyError, match="three"):
        next(ahead)
    assert ahead.is_over
    assert ahead.failure is None
    assert list(ahead) == []


def test_an_error_may_come_before_there_is_a_generator() -> None:
    def make(_: Callable[[], bool]) -> Generator[int, None, None]:
        raise ValueError("at once")

    ahead = Ahead(make, depth=1)
    with pytest.raises(ValueError, match="at once"):
        ahead.peek()
    assert ahead.is_over
    assert list(ahead) == []


def test_a_failure_is_known_once_it_is_all_that_is_left() -> None:
    ahead = Ahead(counted([], stop=1, error=KeyError("one")), depth=2)
    assert wait_for(lambda: not ahead._thread.is_alive())
    assert ahead.failure is None
    assert ahead.close() == [0]
    assert isinstance(ahead.failure, KeyError)
    assert not ahead.is_over


def test_closing_is_no_failure() -> None:
    ahead = Ahead(counted([]), depth=2)
    ahead.close()
    assert ahead.failure is None


def test_peek_leaves_the_item_and_tells_the_end() -> None:
    ahead = Ahead(counted([], stop=1), depth=1)
    assert ahead.peek() == 0
    assert ahead.peek() == 0
    assert not ahead.is_over
    assert next(ahead) == 0
    assert ahead.peek() is None
    assert ahead.is_over


def test_an_item_that_was_handed_out_is_not_kept() -> None:
    class Item:
        pass

    def make(_: Callable[[], bool]) -> Generator[Item, None, None]:
        for _ in range(3):
            yield Item()

    ahead = Ahead(make, depth=1)
    first = weakref.ref(next(ahead))
    assert ahead.peek() is not None
    gc.collect()
    # The generator that paused after the next item holds no other one.
    assert first() is None
    ahead.close()


def test_a_generator_that_waits_is_told_to_stop() -> None:
    asked = threading.Event()

    def make(must_stop: Callable[[], bool]) -> Generator[int, None, None]:
        while not must_stop():
            asked.set()
        return
        yield

    ahead = Ahead(make, depth=1)
    assert asked.wait(WAIT_S)
    assert ahead.close() == []
    assert not ahead._thread.is_alive()


def test_after_closing_nothing_is_taken_for_the_end() -> None:
    ahead = Ahead(counted([]), depth=2)
    assert next(ahead) == 0
    ahead.close()
    for take in (ahead.__next__, ahead.peek):
        with pytest.raises(ClosedError, match="another one began, or the object was closed"):
            take()


def test_closing_wakes_who_waits() -> None:
    told: list[BaseException] = []

    def make(must_stop: Callable[[], bool]) -> Generator[int, None, None]:
        while not must_stop():
            pass
        return
        yield

    def take() -> None:
        try:
            next(ahead)
        except ClosedError as exc:
            told.append(exc)

    ahead = Ahead(make, depth=1)
    taker = threading.Thread(target=take)
    taker.start()
    assert wait_for(lambda: waits(ahead))
    ahead.close()
    taker.join(WAIT_S)
    assert len(told) == 1


def test_dropping_it_ends_the_thread() -> None:
    ahead = Ahead(counted([]), depth=1)
    assert next(ahead) == 0
    thread = ahead._thread
    del ahead
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_forked_child_is_told_instead_of_waiting_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = Ahead(counted([]), depth=2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        for take in (ahead.__next__, ahead.peek):
            with pytest.raises(ClosedError, match="a forked process does not have: iterate anew"):
                take()
        assert ahead.close() == []
    assert next(ahead) == 0, "closing it there leaves it to the parent"
    ahead.close()


EXIT = """
import sys, threading
from tensorcom import ClosedError
from tensorcom.ahead import Ahead

def make(must_stop):
    while True:
        yield 1

def take_after_the_end_of_main():
    assert next(ahead) == 1
    began.set()
    threading.main_thread().join()
    for _ in range(4):
        assert next(ahead) == 1
    print("took 4", flush=True)
    ahead.close()

def take_for_ever():
    try:
        while next(ahead) == 1:
            began.set()
    except ClosedError:
        pass

ahead, began = Ahead(make, depth=1), threading.Event()
if sys.argv[1] == "main":
    next(ahead)
elif sys.argv[1] == "thread":
    threading.Thread(target=take_after_the_end_of_main).start()
    assert began.wait(30)
else:
    threading.Thread(target=take_for_ever, daemon=True).start()
    assert began.wait(30)
"""


@pytest.mark.parametrize(("taker", "out"), [("main", ""), ("thread", "took 4\n"), ("daemon", "")])
def test_the_process_ends_when_nobody_takes_any_more(taker: str, out: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT, taker], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, out, "")
