"""Any bytes are parsed, transcoded and guarded, or raise JpegError, within bounded memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jpeg_helpers import hard, joined, picture, saved

from tensorcom.errors import JpegError
from tensorcom.pcr.guard import guarded
from tensorcom.pcr.jpeg import EOI, parse_jpeg
from tensorcom.pcr.scripts import FAST, STANDARD, ScanScript, split_groups
from tensorcom.pcr.transcode import Transcoder

SEEDS = [
    saved(picture(height=24, width=24)),
    saved(picture(height=24, width=24), progressive=True),
    joined(Transcoder(FAST).transcode(saved(picture(height=24, width=24))).groups, 4),
    *(hard(f"{name}.jpg") for name in ("A03", "A09", "A10", "A12", "A13", "A16", "A18", "A21b")),
    *(hard(f"{name}.jpg") for name in ("A24", "A31")),
]
FUZZ = settings(deadline=None, suppress_health_check=[*HealthCheck], max_examples=300)
POLICIES = ["strict", "lenient"]


def changed(data: bytes, seed: int) -> bytes:
    """Damage a file: its headers as often as its data."""
    chance = random.Random(seed)
    result = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        where = chance.randrange(2, chance.choice([min(len(result), 700), len(result)]))
        match chance.randrange(5):
            case 0:
                result[where] = chance.randrange(256)
            case 1:
                result[where] ^= 1 << chance.randrange(8)
            case 2:
                del result[where : where + chance.randrange(30)]
            case 3:
                result[where:where] = chance.randbytes(chance.randrange(9))
            case _:
                del result[max(where, len(result) - 40) :]
        if len(result) < 4:
            break
    return bytes(result)


def assert_parses_or_refuses(data: bytes) -> None:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        info = parse_jpeg(data, path="x")
    except JpegError as exc:
        assert exc.path == "x"
        return
    assert tracemalloc.get_traced_memory()[1] - before < 200_000 + 2 * len(data)
    assert [scan.start for scan in info.scans] == [0, *(scan.stop for scan in info.scans[:-1])]
    assert all(scan.start < scan.data <= scan.stop <= len(data) for scan in info.scans)
    assert info.end == info.scans[-1].stop
    for script in (STANDARD, FAST):
        assert b"".join(split_groups(data, info, script)) == data[: info.end]


def assert_transcodes_or_refuses(data: bytes, policy: str, script: ScanScript) -> None:
    try:
        found = Transcoder(script, policy=policy).transcode(data, path="x")
    except JpegError as exc:
        assert exc.path == "x"
        return
    assert len(found.groups) == script.groups
    assert parse_jpeg(joined(found.groups)).scans


@pytest.fixture
def traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes_parse_or_are_refused(traced, data):
    assert_parses_or_refuses(data)
    assert_parses_or_refuses(b"\xff\xd8" + data)


@FUZZ
@given(st.sampled_from(SEEDS), st.integers(0, 2**64))
def test_mutations_parse_or_are_refused(traced, data, seed):
    assert_parses_or_refuses(changed(data, seed))


@FUZZ
@given(st.sampled_from(SEEDS), st.integers(0, 2**64), st.sampled_from(POLICIES))
def test_mutations_transcode_or_are_refused(data, seed, policy):
    assert_transcodes_or_refuses(changed(data, seed), policy, STANDARD)


@settings(FUZZ, max_examples=40)
@given(st.sampled_from(SEEDS), st.integers(0, 2**64), st.sampled_from(POLICIES))
def test_mutations_transcode_or_are_refused_by_the_program(data, seed, policy):
    assert_transcodes_or_refuses(changed(data, seed), policy, FAST)


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data):
    with pytest.raises(JpegError):
        Transcoder(policy="lenient").transcode(b"\xff\xd8" + data)


@FUZZ
@given(st.sampled_from(SEEDS), st.integers(0, 2**64), st.sampled_from([None, FAST, STANDARD]))
def test_guards_change_nothing_but_the_end(data, seed, script):
    damaged = changed(data, seed)
    for count in (1, 4, 10):
        guard = guarded(damaged, script=script, scan_groups=count)
        assert guard == damaged or (guard.startswith(damaged[:-2]) and guard.endswith(EOI))
