"""Reading ahead: in order, bounded, each record once, errors where they are due."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tensorcom.pcr import feed as feed_module
from tensorcom.pcr.feed import RecordFeed

WAIT_S = 60.0


class Log:
    """Reads records that are their own numbers, and notes which."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.arrived = threading.Condition()

    def __call__(self, record: int) -> SimpleNamespace:
        with self.arrived:
            self.read.append(record)
            self.arrived.notify_all()
        if record == 13:
            raise OSError("13 cannot be read")
        return SimpleNamespace(number=record)

    def wait_for(self, records: list[int]) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.read == records, WAIT_S), self.read


def threads_left() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tensorcom-read")]


def test_records_are_read_ahead_up_to_the_bytes() -> None:
    log = Log()
    with RecordFeed(log, lambda _: 10, [5, 3, 8, 1, 9, 2], ahead_bytes=30) as feed:
        log.wait_for([5, 3, 8])
        assert feed.get(5).number == 5
        log.wait_for([5, 3, 8, 1])
        assert feed.get(5).number == 5
        assert feed.get(3).number == 3
        feed.release(5)
        log.wait_for([5, 3, 8, 1, 9])
        for record in (8, 1, 9, 2):
            assert feed.get(record).number == record
    assert log.read == [5, 3, 8, 1, 9, 2]
    assert not threads_left()


def test_one_record_is_read_ahead_whatever_its_size() -> None:
    log = Log()
    with RecordFeed(log, lambda _: 1000, [1, 2, 3], ahead_bytes=30) as feed:
        log.wait_for([1])
        feed.get(1)
        log.wait_for([1, 2])


def test_an_error_is_given_where_the_record_is_asked_for() -> None:
    log = Log()
    with RecordFeed(log, lambda _: 1, [1, 13, 2]) as feed:
        log.wait_for([1, 13, 2])
        assert feed.get(1).number == 1
        error = feed.get(13)
        assert isinstance(error, OSError)
        assert feed.get(13) is error
        assert feed.get(2).number == 2


def test_a_record_is_ready_when_it_was_read() -> None:
    gate = threading.Event()

    def read(record: int) -> int:
        assert record == 1 or gate.wait(WAIT_S)
        return record

    with RecordFeed(read, lambda _: 1, [1, 2]) as feed:
        assert feed.get(1) == 1
        assert feed.is_ready(1)
        assert not feed.is_ready(2)
        gate.set()
        assert feed.get(2) == 2
        assert feed.is_ready(2)


def test_leaving_drops_what_was_not_read(monkeypatch) -> None:
    monkeypatch.setattr(feed_module, "_CLOSE_WAIT_S", 0.01)
    gate, begun, read = threading.Event(), threading.Event(), []

    def hang(record: int) -> int:
        read.append(record)
        begun.set()
        assert gate.wait(WAIT_S)
        return record

    with pytest.raises(KeyError), RecordFeed(hang, lambda _: 1, range(5)):
        assert begun.wait(WAIT_S)
        raise KeyError
    gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("tensorcom-read"):
            thread.join(WAIT_S)
    assert read == [0]


def test_threads_read_at_the_same_time_and_the_order_stays() -> None:
    together = threading.Barrier(3)

    def read(record: int) -> int:
        together.wait(WAIT_S)
        return record

    with RecordFeed(read, lambda _: 1, range(9), threads=3) as feed:
        assert [feed.get(record) for record in range(9)] == list(range(9))
    assert not threads_left()


def test_no_more_records_are_read_at_a_time_than_there_are_threads() -> None:
    gate, log = threading.Event(), Log()

    def read(record: int) -> SimpleNamespace:
        found = log(record)
        assert gate.wait(WAIT_S)
        return found

    with RecordFeed(read, lambda _: 1, range(5), threads=2) as feed:
        with log.arrived:
            assert log.arrived.wait_for(lambda: len(log.read) == 2, WAIT_S)
        assert not feed.is_ready(0)
        assert sorted(log.read) == [0, 1]
        gate.set()
        assert [feed.get(record).number for record in range(5)] == list(range(5))
