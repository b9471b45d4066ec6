"""The meta frame."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcom.errors import MessageError
from tensorcom.meta import MAX_META_BYTES, MAX_SEQ, META_MAGIC, Meta, decode_meta, encode_meta

FULL = Meta(
    source="a1b2",
    seq=7,
    epoch=1,
    index=3,
    samples=64,
    scan_groups=5,
    end="epoch",
    sources=2,
    times={"read": 1.5, "decoded": 2.5, "sent": 3},
    extra={"host": "a", "list": [1, None, {"x": 2.5}]},
)


def frame(text: str | bytes) -> bytes:
    return META_MAGIC + (text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize("meta", [Meta(), FULL, Meta(seq=0), Meta(seq=MAX_SEQ), Meta(source="é")])
def test_round_trip(meta) -> None:
    encoded = encode_meta(meta)
    assert encoded.startswith(META_MAGIC)
    assert decode_meta(encoded) == meta
    assert decode_meta(memoryview(encoded)) == meta


def test_what_is_absent_is_not_written() -> None:
    assert encode_meta(Meta()) == b"~TenMeta{}"
    assert encode_meta(Meta(seq=7)) == b'~TenMeta{"seq":7}'


def test_unknown_fields_are_kept_and_cannot_replace_known_ones() -> None:
    assert decode_meta(frame('{"new":1}')).extra == {"new": 1}
    assert decode_meta(encode_meta(Meta(seq=1, extra={"seq": 9, "x": 2}))) == Meta(
        seq=1, extra={"x": 2}
    )


@pytest.mark.parametrize(
    "extra", [{"x": object()}, {"x": math.nan}, {"x": math.inf}, {"x": "y" * MAX_META_BYTES}]
)
def test_what_cannot_be_sent_is_refused(extra) -> None:
    with pytest.raises(MessageError):
        encode_meta(Meta(extra=extra))
    with pytest.raises(MessageError):
        encode_meta(Meta(times={"sent": math.nan}))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "starts with b''"),
        (b"~TenBin~{}", "starts with b'~TenBin~'"),
        (frame(""), "is not JSON"),
        (frame("{"), "is not JSON"),
        (frame(b'{"a":"\xff"}'), "is not JSON"),
        (frame('{"a":1}'.encode("utf-16")), "is not JSON"),
        (frame("{} trailing"), "is not JSON"),
        (frame('{"x":NaN}'), "is not JSON: it holds NaN"),
        (frame('{"x":[-Infinity]}'), "is not JSON: it holds -Infinity"),
        (frame('{"x":1e999}'), "is not JSON: it holds 1e999"),
        (frame('{"x":' + "9" * 5000 + "}"), "is not JSON"),
        (frame("[" * 60000), "is not JSON"),
        (frame('{"a":' * 10000 + "1" + "}" * 10000), "is not JSON"),
        (frame("[]"), "a JSON list, expected an object"),
        (frame("1"), "a JSON int"),
        (frame("null"), "a JSON NoneType"),
        (frame('{"seq":-1}'), "'seq' is -1, expected an integer from 0"),
        (frame('{"seq":1.0}'), "'seq' is 1.0"),
        (frame('{"seq":true}'), "'seq' is True"),
        (frame('{"seq":"1"}'), "'seq' is '1'"),
        (frame('{"seq":9223372036854775808}'), "'seq' is 9223372036854775808"),
        (frame('{"samples":' + "9" * 4000 + "}"), "'samples' is 9999"),
        (frame('{"epoch":[]}'), "'epoch'"),
        (frame('{"source":1}'), "'source' is no printable string"),
        (frame('{"source":"' + "x" * 201 + '"}'), "'source' is no printable string"),
        (frame(r'{"source":"\u001b[2J"}'), "'source' is no printable string"),
        (frame(r'{"source":"\ud800"}'), "'source' is no printable string"),
        (frame('{"end":"soon"}'), "'end' is 'soon'"),
        (frame('{"end":["epoch"]}'), "'end' is ['epoch']"),
        (frame('{"end":{}}'), "'end' is {}"),
        (frame('{"times":[]}'), "'times' is no object of times"),
        (frame('{"times":{"sent":"now"}}'), "'times' is no object of times"),
        (frame('{"times":{"sent":null}}'), "'times' is no object of times"),
        (frame('{"times":{"sent":true}}'), "'times' is no object of times"),
        (frame('{"times":{"sent":1' + "0" * 400 + "}}"), "'times' is no object of times"),
        (frame('{"times":{"sent":-1e300}}'), "'times' is no object of times"),
        (frame('{"x":"' + "y" * MAX_META_BYTES + '"}'), "exceeds 65536"),
    ],
)
def test_refused(data, reason) -> None:
    with pytest.raises(MessageError) as caught:
        decode_meta(data)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=10,
)
names = st.sampled_from(["source", "seq", "epoch", "end", "times", "samples", "sources", "x"])


@given(st.dictionaries(names, json_values))
def test_any_object_is_read_or_refused(values) -> None:
    try:
        meta = decode_meta(frame(json.dumps(values)))
    except MessageError:
        return
    assert decode_meta(encode_meta(meta)) == meta


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data) -> None:
    for candidate in (data, frame(data)):
        try:
            decode_meta(candidate)
        except MessageError:
            continue
