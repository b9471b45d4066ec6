"""Storage in a directory of this machine.

Owns how files of a set are opened: none outside its directory, and nothing but regular files.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcom.errors import PcrError, PcrFormatError, PcrIndexError, PcrReadError
from tensorcom.images.folder import printable
from tensorcom.pcr.storage.base import (
    FileStat,
    Origin,
    Part,
    PcrEndError,
    allocate,
    check_name,
    check_range,
    root_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not block
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_LINK = (errno.ELOOP, errno.EMLINK)  # what O_NOFOLLOW says of a link: Linux, BSD


class LocalStorage(Origin):
    """Files in a directory.

    Each read opens the file, so that nothing stays open and a fork finds nothing to share. A read
    asks the system for its bytes only, and never for more than the file has.

    Args:
        root: the directory; a link is followed, and later changes of directory do not matter.
    """

    is_local = True
    stats_with_data = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        self.key = root_key(self.root)
        self.shown = printable(self.root)

    def _place(self, name: str) -> str:
        return f"{self.key.rstrip('/')}/{check_name(name, self.shown)}"

    def fetch(self, name: str, start: int, size: int) -> Part:
        """Read bytes of a file into fresh memory; see `Storage.read`."""
        path = self.path(name)
        stop = check_range(start, size, path)
        with self._opened(name) as (file, status):
            if stop > status.st_size:
                raise PcrEndError.of(path, status.st_size, stop)
            data = allocate(size, path)
            done = 0
            while done < size:
                count = os.preadv(file, [data[done:]], start + done)
                if not count:
                    reason = f"got {done} of {size} bytes: the file was cut while it was read"
                    raise PcrReadError(reason, path=path, offset=start + done)
                done += count
        return Part(data, _version(status))

    def stat(self, name: str) -> FileStat:
        """Return size and time of a file."""
        with self._opened(name) as (_, status):
            return _version(status)

    def names(self) -> list[str] | None:
        """Return all names in the directory."""
        try:
            return [entry.name for entry in Path(self.key).iterdir()]
        except OSError as exc:
            raise PcrReadError(f"cannot be listed: {exc.strerror}", path=self.shown) from exc

    def local_path(self, name: str) -> Path | None:
        """Return the path of a file, links resolved."""
        with self._opened(name):
            return Path(self._place(name)).resolve()

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[int, os.stat_result]]:
        path, shown = self._place(name), self.path(name)
        file = -1
        try:
            try:
                file = os.open(path, _FLAGS)
            except OSError as exc:
                if exc.errno not in _LINK:
                    raise
                file = os.open(self._target(path), _FLAGS)
            status = os.fstat(file)
            if not modes.S_ISREG(status.st_mode):
                raise PcrFormatError("is no regular file", path=shown)
            yield file, status
        except PcrError:
            raise
        except OSError as exc:
            if exc.errno in _MISSING:
                raise PcrIndexError("no such file", path=shown) from exc
            raise PcrReadError(f"cannot be read: {exc.strerror}", path=shown) from exc
        finally:
            if file >= 0:
                os.close(file)

    def _target(self, path: str) -> str:
        """Return what a link in the set leads to, if that is in the set too."""
        target, folder = os.path.realpath(path), os.path.realpath(self.key)
        if os.path.commonpath([target, folder]) != folder:
            reason = f"name {Path(path).name!r} is a link out of the set, to {printable(target)}"
            raise PcrFormatError(reason, path=self.shown)
        return target


def _version(status: os.stat_result) -> FileStat:
    return FileStat(status.st_size, f"{status.st_mtime_ns}-{status.st_ino}")
