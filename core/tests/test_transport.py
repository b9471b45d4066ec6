"""The socket: opening, options, limits and interrupts."""

from __future__ import annotations

import os
import signal
import stat
import time

import pytest
import zmq
from transport_helpers import LONG_S, address_of, receive, send

from tensorcom.errors import (
    BindError,
    SendTimeoutError,
    TransportError,
    ZmqUrlError,
)
from tensorcom.socket_options import SocketOptions
from tensorcom.transport.sockets import OpenSocket
from tensorcom.zmq_url import parse_url

# -- opening -----------------------------------------------------------------------------------


def test_frames_travel_as_they_are(pair) -> None:
    sender, reader = pair()
    for frames in ([b"a"], [b""], [b"a", b"", b"x" * 5000, b"z"], [b"x" * 100_000] * 2):
        send(sender, *frames)
        assert receive(reader) == frames


def test_nothing_opens_before_it_is_used(transport) -> None:
    one = transport("zpull://127.0.0.1:0")
    assert one.urls == ["zpull://127.0.0.1:0"]
    one.open()
    port = int(one.urls[0].rpartition(":")[2])
    assert port > 0
    assert one.endpoints == [f"tcp://127.0.0.1:{port}"]


def test_a_bound_host_name_is_resolved(transport) -> None:
    one = transport("zpull://localhost:0")
    assert one.endpoints[0].startswith("tcp://127.0.0.1:")


def test_a_taken_port_is_a_bind_error(transport) -> None:
    url = address_of(transport("zpull://127.0.0.1:0"), "zpull")
    with pytest.raises(BindError) as caught:
        transport(url).open()
    assert caught.value.url == url
    assert "Address already in use" in str(caught.value)


def test_a_url_that_cannot_be_added_changes_nothing(transport) -> None:
    taken = address_of(transport("zpull://127.0.0.1:0"), "zpull")
    one = transport("zpull://127.0.0.1:0")
    one.open()
    before = one.urls
    with pytest.raises(BindError):
        one.add(parse_url(taken))
    with pytest.raises(ZmqUrlError, match="is a push URL, the connection's kind is pull"):
        one.add(parse_url("zpush://127.0.0.1:1"))
    assert one.urls == before
    one.add(parse_url("zpull://127.0.0.1:0"))
    assert len(set(one.urls)) == 2


def test_a_wrong_interface_is_an_error(transport) -> None:
    with pytest.raises(BindError):
        transport("zpull://no-such-interface:7880").open()


def test_a_host_without_an_address_is_waited_for(transport) -> None:
    transport("zsub://no-such-host.invalid:1").open()  # it may come up later


def test_an_inproc_address_may_be_connected_first(transport) -> None:
    sender = transport("zpush+inproc://late")
    send(sender, b"x")
    assert receive(transport("zpull+inproc://late")) == [b"x"]


def test_one_kind_of_socket(transport) -> None:
    with pytest.raises(ZmqUrlError, match="pull, sub"):
        transport("zpull://127.0.0.1:0", "zsub://127.0.0.1:1")
    with pytest.raises(ZmqUrlError, match="no URL"):
        transport()


@pytest.mark.parametrize(
    "options",
    [
        {"hwm": 0},
        {"hwm": -1},
        {"hwm_bytes": 0},
        {"max_frame_bytes": 2**63},
        {"timeout_s": -1},
        {"timeout_s": float("nan")},
        {"linger_ms": -1},
        {"heartbeat_s": 1e7},
    ],
)
def test_options_that_would_mean_no_limit_are_refused(options) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SocketOptions(**options)


def test_options_of_a_url_are_checked_alike(transport) -> None:
    with pytest.raises(ZmqUrlError, match="heartbeat_s"):
        transport("zpull://127.0.0.1:0?heartbeat_s=999999999")
    with pytest.raises(TypeError):
        SocketOptions(hwm="3")  # type: ignore[arg-type]


def test_options_of_a_url_go_before_those_of_the_connection(transport) -> None:
    one = transport("zpull://127.0.0.1:0?timeout_s=2", timeout_s=1, linger_ms=5)
    assert (one.options.timeout_s, one.options.linger_ms) == (2.0, 5)


# -- ipc ---------------------------------------------------------------------------------------


def test_a_file_is_not_removed_for_a_socket(transport, tmp_path) -> None:
    path = tmp_path / "weights.ten"
    path.write_text("precious")
    with pytest.raises(BindError, match="exists and is no socket"):
        transport(f"zpull+ipc://{path}").open()
    assert path.read_text() == "precious"
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(BindError, match="exists and is no socket"):
        transport(f"zpull+ipc://{link}").open()
    assert link.is_symlink()


def test_an_address_with_a_living_server_is_not_stolen(transport, tmp_path) -> None:
    url = f"zpull+ipc://{tmp_path}/a"
    first = transport(url)
    first.open()
    with pytest.raises(BindError, match="in use by a running server"):
        transport(url).open()
    sender = transport(f"zpush+ipc://{tmp_path}/a")
    send(sender, b"x")
    assert receive(first) == [b"x"]


def test_the_socket_file_goes_with_its_server(transport, tmp_path) -> None:
    one = transport(f"zpull+ipc://{tmp_path}/a")
    one.open()
    assert stat.S_ISSOCK((tmp_path / "a").stat().st_mode)
    one.close()
    assert not (tmp_path / "a").exists()


def test_abstract_addresses(transport) -> None:
    name = f"@tensorcom-test-{os.getpid()}"
    reader = transport(f"zpull+ipc://{name}")
    reader.open()
    send(transport(f"zpush+ipc://{name}"), b"x")
    assert receive(reader) == [b"x"]


# -- limits ------------------------------------------------------------------------------------


def test_a_receive_that_times_out_returns_none(transport) -> None:
    one = transport("zpull://127.0.0.1:0")
    assert receive(one, 0) is None
    assert receive(one, 0.05) is None


def test_a_send_without_a_peer_times_out(transport) -> None:
    one = transport("zrpush://127.0.0.1:0")
    with pytest.raises(SendTimeoutError) as caught:
        send(one, b"x", timeout_s=0.05)
    assert "no peer took a message in 0.05 s (0 connected)" in str(caught.value)
    assert caught.value.timeout_s == 0.05
    assert one.urls[0] in str(caught.value)


def test_check_is_asked_while_waiting(transport) -> None:
    class Stop(Exception):
        pass

    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Stop

    with pytest.raises(Stop):
        transport("zpull://127.0.0.1:0").receive(timeout_s=None, check=check)
    calls.clear()
    with pytest.raises(Stop):
        transport("zrpush://127.0.0.1:0").send([b"x"], timeout_s=None, check=check)


@pytest.mark.parametrize(
    ("kind", "size", "hwm_bytes", "hwm"),
    [
        ("zrpush", 1000, 256_000_000, 16),
        ("zrpush", 5_000_000, 100_000_000, 10),
        ("zrpush", 50_000_000, 80_000_000, 1),
        ("zpub", 1000, 256_000_000, 1000),
        ("zpub", 5_000_000, 100_000_000, 10),
    ],
)
def test_queues_are_bounded_by_the_size_of_the_first_message(
    transport, monkeypatch, kind, size, hwm_bytes, hwm
) -> None:
    one = transport(f"{kind}://127.0.0.1:0", hwm_bytes=hwm_bytes)
    one.open()
    opened = one._opened
    monkeypatch.setattr(OpenSocket, "send", lambda self, frames, size_bytes: True)
    send(one, bytes(size))
    assert opened.socket.getsockopt(zmq.SNDHWM) == hwm
    send(one, bytes(10))
    assert opened.socket.getsockopt(zmq.SNDHWM) == hwm


def test_a_reader_that_pauses_is_not_taken_for_dead(transport) -> None:
    opened = transport("zpull://127.0.0.1:0")._ensure().socket
    assert opened.getsockopt(zmq.HEARTBEAT_IVL) == 0
    assert opened.getsockopt(zmq.TCP_KEEPALIVE) == 1
    asked = transport("zpull://127.0.0.1:0?heartbeat_s=5")._ensure().socket
    assert asked.getsockopt(zmq.HEARTBEAT_IVL) == 5000


def test_a_given_hwm_is_taken(transport) -> None:
    one = transport("zrpush://127.0.0.1:0?hwm=3")
    one.open()
    with pytest.raises(SendTimeoutError):
        send(one, b"x", timeout_s=0)
    assert one._opened.socket.getsockopt(zmq.SNDHWM) == 3


def test_larger_messages_than_the_first_wait_for_room(transport) -> None:
    sender = transport("zpush://127.0.0.1:1", hwm_bytes=4_000_000)  # nobody is there
    send(sender, b"small")
    sent = 0
    with pytest.raises(SendTimeoutError):
        while sent < 16:
            send(sender, bytes(1_500_000), timeout_s=0)
            sent += 1
    assert sent == 2


def test_a_publisher_drops_what_has_no_room(transport) -> None:
    context = zmq.Context()
    sender = transport("zpub://127.0.0.1:0", hwm_bytes=8_000_000)
    with context.socket(zmq.SUB) as reader:  # one that never reads
        reader.setsockopt(zmq.RCVHWM, 1)
        reader.setsockopt(zmq.RCVBUF, 4096)
        reader.subscribe(b"")
        reader.connect(sender.endpoints[0])
        assert sender.wait_for_peers(1, LONG_S)
        send(sender, b"small")
        for _ in range(100):
            send(sender, bytes(2_000_000))
        assert sender._opened.queued_bytes() <= 8_000_000
    context.term()


def test_frames_over_the_limit_are_refused_before_sending(pair) -> None:
    sender, reader = pair(max_frame_bytes=1000)
    with pytest.raises(TransportError, match="frame of 1001 bytes exceeds max_frame_bytes=1000"):
        send(sender, b"x", bytes(1001))
    send(sender, b"next")
    assert receive(reader) == [b"next"]


def test_a_peer_that_sends_frames_over_the_limit_is_cut_off(transport) -> None:
    reader = transport("zpull://127.0.0.1:0", max_frame_bytes=1000)
    reader.open()
    send(transport(address_of(reader, "zpush")), bytes(1001))
    assert receive(reader, 0.5) is None
    send(transport(address_of(reader, "zpush")), bytes(1000))
    assert receive(reader) == [bytes(1000)]


def test_only_so_many_parts_of_a_message_are_kept(transport) -> None:
    reader = transport("zpull://127.0.0.1:0")
    reader.open()
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
        sender.connect(reader.endpoints[0])
        sender.send_multipart([b"x"] * 20_000)
        sender.send(b"next")
        assert len(receive(reader)) == 4096
        assert receive(reader) == [b"next"]


# -- interrupts --------------------------------------------------------------------------------


class Interrupt(BaseException):
    pass


def test_an_interrupted_send_sends_its_message_whole(pair, monkeypatch) -> None:
    sender, reader = pair()
    whole = OpenSocket._send_part

    def fail_once(self, frame, size_bytes, *, last):
        if frame == b"b":
            monkeypatch.setattr(OpenSocket, "_send_part", whole)
            raise Interrupt
        whole(self, frame, size_bytes, last=last)

    monkeypatch.setattr(OpenSocket, "_send_part", fail_once)
    with pytest.raises(Interrupt):
        send(sender, b"a", b"b", b"c")
    send(sender, b"next")
    assert receive(reader) == [b"a", b"b", b"c"]
    assert receive(reader) == [b"next"]


def test_an_interrupted_send_of_which_nothing_left_sends_nothing(pair, monkeypatch) -> None:
    sender, reader = pair()

    def fail(*_, **__):
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(OpenSocket, "_send_part", fail)
        with pytest.raises(Interrupt):
            send(sender, b"a", b"b")
    send(sender, b"next")
    assert receive(reader) == [b"next"]


def test_an_interrupted_receive_leaves_no_half_message(pair) -> None:
    sender, reader = pair()
    send(sender, b"a", b"b", b"c")
    send(sender, b"next")
    reader._opened.socket.setsockopt(zmq.RCVTIMEO, 10_000)
    reader._opened.socket.recv()  # what is left when an interrupt comes now
    assert receive(reader) == [b"next"]


def test_SIGINT_ends_a_receive_and_a_send(start) -> None:
    source = """
import sys, time
from tensorcom import Connection
url, action = sys.argv[1:]
with Connection(url, timeout_s=600, linger_ms=0) as connection:
    try:
        print("ready", flush=True)
        connection.recv() if action == "recv" else connection.send([1.0], True)
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)
"""
    for url, action in (("zpull://127.0.0.1:0", "recv"), ("zrpush://127.0.0.1:0", "send")):
        delays = []
        for _ in range(3):  # the machine may be busy once
            child = start(source, url, action)
            assert child.stdout.readline() == "ready\n"
            at = time.monotonic()
            child.send_signal(signal.SIGINT)
            delays.append(float(child.stdout.readline()) - at)
            assert child.wait(LONG_S) == 0
            if delays[-1] < 1:
                break
        assert min(delays) < 1, action
