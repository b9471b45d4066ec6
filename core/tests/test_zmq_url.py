"""The notation of ZMQ URLs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorcom.errors import ZmqUrlError
from tensorcom.zmq_url import (
    MAX_URLS,
    OPTIONS,
    SCHEMES,
    TRANSPORTS,
    expand_urls,
    parse_url,
    share_urls,
)

HEADS = [f"{s}{t}://" for s in SCHEMES for t in ("", "+tcp", "+ipc", "+inproc")]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_scheme_on_every_transport(scheme, transport) -> None:
    address = {"tcp": "127.0.0.1:7880", "ipc": "/tmp/a.sock", "inproc": "a"}[transport]
    url = parse_url(f"{scheme}+{transport}://{address}")
    assert (url.scheme, url.transport, url.address) == (scheme, transport, address)
    assert url.endpoint == f"{transport}://{address}"
    assert (url.kind, url.binds) == SCHEMES[scheme]
    assert url.sends == scheme.endswith(("push", "pub"))


def test_the_scheme_says_who_binds() -> None:
    binding = {scheme for scheme, (_, binds) in SCHEMES.items() if binds}
    assert binding == {"zpull", "zpub", "zrpush", "zrsub"}


def test_tcp_is_the_default_transport() -> None:
    assert parse_url("zsub://host:1") == parse_url("zsub+tcp://host:1")


def test_options_and_topic() -> None:
    url = parse_url("zsub://host:1?hwm=5&hwm_bytes=64Mi&timeout_s=1.5&nodrop=1#cat")
    assert url.options == {"hwm": 5, "hwm_bytes": 64 << 20, "timeout_s": 1.5, "nodrop": True}
    assert url.topic == "cat"
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("7k", 7000), ("2Ki", 2048), ("1M", 10**6), ("3Gi", 3 << 30)]
)
def test_sizes(text, size) -> None:
    assert parse_url(f"zsub://h:1?hwm_bytes={text}").options == {"hwm_bytes": size}


@pytest.mark.parametrize(
    ("url", "address", "topic"),
    [
        ("zpush+ipc:///tmp/A b#c?.sock", "/tmp/A b#c?.sock", None),
        ("zpush+ipc:///tmp/a?hwm=3", "/tmp/a", None),
        ("zpush+ipc:///tmp/a%3Fhwm=3", "/tmp/a?hwm=3", None),
        ("zsub+ipc:///tmp/A%23b#cat", "/tmp/A#b", "cat"),
        ("zsub+ipc:///tmp/a#b#cat", "/tmp/a#b", "cat"),
        ("zpub+ipc://@abstract#t%23u", "@abstract", "t#u"),
        ("zsub://[::1]:7880", "[::1]:7880", None),
        ("zsub://[fe80::1%25eth0]:7880", "[fe80::1%eth0]:7880", None),
        ("zpull://*:*", "*:*", None),
        ("zsub://h:1#käse", "h:1", "käse"),
        ("zsub+inproc://a b", "a b", None),
    ],
)
def test_addresses_and_topics(url, address, topic) -> None:
    parsed = parse_url(url)
    assert (parsed.address, parsed.topic) == (address, topic)
    assert parse_url(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "has no '://'"),
        ("zsub:/h:1", "has no '://'"),
        ("http://h:1", "scheme 'http' is not one of zpush, zpull"),
        ("ZSUB://h:1", "scheme 'ZSUB'"),
        ("zsub+udp://h:1", "transport 'udp' is not one of tcp, ipc, inproc"),
        ("zsub+://h:1", "transport ''"),
        ("zsub://", "address '' is not host:port"),
        ("zsub://host", "is not host:port"),
        ("zsub://:1", "is not host:port"),
        ("zsub://host:", "port '' is not a number"),
        ("zsub://host:65536", "port '65536' is not a number from 0 to 65535"),
        ("zsub://host:١", "is not a number"),
        ("zsub://host:-1", "port '-1'"),
        ("zsub://::1:1", "needs brackets: [::1]:1"),
        ("zsub://a b:1", "is no host name"),
        ("zsub://host:0", "cannot connect to a wildcard"),
        ("zpush://*:1", "cannot connect to a wildcard"),
        ("zsub://h:1#", "topic after '#' is empty"),
        ("zpush://h:1#t", "zpush has no topics; remove '#t'"),
        ("zsub://h:1?hwm=0", "option hwm='0': expected a positive integer"),
        ("zsub://h:1?hwm=-1", "expected a positive integer"),
        ("zsub://h:1?hwm_bytes=1T", "optionally with k, M, G"),
        ("zsub://h:1?hwm_bytes=9999999999999999999", "63-bit"),
        ("zsub://h:1?hwm_bytes=9999999999999Gi", "63-bit"),
        ("zsub://h:1?timeout_s=nan", "expected seconds"),
        ("zsub://h:1?timeout_s=999999999.999999999", "expected seconds"),
        ("zsub://h:1?linger_ms=1.5", "expected milliseconds"),
        ("zsub://h:1?nodrop=yes", "expected 0 or 1"),
        ("zsub://h:1?curve_key=", "expected a path"),
        ("zsub://h:1?colour=red", "option 'colour' is not one of hwm"),
        ("zsub://h:1?hwm", "option 'hwm' is not one of"),
        ("zsub://h:1?hwm=1&hwm=2", "option 'hwm' is given twice"),
        ("zsub+ipc:///tmp/a?hwm=1&x=2", "option 'x' is not one of"),
        ("zpull+ipc://", "ipc address is empty"),
        ("zpull+ipc:///tmp/a%00", "holds NUL"),
        ("zpull+ipc:///" + "x" * 120, "ipc path of 121 bytes exceeds the system's 107"),
        ("zpull+inproc://" + "x" * 257, "inproc name of 257 bytes exceeds 256"),
        ("zpull+ipc:///tmp/%ff", "percent-escapes are not UTF-8"),
        ("zpull+ipc:///tmp/\udcff", "holds characters that UTF-8 has not"),
        ("zsub://h:1#\ud800", "holds characters that UTF-8 has not"),
    ],
)
def test_refused(url, reason) -> None:
    with pytest.raises(ZmqUrlError) as caught:
        parse_url(url)
    assert reason in str(caught.value)
    assert str(caught.value).encode()  # can be printed


def test_the_error_carries_the_url() -> None:
    with pytest.raises(ZmqUrlError) as caught:
        parse_url("zsub://x")
    assert caught.value.url == "zsub://x"
    assert str(caught.value).startswith("url 'zsub://x': ")


def test_braces_expand_as_in_bash() -> None:
    assert expand_urls("zsub://127.0.0.1:788{0..3}") == [
        f"zsub://127.0.0.1:788{i}" for i in range(4)
    ]
    assert expand_urls(["zsub://{a,b}:{1,2}", "zsub://c:3"]) == [
        "zsub://a:1",
        "zsub://a:2",
        "zsub://b:1",
        "zsub://b:2",
        "zsub://c:3",
    ]
    assert len(expand_urls("zsub://{a{0..63},b{0..63},c{0..63}}:1")) == 192
    assert expand_urls("zsub://h:1{0..100000..50000}") == [
        "zsub://h:10",
        "zsub://h:150000",
        "zsub://h:1100000",
    ]


def test_braces_can_be_taken_literally() -> None:
    assert expand_urls("zsub+ipc:///tmp/{a,b}", expand=False) == ["zsub+ipc:///tmp/{a,b}"]


@pytest.mark.parametrize(
    ("urls", "reason"),
    [
        ("zsub://{a:1", "braces do not expand"),
        ([], "no URL was given"),
        ([3], "expected a string, found int"),
        ("zsub://{1..4097}:1", f"more than {MAX_URLS} URLs"),
        (["zsub://{1..4000}:1", "zsub://{1..97}:1"], f"more than {MAX_URLS} URLs"),
        ("zsub://{1..1000000000}:1", f"more than {MAX_URLS} URLs"),
        ("{1..100000000}{a,b}", f"more than {MAX_URLS} URLs"),
        ("{{1..4000}{1..4000},a}", f"more than {MAX_URLS} URLs"),
        ("{1,2}" * 5000, f"more than {MAX_URLS} URLs"),
        ("{" * 5000 + "}" * 5000, "braces are more than"),
    ],
)
def test_expansion_is_bounded(urls, reason) -> None:
    with pytest.raises(ZmqUrlError) as caught:
        expand_urls(urls)
    assert reason in str(caught.value)


def test_no_sum_of_ranges_takes_memory_or_time() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from tensorcom.zmq_url import expand_urls, ZmqUrlError\n"
        "try: expand_urls('{1..99999999999}{{1..99999999999},b}')\n"
        "except ZmqUrlError: print('refused')\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout == "refused\n", result.stderr


def test_most_urls_at_once() -> None:
    assert len(expand_urls("zsub://h{1..4096}:1")) == MAX_URLS


# Anything, but not only: texts that come near to a URL go deeper.
anything = st.text(st.characters(exclude_categories=()), max_size=60)
pieces = st.sampled_from(
    ["127.0.0.1", "[::1]", "*", ":", "7880", "/tmp/a", "#", "?", "&", "=", "%", "%23", "%ff", "{"]
    + ["}", ",", "..", "1", " ", "é", "\0", "\ud800", "1.5", "999999999", "Gi", *OPTIONS]
)
near = st.builds(
    lambda head, parts: head + "".join(parts), st.sampled_from(HEADS), st.lists(pieces, max_size=8)
)
options = st.builds(
    lambda head, address, name, value: f"{head}{address}?{name}={value}",
    st.sampled_from(HEADS),
    st.sampled_from(["h:1", "/tmp/a", "a"]),
    st.sampled_from(list(OPTIONS)),
    st.one_of(anything, st.from_regex(r"[0-9]{1,20}(\.[0-9]{1,10})?(|k|Gi)", fullmatch=True)),
)
urls = st.one_of(anything, near, options)


@settings(max_examples=500)
@given(urls)
@example("zsub://h:1?timeout_s=999999999.9")
@example("zsub://h:1?timeout_s=0.000000001")
@example("zsub://h:1?hwm_bytes=999999999999999Gi")
@example("zpub+ipc:///tmp/a%25#%25")
def test_any_text_parses_to_what_it_says_or_is_refused(text) -> None:
    try:
        url = parse_url(text)
    except ZmqUrlError as error:
        assert str(error).encode()
        return
    assert parse_url(str(url)) == url
    assert url.address.encode()
    assert url.topic is None or url.topic.encode()


@pytest.mark.parametrize(
    ("scheme", "count", "shard", "ports", "split"),
    [
        ("zsub", 4, (0, 1), [0, 1, 2, 3], None),
        ("zsub", 4, (1, 2), [1, 3], None),
        ("zsub", 3, (2, 3), [2], None),
        ("zsub", 2, (1, 3), [0, 1], (1, 3)),
        ("zrsub", 2, (1, 3), [0, 1], None),
        ("zrpull", 4, (1, 2), [0, 1, 2, 3], None),
        ("zpull", 1, (1, 2), [0], None),
    ],
)
def test_readers_share_publishers_or_their_messages(scheme, count, shard, ports, split) -> None:
    urls = [parse_url(f"{scheme}://127.0.0.1:788{number}") for number in range(count)]
    assert share_urls(urls, shard) == ([urls[number] for number in ports], split)


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0)])
@pytest.mark.parametrize("scheme", ["zsub", "zrpull"])
def test_a_shard_is_a_number_and_the_count_over_it(shard, scheme) -> None:
    with pytest.raises(ValueError, match=r"shard=.*, expected a number from 0 and the count over"):
        share_urls([parse_url(f"{scheme}://127.0.0.1:7880")], shard)


@settings(max_examples=300)
@given(st.one_of(urls, st.text("{},.1a9-", max_size=40)))
def test_any_text_expands_or_is_refused(text) -> None:
    start = time.monotonic()
    try:
        found = expand_urls(text)
    except ZmqUrlError:
        return
    finally:
        assert time.monotonic() - start < 30  # bounded at all, however slow the machine
    assert 1 <= len(found) <= MAX_URLS
