"""The socket: opening, limits, peers, forks, threads, ends and bad neighbours."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import stat
import threading
import time

import numpy as np
import pytest
import zmq

from tensorcom.errors import (
    BindError,
    ClosedError,
    ReceiveTimeoutError,
    SendTimeoutError,
    TransportError,
    ZmqUrlError,
)
from tensorcom.socket_options import SocketOptions
from tensorcom.transport import Transport
from tensorcom.transport.peers import PeerCount
from tensorcom.transport.sockets import OpenSocket
from tensorcom.zmq_url import parse_url

LONG_S = 30.0


@pytest.fixture
def transport(no_leaks):
    made = []

    def make(*urls: str, **options) -> Transport:
        one = Transport([parse_url(url) for url in urls], SocketOptions(**options))
        made.append(one)
        return one

    yield make
    for one in made:
        one.close(flush=False)


@pytest.fixture
def pair(transport):
    """Return a function that makes a pushing and a pulling transport that know each other."""

    def make(**options):
        reader = transport("zpull://127.0.0.1:0", **options)
        sender = transport(address_of(reader, "zpush"), **options)
        sender.open()
        assert sender.wait_for_peers(1, LONG_S)
        return sender, reader

    return make


def address_of(one: Transport, scheme: str) -> str:
    one.open()
    return one.urls[0].replace(one.urls[0].partition("://")[0], scheme)


def send(one: Transport, *frames: bytes, timeout_s: float | None = LONG_S) -> None:
    one.send(frames, timeout_s=timeout_s)


def receive(one: Transport, timeout_s: float = LONG_S) -> list[bytes] | None:
    frames = one.receive(timeout_s=timeout_s)
    return None if frames is None else [bytes(frame) for frame in frames]


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


# -- peers -------------------------------------------------------------------------------------


def test_peers_come_and_go(transport, wait_until) -> None:
    reader = transport("zpull://127.0.0.1:0")
    assert reader.peers() == 0
    senders = [transport(address_of(reader, "zpush")) for _ in range(3)]
    for sender in senders:
        sender.open()
    assert reader.wait_for_peers(3, LONG_S)
    senders[0].close()
    wait_until(lambda: reader.peers() == 2)
    assert senders[1].peers() == 1
    assert not reader.wait_for_peers(3, 0.05)


def test_subscribers_come_and_go(transport, wait_until) -> None:
    sender = transport("zpub://127.0.0.1:0")
    readers = [transport(address_of(sender, "zsub") + topic) for topic in ("", "#a", "#a")]
    for reader in readers:
        reader.open()
    assert sender.wait_for_peers(3, LONG_S)
    readers[1].close()
    wait_until(lambda: sender.peers() == 2)


@pytest.mark.parametrize("schemes", [("zpush", "zpull"), ("zrpush", "zrpull"), ("zpub", "zsub")])
def test_inproc_peers_are_counted_too(transport, wait_until, schemes) -> None:
    sender, *readers = [transport(f"{schemes[i > 0]}+inproc://count") for i in range(3)]
    if schemes[0] == "zpush":  # the reader binds, so there is one
        readers.pop()
    for one in (sender, *readers):
        one.open()
    assert sender.wait_for_peers(len(readers), LONG_S)
    readers[0].close()
    wait_until(lambda: sender.peers() == len(readers) - 1)


JUNK = [b"", b"GET / HTTP/1.0\r\n\r\n" * 4, b"\xff\0\0\0\0\0\0\0\1\x7f"]


@pytest.mark.parametrize("junk", JUNK, ids=["scan", "http", "half"])
def test_strangers_are_no_peers(transport, wait_until, junk) -> None:
    reader = transport("zpull://127.0.0.1:0")
    reader.open()
    port = int(reader.urls[0].rpartition(":")[2])
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(junk)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        sender = transport(address_of(reader, "zpush"))
        send(sender, b"x")
        assert receive(reader) == [b"x"]
        wait_until(lambda: reader.peers() == 1)
        stranger.sendall(junk)
    sender.close()
    wait_until(lambda: reader.peers() == 0)


def test_a_peer_of_the_wrong_kind_is_none(transport, wait_until) -> None:
    reader = transport("zpull://127.0.0.1:0")
    reader.open()
    wrong = transport(address_of(reader, "zsub"))
    wrong.open()
    send(transport(address_of(reader, "zpush")), b"x")
    assert receive(reader) == [b"x"]
    wait_until(lambda: reader.peers() == 1)


def test_thousands_of_strangers_do_not_stop_a_server_that_looks_at_none(transport) -> None:
    # Once a monitor's queue was full, ZeroMQ's thread waited and the server was dead.
    reader = transport("zpull://127.0.0.1:0")
    reader.open()
    port = int(reader.urls[0].rpartition(":")[2])
    for _ in range(2500):
        socket.create_connection(("127.0.0.1", port)).close()
    send(transport(address_of(reader, "zpush")), b"x")
    assert receive(reader) == [b"x"]
    assert reader.peers() == 1


def test_peer_count_is_right_once_every_connection_has_said_what_it_is() -> None:
    count = PeerCount()
    count.opened()
    count.succeeded()  # a peer
    count.opened()  # a stranger that says nothing
    count.lost()  # the peer goes, and could be the stranger
    assert count.count <= 1
    count.lost()
    assert count.count == 0
    for _ in range(3):
        count.opened()
        count.lost()
        count.lost()  # never negative
    count.opened()
    count.succeeded()
    assert count.count == 1


# -- processes and threads ---------------------------------------------------------------------


def test_close_ends_a_receive_and_a_send_in_other_threads(transport) -> None:
    reader, sender = transport("zpull://127.0.0.1:0"), transport("zrpush://127.0.0.1:0")
    caught: list[BaseException] = []

    def run(action) -> None:
        try:
            action()
        except BaseException as error:
            caught.append(error)

    threads = [
        threading.Thread(target=run, args=(lambda: reader.receive(timeout_s=None),)),
        threading.Thread(target=run, args=(lambda: sender.send([b"x"], timeout_s=None),)),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    reader.close()
    sender.close()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert [type(error) for error in caught] == [ClosedError, ClosedError]


def test_other_threads_get_a_word_in_while_one_receives(transport) -> None:
    reader = transport("zpull://127.0.0.1:0")
    reader.open()
    thread = threading.Thread(target=reader.receive, kwargs={"timeout_s": LONG_S})
    thread.start()
    try:
        for _ in range(5):
            assert reader.peers() == 0
            assert len(reader.endpoints) == 1
    finally:
        send(transport(address_of(reader, "zpush")), b"x")
        thread.join(LONG_S)
    assert not thread.is_alive()


def test_threads_may_send_over_one_socket(pair) -> None:
    sender, reader = pair()

    def work(mark: bytes) -> None:
        for _ in range(100):
            send(sender, mark, mark, mark)

    threads = [threading.Thread(target=work, args=(b"%d" % i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    messages = [receive(reader) for _ in range(400)]
    for thread in threads:
        thread.join()
    assert all(len(message) == 3 and len(set(message)) == 1 for message in messages)


def test_a_forked_child_opens_a_socket_of_its_own(transport) -> None:
    reader = transport("zpull://127.0.0.1:0")
    sender = transport(address_of(reader, "zpush"))
    send(sender, b"parent")
    assert receive(reader) == [b"parent"]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            send(sender, b"child")
            code = int(sender.close() != 0)
        finally:
            os._exit(code)
    assert receive(reader) == [b"child"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    send(sender, b"parent again")
    assert receive(reader) == [b"parent again"]
    assert sender.close() == 0


def test_a_child_that_closes_or_exits_leaves_the_parents_socket_alone(start) -> None:
    source = """
import os, sys
from tensorcom import Connection
reader = Connection("zpull://127.0.0.1:0", timeout_s=20)
sender = Connection(reader.urls[0].replace("zpull", "zpush"), timeout_s=20)
inproc = Connection("zrpush+inproc://a"), Connection("zrpull+inproc://a", timeout_s=20)
sender.send([1.0], True)
reader.recv()
for close in (True, False):
    child = os.fork()
    if child == 0:
        if close:
            reader.close()
            sender.close()
        else:
            del reader, sender, inproc
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
sender.send([2.0], True)
inproc[0].send([3.0], True)
print(float(reader.recv()[0]), float(inproc[1].recv()[0]), flush=True)
"""
    child = start(source)
    out, _ = child.communicate(timeout=LONG_S)
    assert (out, child.returncode) == ("2.0 3.0\n", 0)


def test_a_transport_refuses_to_be_pickled(transport) -> None:
    with pytest.raises(TypeError, match="pickle the Connection"):
        pickle.dumps(transport("zpull://127.0.0.1:0"))


# -- the end -----------------------------------------------------------------------------------


def test_close_says_what_was_lost(transport) -> None:
    sender = transport("zpush://127.0.0.1:1")  # nobody is there
    for _ in range(5):
        send(sender, b"x")
    assert sender.close(linger_ms=50) == 5
    assert sender.close() == 0
    assert sender.closed
    for action in (sender.open, sender.peers, lambda: send(sender, b"x")):
        with pytest.raises(ClosedError):
            action()
    with pytest.raises(ClosedError):
        receive(sender)


def test_close_without_flush_does_not_wait(transport) -> None:
    sender = transport("zpush://127.0.0.1:1", linger_ms=10**9)
    send(sender, b"x")
    assert sender.close(flush=False) == 1


def test_what_left_before_close_is_not_lost(pair) -> None:
    sender, reader = pair()
    for number in range(16):
        send(sender, b"%d" % number, bytes(200_000))
    received = []
    thread = threading.Thread(
        target=lambda: received.extend(receive(reader)[0] for _ in range(16))
    )
    thread.start()
    assert sender.close() == 0
    thread.join()
    assert received == [b"%d" % number for number in range(16)]


def test_a_transport_that_is_dropped_closes(transport, wait_until) -> None:
    reader = transport("zpull://127.0.0.1:0")
    sender = Transport([parse_url(address_of(reader, "zpush"))])
    send(sender, b"x")
    del sender
    assert receive(reader) == [b"x"]
    wait_until(lambda: reader.peers() == 0)


def test_flush_waits_for_what_was_sent(pair) -> None:
    sender, reader = pair()
    send(sender, b"x")
    assert sender.flush(LONG_S) == 0
    assert receive(reader) == [b"x"]
    alone = Transport([parse_url("zpush://127.0.0.1:1")])
    send(alone, b"x")
    assert alone.flush(0.01) == 1
    assert alone.in_flight() == 1
    alone.close(flush=False)


EXIT = """
import sys, {imports}
import numpy as np
from tensorcom import Connection
def work():
    global sender
    sender = Connection(sys.argv[1])
    for number in range(16):
        sender.send([np.full(300_000, number, "i4")])
if __name__ == "__main__":
    {run}
"""


@pytest.mark.parametrize(
    ("imports", "run"),
    [
        ("weakref", "work()"),
        ("tempfile", "tempfile.TemporaryDirectory(); work()"),
        ("threading", "t = threading.Thread(target=work); t.start(); t.join()"),
        (
            "multiprocessing",
            "p = multiprocessing.get_context('fork').Process(target=work); p.start(); p.join()",
        ),
        (
            "multiprocessing",
            "p = multiprocessing.get_context('spawn').Process(target=work); p.start(); p.join()",
        ),
    ],
    ids=["plain", "another finalizer first", "thread", "forked", "spawned"],
)
def test_what_was_sent_arrives_whole_though_the_program_ends(connect, start, imports, run) -> None:
    # pyzmq lets go of the memory of messages when the interpreter ends, sent or not.
    reader = connect("zpull://127.0.0.1:0")
    child = start(
        EXIT.format(imports=imports, run=run), reader.urls[0].replace("zpull", "zpush")
    )
    for number in range(16):
        (array,) = reader.recv()
        assert (array == number).all()
    assert child.wait(LONG_S) == 0
    with pytest.raises(ReceiveTimeoutError):
        reader.recv_message(timeout_s=0)


def test_large_arrays_reach_the_wire_without_a_copy(pair) -> None:
    sender, reader = pair()
    array = np.zeros(1 << 20, "u1")
    sender.send([array.data, b"end"], timeout_s=LONG_S)
    assert len(receive(reader)[0]) == 1 << 20
