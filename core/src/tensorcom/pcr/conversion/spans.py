"""Where each image of plain tars lies, so that they can be read in any order.

Owns the table of places, a few numbers for each image, and reading by them.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from tensorcom.errors import SourceError
from tensorcom.images.folder import printable
from tensorcom.shards import ShardSample, Span, index_shard, local_path

if TYPE_CHECKING:
    from collections.abc import Sequence


class Row(NamedTuple):
    """One image.

    Attributes:
        shard: the tar that holds it.
        span: where in it.
        label: its class; None if it is not known.
        name: of its member.
        place: shard and name, for errors.
        fault: why it cannot be read, else None.
    """

    shard: str
    span: Span
    label: int | None
    name: str
    place: str
    fault: SourceError | None


class SpanTable:
    """The images of plain tars, in order.

    Args:
        shards: names of the tars, which are read once, but for the images.

    Raises:
        SourceError: a shard cannot be read.
    """

    def __init__(self, shards: Sequence[str]) -> None:
        self._shards = shards
        self._numbers = array("i")  # of the shard
        self._offsets, self._sizes, self._labels = array("q"), array("q"), array("i")
        self._names, self._ends = bytearray(), array("q", [0])
        self._faults: dict[int, SourceError] = {}
        for number, shard in enumerate(shards):
            for sample in index_shard(shard, on_bad=_same):
                self._add(number, sample)

    def _add(self, number: int, sample: ShardSample[Span] | SourceError) -> None:
        span, label, name = Span(0, 0), -1, ""
        if isinstance(sample, SourceError):
            self._faults[len(self)] = sample
        else:
            span, label, name = sample.image, sample.label, sample.name
        self._numbers.append(number)
        self._offsets.append(span.offset)
        self._sizes.append(span.size)
        self._labels.append(label)
        self._names += name.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._names))

    def __len__(self) -> int:
        return len(self._numbers)

    def row(self, position: int) -> Row:
        """Return an image."""
        shard = self._shards[self._numbers[position]]
        span = Span(self._offsets[position], self._sizes[position])
        name = self._names[self._ends[position] : self._ends[position + 1]]
        text = name.decode("utf-8", "surrogateescape")
        fault = self._faults.get(position)
        if fault is not None:
            return Row(shard, span, None, "", fault.path or shard, fault)
        return Row(shard, span, self._labels[position], text, f"{shard}:{text}", None)


def _same(error: SourceError) -> SourceError:
    return error


def read_span(row: Row) -> bytes:
    """Return the bytes of an image.

    Raises:
        SourceError: the tar ends before, or cannot be read.
    """
    path = local_path(row.shard)
    try:
        if path is None:
            raise FileNotFoundError(row.shard)
        with path.open("rb") as file:
            file.seek(row.span.offset)
            data = file.read(row.span.size)
    except OSError as exc:
        raise SourceError(f"cannot be read: {exc.strerror}", path=printable(row.place)) from exc
    if len(data) < row.span.size:
        raise SourceError("the tar ends within it", path=printable(row.place))
    return data
