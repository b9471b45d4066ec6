"""Figures of arrays that come one by one: extremes, mean, deviation, histogram, texts.

Owns numerics that neither keep what came nor lose precision; knows nothing of streams or terminals.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_TEXTS = 100_000
_PIECE_VALUES = 1 << 20
_FINE_BINS = 8192
_FAR = 2e307  # beyond it the distance between two numbers may overflow
_BYTE_VALUES = 256
_TINY = 1e-300


class Moments:
    """Mean and deviation of columns of numbers, by pairwise merging; NaN and Inf are counted apart.

    Attributes:
        count: finite numbers per column.
        mean: their mean.
        low, high: their extremes; inf and -inf of none.
        nan, inf: numbers that were not finite.
    """

    def __init__(self, columns: int = 1) -> None:
        self.count: Floats = np.zeros(columns)
        self.mean: Floats = np.zeros(columns)
        self.low: Floats = np.full(columns, np.inf)
        self.high: Floats = np.full(columns, -np.inf)
        self.nan = 0
        self.inf = 0
        self._squares: Floats = np.zeros(columns)

    def add(self, values: Floats, weights: Floats | None = None) -> None:
        """Take in numbers.

        Args:
            values: (n, columns), or (n, 1) where all columns have the same.
            weights: (n, columns), how often each came; None for once.
        """
        finite = np.isfinite(values)
        if weights is None:
            self.nan += int(np.isnan(values).sum())
            self.inf += int(np.isinf(values).sum())
            weights = finite.astype(np.float64)
        if not finite.all():
            values = np.where(finite, values, 0.0)
        count = weights.sum(axis=0)
        some = np.maximum(count, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = (values * (weights / some)).sum(axis=0)
            squares = (weights * (values - mean) ** 2).sum(axis=0)
            self._merge(count, mean, squares)
        came = weights > 0
        self.low = np.minimum(self.low, np.where(came, values, np.inf).min(axis=0))
        self.high = np.maximum(self.high, np.where(came, values, -np.inf).max(axis=0))

    def _merge(self, count: Floats, mean: Floats, squares: Floats) -> None:
        total = self.count + count
        some = np.maximum(total, 1.0)
        shift = mean - self.mean
        self.mean = self.mean + shift * (count / some)
        self._squares = self._squares + squares + shift**2 * (self.count * (count / some))
        self.count = total

    @property
    def deviation(self) -> Floats:
        """Standard deviation per column (of all numbers, not of a sample)."""
        return np.sqrt(self._squares / np.maximum(self.count, 1.0))


class Histogram:
    """Counts of numbers whose range is not known before.

    Numbers go to fine bins whose width doubles whenever one falls outside; `bars` joins them.
    """

    def __init__(self, *, integer: bool) -> None:
        self._integer = integer
        self._counts: NDArray[np.int64] = np.zeros(_FINE_BINS, np.int64)
        self._low = 0.0
        self._width = 0.0  # none yet: nothing or one value has come
        self._single: float | None = None

    def add(self, values: Floats, weights: NDArray[np.int64] | None = None) -> None:
        """Take in finite numbers.

        Args:
            values: (n,).
            weights: (n,), how often each came; None for once.
        """
        if not values.size:
            return
        values = np.clip(values, -_FAR, _FAR)
        self._cover(float(values.min()), float(values.max()))
        if self._width:
            places = (values - self._low) / self._width
            bins = np.clip(places, 0, _FINE_BINS - 1).astype(np.int64)
        else:
            bins = np.zeros(len(values), np.int64)
        if weights is None:
            self._counts += np.bincount(bins, minlength=_FINE_BINS)
        else:
            np.add.at(self._counts, bins, weights)

    def _cover(self, low: float, high: float) -> None:
        """Make room for numbers between `low` and `high`."""
        if not self._width:
            held = int(self._counts[0])
            if self._single is None and low == high:
                self._single = low
            if self._single == low == high:
                return
            single = low if self._single is None else self._single
            self._start(min(low, single), max(high, single))
            place = int((single - self._low) / self._width)
            self._counts[0] = 0
            self._counts[min(max(place, 0), _FINE_BINS - 1)] = held
        while low < self._low:
            self._low -= self._width * _FINE_BINS
            self._join(_FINE_BINS // 2)
        while (high - self._low) / self._width >= _FINE_BINS:
            self._join(0)

    def _start(self, low: float, high: float) -> None:
        if self._integer:
            span: float = math.floor(high) - math.floor(low) + 1
            self._width = 2.0 ** max(math.ceil(math.log2(span / _FINE_BINS)), 0)
            slack = (_FINE_BINS - span // self._width) // 2
            self._low = math.floor(low) - self._width * slack
            return
        # Twice the range, so that a little more to either side fits without joining bins.
        span = high - low
        self._low = low - span / 2
        self._width = max(2 * span / _FINE_BINS, _TINY)

    def _join(self, at: int) -> None:
        """Double the width; the joined counts begin at bin `at`."""
        joined = self._counts.reshape(-1, 2).sum(axis=1)
        self._counts = np.zeros(_FINE_BINS, np.int64)
        self._counts[at : at + len(joined)] = joined
        self._width *= 2

    def bars(self, count: int) -> list[tuple[float, float, int]]:
        """Return at most `count` bars from the smallest number to the largest.

        Returns:
            (from, to, how many) in order; `from` belongs to the bar and `to` does not, except in a
            bar of one value, where they are the same.
        """
        used = np.flatnonzero(self._counts)
        if not used.size:
            return []
        if not self._width:
            value = float(self._single or 0.0)
            return [(value, value, int(self._counts[0]))]
        first, last = int(used[0]), int(used[-1]) + 1
        bars = []
        edges = np.linspace(first, last, min(count, last - first) + 1).round().astype(int)
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            low, high = self._low + start * self._width, self._low + stop * self._width
            if self._integer and self._width == 1:
                high -= 1 if stop - start == 1 else 0
            bars.append((float(low), float(high), int(self._counts[start:stop].sum())))
        return bars


class Numbers:
    """Figures of arrays of numbers: bool, integers, floats of any kind; complex by magnitude.

    Args:
        layout: "NHWC" or "NCHW" to keep figures per channel of arrays with 4 axes, else None.
    """

    def __init__(self, layout: str | None = None) -> None:
        self.moments = Moments()
        self.channels: Moments | None = None
        self.histogram: Histogram | None = None
        self._layout = layout
        self._channel_axis = 3 if layout == "NHWC" else 1

    def add(self, array: NDArray[Any]) -> None:
        """Take in an array."""
        if self.histogram is None:
            self.histogram = Histogram(integer=array.dtype.kind in "biu")
        for piece in _pieces(array):
            values, counts = _reduce(piece.reshape(-1, 1))
            self.moments.add(values, None if counts is None else counts.astype(np.float64))
            if counts is None:
                self.histogram.add(values[np.isfinite(values)])
            else:
                came = counts[:, 0] > 0
                self.histogram.add(values[came, 0], counts[came, 0])
            if self._layout is not None and piece.ndim == 4:
                self._add_channels(np.moveaxis(piece, self._channel_axis, -1))

    def _add_channels(self, piece: NDArray[Any]) -> None:
        channels = piece.shape[-1]
        if self.channels is None:
            self.channels = Moments(channels)
        if len(self.channels.count) != channels:
            raise ValueError(
                f"{channels} channels after {len(self.channels.count)}; is --channels "
                f"{self._layout} right?"
            )
        values, counts = _reduce(piece.reshape(-1, channels))
        self.channels.add(values, None if counts is None else counts.astype(np.float64))


def _pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield parts of an array along the first axis, each small enough to convert."""
    if not array.ndim:
        yield array.reshape(1)
        return
    step = max(1, _PIECE_VALUES // max(math.prod(array.shape[1:]), 1))
    for start in range(0, len(array), step):
        piece = array[start : start + step]
        if piece.size:
            yield piece


def _reduce(piece: NDArray[Any]) -> tuple[Floats, NDArray[np.int64] | None]:
    """Return (n, columns) as floats; of bytes the 256 possible values and how often each came."""
    if piece.dtype.kind not in "biu" or piece.dtype.itemsize > 1 or len(piece) < _BYTE_VALUES:
        return _as_floats(piece), None
    raw = piece.view(np.uint8)
    counts = np.stack(
        [np.bincount(column, minlength=_BYTE_VALUES) for column in raw.T], axis=1
    ).astype(np.int64)
    values = np.arange(_BYTE_VALUES, dtype=np.uint8)
    typed = values.astype(np.int8) if piece.dtype.kind == "i" else values
    return typed.astype(np.float64)[:, None], counts


def _as_floats(piece: NDArray[Any]) -> Floats:
    if piece.dtype.kind == "c":
        piece = np.abs(piece)
    return piece.astype(np.float64)


class Texts:
    """Figures of arrays of fixed bytes (dtype S<n>): lengths and how many different ones.

    Attributes:
        count: elements.
        shortest, longest: extreme lengths in bytes, without trailing NULs.
        total_length: sum of the lengths.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shortest = 0
        self.longest = 0
        self.total_length = 0
        self.full = False
        self._seen: Counter[bytes] = Counter()

    def add(self, array: NDArray[np.bytes_]) -> None:
        """Take in an array."""
        if not array.size:
            return
        lengths = np.char.str_len(array)
        shortest = int(lengths.min())
        self.shortest = shortest if not self.count else min(self.shortest, shortest)
        self.longest = max(self.longest, int(lengths.max()))
        self.total_length += int(lengths.sum())
        self.count += array.size
        for text, times in zip(*np.unique(array, return_counts=True), strict=True):
            if text in self._seen or len(self._seen) < MAX_TEXTS:
                self._seen[bytes(text)] += int(times)
            else:
                self.full = True

    @property
    def unique(self) -> int:
        """Different elements, at most MAX_TEXTS; `full` says whether there were more."""
        return len(self._seen)

    def common(self, count: int) -> list[tuple[str, int]]:
        """Return the most frequent elements as text, with how often each came."""
        return [(t.decode(errors="replace"), n) for t, n in self._seen.most_common(count)]


class Tensor:
    """Figures of the arrays at one position of the batches.

    Args:
        layout: for figures per channel, see Numbers.

    Attributes:
        batches: arrays that came.
        infos, dtypes: those that they had, in order of appearance.
        ranks: numbers of axes that they had.
        shape_low, shape_high: smallest and largest size of each axis; of axes that only some have,
            among those.
        numbers, texts: figures of the elements, None for none of the kind.
    """

    def __init__(self, layout: str | None = None) -> None:
        self.batches = 0
        self.infos: dict[str, None] = {}
        self.dtypes: dict[str, None] = {}
        self.ranks: set[int] = set()
        self.shape_low: list[int] = []
        self.shape_high: list[int] = []
        self.numbers: Numbers | None = None
        self.texts: Texts | None = None
        self._layout = layout

    def add(self, array: NDArray[Any], info: str) -> None:
        """Take in an array and its info."""
        self.batches += 1
        self.infos[info] = None
        self.dtypes[array.dtype.name if array.dtype.kind != "S" else array.dtype.str[1:]] = None
        self.ranks.add(array.ndim)
        for axis, size in enumerate(array.shape):
            if axis == len(self.shape_low):
                self.shape_low.append(size)
                self.shape_high.append(size)
            self.shape_low[axis] = min(self.shape_low[axis], size)
            self.shape_high[axis] = max(self.shape_high[axis], size)
        if array.dtype.kind == "S":
            self.texts = self.texts or Texts()
            self.texts.add(array)
        else:
            self.numbers = self.numbers or Numbers(self._layout)
            self.numbers.add(array)
