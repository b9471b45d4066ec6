"""Connection: its methods, timeouts and ends, CURVE, readers of other programs."""

from __future__ import annotations

import copy
import logging
import pickle
import re
import threading

import numpy as np
import pytest
import zmq
import zmq.auth
from connection_helpers import LONG_S, batch, numbers

from tensorcom import (
    ClosedError,
    Connection,
    Message,
    Meta,
    ReceiveTimeoutError,
    ZmqUrlError,
    tenbin,
)
from tensorcom.progress import Progress
from tensorcom.socket_options import SocketOptions

# -- methods -----------------------------------------------------------------------------------


def test_connect_adds_urls(connect) -> None:
    senders = [connect("zrpush://127.0.0.1:0") for _ in range(3)]
    urls = [sender.urls[0].replace("zrpush", "zrpull") for sender in senders]
    reader = connect()
    with pytest.raises(ZmqUrlError, match="has no URL"):
        reader.recv()
    reader.connect(urls[0])
    reader.connect(urls[1:])
    for number, sender in enumerate(senders):
        sender.send(batch(number))
    assert sorted(numbers(reader.recv() for _ in range(3))) == [0, 1, 2]
    assert reader.servers == 3
    with pytest.raises(ZmqUrlError, match="is a sub URL, the connection's kind is pull"):
        reader.connect("zsub://127.0.0.1:1")


def test_connect_takes_a_topic(connect) -> None:
    sender = connect("zpub://127.0.0.1:0")
    reader = connect()
    reader.connect(sender.urls[0].replace("zpub", "zsub"), topic="cat")
    assert sender.wait_for_peers()
    sender.send(batch(0), topic="category")
    sender.send(batch(1), topic="cat")
    assert numbers([reader.recv()]) == [1]
    assert reader.stats.filtered == 1


def test_wrong_directions_are_errors(connect) -> None:
    sender, reader = connect("zrpush://127.0.0.1:0"), connect("zpull://127.0.0.1:0")
    with pytest.raises(ZmqUrlError, match="zrpush connection sends, it does not receive"):
        sender.recv()
    with pytest.raises(ZmqUrlError, match="zrpush connection sends"):
        next(iter(sender))
    with pytest.raises(ZmqUrlError, match="zpull connection receives, it does not send"):
        reader.send(batch(0))


def test_write_and_serve(connected) -> None:
    sender, reader = connected(epoch=4)
    sender.write(batch(0))
    sender.serve([batch(1), Message(batch(2), meta=Meta(epoch=9)), batch(3)])
    received = [reader.recv_message() for _ in range(4)]
    assert numbers(message.arrays for message in received) == [0, 1, 2, 3]
    assert received[2].meta.epoch == 9


def test_serve_says_the_end(connected) -> None:
    sender, reader = connected()
    thread = threading.Thread(
        target=sender.serve, args=([batch(i) for i in range(5)],), kwargs={"end": "stream"}
    )
    thread.start()
    assert numbers(reader) == [0, 1, 2, 3, 4]
    thread.join()
    assert sum(source.ended for source in reader.stats.sources.values()) == 1


def test_a_publisher_says_the_end_to_the_readers_of_each_topic(connect) -> None:
    sender = connect("zpub://127.0.0.1:0")
    url = sender.urls[0].replace("zpub", "zsub")
    readers = [connect(f"{url}#{topic}") for topic in ("cat", "dog")]
    assert sender.wait_for_peers(2)
    messages = [Message(batch(i), topic=(b"cat", b"dog")[i % 2]) for i in range(6)]
    sender.serve(messages, end="stream")
    assert [numbers(reader) for reader in readers] == [[0, 2, 4], [1, 3, 5]]


def test_serve_stops_when_told(connect) -> None:
    sender = connect("zrpush://127.0.0.1:0")
    stop = threading.Event()
    thread = threading.Thread(target=sender.serve, args=([batch(0)] * 5,), kwargs={"stop": stop})
    thread.start()  # nobody reads
    stop.set()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_calling_a_connection_iterates(connected) -> None:
    sender, reader = connected(epoch=2)
    sender.send(batch(0))
    sender.send(batch(1))
    assert numbers(reader()) == [0, 1]


def test_steps_on_a_stream(connected) -> None:
    sender, reader = connected(epoch=3)
    for number in range(3):
        sender.send(batch(number))
    batches = list(reader.unbatched().shuffled(5, seed=1).rebatch(8))
    assert [len(labels) for _, labels in batches] == [8, 4]
    assert sorted(np.concatenate([labels for _, labels in batches])) == [0] * 4 + [1] * 4 + [2] * 4


def test_a_message_taken_too_many_is_the_first_of_the_next_iteration(connected) -> None:
    sender, reader = connected()

    class Full(Progress):
        """One whose last message another reader takes first."""

        def claim(self) -> bool:
            return False

    sender.send(batch(7))
    assert list(reader.items(progress=Full(None))) == []
    assert numbers([reader.recv()]) == [7]


def test_received_arrays_are_the_callers(connected) -> None:
    sender, reader = connected()
    kept = []
    for number in range(20):
        sender.send([np.full((64, 64, 64), number, "u1")])
        (array,) = reader.recv()
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0
        array += 1
        kept.append(array)
    assert [int(array.max()) for array in kept] == list(range(1, 21))


# -- timeouts and ends -------------------------------------------------------------------------


def test_a_timeout_names_the_url_and_what_is_missing(connect) -> None:
    reader = connect("zsub://127.0.0.1:1", timeout_s=0.05)
    with pytest.raises(ReceiveTimeoutError) as caught:
        reader.recv()
    assert str(caught.value) == (
        "zsub://127.0.0.1:1: no message in 0.05 s (0 of 1 or more peers connected; "
        "none ever came: is the server running?)"
    )
    assert caught.value.urls == ("zsub://127.0.0.1:1",)
    assert caught.value.last_seen == {}


def test_a_timeout_says_who_was_last_seen_when(connected) -> None:
    sender, reader = connected(timeout_s=0.05)
    sender.send(batch(0))
    reader.recv_message(timeout_s=LONG_S)
    with pytest.raises(ReceiveTimeoutError) as caught:
        reader.recv()
    (source,) = reader.stats.sources
    assert re.search(rf"1 of 1 or more .* {source} \d+\.\d s ago", str(caught.value))
    assert list(caught.value.last_seen) == [source]
    assert reader.urls[0] in str(caught.value)
    with pytest.raises(ReceiveTimeoutError):
        reader.recv_message(timeout_s=0)
    with pytest.raises(ReceiveTimeoutError):
        next(iter(reader))


def test_close_twice_and_use_after_close(connected) -> None:
    sender, reader = connected()
    for connection in (sender, reader):
        assert connection.close() == 0
        assert connection.close() == 0
    assert Connection().close() == 0
    for use in (
        reader.recv,
        reader.recv_message,
        reader.wait_for_peers,
        reader.open,
        lambda: next(iter(reader)),
        lambda: sender.send(batch(0)),
        lambda: reader.connect("zpull://127.0.0.1:0"),
    ):
        with pytest.raises(ClosedError, match="connection is closed"):
            use()


def test_close_from_another_thread_ends_a_receive(connected) -> None:
    _, reader = connected(timeout_s=None)
    caught = []

    def receive() -> None:
        try:
            list(reader)
        except ClosedError as error:
            caught.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    reader.close()
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert len(caught) == 1


def test_close_says_what_was_lost(connect, caplog) -> None:
    sender = connect("zpush://127.0.0.1:1")  # nobody is there
    for number in range(3):
        sender.send(batch(number))
    with caplog.at_level(logging.WARNING, "tensorcom.connection"):
        assert sender.close(linger_ms=20) == 3
    assert "zpush://127.0.0.1:1: closed with 3 messages unsent" in caplog.text
    caplog.clear()
    sender = connect("zpush://127.0.0.1:1")
    sender.send(batch(0))
    assert sender.close(flush=False) == 1
    assert caplog.text == ""


def test_a_context_manager_closes(no_leaks) -> None:
    with Connection("zpull://127.0.0.1:0") as reader:
        pass
    with pytest.raises(ClosedError):
        reader.open()


@pytest.mark.parametrize("travel", [lambda c: pickle.loads(pickle.dumps(c)), copy.copy])
def test_a_copy_has_the_arguments_and_a_socket_of_its_own(connect, travel) -> None:
    sender = connect("zrpush://127.0.0.1:0")
    reader = connect(
        sender.urls[0].replace("zrpush", "zrpull"), 2, converters="numpy", infos=["a", "b"]
    )
    sender.send(Message(batch(0), ["a", "b"]))
    assert numbers([reader.recv()]) == [0]
    twin = travel(reader)  # opens where it is first used
    reader.close()
    assert (twin.epoch, twin.infos, twin.stats.count) == (2, ["a", "b"], 0)
    twin.open()
    sender.send(Message(batch(1), ["a", "b"]))
    sender.send(Message(batch(2), ["a", "b"]))
    assert numbers(twin) == [1, 2]
    twin.close()
    with pytest.raises(ClosedError):
        travel(twin).recv()


def test_a_live_sender_travels_as_another_source(connect) -> None:
    reader = connect("zpull://127.0.0.1:0")
    sender = connect(reader.urls[0].replace("zpull", "zpush"), topic="t", allow64=True)
    sender.send(batch(0))
    with pickle.loads(pickle.dumps(sender)) as twin:
        twin.send([1.0])
        first, second = reader.recv_message(), reader.recv_message()
    assert first.meta.source != second.meta.source
    assert second.meta.seq == 0
    assert first.topic == second.topic == b"t"


# -- CURVE -------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path):
    """Return the certificate files of a server and a client, and another's."""
    for name in ("server", "client", "other"):
        zmq.auth.create_certificates(tmp_path, name)
    return {path.name: str(path) for path in tmp_path.iterdir()}


@pytest.mark.parametrize("schemes", [("zrpush", "zrpull"), ("zpub", "zsub")])
def test_CURVE(connect, keys, schemes) -> None:
    server = connect(f"{schemes[0]}://127.0.0.1:0", curve_key=keys["server.key_secret"])
    url = server.urls[0].replace(*schemes)
    reader = connect(url, curve_key=keys["client.key_secret"], curve_server_key=keys["server.key"])
    assert server.wait_for_peers()
    server.send(batch(1))
    assert numbers([reader.recv()]) == [1]
    reader.close()
    strangers = [
        connect(url, timeout_s=0.3),
        connect(
            url,
            timeout_s=0.3,
            curve_key=keys["client.key_secret"],
            curve_server_key=keys["other.key"],
        ),
    ]
    for stranger in strangers:
        with pytest.raises(ReceiveTimeoutError, match="0 of 1 or more peers connected"):
            stranger.recv()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"curve_key": "client.key_secret"}, "CURVE needs curve_server_key too"),
        ({"curve_server_key": "server.key"}, "CURVE needs curve_key too"),
        ({"curve_key": "missing", "curve_server_key": "server.key"}, "cannot be used"),
        ({"curve_key": "client.key", "curve_server_key": "server.key"}, "CURVE"),
    ],
)
def test_CURVE_without_its_keys_is_an_error(connect, keys, options, reason) -> None:
    files = {name: keys.get(value, value) for name, value in options.items()}
    with pytest.raises(ZmqUrlError, match=reason):
        connect("zsub://127.0.0.1:1", **files)


# -- readers of other programs -----------------------------------------------------------------


def test_foreign_publishers(connect) -> None:
    array = np.arange(6, dtype="f4").reshape(2, 3)
    with zmq.Context() as context, context.socket(zmq.PUB) as foreign:
        port = foreign.bind_to_random_port("tcp://127.0.0.1")
        foreign.linger = 0
        all_topics = connect(f"zsub://127.0.0.1:{port}", epoch=3)
        one_topic = connect(f"zsub://127.0.0.1:{port}#topic")
        for reader in (all_topics, one_topic):
            assert reader.wait_for_peers()
        buffer = bytes(tenbin.encode_buffer([array]))
        received = []
        while not received:  # PUB drops until the subscription is there
            foreign.send(buffer)
            try:
                received.append(all_topics.recv_message(timeout_s=0.05))
            except ReceiveTimeoutError:
                continue
        foreign.send_multipart([b"topic", buffer])
        foreign.send_multipart([b"topics", buffer])
        foreign.send_multipart([bytes(part) for part in tenbin.encode_list([array, array[0]])])
        received += [all_topics.recv_message() for _ in range(3)]
        while received[-1].topic or len(received[-1].arrays) == 1:  # there may be more plain ones
            received.append(all_topics.recv_message())
        assert all(np.array_equal(message.arrays[0], array) for message in received)
        assert [m.topic for m in received if m.topic] == [b"topic", b"topics"]
        assert np.array_equal(received[-1].arrays[1], array[0])
        assert one_topic.recv_message().topic == b"topic"
        with pytest.raises(ReceiveTimeoutError):
            one_topic.recv_message(timeout_s=0.2)


def test_every_option_is_one_of_the_connection() -> None:
    with Connection(**dict.fromkeys(("hwm", "timeout_s", "curve_key"))):
        pass
    assert SocketOptions().hwm_bytes == 256_000_000
