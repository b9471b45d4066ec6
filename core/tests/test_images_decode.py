"""Decoding: formats, modes, limits, damage, warnings, missing packages."""

from __future__ import annotations

import io
import struct
import sys
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tensorcom.errors import ImageError, MissingDependencyError
from tensorcom.images import decode_image, detect_format
from tensorcom.images.decode import _quiet_pillow

HARDCASES = Path(__file__).parents[2] / "tests" / "golden" / "hardcases"


def picture(mode: str = "RGB", height: int = 32, width: int = 40) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    rgb = np.stack([x * 6, y * 7, (x + y) * 3], axis=2).astype(np.uint8)
    return Image.fromarray(rgb).convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def hard(name: str) -> bytes:
    return (HARDCASES / name).read_bytes()


def is_plain(pixels: np.ndarray) -> bool:
    return pixels.dtype == np.uint8 and pixels.flags.c_contiguous and pixels.flags.writeable


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "JPEG2000", "WEBP"])
def test_lossless_formats_keep_every_pixel(kind):
    image = picture()
    options = {"lossless": True} if kind == "WEBP" else {}
    pixels = decode_image(encoded(image, kind, **options))
    assert is_plain(pixels)
    np.testing.assert_array_equal(pixels, np.asarray(image))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpeg_is_what_libjpeg_gives(mode, progressive):
    data = encoded(picture(mode), "JPEG", progressive=progressive)
    pixels = decode_image(data)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert is_plain(pixels)
    assert np.abs(pixels.astype(int) - expected).max() <= 1


def test_jpeg_as_cmyk_is_not_inverted():
    for name in ("A03.jpg", "A04.jpg"):
        expected = np.asarray(Image.open(io.BytesIO(hard(name))).convert("RGB"))
        np.testing.assert_array_equal(decode_image(hard(name)), expected)


def test_a_jpeg_of_a_rare_sampling_is_decoded():
    assert decode_image(hard("A23c.jpg")).shape == (45, 61, 3)


def test_orientation_is_left_as_it_is():
    assert decode_image(hard("A06.jpg")).shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("name", "kind"), [("A01.JPEG", "PNG"), ("A02a.jpg", "GIF"), ("A02b.jpg", "WebP")]
)
def test_the_content_decides_not_the_name(name, kind):
    assert detect_format(hard(name)) == kind
    assert decode_image(hard(name), path=name).shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGBA", "PNG"), ("LA", "PNG"), ("L", "PNG"), ("1", "PNG"), ("P", "PNG"), ("CMYK", "TIFF")],
)
def test_other_modes_become_rgb(mode, kind):
    image = picture(mode)
    pixels = decode_image(encoded(image, kind))
    assert is_plain(pixels)
    np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB")))


def test_alpha_is_dropped_and_not_blended():
    pixels = np.full((4, 4, 4), (200, 100, 50, 0), np.uint8)
    decoded = decode_image(encoded(Image.fromarray(pixels), "PNG"))
    np.testing.assert_array_equal(decoded, pixels[:, :, :3])


@pytest.mark.parametrize("kind", ["PNG", "PPM", "TIFF"])
def test_sixteen_bits_keep_their_upper_byte(kind):
    wide = np.arange(0, 65536, 64, np.uint32).astype(np.uint16).reshape(16, 64)
    pixels = decode_image(encoded(Image.fromarray(wide), kind))
    assert is_plain(pixels)
    for channel in range(3):
        np.testing.assert_array_equal(pixels[:, :, channel], wide >> 8)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_samples_without_a_range_are_refused(dtype):
    data = encoded(Image.fromarray(np.ones((4, 4), dtype)), "TIFF")
    with pytest.raises(ImageError, match="x.tif: TIFF of mode . has no defined range"):
        decode_image(data, path="x.tif")


def test_of_several_frames_the_first_is_taken():
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(data)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("A02f.jpg", "HEIC images are not decoded; convert the file"),
        ("A29a.jpg", "JPEG cannot be decoded: Premature end of JPEG file"),
        ("A29b.jpg", "JPEG cannot be decoded: Premature end of JPEG file"),
        ("A30a.jpg", "file is empty"),
        ("A30b.jpg", r"starts with b'\xff', which is no known image format"),
        ("A30c.jpg", "JPEG cannot be decoded: the header is damaged"),
        ("A30e.jpg", "JPEG cannot be decoded: "),
        ("A31.jpg", "JPEG cannot be decoded: Corrupt JPEG data"),
        ("A27.jpg", "JPEG of 65500 x 65500 pixels exceeds the limit of 178956970"),
    ],
)
def test_bad_files_are_named_with_what_they_are(name, text):
    with pytest.raises(ImageError) as caught:
        decode_image(hard(name), path=f"dir/{name}")
    assert str(caught.value).startswith(f"dir/{name}: {text}")
    assert caught.value.path == f"dir/{name}"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP", "JPEG2000"])
def test_cut_files_are_refused(kind):
    noise = np.random.default_rng(3).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    for keep in (0.1, 0.5, 0.9):
        with pytest.raises(ImageError):
            decode_image(data[: int(len(data) * keep)])


def test_damaged_png_is_refused():
    data = bytearray(encoded(picture(), "PNG"))
    data[60] ^= 0xFF
    with pytest.raises(ImageError, match="PNG cannot be decoded"):
        decode_image(bytes(data))


def png_claiming(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(name + body)
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(("width", "height"), [(13378, 13378), (30000, 30000), (2**31 - 1, 1)])
def test_a_png_that_claims_too_much_is_refused_before_memory_is_taken(width, height):
    with pytest.raises(ImageError, match="PNG"):
        decode_image(png_claiming(width, height))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_limit_is_exact(kind):
    data = encoded(picture(), kind)
    assert decode_image(data, max_pixels=32 * 40).shape == (32, 40, 3)
    with pytest.raises(ImageError, match=f"{kind} of 40 x 32 pixels exceeds the limit of 1279"):
        decode_image(data, max_pixels=32 * 40 - 1)


def test_pillow_warns_of_nothing():
    palette = picture("P")
    palette.info["transparency"] = bytes(range(256))
    exif_jpeg = hard("A07.jpg")
    cmyk = bytearray(hard("A03.jpg"))
    exif_at = exif_jpeg.index(b"\xff\xe1")
    size = int.from_bytes(exif_jpeg[exif_at + 2 : exif_at + 4], "big")
    cmyk[2:2] = exif_jpeg[exif_at : exif_at + 2 + size]
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Image.open(io.BytesIO(bytes(cmyk))).getexif()
        assert caught, "the file no longer makes Pillow warn"
        caught.clear()
        decode_image(bytes(cmyk))
        decode_image(exif_jpeg)
        decode_image(encoded(palette, "PNG"))
    assert not caught
    assert warnings.filters == before


def test_overlapping_threads_leave_the_warning_filters_alone():
    before = list(warnings.filters)
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with _quiet_pillow:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=stay)
    with _quiet_pillow:
        thread.start()
        assert inside.wait(10)
    assert warnings.filters != before
    leave.set()
    thread.join()
    assert warnings.filters == before


def test_threads_decode_alike():
    data = [encoded(picture(), "PNG"), encoded(picture(), "JPEG"), hard("A03.jpg")]
    expected = [decode_image(item) for item in data]
    failed: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(30):
                for item, pixels in zip(data, expected, strict=True):
                    np.testing.assert_array_equal(decode_image(item), pixels)
        except Exception as exc:
            failed.append(exc)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize(("package", "kind"), [("simplejpeg", "JPEG"), ("PIL", "PNG")])
def test_a_missing_package_is_named_with_its_remedy(package, kind, monkeypatch):
    data = encoded(picture(), kind)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingDependencyError, match=r"pip install 'tensorcom\[images\]'"
    ) as caught:
        decode_image(data)
    assert caught.value.package == package


def test_formats_are_told_by_their_first_bytes():
    assert detect_format(b"\xff\xd8\xff\xe0") == "JPEG"
    assert detect_format(b"\0\0\0\x18ftypavif") == "AVIF"
    assert detect_format(b"\0\0\0\x18ftypxxxx") is None
    assert detect_format(b"%PDF-1.4") is None
    assert detect_format(b"") is None
