"""Any bytes decode or are refused: codec, files, meta and messages, in bounded memory."""

from __future__ import annotations

import io
import math
import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensorcom import MessageError, TenbinError, tenbin
from tensorcom.buffers import BufferPool
from tensorcom.message import Message, decode_message, encode_message
from tensorcom.meta import META_MAGIC, Meta, decode_meta, encode_meta

DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"]
PEAK_BYTES = 16 << 20

arrays = hnp.arrays(
    st.sampled_from(DTYPES + [f">{code}" for code in DTYPES if code[1:] not in ("1", "")]),
    hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
)
infos = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=8)
metas = st.builds(
    Meta,
    source=st.none() | st.text("abc123", min_size=1, max_size=20),
    seq=st.none() | st.integers(0, 2**63 - 1),
    end=st.sampled_from([None, "epoch", "stream"]),
    times=st.dictionaries(st.sampled_from(["read", "sent"]), st.floats(-1e12, 1e12)),
)
topics = st.binary(max_size=30)


@st.composite
def messages(draw) -> Message:
    found = draw(st.lists(arrays, max_size=4))
    topic, meta = draw(topics), draw(metas)
    if not found and meta == Meta():
        meta = Meta(seq=0)
    return Message(found, [draw(infos) for _ in found], topic, meta)


@st.composite
def mutated(draw, source) -> bytes:
    """Draw bytes that were a file or a frame, and were cut, spliced and flipped."""
    data = bytearray(draw(source))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        action = draw(st.sampled_from(["flip", "cut", "insert", "int", "copy"]))
        if action == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif action == "cut":
            del data[at : at + draw(st.integers(0, 80))]
        elif action == "insert":
            data[at:at] = draw(st.binary(max_size=80))
        elif action == "copy":
            data[at:at] = data[draw(st.integers(0, len(data))) :][:128]
        else:
            value = draw(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300))
            at -= at % 8
            data[at : at + 8] = value.to_bytes(8, "little", signed=True)
    return bytes(data)


def same(one, other) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return (one.shape, one.dtype.newbyteorder("=")) == (
        other.shape,
        other.dtype.newbyteorder("="),
    ) and np.array_equal(one.astype(one.dtype.newbyteorder("=")), other, equal_nan=True)


def check(decode, data, errors) -> None:
    """Decode or refuse, with a text that can be read and memory that the input bounds."""
    tracemalloc.start()
    try:
        result = decode(data)
        for array in result if isinstance(result, (list, tuple)) else ():
            assert math.prod(array.shape) * array.dtype.itemsize == array.nbytes
    except errors as error:
        assert len(str(error)) < 2000
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < PEAK_BYTES


buffers = st.lists(arrays, max_size=3).map(lambda found: bytes(tenbin.encode_buffer(found)))


@given(st.lists(st.tuples(arrays, infos), max_size=4), st.booleans())
def test_round_trip(pairs, aligned) -> None:
    found, labels = [a for a, _ in pairs], [i for _, i in pairs]
    data = tenbin.encode_chunks(tenbin.encode_list(found, labels), aligned=aligned)
    back, infos_back = tenbin.decode_buffer_with_infos(data)
    assert list(infos_back) == labels
    assert all(same(a, b) for a, b in zip(found, back, strict=True))


@given(mutated(buffers) | st.binary(max_size=500))
def test_any_buffer_and_any_file(data) -> None:
    check(tenbin.decode_buffer, data, TenbinError)
    check(lambda raw: tenbin.read(io.BytesIO(raw)), data, TenbinError)


@given(st.lists(mutated(buffers) | st.binary(max_size=100), max_size=6))
def test_any_list(parts) -> None:
    check(tenbin.decode_list, parts, TenbinError)


@given(mutated(metas.map(encode_meta)) | st.binary(max_size=300).map(META_MAGIC.__add__))
def test_any_meta(data) -> None:
    try:
        meta = decode_meta(data)
    except MessageError as error:
        assert len(str(error)) < 2000
        return
    assert decode_meta(encode_meta(meta)) == meta


@given(messages(), st.booleans())
def test_messages_round_trip(message, multipart) -> None:
    try:
        parts = encode_message(message, multipart=multipart)
    except MessageError:
        assert message.topic  # one that reads as a tensor frame
        return
    back = decode_message([memoryview(bytes(part)) for part in parts])
    assert (back.topic, back.meta, list(back.infos)) == (
        message.topic,
        message.meta,
        list(message.infos),
    )
    assert all(same(a, b) for a, b in zip(message.arrays, back.arrays, strict=True))


@given(st.data())
def test_any_frames(data) -> None:
    whole = data.draw(messages())
    try:
        parts = [bytes(part) for part in encode_message(whole, multipart=data.draw(st.booleans()))]
    except MessageError:
        parts = []
    drawn = st.sampled_from(parts) if parts else st.binary(max_size=60)
    parts = [data.draw(mutated(st.just(part))) for part in parts]
    parts[len(parts) // 2 : len(parts) // 2] = data.draw(st.lists(mutated(drawn), max_size=2))

    def decode(frames):
        return decode_message([memoryview(f) for f in frames], copy=BufferPool().copy).arrays

    check(decode, parts, MessageError)
