"""Exceptions of tensorcom.

Owns the names, fields and texts of every error that the packages raise; knows nothing of what
raises them.

Each class takes its reason first and everything else by keyword, so that frameworks which rebuild
an exception from one message (torch's loader workers do) keep the class and the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _rebuild(cls: type[TensorcomError], reason: str, fields: dict[str, Any]) -> TensorcomError:
    error = cls.__new__(cls, reason)
    TensorcomError.__init__(error, reason, **fields)
    return error


def _place(path: str | None, offset: int | None = None) -> str:
    """Return a file, and a byte offset in it, as far as they are known."""
    parts = [] if path is None else [path]
    if offset is not None:
        parts.append(f"at byte {offset}")
    return " ".join(parts)


class TensorcomError(Exception):
    """Base of every error that tensorcom raises.

    Attributes:
        reason: what was found and what was expected, without the subject.
    """

    def __init__(self, reason: str, **fields: Any) -> None:
        """Store the reason and the fields, each an attribute of the same name."""
        super().__init__(reason)
        self.reason = reason
        self._fields = fields
        self.__dict__.update(fields)

    def _subject(self) -> str:
        return ""

    def __str__(self) -> str:
        """Return subject and reason in one line."""
        subject = self._subject()
        return f"{subject}: {self.reason}" if subject else self.reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reason and fields: loader workers send errors to their parent."""
        return (_rebuild, (type(self), self.reason, self._fields))


class TenbinError(TensorcomError, ValueError):
    """Bytes that are no tenbin, or an array that tenbin cannot hold.

    Attributes:
        offset: byte offset of the fault in the buffer or file when decoding, else None.
        index: index of the array at fault, else None.
        path: file at fault, else None.
    """

    offset: int | None
    index: int | None
    path: str | None

    def __init__(
        self,
        reason: str,
        *,
        offset: int | None = None,
        index: int | None = None,
        path: str | None = None,
    ) -> None:
        """Describe a fault at a byte offset, an array index and a path, each where known."""
        super().__init__(reason, offset=offset, index=index, path=path)

    def _subject(self) -> str:
        parts = [] if self.path is None else [self.path]
        if self.index is not None:
            parts.append(f"array {self.index}")
        if self.offset is not None:
            parts.append(f"at byte {self.offset}")
        return " ".join(parts)


class ZmqUrlError(TensorcomError, ValueError):
    """A ZMQ URL that cannot be understood, or cannot be used where it was given.

    Attributes:
        url: the URL as given.
    """

    url: str | None

    def __init__(self, reason: str, *, url: str | None = None) -> None:
        """Describe what is wrong with a URL."""
        super().__init__(reason, url=url)

    def _subject(self) -> str:
        return "" if self.url is None else f"url {self.url!r}"


class TransportError(TensorcomError, OSError):
    """A socket could not do what it was asked.

    Attributes:
        url: the URL at fault, else None.
    """

    url: str | None

    def __init__(self, reason: str, *, url: str | None = None, **fields: Any) -> None:
        """Describe a transport fault."""
        super().__init__(reason, url=url, **fields)

    def _subject(self) -> str:
        return "" if self.url is None else f"url {self.url!r}"


class BindError(TransportError):
    """An address could not be bound."""


class ConnectError(TransportError):
    """An address could not be connected to."""


class ClosedError(TransportError):
    """A closed connection was used."""


class SendTimeoutError(TransportError, TimeoutError):
    """No peer took a message in time.

    Attributes:
        timeout_s: seconds waited.
    """

    timeout_s: float | None

    def __init__(
        self, reason: str, *, url: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Describe a send that timed out."""
        super().__init__(reason, url=url, timeout_s=timeout_s)


class ReceiveTimeoutError(TransportError, TimeoutError):
    """No message came in time.

    Attributes:
        urls: what was listened to.
        timeout_s: seconds waited.
        last_seen: seconds since the last message, by source id; empty if none ever came.
    """

    urls: Sequence[str]
    timeout_s: float | None
    last_seen: Mapping[str, float]

    def __init__(
        self,
        reason: str,
        *,
        urls: Sequence[str] = (),
        timeout_s: float | None = None,
        last_seen: Mapping[str, float] | None = None,
    ) -> None:
        """Describe a receive that timed out."""
        super().__init__(
            reason, urls=tuple(urls), timeout_s=timeout_s, last_seen=dict(last_seen or {})
        )

    def _subject(self) -> str:
        return ", ".join(self.urls)


class MessageError(TensorcomError, ValueError):
    """A received message that is no tensorcom message, or one over a limit.

    Attributes:
        part: index of the frame at fault, else None.
    """

    part: int | None

    def __init__(self, reason: str, *, part: int | None = None) -> None:
        """Describe a bad message."""
        super().__init__(reason, part=part)

    def _subject(self) -> str:
        return "message" if self.part is None else f"message part {self.part}"


class ImageError(TensorcomError, ValueError):
    """An image file that cannot be used.

    Attributes:
        path: the file, else None.
    """

    path: str | None

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        """Describe a bad image."""
        super().__init__(reason, path=path)

    def _subject(self) -> str:
        return _place(self.path)


class SourceError(TensorcomError, ValueError):
    """A data set directory, shard list or recording that cannot be served.

    Attributes:
        path: what was looked at, else None.
    """

    path: str | None

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        """Describe a bad data source."""
        super().__init__(reason, path=path)

    def _subject(self) -> str:
        return _place(self.path)


class PcrError(TensorcomError):
    """A set of progressive compressed records could not be read or written."""


class PcrFormatError(PcrError, ValueError):
    """Bytes of a record, an index or a manifest that are not what the format says.

    Attributes:
        path: the file at fault, else None.
        offset: byte offset of the fault in the file, else None.
    """

    path: str | None
    offset: int | None

    def __init__(
        self, reason: str, *, path: str | None = None, offset: int | None = None, **fields: Any
    ) -> None:
        """Describe a fault of a file at a byte offset, each where known."""
        super().__init__(reason, path=path, offset=offset, **fields)

    def _subject(self) -> str:
        return _place(self.path, self.offset)


class JpegError(PcrFormatError):
    """A JPEG file that cannot be split into scans, transcoded or decoded.

    Attributes:
        path: the file, or record and image, else None.
    """


class PcrIndexError(PcrError, FileNotFoundError):
    """A directory that holds no set, an unfinished one, or not a file that its index names.

    Attributes:
        path: what was looked at, else None.
    """

    path: str | None

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        """Describe what is not there."""
        super().__init__(reason, path=path)

    def _subject(self) -> str:
        return _place(self.path)


class PcrReadError(PcrError, OSError):
    """Storage gave fewer bytes than the file has, or none, after all retries.

    Attributes:
        path: the file, else None.
        offset: byte offset at which bytes stopped coming, else None.
    """

    path: str | None
    offset: int | None

    def __init__(self, reason: str, *, path: str | None = None, offset: int | None = None) -> None:
        """Describe a read that failed."""
        super().__init__(reason, path=path, offset=offset)

    def _subject(self) -> str:
        return _place(self.path, self.offset)


class PcrWriteError(PcrError, OSError):
    """A set, or what comes of one, cannot be written: the place is taken, or the disk is full.

    Attributes:
        path: the directory or file, else None.
    """

    path: str | None

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        """Describe what keeps something from being written."""
        super().__init__(reason, path=path)

    def _subject(self) -> str:
        return _place(self.path)


class ServingError(TensorcomError, RuntimeError):
    """A fleet of senders that failed.

    Attributes:
        worker: index of the sender at fault, else None.
        exitcode: its exit code, else None.
    """

    worker: int | None
    exitcode: int | None

    def __init__(
        self, reason: str, *, worker: int | None = None, exitcode: int | None = None
    ) -> None:
        """Describe a failed sender."""
        super().__init__(reason, worker=worker, exitcode=exitcode)

    def _subject(self) -> str:
        return "" if self.worker is None else f"sender {self.worker}"


class MissingDependencyError(TensorcomError, ImportError):
    """A package is needed that is not installed.

    Attributes:
        package: import name of the package.
        install_command: what to run.
    """

    package: str | None
    install_command: str | None

    def __init__(
        self, reason: str, *, package: str | None = None, install_command: str | None = None
    ) -> None:
        """Name the missing package and how to install it."""
        super().__init__(reason, package=package, install_command=install_command)

    @classmethod
    def for_package(
        cls, package: str, purpose: str, install_command: str
    ) -> MissingDependencyError:
        """Build the error for `package`, needed for `purpose`."""
        reason = (
            f"{purpose} needs the package {package!r}, which is not installed: {install_command}"
        )
        return cls(reason, package=package, install_command=install_command)
