"""Garbage and malice between good messages, on a live socket."""

from __future__ import annotations

import json
import os
import pickle
import socket
from pathlib import Path

import numpy as np
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorcom import MessageError, Meta, ReceiveTimeoutError, tenbin
from tensorcom.message import Message, encode_message
from tensorcom.meta import META_MAGIC

GOOD = [np.full((4, 8, 8, 3), 7, "u1"), np.arange(4, dtype="i4")]
HEADER, DATA = (bytes(part) for part in tenbin.encode_list([GOOD[1]]))
BUFFER = bytes(tenbin.encode_buffer(GOOD))
MULTIPART = [bytes(f) for f in encode_message(Message(GOOD, meta=Meta(seq=1, source="s")))]


def header(code: bytes, *dims: int, rank: int | None = None) -> bytes:
    fields = [len(dims) if rank is None else rank, *dims]
    return code.ljust(16, b"\0") + b"".join(v.to_bytes(8, "little", signed=True) for v in fields)


def meta(text: str | bytes) -> list[bytes]:
    return [HEADER, DATA, META_MAGIC + (text.encode() if isinstance(text, str) else text)]


class Canary:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def attacks(canary: Path) -> dict[str, list[bytes]]:
    pickled = pickle.dumps(Canary(canary))
    return {
        "empty": [b""],
        "wrong magic": [b"~TenBix~" + BUFFER[8:]],
        "cut": [BUFFER[:-30]],
        "huge chunk": [b"~TenBin~" + (2**62).to_bytes(8, "little") + bytes(48)],
        "negative chunk": [b"~TenBin~" + (-64).to_bytes(8, "little", signed=True) + bytes(48)],
        "huge dim": [header(b"f4", 2**61), b""],
        "wrapping dims": [header(b"u1", 2**32, 2**32), b""],
        "negative dim": [header(b"u1", -1), b"x"],
        "rank 10^6": [header(b"f4", 1, rank=10**6), DATA],
        "rank 10^6 at length": [b"f4".ljust(16, b"\0") + (10**6).to_bytes(8, "little")] * 2,
        "rank -1": [header(b"f4", rank=-1), DATA],
        "object dtype": [header(b"O8", 1), pickled],
        "pickle": [pickled],
        "pickle after a topic": [b"topic", pickled],
        "pickle as data": [HEADER, pickled],
        "pickle as meta": meta(pickled),
        "3000 parts": [b"x"] * 3000,
        "3000 arrays": [HEADER, DATA] * 1500,
        "text": ["schöne Grüße".encode("latin-1")],
        "deep JSON": meta("[" * 50_000),
        "wide JSON": meta(json.dumps({f"k{i}": {} for i in range(100_000)})),
        "NaN": meta('{"times":{"sent":NaN}}'),
        "infinity": meta('{"times":{"sent":1e999}}'),
        "huge int": meta('{"times":{"sent":1' + "0" * 400 + "}}"),
        "huger int": meta('{"seq":' + "9" * 10_000 + "}"),
        "negative seq": meta('{"seq":-1}'),
        "no object": meta("[]"),
        "not UTF-8": meta(b'{"source":"\xff\xfe"}'),
        "surrogate": meta(r'{"source":"\ud800"}'),
        "no string": meta('{"source":{}}'),
        "two buffers": [BUFFER, BUFFER],
        "odd parts": [HEADER, DATA, HEADER],
        "large junk": [os.urandom(5_000_000)],
    }


NAMES = list(attacks(Path("unused")))


@pytest.fixture
def attacker(no_leaks):
    """Return a function that connects a plain ZeroMQ socket to an address."""
    context = zmq.Context()
    made = []

    def connect(url: str, kind: int = zmq.PUSH):
        sock = context.socket(kind)
        made.append(sock)
        sock.linger = 0
        sock.connect("tcp://" + url.partition("://")[2])
        return sock

    yield connect
    for sock in made:
        sock.close(0)
    context.term()


def peak_rss_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def test_with_skip_every_good_message_arrives(connect, attacker, tmp_path) -> None:
    reader = connect("zpull://127.0.0.1:0", on_bad_message="skip")
    bad = attacker(reader.urls[0])
    messages = attacks(tmp_path / "pwned")
    before = peak_rss_bytes()
    for frames in messages.values():
        for good in (MULTIPART, [BUFFER], [b"topic", BUFFER]):
            bad.send_multipart(frames)
            bad.send_multipart(good)
            arrays = reader.recv()
            assert all(np.array_equal(a, b) for a, b in zip(arrays, GOOD, strict=True))
    assert reader.stats.bad == 3 * len(messages)
    assert reader.stats.sources["s"].messages == len(messages)
    assert peak_rss_bytes() - before < 200e6
    assert not (tmp_path / "pwned").exists()
    json.dumps(reader.stats.as_dict(), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_with_raise_the_stream_goes_on(connect, attacker, tmp_path, name) -> None:
    reader = connect("zpull://127.0.0.1:0")
    bad = attacker(reader.urls[0])
    bad.send_multipart(attacks(tmp_path / "pwned")[name])
    bad.send_multipart(MULTIPART)
    with pytest.raises(MessageError) as caught:
        reader.recv()
    assert str(caught.value).encode()
    assert len(str(caught.value)) < 1000
    assert np.array_equal(reader.recv()[1], GOOD[1])
    assert reader.stats.bad == 1
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("junk", [os.urandom(4096), b"\xff" * 4096, b"\1\0" * 2048, b"POST /"])
def test_bytes_that_are_no_ZeroMQ_at_all(connect, attacker, junk) -> None:
    reader = connect("zpull://127.0.0.1:0", on_bad_message="skip")
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", int(reader.urls[0].rpartition(":")[2]))) as raw:
            raw.sendall(junk)
    attacker(reader.urls[0]).send_multipart(MULTIPART)
    assert np.array_equal(reader.recv()[1], GOOD[1])


def test_a_hostile_subscriber_hinders_no_publisher(connect, attacker) -> None:
    sender = connect("zpub://127.0.0.1:0")
    hostile = attacker(sender.urls[0], zmq.XSUB)
    for request in (b"", b"\1", b"\0", b"\0", b"\1" * 1000, b"\2x", os.urandom(10_000)):
        hostile.send(request)
    hostile.send_multipart([b"\1a", b"\1b"] * 50)
    reader = connect(sender.urls[0].replace("zpub", "zsub"))
    while True:
        sender.send(GOOD)
        try:
            assert np.array_equal(reader.recv_message(timeout_s=0.05).arrays[1], GOOD[1])
        except ReceiveTimeoutError:
            continue
        return


frames = st.one_of(
    st.binary(max_size=100),
    st.sampled_from([HEADER, DATA, BUFFER, META_MAGIC + b"{}", b"topic", *MULTIPART]),
    st.builds(
        lambda data, at, value: (
            data[: at % len(data)] + bytes([value]) + data[at % len(data) + 1 :]
        ),
        st.sampled_from([HEADER, BUFFER, MULTIPART[0], MULTIPART[-1]]),
        st.integers(0, 300),
        st.integers(0, 255),
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(st.lists(frames, min_size=1, max_size=6), max_size=10))
def test_any_messages_between_good_ones(connect, attacker, messages) -> None:
    reader = connect("zpull://127.0.0.1:0", on_bad_message="skip", hwm=100)
    bad = attacker(reader.urls[0])
    for message in messages:
        bad.send_multipart(message)
    bad.send_multipart([b"last", *MULTIPART[:-1]])
    taken = 0
    while True:
        received = reader.recv_message()
        if received.topic == b"last" and len(received.arrays) == 2:
            break
        taken += 1
    ends = len(messages) - taken - reader.stats.bad  # messages of meta alone are passed over
    assert 0 <= ends <= len(messages)
    assert np.array_equal(received.arrays[1], GOOD[1])
    reader.close()
    bad.close()
