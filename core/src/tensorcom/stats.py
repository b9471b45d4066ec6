"""Running figures of a connection: rates, and per source what came and what is missing.

Owns counting only; knows nothing of sockets or frames.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorcom.meta import Meta

MAX_SOURCES = 1024
MAX_TOPICS_PER_SOURCE = 1024
STAGES = ("read", "decoded", "sent")


class Statistics:
    """Rates over all that was added, and over the last `horizon` additions.

    Args:
        horizon: how many additions count as recent.
    """

    def __init__(self, horizon: int = 1000) -> None:
        self.horizon = horizon
        self.reset()

    def reset(self) -> None:
        """Forget everything and start the clock anew."""
        self.start = time.monotonic()
        self.last = self.start
        self.count = 0
        self.total = 0.0
        self.recent: deque[tuple[float, float]] = deque(maxlen=self.horizon)

    def add(self, value: float) -> None:
        """Add one event of size `value`."""
        self.last = time.monotonic()
        self.count += 1
        self.total += value
        self.recent.append((self.last, value))

    def rate(self) -> float:
        """Return events per second since the start."""
        return self.count / max(self.last - self.start, 1e-9) if self.count else 0.0

    def throughput(self) -> float:
        """Return the sum of values per second since the start."""
        return self.total / max(self.last - self.start, 1e-9) if self.count else 0.0

    def _recent_span(self) -> float:
        return self.recent[-1][0] - self.recent[0][0] if len(self.recent) > 1 else 0.0

    def recent_rate(self) -> float:
        """Return events per second over the recent ones; 0 until there are two."""
        span = self._recent_span()
        return (len(self.recent) - 1) / span if span > 0 else 0.0

    def recent_throughput(self) -> float:
        """Return the sum of values per second over the recent ones; 0 until there are two."""
        span = self._recent_span()
        return (sum(v for _, v in self.recent) - self.recent[0][1]) / span if span > 0 else 0.0

    def summary(self) -> str:
        """Return the recent rates in one line."""
        return f"{self.recent_rate():.1f} messages/s, {self.recent_throughput() / 1e6:.1f} MB/s"


@dataclass(slots=True)
class SourceStats:
    """What came from one source.

    Attributes:
        messages: messages received.
        samples: samples in them, as far as they say.
        size_bytes: payload bytes in them.
        missed: messages that went by before the first that came, by its number.
        gaps: messages missing by number since then. Both are meaningful where this receiver should
            get all (PUB/SUB).
        duplicates: messages whose number had come before.
        last_seen: monotonic seconds at which the last one came.
        ended: whether the source said that its stream is over.
        stage_s: summed seconds by stage: "read" to "decoded", to "sent", to "received".
        timed: messages that `stage_s` sums over.
    """

    messages: int = 0
    samples: int = 0
    size_bytes: int = 0
    missed: int = 0
    gaps: int = 0
    duplicates: int = 0
    last_seen: float = 0.0
    ended: bool = False
    stage_s: dict[str, float] = field(default_factory=dict)
    timed: int = 0
    _next: dict[bytes, int] = field(default_factory=dict)

    def add(self, meta: Meta, topic: bytes, size_bytes: int) -> None:
        """Count one message."""
        self.messages += 1
        self.samples += meta.samples or 0
        self.size_bytes += size_bytes
        self.last_seen = time.monotonic()
        if meta.seq is not None and self._skip_to(meta.seq, topic):
            self._next[topic] += 1
        self._add_stages(meta.times)

    def end(self, meta: Meta, topic: bytes) -> None:
        """Note the end of the stream; its number says what was lost last."""
        self.ended = True
        if meta.seq is not None and meta.seq >= self._next.get(topic, 0):
            self._skip_to(meta.seq, topic)

    def _skip_to(self, seq: int, topic: bytes) -> bool:
        """Count what is missing before number `seq`; return whether it is the next one then."""
        if topic not in self._next:
            if len(self._next) >= MAX_TOPICS_PER_SOURCE:
                return False
            self.missed += seq
            self._next[topic] = seq
        if seq < self._next[topic]:
            self.duplicates += 1
            return False
        self.gaps += seq - self._next[topic]
        self._next[topic] = seq
        return True

    def _add_stages(self, times: dict[str, float]) -> None:
        previous = None
        stages = [(name, times[name]) for name in STAGES if name in times]
        if not stages:
            return
        self.timed += 1
        for name, at in [*stages, ("received", time.time())]:
            if previous is not None:
                self.stage_s[name] = self.stage_s.get(name, 0.0) + max(at - previous, 0.0)
            previous = at


class ConnectionStats(Statistics):
    """Figures of a connection: rates over all messages, and `sources` by id.

    Attributes:
        sources: figures by source id, for messages that name their source.
        samples: samples received or sent.
        bad: messages refused because they were none of ours.
        filtered: messages whose topic was another.
    """

    def __init__(self, horizon: int = 1000) -> None:
        super().__init__(horizon)
        self.sources: dict[str, SourceStats] = {}
        self.samples = 0
        self.bad = 0
        self.filtered = 0

    def add_message(self, meta: Meta, topic: bytes, size_bytes: int) -> None:
        """Count one received message."""
        self.add(size_bytes)
        self.samples += meta.samples or 0
        if meta.source is not None:
            self._source(meta.source).add(meta, topic, size_bytes)

    def end(self, meta: Meta, topic: bytes) -> None:
        """Note that a source said the end of its stream."""
        if meta.source is not None:
            self._source(meta.source).end(meta, topic)

    def _source(self, key: str) -> SourceStats:
        if key not in self.sources:
            if len(self.sources) >= MAX_SOURCES:
                del self.sources[min(self.sources, key=lambda k: self.sources[k].last_seen)]
            self.sources[key] = SourceStats()
        return self.sources[key]

    @property
    def missed(self) -> int:
        """Messages that went by before the first that came, over all sources."""
        return sum(source.missed for source in self.sources.values())

    @property
    def gaps(self) -> int:
        """Messages missing over all sources."""
        return sum(source.gaps for source in self.sources.values())

    @property
    def duplicates(self) -> int:
        """Messages that came again, over all sources."""
        return sum(source.duplicates for source in self.sources.values())

    def last_seen_s(self) -> dict[str, float]:
        """Return seconds since the last message of each source."""
        now = time.monotonic()
        return {key: now - s.last_seen for key, s in self.sources.items() if s.messages}

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as JSON-compatible values."""
        return {
            "messages": self.count,
            "samples": self.samples,
            "size_bytes": int(self.total),
            "messages_per_s": self.recent_rate(),
            "bytes_per_s": self.recent_throughput(),
            "bad": self.bad,
            "filtered": self.filtered,
            "missed": self.missed,
            "gaps": self.gaps,
            "duplicates": self.duplicates,
            "sources": {
                key: {
                    "messages": s.messages,
                    "samples": s.samples,
                    "size_bytes": s.size_bytes,
                    "missed": s.missed,
                    "gaps": s.gaps,
                    "duplicates": s.duplicates,
                    "ended": s.ended,
                    "mean_stage_s": {k: v / max(s.timed, 1) for k, v in s.stage_s.items()},
                }
                for key, s in self.sources.items()
            },
        }


class Reporter:
    """Calls back every so many samples or messages.

    Args:
        every: how many; 0 or less never.
        report: called with the count so far.
    """

    def __init__(self, every: int, report: Callable[[int], None]) -> None:
        self._every, self._report = every, report
        self._count, self._next = 0, every

    def add(self, count: int) -> None:
        """Count `count` more."""
        self._count += count
        if self._every > 0 and self._count >= self._next:
            self._report(self._count)
            self._next += self._every * ((self._count - self._next) // self._every + 1)
