"""The usual crops of image classification, as TensorFlow operations on JPEG strings.

Owns decoding and the views of training and evaluation; they are those of `tensorcom.images`, with
TensorFlow's decoder, resizing and random numbers. Knows nothing of records.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

_ATTEMPTS = 10
_SCALE = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_DCT = "INTEGER_ACCURATE"


def decode_view(jpeg: Any, key: Any, *, size: int, augment: str | None) -> Any:
    """Decode an image and take a square view of it.

    Args:
        jpeg: string, a JPEG file.
        key: int64 (2,), which decides about a random view.
        size: side of the view in pixels.
        augment: "train" for a random resized crop, mirrored half of the time; "eval" for the usual
            crop of the centre; None for the largest square.

    Returns:
        uint8 (size, size, 3).
    """
    height, width = tf.unstack(tf.io.extract_jpeg_shape(jpeg)[:2])
    if augment == "train":
        top, left, rows, columns = random_resized_crop_box(key, height, width)
        box = tf.stack([top, left, rows, columns])
        image = tf.image.decode_and_crop_jpeg(jpeg, box, channels=3, dct_method=_DCT)
        view = _resize(image, (0.0, 0.0, rows, columns), size)
        mirror = tf.random.stateless_uniform([], _fold(key, 2)) < 0.5  # noqa: PLR2004
        view = tf.cond(mirror, lambda: tf.reverse(view, [1]), lambda: view)
    else:
        image = tf.io.decode_jpeg(jpeg, channels=3, dct_method=_DCT)
        short = round(size * 256 / 224) if augment == "eval" else size
        view = _resize(image, _center_box(height, width, size, short), size)
    return tf.ensure_shape(view, [size, size, 3])


def random_resized_crop_box(key: Any, height: Any, width: Any) -> tuple[Any, Any, Any, Any]:
    """Choose the box of a random resized crop, as `tensorcom.images.random_resized_crop_box`.

    Args:
        key: int64 (2,), which decides.
        height: int32, of the image in pixels.
        width: int32, of the image in pixels.

    Returns:
        (top, left, height, width), int32, at least 1 x 1 and inside the image.

    Source:
        `RandomResizedCrop.get_params` as documented by torchvision.
    """
    draws = tf.random.stateless_uniform([4, _ATTEMPTS], _fold(key, 1))
    rows, columns = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    area = rows * columns * (_SCALE[0] + draws[0] * (_SCALE[1] - _SCALE[0]))
    low, high = (math.log(ratio) for ratio in _RATIO)
    aspect = tf.exp(low + draws[1] * (high - low))
    widths = tf.cast(tf.round(tf.sqrt(area * aspect)), tf.int32)
    heights = tf.cast(tf.round(tf.sqrt(area / aspect)), tf.int32)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = tf.argmax(fits)

    def drawn() -> tuple[Any, Any, Any, Any]:
        tall, wide = heights[first], widths[first]
        return (
            _place(draws[2][first], height - tall),
            _place(draws[3][first], width - wide),
            tall,
            wide,
        )

    def centred() -> tuple[Any, Any, Any, Any]:
        tall = tf.cast(tf.round(columns / _RATIO[0]), tf.int32)
        wide = tf.cast(tf.round(rows * _RATIO[1]), tf.int32)
        tall = tf.where(columns / rows < _RATIO[0], tf.clip_by_value(tall, 1, height), height)
        wide = tf.where(columns / rows > _RATIO[1], tf.clip_by_value(wide, 1, width), width)
        return (height - tall) // 2, (width - wide) // 2, tall, wide

    box: tuple[Any, Any, Any, Any] = tf.cond(tf.reduce_any(fits), drawn, centred)
    return box


def _place(draw: Any, room: Any) -> Any:
    """Return an integer of 0 to `room`, uniform as `draw` is in [0, 1)."""
    place = tf.cast(draw * tf.cast(room + 1, tf.float32), tf.int32)
    return tf.minimum(place, room)


def _center_box(height: Any, width: Any, size: int, short: int) -> tuple[Any, Any, Any, Any]:
    """Return (top, left, height, width) of the centre, float32, in pixels of the whole image.

    The sizes and offsets are those of resizing the shorter side to `short`, then cropping.
    """
    least = tf.minimum(height, width)
    rows, columns = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    full_rows = tf.cast(short * height // least, tf.float32)
    full_columns = tf.cast(short * width // least, tf.float32)
    top = tf.round((full_rows - size) / 2) * rows / full_rows
    left = tf.round((full_columns - size) / 2) * columns / full_columns
    return top, left, size * rows / full_rows, size * columns / full_columns


def _resize(image: Any, box: tuple[Any, Any, Any, Any], size: int) -> Any:
    """Resize a box of an image to a square, bilinear with antialiasing: uint8 (size, size, 3)."""
    top, left, rows, columns = (tf.cast(value, tf.float32) for value in box)
    scale = size / tf.stack([rows, columns])
    resized = tf.raw_ops.ScaleAndTranslate(
        images=image[tf.newaxis],
        size=[size, size],
        scale=scale,
        translation=-tf.stack([top, left]) * scale,
        kernel_type="triangle",
        antialias=True,
    )
    return tf.saturate_cast(tf.round(resized[0]), tf.uint8)


def _fold(key: Any, number: int) -> Any:
    return tf.random.experimental.stateless_fold_in(key, tf.constant(number, tf.int64))
