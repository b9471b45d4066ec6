"""Contact sheets: many images with their labels in one picture.

Owns how arrays become pixels and where they are put. Works without a screen; imports Pillow when
used.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from PIL import Image, ImageDraw, ImageFont

    Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

LAYOUTS = ("NHWC", "NCHW", "NHW")
# Mean and deviation that models trained on ImageNet are fed with.
IMAGENET_MEAN = np.array([0.485, 0.456, 0.406])
IMAGENET_STD = np.array([0.229, 0.224, 0.225])

_BACKGROUND = (24, 24, 27)
_TEXT = (228, 228, 231)
_GAP = 8
_LINES = 2
_LONGEST_TEXT = 300


@dataclass(frozen=True)
class SheetStyle:
    """How a sheet looks.

    Attributes:
        columns: images in a row.
        tile: longest side of an image on the sheet, in pixels.
        denormalize: undo ImageNet's normalization of float images.
    """

    columns: int = 8
    tile: int = 160
    denormalize: bool = False


def require_pillow() -> None:
    """Check that Pillow is there.

    Raises:
        MissingDependencyError: it is not.
    """
    try:
        importlib.import_module("PIL")
    except ImportError as exc:
        raise MissingDependencyError.for_package(
            "PIL", "a contact sheet", "pip install 'tensorcom[images]'"
        ) from exc


def images_of(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return a batch of images as (N,H,W,C), a view.

    Raises:
        ValueError: the axes are not those of `layout`, or there are not 1, 3 or 4 channels.
    """
    if array.ndim != len(layout):
        raise ValueError(f"images of shape {array.shape} are no {layout}; give --image or --layout")
    if layout == "NHW":
        return array[..., np.newaxis]
    images = np.moveaxis(array, 1, -1) if layout == "NCHW" else array
    if images.shape[-1] not in (1, 3, 4):
        raise ValueError(
            f"images of shape {array.shape} have {images.shape[-1]} channels as {layout}, expected "
            "1, 3 or 4; is --layout right?"
        )
    return images


def as_pixels(images: Sequence[NDArray[Any]], *, denormalize: bool) -> tuple[list[Any], str]:
    """Return images as uint8, and how they were changed for it ("" for not at all).

    Args:
        images: (H,W,C) each, of one dtype; bytes stay as they are.
        denormalize: undo ImageNet's normalization instead of scaling by the extremes of all.

    Raises:
        ValueError: images that are no floats, or have not three channels, cannot be denormalized.
    """
    kind = images[0].dtype
    if denormalize:
        if kind.kind in "biuS":
            raise ValueError(f"--denormalize is for float images, these are {kind.name}")
        if images[0].shape[-1] != 3:
            raise ValueError(f"--denormalize needs 3 channels, found {images[0].shape[-1]}")
        scaled = [image.astype(np.float64) * IMAGENET_STD + IMAGENET_MEAN for image in images]
        return [_to_bytes(image) for image in scaled], "denormalized by ImageNet's mean and std"
    if kind == np.uint8:
        return list(images), ""
    if kind.kind == "b":
        return [image.astype(np.uint8) * 255 for image in images], ""
    floats = [image.astype(np.float64) for image in images]
    finite = [image[np.isfinite(image)] for image in floats]
    low = min((float(f.min()) for f in finite if f.size), default=0.0)
    high = max((float(f.max()) for f in finite if f.size), default=1.0)
    span = high - low or 1.0
    return (
        [_to_bytes((image - low) / span) for image in floats],
        f"{kind.name} scaled from {low:.4g}…{high:.4g} to black…white",
    )


def _to_bytes(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return [0, 1] as [0, 255]; what is not finite is black or white."""
    filled = np.nan_to_num(image, nan=0.0, posinf=1.0, neginf=0.0)
    return (np.clip(filled, 0.0, 1.0) * 255).round().astype(np.uint8)


def label_of(value: Any, names: Sequence[str]) -> str:
    """Return the text of one label.

    Args:
        value: an integer class, bytes, a number, or several numbers, of which the largest counts.
        names: class names by index, empty for none.
    """
    array = np.asarray(value)
    if array.dtype.kind == "S":
        text = b" ".join(array.reshape(-1).tolist()).decode(errors="replace")
        return "".join(c if c.isprintable() else " " for c in text)[:_LONGEST_TEXT]
    if array.size == 0:
        return ""
    if array.size > 1:
        best = int(np.argmax(array.reshape(-1).astype(np.float64)))
        return f"{_class_text(best, names)} ({float(array.reshape(-1)[best]):.2g})"
    if array.dtype.kind in "biu":
        return _class_text(int(array.reshape(-1)[0]), names)
    return f"{float(array.reshape(-1)[0].astype(np.float64)):.4g}"


def _class_text(index: int, names: Sequence[str]) -> str:
    return f"{index} {names[index]}" if 0 <= index < len(names) else str(index)


def draw_sheet(
    pixels: Sequence[NDArray[np.uint8]], labels: Sequence[str], style: SheetStyle
) -> Any:
    """Return the contact sheet.

    Args:
        pixels: (H,W,C) uint8 each, with 1, 3 or 4 channels.
        labels: a text for each image; "" for none.
        style: how it looks.

    Returns:
        A Pillow image in RGB.
    """
    from PIL import Image, ImageDraw, ImageFont

    columns = min(style.columns, len(pixels))
    rows = -(-len(pixels) // columns)
    tiles = [_tile(image, style.tile) for image in pixels]
    wide, high = max(t.width for t in tiles), max(t.height for t in tiles)
    wide = max(wide, min(style.tile, 96))  # room for a label under a narrow image
    size = min(max(style.tile // 12, 11), 15)
    font = ImageFont.load_default(size)
    line = size + size // 4
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    captions = [_wrap(measure, label, font, wide) for label in labels]
    lines = max(len(caption) for caption in captions)
    below = lines * line + _GAP // 2 if lines else 0
    area = (columns * (wide + _GAP) + _GAP, rows * (high + below + _GAP) + _GAP)
    sheet = Image.new("RGB", area, _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for i, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        left = _GAP + (i % columns) * (wide + _GAP)
        top = _GAP + (i // columns) * (high + below + _GAP)
        sheet.paste(tile, (left + (wide - tile.width) // 2, top + (high - tile.height) // 2))
        for number, text in enumerate(caption):
            place = (left + wide / 2, top + high + _GAP // 2 + number * line)
            draw.text(place, text, font=font, fill=_TEXT, anchor="ma")
    return sheet


def _tile(image: NDArray[np.uint8], side: int) -> Image.Image:
    from PIL import Image

    channels = image.shape[-1]
    squeezed = np.ascontiguousarray(image[..., 0] if channels == 1 else image)
    picture = Image.fromarray(squeezed)
    if channels == 4:
        ground = Image.new("RGBA", picture.size, (*_BACKGROUND, 255))
        picture = Image.alpha_composite(ground, picture)
    picture = picture.convert("RGB")
    scale = side / max(picture.size)
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    smooth = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
    return picture.resize(size, smooth)


def _wrap(draw: ImageDraw.ImageDraw, text: str, font: Font, width: int) -> list[str]:
    """Break a label into at most two lines that fit, the last one cut with `…`."""
    rest = " ".join(text.split())
    lines: list[str] = []
    while rest and len(lines) < _LINES - 1 and not _fits(draw, rest, font, width):
        end = len(rest)
        while end > 1 and not _fits(draw, rest[:end], font, width):
            end -= 1
        space = rest.rfind(" ", 0, end + 1)
        end = space if space > 0 else end  # a word that is too long breaks where it must
        lines.append(rest[:end])
        rest = rest[end:].strip()
    return [*lines, _cut(draw, rest, font, width)] if rest else lines


def _fits(draw: ImageDraw.ImageDraw, text: str, font: Font, width: int) -> bool:
    return draw.textlength(text, font=font) <= width


def _cut(draw: ImageDraw.ImageDraw, text: str, font: Font, width: int) -> str:
    if _fits(draw, text, font, width):
        return text
    while text and not _fits(draw, f"{text}…", font, width):
        text = text[:-1]
    return f"{text.rstrip()}…"
