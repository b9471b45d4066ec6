"""Storage that keeps what it read in a directory of this machine.

Owns when bytes come from the cache, when they are added to it, and when they are no longer those
of the set. How they lie on disk, and why a killed process does no harm, is `cache_files`'.

- The cache holds a prefix of each file. A read that starts in it takes what is there and fetches
  only the rest, which is added: from k to k' groups is one request for the missing suffix. A read
  that starts beyond it, as of one sample, passes through and is not kept.
- Whether a file of the set is still the same is asked once for each file and storage: by size and
  ETag or time, or by size alone where there is nothing else. Answers that bring bytes tell it too.
- Processes may share a cache. While one fetches, others that need the same bytes wait and then
  have them; after `timeout_s` they read without the cache.
- If the disk is full or cannot be written, a warning says so once, and reading goes on without.
- `cache_bytes` is about how much all sets of the directory may take. When it is reached, what is
  not in the cache is read without it: nothing is thrown out for others, since in random order that
  would be a file needed just as soon. `clear_cache` empties it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorcom.errors import PcrError
from tensorcom.pcr.storage.base import (
    FileStat,
    Origin,
    allocate,
    check_limit,
    check_range,
    root_key,
)
from tensorcom.pcr.storage.cache_files import (
    CacheFiles,
    Writer,
    read_exactly,
    remove_folder,
    set_folders,
    used_bytes,
)

if TYPE_CHECKING:
    import os

_RECOUNT = 64  # count anew after this part of the limit


class CachedStorage:
    """Another storage, with a cache.

    Args:
        origin: where the set is.
        directory: of the cache; made if need be.
        cache_bytes: about how much it may hold, None for no limit.
        timeout_s: how long to wait for another process.

    Attributes:
        root: of the origin.
        shown: of the origin.
        is_local: of the origin.
    """

    def __init__(
        self,
        origin: Origin,
        directory: str | os.PathLike[str],
        *,
        cache_bytes: int | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.root, self.shown = origin.root, origin.shown
        self.is_local = origin.is_local
        self._origin = origin
        self._directory = Path(directory).absolute()
        self._timeout_s = timeout_s
        self._budget = _Budget(self._directory, cache_bytes)
        self._files = CacheFiles(self._directory, origin.key, origin.shown)
        self._known: dict[str, FileStat] = {}
        self._writes = True

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self._origin, self._directory, self._budget.limit, self._timeout_s
        return _rebuild, arguments

    def read(self, name: str, start: int, size: int) -> memoryview:
        """Return exactly `size` bytes from byte `start` of a file; see `Storage`."""
        path = self._origin.path(name)
        stop = check_range(start, size, path)
        if not size or name.startswith("."):  # names of the cache's own
            return self._origin.read(name, start, size)
        data = None
        try:
            data = self._cached(name, start, stop)
            if data is None and self._writes:
                data = self._extended(name, start, stop)
        except PcrError:
            raise
        except OSError as exc:
            self._give_up(exc)
        return self._origin.read(name, start, size) if data is None else data

    def read_all(self, name: str, max_bytes: int) -> bytes:
        """Return a file; PcrFormatError if it is larger than `max_bytes`."""
        size = self.size(name)
        check_limit(size, max_bytes, self._origin.path(name))
        return bytes(self.read(name, 0, size))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return self._stat(name).size_bytes

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""
        return name in self._known or self._origin.exists(name)

    def names(self) -> list[str] | None:
        """Return the names at the origin, or None where none can be listed."""
        return self._origin.names()

    def local_path(self, name: str) -> Path | None:
        """Return where the origin has the file on this machine, or None."""
        return self._origin.local_path(name)

    def close(self) -> None:
        """Close connections; reading again opens them."""
        self._origin.close()

    # -- inside --------------------------------------------------------------------------------

    def _stat(self, name: str) -> FileStat:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._origin.stat(name)
        return known

    def _cached(self, name: str, start: int, stop: int) -> memoryview | None:
        """Return bytes that the cache has, or None."""
        with self._files.opened(name) as found:
            if found is None:
                return None
            file, state = found
            if stop > state.length or state.stat != self._stat(name):
                return None
            return self._load(name, file, start, stop)

    def _load(self, name: str, file: int, start: int, stop: int) -> memoryview:
        data = allocate(stop - start, self._origin.path(name))
        read_exactly(file, data, start)
        return data

    def _extended(self, name: str, start: int, stop: int) -> memoryview | None:
        """Add what is missing to the cache; None if the bytes are not for it."""
        if start > self._files.load_state(name).length:
            return None
        with self._files.locked(name, self._timeout_s) as writer:
            if writer is None:
                return None
            self._drop_stale(writer, name, stop)
            have = writer.state.length
            if start > have:
                return None
            if stop <= have:
                return self._load(name, writer.file, start, stop)
            if not self._budget.take(stop - have):
                return None
            return self._fetched(writer, name, start, stop)

    def _drop_stale(self, writer: Writer, name: str, stop: int) -> None:
        length, stat = writer.state.length, writer.state.stat
        if not length or (name not in self._known and stop > length):
            return  # nothing to doubt, or the bytes that are fetched next will tell
        if self._stat(name) != stat:
            # The cache may know better, by another process that asked later.
            self._known[name] = self._origin.stat(name)
            if self._known[name] != stat:
                writer.restart()

    def _fetched(self, writer: Writer, name: str, start: int, stop: int) -> memoryview | None:
        have = writer.state.length
        if not self._origin.stats_with_data:
            self._stat(name)  # before the bytes: if they are newer than it, the next check sees it
        part = self._origin.fetch(name, have, stop - have)
        stat = self._known[name] = part.stat or self._stat(name)
        if have and stat != writer.state.stat:
            writer.restart()
            return self._fetched(writer, name, start, stop) if start == 0 else None
        if start == have:
            data = part.data
        else:
            data = allocate(stop - start, self._origin.path(name))
            read_exactly(writer.file, data[: have - start], start)
            data[have - start :] = part.data
        try:
            writer.append(part.data, stat)
        except OSError as exc:
            self._give_up(exc)
        return data

    def _give_up(self, error: OSError) -> None:
        if self._writes:
            self._writes = False
            text = f"cache {self._directory}: {error}; reading goes on without adding to it"
            warnings.warn(text, RuntimeWarning, stacklevel=3)


def _rebuild(
    origin: Origin, directory: Path, cache_bytes: int | None, timeout_s: float
) -> CachedStorage:
    return CachedStorage(origin, directory, cache_bytes=cache_bytes, timeout_s=timeout_s)


class _Budget:
    """How many bytes may still be added to a cache."""

    def __init__(self, directory: Path, limit: int | None) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"cache_bytes is {limit}, expected 0 or more, or None for no limit")
        self.limit = limit
        self._directory = directory
        self._counted: int | None = None
        self._added = 0

    def take(self, size: int) -> bool:
        """Count `size` bytes more if there is room for them."""
        if self.limit is None:
            return True
        if self._counted is None or self._added > self.limit // _RECOUNT:
            self._counted, self._added = used_bytes(self._directory), 0  # others add too
        if self._counted + self._added + size > self.limit:
            return False
        self._added += size
        return True


def clear_cache(
    directory: str | os.PathLike[str], *, root: str | os.PathLike[str] | None = None
) -> int:
    """Remove what caches put into a directory, and nothing else.

    Jobs that use the cache meanwhile go on without it.

    Args:
        directory: of the cache.
        root: remove what was kept of this set only.

    Returns:
        How many bytes of data were removed.
    """
    place = Path(directory).absolute()
    only = None if root is None else CacheFiles(place, root_key(str(root)), "").folder
    return sum(
        remove_folder(folder) for folder in list(set_folders(place)) if only in (None, folder)
    )
