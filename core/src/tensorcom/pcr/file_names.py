"""Names of files for the images of a set, which come from the set and are not trusted.

Owns which names are safe and that no two are alike; opens nothing.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorcom.pcr.reader import PcrReader

_JPEG_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")
_MAX_BYTES = 255
_ROOM_BYTES = 32  # for what tells twins apart


def safe_name(text: str) -> str:
    """Return a plain file name as like `text` as can be.

    Separators, control characters and a dot in front become `_`. Bytes that are no UTF-8 stay.
    """
    kept = "".join(c if c.isprintable() or "\udc80" <= c <= "\udcff" else "_" for c in text)
    kept = kept.replace("/", "_").replace("\\", "_")
    kept = f"_{kept[1:]}" if kept.startswith(".") else kept
    return _cut(kept, _MAX_BYTES) or "_"


def _cut(text: str, size: int) -> str:
    """Return as much of the start of `text` as fits in `size` bytes."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) <= size:
        return text
    while size and data[size] & 0xC0 == 0x80:  # inside of a character
        size -= 1
    return data[:size].decode("utf-8", "surrogateescape")


def _cut_stem(name: str, size: int) -> str:
    """Shorten a name to `size` bytes, and keep its suffix."""
    stem, dot, suffix = name.rpartition(".")
    return _cut(stem, size - len(suffix) - 1) + dot + suffix


class FileNames:
    """A relative path for each image of a set: a folder for its class, and a name in it.

    The path of an image is the same whichever other images are asked for. Folders have the names of
    the classes, or numbers if the set does not name them; files those of their sources, with the
    number of the sample where two would be alike.

    Args:
        reader: the set.
    """

    def __init__(self, reader: PcrReader) -> None:
        self._reader = reader
        self._digits = len(str(max(len(reader) - 1, 0)))
        self._folders = self._name_folders()
        self._known: set[int] = set()
        self._twins: set[int] = set()
        for sample in range(len(reader)):
            key = self._key(sample, self._base(sample))
            (self._twins if key in self._known else self._known).add(key)

    def _name_folders(self) -> tuple[str, ...]:
        reader = self._reader
        labels = int(reader.labels.max(initial=0)) + 1
        names = list(reader.class_names or ())
        digits = len(str(labels - 1))
        folders: list[str] = []
        taken: set[str] = set()
        for label in range(max(labels, len(names))):
            # Numbers of one length: sorted, they give the same labels again.
            number = f"{label:0{digits}d}"
            name = safe_name(names[label]) if label < len(names) else number
            if name.casefold() in taken:
                name = f"{_cut(name, _MAX_BYTES - _ROOM_BYTES)}-{number}"
            while name.casefold() in taken:
                name += "_"
            taken.add(name.casefold())
            folders.append(name)
        return tuple(folders)

    def _base(self, sample: int) -> str:
        name = (self._reader.name(sample) or "").rpartition("/")[2]
        if not name:
            return f"{sample:0{self._digits}d}.jpg"
        name = safe_name(name)
        if not name.lower().endswith(_JPEG_SUFFIXES):
            name += ".jpg"
        return _cut_stem(name, _MAX_BYTES)

    def _key(self, sample: int, name: str) -> int:
        # Alike on file systems that take no notice of case, too. As numbers: there may be millions.
        return hash((int(self._reader.labels[sample]), name.casefold()))

    def path(self, sample: int) -> PurePath:
        """Return the path of an image."""
        name = self._base(sample)
        if self._key(sample, name) in self._twins:
            stem, _, suffix = _cut_stem(name, _MAX_BYTES - _ROOM_BYTES).rpartition(".")
            stem = f"{stem}-{sample:0{self._digits}d}"
            while self._key(sample, f"{stem}.{suffix}") in self._known:
                stem += "_"
            name = f"{stem}.{suffix}"
        return PurePath(self._folders[int(self._reader.labels[sample])], name)
