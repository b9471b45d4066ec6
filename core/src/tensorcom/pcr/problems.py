"""What is damaged in a set, and where.

Owns how damage is described; finds none itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorcom.images.folder import printable

if TYPE_CHECKING:
    from tensorcom.errors import TensorcomError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is damaged.

    Attributes:
        path: name of the file in the set.
        reason: what was found and what was expected.
        offset: byte offset in the file, None if not known.
        part: 0 for the metadata of a record, or the number of the scan group; None for neither.
        image: number of the image in the record, None if not known or several.
        sample: its number in the set.
    """

    path: str
    reason: str
    offset: int | None = None
    part: int | None = None
    image: int | None = None
    sample: int | None = None

    def __str__(self) -> str:
        """Return place and reason in one line that can be printed."""
        words = [printable(self.path)]
        if self.part is not None:
            words.append(f"group {self.part}" if self.part else "metadata")
        if self.image is not None:
            number = "" if self.sample is None else f" (sample {self.sample})"
            words.append(f"image {self.image}{number}")
        if self.offset is not None:
            words.append(f"at byte {self.offset}")
        return f"{' '.join(words)}: {self.reason}"


def problem_of(error: TensorcomError, path: str, **place: int | None) -> Problem:
    """Return the problem that an error of a file tells of; its own place wins."""
    for name in ("offset", "image"):
        value = getattr(error, name, None)
        if value is not None:
            place[name] = value
    return Problem(path, error.reason, **place)
