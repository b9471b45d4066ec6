"""Arrays to bytes and back: lists of frames, and buffers of chunks.

Owns which arrays are copied and which are not: encoding never copies a contiguous little-endian
array, decoding never copies a payload. Pure functions; knows nothing of files and sockets.

Source: docs/formats/tenbin.md, "Arrays" and "Messages".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.arrays import as_array
from tensorcom.errors import TenbinError
from tensorcom.tenbin.chunks import chunk_size, encode_prefix, walk
from tensorcom.tenbin.layout import (
    Header,
    byte_view,
    check_data_size,
    decode_header,
    encode_header,
    wire_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def encode_list(
    arrays: Iterable[Any], infos: str | Sequence[str] | None = None
) -> list[bytes | memoryview]:
    """Encode arrays as the parts of a message: header, data, header, data and so on.

    Args:
        arrays: whatever `tensorcom.arrays.as_array` takes.
        infos: label of each array; one string labels all, None leaves them empty.

    Returns:
        Headers as bytes, data as flat memoryviews of bytes.

    Raises:
        TenbinError: an array or info cannot be sent, with its index; nothing is encoded then.

    Ownership:
        The data of a C-contiguous little-endian array is a view of it, else a converted copy.
    """
    parts: list[bytes | memoryview] = []
    for header, array in _prepare(arrays, infos):
        parts += [header, _flat_bytes(array)]
    return parts


def encode_buffer(
    arrays: Iterable[Any], infos: str | Sequence[str] | None = None, *, aligned: bool = False
) -> bytearray:
    """Encode arrays as a buffer of chunks, as a `.ten` file holds them.

    Args:
        arrays: whatever `tensorcom.arrays.as_array` takes.
        infos: label of each array; one string labels all, None leaves them empty.
        aligned: start every payload at a multiple of 64; original readers refuse such buffers.

    Returns:
        The chunks, in one allocation; every array is copied once, converted on the way.

    Raises:
        TenbinError: an array or info cannot be sent, with its index.
    """
    pairs = _prepare(arrays, infos)
    buffer = bytearray(_total_size(pairs, aligned))
    position = 0
    for header, array in pairs:
        for payload in (header, array):
            nbytes = len(payload) if isinstance(payload, bytes) else payload.nbytes
            prefix = encode_prefix(nbytes, aligned=aligned)
            start = position + len(prefix)
            buffer[position:start] = prefix
            if isinstance(payload, bytes):
                buffer[start : start + nbytes] = payload
            elif nbytes:
                target = np.ndarray(payload.shape, wire_dtype(payload.dtype), buffer, start)
                np.copyto(target, payload, casting="equiv")
            position += chunk_size(nbytes, aligned=aligned)
    return buffer


def encoded_size(arrays: Iterable[Any], *, aligned: bool = False) -> int:
    """Return the bytes that `encode_buffer` would make of `arrays`.

    Raises:
        TenbinError: an array cannot be sent, with its index.
    """
    return _total_size(_prepare(arrays, None), aligned)


def _total_size(pairs: list[tuple[bytes, NDArray[Any]]], aligned: bool) -> int:  # noqa: FBT001 - private
    return sum(
        chunk_size(len(header), aligned=aligned) + chunk_size(array.nbytes, aligned=aligned)
        for header, array in pairs
    )


def _prepare(
    arrays: Iterable[Any], infos: str | Sequence[str] | None
) -> list[tuple[bytes, NDArray[Any]]]:
    """Return header and array of each, checked but not yet converted."""
    if isinstance(arrays, (np.ndarray, str, bytes, bytearray, memoryview)):
        raise TenbinError(f"a {type(arrays).__name__} is no sequence of arrays: pass [array]")
    found = [as_array(value, index=index) for index, value in enumerate(arrays)]
    labels = _labels(infos, len(found))
    return [
        (encode_header(array.dtype, array.shape, label, index=index), array)
        for index, (array, label) in enumerate(zip(found, labels, strict=True))
    ]


def _labels(infos: str | Sequence[str] | None, count: int) -> Sequence[str]:
    if infos is None:
        return [""] * count
    if isinstance(infos, str):
        return [infos] * count
    if not isinstance(infos, Sequence):
        raise TenbinError(
            f"infos is a {type(infos).__name__}, expected a string or a sequence of them"
        )
    if len(infos) != count:
        raise TenbinError(f"{len(infos)} infos for {count} arrays")
    return infos


def _flat_bytes(array: NDArray[Any]) -> memoryview:
    # astype, not ascontiguousarray: the latter makes 0-d arrays 1-d.
    ready = array.astype(wire_dtype(array.dtype), order="C", copy=False)
    return ready.reshape(-1).view(np.uint8).data


def decode_list(
    parts: Iterable[Any],
    infos: Sequence[str] | bool | None = None,  # noqa: FBT001 - True is refused by name
    *,
    writable: bool = False,
) -> list[NDArray[Any]]:
    """Decode the parts of a message: header, data, header, data and so on.

    Args:
        parts: bytes-like objects.
        infos: expected label of each array; None or False do not check.
        writable: return writable arrays.

    Raises:
        TenbinError: a part is not what it should be, with the index of its array, and in a header
            with the offset. Or the infos are not the expected ones.
        MissingDependencyError: a bfloat16 or float8 array, and ml_dtypes is not installed.

    Ownership:
        Read-only views of the parts. If `writable`, views of the parts that are writable themselves
        and copies of the others.
    """
    expected = expected_infos(infos, "decode_list_with_infos")
    arrays, found = decode_list_with_infos(parts, writable=writable)
    check_infos(found, expected)
    return arrays


def decode_list_with_infos(
    parts: Iterable[Any], *, writable: bool = False
) -> tuple[list[NDArray[Any]], list[str]]:
    """Decode the parts of a message as `decode_list` does, and return the infos too.

    Raises:
        TenbinError: as for `decode_list`.
        MissingDependencyError: as for `decode_list`.
    """
    if isinstance(parts, (bytes, bytearray, memoryview, str)):
        raise TenbinError(f"a {type(parts).__name__} is no list of parts: use decode_buffer")
    views = [byte_view(part) for part in parts]
    if len(views) % 2:
        raise TenbinError("header without data, the last part", index=len(views) // 2)
    arrays, found = [], []
    for index, (head, data) in enumerate(zip(views[::2], views[1::2], strict=True)):
        header = decode_header(head, index=index)
        check_data_size(header, data.nbytes, index=index)
        arrays.append(array_over(header, data, writable=writable))
        found.append(header.info)
    return arrays, found


def decode_buffer(
    buffer: Any,
    infos: Sequence[str] | bool | None = None,  # noqa: FBT001 - True is refused by name
    *,
    writable: bool = False,
) -> list[NDArray[Any]]:
    """Decode a buffer of chunks, of either form or mixed.

    Args:
        buffer: a bytes-like object; an empty one holds no arrays.
        infos: expected label of each array; None or False do not check.
        writable: return writable arrays.

    Raises:
        TenbinError: the bytes are not tenbin, at the offset of the fault. Or the infos are not the
            expected ones.
        MissingDependencyError: a bfloat16 or float8 array, and ml_dtypes is not installed.

    Ownership:
        Read-only views of `buffer`, also where it is writable. If `writable`, writable views, or
        copies where `buffer` is read-only.
    """
    expected = expected_infos(infos, "decode_buffer_with_infos")
    arrays, found = decode_buffer_with_infos(buffer, writable=writable)
    check_infos(found, expected)
    return arrays


def decode_buffer_with_infos(
    buffer: Any, *, writable: bool = False
) -> tuple[list[NDArray[Any]], list[str]]:
    """Decode a buffer of chunks as `decode_buffer` does, and return the infos too.

    Raises:
        TenbinError: as for `decode_buffer`.
        MissingDependencyError: as for `decode_buffer`.
    """
    arrays: list[NDArray[Any]] = []
    found: list[str] = []
    chunks = walk(byte_view(buffer))
    for head in chunks:
        index = len(arrays)
        header = decode_header(head.payload, offset=head.offset, index=index)
        data = next(chunks, None)
        if data is None:
            raise TenbinError("header chunk without a data chunk", offset=head.start, index=index)
        check_data_size(header, data.payload.nbytes, offset=data.offset, index=index)
        arrays.append(array_over(header, data.payload, writable=writable))
        found.append(header.info)
    return arrays, found


def array_over(header: Header, payload: memoryview, *, writable: bool) -> NDArray[Any]:
    """Return the array of `header` over `payload`, whose size has been checked.

    Ownership:
        A view; a copy only of a read-only payload that shall be `writable`.
    """
    view = payload if writable else payload.toreadonly()
    array: NDArray[Any] = np.ndarray(header.shape, header.dtype, view)
    return array.copy() if writable and payload.readonly else array


def expected_infos(infos: Sequence[str] | bool | None, alternative: str) -> Sequence[str] | None:  # noqa: FBT001 - True is refused
    """Return what a reader shall check, None for nothing.

    Args:
        infos: as a reader got it.
        alternative: function that returns infos instead of checking them.

    Raises:
        TenbinError: it is True, a single string or no sequence.
    """
    if infos is None or infos is False:
        return None
    if infos is True:
        raise TenbinError(f"infos is True, expected a sequence of strings: call {alternative}")
    if isinstance(infos, (str, bytes)) or not isinstance(infos, Sequence):
        raise TenbinError(f"infos is a {type(infos).__name__}, expected a sequence of strings")
    return infos


def check_infos(found: Sequence[str], expected: Sequence[str] | None) -> None:
    """Refuse infos that are not the expected ones; None expects nothing.

    Raises:
        TenbinError: there are more or fewer, or one differs.
    """
    if expected is None:
        return
    if len(found) != len(expected):
        raise TenbinError(
            f"{len(found)} arrays, expected {len(expected)} with infos {list(expected)}"
        )
    for index, (info, wanted) in enumerate(zip(found, expected, strict=True)):
        if info != wanted:
            raise TenbinError(f"info {info!r}, expected {wanted!r}", index=index)
