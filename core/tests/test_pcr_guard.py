"""Guard scans: pixels without smoothing, the same coefficients, unchanged where not exact."""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from jpeg_helpers import TRAIN, coef_digest, hard, joined, picture, run_jpegtran, saved
from PIL import Image

from tensorcom.images import decode_image
from tensorcom.pcr.guard import guarded
from tensorcom.pcr.jpeg import EOI, parse_jpeg
from tensorcom.pcr.scripts import BALANCED, FAST, STANDARD, load_script
from tensorcom.pcr.transcode import Transcoder

IMAGES = {
    "444": saved(picture(), subsampling=0),
    "422": saved(picture(), subsampling=1),
    "420": saved(picture(), subsampling=2),
    "gray": saved(picture("L")),
    "rgb": saved(picture(), keep_rgb=True),
    "cmyk": saved(picture("CMYK")),
    "golden": TRAIN[0].read_bytes(),
    "1x1": saved(picture(height=1, width=1)),
    "440": hard("A23b.jpg"),
    "410": hard("A23c.jpg"),
    "1x3": hard("A23g.jpg"),
}
# The prefixes of each script that can be guarded.
GUARDED = {STANDARD: [1], FAST: [*range(1, 10)], BALANCED: [1]}
GUARDED_GRAY = {STANDARD: [1], FAST: [1, 2, 3, 4], BALANCED: [1]}


def pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        if image.mode == "CMYK":
            return np.asarray(image)
    return decode_image(data)


def unsmoothed(prefix: bytes) -> np.ndarray:
    """Decode the coefficients of a prefix; a sequential JPEG is never smoothed."""
    return pixels(run_jpegtran(prefix, "-optimize"))


@pytest.mark.parametrize("script", GUARDED, ids=lambda script: script.name)
@pytest.mark.parametrize("name", IMAGES)
def test_guarded_prefixes_have_the_pixels_of_unsmoothed_ones(name, script, tmp_path):
    groups = Transcoder(script).transcode(IMAGES[name]).groups
    found = []
    for count in range(1, script.groups + 1):
        prefix = joined(groups, count)
        guard = guarded(prefix, script=script, scan_groups=count)
        assert guarded(prefix) == guard
        if guard is prefix:
            continue
        found.append(count)
        assert guard.startswith(prefix[:-2])
        assert guard.endswith(EOI)
        assert len(guard) - len(prefix) < 60 * len(parse_jpeg(prefix).frame.components)
        np.testing.assert_array_equal(pixels(guard), unsmoothed(prefix))
        assert coef_digest(guard, tmp_path) == coef_digest(prefix, tmp_path)
    equals = name in ("gray", "rgb", "cmyk")  # chroma comes late in the others
    assert found == (GUARDED_GRAY if equals else GUARDED)[script]


@pytest.mark.parametrize("count", [1, 2])
def test_decoders_do_smooth_what_has_no_guard(count):
    prefix = joined(Transcoder(FAST).transcode(IMAGES["420"]).groups, count)
    assert (pixels(prefix) != unsmoothed(prefix)).any()


@pytest.mark.parametrize("name", ["444", "420", "gray"])
def test_a_strict_decoder_has_nothing_to_say(name):
    groups = Transcoder(FAST).transcode(IMAGES[name]).groups
    for count in range(1, 10):
        guard = guarded(joined(groups, count), script=FAST, scan_groups=count)
        simplejpeg.decode_jpeg(guard, "RGB", strict=True)


@pytest.mark.parametrize("size", [(1736, 1208), (2048, 1024), (4100, 4096)])
def test_many_blocks_take_several_runs(size):
    """The longest run is 32767 blocks."""
    data = saved(Image.new("L", size, 99), quality=30)
    prefix = joined(Transcoder(FAST).transcode(data).groups, 1)
    guard = guarded(prefix, script=FAST, scan_groups=1)
    assert guard != prefix
    np.testing.assert_array_equal(pixels(guard), unsmoothed(prefix))


def test_bands_that_were_sent_in_part_of_another_component_prevent_a_guard(tmp_path):
    path = tmp_path / "script"
    path.write_text("0,1,2: 0-0, 0, 0; 1: 1-63, 0, 1; 0: 1-63, 0, 0; 1: 1-63, 1, 0; 2: 1-63, 0, 0;")
    script = load_script(path)
    groups = Transcoder(script).transcode(IMAGES["444"]).groups
    changed = [
        guarded(joined(groups, k), script=script, scan_groups=k) != joined(groups, k)
        for k in range(1, 6)
    ]
    assert changed == [True, False, False, True, False]


def test_a_band_with_a_hole_gets_two_guards(tmp_path):
    path = tmp_path / "script"
    path.write_text("0,1,2: 0-0, 0, 0; 0: 3-5, 0, 0; 0: 1-2, 0, 0; 0: 6-63, 0, 0;"
                    "1: 1-63, 0, 0; 2: 1-63, 0, 0;")  # fmt: skip
    script = load_script(path)
    prefix = joined(Transcoder(script).transcode(IMAGES["444"]).groups, 2)
    guard = guarded(prefix, script=script, scan_groups=2)
    bands = [(scan.components, scan.ss, scan.se) for scan in parse_jpeg(guard).scans[2:]]
    assert bands == [((0,), 1, 2), ((0,), 6, 9), ((1,), 1, 9), ((2,), 1, 9)]
    np.testing.assert_array_equal(pixels(guard), unsmoothed(prefix))


def test_what_is_no_prefix_stays_as_it_is():
    prefix = joined(Transcoder(FAST).transcode(IMAGES["420"]).groups, 2)
    arithmetic = hard("A21b.jpg")
    arithmetic = arithmetic[: parse_jpeg(arithmetic).scans[0].stop] + EOI
    tails = [prefix + b"\0", prefix + EOI]
    for data in [b"", EOI, b"\xff\xd8", IMAGES["420"], prefix[:-2], *tails, arithmetic]:
        assert guarded(data) is data
    for data in [b"", EOI, b"\xff\xd8", IMAGES["420"], prefix[:-2], prefix[:30], arithmetic]:
        assert guarded(data, script=FAST, scan_groups=2) is data


def test_a_component_without_dc_is_not_smoothed_and_not_guarded(tmp_path):
    path = tmp_path / "script"
    path.write_text("0: 0-0, 0, 0; 1: 0-0, 0, 0; 2: 0-0, 0, 0;"
                    "0: 1-63, 0, 0; 1: 1-63, 0, 0; 2: 1-63, 0, 0;")  # fmt: skip
    script = load_script(path)
    groups = Transcoder(script).transcode(IMAGES["420"]).groups
    for count in (1, 2):
        prefix = joined(groups, count)
        assert guarded(prefix, script=script, scan_groups=count) is prefix
        np.testing.assert_array_equal(pixels(prefix), unsmoothed(prefix))
    assert guarded(joined(groups, 3)) != joined(groups, 3)
