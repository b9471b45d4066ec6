"""Messages and their frames."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcom import tenbin
from tensorcom.buffers import BufferPool
from tensorcom.errors import MessageError, TenbinError
from tensorcom.message import (
    MAX_PARTS,
    MAX_TOPIC_BYTES,
    Message,
    check_topic,
    decode_message,
    encode_message,
    read_envelope,
)
from tensorcom.meta import META_MAGIC, Meta

A = np.arange(12, dtype="f4").reshape(3, 4)
B = np.array([3, 1, 2], "i4")
HEADER, DATA = (bytes(part) for part in tenbin.encode_list([A]))
BUFFER = bytes(tenbin.encode_buffer([A, B]))


def views(frames) -> list[memoryview]:
    return [memoryview(frame) for frame in frames]


def trip(message: Message, *, multipart: bool = True, copy=None) -> Message:
    frames = [bytes(frame) for frame in encode_message(message, multipart=multipart)]
    return decode_message(views(frames), copy=copy)


def assert_equal(one: Message, other: Message) -> None:
    assert len(one.arrays) == len(other.arrays)
    for a, b in zip(one.arrays, other.arrays, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.array_equal(a, b)
    assert (one.topic, one.meta) == (other.topic, other.meta)
    assert list(one.infos or [""] * len(one.arrays)) == list(other.infos)


@pytest.mark.parametrize("multipart", [True, False])
@pytest.mark.parametrize("topic", [b"", b"cat", b"\xff\0", b"x" * MAX_TOPIC_BYTES])
@pytest.mark.parametrize("meta", [Meta(), Meta(source="s", seq=3, end="epoch")])
@pytest.mark.parametrize("arrays", [[A], [A, B], [np.float32(1), np.empty((0, 4), "u1")]])
def test_round_trip(multipart, topic, meta, arrays) -> None:
    message = Message(arrays, ["x"] * len(arrays), topic, meta)
    assert_equal(message, trip(message, multipart=multipart))


@pytest.mark.parametrize("multipart", [True, False])
def test_meta_alone_is_a_message(multipart) -> None:
    back = trip(Message([], meta=Meta(end="stream")), multipart=multipart)
    assert (len(back.arrays), back.meta.end) == (0, "stream")


def test_the_frames_are_those_of_the_format() -> None:
    frames = encode_message(Message([A, B], topic=b"cat", meta=Meta(seq=1)))
    assert [bytes(f) for f in frames] == [
        b"cat",
        *map(bytes, tenbin.encode_list([A, B])),
        b'~TenMeta{"seq":1}',
    ]
    (single,) = encode_message(Message([A, B]), multipart=False)
    assert bytes(single) == BUFFER


def test_payloads_are_views_unless_copied() -> None:
    frames = encode_message(Message([A]))
    assert np.shares_memory(np.frombuffer(frames[1], "f4"), A)
    frames = encode_message(Message([A]), copy=BufferPool().copy)
    assert not np.shares_memory(np.frombuffer(frames[1], "f4"), A)
    assert bytes(frames[1]) == A.tobytes()


def test_received_payloads_are_copied_when_asked_to() -> None:
    frames = [bytearray(f) for f in encode_message(Message([A]))]
    view = decode_message(views(frames)).arrays[0]
    own = decode_message(views(frames), copy=BufferPool().copy).arrays[0]
    own += 1
    assert np.array_equal(view, A)
    assert own.ctypes.data % 64 == 0
    frames[1][:] = bytes(48)
    assert np.array_equal(view, A * 0)
    assert np.array_equal(own, A + 1)


def test_arrays_are_writable_even_if_the_frames_are_not() -> None:
    frames = [bytes(f) for f in encode_message(Message([A]))]
    array = decode_message(views(frames)).arrays[0]
    array += 1
    assert frames[1] == A.tobytes()


@pytest.mark.parametrize(
    "frames",
    [
        [b"topic", BUFFER],
        [b"", BUFFER],
        [b"topic", *map(bytes, tenbin.encode_list([A, B]))],
        [bytes(tenbin.encode_buffer([A, B]))],
        [*map(bytes, tenbin.encode_list([A, B]))],
        [bytes(tenbin.encode_chunks(tenbin.encode_list([A, B]), aligned=True))],
    ],
)
def test_what_other_programs_send(frames) -> None:
    message = decode_message(views(frames))
    assert np.array_equal(message.arrays[0], A)
    assert np.array_equal(message.arrays[1], B)
    assert message.topic == (b"topic" if frames[0] == b"topic" else b"")
    assert message.meta == Meta()


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (b"x" * 1025, "1025 bytes exceeds 1024"),
        (b"~TenBin~cat", "reads as a tensor frame"),
        (b"~TenBnA~", "reads as a tensor frame"),
        (b"~TenMeta", "reads as a tensor frame"),
        (HEADER, "reads as a tensor frame"),
    ],
)
def test_topics_that_no_reader_can_tell_apart_are_refused(topic, reason) -> None:
    for use in (check_topic, lambda t: encode_message(Message([A], topic=t))):
        with pytest.raises(MessageError) as caught:
            use(topic)
        assert reason in str(caught.value)


def test_topics_that_look_nearly_like_tensors_are_topics() -> None:
    for topic in (HEADER[:-1], HEADER + b"x", b"~TenBin", b"f4" + bytes(22), b"f4"):
        if topic.startswith(b"f4\0") and len(topic) == 24:
            continue  # a header of rank 0
        back = trip(Message([A], topic=check_topic(topic)))
        assert (back.topic, len(back.arrays)) == (topic, 1)


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(MessageError) as empty:
        encode_message(Message([]))
    assert "neither arrays nor meta" in str(empty.value)
    with pytest.raises(MessageError) as many:
        encode_message(Message([B] * 1025))
    assert "1025 arrays exceed 1024" in str(many.value)
    with pytest.raises(TenbinError):
        encode_message(Message([A], ["a", "b"]))
    assert len(trip(Message([B] * 1024, topic=b"t", meta=Meta(seq=1))).arrays) == 1024


class Canary:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was run')",))


BAD = {
    "no parts": ([], "0 parts, expected 1 to"),
    "too many parts": ([b"x"] * (MAX_PARTS + 1), "2051 parts"),
    "empty": ([b""], "no tensors; the message starts with b''"),
    "text": ([b"hello"], "no tensors; the message starts with b'hello'"),
    "pickle": ([pickle.dumps(Canary())], "no tensors"),
    "pickle after a topic": ([b"topic", pickle.dumps(Canary())], "1 tensor parts"),
    "pickle as data": ([HEADER, pickle.dumps(Canary())], "data of"),
    "long topic": ([b"x" * 1025, HEADER, DATA], "too long for a topic"),
    "header only": ([HEADER], "1 tensor parts, expected pairs"),
    "data missing": ([b"t", HEADER, DATA, HEADER], "3 tensor parts, expected pairs"),
    "short data": ([HEADER, DATA[:-1]], "data of 47 bytes, expected 48"),
    "long data": ([HEADER, DATA + b"x"], "data of 49 bytes, expected 48"),
    "cut buffer": ([BUFFER[:-70]], "chunk"),
    "magic alone": ([b"~TenBin~"], ""),
    "two buffers": ([BUFFER, BUFFER], "2 parts after a tenbin buffer"),
    "buffer and meta": ([BUFFER, META_MAGIC + b"{}"], "2 parts after a tenbin buffer"),
    "meta first": ([META_MAGIC + b"{}", HEADER, DATA], "expected pairs"),
    "bad meta": ([HEADER, DATA, META_MAGIC + b"{"], "meta frame is not JSON"),
    "rank 10^6": (
        [b"f4".ljust(16, b"\0") + (10**6).to_bytes(8, "little") + bytes(16), DATA],
        "1 tensor parts",
    ),
    "huge claim": (
        [b"f4".ljust(16, b"\0") + (1).to_bytes(8, "little") + (2**60).to_bytes(8, "little"), b""],
        "data of 0 bytes, expected",
    ),
    "huge chunk": ([b"~TenBin~" + (2**62).to_bytes(8, "little") + bytes(64)], "chunk"),
    "object dtype": ([b"O8".ljust(16, b"\0") + bytes(8), b"x" * 8], "1 tensor parts"),
}


@pytest.mark.parametrize(("frames", "reason"), BAD.values(), ids=BAD)
def test_bad_messages_are_refused_before_anything_is_allocated(frames, reason) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MessageError) as caught:
            decode_message(views(frames), copy=BufferPool().copy)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reason in str(caught.value)
    assert peak < 4 << 20


def test_an_envelope_reads_no_array() -> None:
    envelope = read_envelope(views([b"t", HEADER, DATA[:-1], META_MAGIC + b'{"seq":1}']))
    assert (envelope.topic, envelope.meta.seq, len(envelope.parts)) == (b"t", 1, 2)
    with pytest.raises(MessageError):
        envelope.open()


parts = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([b"", b"t", HEADER, DATA, BUFFER, META_MAGIC + b"{}", META_MAGIC + b'{"seq":']),
    st.builds(
        lambda data, at, value: data[:at] + bytes([value]) + data[at + 1 :],
        st.sampled_from([HEADER, BUFFER, META_MAGIC + b'{"seq":1,"times":{"sent":1}}']),
        st.integers(0, 60),
        st.integers(0, 255),
    ),
)


@settings(max_examples=500)
@given(st.lists(parts, max_size=6))
def test_any_frames_are_a_message_or_a_message_error(frames) -> None:
    try:
        message = decode_message(views(frames), copy=BufferPool().copy)
    except MessageError as error:
        assert len(str(error)) < 1000
        return
    for array in message.arrays:
        array.tobytes()
    assert_equal(message, trip(message)) if message.arrays or message.meta != Meta() else None
