"""Lossless transcode: the same coefficients, notes, policies, tools, threads."""

from __future__ import annotations

import json
import pickle
import threading
from hashlib import sha256

import pytest
from jpeg_helpers import (
    GOLDEN,
    TRAIN,
    after_soi,
    coef_digest,
    hard,
    joined,
    picture,
    run_jpegtran,
    saved,
    segment,
)

from tensorcom.errors import JpegError, MissingDependencyError
from tensorcom.images import decode_image
from tensorcom.pcr import libjpeg
from tensorcom.pcr.jpeg import EOI, parse_jpeg
from tensorcom.pcr.scripts import BALANCED, FAST, STANDARD, load_script
from tensorcom.pcr.transcode import Transcoder, available, find_transcoder

COLOR = saved(picture())
IMAGES = {
    "444": saved(picture(), subsampling=0),
    "420": COLOR,
    "gray": saved(picture("L")),
    "cmyk": saved(picture("CMYK")),
    "rgb": saved(picture(), keep_rgb=True),
    "progressive": saved(picture(), progressive=True),
    "golden": TRAIN[5].read_bytes(),
}
INSTALL = "apt-get install libturbojpeg0 libjpeg-turbo-progs"


@pytest.fixture
def without(monkeypatch):
    """Return a function that hides tools."""

    def hide(*names: str) -> None:
        if "libturbojpeg" in names:
            monkeypatch.setattr(libjpeg, "load_library", lambda: None)
        if "jpegtran" in names:
            monkeypatch.setattr(libjpeg, "find_program", lambda: None)

    return hide


def refusal(transcoder: Transcoder, data: bytes) -> str:
    with pytest.raises(JpegError) as caught:
        transcoder.transcode(data, path="x.jpg")
    assert caught.value.path == "x.jpg"
    return str(caught.value).removeprefix("x.jpg: ")


@pytest.mark.parametrize("tool", [None, "libturbojpeg", "jpegtran"])
@pytest.mark.parametrize("name", IMAGES)
def test_standard_is_byte_for_byte_jpegtrans(name, tool):
    found = Transcoder(tool=tool).transcode(IMAGES[name], path=name)
    assert joined(found.groups) == run_jpegtran(IMAGES[name], "-optimize", "-progressive")
    assert found.notes == ()
    assert found.orientation == 0
    assert found.frame == parse_jpeg(IMAGES[name]).frame


@pytest.mark.parametrize("script", [STANDARD, FAST, BALANCED], ids=lambda script: script.name)
@pytest.mark.parametrize("name", IMAGES)
def test_no_script_loses_a_coefficient(name, script, tmp_path):
    groups = Transcoder(script).transcode(IMAGES[name]).groups
    assert len(groups) == script.groups
    assert coef_digest(joined(groups), tmp_path) == coef_digest(IMAGES[name], tmp_path)
    for count in range(1, script.groups + 1):
        decode_image(joined(groups, count))
    info = parse_jpeg(joined(groups))
    assert info.dropped == ()
    form = script.scans_of(len(info.frame.components), ycc=info.ycc)
    assert [scan[3:] for scan in info.scans] == list(form)


def test_prefixes_are_those_of_the_originals_sets():
    sets = json.loads((GOLDEN / "pcr" / "expected.json").read_text())
    rows = [row for part in sets.values() for record in part.values()
            for row in record["jpeg_sha256_by_scans"]]  # fmt: skip
    expected = {digest for row in rows for digest in row}
    found = set()
    for path in TRAIN:
        groups = Transcoder().transcode(path.read_bytes()).groups
        found |= {sha256(joined(groups, count)).hexdigest() for count in range(1, 11)}
    assert len(expected) > 100
    assert expected == found


def test_a_script_of_a_file_is_used(tmp_path):
    path = tmp_path / "mine"
    path.write_text("0,1,2: 0-0, 0, 0; 0: 1-63, 0, 0; 1: 1-63, 0, 0; 2: 1-63, 0, 0;")
    found = Transcoder(load_script(path)).transcode(COLOR)
    assert joined(found.groups) == run_jpegtran(COLOR, "-optimize", "-scans", str(path))


def test_a_memoryview_is_taken_too():
    assert Transcoder().transcode(memoryview(COLOR)) == Transcoder().transcode(COLOR)


def test_what_is_dropped_and_odd_is_noted():
    exif = segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0")
    data = after_soi(COLOR, exif, segment(0xFE, b"a")) + b"\xff\xd8\xff" + b"tail"
    found = Transcoder().transcode(data)
    assert found.orientation == 6
    assert found.notes == ("dropped EXIF, COM, MPO frames", "dropped 7 bytes after EOI")
    assert found.groups == Transcoder().transcode(COLOR).groups


def test_a_missing_eoi_is_added_if_all_data_are_there():
    found = Transcoder().transcode(COLOR[:-2])
    assert found.notes == ("no EOI",)
    assert found.groups == Transcoder().transcode(COLOR).groups


@pytest.mark.parametrize("cut", [3, 100, 1000])
def test_missing_data_are_refused_or_noted(cut):
    text = "truncated: Corrupt JPEG data: premature end of data segment"
    assert refusal(Transcoder(), COLOR[:-cut]) == text
    assert refusal(Transcoder(), COLOR[:-cut] + EOI) == text
    found = Transcoder(policy="lenient").transcode(COLOR[:-cut])
    note = "truncated, kept what can be decoded: Corrupt JPEG data: premature end of data segment"
    assert found.notes == ("no EOI", note)
    assert joined(found.groups) == run_jpegtran(COLOR[:-cut] + EOI, "-optimize", "-progressive")


def test_missing_scans_are_refused_only_without_eoi(tmp_path):
    whole = IMAGES["progressive"]
    cut = whole[: parse_jpeg(whole).scans[6].stop]
    assert refusal(Transcoder(), cut) == "truncated: no EOI, and only 7 scans"
    lenient = Transcoder(policy="lenient").transcode(cut)
    found = Transcoder().transcode(cut + EOI)
    assert found.notes == ("the scans leave out bits of the coefficients",)
    assert lenient.notes == (*found.notes, "no EOI")
    assert lenient.groups == found.groups
    assert coef_digest(joined(found.groups), tmp_path) == coef_digest(cut + EOI, tmp_path)


@pytest.mark.parametrize("policy", ["strict", "lenient"])
def test_bytes_before_eoi_are_dropped_if_the_image_is_sound(policy):
    junk = bytes(range(1, 255))
    found = Transcoder(policy=policy).transcode(hard("A06.jpg")[:-2] + junk + EOI)
    assert found.notes == ("dropped EXIF", "dropped 254 bytes before EOI")
    assert found.groups == Transcoder().transcode(hard("A06.jpg")).groups


def test_bytes_before_and_after_eoi_are_told_apart():
    found = Transcoder().transcode(hard("A18.jpg") + b"tail" + EOI)
    assert found.notes == ("dropped 6 bytes after EOI", "dropped 258 bytes before EOI")
    assert found.groups == Transcoder().transcode(hard("A18.jpg")).groups


def test_damage_is_refused_or_noted():
    text = "Corrupt JPEG data: 50 extraneous bytes before marker 0xd9"
    assert refusal(Transcoder(), hard("A31.jpg")) == f"damaged: {text}"
    for tool in ("libturbojpeg", "jpegtran"):
        found = Transcoder(policy="lenient", tool=tool).transcode(hard("A31.jpg"))
        assert found.notes == (f"damaged, kept what can be decoded: {text}",)
        assert joined(found.groups) == run_jpegtran(hard("A31.jpg"), "-optimize", "-progressive")


def test_a_wrong_header_of_a_sequential_scan_is_mended():
    info = parse_jpeg(COLOR)
    at = info.scans[0].data
    data = COLOR[: at - 3] + b"\0\0\0" + COLOR[at:]
    found = Transcoder().transcode(data)
    assert found.notes == ("scan header that does not say coefficients 0 to 63, as they are",)
    assert found.groups == Transcoder().transcode(COLOR).groups


def test_what_no_tool_takes_is_refused_in_its_words():
    data = COLOR.replace(b"\xff\xdb", b"\xff\xfe")  # no quantisation tables
    assert refusal(Transcoder(), data) == (
        "cannot be transcoded: Quantization table 0x00 was not defined"
    )


def test_a_tool_with_another_script_is_found_out(monkeypatch):
    other = libjpeg.Output(COLOR, None)
    monkeypatch.setattr(libjpeg, "run_library", lambda *a, **k: other)
    assert refusal(Transcoder(), COLOR) == (
        "transcoded to 1 scans that are not those of the script standard"
    )


def test_a_policy_has_to_be_known():
    with pytest.raises(ValueError, match="policy 'raise', expected 'strict' or 'lenient'"):
        Transcoder(policy="raise")


def test_tools_are_named(without):
    assert available() == ("libturbojpeg", "jpegtran")
    assert find_transcoder() == "libturbojpeg"
    assert find_transcoder(FAST) == "jpegtran"
    without("libturbojpeg")
    assert find_transcoder() == "jpegtran"


def test_missing_tools_are_named_with_the_command(without):
    without("jpegtran")
    assert find_transcoder() == "libturbojpeg"
    with pytest.raises(MissingDependencyError) as caught:
        find_transcoder(FAST)
    assert str(caught.value) == (
        f"scan script fast needs jpegtran, which is not installed: {INSTALL}"
    )
    assert caught.value.package == "jpegtran"
    assert caught.value.install_command == INSTALL
    with pytest.raises(MissingDependencyError, match="scan script fast needs jpegtran"):
        Transcoder(FAST).transcode(COLOR)
    without("libturbojpeg")
    assert available() == ()
    with pytest.raises(MissingDependencyError, match="scan script standard needs libturbojpeg"):
        find_transcoder()
    with pytest.raises(MissingDependencyError, match="scan script standard needs libturbojpeg"):
        Transcoder().transcode(COLOR)


def test_a_rare_sampling_falls_back_to_the_program(without, tmp_path):
    found = Transcoder().transcode(hard("A23c.jpg"))
    assert coef_digest(joined(found.groups), tmp_path) == coef_digest(hard("A23c.jpg"), tmp_path)
    without("jpegtran")
    if "cannot" not in (text := outcome(Transcoder(), hard("A23c.jpg"))):
        assert text == str(found.groups)  # version 3 of the library
    else:
        assert text == f"x: cannot be transcoded: sampling that takes jpegtran: {INSTALL}"


def outcome(transcoder: Transcoder, data: bytes) -> str:
    try:
        return str(transcoder.transcode(data, path="x").groups)
    except JpegError as exc:
        return str(exc)


@pytest.mark.parametrize("name", ["progressive", "gray progressive", "fast"])
def test_an_image_with_the_scans_of_the_script_needs_no_tool(name, without):
    script = FAST if name == "fast" else STANDARD
    data = {
        "progressive": IMAGES["progressive"],
        "gray progressive": saved(picture("L"), progressive=True),
        "fast": joined(Transcoder(FAST).transcode(COLOR).groups),
    }[name]
    marked = after_soi(data, segment(0xE2, b"ICC_PROFILE\0")) + b"tail"
    expected = Transcoder(script).transcode(marked)
    without("libturbojpeg", "jpegtran")
    assert Transcoder(script).transcode(marked) == expected
    assert expected.notes == ("dropped ICC", "dropped 4 bytes after EOI")


def test_damage_is_seen_without_a_tool(without):
    without("libturbojpeg", "jpegtran")
    data = IMAGES["progressive"]
    scan = parse_jpeg(data).scans[9]
    damaged = data[: scan.data + 20] + EOI
    assert refusal(Transcoder(), damaged).startswith("damaged: JPEG cannot be decoded: ")


def test_a_rare_sampling_is_not_taken_without_a_tool(without):
    data = joined(Transcoder().transcode(hard("A23c.jpg")).groups)
    without("libturbojpeg", "jpegtran")
    with pytest.raises(MissingDependencyError):
        Transcoder().transcode(data)


def test_a_transcoder_pickles():
    made = pickle.loads(pickle.dumps(Transcoder(FAST, policy="lenient", tool="jpegtran")))
    assert (made.script, made.policy, made.tool) == (FAST, "lenient", "jpegtran")
    assert made.transcode(COLOR) == Transcoder(FAST).transcode(COLOR)


def test_threads_share_a_transcoder():
    transcoder = Transcoder()
    expected = {name: transcoder.transcode(data) for name, data in IMAGES.items()}
    wrong: list[str] = []

    def work() -> None:
        for name, data in IMAGES.items():
            if transcoder.transcode(data) != expected[name]:
                wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
