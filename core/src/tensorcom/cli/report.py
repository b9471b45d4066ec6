"""Figures of a stream over an interval, and their three forms: table, line and JSON.

Owns what `tensormon` shows; reads a connection's statistics and receives nothing itself.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tensorcom.sender import count_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from tensorcom.message import Message
    from tensorcom.stats import ConnectionStats

NAMELESS = "(no meta)"
STAGES = ("decoded", "sent", "received")


@dataclass(frozen=True)
class Counts:
    """What had come at some time.

    Attributes:
        batches: messages received.
        samples: samples in them.
        size_bytes: payload bytes in them.
        timed: messages that `stage_s` sums over.
        stage_s: summed seconds by stage, each since the stage before.
    """

    batches: int = 0
    samples: int = 0
    size_bytes: int = 0
    timed: int = 0
    stage_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Figures of one source, or of all.

    Attributes:
        batches, samples, size_bytes: totals since the start.
        batches_per_s, samples_per_s, bytes_per_s: rates over the interval.
        gaps: batches missing by number.
        duplicates: batches that came again.
        epoch: epoch of the last batch, if it said.
        ended: whether the stream of the source is over.
        mean_stage_s: mean seconds of a batch in the interval by stage, since the stage before.
        seen_at: monotonic seconds at which the last batch came.
    """

    batches: int
    samples: int
    size_bytes: int
    batches_per_s: float
    samples_per_s: float
    bytes_per_s: float
    gaps: int
    duplicates: int
    epoch: int | None
    ended: bool
    mean_stage_s: Mapping[str, float]
    seen_at: float | None

    def age_s(self) -> float | None:
        """Return seconds since the last batch."""
        return None if self.seen_at is None else max(time.monotonic() - self.seen_at, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        values = {**asdict(self), "mean_stage_s": dict(self.mean_stage_s), "age_s": self.age_s()}
        del values["seen_at"]
        return values


@dataclass(frozen=True)
class Report:
    """Figures over one interval.

    Attributes:
        elapsed_s: seconds since the start.
        interval_s: seconds of the interval.
        total: figures over all sources.
        sources: figures by source id.
        bad: messages since the start that were no batch.
        filtered: messages since the start of another topic.
    """

    elapsed_s: float
    interval_s: float
    total: Row
    sources: Mapping[str, Row]
    bad: int
    filtered: int

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        return {
            "time": time.time(),
            "elapsed_s": self.elapsed_s,
            "interval_s": self.interval_s,
            **self.total.as_dict(),
            "bad": self.bad,
            "filtered": self.filtered,
            "sources": {key: row.as_dict() for key, row in self.sources.items()},
        }


class Meter:
    """Makes reports from the statistics of a connection, each over the time since the last.

    Args:
        stats: statistics that a connection keeps.
    """

    def __init__(self, stats: ConnectionStats) -> None:
        self._stats = stats
        self._start = self._at = time.monotonic()
        self._first_at: float | None = None
        self._before: dict[str, Counts] = {}
        self._total_before = Counts()
        self._epochs: dict[str | None, int] = {}
        self._uncounted = 0

    @property
    def batches(self) -> int:
        """Batches since the last report."""
        return self._stats.count - self._total_before.batches

    @property
    def age_s(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._at

    def note(self, message: Message) -> None:
        """Take in a batch that the statistics have counted: its epoch, and samples they miss."""
        meta = message.meta
        if meta.samples is None:
            self._uncounted += count_samples(message.arrays)
        if meta.epoch is not None:
            self._epochs[meta.source] = self._epochs[None] = meta.epoch
        if self._first_at is None:
            self._first_at = time.monotonic()

    def report(self) -> Report:
        """Return the figures since the last report, and begin the next interval."""
        now = time.monotonic()
        first = self._total_before.batches == 0 and self._first_at is not None
        # The wait for the first batch is no part of a rate: time runs from that batch, without it.
        begin = self._first_at if first and self._first_at is not None else self._at
        span = max(now - begin, 1e-9)
        stats = self._stats
        sources: dict[str, Row] = {}
        counts: dict[str, Counts] = {}
        for key, source in stats.sources.items():
            counts[key] = Counts(
                source.messages,
                source.samples,
                source.size_bytes,
                source.timed,
                dict(source.stage_s),
            )
            sources[key] = _row(
                counts[key],
                self._before.get(key, Counts()),
                span,
                first=first,
                gaps=source.gaps,
                duplicates=source.duplicates,
                epoch=self._epochs.get(key),
                ended=source.ended,
                seen_at=source.last_seen if source.messages else None,
            )
        total = self._total(counts)
        row = _row(
            total,
            self._total_before,
            span,
            first=first,
            gaps=stats.gaps,
            duplicates=stats.duplicates,
            epoch=self._epochs.get(None),
            ended=bool(sources) and all(source.ended for source in sources.values()),
            seen_at=stats.last if stats.count else None,
        )
        interval_s = now - self._at
        self._at, self._before, self._total_before = now, counts, total
        return Report(now - self._start, interval_s, row, sources, stats.bad, stats.filtered)

    def _total(self, counts: Mapping[str, Counts]) -> Counts:
        stages: dict[str, float] = {}
        for count in counts.values():
            for name, value in count.stage_s.items():
                stages[name] = stages.get(name, 0.0) + value
        return Counts(
            self._stats.count,
            self._stats.samples + self._uncounted,
            int(self._stats.total),
            sum(count.timed for count in counts.values()),
            stages,
        )


def _row(now: Counts, before: Counts, span: float, *, first: bool, **rest: Any) -> Row:
    batches = now.batches - before.batches
    part = (batches - 1) / batches if first and batches else 1.0
    timed = now.timed - before.timed
    return Row(
        batches=now.batches,
        samples=now.samples,
        size_bytes=now.size_bytes,
        batches_per_s=part * batches / span,
        samples_per_s=part * (now.samples - before.samples) / span,
        bytes_per_s=part * (now.size_bytes - before.size_bytes) / span,
        mean_stage_s={
            name: (now.stage_s[name] - before.stage_s.get(name, 0.0)) / timed
            for name in STAGES
            if timed > 0 and name in now.stage_s
        },
        **rest,
    )


def as_line(report: Report) -> str:
    """Return a report as one line of text."""
    row = report.total
    parts = [
        f"{report.elapsed_s:.1f} s:",
        f"{row.batches} batches ({row.batches_per_s:.1f}/s),",
        f"{row.samples} samples ({row.samples_per_s:.1f}/s),",
        f"{row.bytes_per_s / 1e6:.1f} MB/s,",
        f"{row.gaps} gaps, {row.duplicates} duplicates, {report.bad} bad",
    ]
    if row.epoch is not None:
        parts[-1] += ","
        parts.append(f"epoch {row.epoch}")
    if row.mean_stage_s:
        parts[-1] += ","
        parts.append(", ".join(f"{k} {v * 1e3:.1f} ms" for k, v in row.mean_stage_s.items()))
    age = row.age_s()
    parts[-1] += "," if age is not None else ", nothing yet"
    if age is not None:
        parts.append(f"last {age:.1f} s ago")
    return " ".join(parts)


def as_table(report: Report, urls: Sequence[str], *, state: str) -> Table:
    """Return a report as a table for a terminal, a row per source."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=", ".join(urls),
        caption=_caption(report, state),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("source", no_wrap=True)
    for name in ("batches", "batch/s", "sample/s", "MB/s", "gaps", "dup", "epoch"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in STAGES:
        table.add_column(f"→{name}\nms", justify="right", no_wrap=True)
    table.add_column("last\ns ago", justify="right", no_wrap=True)
    for key, row in report.sources.items():
        table.add_row(key, *_cells(row), style="dim" if row.ended else "")
    rest = report.total.batches - sum(row.batches for row in report.sources.values())
    if rest > 0 and report.sources:
        table.add_row(NAMELESS, str(rest))
    if len(report.sources) != 1 or rest > 0:
        table.add_section()
        table.add_row("all" if report.sources else NAMELESS, *_cells(report.total), style="bold")
    return table


def _cells(row: Row) -> list[str]:
    age = row.age_s()
    return [
        f"{row.batches:,}",
        f"{row.batches_per_s:,.1f}",
        f"{row.samples_per_s:,.0f}",
        f"{row.bytes_per_s / 1e6:,.1f}",
        _alarm(row.gaps),
        _alarm(row.duplicates),
        "-" if row.epoch is None else str(row.epoch),
        *(_milliseconds(row.mean_stage_s.get(name)) for name in STAGES),
        "end" if row.ended else "-" if age is None else f"{age:.1f}",
    ]


def _alarm(count: int) -> str:
    return f"[red]{count:,}[/red]" if count else "0"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:,.1f}"


def _caption(report: Report, state: str) -> str:
    lines = [
        f"{report.elapsed_s:.0f} s, {report.bad} bad messages, {report.filtered} of another topic"
    ]
    if not report.total.batches:
        lines.append(state)
    stages = report.total.mean_stage_s
    whole = sum(stages.values())
    if whole > 0:
        shares = ", ".join(f"→{name} {100 * value / whole:.0f} %" for name, value in stages.items())
        lines.append(f"time of a batch: {shares}")
    return "\n".join(lines)
