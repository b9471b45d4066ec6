"""Where the files of a set are: a directory, a web server, an object store, with a cache or not.

Owns which storage a root asks for. Readers know the protocol `Storage` only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensorcom.pcr.storage.base import PcrEndError, RetryPolicy, Storage
from tensorcom.pcr.storage.cache import CachedStorage, clear_cache
from tensorcom.pcr.storage.http import HttpStorage
from tensorcom.pcr.storage.local import LocalStorage
from tensorcom.pcr.storage.remote import FsspecStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorcom.pcr.storage.base import Origin

__all__ = ["PcrEndError", "Storage", "clear_cache", "open_storage"]

RETRIES = 5
TIMEOUT_S = 60.0
_LOCAL = ("file", "local")
_HTTP = ("http", "https")


def open_storage(
    root: str | os.PathLike[str] | Storage,
    *,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    retries: int = RETRIES,
    timeout_s: float = TIMEOUT_S,
    storage_options: Mapping[str, Any] | None = None,
) -> Storage:
    """Return the storage of a set; nothing is asked of it yet.

    Args:
        root: directory of the set, or its URL: file, http, https, or any that fsspec knows; or
            a storage, which is returned, and takes no options.
        cache: local directory that keeps what was read; None keeps nothing.
        cache_bytes: about how much the cache may hold, None for no limit.
        retries: attempts after the first that fails, each from the byte reached.
        timeout_s: seconds for one attempt.
        storage_options: arguments of the fsspec file system; for http and https see `HttpStorage`.

    Raises:
        MissingDependencyError: the URL needs a package that is not installed.
        PcrIndexError: fsspec knows no such URL.
        TypeError: `root` is no place, or an option is none that the storage takes.
        ValueError: `retries`, `timeout_s` or `cache_bytes` is out of range.
    """
    if not isinstance(root, (str, os.PathLike)):
        if not hasattr(root, "read_all"):
            raise TypeError(f"root is {root!r}, expected a path, a URL or a storage")
        if cache is not None or storage_options:
            raise TypeError("cache and storage_options are not for a storage that is open already")
        return root
    origin = _open_origin(os.fspath(root), RetryPolicy(retries, timeout_s), storage_options or {})
    if cache is None:
        return origin
    return CachedStorage(origin, cache, cache_bytes=cache_bytes, timeout_s=timeout_s)


def _open_origin(root: str, policy: RetryPolicy, options: Mapping[str, Any]) -> Origin:
    scheme, separator, rest = root.partition("://")
    if not separator or scheme in _LOCAL:
        if options:
            raise TypeError(f"a directory takes no storage_options: {sorted(options)}")
        return LocalStorage(rest if separator else root)
    kind = HttpStorage if scheme in _HTTP else FsspecStorage
    return kind(root, policy, options)
