"""Any text is a URL that says itself again, or a ZmqUrlError."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorcom import ZmqUrlError
from tensorcom.zmq_url import MAX_URLS, OPTIONS, SCHEMES, ZmqUrl, expand_urls, parse_url

SEEDS = [
    "zsub://127.0.0.1:7880",
    "zpub://*:0#cat",
    "zpull+ipc:///tmp/A b#c?.sock?hwm=3",
    "zsub+ipc://@abstract#t",
    "zrpush://[fe80::1%25eth0]:1?hwm_bytes=64Mi&timeout_s=1.5&nodrop=1",
    "zsub://host{a,b}{1..3}:788{0..3}",
    "zpush+inproc://name",
]
PIECES = ["{", "}", ",", "..", "%", "%23", "%zz", "%ff", "#", "?", "&", "=", ":", "//", "[", "]"]
PIECES += ["\0", "\ud800", "١", " ", "+", "-1", "9" * 25, "1e5", "0", "\n", *OPTIONS, *SCHEMES]


@st.composite
def texts(draw) -> str:
    text = draw(st.sampled_from(SEEDS) | st.text(st.characters(exclude_categories=()), max_size=50))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(text)))
        gone = draw(st.integers(0, 4))
        text = text[:at] + draw(st.sampled_from(PIECES) | st.text(max_size=3)) + text[at + gone :]
    return text


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
values = {
    "hwm": st.integers(1, 10**9 - 1),
    "hwm_bytes": st.integers(1, 2**63 - 1),
    "max_frame_bytes": st.integers(1, 2**63 - 1),
    "timeout_s": st.integers(0, 10**17).map(lambda n: n / 10**9),
    "linger_ms": st.integers(0, 10**9 - 1),
    "heartbeat_s": st.integers(0, 10**14).map(lambda n: n / 10**9),
    "nodrop": st.booleans(),
    "curve_key": names,
    "curve_server_key": names,
}


@given(texts())
def test_any_text(text) -> None:
    try:
        url = parse_url(text)
    except ZmqUrlError as error:
        assert str(error).encode()
        return
    assert parse_url(str(url)) == url


@given(
    st.sampled_from([name for name in SCHEMES if name.endswith(("pub", "sub"))]),
    st.sampled_from(["ipc", "inproc"]),
    names.filter(lambda name: len(name.encode()) <= 107),
    st.none() | names,
    st.fixed_dictionaries({}, optional=values),
)
def test_any_parts_make_a_url(scheme, transport, address, topic, options) -> None:
    url = ZmqUrl(scheme, transport, address, topic, options)
    assert parse_url(str(url)) == url


@given(texts() | st.text("{},.19a-", max_size=60))
def test_any_braces(text) -> None:
    try:
        found = expand_urls(text)
    except ZmqUrlError:
        return
    assert 1 <= len(found) <= MAX_URLS
