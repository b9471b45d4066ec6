"""From the bytes of an image file to pixels.

Owns the choice of decoder, the limits that hold before memory is taken, and the errors; knows
nothing of folders or batches. Orientation tags are not applied, as in the usual training loaders.
"""

from __future__ import annotations

import io
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.errors import ImageError, MissingDependencyError

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray
    from PIL import Image

MAX_PIXELS = 178_956_970
_INSTALL = "pip install 'tensorcom[images]'"
_SIGNATURES = (
    (b"\xff\xd8", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    *((b"P%d" % digit, "PPM") for digit in range(1, 7)),
)
_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"msf1": "HEIC", b"avif": "AVIF"}
# Only these of Pillow's readers run: some others start programs or guess.
_PILLOW_FORMATS = {
    "JPEG": "JPEG",
    "PNG": "PNG",
    "GIF": "GIF",
    "BMP": "BMP",
    "TIFF": "TIFF",
    "JPEG 2000": "JPEG2000",
    "PPM": "PPM",
    "WebP": "WEBP",
}
_BITS_PER_SAMPLE = 258  # TIFF tag


def detect_format(data: bytes) -> str | None:
    """Name the image format that `data` starts as, or return None if it is none that is known."""
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12])
    return None


def decode_image(
    data: bytes, *, path: str | None = None, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """Decode an image file to RGB, whatever its name ends in.

    JPEG goes through libjpeg-turbo, where anything that it would only warn of is an error;
    everything else, and JPEG that it cannot turn into RGB (CMYK, rare samplings), through Pillow.
    Gray becomes RGB, alpha is dropped, 16-bit samples keep their upper byte, of several frames the
    first is taken.

    Args:
        data: the whole file.
        path: its name, for errors.
        max_pixels: most pixels decoded; what the header claims is checked before memory is taken.

    Returns:
        uint8 (H, W, 3), contiguous, RGB.

    Raises:
        ImageError: the data are empty, cut, damaged, too large or of a format that is not decoded.
        MissingDependencyError: simplejpeg or Pillow is not installed.
    """
    if not data:
        raise ImageError("file is empty", path=path)
    kind = detect_format(data)
    if kind is None:
        raise ImageError(f"starts with {data[:8]!r}, which is no known image format", path=path)
    if kind == "JPEG":
        pixels = _decode_jpeg(data, path, max_pixels)
        if pixels is not None:
            return pixels
    return _decode_with_pillow(data, kind, path, max_pixels)


def import_pillow() -> Any:
    """Return the module `PIL.Image`.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as exc:
        raise MissingDependencyError.for_package("PIL", "working with images", _INSTALL) from exc
    return Image


def _import_simplejpeg() -> ModuleType:
    try:
        import simplejpeg
    except ImportError as exc:
        raise MissingDependencyError.for_package("simplejpeg", "decoding JPEG", _INSTALL) from exc
    module: ModuleType = simplejpeg
    return module


def _check_pixels(kind: str, height: int, width: int, path: str | None, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise ImageError(
            f"{kind} of {width} x {height} pixels exceeds the limit of {max_pixels}", path=path
        )


def _decode_jpeg(data: bytes, path: str | None, max_pixels: int) -> NDArray[np.uint8] | None:
    """Decode a JPEG; None leaves it to Pillow."""
    simplejpeg = _import_simplejpeg()
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as exc:
        if "subsampling" in str(exc):  # a rare one, or no JPEG at all
            return None
        raise ImageError(f"JPEG cannot be decoded: {exc}", path=path) from exc
    _check_pixels("JPEG", height, width, path, max_pixels)
    if colors in ("CMYK", "YCCK"):
        return None
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB")
    except ValueError as exc:
        if "color conversion" in str(exc):
            return None
        raise ImageError(f"JPEG cannot be decoded: {exc}", path=path) from exc
    return pixels


class _QuietPillow:
    """A context in which Pillow warns of nothing, for any number of threads at once.

    `warnings.catch_warnings` alone restores the wrong filters when threads overlap; so the first
    thread in changes them and the last one out restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._saved: warnings.catch_warnings[None] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._saved = warnings.catch_warnings()
                self._saved.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\b")
            self._depth += 1

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._saved is not None:
                self._saved.__exit__(None, None, None)
                self._saved = None


_quiet_pillow = _QuietPillow()


def _decode_with_pillow(
    data: bytes, kind: str, path: str | None, max_pixels: int
) -> NDArray[np.uint8]:
    if kind not in _PILLOW_FORMATS:
        raise ImageError(f"{kind} images are not decoded; convert the file", path=path)
    pillow = import_pillow()
    try:
        with (
            _quiet_pillow,
            pillow.open(io.BytesIO(data), formats=[_PILLOW_FORMATS[kind]]) as image,
        ):
            _check_pixels(kind, image.height, image.width, path, max_pixels)
            return _to_rgb(image, kind, path)
    except (ImageError, MemoryError):
        raise
    except Exception as exc:  # noqa: BLE001 - Pillow's readers raise anything on bad bytes
        reason = "the header is damaged" if "cannot identify" in str(exc) else str(exc)
        raise ImageError(f"{kind} cannot be decoded: {reason}", path=path) from exc


def _to_rgb(image: Image.Image, kind: str, path: str | None) -> NDArray[np.uint8]:
    mode = image.mode
    image.load()
    wide = mode.startswith("I;16") or (mode == "I" and kind in ("PNG", "PPM"))
    if wide and kind == "TIFF" and getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE) != (16,):
        wide = False
    if wide:
        gray = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, np.newaxis], 3, axis=2)
    if mode[0] == "I" or mode == "F":
        raise ImageError(
            f"{kind} of mode {mode} has no defined range, expected 8 or 16 bits per sample",
            path=path,
        )
    return np.array(image.convert("RGB"))
