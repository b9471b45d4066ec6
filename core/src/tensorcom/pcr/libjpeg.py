"""The two tools that transcode JPEG without loss: the library libturbojpeg, the program jpegtran.

Owns finding and calling them, and telling their warnings from their failures; knows nothing of what
a warning means for an image. Nothing is loaded before the first call.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from functools import lru_cache
from typing import Any, NamedTuple

from tensorcom.errors import PcrError

INSTALL_COMMAND = "apt-get install libturbojpeg0 libjpeg-turbo-progs"
TIMEOUT_S = 120.0

_LIBRARIES = (
    "libturbojpeg.so.0",
    "libturbojpeg.so",
    "libturbojpeg.0.dylib",
    "libturbojpeg.dylib",
    "turbojpeg.dll",
)
_PROGRESSIVE, _COPY_NONE = 32, 64  # TJXOPT_
_STOP_ON_WARNING = 8192  # TJFLAG_
_WARNING = 0  # TJERR_WARNING
_EXIT_WARNING = 2


class ToolError(Exception):
    """A tool gave no output; the text is its own."""


class Output(NamedTuple):
    """What a tool made of an image.

    Attributes:
        data: the progressive JPEG, or None if the tool stopped at the warning.
        warning: its first warning, or None.
    """

    data: bytes | None
    warning: str | None


class _Transform(ctypes.Structure):
    """`tjtransform` of turbojpeg.h, the same in versions 1.2 to 3."""

    _fields_ = (
        ("region", ctypes.c_int * 4),
        ("op", ctypes.c_int),
        ("options", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("custom_filter", ctypes.c_void_p),
    )


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """Load libturbojpeg, once in a process; None if it is not installed."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            _declare(library)
        except (OSError, AttributeError):
            continue
        return library
    return None


def _declare(library: Any) -> None:
    library.tjInitTransform.restype = ctypes.c_void_p
    library.tjTransform.argtypes = (
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_ulong,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_ulong),
        ctypes.POINTER(_Transform),
        ctypes.c_int,
    )
    library.tjGetErrorStr2.argtypes = (ctypes.c_void_p,)
    library.tjGetErrorStr2.restype = ctypes.c_char_p
    library.tjGetErrorCode.argtypes = (ctypes.c_void_p,)
    library.tjFree.argtypes = (ctypes.c_void_p,)
    library.tjFree.restype = None
    library.tjDestroy.argtypes = (ctypes.c_void_p,)


@lru_cache(maxsize=1)
def find_program() -> str | None:
    """Return the path of jpegtran, looked up once in a process; None if it is not installed."""
    return shutil.which("jpegtran")


def run_library(library: ctypes.CDLL, data: bytes, *, keep_going: bool) -> Output:
    """Transcode to libjpeg's own progressive script. Other threads run meanwhile.

    Args:
        library: from `load_library`.
        data: the JPEG.
        keep_going: give what can be decoded in spite of warnings, instead of stopping at the first.

    Raises:
        ToolError: the image cannot be transcoded.
    """
    # A handle keeps the tables of an image: one that lacks its own would get those of the last.
    handle = library.tjInitTransform()
    if not handle:
        raise MemoryError("libturbojpeg could not be set up")
    transform = _Transform(options=_PROGRESSIVE | _COPY_NONE)
    output, size = ctypes.c_void_p(), ctypes.c_ulong()
    flags = 0 if keep_going else _STOP_ON_WARNING
    try:
        failed = library.tjTransform(
            *(handle, data, len(data), 1),
            *(ctypes.byref(output), ctypes.byref(size), ctypes.byref(transform), flags),
        )
        warning = None
        if failed:
            text: bytes = library.tjGetErrorStr2(handle)
            warning = text.decode("utf-8", "replace")
            if library.tjGetErrorCode(handle) != _WARNING:
                raise ToolError(warning)
            if not keep_going:
                return Output(None, warning)
        if not output.value or not size.value:  # fatal, whatever the code says
            raise ToolError(warning or "libturbojpeg gave no output")
        return Output(ctypes.string_at(output.value, size.value), warning)
    finally:
        if output.value:
            library.tjFree(output)
        library.tjDestroy(handle)


def run_program(program: str, data: bytes, script: str | None) -> Output:
    """Transcode by a run of jpegtran. With a warning there is output as well.

    Args:
        program: from `find_program`.
        data: the JPEG.
        script: scans as jpegtran's `-scans` takes them; None takes libjpeg's own.

    Raises:
        ToolError: the image cannot be transcoded, or not in `TIMEOUT_S`.
        PcrError: the program did not run, or was killed.
    """
    command = [program, "-copy", "none", "-optimize"]
    if script is None:
        return _run([*command, "-progressive"], data)
    source, sink = os.pipe()
    try:
        with os.fdopen(sink, "w") as file:
            file.write(script)  # far less than a pipe holds
        return _run([*command, "-scans", f"/dev/fd/{source}"], data, source)
    finally:
        os.close(source)


def _run(command: list[str], data: bytes, *handles: int) -> Output:
    try:
        done = subprocess.run(  # noqa: S603 - no shell, no name from outside
            command,
            input=data,
            capture_output=True,
            timeout=TIMEOUT_S,
            pass_fds=handles,
            start_new_session=True,  # Ctrl-C is for us alone
        )
    except subprocess.TimeoutExpired as exc:
        raise ToolError(f"jpegtran took more than {TIMEOUT_S:g} s") from exc
    except OSError as exc:
        raise PcrError(f"jpegtran did not run: {exc}") from exc
    if done.returncode < 0:  # out of memory, say: that is no fault of the image
        raise PcrError(f"jpegtran was killed by {signal.Signals(-done.returncode).name}")
    lines = done.stderr.decode("utf-8", "replace").split("\n")
    if done.returncode not in (0, _EXIT_WARNING) or not done.stdout:
        raise ToolError(lines[0] or f"jpegtran failed with status {done.returncode}")
    return Output(done.stdout, lines[0] if done.returncode else None)
