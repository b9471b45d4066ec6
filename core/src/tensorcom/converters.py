"""Conversions of received arrays: to a framework's tensors, to another layout, by callables.

Owns what `converters=`, `device=` and `layout=` mean. Imports torch only when it converts to it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.arrays import as_array
from tensorcom.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Converter = Callable[[Any], Any]
    Converters = str | Converter | Sequence[Converter | None] | None

_LAYOUTS = ("NHWC", "NCHW")
# Memory order of each permutation, batch axis first.
_PERMUTATIONS = {("NHWC", "NCHW"): (0, 3, 1, 2), ("NCHW", "NHWC"): (0, 2, 3, 1)}


def as_list(value: Any) -> list[Any]:
    """Return [] for None, a list for a list or tuple, and [value] for anything else."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def transform_with(arrays: Sequence[Any], functions: Sequence[Converter | None]) -> list[Any]:
    """Apply functions to arrays by position; with fewer functions than arrays they wrap around.

    None in place of a function leaves its array alone.
    """
    if not functions:
        return list(arrays)
    chosen = [functions[i % len(functions)] for i in range(len(arrays))]
    return [a if f is None else f(a) for a, f in zip(arrays, chosen, strict=True)]


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as exc:
        raise MissingDependencyError.for_package(
            "torch", "conversion to torch tensors", "pip install tensorcom-torch"
        ) from exc


def to_tensor(array: Any) -> Any:
    """Return a torch tensor that shares the memory of a numpy array, with the same dtype.

    bfloat16 and float8 arrays become tensors of the same kind. What numpy cannot write to is copied
    first, and so is what torch has no view of: negative strides. Anything else passes through.
    """
    if not isinstance(array, np.ndarray):
        return array
    torch = _torch()
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    name = array.dtype.name
    if name.startswith(("bfloat16", "float8")):
        bits = array.view(np.int16 if array.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(getattr(torch, name))
    if array.dtype.kind == "S":
        return array
    return torch.from_numpy(array)


def torch_converter(device: str = "cpu") -> Converter:
    """Return a converter to torch tensors as training wants them: float32 and int64.

    Floats become float32, signed integers and uint16 become int64; uint8 images and bool stay. Axes
    stay as they were sent: state a `layout` to have them moved.
    """

    def convert(array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        torch = _torch()
        tensor = to_tensor(array)
        if array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat16", "float8")):
            return tensor.to(device=device, dtype=torch.float32)
        if array.dtype.kind == "i" and array.dtype.itemsize > 1 or array.dtype == np.uint16:
            return tensor.to(device=device, dtype=torch.int64)
        return tensor.to(device=device) if hasattr(tensor, "to") else tensor

    return convert


def to_numpy(value: Any) -> Any:
    """Return a torch tensor as a numpy array, on the host; anything else passes through."""
    return as_array(value) if hasattr(value, "detach") else value


def resolve_converters(converters: Converters, device: str | None) -> list[Converter | None]:
    """Return the functions that `converters` and `device` ask for.

    Raises:
        ValueError: a name is not "numpy", "torch" or "torch_cuda".
    """
    named: dict[str, Callable[[], Converter]] = {
        "numpy": lambda: to_numpy,
        "torch": lambda: torch_converter(device or "cpu"),
        "torch_cuda": lambda: torch_converter("cuda"),
    }
    if isinstance(converters, str):
        if converters not in named:
            raise ValueError(f"converters={converters!r} is not one of {', '.join(named)}")
        return [named[converters]()]
    functions = as_list(converters)
    if device is None:
        return functions
    return [_placed(function, device) for function in functions or [None]]


def _placed(function: Converter | None, device: str) -> Converter:
    """Return a converter that applies `function` and moves the result to a torch device."""

    def convert(array: Any) -> Any:
        tensor = to_tensor(array if function is None else function(array))
        return tensor.to(device=device) if hasattr(tensor, "to") else tensor

    return convert


def check_layout(layout: tuple[str, str] | None) -> None:
    """Check a (sent, wanted) pair of layouts.

    Raises:
        ValueError: it is not a pair of "NHWC" and "NCHW".
    """
    if layout is None:
        return
    is_pair = isinstance(layout, (tuple, list)) and len(layout) == 2
    if not is_pair or any(name not in _LAYOUTS for name in layout):
        raise ValueError(f"layout={layout!r}: expected (sent, wanted) out of {_LAYOUTS}")


def convert_layout(array: Any, layout: tuple[str, str] | None) -> Any:
    """Return images with their axes moved from the first layout to the second, as a view.

    Args:
        array: (N,H,W,C) or (N,C,H,W), a numpy array or torch tensor.
        layout: (sent, wanted); None or equal names leave the array alone.

    Raises:
        ValueError: the array has not 4 axes.
    """
    if layout is None or layout[0] == layout[1]:
        return array
    if array.ndim != 4:
        raise ValueError(f"layout={layout!r} needs 4 axes, the first array has shape {array.shape}")
    order = _PERMUTATIONS[layout]
    return array.transpose(order) if isinstance(array, np.ndarray) else array.permute(order)
