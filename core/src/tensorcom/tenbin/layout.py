"""The array header of tenbin: dtype codes, infos, ranks and dimensions.

Owns the bytes of a header, the limits that hold for it and the table of dtype codes; knows nothing
of the chunks, frames or files that carry headers.

Source: docs/formats/tenbin.md, "Headers" and "Dtypes".
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorcom.arrays import EXTENDED_NAMES, check_dtype, extended_dtype
from tensorcom.errors import TenbinError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC = b"~TenBin~"
ALIGNED_MAGIC = b"~TenBnA~"
MAX_RANK = 32
MIN_HEADER_BYTES = 24
MAX_HEADER_BYTES = 8 * (3 + MAX_RANK)
MAX_INFO_BYTES = 8

CODES = {
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "bool": "b1",
    "complex64": "c8",
    "complex128": "c16",
    "bfloat16": "bf2",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_NAMES = {code.encode(): name for name, code in CODES.items()}
_FIXED_BYTES = re.compile(rb"S([1-9][0-9]{0,6})")
_SIZE_LIMIT = 2**63


class Header(NamedTuple):
    """What the header of an array says.

    Attributes:
        dtype: dtype on the wire, little-endian.
        shape: dimensions; () for a 0-d array.
        info: label, 0 to 8 ASCII characters.
        nbytes: size of the data in bytes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    info: str
    nbytes: int


def byte_view(buffer: Any) -> memoryview:
    """Return the bytes of any bytes-like object as a flat view, without a copy.

    Raises:
        TenbinError: `buffer` has no buffer interface, or its bytes are not contiguous.
    """
    try:
        view = memoryview(buffer)
        if view.nbytes == 0:
            return memoryview(b"")
        if view.format == "B" and view.ndim == 1 and view.c_contiguous:
            return view
        if not view.c_contiguous:
            raise TenbinError("the buffer is not contiguous: pass bytes(buffer)")
        # memoryview.cast knows native formats only; numpy reads the bytes of any.
        return np.frombuffer(view, np.uint8).data
    except (TypeError, ValueError, BufferError) as error:
        if isinstance(error, TenbinError):
            raise
        raise TenbinError(f"{type(buffer).__name__} is no bytes-like object: {error}") from error


def wire_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return `dtype` as it is on the wire: little-endian."""
    return dtype if dtype.name in EXTENDED_NAMES else dtype.newbyteorder("<")


def dtype_code(dtype: np.dtype[Any], *, index: int | None = None) -> str:
    """Return the wire code of `dtype`, such as "f4" or "S12".

    Raises:
        TenbinError: it has none; the text says what to send instead.
    """
    check_dtype(dtype, index=index)
    return f"S{dtype.itemsize}" if dtype.kind == "S" else CODES[dtype.name]


def _is_code(code: bytes) -> bool:
    return code in _NAMES or _FIXED_BYTES.fullmatch(code) is not None


def _dtype_of(code: bytes) -> np.dtype[Any]:
    """Return the dtype of a code for which `_is_code` holds."""
    name = _NAMES.get(code)
    if name is None:
        return np.dtype(code.decode())
    if name in EXTENDED_NAMES:
        return extended_dtype(name)
    return np.dtype(name).newbyteorder("<")


def encode_info(info: str, *, index: int | None = None) -> bytes:
    """Return `info` as the 8 bytes of a header.

    Raises:
        TenbinError: it is no string, not ASCII, has a NUL, or is longer than 8 characters.
    """
    if not isinstance(info, str):
        raise TenbinError(f"info {info!r} is a {type(info).__name__}, expected a str", index=index)
    if not info.isascii():
        raise TenbinError(f"info {info!r} is not ASCII", index=index)
    if "\0" in info:
        raise TenbinError(f"info {info!r} has a NUL in it", index=index)
    if len(info) > MAX_INFO_BYTES:
        raise TenbinError(
            f"info {info!r} has {len(info)} characters, at most {MAX_INFO_BYTES} fit", index=index
        )
    return info.encode("ascii").ljust(MAX_INFO_BYTES, b"\0")


def encode_header(
    dtype: np.dtype[Any], shape: Sequence[int], info: str = "", *, index: int | None = None
) -> bytes:
    """Return the header of an array.

    Args:
        dtype: dtype of the array, in any byte order; the wire is little-endian.
        shape: dimensions, at most 32.
        info: label, at most 8 ASCII characters.
        index: index of the array, for errors.

    Returns:
        Exactly 8 * (3 + rank) bytes.

    Raises:
        TenbinError: the dtype, the rank, a dimension or the info cannot be sent.
    """
    rank = len(shape)
    if rank > MAX_RANK:
        raise TenbinError(f"rank {rank} exceeds the limit of {MAX_RANK}: reshape it", index=index)
    code = dtype_code(dtype, index=index).encode().ljust(8, b"\0")
    for axis, dim in enumerate(shape):
        if not 0 <= dim < _SIZE_LIMIT:
            raise TenbinError(f"dimension {axis} is {dim}, expected 0 to 2**63 - 1", index=index)
    return struct.pack(f"<8s8sq{rank}q", code, encode_info(info, index=index), rank, *shape)


def check_header_size(nbytes: int, *, offset: int | None = None, index: int | None = None) -> None:
    """Refuse a header whose size no rank has.

    Raises:
        TenbinError: it is not a multiple of 8 from 24 to 280 bytes.
    """
    if nbytes > MAX_HEADER_BYTES:
        reason = f"header of {nbytes} bytes exceeds the {MAX_HEADER_BYTES} bytes of rank {MAX_RANK}"
    elif nbytes < MIN_HEADER_BYTES or nbytes % 8:
        reason = f"header of {nbytes} bytes, expected 8 * (3 + rank)"
    else:
        return
    raise TenbinError(reason, offset=offset, index=index)


def check_data_size(
    header: Header, nbytes: int, *, offset: int | None = None, index: int | None = None
) -> None:
    """Refuse data whose size is not what the header says.

    Raises:
        TenbinError: it is shorter or longer.
    """
    if nbytes != header.nbytes:
        raise TenbinError(
            f"data of {nbytes} bytes, expected {header.nbytes} for {header.dtype.name} of shape "
            f"{header.shape}",
            offset=offset,
            index=index,
        )


def decode_header(buffer: Any, *, offset: int = 0, index: int | None = None) -> Header:
    """Read the header of an array.

    Args:
        buffer: the header, nothing more.
        offset: where the header starts in what the caller reads, for errors.
        index: index of the array, for errors.

    Raises:
        TenbinError: the bytes are no header, at the offset of the field at fault.
        MissingDependencyError: a bfloat16 or float8 array, and ml_dtypes is not installed.
    """
    view = byte_view(buffer)
    check_header_size(view.nbytes, offset=offset, index=index)
    raw_code, raw_info, rank = struct.unpack_from("<8s8sq", view)
    if not 0 <= rank <= MAX_RANK:
        raise TenbinError(f"rank {rank} is not in 0 to {MAX_RANK}", offset=offset + 16, index=index)
    if view.nbytes != 8 * (3 + rank):
        raise TenbinError(
            f"header of {view.nbytes} bytes, expected {8 * (3 + rank)} for rank {rank}",
            offset=offset,
            index=index,
        )
    code = raw_code.rstrip(b"\0")
    if not _is_code(code):
        raise TenbinError(f"unknown dtype code {code!r}", offset=offset, index=index)
    info = _decode_info(raw_info, offset=offset + 8, index=index)
    shape = struct.unpack_from(f"<{rank}q", view, MIN_HEADER_BYTES)
    dtype = _dtype_of(code)
    return Header(dtype, shape, info, _data_size(dtype, shape, offset + 24, index))


def _decode_info(raw: bytes, *, offset: int, index: int | None) -> str:
    info = raw.rstrip(b"\0")
    if not info.isascii():
        raise TenbinError(f"info {info!r} is not ASCII", offset=offset, index=index)
    if b"\0" in info:
        raise TenbinError(f"info {info!r} has a NUL in it", offset=offset, index=index)
    return info.decode("ascii")


def _data_size(dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, index: int | None) -> int:
    """Return the bytes that `shape` takes; `offset` is that of the first dimension."""
    for axis, dim in enumerate(shape):
        if dim < 0:
            raise TenbinError(
                f"dimension {axis} is {dim}, expected 0 or more",
                offset=offset + 8 * axis,
                index=index,
            )
    # Python integers do not wrap. Empty arrays are held to it too: numpy multiplies past zeros.
    if math.prod(dim for dim in shape if dim) * dtype.itemsize >= _SIZE_LIMIT:
        raise TenbinError(
            f"shape {shape} of {dtype.name} exceeds 2**63 - 1 bytes", offset=offset, index=index
        )
    return math.prod(shape) * dtype.itemsize


def looks_like_header(buffer: Any) -> bool:
    """Tell whether `buffer` has the size, the rank and the dtype code of a header; never raises."""
    try:
        view = byte_view(buffer)
    except TenbinError:
        return False
    if not MIN_HEADER_BYTES <= view.nbytes <= MAX_HEADER_BYTES:
        return False
    raw_code, _, rank = struct.unpack_from("<8s8sq", view)
    return view.nbytes == 8 * (3 + rank) and _is_code(raw_code.rstrip(b"\0"))
