"""The directory that a set is written to.

Owns who may write there, what stands for a finished and an unfinished set, which files may be
removed, and how files come to be whole; knows nothing of what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorcom.errors import PcrError, PcrWriteError
from tensorcom.images.folder import printable
from tensorcom.pcr.layout import record_name
from tensorcom.pcr.manifest import INDEX_NAME, MANIFEST_NAME, SAMPLES_NAME
from tensorcom.pcr.reader import UNFINISHED_NAME
from tensorcom.pcr.sqlite_index import FILE_NAME as SQLITE_NAME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

try:
    import fcntl
except ImportError:  # Windows, where two writers are not kept apart
    fcntl = None  # type: ignore[assignment]

REPORT_NAME = "PCR_report.jsonl"
LOCK_NAME = ".PCR_lock"
_PARTIAL_NAME = ".PCR_partial"  # what is being written; there is one writer
_STATE_FORMAT = "tensorcom-pcr-unfinished"
_STATE_VERSION = 1  # changes whenever the same input would give other bytes
_RECORD = re.compile(r"PCR_(0|[1-9][0-9]*)\.pcr")
_DONE = re.compile(r"\.PCR_(0|[1-9][0-9]*)\.done")
_SET_NAMES = (MANIFEST_NAME, INDEX_NAME, SQLITE_NAME)
_FINAL_NAMES = (*_SET_NAMES, SAMPLES_NAME, REPORT_NAME)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)
_BUFFER_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class Held(Enum):
    """What a directory holds."""

    NOTHING = "nothing"
    UNFINISHED = "an unfinished set"
    SET = "a set"
    UNCLEANED = "a set, finished but for what its conversion leaves behind"


def done_name(number: int) -> str:
    """Return the name of the file that says that record `number` is finished."""
    return f".PCR_{number}.done"


class Target:
    """A directory to write a set to, for one writer at a time. Use it as a context manager.

    Args:
        root: the directory; it is made if it is missing.

    Raises:
        PcrWriteError: `root` is no local directory, cannot be written, or another writer has it.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        name = os.fspath(root)
        if "://" in name:
            raise PcrWriteError(
                "a set is written to a local directory; copy it from there", path=name
            )
        self.root = Path(name)
        self._shown = printable(name)
        with self._writing(self._shown):
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()

    # -- one writer ----------------------------------------------------------------------------

    def _take_lock(self) -> int:
        path = self.root / LOCK_NAME
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._flock(lock)
                if _is_still(lock, path):
                    return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)  # the writer that had it has just ended, and removed it

    def _flock(self, lock: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PcrWriteError("another process is writing a set here", path=self._shown) from None
        except OSError as exc:
            if exc.errno not in _NO_LOCKS:
                raise
            logger.warning("%s: the file system has no locks: start no second writer", self._shown)

    def close(self) -> None:
        """Let other writers in."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):
            (self.root / LOCK_NAME).unlink()
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        try:
            yield
        except PcrError:
            raise
        except OSError as exc:
            raise PcrWriteError(f"cannot be written: {exc.strerror or exc}", path=path) from exc

    # -- what is there -------------------------------------------------------------------------

    def _names(self) -> set[str]:
        return {path.name for path in self.root.iterdir()}

    def held(self) -> Held:
        """Return what the directory holds."""
        names = self._names()
        if UNFINISHED_NAME in names:
            return Held.UNCLEANED if MANIFEST_NAME in names else Held.UNFINISHED
        if not names.isdisjoint(_SET_NAMES) or any(map(_RECORD.fullmatch, names)):
            return Held.SET
        return Held.NOTHING

    def state(self) -> dict[str, Any]:
        """Return what the unfinished set is made of.

        Raises:
            PcrWriteError: the file that says so is damaged, or of another version.
        """
        path = self.root / UNFINISHED_NAME
        try:
            value = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or value.get("format") != _STATE_FORMAT:
            raise self._start_over(f"{UNFINISHED_NAME} is damaged")
        if value.get("format_version") != _STATE_VERSION:
            raise self._start_over("another version of tensorcom began the unfinished set in it")
        return value

    def _start_over(self, reason: str) -> PcrWriteError:
        return PcrWriteError(f"{reason}: force=True (--force) starts over", path=self._shown)

    def done(self) -> list[int]:
        """Return the numbers of the records that are finished, ascending."""
        found = (_DONE.fullmatch(name) for name in self._names())
        return sorted(int(match[1]) for match in found if match)

    # -- beginning -----------------------------------------------------------------------------

    def begin(self, state: Mapping[str, Any], *, force: bool) -> None:
        """Begin a new set.

        Args:
            state: what the set is made of, to be compared when its conversion goes on.
            force: remove the set that is there; other files stay.

        Raises:
            PcrWriteError: a set is there, or the directory cannot be written.
        """
        held = self.held()
        if held is not Held.NOTHING and not force:
            if held is Held.SET:
                self.clean()
            raise PcrWriteError(
                f"holds {held.value}; force=True (--force) replaces it", path=self._shown
            )
        # In this order a kill leaves the old set or an unfinished one, with nothing that is taken
        # for a part of the other.
        if held is Held.UNCLEANED:
            self._remove([UNFINISHED_NAME])
        self.clean()
        self._write_state(state)
        self._remove_strays(())

    def go_on(self, state: Mapping[str, Any], done: Collection[int]) -> None:
        """Go on with an unfinished set.

        Args:
            state: what it is made of.
            done: the records that are finished and whole.

        Raises:
            PcrWriteError: the directory cannot be written.
        """
        found = self.done()
        self._remove([done_name(number) for number in found if number not in done])
        self._write_state(state)
        # A manifest may be that of a set which was to be replaced, when a kill came before it was
        # removed: it is this set's only if all that this set left behind is there.
        if self.held() is Held.UNFINISHED or not found or set(found) != set(done):
            self._remove_strays(done)

    def _write_state(self, state: Mapping[str, Any]) -> None:
        text = {"format": _STATE_FORMAT, "format_version": _STATE_VERSION, **state}
        self.write(UNFINISHED_NAME, [json.dumps(text, indent=1).encode() + b"\n"])

    def _remove_strays(self, done: Iterable[int]) -> None:
        """Remove what an unfinished set does not hold yet: all but the records that are done."""
        wanted = {record_name(number) for number in done}
        names = self._names() - wanted
        self._remove(name for name in _FINAL_NAMES if name in names)
        self._remove(name for name in names if _RECORD.fullmatch(name))
        self._remove(name for name in names if name.startswith(_PARTIAL_NAME))

    def clean(self) -> None:
        """Remove what a conversion leaves behind beside a finished set."""
        names = self._names()
        self._remove(name for name in names if name.startswith(_PARTIAL_NAME))
        self._remove(name for name in names if _DONE.fullmatch(name))

    def finish(self) -> None:
        """Say that the set, whose manifest is written, is finished."""
        self._remove([UNFINISHED_NAME])
        self.clean()

    def abandon(self) -> None:
        """Remove the unfinished set."""
        self.clean()
        self._remove_strays(())
        self._remove([UNFINISHED_NAME])

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.root / name
            with self._writing(printable(str(path))):
                path.unlink(missing_ok=True)

    # -- writing -------------------------------------------------------------------------------

    def write(self, name: str, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Write a file that is there as a whole or not at all, whatever happens meanwhile.

        Raises:
            PcrWriteError: it cannot be written.
        """
        write_whole(self.root / name, pieces, partial=self.root / _PARTIAL_NAME)

    @contextlib.contextmanager
    def partial(self, name: str) -> Iterator[Path]:
        """Yield a path to write to; what is there afterwards gets the name in one step.

        Raises:
            PcrWriteError: it cannot be written.
        """
        path = self.root / _PARTIAL_NAME
        with self._writing(printable(str(self.root / name))):
            path.unlink(missing_ok=True)
            yield path
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.replace(self.root / name)
            _sync_directory(self.root)

    def has(self, name: str, size: int) -> bool:
        """Tell whether there is a file of that size."""
        try:
            return (self.root / name).stat().st_size == size
        except OSError:
            return False

    def read(self, name: str) -> bytes:
        """Return a file."""
        return (self.root / name).read_bytes()


def write_whole(
    path: Path, pieces: Iterable[bytes | bytearray | memoryview], *, partial: Path | None = None
) -> None:
    """Write a file that is there as a whole or not at all.

    Args:
        path: the file.
        pieces: its bytes, in order.
        partial: where they are written before, in the same directory.

    Raises:
        PcrWriteError: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or a device, which stays what it is
            with path.open("wb") as file:
                file.writelines(pieces)
            return
        path = path.resolve()
        partial = partial or path.with_name(f".{path.name}.partial")
        try:
            with partial.open("wb", buffering=_BUFFER_BYTES) as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        _sync_directory(path.parent)
    except OSError as exc:
        raise PcrWriteError(
            f"cannot be written: {exc.strerror or exc}", path=printable(str(path))
        ) from exc


def _sync_directory(path: Path) -> None:
    """Make new names last, where the system can."""
    with contextlib.suppress(OSError):
        directory = os.open(path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _is_still(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
