"""Any bytes either decode or raise TenbinError, within bounded memory."""

from __future__ import annotations

import io
import math
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorcom import tenbin
from tensorcom.errors import TenbinError
from tensorcom.tenbin.chunks import encode_prefix
from tensorcom.tenbin.layout import CODES, decode_header

SCALARS = [*CODES.values(), "S1", "S5"]
DTYPES = [decode_header(code.encode().ljust(24, b"\0")).dtype for code in SCALARS]
HEAD, DATA = (bytes(part) for part in tenbin.encode_list([np.zeros((2, 2), "<f4")]))
FUZZ = settings(deadline=None, suppress_health_check=[*HealthCheck], max_examples=300)


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    return np.ndarray(shape, dtype, bytes(math.prod(shape) * dtype.itemsize))


class Pipe:
    """A stream of unknown length."""

    def __init__(self, data):
        self._stream = io.BytesIO(data)

    def read(self, size):
        return self._stream.read(min(size, 50))


def cut(data):
    """Split anything into parts that may or may not be headers."""
    size = max(1, len(data) // 3)
    return [data[start : start + size] for start in range(0, len(data), size)]


def assert_decodes_or_refuses(data):
    for decode, source in [
        (tenbin.decode_buffer, data),
        (lambda parts: tenbin.decode_list(parts, writable=True), cut(data)),
        (tenbin.read, io.BytesIO(data)),
        (tenbin.read, Pipe(data)),
    ]:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        try:
            found = decode(source)
        except TenbinError:
            found = []
        assert tracemalloc.get_traced_memory()[1] - before < 200_000 + 20 * len(data)
        assert sum(array.nbytes for array in found) <= len(data)
        assert all(isinstance(array, np.ndarray) for array in found)


@pytest.fixture
def traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


@FUZZ
@given(st.binary(max_size=600))
def test_any_bytes_decode_or_are_refused(traced, data):
    assert_decodes_or_refuses(data)


@FUZZ
@given(st.lists(st.one_of(st.binary(max_size=80), st.just(HEAD), st.just(DATA)), max_size=6))
def test_any_chunks_decode_or_are_refused(traced, parts):
    assert_decodes_or_refuses(bytes(tenbin.encode_chunks(parts)))
    try:
        found = tenbin.decode_list(parts)
    except TenbinError:
        return
    assert [array.nbytes for array in found] == [len(part) for part in parts[1::2]]


@FUZZ
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=4),
    st.integers(-2, 40),
    st.binary(max_size=40),
)
def test_any_shape_decodes_or_is_refused(traced, dtype, dims, rank, payload):
    head = tenbin.encode_header(dtype, ())[:16] + struct.pack(f"<q{len(dims)}q", rank, *dims)
    assert_decodes_or_refuses(bytes(tenbin.encode_chunks([head, payload])))


@FUZZ
@given(st.lists(arrays(), min_size=1, max_size=3), st.booleans(), st.data())
def test_mutations_decode_or_are_refused(traced, sent, aligned, data):
    buffer = tenbin.encode_buffer(sent, aligned=aligned)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(buffer)))
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "length", "delete"]))
        if kind == "set" and where < len(buffer):
            buffer[where] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del buffer[where:]
        elif kind == "insert":
            buffer[where:where] = data.draw(st.binary(max_size=70))
        elif kind == "delete":
            del buffer[where : where + data.draw(st.integers(1, 64))]
        else:
            value = data.draw(st.integers(-(2**63), 2**63 - 1))
            buffer[where - where % 8 : where - where % 8 + 8] = struct.pack("<q", value)
    assert_decodes_or_refuses(bytes(buffer))


def test_a_chunk_that_claims_much_allocates_little(traced):
    head = tenbin.encode_header(np.dtype("u1"), (2**40,))
    claim = tenbin.encode_chunks([head]) + encode_prefix(2**40) + bytes(1000)
    assert_decodes_or_refuses(bytes(claim))
    for source, text in [
        (io.BytesIO(claim), f"length {2**40} exceeds the 1000 bytes left"),
        (Pipe(claim), f"length {2**40} exceeds the 1000 bytes left"),
    ]:
        with pytest.raises(TenbinError) as caught:
            tenbin.read(source)
        assert str(caught.value) == f"at byte 80: chunk is truncated: {text}"
