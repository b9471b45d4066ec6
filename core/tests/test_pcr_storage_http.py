"""Storage over HTTP: one exact request, retries from the byte reached, servers that misbehave."""

from __future__ import annotations

import os
import pickle
import time

import pytest
from storage_helpers import contents, open_http

from tensorcom.errors import PcrError, PcrIndexError, PcrReadError
from tensorcom.pcr.storage import PcrEndError, open_storage
from tensorcom.testing.http_ranges import Fault, RangeServer

NAME = "PCR_0.pcr"
SIZE = 3_000_000
DATA = contents(5, SIZE)
PREFIX = 2_000_000


@pytest.fixture
def server(tmp_path):
    (tmp_path / NAME).write_bytes(DATA)
    with RangeServer(tmp_path) as started:
        yield started


@pytest.fixture
def storage(server):
    opened = open_http(server.url)
    yield opened
    opened.close()


def fails(storage, text, start=0, size=PREFIX, kind=PcrReadError):
    with pytest.raises(kind, match=text) as caught:
        storage.read(NAME, start, size)
    assert f"{storage.root}/{NAME}" in str(caught.value)
    return caught.value


def test_a_prefix_is_one_get_of_exactly_its_bytes(server, storage):
    assert storage.read(NAME, 0, PREFIX) == DATA[:PREFIX]
    assert [request.method for request in server.requests] == ["GET"]
    assert server.gets() == [f"bytes=0-{PREFIX - 1}"]
    assert server.sent_bytes == PREFIX


def test_a_range_in_the_middle_is_one_get_too(server, storage):
    assert storage.read(NAME, 1_000_000, 77) == DATA[1_000_000:1_000_077]
    assert server.gets() == ["bytes=1000000-1000076"]
    assert server.sent_bytes == 77


def test_reads_share_a_connection(server, storage):
    for start in range(0, 100_000, 10_000):
        storage.read(NAME, start, 10_000)
    storage.size(NAME)
    assert storage.exists(NAME)
    assert not storage.exists("missing")
    storage.read(NAME, 0, 10)
    assert len({request.connection for request in server.requests}) == 1


def test_a_forked_child_has_connections_of_its_own(server, storage):
    storage.read(NAME, 0, 10)
    child = os.fork()
    if child == 0:
        os._exit(storage.read(NAME, 10, 10) != DATA[10:20])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    storage.read(NAME, 20, 10)
    parent, other, again = (request.connection for request in server.requests)
    assert parent == again != other


def test_nothing_is_asked_for_no_bytes(server, storage):
    assert storage.read(NAME, 5, 0) == b""
    assert server.requests == []


def test_a_cut_is_resumed_from_the_byte_reached(server, storage):
    server.misbehave(Fault(cut_after=700_001), Fault(cut_after=0), Fault(cut_after=299_999))
    assert storage.read(NAME, 0, PREFIX) == DATA[:PREFIX]
    stop = PREFIX - 1
    assert server.gets() == [
        f"bytes=0-{stop}", f"bytes=700001-{stop}", f"bytes=700001-{stop}", f"bytes=1000000-{stop}"
    ]  # fmt: skip
    assert server.sent_bytes == PREFIX  # no byte twice


def test_after_the_last_retry_the_error_says_all(server, storage):
    server.misbehave(*[Fault(cut_after=100_000)] * 4)
    error = fails(storage, "got 400000 of 2000000 bytes after 4 attempts: .*Incomplete", 1000)
    assert error.offset == 401_000
    assert error.__cause__ is not None
    assert not isinstance(error, PcrEndError)
    assert pickle.loads(pickle.dumps(error)).offset == 401_000


def test_a_server_that_is_busy_is_asked_again(server, storage):
    server.misbehave(*[Fault(status=status) for status in (503, 429, 500)])
    assert storage.read(NAME, 0, 1000) == DATA[:1000]
    assert len(server.gets()) == 4
    server.misbehave(*[Fault(status=503)] * 4)
    error = fails(storage, "got 0 of 1000 bytes after 4 attempts: status 503", size=1000)
    assert error.offset == 0


def test_no_retries(server):
    storage = open_http(server.url, retries=0)
    server.misbehave(Fault(cut_after=10))
    fails(storage, "got 10 of 2000000 bytes after 1 attempt: ")
    storage.close()


def test_a_stall_ends_with_the_time_and_what_came_is_kept(server):
    storage = open_http(server.url, timeout_s=1.0, retries=20)
    server.misbehave(Fault(stall_after=500_000))
    assert storage.read(NAME, 0, PREFIX) == DATA[:PREFIX]
    assert server.gets()[:2] == [f"bytes=0-{PREFIX - 1}", f"bytes=500000-{PREFIX - 1}"]
    storage.close()


def test_a_stall_before_any_byte(server):
    storage = open_http(server.url, timeout_s=0.2, retries=1)
    server.misbehave(Fault(stall_after=0), Fault(stall_after=0))
    fails(storage, "got 0 of 2000000 bytes after 2 attempts: .*timed out")
    storage.close()


def test_a_server_that_trickles_is_left_at_the_end_of_the_time(server, storage, monkeypatch):
    # The clock advances by half the time with each piece: no machine is too slow for this test.
    clock = iter(range(0, 10**6, 15))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    fails(storage, "after 4 attempts: no end within 30 s", size=PREFIX)
    # Three pieces at most by attempt, each kept.
    starts = [int(extent.partition("=")[2].partition("-")[0]) for extent in server.gets()]
    assert len(starts) == 4
    assert starts == sorted(set(starts))


def test_a_short_answer_is_completed(server, storage):
    server.misbehave(Fault(short_by=1_500_000))
    assert storage.read(NAME, 0, PREFIX) == DATA[:PREFIX]
    assert server.gets() == [f"bytes=0-{PREFIX - 1}", f"bytes=500000-{PREFIX - 1}"]
    assert server.sent_bytes == PREFIX


def test_a_body_shorter_than_its_range_is_completed(server, storage):
    server.misbehave(Fault(short_by=999, headers={"Content-Range": f"bytes 0-1999999/{SIZE}"}))
    assert storage.read(NAME, 0, PREFIX) == DATA[:PREFIX]
    assert server.gets()[1] == f"bytes={PREFIX - 999}-{PREFIX - 1}"


def test_the_end_of_the_file_is_no_short_read(server, storage):
    error = fails(storage, f"has only {SIZE} bytes", SIZE - 10, 11, PcrEndError)
    assert error.offset == SIZE
    fails(storage, f"has only {SIZE} bytes", SIZE, 1, PcrEndError)
    assert len(server.requests) == 2  # asking again would not help


WRONG = {
    "ignores range": (
        Fault(ignore_range=True),
        "ignores Range: it gives the whole file of 3000000",
    ),
    "no content-range": (Fault(headers={"Content-Range": None}), "Content-Range is None"),
    "senseless": (Fault(headers={"Content-Range": "bytes 5-/9"}), "Content-Range is 'bytes 5-/9'"),
    "other bytes": (
        Fault(headers={"Content-Range": f"bytes 0-9/{SIZE}"}),
        "gives bytes 0 to 9, expected 1000 to 2000999",
    ),
    "more bytes": (
        Fault(headers={"Content-Range": f"bytes 1000-2001000/{SIZE}"}),
        "gives bytes 1000 to 2001000, expected 1000 to 2000999",
    ),
    "backwards": (
        Fault(headers={"Content-Range": f"bytes 1000-999/{SIZE}"}),
        "gives bytes 1000 to 999, expected",
    ),
    "longer than its range": (
        Fault(headers={"Content-Range": f"bytes 1000-1099/{SIZE}"}),
        "gives 2000000 bytes, expected 100",
    ),
    "more at the end": (Fault(extra=b"more"), "gives more bytes than its Content-Range says"),
    "compressed": (Fault(headers={"Content-Encoding": "gzip"}), "Content-Encoding gzip"),
    "forbidden": (Fault(status=403), "status 403 Forbidden"),
    "redirect to nowhere": (Fault(status=304), "status 304"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_answers_are_errors_at_once(server, storage, kind):
    fault, text = WRONG[kind]
    server.misbehave(fault)
    error = fails(storage, text, 1000)
    assert not isinstance(error, PcrEndError)
    assert error.offset in (1000, 1000 + PREFIX)
    assert len(server.requests) == 1
    assert storage.read(NAME, 0, 500) == DATA[:500]  # the connection is in no wrong state


def test_a_chunked_answer_of_the_right_length(server, storage):
    server.misbehave(Fault(extra=DATA[900:1000], short_by=100,
                           headers={"Content-Range": f"bytes 0-999/{SIZE}"}))  # fmt: skip
    assert storage.read(NAME, 0, 1000) == DATA[:1000]
    assert len(server.requests) == 1


def test_a_whole_file_may_come_without_a_range(server, storage):
    server.misbehave(Fault(ignore_range=True), Fault(ignore_range=True))
    assert storage.read(NAME, 0, SIZE) == DATA
    fails(storage, f"has only {SIZE} bytes", 0, SIZE + 1, PcrEndError)


@pytest.mark.parametrize("status", [404, 410])
def test_a_missing_file_is_not_asked_for_again(server, storage, status):
    server.misbehave(Fault(status=status))
    fails(storage, f"no such file: status {status}", kind=PcrIndexError)
    assert len(server.requests) == 1


def test_a_file_that_changes_under_way(server, storage, tmp_path):
    def change():
        (tmp_path / NAME).write_bytes(DATA[::-1])

    server.misbehave(Fault(cut_after=1000, then=change))
    error = fails(storage, "the file changed from .* to .* while it was read")
    assert error.offset == 1000
    assert storage.read(NAME, 0, 100) == DATA[::-1][:100]


def test_a_file_that_shrinks_under_way(server, storage, tmp_path):
    server.misbehave(Fault(cut_after=1000, then=lambda: os.truncate(tmp_path / NAME, 500)))
    fails(storage, "the file has only 500 bytes", kind=PcrEndError)


def test_nobody_listens(tmp_path):
    with RangeServer(tmp_path) as gone:
        url = gone.url
    storage = open_http(url, retries=2)
    error = fails(storage, "got 0 of 2000000 bytes after 3 attempts: .*Connection refused")
    assert "object at 0x" not in str(error)
    with pytest.raises(PcrReadError, match="no answer after 3 attempts"):
        storage.exists(NAME)
    storage.close()


def test_a_redirect_is_followed(server, storage, tmp_path):
    (tmp_path / "other").write_bytes(DATA[:5000])
    server.misbehave(Fault(status=302, headers={"Location": "/other"}))
    assert storage.read(NAME, 100, 50) == DATA[100:150]
    assert server.gets() == ["bytes=100-149"] * 2
    server.misbehave(*[Fault(status=302, headers={"Location": "/other"})] * 50)
    fails(storage, "too many redirects")
    server.faults.clear()


@pytest.mark.parametrize("options", [{"head": False}, {"etags": False}])
def test_size_of_servers_that_do_less(tmp_path, options):
    (tmp_path / NAME).write_bytes(DATA)
    (tmp_path / "empty").write_bytes(b"")
    with RangeServer(tmp_path, **options) as server:
        storage = open_http(server.url)
        assert storage.size(NAME) == SIZE
        assert storage.size("empty") == 0
        assert storage.read_all(NAME, SIZE) == DATA
        assert not storage.exists("missing")
        storage.close()


def test_a_server_that_never_says_a_size(tmp_path):
    (tmp_path / NAME).write_bytes(DATA)
    with RangeServer(tmp_path, head=False) as server:
        storage = open_http(server.url)
        server.misbehave(Fault(headers={"Content-Range": "bytes 0-0/*"}))
        with pytest.raises(PcrReadError, match="does not say how large the file is"):
            storage.size(NAME)
        server.misbehave(Fault(headers={"Content-Range": "bytes 5-14/*"}))
        assert storage.read(NAME, 5, 10) == DATA[5:15]
        storage.close()


def test_headers_and_secrets(server):
    url = server.url.replace("//", "//user:pass%77ord@") + "?signature=abc"
    storage = open_storage(url, storage_options={"headers": {"X-Kind": "test"}})
    storage = pickle.loads(pickle.dumps(storage))
    assert storage.read(NAME, 0, 10) == DATA[:10]
    headers = server.requests[0].headers
    assert headers["x-kind"] == "test"
    assert headers["authorization"] == "Basic dXNlcjpwYXNzd29yZA=="
    assert headers["accept-encoding"] == "identity"
    with pytest.raises(PcrError) as caught:
        storage.read("missing", 0, 10)
    assert str(caught.value).startswith(f"{server.url}/missing: ")
    storage.close()


def test_a_query_is_kept_for_each_file(tmp_path):
    (tmp_path / NAME).write_bytes(DATA[:100])
    with RangeServer(tmp_path) as server:
        storage = open_http(f"{server.url}/?signature=a%2Fb")
        assert storage.read(NAME, 0, 9) == DATA[:9]
        assert server.requests[0].query == "signature=a%2Fb"
        storage.close()


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_a_proxy_of_the_environment(server, monkeypatch, variable):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(variable, server.url.replace("//", "//me:secret@"))
    storage = open_http("http://data.invalid")
    assert storage.read(NAME, 0, 10) == DATA[:10]
    assert server.requests[0].headers["host"] == "data.invalid"
    assert "proxy-authorization" in server.requests[0].headers
    storage.close()
    monkeypatch.setenv("no_proxy", "127.0.0.1,data.invalid")
    storage = open_http(server.url)
    storage.read(NAME, 0, 10)
    assert "proxy-authorization" not in server.requests[-1].headers
    storage.close()
