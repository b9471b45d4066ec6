"""Folders of images, one folder per class.

Owns which names are classes, which are images, and their order; opens no image.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from tensorcom.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_MAX_NAMED = 5


def printable(path: str) -> str:
    r"""Return `path` with bytes that are no UTF-8 written as `\xNN`, so that it can be printed."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class PathTable(Sequence[str]):
    """A read-only sequence of paths, kept as one block of bytes.

    A million paths as `str` objects are some 150 MB, copied into every forked process as soon as
    their reference counts are touched; as one block they stay small and shared.

    Args:
        folders: the folder of each label.
        labels: int32 (N,), label of each path.
        names: all paths relative to their folders, as file system bytes, one after the other.
        offsets: int64 (N + 1,), where each name starts in `names`.
    """

    def __init__(
        self,
        folders: Sequence[str],
        labels: NDArray[np.int32],
        names: bytes,
        offsets: NDArray[np.int64],
    ) -> None:
        self._folders = tuple(folders)
        self._labels = labels
        self._names = names
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._labels)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        name = os.fsdecode(self._names[self._offsets[i] : self._offsets[i + 1]])
        return os.path.join(self._folders[self._labels[i]], name)


class ImageFolder:
    """The images below `root`, labelled by the folder right below `root` that holds them.

    Labels are positions in `sorted()` of the folder names, on every machine. Order within a class
    is that of torchvision's `ImageFolder`: by directory path, then by file name. Names that start
    with a dot are neither classes nor images. Links are followed, except those to a folder above.

    Args:
        root: the folder that holds the class folders.
        allow_empty: keep the label of a class without images instead of raising.

    Attributes:
        root: as given.
        classes: class names, in order of their labels.
        paths: path of each image, a `PathTable`.
        labels: int32 (N,), read-only, label of each image.
        skipped: how many names were passed over, by reason.

    Raises:
        SourceError: `root` cannot be listed, holds no class folder or image, or a class is empty.
    """

    root: str
    classes: tuple[str, ...]
    paths: PathTable
    labels: NDArray[np.int32]
    skipped: dict[str, int]

    def __init__(self, root: str | os.PathLike[str], *, allow_empty: bool = False) -> None:
        self.root = os.fspath(root)
        counts: Counter[str] = Counter()
        self.classes = tuple(_list_classes(self.root, counts))
        names, offsets, labels = bytearray(), array("q", [0]), array("i")
        empty = []
        for label, cls in enumerate(self.classes):
            before = len(labels)
            for name in _list_images(os.path.join(self.root, cls), counts):
                names += os.fsencode(name)
                offsets.append(len(names))
                labels.append(label)
            if len(labels) == before:
                empty.append(cls)
        self.skipped = dict(counts)
        if empty and not allow_empty:
            raise SourceError(_describe_empty(empty), path=printable(self.root))
        if not labels:
            raise SourceError("holds no images in its class folders", path=printable(self.root))
        self.labels = np.array(labels, np.int32)
        self.labels.flags.writeable = False
        folders = [os.path.join(self.root, cls) for cls in self.classes]
        self.paths = PathTable(folders, self.labels, bytes(names), np.array(offsets, np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """Return the path of image `index`."""
        return self.paths[index]


def training_folder(root: str | os.PathLike[str]) -> str:
    """Return `root/train` if that holds class folders, else `root`.

    A folder `train` with images of its own is a class of that name, not a training set.
    """
    train = os.path.join(os.fspath(root), "train")
    if not os.path.isdir(train):
        return os.fspath(root)
    has_folder = False
    for entry in _scan(train):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            has_folder = True
        elif _is_image_name(entry.name):
            return os.fspath(root)
    return train if has_folder else os.fspath(root)


def _is_image_name(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def _describe_empty(empty: list[str]) -> str:
    named = ", ".join(repr(name) for name in empty[:_MAX_NAMED])
    more = f" and {len(empty) - _MAX_NAMED} more" if len(empty) > _MAX_NAMED else ""
    noun = "class" if len(empty) == 1 else "classes"
    return (
        f"no images in {noun} {named}{more}, expected files ending in {' '.join(IMAGE_SUFFIXES)}; "
        "allow_empty=True (when converting allow_empty_class=True, --allow-empty-class) keeps such "
        "labels"
    )


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as exc:
        raise SourceError(f"cannot be listed: {exc.strerror}", path=printable(folder)) from exc


def _list_classes(root: str, counts: Counter[str]) -> list[str]:
    classes = []
    for entry in _scan(root):
        if entry.name.startswith("."):
            counts["hidden"] += 1
        elif entry.is_dir():
            classes.append(entry.name)
        else:
            counts["loose file"] += 1
    if not classes:
        raise SourceError("holds no folders, expected one per class", path=printable(root))
    return sorted(classes)


def _list_images(folder: str, counts: Counter[str]) -> Iterator[str]:
    """Yield the images below `folder`, relative to it."""
    found: list[tuple[str, list[str]]] = []
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        names = []
        for entry in _scan(here):
            if entry.name.startswith("."):
                counts["hidden"] += 1
            elif entry.is_dir():
                if entry.is_symlink() and _leads_up(entry.path, here):
                    counts["link to a folder above"] += 1
                else:
                    waiting.append(entry.path)
            elif not _is_image_name(entry.name):
                counts["not an image"] += 1
            elif not entry.is_file():  # a pipe would block its reader for ever
                counts["not a file"] += 1
            else:
                names.append(entry.name)
        found.append((here, sorted(names)))
    for here, names in sorted(found):
        prefix = here[len(folder) + 1 :]
        for name in names:
            yield os.path.join(prefix, name)


def _leads_up(link: str, folder: str) -> bool:
    target, here = os.path.realpath(link), os.path.realpath(folder)
    return os.path.commonpath([target, here]) == target
