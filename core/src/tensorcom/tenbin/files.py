"""Tenbin streams and `.ten` files.

Owns how chunks are read from and written to streams and paths: bounded reads, atomic saves, memory
maps. Knows nothing of what the bytes of an array mean.

Source: docs/formats/tenbin.md, "Files".
"""

from __future__ import annotations

import io
import mmap as memory_map
import os
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tensorcom.errors import TenbinError
from tensorcom.tenbin import chunks, codec, layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

SUFFIX = ".ten"
_STEP_BYTES = 1 << 20


class Readable(Protocol):
    """A binary stream to read from."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes, none at the end."""


class Writable(Protocol):
    """A binary stream to write to."""

    def write(self, data: Any, /) -> object:
        """Write `data`, a bytes-like object; return the bytes written, or None for all."""


def write(
    stream: Writable,
    arrays: Iterable[Any],
    infos: str | Sequence[str] | None = None,
    *,
    aligned: bool = False,
) -> None:
    """Write arrays to a binary stream.

    Args:
        stream: binary stream.
        arrays: whatever `tensorcom.arrays.as_array` takes.
        infos: label of each array; one string labels all, None leaves them empty.
        aligned: start every payload at a multiple of 64 from here; original readers refuse that.

    Raises:
        TenbinError: an array or info cannot be sent, with its index; nothing is written then.
    """
    _write_parts(stream, codec.encode_list(arrays, infos), aligned=aligned)


def _write_parts(stream: Writable, parts: Iterable[bytes | memoryview], *, aligned: bool) -> None:
    for part in parts:
        nbytes = len(part)
        _write_all(stream, chunks.encode_prefix(nbytes, aligned=aligned))
        _write_all(stream, part)
        _write_all(stream, bytes(chunks.padding_size(nbytes)))


def _write_all(stream: Writable, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left.nbytes:
        written = stream.write(left)
        if written is None and not isinstance(stream, io.RawIOBase):
            return
        # A raw stream may take a part only, or nothing if it does not block.
        if not isinstance(written, int) or written <= 0:
            raise TenbinError(f"the stream took none of {left.nbytes} bytes: use a blocking one")
        left = left[written:]


def read(
    stream: Readable,
    n: int | None = None,
    infos: Sequence[str] | bool | None = None,  # noqa: FBT001 - True is refused by name
) -> list[NDArray[Any]]:
    """Read arrays from a binary stream.

    Args:
        stream: binary stream, of chunks of either form or mixed.
        n: read at most so many arrays; None reads to the end.
        infos: expected label of each array; None or False do not check.

    Returns:
        Up to `n` arrays; fewer only where the stream ends.

    Raises:
        TenbinError: the bytes are not tenbin, at the offset in the file, or in other streams from
            where reading began. Or the infos are not the expected ones.
        MissingDependencyError: a bfloat16 or float8 array, and ml_dtypes is not installed.

    Ownership:
        Arrays own their memory and are writable. No length in the stream is trusted: it must be as
        the header says and fit a file; in other streams memory grows with the bytes that come.
    """
    expected = codec.expected_infos(infos, "read_with_infos")
    arrays, found = read_with_infos(stream, n)
    codec.check_infos(found, expected)
    return arrays


def read_with_infos(stream: Readable, n: int | None = None) -> tuple[list[NDArray[Any]], list[str]]:
    """Read arrays from a binary stream as `read` does, and return the infos too.

    Raises:
        TenbinError: as for `read`.
        MissingDependencyError: as for `read`.
    """
    if n is not None and n < 0:
        raise TenbinError(f"n is {n}, expected 0 or more, or None for all")
    source = _Source(stream)
    arrays: list[NDArray[Any]] = []
    found: list[str] = []
    while n is None or len(arrays) < n:
        pair = _read_array(source, len(arrays))
        if pair is None:
            break
        array, info = pair
        arrays.append(array)
        found.append(info)
    return arrays, found


def _read_array(source: _Source, index: int) -> tuple[NDArray[Any], str] | None:
    start = source.position
    nbytes = source.open_chunk()
    if nbytes is None:
        return None
    offset = source.position
    layout.check_header_size(nbytes, offset=offset, index=index)
    header = layout.decode_header(source.payload(nbytes, start), offset=offset, index=index)
    start_data = source.position
    nbytes = source.open_chunk()
    if nbytes is None:
        raise TenbinError("header chunk without a data chunk", offset=start, index=index)
    layout.check_data_size(header, nbytes, offset=source.position, index=index)
    payload = source.payload(nbytes, start_data)
    return codec.array_over(header, payload, writable=True), header.info


class _Source:
    """A stream, the position in it, and its end where that is known without reading.

    Only files and BytesIO tell their end: for others, such as a GzipFile, looking for it may mean
    reading everything.
    """

    def __init__(self, stream: Readable) -> None:
        self._stream: Any = stream
        self.position, self.end = _extent(stream)

    def open_chunk(self) -> int | None:
        """Read to the payload of the next chunk; return its length, or None at the end."""
        start = self.position
        raw = self._take(chunks.HEAD_BYTES)
        if not raw:
            return None
        nbytes, prefix_bytes = chunks.parse_head(raw, start=start)
        reserved = self._take(prefix_bytes - chunks.HEAD_BYTES)
        chunks.check_reserved(reserved, prefix_bytes, start=start)
        if self.end is not None:
            chunks.check_room(nbytes, self.end - self.position, start=start)
        return nbytes

    def payload(self, nbytes: int, start: int) -> memoryview:
        """Read the payload and padding of the chunk at `start`."""
        payload = self._take(nbytes) if self.end is None else self._fill(nbytes)
        left = len(payload)
        if left == nbytes:
            left += len(self._take(chunks.padding_size(nbytes)))
        chunks.check_room(nbytes, left, start=start)
        return memoryview(payload)

    def _take(self, nbytes: int) -> bytearray:
        """Return `nbytes` bytes, or what is left; memory grows with what comes."""
        taken = bytearray()
        while len(taken) < nbytes:
            part = self._stream.read(min(nbytes - len(taken), _STEP_BYTES))
            if part is None:
                raise TenbinError("the stream has no data now: use a blocking one")
            if not isinstance(part, (bytes, bytearray, memoryview)):
                name = type(part).__name__
                raise TenbinError(f"the stream gives {name}: open it in binary mode")
            if not part:
                break
            taken += part
        self.position += len(taken)
        return taken

    def _fill(self, nbytes: int) -> memoryview:
        """Return `nbytes` bytes that are known to be there, or what is left, in one allocation."""
        target = np.empty(nbytes, np.uint8).data
        filled = 0
        while filled < nbytes:
            count = self._stream.readinto(target[filled:])
            if not count:
                break
            filled += count
        self.position += filled
        return target[:filled]


def _extent(stream: Any) -> tuple[int, int | None]:
    """Return the position of a stream, and its end if that is known without reading."""
    raw = stream.raw if isinstance(stream, (io.BufferedReader, io.BufferedRandom)) else stream
    if not isinstance(raw, (io.FileIO, io.BytesIO)) or not stream.seekable():
        return 0, None
    position = stream.tell()
    end = stream.seek(0, os.SEEK_END)
    stream.seek(position)
    return position, end


def save(
    path: str | os.PathLike[str],
    *arrays: Any,
    infos: str | Sequence[str] | None = None,
    aligned: bool = False,
    nocheck: bool = False,
) -> None:
    """Save arrays as a `.ten` file, whole or not at all.

    Args:
        path: the file; it is replaced in one step when everything is written.
        arrays: whatever `tensorcom.arrays.as_array` takes.
        infos: label of each array; one string labels all, None leaves them empty.
        aligned: start every payload at a multiple of 64; original readers refuse such files.
        nocheck: accept a path that does not end in `.ten`.

    Raises:
        TenbinError: the path does not end in `.ten`, or an array or info cannot be sent.
        OSError: the file cannot be written; what was there before is untouched.
    """
    target = _checked(path, nocheck=nocheck)
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    with _path_in_errors(target):
        parts = codec.encode_list(arrays, infos)
        try:
            # Not tempfile: its files are private, while this one shall have the mode of the umask.
            with temporary.open("xb") as stream:
                _write_parts(stream, parts, aligned=aligned)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def load(
    path: str | os.PathLike[str],
    infos: Sequence[str] | bool | None = None,  # noqa: FBT001 - True is refused by name
    *,
    mmap: bool = False,
    nocheck: bool = False,
) -> list[NDArray[Any]]:
    """Load the arrays of a `.ten` file.

    Args:
        path: the file; an empty one holds no arrays.
        infos: expected label of each array; None or False do not check.
        mmap: map the file into memory instead of reading it.
        nocheck: accept a path that does not end in `.ten`.

    Raises:
        TenbinError: the file is not tenbin, with path and offset. Or the infos are not the expected
            ones, or the path does not end in `.ten`.
        MissingDependencyError: a bfloat16 or float8 array, and ml_dtypes is not installed.
        OSError: the file cannot be read.

    Ownership:
        Arrays own their memory and are writable. With `mmap` they are read-only views of one map
        that lives as long as any of them; data of an `aligned` file starts at multiples of 64.
    """
    target = _checked(path, nocheck=nocheck)
    with _path_in_errors(target):
        expected = codec.expected_infos(infos, "load_with_infos")
        arrays, found = _load(target, mmap=mmap)
        codec.check_infos(found, expected)
    return arrays


def load_with_infos(
    path: str | os.PathLike[str], *, mmap: bool = False, nocheck: bool = False
) -> tuple[list[NDArray[Any]], list[str]]:
    """Load the arrays of a `.ten` file as `load` does, and return the infos too.

    Raises:
        TenbinError: as for `load`.
        MissingDependencyError: as for `load`.
        OSError: as for `load`.
    """
    target = _checked(path, nocheck=nocheck)
    with _path_in_errors(target):
        return _load(target, mmap=mmap)


def _load(path: Path, *, mmap: bool) -> tuple[list[NDArray[Any]], list[str]]:
    with path.open("rb") as stream:
        # An empty file cannot be mapped.
        if not mmap or os.fstat(stream.fileno()).st_size == 0:
            return read_with_infos(stream)
        mapped = memory_map.mmap(stream.fileno(), 0, access=memory_map.ACCESS_READ)
    return codec.decode_buffer_with_infos(mapped)


def _checked(path: str | os.PathLike[str], *, nocheck: bool) -> Path:
    target = Path(path)
    if not nocheck and target.suffix != SUFFIX:
        raise TenbinError(
            f"the name does not end in {SUFFIX}: rename it, or pass nocheck=True", path=str(target)
        )
    return target


@contextmanager
def _path_in_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except TenbinError as error:
        raise TenbinError(
            error.reason, offset=error.offset, index=error.index, path=str(path)
        ) from None
