"""What the threads of a conversion do: one image, from its file to its scan groups.

Owns what happens to an image that is bad or no JPEG; knows nothing of records or their files.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tensorcom.errors import ImageError, JpegError, SourceError
from tensorcom.images import decode_image, detect_format
from tensorcom.images.decode import import_pillow
from tensorcom.images.folder import printable
from tensorcom.pcr.assemble import check_label
from tensorcom.pcr.conversion.report import CONVERTED, NOTED, REENCODED, SKIPPED

if TYPE_CHECKING:
    from tensorcom.pcr.conversion.sources import Entry
    from tensorcom.pcr.transcode import Transcoded, Transcoder

OnError = Literal["raise", "skip"]


class _SystemError(SourceError):
    """A file cannot be read, and that is no fault of the file."""


@dataclass(frozen=True, slots=True)
class Task:
    """An image to convert.

    Attributes:
        record: number of the record that it belongs to.
        entry: the image.
    """

    record: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an image.

    Attributes:
        task: the image.
        status: CONVERTED, NOTED, REENCODED or SKIPPED.
        notes: what there is to say; the reason, if it was skipped.
        image: its scan groups; None if it was skipped.
        label: its class.
        source_bytes: bytes of its file.
    """

    task: Task
    status: str
    notes: tuple[str, ...]
    image: Transcoded | None = None
    label: int = 0
    source_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Worker:
    """Converts images, in any number of threads.

    Attributes:
        transcoder: makes scan groups of a JPEG.
        classes: how many classes have names; None if none has.
        on_error: "raise" the error of a bad image, or "skip" it.
        reencode: quality at which what is no JPEG is encoded as one; None refuses it.
    """

    transcoder: Transcoder
    classes: int | None
    on_error: OnError
    reencode: int | None

    def __call__(self, task: Task) -> Outcome:
        """Convert an image.

        Raises:
            JpegError: it is bad, and the policy is to raise.
            ImageError: it is to be encoded as JPEG, and cannot be decoded; the policy is to raise.
            SourceError: its file or label is bad and the policy is to raise, or the system fails.
            MissingDependencyError: what converts it is not installed.
        """
        try:
            return self._convert(task)
        except (JpegError, ImageError, SourceError) as exc:
            if self.on_error == "raise" or isinstance(exc, _SystemError):
                raise
            return Outcome(task, SKIPPED, (exc.reason,))

    def _convert(self, task: Task) -> Outcome:
        entry = task.entry
        path = printable(entry.path)
        try:
            data = entry.load()
        except OSError as exc:
            raise _SystemError(f"cannot be read: {exc.strerror or exc}", path=path) from exc
        label = check_label(entry.label, self.classes, path=path)
        size, notes = len(data), []
        kind = detect_format(data[:16])
        if self.reencode is not None and kind not in (None, "JPEG"):
            data = _encode(data, self.reencode, path)
            notes.append(f"{kind}, encoded as JPEG at quality {self.reencode}")
        image = self.transcoder.transcode(data, path=path)
        status = REENCODED if notes else NOTED if image.notes else CONVERTED
        return Outcome(task, status, (*notes, *image.notes), image, label, size)


def _encode(data: bytes, quality: int, path: str) -> bytes:
    """Encode an image of another kind as JPEG: this one is not without loss."""
    pillow = import_pillow()
    pixels = decode_image(data, path=path)
    stream = io.BytesIO()
    try:
        pillow.fromarray(pixels).save(stream, "JPEG", quality=quality)
    except (OSError, ValueError) as exc:
        raise ImageError(f"cannot be encoded as JPEG: {exc}", path=path) from exc
    return stream.getvalue()
