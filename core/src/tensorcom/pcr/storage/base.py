"""What every storage does: checked names, whole reads, errors.

Owns the protocol that readers use, and what its classes share; opens nothing itself.
"""

from __future__ import annotations

import importlib
import random
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import numpy as np

from tensorcom.errors import (
    MissingDependencyError,
    PcrFormatError,
    PcrIndexError,
    PcrReadError,
)
from tensorcom.images.folder import printable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_MAX_OFFSET = 2**63 - 1
_MAX_DELAY_S = 10.0


class Storage(Protocol):
    """The files of one set.

    Names are those of plain files in the set; any other is a PcrFormatError. Safe in threads and
    after a fork. Pickles by configuration.

    Attributes:
        root: the directory or URL of the set, as given.
        shown: the root, fit for errors and files: without secrets.
        is_local: whether that is a directory of this machine, mounted or not.
    """

    root: str
    shown: str
    is_local: bool

    def read(self, name: str, start: int, size: int) -> memoryview:
        """Return exactly `size` bytes from byte `start` of a file.

        Raises:
            PcrIndexError: there is no such file.
            PcrEndError: the file ends before.
            PcrReadError: storage failed, or gave bytes that were not asked for.

        Ownership:
            Memory of the caller's own, or read-only.
        """

    def read_all(self, name: str, max_bytes: int) -> bytes:
        """Return a file; PcrFormatError if it is larger than `max_bytes`."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""

    def names(self) -> list[str] | None:
        """Return the names in the set's directory, or None where none can be listed."""

    def local_path(self, name: str) -> Path | None:
        """Return where a file can be mapped from, or None if it is not on this machine."""

    def close(self) -> None:
        """Close connections; reading again opens them."""


class FileStat(NamedTuple):
    """What tells one version of a file from another.

    Attributes:
        size_bytes: its size.
        tag: an ETag or a time, as storage has it; empty if it has none.
    """

    size_bytes: int
    tag: str


class Part(NamedTuple):
    """Bytes of a file.

    Attributes:
        data: the bytes.
        stat: the version of the file that they are of; None if the answer did not say.
    """

    data: memoryview
    stat: FileStat | None


class PcrEndError(PcrReadError):
    """A read beyond the end of a file: the file is whole, and shorter than was thought.

    Attributes:
        offset: size of the file.
    """

    @classmethod
    def of(cls, path: str, size_bytes: int, stop: int) -> PcrEndError:
        """Build the error for a read up to byte `stop` of a file of `size_bytes`."""
        reason = f"the file has only {size_bytes} bytes, but was asked for bytes up to {stop}"
        return cls(reason, path=path, offset=size_bytes)


class Origin(ABC):
    """Storage that reads where the set is: the rest of a `Storage` from three methods.

    Attributes:
        root: as given.
        key: what tells this set from others.
        shown: the root, fit for errors and files: without secrets.
        is_local: whether that is a directory of this machine, mounted or not.
        stats_with_data: whether parts say which version of the file they are of.
    """

    root: str
    key: str
    shown: str
    is_local = False
    stats_with_data = False

    def path(self, name: str) -> str:
        """Return what errors call a file; PcrFormatError if its name is none of a plain file."""
        return f"{self.shown.rstrip('/')}/{printable(check_name(name, self.shown))}"

    @abstractmethod
    def fetch(self, name: str, start: int, size: int) -> Part:
        """Read as `Storage.read` does, by one request unless that fails."""

    @abstractmethod
    def stat(self, name: str) -> FileStat:
        """Ask for the version of a file; PcrIndexError if there is none."""

    def read(self, name: str, start: int, size: int) -> memoryview:
        """Return exactly `size` bytes from byte `start` of a file; see `Storage`."""
        return self.fetch(name, start, size).data

    def read_all(self, name: str, max_bytes: int) -> bytes:
        """Return a file; PcrFormatError if it is larger than `max_bytes`."""
        size = self.size(name)
        check_limit(size, max_bytes, self.path(name))
        return bytes(self.read(name, 0, size))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return self.stat(name).size_bytes

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""
        try:
            self.stat(name)
        except PcrIndexError:
            return False
        return True

    def names(self) -> list[str] | None:
        """Return None: files cannot be listed."""
        return None

    def local_path(self, name: str) -> Path | None:
        """Return None: the files are elsewhere."""
        self.path(name)
        return None

    def close(self) -> None:  # noqa: B027 - nothing is open unless a class says so
        """Close what is open."""


def root_key(root: str) -> str:
    """Return what tells a set from others."""
    return root.rstrip("/") if "://" in root else str(Path(root).absolute())


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_name(name: str, root: str) -> str:
    """Return `name`, that of a plain file in a set.

    Raises:
        PcrFormatError: the name could lead out of the set.
    """
    if name in ("", ".", "..") or any(character in name for character in "/\\\0"):
        raise PcrFormatError(f"name {name!r} is not that of a file in the set", path=root)
    return name


def check_range(start: int, size: int, path: str) -> int:
    """Return the end of a range that a file can have.

    Raises:
        PcrFormatError: no file has such a range.
    """
    if start < 0 or size < 0 or start + size > _MAX_OFFSET:
        raise PcrFormatError(f"no file has {size} bytes from byte {start}", path=path)
    return start + size


def check_limit(size: int, max_bytes: int, path: str) -> None:
    """Raise PcrFormatError if a file is too large."""
    if size > max_bytes:
        raise PcrFormatError(f"{size} bytes exceed the limit of {max_bytes}", path=path)


def allocate(size: int, path: str) -> memoryview:
    """Return fresh memory; PcrReadError if there is not so much."""
    try:
        return np.empty(size, np.uint8).data
    except MemoryError:
        raise PcrReadError(f"{size} bytes do not fit into memory", path=path) from None


def require(module: str, purpose: str, install_command: str) -> Any:
    """Import a package that core does not need.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise MissingDependencyError.for_package(module, purpose, install_command) from exc


class TransientError(Exception):
    """A failure that another attempt may not meet; its text says what happened."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long to try.

    Attributes:
        retries: attempts after the first.
        timeout_s: seconds for one attempt.
        backoff_s: pause before the first retry; each further one is twice as long.
    """

    retries: int
    timeout_s: float
    backoff_s: float = 0.1

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries is {self.retries}, expected 0 or more")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s}, expected more than 0")

    def run(self, action: Callable[[], T], describe: Callable[[str], PcrReadError]) -> T:
        """Return what `action` returns, trying again after each TransientError.

        Args:
            action: one attempt.
            describe: builds the error after the last attempt, from the text of what failed.
        """
        attempt = 0
        while True:
            try:
                return action()
            except TransientError as error:
                attempt += 1
                if attempt > self.retries:
                    noun = "attempt" if attempt == 1 else "attempts"
                    raise describe(f"after {attempt} {noun}: {error}") from error
            time.sleep(self._delay_s(attempt))

    def _delay_s(self, attempt: int) -> float:
        # Part of it random, so that readers that failed together do not come back together.
        longest = min(self.backoff_s * 2.0 ** (attempt - 1), _MAX_DELAY_S)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class Transfer:
    """The bytes of one read as they come, over one attempt or several.

    Args:
        path: the file, for errors.
        start: first byte.
        size: how many.

    Attributes:
        stop: where the range ends.
        reached: byte of the file from which bytes are missing.
        stat: version of the file that the bytes are of, None as long as nothing said.
    """

    def __init__(self, path: str, start: int, size: int) -> None:
        self.path, self.start, self.size = path, start, size
        self.stop = check_range(start, size, path)
        self.reached = start
        self.stat: FileStat | None = None
        self._data: memoryview | None = None

    @property
    def left(self) -> int:
        """Bytes that are missing."""
        return self.stop - self.reached

    def add(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        if self._data is None and len(data) == self.size:
            self._data = memoryview(data)  # all in one answer: no copy
        else:
            self.room()[: len(data)] = data
        self.reached += len(data)

    def room(self) -> memoryview:
        """Return memory for the bytes that are missing."""
        if self._data is None:
            self._data = allocate(self.size, self.path)
        return self._data[self.reached - self.start :]

    def check_version(self, stat: FileStat | None) -> None:
        """Note the version of the file; PcrReadError if it is not that of the bytes so far."""
        if stat is not None and self.stat is not None and stat != self.stat:
            raise self.error(f"the file changed from {self.stat} to {stat} while it was read")
        self.stat = stat or self.stat

    def error(self, reason: str) -> PcrReadError:
        """Build an error at the byte reached."""
        return PcrReadError(reason, path=self.path, offset=self.reached)

    def failed(self, reason: str) -> PcrReadError:
        """Build the error after the last attempt."""
        return self.error(f"got {self.reached - self.start} of {self.size} bytes {reason}")

    def part(self) -> Part:
        """Return the bytes, all of which came."""
        return Part(self.room() if self._data is None else self._data, self.stat)
