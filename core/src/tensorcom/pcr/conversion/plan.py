"""Which image goes into which record, and which records are left to do.

Owns the numbers: record i holds images i * n to (i + 1) * n of the source, whatever becomes of
them, so that records do not depend on each other. Reads no image and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tensorcom.errors import PcrWriteError
from tensorcom.pcr.conversion.workers import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tensorcom.pcr.conversion.sources import ImageSource


class Plan:
    """The images of a source that are still to be converted.

    Args:
        source: the images.
        size: images in a record.
        done: for each finished record, how many images of the source it took.
        stop: asked before each image; True ends the plan.

    Attributes:
        passed: images of finished records so far.
        stopped: whether `stop` ended it.
    """

    def __init__(
        self,
        source: ImageSource,
        *,
        size: int,
        done: Mapping[int, int],
        stop: Callable[[], bool],
    ) -> None:
        self._source, self._size = source, size
        self._done, self._stop = done, stop
        self.passed = 0
        self.stopped = False

    def is_stopped(self) -> bool:
        """Ask whether to end, and remember it."""
        self.stopped = self.stopped or self._stop()
        return self.stopped

    def tasks(self) -> Iterator[Task]:
        """Yield what is to do, record by record.

        Raises:
            PcrWriteError: a finished record holds other images than the source now has for it.
            SourceError: the source cannot be read.
        """
        found: Counter[int] = Counter()
        for position, entry in enumerate(self._source.entries()):
            if self.is_stopped():
                return
            record = position // self._size
            if record in self._done:
                found[record] += 1
                self.passed += 1
            else:
                yield Task(record, entry)
        for record, count in self._done.items():
            if found[record] != count:
                raise PcrWriteError(
                    f"record {record} was made of {count} images, of which the source now has "
                    f"{found[record]}: force=True (--force) starts over"
                )
