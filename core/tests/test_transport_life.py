"""The socket: peers, forks, threads, ends and bad neighbours."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time

import numpy as np
import pytest
from transport_helpers import LONG_S, address_of, receive, send

from tensorcom.errors import (
    ClosedError,
    ReceiveTimeoutError,
)
from tensorcom.transport import Transport, exits
from tensorcom.transport.peers import PeerCount
from tensorcom.zmq_url import parse_url

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


def test_a_thousand_strangers_do_not_stop_a_server_that_looks_at_none(transport) -> None:
    # Once a monitor's queue was full, ZeroMQ's thread waited and the server was dead.
    reader = transport("zpull://127.0.0.1:0")
    reader.open()
    port = int(reader.urls[0].rpartition(":")[2])
    for _ in range(1200):
        with socket.create_connection(("127.0.0.1", port), LONG_S) as stranger:
            assert stranger.recv(1)  # the greeting
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


def test_the_end_of_the_process_ends_a_receive_in_a_daemon_thread(transport) -> None:
    reader = transport("zpull://127.0.0.1:0")
    reader.open()
    errors = []

    def wait() -> None:
        try:
            reader.receive(timeout_s=None, check=started.set)
        except Exception as exc:
            errors.append(exc)

    started = threading.Event()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert started.wait(LONG_S)
    exits._close_all()
    thread.join(LONG_S)
    assert [type(error) for error in errors] == [ClosedError]


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


# pyzmq lets go of a socket of the parent; with the warning an error, pytest's hook is in its way.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
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


@pytest.mark.parametrize("schemes", [("zpub", "zsub"), ("zrpush", "zrpull")])
def test_a_reader_does_not_wait_for_a_server_that_is_gone(transport, wait_until, schemes) -> None:
    server = transport(f"{schemes[0]}://127.0.0.1:0")
    reader = transport(address_of(server, schemes[1]), linger_ms=60_000)
    reader.open()
    assert server.wait_for_peers(1, LONG_S)
    server.close()
    wait_until(lambda: reader.peers() == 0)
    start = time.monotonic()
    assert reader.close() == 0
    assert time.monotonic() - start < LONG_S


def test_what_left_before_close_is_not_lost(pair) -> None:
    sender, reader = pair()
    for number in range(16):
        send(sender, b"%d" % number, bytes(200_000))
    received = []
    thread = threading.Thread(target=lambda: received.extend(receive(reader)[0] for _ in range(16)))
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
    assert sender.flush(LONG_S)
    assert receive(reader) == [b"x"]
    alone = Transport([parse_url("zpush://127.0.0.1:1")])
    send(alone, b"x")
    assert not alone.flush(0.01)
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
    child = start(EXIT.format(imports=imports, run=run), reader.urls[0].replace("zpull", "zpush"))
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
