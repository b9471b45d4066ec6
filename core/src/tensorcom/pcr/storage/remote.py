"""Storage on any fsspec file system: s3, gs, memory and many more.

Owns one `cat_file` per read, another for the rest of a short answer, and a file system object for
each process. Which bytes a file system asks for, and how, is fsspec's.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorcom.errors import (
    MissingDependencyError,
    PcrIndexError,
    PcrReadError,
    TensorcomError,
)
from tensorcom.locks import ForkLock
from tensorcom.pcr.storage.base import (
    FileStat,
    Origin,
    Part,
    PcrEndError,
    RetryPolicy,
    Transfer,
    TransientError,
    require,
    root_key,
    shown_url,
)
from tensorcom.pcr.storage.http import INSTALL
from tensorcom.pcr.storage.io_thread import TIMEOUTS, IoThread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Extras of ours; other packages are named as fsspec names them.
_INSTALL = {"s3": "pip install 'tensorcom[s3]'", "s3a": "pip install 'tensorcom[s3]'"}
_TAGS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")
_FATAL = (PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError, TypeError)


@dataclass(frozen=True)
class _Client:
    """A file system and how to call it.

    Attributes:
        fs: the file system.
        base: what it calls the root.
        thread: runs its coroutines; None if its methods are plain functions.
        pid: the process that made it.
    """

    fs: Any
    base: str
    thread: IoThread | None
    pid: int

    def call(self, method: str, *args: Any, timeout_s: float, **kwargs: Any) -> Any:
        if self.thread is None:
            return getattr(self.fs, method)(*args, **kwargs)
        coroutine = getattr(self.fs, f"_{method}")(*args, **kwargs)
        return self.thread.run(coroutine, timeout_s)

    def close(self) -> None:
        if self.pid != os.getpid():
            # A forked child never lets go of the parent's client, not even at its own end. That
            # would take the sockets out of the epoll set that both share, so that the parent waits
            # for answers for ever; and clients complain on stderr that they were not closed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            return
        if self.thread is not None:
            self.thread.close(lambda: _close_session(self.fs))


async def _close_session(fs: Any) -> None:
    # The way that fsspec documents: its file systems do not close themselves.
    opened = getattr(fs, "set_session", None) or getattr(fs, "_set_session", None)
    if opened is not None:
        session = await opened()
        await session.close()


class FsspecStorage(Origin):
    """Files below the URL of an fsspec file system.

    Times bound the file systems that are asynchronous, as those of object stores are; others have
    limits of their own.

    Args:
        root: the URL.
        policy: attempts and times.
        options: of the file system.
    """

    def __init__(self, root: str, policy: RetryPolicy, options: Mapping[str, Any]) -> None:
        self._fsspec = require("fsspec", f"reading {shown_url(root)}", INSTALL)
        self.root = root
        self.key, self.shown = root_key(root), shown_url(root)
        self._policy = policy
        self._options = dict(options)
        self._lock = ForkLock()
        self._client: _Client | None = None
        self._end: Callable[[], object] | None = None
        self._file_system_class()

    def __reduce__(self) -> tuple[Any, ...]:
        return FsspecStorage, (self.root, self._policy, self._options)

    def fetch(self, name: str, start: int, size: int) -> Part:
        """Read bytes of a file; see `Storage.read`."""
        transfer = Transfer(self.path(name), start, size)
        if size:
            self._policy.run(lambda: self._attempt(name, transfer), transfer.failed)
        return transfer.part()

    def stat(self, name: str) -> FileStat:
        """Ask for size and version of a file, without its bytes."""
        path = self.path(name)
        return self._policy.run(
            lambda: self._info(name, path),
            lambda reason: PcrReadError(f"no answer {reason}", path=path),
        )

    def names(self) -> list[str] | None:
        """Return all names below the root, as the file system lists them."""
        found = self._policy.run(
            lambda: self._call("ls", "", self.shown, detail=False),
            lambda reason: PcrReadError(f"cannot be listed {reason}", path=self.shown),
        )
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    # -- one attempt ---------------------------------------------------------------------------

    def _attempt(self, name: str, transfer: Transfer) -> None:
        start, stop = transfer.reached, transfer.stop
        try:
            data = self._call("cat_file", name, transfer.path, start=start, end=stop)
        except TransientError:
            self._check_end(name, transfer)  # a range beyond the end is an error to some
            raise
        if len(data) > stop - start:
            raise transfer.error(f"storage gives {len(data)} bytes, expected {stop - start}")
        if len(data) < stop - start:
            self._check_end(name, transfer)  # before there is memory for a size that is wrong
        transfer.add(data)
        if transfer.left:
            raise TransientError(f"storage gave {transfer.left} bytes too few")

    def _check_end(self, name: str, transfer: Transfer) -> None:
        """Raise PcrEndError if the file ends before the range does."""
        try:
            size = self._info(name, transfer.path).size_bytes
        except TransientError:
            return  # this attempt failed anyway
        if size < transfer.stop:
            raise PcrEndError.of(transfer.path, size, transfer.stop)

    def _info(self, name: str, path: str) -> FileStat:
        info = self._call("info", name, path)
        size = info.get("size")
        if info.get("type") == "directory":
            raise PcrIndexError("is a directory, not a file", path=path)
        if not isinstance(size, int):
            raise PcrReadError("storage does not say how large the file is", path=path)
        return FileStat(size, next((str(info[key]) for key in _TAGS if info.get(key)), ""))

    def _call(self, method: str, name: str, path: str, **kwargs: Any) -> Any:
        timeout_s = self._policy.timeout_s
        try:
            client = self._open_client()
            return client.call(method, f"{client.base}/{name}", timeout_s=timeout_s, **kwargs)
        except TensorcomError:
            raise
        except CancelledError as exc:
            raise PcrReadError("the storage was closed meanwhile", path=path) from exc
        except FileNotFoundError as exc:
            raise PcrIndexError("no such file", path=path) from exc
        except _FATAL as exc:
            raise PcrReadError(f"{type(exc).__name__}: {exc}", path=path) from exc
        except TIMEOUTS as exc:
            raise TransientError(f"no answer within {timeout_s:g} s") from exc
        except Exception as exc:  # whatever the library behind raises
            raise TransientError(f"{type(exc).__name__}: {exc}") from exc

    # -- life ----------------------------------------------------------------------------------

    def _file_system_class(self) -> Any:
        protocol = self._fsspec.core.split_protocol(self.root)[0]
        try:
            return self._fsspec.get_filesystem_class(protocol)
        except ImportError as exc:
            package = (getattr(exc.__cause__, "name", None) or protocol).partition(".")[0]
            command = _INSTALL.get(protocol, f"pip install {package}")
            raise MissingDependencyError.for_package(
                package, f"reading {protocol}:// URLs", command
            ) from exc
        except ValueError as exc:
            raise PcrIndexError(f"fsspec knows no {protocol}:// URLs", path=self.shown) from exc

    def _open_client(self) -> _Client:
        with self._lock:
            if self._client is not None and self._client.pid != os.getpid():
                self._end_client()
            if self._client is None:
                self._client = self._make_client()
                self._end = weakref.finalize(self, self._client.close)
            return self._client

    def _end_client(self) -> None:
        self._client = None
        if self._end is not None:
            self._end()

    def _make_client(self) -> _Client:
        options = {**self._options, "skip_instance_cache": True}
        is_async = getattr(self._file_system_class(), "async_impl", False)
        if is_async:
            options["asynchronous"] = True
        fs, base = self._fsspec.core.url_to_fs(self.root, **options)
        return _Client(fs, base.rstrip("/"), IoThread() if is_async else None, os.getpid())

    def close(self) -> None:
        """Close connections; reading again opens them."""
        with self._lock:
            self._end_client()
