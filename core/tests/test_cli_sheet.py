"""Contact sheets: pixels, labels, and where both are put."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensorcom.cli.sheet import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    SheetStyle,
    as_pixels,
    draw_sheet,
    images_of,
    label_of,
)

COLOURS = RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def coloured(count, size=20):
    """Return images of plain colours, red, green, blue in turn."""
    colours = np.array([COLOURS[i % 3] for i in range(count)], np.uint8)
    return np.broadcast_to(colours[:, None, None, :], (count, size, size, 3)).copy()


# -- arrays to pixels -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((2, 5, 6, 3), "NHWC", (2, 5, 6, 3)),
        ((2, 3, 5, 6), "NCHW", (2, 5, 6, 3)),
        ((2, 3, 3, 3), "NCHW", (2, 3, 3, 3)),
        ((2, 5, 6), "NHW", (2, 5, 6, 1)),
    ],
)
def test_layout_is_as_stated(shape, layout, expected):
    array = np.arange(np.prod(shape)).reshape(shape)
    images = images_of(array, layout)
    assert images.shape == expected
    if layout == "NCHW":
        assert images[1, 2, 1, 0] == array[1, 0, 2, 1]


@pytest.mark.parametrize(
    ("shape", "layout", "text"),
    [
        ((2, 3, 5, 6), "NHWC", "have 6 channels as NHWC, expected 1, 3 or 4; is --layout right?"),
        ((2, 5, 6, 3), "NCHW", "have 5 channels as NCHW"),
        ((2, 5, 6), "NHWC", r"shape \(2, 5, 6\) are no NHWC"),
        ((2,), "NHW", "are no NHW"),
    ],
)
def test_a_wrong_layout_is_an_error(shape, layout, text):
    with pytest.raises(ValueError, match=text):
        images_of(np.zeros(shape), layout)


def test_bytes_stay_as_they_are():
    images = coloured(2)
    pixels, change = as_pixels(list(images), denormalize=False)
    assert np.array_equal(pixels, images)
    assert change == ""


def test_bool_is_black_and_white():
    pixels, _ = as_pixels([np.array([[[True], [False]]])], denormalize=False)
    assert pixels[0].reshape(-1).tolist() == [255, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int16])
def test_numbers_are_scaled_over_all_images(dtype):
    images = [np.array(v, dtype).reshape(1, 2, 1) for v in ([-2, 0], [1, 2])]
    pixels, change = as_pixels(images, denormalize=False)
    assert [p.reshape(-1).tolist() for p in pixels] == [[0, 128], [191, 255]]
    assert change == f"{np.dtype(dtype).name} scaled from -2…2 to black…white"


def test_constant_and_infinite_numbers_have_pixels():
    pixels, _ = as_pixels([np.full((1, 1, 1), 3.0)], denormalize=False)
    assert pixels[0].item() == 0
    odd = np.array([0.0, 1.0, np.nan, np.inf, -np.inf]).reshape(1, 5, 1)
    pixels, _ = as_pixels([odd], denormalize=False)
    assert pixels[0].reshape(-1).tolist() == [0, 255, 0, 255, 0]
    pixels, _ = as_pixels([np.full((1, 1, 1), np.nan)], denormalize=False)
    assert pixels[0].item() == 0


def test_denormalize_undoes_the_normalization():
    images = coloured(3)
    normalized = ((images / 255 - IMAGENET_MEAN) / IMAGENET_STD).astype(np.float32)
    pixels, change = as_pixels(list(normalized), denormalize=True)
    assert np.array_equal(pixels, images)
    assert change == "denormalized by ImageNet's mean and std"


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (np.zeros((1, 1, 3), np.uint8), "--denormalize is for float images, these are uint8"),
        (np.zeros((1, 1, 1), np.float32), "--denormalize needs 3 channels, found 1"),
    ],
)
def test_denormalize_refuses_what_was_not_normalized(image, text):
    with pytest.raises(ValueError, match=text):
        as_pixels([image], denormalize=True)


# -- labels -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int32(1), "1 dog"),
        (np.uint8(7), "7"),
        (np.array([0], np.int64), "0 cat"),
        (np.array(True), "1 dog"),
        (np.float32(0.25), "0.25"),
        (np.array([0.1, 0.9], np.float32), "1 dog (0.9)"),
        (np.array([0.5, 0.25], ml_dtypes.bfloat16), "0 cat (0.5)"),
        (np.bytes_(b"a cat"), "a cat"),
        (np.array("\u00e9\n".encode()), "\u00e9 "),
        (np.array([b"a", b"b"]), "a b"),
        (np.zeros(0), ""),
    ],
)
def test_labels(value, text):
    assert label_of(value, ["cat", "dog"]) == text


# -- the sheet --------------------------------------------------------------------------------


def test_images_are_in_rows():
    sheet = draw_sheet(list(coloured(5)), [""] * 5, SheetStyle(columns=3, tile=100))
    assert sheet.size == (3 * 108 + 8, 2 * 108 + 8)
    assert [sheet.getpixel((58 + 108 * i, 58)) for i in range(3)] == [RED, GREEN, BLUE]
    assert [sheet.getpixel((58 + 108 * i, 166)) for i in range(2)] == [RED, GREEN]


def test_fewer_images_than_columns_leave_no_empty_ones():
    sheet = draw_sheet(list(coloured(2)), ["", ""], SheetStyle(columns=8, tile=100))
    assert sheet.width == 2 * 108 + 8


def test_labels_are_drawn_below_and_stay_in_their_column():
    style = SheetStyle(columns=2, tile=100)
    plain = draw_sheet(list(coloured(2)), ["", ""], style)
    labelled = draw_sheet(list(coloured(2)), ["", "a word " * 20 + "x" * 50], style)
    assert labelled.height > plain.height
    text = np.asarray(labelled.convert("L"))[110:]
    assert text[:, 116:216].max() > 200
    assert text[:, :114].max() < 50
    assert text[:, 218:].max() < 50


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels(channels):
    image = np.full((10, 10, channels), 255, np.uint8)
    sheet = draw_sheet([image], [""], SheetStyle(tile=100))
    assert sheet.mode == "RGB"
    assert sheet.getpixel((50, 50)) == (255, 255, 255)


def test_images_keep_their_proportions():
    image = np.full((10, 40, 3), 255, np.uint8)
    sheet = np.asarray(draw_sheet([image], [""], SheetStyle(tile=100)).convert("L"))
    rows, columns = np.where(sheet == 255)
    assert np.ptp(rows) + 1 == 25
    assert np.ptp(columns) + 1 == 100
