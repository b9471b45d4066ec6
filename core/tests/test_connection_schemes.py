"""Every scheme over every transport, in both forms of a message, over one URL and several."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

PAIRS = [("zpush", "zpull"), ("zrpush", "zrpull"), ("zpub", "zsub"), ("zrpub", "zrsub")]
TRANSPORTS = ["tcp", "ipc", "inproc"]
BINDING = {"zpull", "zrpush", "zpub", "zrsub"}


@pytest.fixture
def ends(connect, tmp_path, wait_until):
    """Return a function that makes both ends of a stream over several addresses."""

    def make(sending, receiving, transport, *, count=1, senders=1, readers=1, **arguments):
        if transport == "tcp":
            addresses = ["127.0.0.1:0"] * count
        else:
            addresses = [f"{tmp_path}/{i}" for i in range(count)]

        def urls(scheme, found):
            return [f"{scheme}+{transport}://{address}" for address in found]

        binder, other = (sending, receiving) if sending in BINDING else (receiving, sending)
        bound = connect(urls(binder, addresses), **arguments)
        found = [url.partition("://")[2] for url in bound.urls]
        others = [connect(urls(other, found), **arguments) for _ in range(senders * readers)]
        made = ([bound], others) if binder == sending else (others, [bound])
        want = len(made[1]) if binder == sending else count
        # A subscriber that binds subscribes while it is asked something.
        wait_until(
            lambda: (
                all(reader.wait_for_peers(timeout_s=0) for reader in made[1])
                and all(sender.wait_for_peers(want, timeout_s=0) for sender in made[0])
            )
        )
        return made

    return make


def batch(number: int) -> list[np.ndarray]:
    return [np.full((4, 100, 100, 3), number % 256, "u1"), np.full(4, number, "i4")]


def check(arrays) -> int:
    images, labels = arrays
    number = int(labels[0])
    assert (images == number % 256).all()
    assert images.shape == (4, 100, 100, 3)
    return number


@pytest.mark.parametrize("multipart", [True, False], ids=["multi", "single"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("schemes", PAIRS, ids="-".join)
def test_a_stream_arrives_in_order(ends, schemes, transport, multipart) -> None:
    (sender,), (reader,) = ends(*schemes, transport, multipart=multipart)
    for number in range(10):
        sender.send(batch(number))
    messages = [reader.recv_message() for _ in range(10)]
    assert [check(message.arrays) for message in messages] == list(range(10))
    assert [message.meta.seq for message in messages] == list(range(10))
    assert reader.stats.gaps == 0


@pytest.mark.parametrize("multipart", [True, False], ids=["multi", "single"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("schemes", PAIRS[2:], ids="-".join)
def test_topics_on_every_transport(ends, connect, schemes, transport, multipart) -> None:
    (sender,), (reader,) = ends(*schemes, transport, multipart=multipart)
    sender.send(batch(1), topic="cat")
    sender.send(batch(2))
    found = [reader.recv_message() for _ in range(2)]
    assert [(message.topic, check(message.arrays)) for message in found] == [(b"cat", 1), (b"", 2)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_sender_deals_out_to_several_addresses(ends, transport) -> None:
    (sender,), (reader,) = ends("zpush", "zpull", transport, count=3)
    for number in range(9):
        sender.send(batch(number))
    assert sorted(check(reader.recv()) for _ in range(9)) == list(range(9))
    assert len(reader.urls) == 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_several_readers_share_a_pushed_stream(ends, transport) -> None:
    (sender,), readers = ends("zrpush", "zrpull", transport, readers=2)
    for number in range(8):
        sender.send(batch(number))
    found = [[check(reader.recv()) for _ in range(4)] for reader in readers]
    assert sorted(itertools.chain(*found)) == list(range(8))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_subscriber_gets_everything(ends, transport) -> None:
    (sender,), readers = ends("zpub", "zsub", transport, readers=2)
    for number in range(8):
        sender.send(batch(number))
    assert [[check(r.recv()) for _ in range(8)] for r in readers] == [list(range(8))] * 2


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("schemes", [PAIRS[0], PAIRS[3]], ids="-".join)
def test_several_senders_to_one_reader(ends, schemes, transport) -> None:
    senders, (reader,) = ends(*schemes, transport, senders=3)
    for number, sender in enumerate(senders):
        sender.send(batch(number))
    assert sorted(check(reader.recv()) for _ in range(3)) == [0, 1, 2]
    assert len(reader.stats.sources) == 3


@pytest.mark.parametrize("schemes", [("zrpush", "zrpull"), ("zpub", "zsub")], ids="-".join)
def test_braces_take_from_all_addresses(connect, tmp_path, schemes) -> None:
    # The original kept only the last address.
    senders = [connect(f"{schemes[0]}+ipc://{tmp_path}/s{i}") for i in range(4)]
    reader = connect(f"{schemes[1]}+ipc://{tmp_path}/s{{0..3}}", epoch=4)
    for number, sender in enumerate(senders):
        assert sender.wait_for_peers()
        sender.send(batch(number))
    assert sorted(check(arrays) for arrays in reader) == [0, 1, 2, 3]
    assert reader.servers == 4


def test_addresses_of_several_transports(connect, tmp_path) -> None:
    senders = [
        connect("zrpush://127.0.0.1:0"),
        connect(f"zrpush+ipc://{tmp_path}/a"),
        connect("zrpush+inproc://mixed"),
    ]
    reader = connect([sender.urls[0].replace("zrpush", "zrpull") for sender in senders])
    for number, sender in enumerate(senders):
        sender.send(batch(number))
    assert sorted(check(reader.recv()) for _ in range(3)) == [0, 1, 2]


def test_two_topics_of_one_publisher(connect) -> None:
    sender = connect("zpub://127.0.0.1:0")
    url = sender.urls[0].replace("zpub", "zsub")
    reader = connect([f"{url}#cat", f"{url}#dog"])
    assert sender.wait_for_peers(2)
    for number, topic in enumerate(["cat", "cow", "dog", "category", "cat"]):
        sender.send(batch(number), topic=topic)
    assert [check(reader.recv()) for _ in range(3)] == [0, 2, 4]
    assert reader.servers == 1


@pytest.mark.parametrize("multipart", [True, False], ids=["multi", "single"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("schemes", PAIRS, ids="-".join)
def test_the_end_ends_the_readers_iteration(ends, schemes, transport, multipart) -> None:
    (sender,), (reader,) = ends(*schemes, transport, multipart=multipart)
    batches = [batch(i) for i in range(3)]
    thread = threading.Thread(target=sender.serve, args=(batches,), kwargs={"end": "stream"})
    thread.start()  # it waits until the reader has everything
    assert [check(arrays) for arrays in reader] == [0, 1, 2]
    thread.join()
    assert reader.stats.gaps == 0
