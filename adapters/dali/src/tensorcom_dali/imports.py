"""DALI and the frameworks beside it, imported when they are used.

Owns what is said when one is missing; sources of data work without any of them.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from tensorcom import MissingDependencyError
from tensorcom.arguments import check_integers

INSTALL = (
    "pip install 'tensorcom-dali[cuda13]' (it runs on CPUs without CUDA too), or "
    "'tensorcom-dali[cuda12]' beside CUDA 12"
)


def import_dali(module: str = "nvidia.dali") -> Any:
    """Return DALI, or a module of it.

    Raises:
        MissingDependencyError: DALI is not installed.
    """
    try:
        importlib.import_module("nvidia.dali.types")
        importlib.import_module("nvidia.dali.fn")
        return importlib.import_module(module)
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] != "nvidia":
            raise
        raise MissingDependencyError.for_package("nvidia.dali", "a pipeline", INSTALL) from exc


def check_gpu(device_id: int = 0) -> None:
    """Check that CUDA finds a GPU, before DALI asserts it.

    Raises:
        MissingDependencyError: there is no driver, or no GPU.
        ValueError: there are GPUs, but not this one.
    """
    check_integers(0, device_id=device_id)
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        found = cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    except OSError:
        found = False
    if not found or count.value < 1:
        raise MissingDependencyError(
            "device='gpu' needs a GPU and its driver, and CUDA finds none here: use device='cpu'",
            package="cuda",
        )
    if device_id >= count.value:
        raise ValueError(
            f"device_id={device_id}, but CUDA finds {count.value} GPUs here: a pipeline takes that "
            "of the variable LOCAL_RANK if it is given none"
        )


def import_framework(name: str) -> Any:
    """Return DALI's plugin for "torch" or "jax".

    Raises:
        MissingDependencyError: DALI or the framework is not installed.
    """
    import_dali()
    try:
        importlib.import_module(name)
    except ImportError as exc:
        command = f"pip install {name}"
        raise MissingDependencyError.for_package(name, f"Loader(to={name!r})", command) from exc
    return importlib.import_module(
        {"torch": "nvidia.dali.plugin.pytorch", "jax": "nvidia.dali.plugin.jax"}[name]
    )
