"""Storage on a web server that answers range requests.

Owns one GET per read, what its answer must say, and going on from the byte reached after a cut.
Built on urllib3, not on fsspec: bytes that came before a cut are kept, and there is no event loop
that a fork would break.

Source: RFC 9110, section 14.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from tensorcom.errors import PcrIndexError, PcrReadError
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from urllib3 import BaseHTTPResponse

INSTALL = "pip install 'tensorcom[remote]'"
OPTIONS = ("headers", "ca_certs", "cert_file", "key_file", "cert_reqs", "ssl_context")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)")
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_MISSING = (404, 410)
_NO_HEAD = (400, 403, 405, 501)  # as signed addresses say, which are good for GET only
_STEP_BYTES = 1 << 18
_MAX_REDIRECTS = 5
_POOL = 32


class HttpStorage(Origin):
    """Files below an http or https URL.

    A query of the URL is kept for each file. Proxies are those of the environment.

    Args:
        root: the URL.
        policy: attempts and times. An attempt gives up after `timeout_s` without a byte, and ends
            at the first byte after `timeout_s`; what came is kept for the next.
        options: `headers` to send, and `ca_certs`, `cert_file`, `key_file`, `cert_reqs` and
            `ssl_context` as urllib3 takes them.
    """

    stats_with_data = True

    def __init__(self, root: str, policy: RetryPolicy, options: Mapping[str, Any]) -> None:
        self._urllib3 = require("urllib3", "reading over HTTP", INSTALL)
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise TypeError(f"http storage takes {', '.join(OPTIONS)}; unknown: {unknown}")
        self.root = root
        self._policy = policy
        self._options = dict(options)
        self._lock = ForkLock()
        self._pool: Any = None
        self._pool_pid = 0
        parts = urlsplit(root)
        self._query = f"?{parts.query}" if parts.query else ""
        self._base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/"
        self.key, self.shown = root_key(root), shown_url(root)
        self._headers = {"Accept-Encoding": "identity", **self._options.pop("headers", {})}
        if parts.username is not None:
            auth = _user_and_password(parts)
            self._headers.update(self._urllib3.make_headers(basic_auth=auth))
            self._base = self._base.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {**self._options, "headers": self._headers}
        return HttpStorage, (self.root, self._policy, options)

    def _url(self, name: str) -> str:
        return self._base + quote(os.fsencode(name), safe="") + self._query

    def fetch(self, name: str, start: int, size: int) -> Part:
        """Read bytes of a file; see `Storage.read`."""
        transfer = Transfer(self.path(name), start, size)
        if size:
            url = self._url(name)
            self._policy.run(lambda: self._attempt(url, transfer), transfer.failed)
        return transfer.part()

    def stat(self, name: str) -> FileStat:
        """Ask for size and ETag of a file, without its bytes."""
        path, url = self.path(name), self._url(name)
        return self._policy.run(
            lambda: self._ask(url, path),
            lambda reason: PcrReadError(f"no answer {reason}", path=path),
        )

    # -- one attempt ---------------------------------------------------------------------------

    def _attempt(self, url: str, transfer: Transfer) -> None:
        extent = f"bytes={transfer.reached}-{transfer.stop - 1}"
        with self._answer("GET", url, extent) as answer:
            if answer.status == 206:
                expected = _check_range(answer, transfer)
            elif answer.status == 200:
                expected = _check_whole(answer, transfer)
            else:
                raise _failure(answer, transfer)
            if answer.length_remaining is not None and answer.length_remaining > expected:
                raise transfer.error(
                    f"the server gives {answer.length_remaining} bytes, expected {expected}"
                )
            self._receive(answer, transfer, expected)
        if transfer.left:
            raise TransientError(f"the server gave {transfer.left} bytes too few")

    def _receive(self, answer: BaseHTTPResponse, transfer: Transfer, expected: int) -> None:
        deadline = time.monotonic() + self._policy.timeout_s
        while expected:
            data = answer.read1(min(expected, _STEP_BYTES), decode_content=False)
            if not data:
                raise TransientError(f"the answer ended {expected} bytes early")
            transfer.add(data)
            expected -= len(data)
            if expected and time.monotonic() > deadline:
                raise TransientError(f"no end within {self._policy.timeout_s:g} s")
        # Where the length is known this was compared before; else the end has to come now.
        if answer.read1(1, decode_content=False):
            raise transfer.error("the server gives more bytes than its Content-Range says")

    def _ask(self, url: str, path: str) -> FileStat:
        with self._answer("HEAD", url) as answer:
            length = answer.headers.get("Content-Length", "")
            if answer.status == 200 and length.isdigit():
                return FileStat(int(length), _tag(answer))
            if answer.status != 200 and answer.status not in _NO_HEAD:
                raise _failure(answer, Transfer(path, 0, 1))
        with self._answer("GET", url, "bytes=0-0") as answer:
            if answer.status == 200:
                total = answer.headers.get("Content-Length", "")
            elif answer.status in (206, 416):
                total = _parse_range(answer)[2]
            else:
                raise _failure(answer, Transfer(path, 0, 1))
            if not total.isdigit():
                raise PcrReadError("the server does not say how large the file is", path=path)
            return FileStat(int(total), _tag(answer))

    @contextmanager
    def _answer(self, method: str, url: str, extent: str = "") -> Iterator[BaseHTTPResponse]:
        errors = self._urllib3.exceptions
        headers = {**self._headers, "Range": extent} if extent else self._headers
        try:
            answer = self._open_pool().request(
                method,
                url,
                headers=headers,
                preload_content=False,
                decode_content=False,
                timeout=self._urllib3.Timeout(
                    connect=self._policy.timeout_s, read=self._policy.timeout_s
                ),
                # Following redirects is all that is left to urllib3.
                retries=self._urllib3.Retry(
                    total=None, connect=0, read=0, status=0, other=0, redirect=_MAX_REDIRECTS
                ),
            )
            try:
                yield answer
            finally:
                self._finish(answer)
        except errors.MaxRetryError as exc:
            raise TransientError(_describe(exc.reason or exc)) from exc
        except errors.HTTPError as exc:
            raise TransientError(_describe(exc)) from exc

    def _finish(self, answer: BaseHTTPResponse) -> None:
        if answer.status not in (200, 206) or not answer.length_remaining:
            # What is left is nothing or a page that says what is wrong: one piece of it, and if
            # that is all then the connection can be used again.
            with suppress(self._urllib3.exceptions.HTTPError):
                answer.read1(_STEP_BYTES, decode_content=False)
        answer.close()

    # -- life ----------------------------------------------------------------------------------

    def _open_pool(self) -> Any:
        with self._lock:
            if self._pool is None or self._pool_pid != os.getpid():
                # A forked child has connections of its own; closing its copies of those that the
                # parent uses does not close them.
                self._pool, self._pool_pid = self._make_pool(), os.getpid()
            return self._pool

    def _make_pool(self) -> Any:
        parts = urlsplit(self._base)
        proxies = getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        if not proxy or proxy_bypass(parts.netloc):
            return self._urllib3.PoolManager(maxsize=_POOL, **self._options)
        found = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        headers = {}
        if found.username is not None:
            auth = _user_and_password(found)
            headers = self._urllib3.make_headers(proxy_basic_auth=auth)
        return self._urllib3.ProxyManager(
            f"{found.scheme}://{found.netloc.rpartition('@')[2]}",
            proxy_headers=headers,
            maxsize=_POOL,
            **self._options,
        )

    def close(self) -> None:
        """Close connections; reading again opens them."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()


def _user_and_password(parts: SplitResult) -> str:
    return f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"


def _tag(answer: BaseHTTPResponse) -> str:
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""


def _describe(error: Exception) -> str:
    """Return the text of an error without the objects that urllib3 puts before it."""
    text = str(error).partition(": ")[2] if str(error).startswith(("<", "HTTP")) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _parse_range(answer: BaseHTTPResponse) -> tuple[str | None, str | None, str]:
    """Return first byte, last byte and size of the file as the answer has them."""
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    return (None, None, "") if match is None else (match[1], match[2], match[3])


def _check_range(answer: BaseHTTPResponse, transfer: Transfer) -> int:
    """Return how many of the missing bytes an answer of status 206 gives."""
    _check_encoding(answer, transfer)
    first, last, total = _parse_range(answer)
    if first is None or last is None:
        found = answer.headers.get("Content-Range")
        raise transfer.error(f"the server gives a part, but Content-Range is {found!r}")
    stat = FileStat(int(total), _tag(answer)) if total.isdigit() else None
    transfer.check_version(stat)
    if stat is not None and stat.size_bytes < transfer.stop:
        raise PcrEndError.of(transfer.path, stat.size_bytes, transfer.stop)
    stop = int(last) + 1
    if int(first) != transfer.reached or not transfer.reached < stop <= transfer.stop:
        asked = f"{transfer.reached} to {transfer.stop - 1}"
        raise transfer.error(f"the server gives bytes {first} to {last}, expected {asked}")
    return stop - transfer.reached


def _check_whole(answer: BaseHTTPResponse, transfer: Transfer) -> int:
    """Return the size of the file if that is what was asked for."""
    _check_encoding(answer, transfer)
    length = answer.length_remaining
    if length is not None and length < transfer.stop:
        raise PcrEndError.of(transfer.path, length, transfer.stop)
    if length is None or transfer.reached or transfer.size != length:
        found = "the whole file" if length is None else f"the whole file of {length} bytes"
        asked = f"{transfer.reached} to {transfer.stop - 1}"
        raise transfer.error(f"the server ignores Range: it gives {found}, expected bytes {asked}")
    transfer.check_version(FileStat(length, _tag(answer)))
    return length


def _check_encoding(answer: BaseHTTPResponse, transfer: Transfer) -> None:
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise transfer.error(f"the server gives Content-Encoding {encoding}, expected none")


def _failure(answer: BaseHTTPResponse, transfer: Transfer) -> Exception:
    """Return the error for an answer that gives no bytes."""
    status = f"status {answer.status} {answer.reason or ''}".rstrip()
    if answer.status in _MISSING:
        return PcrIndexError(f"no such file: {status}", path=transfer.path)
    if answer.status in _TRANSIENT:
        return TransientError(status)
    total = _parse_range(answer)[2]
    if answer.status == 416 and total.isdigit() and int(total) < transfer.stop:
        return PcrEndError.of(transfer.path, int(total), transfer.stop)
    return transfer.error(f"the server answers with {status}")
