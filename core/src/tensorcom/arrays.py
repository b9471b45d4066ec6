"""Values of any framework as numpy arrays.

Owns what counts as an array, the dtypes that can be sent, and the advice for everything else.
Imports no framework and knows nothing of bytes, files or sockets.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.errors import MissingDependencyError, TenbinError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLAIN_NAMES = frozenset(
    ("float16", "float32", "float64", "int8", "int16", "int32", "int64")
    + ("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128")
)
EXTENDED_NAMES = frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2"))
_TORCH_BITS = {
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
}
_CONVERSION_ERRORS = (TypeError, ValueError, RuntimeError, BufferError, AttributeError)


def extended_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of ml_dtypes called `name`, importing ml_dtypes now.

    Raises:
        MissingDependencyError: ml_dtypes is not installed.
    """
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingDependencyError.for_package(
            "ml_dtypes", f"dtype {name}", "pip install ml_dtypes"
        ) from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def is_sendable(dtype: np.dtype[Any]) -> bool:
    """Tell whether arrays of `dtype` can be sent, in either byte order."""
    if dtype.kind == "S":
        return 0 < dtype.itemsize < 10**7
    return dtype.name in PLAIN_NAMES or dtype.name in EXTENDED_NAMES


def check_dtype(dtype: np.dtype[Any], *, index: int | None = None) -> None:
    """Refuse a dtype that cannot be sent.

    Args:
        dtype: dtype of the array, in any byte order.
        index: index of the array, for the error.

    Raises:
        TenbinError: it cannot be sent; the text says what to send instead.
    """
    if not is_sendable(dtype):
        raise TenbinError(f"{dtype} cannot be sent: {_advice(dtype)}", index=index)


def _advice(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "O":
        return "convert the objects to numbers, or to fixed bytes S<n>"
    if dtype.fields is not None:
        return "send each field as an array of its own"
    if dtype.kind in "Mm":
        return "send .view('i8'), and the unit as its info"
    if dtype.kind in "UT":
        return "encode to fixed bytes S<n>, as np.char.encode(array, 'utf-8') does"
    if dtype.kind == "S":
        return "fixed bytes hold 1 to 9999999 bytes"
    if dtype.type is np.longdouble:
        return "its layout differs between machines; send .astype('f8')"
    if dtype.type is np.clongdouble:
        return "its layout differs between machines; send .astype('c16')"
    if dtype.type.__module__.split(".")[0] == "ml_dtypes":
        names = ", ".join(sorted(EXTENDED_NAMES))
        return f"of ml_dtypes only {names} can; cast it, or send .view('u1')"
    return "send .view('u1')"


def as_array(value: Any, *, index: int | None = None) -> NDArray[Any]:
    """Return `value` as a numpy array that can be sent.

    Args:
        value: a numpy array or scalar, a Python bool, int, float or complex, a torch tensor (of any
            device, with or without gradient), or an object with `__array__` or `__dlpack__`.
        index: index of the value, for the error.

    Returns:
        An array of a sendable dtype, in any byte order and layout.

    Raises:
        TenbinError: `value` is no array, or its dtype cannot be sent; the text says what to send.
        MissingDependencyError: a bfloat16 or float8 tensor, and ml_dtypes is not installed.

    Ownership:
        A view of the memory of `value` wherever that is in main memory, else a copy.
    """
    array = _convert(value, index)
    check_dtype(array.dtype, index=index)
    return array


def _convert(value: Any, index: int | None) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise TenbinError(
            "a masked array would lose its mask: send .filled(value), "
            "and np.ma.getmaskarray(array) as an array of its own",
            index=index,
        )
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, (bool, float, complex)):
        return np.asarray(value)
    if isinstance(value, int):
        return _from_int(value, index)
    if value is None or isinstance(value, (str, bytes, bytearray, list, tuple, dict, set)):
        raise TenbinError(
            f"a {type(value).__name__} is no array: {_value_advice(value)}", index=index
        )
    if _is_torch(value):
        return _from_torch(value, index)
    return _from_protocol(value, index)


def _value_advice(value: object) -> str:
    if isinstance(value, str):
        return "encode it, and send np.frombuffer(data, 'u1')"
    if isinstance(value, (bytes, bytearray)):
        return "send np.frombuffer(value, 'u1')"
    if isinstance(value, (list, tuple)):
        return "send np.asarray(value), or its elements as arrays of their own"
    return "send a numpy array"


def _from_int(value: int, index: int | None) -> NDArray[np.int64]:
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError:
        raise TenbinError(
            "the int does not fit 64 bits: send np.uint64(value) or a float", index=index
        ) from None


def _is_torch(value: object) -> bool:
    modules = (base.__module__.split(".")[0] for base in type(value).__mro__)
    return hasattr(value, "detach") and "torch" in modules


def _from_torch(value: Any, index: int | None) -> NDArray[Any]:
    name = str(value.dtype).removeprefix("torch.")
    advice = ""
    if str(value.layout) != "torch.strided":
        advice = "is not dense: send .to_dense()"
    elif value.is_quantized:
        advice = "is quantized: send .dequantize() or .int_repr()"
    elif value.device.type == "meta":
        advice = "is on the meta device and has no data"
    if advice:
        raise TenbinError(f"the torch tensor {advice}", index=index)
    try:
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        if name not in _TORCH_BITS:
            return np.asarray(tensor.numpy())
        # numpy has no such dtype; the bits travel as integers, so no value is ever converted.
        bits = tensor.view(getattr(sys.modules["torch"], _TORCH_BITS[name]))
        return np.asarray(bits.numpy()).view(extended_dtype(name))
    except _CONVERSION_ERRORS as error:
        raise TenbinError(
            f"a torch tensor of {name} cannot be sent: {error}; cast it to another dtype",
            index=index,
        ) from error


def _from_protocol(value: Any, index: int | None) -> NDArray[Any]:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
    except _CONVERSION_ERRORS as error:
        raise TenbinError(f"{name} gives no numpy array: {error}", index=index) from error
    raise TenbinError(f"{name} is no array: send a numpy array", index=index)
