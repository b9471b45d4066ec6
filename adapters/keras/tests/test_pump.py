"""Pump: how much it receives ahead, what it does when nobody reads, and its ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tf_stream_helpers import WAIT_S, pump_threads, wait_until

from tensorcom import ClosedError, MessageError, ReceiveTimeoutError, TransportError
from tensorcom.progress import Progress
from tensorcom_keras.pump import Pump, Reader

SIZE_BYTES = 1000


def message(number: int) -> list[Any]:
    return [np.full(SIZE_BYTES, number % 251, "u1")]


class FakeConnection:
    """Yields the items of a list; raises those that are errors, and calls those that are functions.

    After the last one it waits until nobody reads.
    """

    urls = ("zrpull://fake",)
    servers = 1

    def __init__(self, *items: Any, before: Callable[[], None] = lambda: None) -> None:
        self._items = list(items)
        self._before = before
        self.closed = 0
        self.idle = threading.Event()

    def items(self, *, progress: Progress) -> Iterator[list[Any]]:
        while not progress.complete:
            if not self._items:
                self.idle.wait(0.001)
                continue
            self._before()
            item = self._items.pop(0)
            if isinstance(item, Exception):
                raise item
            if callable(item):
                item()
            else:
                yield item

    def close(self) -> None:
        self.closed += 1


def pumping(connection: Any, *, count: int = 100, size_bytes: int = 10**9) -> Pump:
    return Pump(lambda: connection, tuple, count=count, size_bytes=size_bytes)


def taken(reader: Reader, count: int) -> list[int]:
    """Return the numbers of the next messages, or those up to the end."""
    found: list[int] = []
    while len(found) < count:
        arrays: Any = next(reader, "over")
        if isinstance(arrays, str):
            break
        if arrays is not None:
            found.append(int(arrays[0][0]))
    return found


@pytest.mark.parametrize(("count", "size_bytes"), [(3, 10**9), (100, 2500), (1, 1), (100, 1)])
def test_it_receives_no_more_than_may_wait(count: int, size_bytes: int) -> None:
    broken = []
    most = [0]

    def check() -> None:
        waiting = pump.waiting_bytes
        most[0] = max(most[0], waiting)
        if waiting >= size_bytes or waiting // SIZE_BYTES >= count:
            broken.append(waiting)

    pump = pumping(
        FakeConnection(*map(message, range(50)), before=check), count=count, size_bytes=size_bytes
    )
    reader = Reader(pump, None, url="")
    room = min(count, -(-size_bytes // SIZE_BYTES))
    for number in range(50 - room):
        assert taken(reader, 1) == [number]
        # It fills up again before the next one is taken.
        assert wait_until(lambda: pump.waiting_bytes == room * SIZE_BYTES)
    assert not broken
    assert most[0] == (room - 1) * SIZE_BYTES
    pump.close()


def test_nothing_is_lost_between_readers_of_which_each_leaves_when_it_likes() -> None:
    pump = pumping(FakeConnection(*map(message, range(40))), count=3)
    found = []
    while len(found) < 40:
        left = 40 - len(found)
        found += taken(Reader(pump, None, url=""), min(1 + len(found) % 4, left))
    assert found == list(range(40))
    pump.close()


def test_a_reader_that_pauses_does_not_time_out() -> None:
    paused, late = threading.Event(), ReceiveTimeoutError("late")
    pump = pumping(FakeConnection(message(0), lambda: paused.wait(WAIT_S), late, message(1)))
    reader = Reader(pump, None, url="")
    assert taken(reader, 1) == [0]
    paused.set()
    assert wait_until(lambda: pump.waiting_bytes)
    assert taken(reader, 1) == [1]
    pump.close()


def test_a_reader_that_waits_does_and_the_next_one_does_not() -> None:
    waits = threading.Event()
    late = ReceiveTimeoutError("late")
    connection = FakeConnection(lambda: waits.wait(WAIT_S), late, message(0))
    pump = pumping(connection)
    reader = Reader(pump, None, url="")
    assert next(reader) is None
    waits.set()
    with pytest.raises(ReceiveTimeoutError, match="late"):
        taken(reader, 1)
    assert taken(Reader(pump, None, url=""), 1) == [0]
    assert taken(reader, 0) == []
    pump.close()


def test_a_timeout_that_its_reader_did_not_stay_for_is_nobodys() -> None:
    waits = threading.Event()
    pump = pumping(
        FakeConnection(lambda: waits.wait(WAIT_S), ReceiveTimeoutError("late"), message(0))
    )
    reader = Reader(pump, None, url="")
    assert next(reader) is None
    waits.set()
    assert wait_until(lambda: not pump_threads())
    assert taken(Reader(pump, None, url=""), 1) == [0]
    pump.close()


def test_an_error_comes_in_its_turn_and_to_whoever_is_next() -> None:
    pump = pumping(FakeConnection(message(0), message(1), MessageError("bad"), message(2)))
    reader = Reader(pump, None, url="")
    assert taken(reader, 1) == [0]
    assert wait_until(lambda: not pump_threads())
    del reader
    other = Reader(pump, None, url="")
    assert taken(other, 1) == [1]
    with pytest.raises(MessageError, match="bad"):
        taken(other, 1)
    assert taken(other, 1) == [2]
    pump.close()


def test_what_cannot_be_prepared_is_an_error_of_its_message_alone() -> None:
    def prepare(arrays: list[Any]) -> Any:
        if arrays[0][0] == 1:
            raise ZeroDivisionError
        return tuple(arrays)

    connection: Any = FakeConnection(*map(message, range(3)))
    pump = Pump(lambda: connection, prepare, count=9, size_bytes=10**9)
    reader = Reader(pump, None, url="")
    assert taken(reader, 1) == [0]
    with pytest.raises(ZeroDivisionError):
        taken(reader, 1)
    assert taken(reader, 1) == [2]
    pump.close()


def test_a_length_that_is_not_reached_is_an_error_once() -> None:
    class Ending(FakeConnection):
        def items(self, *, progress: Progress) -> Iterator[list[Any]]:
            yield message(0)
            progress._ends._ended.add("")  # as an end word does

    pump = pumping(Ending())
    reader = Reader(pump, 2, url="zrpull://fake")
    assert taken(reader, 1) == [0]
    with pytest.raises(TransportError, match=r"'zrpull://fake'.*ended after 1 of 2 batches"):
        taken(reader, 1)
    assert taken(reader, 1) == []
    pump.close()


def test_closing_twice_while_it_receives_and_after() -> None:
    connection = FakeConnection(message(0))
    pump = pumping(connection)
    reader = Reader(pump, None, url="")
    assert taken(reader, 1) == [0]
    pump.close()
    pump.close()
    assert connection.closed == 1
    assert not pump_threads()
    with pytest.raises(ClosedError, match="closed while it was read"):
        next(reader)
    assert next(reader, "over") == "over"


def test_letting_go_from_within_the_thread_closes_at_its_end() -> None:
    states = []

    def let_go() -> None:
        pump.close()  # as the garbage collector may
        states.append(connection.closed)

    connection = FakeConnection(let_go)
    pump = pumping(connection)
    reader = Reader(pump, None, url="")
    with pytest.raises(ClosedError):
        taken(reader, 1)
    assert wait_until(lambda: connection.closed)
    assert states == [0]
    assert connection.closed == 1
    assert taken(Reader(pumping(FakeConnection(message(0))), 1, url=""), 2) == [0]
