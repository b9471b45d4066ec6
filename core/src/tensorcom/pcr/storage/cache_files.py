"""Files of a cache: prefixes that grow, and what says how far they can be trusted.

Owns the layout on disk, its locks and its crash safety. Knows nothing of where bytes come from.

For a set: `DIR/<hash of root>/<name>` holds the first bytes of a file of the set, and
`.state/<name>` beside it says how many are good (JSON: inode, length, crc32, boot, size, tag).

1. Bytes of a data file up to the length in its state never change: a file that has to be read anew
   gets a new data file. So reading takes no lock: open the data file, then read the state, and
   compare the inode.
2. Writing takes the data file's lock (flock). Bytes are written after those that are good, then
   the state is replaced by renaming. A process killed in between leaves bytes beyond the length,
   which nobody reads and the next writer overwrites.
3. The state exists, at least empty, before the data file: it records what the cache created, and
   nothing else is ever deleted.
4. A crash of the whole system can lose bytes that the state counts on. So the state also names the
   boot of the system; after another one the checksum is compared before the bytes are used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
import uuid
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tensorcom.pcr.storage.base import FileStat

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER = ".cache.json"
STATE, NEW, NEW_STATE = ".state", ".new", ".new-state"
_FORMAT = "tensorcom pcr cache 1"
_POLL_S = 0.01
_STEP_BYTES = 1 << 22
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what tells this boot of the system from others."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"process {uuid.uuid4().hex}"  # no way to know: check once in every process


class State(NamedTuple):
    """What is known of a data file.

    Attributes:
        inode: of the data file; another one is not meant.
        length: bytes that are good.
        crc32: of those.
        boot: in which the bytes were written or checked.
        size: of the whole file in its set.
        tag: of the whole file in its set.
    """

    inode: int
    length: int
    crc32: int
    boot: str
    size: int
    tag: str

    @property
    def stat(self) -> FileStat:
        """The version of the file in its set."""
        return FileStat(self.size, self.tag)


EMPTY = State(0, 0, 0, "", 0, "")


class Writer:
    """The right to change one entry, while its lock is held.

    Attributes:
        state: of the data file; EMPTY if nothing in it is good.
    """

    def __init__(self, files: CacheFiles, name: str, file: int) -> None:
        self._files, self._name, self.file = files, name, file
        self._old: list[int] = []
        self.state = EMPTY

    def load(self) -> None:
        """Find out what is good in the data file."""
        found = state = self._files.load_state(self._name)
        status = os.fstat(self.file)
        if state.inode != status.st_ino or state.length > status.st_size:
            state = EMPTY
        if state.length and state.boot != self._files.boot:
            if _crc32(self.file, state.length) != state.crc32:
                state = EMPTY
            else:
                state = state._replace(boot=self._files.boot)
                self._files.store_state(self._name, state)
        self.state = state
        if not state.length and (status.st_size or found != EMPTY):
            self.restart()  # not in place: others may be reading it

    def restart(self) -> None:
        """Begin with an empty data file; whoever reads the old one keeps it."""
        files, name = self._files, self._name
        files.store_state(name, EMPTY)  # first: inode numbers are used again
        new = files.place(name, NEW)
        new.unlink(missing_ok=True)  # of a process that was killed
        self._old.append(self.file)
        self.file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else can have opened it
        new.replace(files.place(name))
        self.state = EMPTY

    def append(self, data: memoryview, stat: FileStat) -> None:
        """Add the next bytes of the file."""
        length = self.state.length
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self.file, data[done:], length + done)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.file, length)  # the disk is full: give back what was taken
            raise
        crc32 = zlib.crc32(data, self.state.crc32)
        inode = os.fstat(self.file).st_ino
        state = State(inode, length + len(data), crc32, self._files.boot, *stat)
        self._files.store_state(self._name, state)
        self.state = state

    def release(self) -> None:
        """Let go of the lock."""
        for file in {self.file, *self._old}:
            # Unlocked by name: a process that was forked meanwhile has the file open too.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


class CacheFiles:
    """The part of a cache that belongs to one set.

    Args:
        directory: of the cache.
        root: of the set, as the key.
        shown: of the set, as is fit to be written down.
    """

    def __init__(self, directory: Path, root: str, shown: str) -> None:
        digest = hashlib.sha256(os.fsencode(root)).hexdigest()
        self.folder = directory / digest[:32]
        self.boot = boot_id()
        self._shown = shown

    def place(self, name: str, kind: str = "") -> Path:
        """Return where the file of a kind is for `name`."""
        return self.folder / kind / name

    def create(self) -> None:
        """Make the directory, with a mark that says whose it is."""
        for kind in (STATE, NEW, NEW_STATE):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)
        marker = self.folder / MARKER
        if not marker.exists():
            text = json.dumps({"format": _FORMAT, "root": self._shown})
            temporary = self.folder / NEW / MARKER
            temporary.write_text(text)
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                temporary.replace(marker)

    # -- state ---------------------------------------------------------------------------------

    def load_state(self, name: str) -> State:
        """Return the state of an entry; EMPTY if there is none that can be read."""
        try:
            found = State(**json.loads(self.place(name, STATE).read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return EMPTY
        numbers = (found.inode, found.length, found.crc32, found.size)
        texts = (found.boot, found.tag)
        good = all(type(n) is int and n >= 0 for n in numbers)
        return found if good and all(type(t) is str for t in texts) else EMPTY

    def store_state(self, name: str, state: State) -> None:
        """Replace the state of an entry in one step; by the holder of its lock."""
        temporary = self.place(name, NEW_STATE)
        temporary.write_text(json.dumps(state._asdict()))
        temporary.replace(self.place(name, STATE))

    # -- reading -------------------------------------------------------------------------------

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[int, State] | None]:
        """Open a data file to read what is good in it: its descriptor and state, else None."""
        try:
            file = os.open(self.place(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            yield None
            return
        try:
            # In this order: as long as it is open, no other data file can get its inode.
            state = self.load_state(name)
            status = os.fstat(file)
            good = state.inode == status.st_ino and state.length <= status.st_size
            yield (file, state) if good and state.boot == self.boot else None
        finally:
            os.close(file)

    # -- writing -------------------------------------------------------------------------------

    @contextmanager
    def locked(self, name: str, timeout_s: float) -> Iterator[Writer | None]:
        """Take the lock of an entry, which is made if need be; None if others keep it so long."""
        self.create()
        os.close(os.open(self.place(name, STATE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        file = self._lock(name, time.monotonic() + timeout_s)
        if file is None:
            yield None
            return
        writer = Writer(self, name, file)
        try:
            writer.load()
            yield writer
        finally:
            writer.release()

    def _lock(self, name: str, deadline: float) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            file = os.open(self.place(name), flags, 0o666)
            try:
                while not _try_lock(file):
                    if time.monotonic() > deadline:
                        os.close(file)
                        return None
                    time.sleep(_POLL_S)
                if _is_at(file, self.place(name)):
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # replaced while this waited: its lock says nothing any more


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(file))


def read_exactly(file: int, target: memoryview, start: int) -> None:
    """Fill `target` from a byte of an open file; OSError if the file is shorter."""
    done = 0
    while done < len(target):
        count = os.preadv(file, [target[done:]], start + done)
        if not count:
            raise OSError("a file of the cache was cut")
        done += count


def _crc32(file: int, length: int) -> int:
    value = done = 0
    while done < length:
        data = os.pread(file, min(length - done, _STEP_BYTES), done)
        if not data:
            return -1
        value = zlib.crc32(data, value)
        done += len(data)
    return value


def set_folders(directory: Path) -> Iterator[Path]:
    """Yield the folders of a cache: those with our mark."""
    for marker in sorted(directory.glob(f"*/{MARKER}")):
        with contextlib.suppress(OSError, ValueError):
            head = json.loads(marker.read_bytes())
            if isinstance(head, dict) and head.get("format") == _FORMAT:
                yield marker.parent


def used_bytes(directory: Path) -> int:
    """Return how many bytes of sets a cache holds."""
    used = 0
    for folder in set_folders(directory):
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        used += entry.stat().st_size
    return used


def remove_folder(folder: Path) -> int:
    """Remove what the cache created in the folder of a set; return how many bytes that were."""
    removed = 0
    for state in [path for path in (folder / STATE).glob("*") if path.is_file()]:
        name = state.name
        with contextlib.suppress(FileNotFoundError):
            removed += (folder / name).stat().st_size
        for path in (folder / name, folder / NEW / name, folder / NEW_STATE / name, state):
            path.unlink(missing_ok=True)  # the state last: it says that the others are ours
    (folder / NEW / MARKER).unlink(missing_ok=True)
    for kind in (NEW, NEW_STATE, STATE):
        _remove_empty(folder / kind)
    if [path.name for path in folder.iterdir()] == [MARKER]:
        (folder / MARKER).unlink(missing_ok=True)
        _remove_empty(folder)
    return removed


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not ours alone, or in use
        folder.rmdir()
