"""Figures of a connection."""

from __future__ import annotations

import json

import pytest

from tensorcom import stats
from tensorcom.meta import Meta
from tensorcom.stats import MAX_SOURCES, ConnectionStats, Reporter, SourceStats, Statistics


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 5000.0 + self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(stats, "time", clock)
    return clock


def test_rates_over_all_and_over_the_recent(clock) -> None:
    figures = Statistics(horizon=3)
    for value in (10, 10, 40, 40, 40):
        clock.now += 2
        figures.add(value)
    assert (figures.count, figures.total) == (5, 140)
    assert figures.rate() == 0.5
    assert figures.throughput() == 14
    assert figures.recent_rate() == 0.5
    assert figures.recent_throughput() == 20
    assert figures.summary() == "0.5 messages/s, 0.0 MB/s"


def test_the_recent_are_the_last_of_the_horizon(clock) -> None:
    figures = Statistics(horizon=4)
    for step in (100, 100, 1, 1, 1, 1):
        clock.now += step
        figures.add(1)
    assert figures.recent_rate() == 1
    assert figures.rate() == 6 / 204


def test_no_figure_divides_by_nothing(clock) -> None:
    figures = Statistics()
    assert (figures.rate(), figures.throughput()) == (0, 0)
    figures.add(3)
    assert (figures.recent_rate(), figures.recent_throughput()) == (0, 0)
    figures.add(3)
    assert figures.recent_rate() == 0
    figures.reset()
    assert (figures.count, figures.total, len(figures.recent)) == (0, 0, 0)


def count(*numbers: int, topic: bytes = b"") -> SourceStats:
    figures = SourceStats()
    for number in numbers:
        figures.add(Meta(seq=number), topic, 10)
    return figures


@pytest.mark.parametrize(
    ("numbers", "missed", "gaps", "duplicates"),
    [
        ((0, 1, 2), 0, 0, 0),
        ((5, 6), 5, 0, 0),
        ((0, 3, 4, 9), 0, 6, 0),
        ((0, 1, 1, 0, 2), 0, 0, 2),
        ((0, 2, 1), 0, 1, 1),
        ((2**63 - 1,), 2**63 - 1, 0, 0),
    ],
)
def test_numbers_tell_what_is_missing(numbers, missed, gaps, duplicates) -> None:
    figures = count(*numbers)
    assert (figures.missed, figures.gaps, figures.duplicates) == (missed, gaps, duplicates)
    assert figures.messages == len(numbers)
    assert figures.size_bytes == 10 * len(numbers)


def test_each_topic_has_numbers_of_its_own() -> None:
    figures = SourceStats()
    for topic, number in ((b"a", 0), (b"b", 0), (b"a", 1), (b"b", 3)):
        figures.add(Meta(seq=number), topic, 1)
    assert (figures.gaps, figures.duplicates) == (2, 0)


def test_topics_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(stats, "MAX_TOPICS_PER_SOURCE", 3)
    figures = SourceStats()
    for number in range(10):
        figures.add(Meta(seq=0), b"%d" % number, 1)
        figures.end(Meta(seq=0), b"%d" % number)
    assert len(figures._next) == 3
    assert figures.messages == 10


def test_the_end_word_tells_what_was_lost_last() -> None:
    figures = count(0, 1, 2)
    figures.end(Meta(seq=7), b"")
    figures.end(Meta(seq=7), b"")  # it is said more than once
    assert (figures.gaps, figures.duplicates, figures.ended) == (4, 0, True)
    figures.add(Meta(seq=7), b"", 1)  # the sender goes on after all
    assert (figures.gaps, figures.duplicates) == (4, 0)


def test_the_end_word_of_a_source_of_which_nothing_came() -> None:
    figures = SourceStats()
    figures.end(Meta(seq=7), b"")
    assert (figures.missed, figures.gaps, figures.messages) == (7, 0, 0)


def test_stages_sum_what_was_said(clock) -> None:
    figures = SourceStats()
    clock.now = 110.0
    figures.add(Meta(times={"read": 5100.0, "decoded": 5101.0, "sent": 5103.0}), b"", 1)
    figures.add(Meta(times={"sent": 5109.0, "other": 1.0}), b"", 1)
    figures.add(Meta(times={"read": 5111.0}), b"", 1)  # a clock that is ahead
    figures.add(Meta(), b"", 1)
    assert figures.stage_s == {"decoded": 1.0, "sent": 2.0, "received": 8.0}
    assert figures.timed == 3


def test_sources_are_told_apart(clock) -> None:
    figures = ConnectionStats()
    figures.add_message(Meta(source="a", seq=0, samples=4), b"", 100)
    figures.add_message(Meta(source="b", seq=5, samples=2), b"", 50)
    figures.add_message(Meta(source="a", seq=3, samples=4), b"", 100)
    figures.add_message(Meta(), b"", 1)
    assert (figures.count, figures.total, figures.samples) == (4, 251, 10)
    assert (figures.missed, figures.gaps, figures.duplicates) == (5, 2, 0)
    clock.now += 3
    figures.add_message(Meta(source="b", seq=6), b"", 1)
    assert figures.last_seen_s() == {"a": 3.0, "b": 0.0}
    figures.end(Meta(source="a", seq=4), b"")
    figures.end(Meta(), b"")
    values = json.loads(json.dumps(figures.as_dict(), allow_nan=False))
    assert values["sources"]["a"]["ended"]
    assert not values["sources"]["b"]["ended"]
    assert (values["messages"], values["gaps"], values["missed"]) == (5, 2, 5)


def test_sources_are_bounded_and_the_silent_go_first(clock) -> None:
    figures = ConnectionStats()
    for number in range(MAX_SOURCES + 10):
        clock.now += 1
        figures.add_message(Meta(source=str(number)), b"", 1)
    assert len(figures.sources) == MAX_SOURCES
    assert "9" not in figures.sources
    assert str(MAX_SOURCES + 9) in figures.sources


@pytest.mark.parametrize(
    ("every", "steps", "reports"),
    [
        (10, [4, 4, 4], [12]),
        (10, [10, 10], [10, 20]),
        (10, [35, 4, 1], [35, 40]),
        (1, [1, 1], [1, 2]),
        (0, [10], []),
        (-1, [10], []),
    ],
)
def test_reports_come_every_so_many(every, steps, reports) -> None:
    seen: list[int] = []
    reporter = Reporter(every, seen.append)
    for step in steps:
        reporter.add(step)
    assert seen == reports
