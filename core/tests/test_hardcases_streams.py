"""Cases from public bug reports on streams, each named by its id in the list of hard cases."""

from __future__ import annotations

import signal
import socket
import subprocess
import time

import pytest
from hardcase_helpers import (
    LONG_S,
    MB,
    free_port,
    number_of,
    numbered,
    reader_url,
    rss_bytes,
    serve_in_thread,
)

from tensorcom import (
    BindError,
    Connection,
    ReceiveTimeoutError,
    ZmqUrlError,
)

# -- PUB and SUB -------------------------------------------------------------------------------


def test_B03_what_a_late_subscriber_missed_is_counted(connect) -> None:
    sender = connect("zpub://127.0.0.1:0")
    for number in range(10):
        sender.send(numbered(number))
    reader = connect(reader_url(sender))
    for number in range(10, 60):  # the subscription is on its way
        sender.send(numbered(number))
    assert sender.wait_for_peers()
    thread = serve_in_thread(sender, [numbered(i) for i in range(60, 100)], end="stream")
    received = [number_of(arrays) for arrays in reader]
    thread.join()
    assert received == list(range(100 - len(received), 100))
    assert 10 <= reader.stats.missed <= 60
    assert len(received) + reader.stats.missed + reader.stats.gaps == 100
    assert reader.stats.as_dict()["missed"] == reader.stats.missed


def test_B03_after_the_start_barrier_nothing_is_missed(connect) -> None:
    sender = connect("zpub://127.0.0.1:0")
    reader = connect(reader_url(sender), 100)
    assert sender.wait_for_peers()
    for number in range(100):
        sender.send(numbered(number))
    assert [number_of(arrays) for arrays in reader] == list(range(100))


def test_B03_push_and_pull_lose_none(connect) -> None:
    sender = connect("zrpush://127.0.0.1:0")
    thread = serve_in_thread(sender, [numbered(i) for i in range(100)], end="stream")
    reader = connect(reader_url(sender))
    assert [number_of(arrays) for arrays in reader] == list(range(100))
    thread.join()


def slow_subscriber(connect, url: str) -> tuple[Connection, list[int]]:
    sender = connect(url)
    reader = connect(reader_url(sender).partition("?")[0] + "?hwm=1")
    assert sender.wait_for_peers()
    thread = serve_in_thread(sender, (numbered(i, MB) for i in range(200)), end="stream")
    received = []
    for arrays in reader:
        received.append(number_of(arrays))
        time.sleep(0.01)
    thread.join()
    return reader, received


def test_B04_what_a_slow_subscriber_loses_is_counted(connect) -> None:
    reader, received = slow_subscriber(connect, "zpub://127.0.0.1:0?hwm=1")
    assert len(received) < 200
    assert received == sorted(set(received))
    assert len(received) + reader.stats.gaps + reader.stats.missed == 200


def test_B04_a_publisher_can_wait_for_slow_subscribers(connect) -> None:
    reader, received = slow_subscriber(connect, "zpub://127.0.0.1:0?hwm=1&nodrop=1")
    assert received == list(range(200))
    assert reader.stats.gaps == 0


@pytest.mark.parametrize("multipart", [True, False])
def test_B11_topics_match_exactly(connect, multipart) -> None:
    sender = connect("zpub://127.0.0.1:0", multipart=multipart)
    cat = connect(reader_url(sender) + "#cat")
    every = connect(reader_url(sender))
    assert sender.wait_for_peers(2)
    for number, topic in enumerate(["cat", "category", "", "ca", "cat"]):
        sender.send(numbered(number), topic=topic)
    assert [number_of(cat.recv()) for _ in range(2)] == [0, 4]
    with pytest.raises(ReceiveTimeoutError):
        cat.recv_message(timeout_s=0.1)
    assert cat.stats.filtered == 1
    messages = [every.recv_message() for _ in range(5)]
    assert [message.topic for message in messages] == [b"cat", b"category", b"", b"ca", b"cat"]
    assert [number_of(message.arrays) for message in messages] == [0, 1, 2, 3, 4]


# -- memory ------------------------------------------------------------------------------------

IDLE_READER = """
import sys, time
from tensorcom import Connection
reader = Connection(sys.argv[1])
print("ready", flush=True)
while True:
    reader.wait_for_peers(0)
    time.sleep(0.05)
"""
FLOOD = """
import sys
import numpy as np
from tensorcom import Connection, SendTimeoutError
sender = Connection(sys.argv[1])
print(sender.urls[0], flush=True)
sender.wait_for_peers()
batch = np.zeros(5_000_000, "u1")
print("start", flush=True)
sent = 0
for _ in range(300):
    try:
        sender.send([batch], timeout_s=0)
        sent += 1
    except SendTimeoutError:
        pass
print("sent", sent, flush=True)
sys.stdin.read()
sender.close(flush=False)
"""


@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_B05_memory_is_bounded_with_a_reader_that_never_reads(start, scheme) -> None:
    sender = start(FLOOD, f"{scheme}://127.0.0.1:0", stdin=subprocess.PIPE)
    url = sender.stdout.readline().strip()
    reader = start(IDLE_READER, url.replace(scheme, {"zrpush": "zrpull", "zpub": "zsub"}[scheme]))
    assert reader.stdout.readline() == "ready\n"
    assert sender.stdout.readline() == "start\n"
    before = rss_bytes(sender.pid), rss_bytes(reader.pid)
    sent = int(sender.stdout.readline().split()[1])
    assert (sent == 300) == (scheme == "zpub")  # one waits, one drops
    for process, start_bytes in zip((sender, reader), before, strict=True):
        assert rss_bytes(process.pid) - start_bytes < 200e6
    sender.communicate("", timeout=LONG_S)


# -- the end -----------------------------------------------------------------------------------

NO_CLOSE = """
import sys
from tensorcom import Connection, SendTimeoutError
sender = Connection(sys.argv[1])
try:
    for number in range(10):
        sender.send([float(number)], True, timeout_s=0)
except SendTimeoutError:  # zrpush queues nothing where nobody is
    pass
print("end", flush=True)
"""


@pytest.mark.parametrize("scheme", ["zpush", "zrpush", "zpub"])
def test_B06_a_program_ends_though_messages_are_unsent(start, scheme) -> None:
    child = start(NO_CLOSE, f"{scheme}://127.0.0.1:{free_port()}")
    assert child.stdout.readline() == "end\n"
    assert child.wait(20) == 0


def test_B06_close_takes_no_longer_than_it_may(connect) -> None:
    sender = connect(f"zpush://127.0.0.1:{free_port()}", linger_ms=100)
    for number in range(10):
        sender.send(numbered(number))
    assert sender.close() == 10


SEND_50 = """
import sys
import numpy as np
from tensorcom import Connection
sender = Connection(sys.argv[1])
for number in range(50):
    sender.send([np.full(5_000_000, number, "u1"), np.array([number], "i4")])
print(sender.close(), flush=True)
"""


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_B07_everything_accepted_before_close_arrives(connect, start, tmp_path, transport) -> None:
    address = "127.0.0.1:0" if transport == "tcp" else f"{tmp_path}/b07"
    reader = connect(f"zpull+{transport}://{address}")
    sender = start(SEND_50, reader.urls[0].replace("zpull", "zpush"))
    for number in range(50):
        assert number_of(reader.recv()) == number
        time.sleep(0.005)
    assert sender.wait(LONG_S) == 0
    assert sender.stdout.read() == "0\n"


def test_B07_without_flush_close_throws_away(connect) -> None:
    sender = connect(f"zpush://127.0.0.1:{free_port()}")
    sender.send(numbered(0))
    assert sender.close(flush=False) == 1


# -- servers and readers that die --------------------------------------------------------------

SERVE = """
import sys
import numpy as np
from tensorcom import Connection
def batches():
    number = int(sys.argv[2])
    while True:
        yield [np.full(100_000, number % 256, "u1"), np.array([number], "i4")]
        number += 1
with Connection(sys.argv[1]) as sender:
    print(sender.urls[0], flush=True)
    sender.serve(batches())
"""


@pytest.mark.parametrize("schemes", [("zrpush", "zrpull"), ("zpub", "zsub")])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_B08_a_server_that_dies_is_an_error_and_its_successor_is_read(
    connect, start, tmp_path, schemes, transport
) -> None:
    address = "127.0.0.1:0" if transport == "tcp" else f"{tmp_path}/b08"
    server = start(SERVE, f"{schemes[0]}+{transport}://{address}", 0)
    url = server.stdout.readline().strip()
    reader = connect(url.replace(*schemes))
    number_of(reader.recv())
    server.send_signal(signal.SIGKILL)
    server.wait()
    with pytest.raises(ReceiveTimeoutError) as caught:
        while True:
            number_of(reader.recv_message(timeout_s=0.3).arrays)
    assert reader.urls[0] in str(caught.value)
    assert "last message from" in str(caught.value)
    assert len(caught.value.last_seen) == 1
    start(SERVE, url, 10**6)
    assert number_of(reader.recv()) >= 10**6
    assert len(reader.stats.sources) == 2


INTERRUPTED = """
import sys, time
from tensorcom import Connection
with Connection(sys.argv[1], timeout_s=600) as reader:
    try:
        print("ready", flush=True)
        for batch in reader:
            pass
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)
"""


def test_B08_ctrl_c_ends_a_reader_whose_server_is_dead(start) -> None:
    delays = []
    for _ in range(3):  # the machine may be busy once
        child = start(INTERRUPTED, f"zrpull://127.0.0.1:{free_port()}")
        assert child.stdout.readline() == "ready\n"
        at = time.monotonic()
        child.send_signal(signal.SIGINT)
        delays.append(float(child.stdout.readline()) - at)
        assert child.wait(LONG_S) == 0
        if delays[-1] < 1:
            break
    assert min(delays) < 1


SLOW_READER = """
import sys, time
from tensorcom import Connection
for images, labels in Connection(sys.argv[1], timeout_s=60, hwm=2):
    print(int(labels[0]), flush=True)
    time.sleep(1)
"""


def test_B09_a_slow_reader_holds_little_and_takes_little_with_it(connect, start) -> None:
    sender = connect("zrpush://127.0.0.1:0", hwm=2)
    slow = start(SLOW_READER, reader_url(sender))
    fast = connect(reader_url(sender), hwm=2)
    assert sender.wait_for_peers(2)
    thread = serve_in_thread(sender, (numbered(i, 16 * MB) for i in range(40)), end="stream")
    received = []
    for arrays in fast:
        received.append(number_of(arrays))
        if len(received) == 25:
            slow.kill()
    thread.join()
    done = [int(line) for line in slow.stdout.read().split()]
    lost = set(range(40)) - set(received) - set(done)
    assert len(received) > len(done)
    # Its queue here and there, one on the wire, one in its hands.
    assert len(lost) <= 2 + 2 + 1 + 1
    assert len(received) + len(done) + len(lost) == 40


# -- addresses ---------------------------------------------------------------------------------


def test_B10_ipc_paths_that_cannot_be(tmp_path) -> None:
    with pytest.raises(ZmqUrlError, match="ipc path of 121 bytes exceeds the system's 107"):
        Connection("zpull+ipc:///" + "x" * 120)
    with pytest.raises(BindError) as caught:
        Connection(f"zpull+ipc://{tmp_path}/no/such/dir/x")
    assert f"folder '{tmp_path}/no/such/dir' of the ipc socket does not exist" in str(caught.value)


def test_B10_the_longest_ipc_path_works(connect, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = "x" * 107
    reader = connect(f"zpull+ipc://{path}")
    connect(f"zpush+ipc://{path}").send(numbered(1))
    assert number_of(reader.recv()) == 1


def test_B10_a_socket_file_is_left_by_a_kill_only_and_hinders_nobody(connect, start, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/a"
    server = start(SERVE, url, 0)
    server.stdout.readline()
    reader = connect(url.replace("zrpush", "zrpull"))
    number_of(reader.recv())
    server.kill()
    server.wait()
    assert (tmp_path / "a").is_socket()
    server = start(SERVE, url + "?linger_ms=100", 10**6)
    while number_of(reader.recv()) < 10**6:
        pass
    server.send_signal(signal.SIGINT)
    server.wait(LONG_S)
    assert not (tmp_path / "a").exists()


def test_B12_IPv6(connect) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    reader = connect("zpull://[::1]:0")
    assert reader.urls[0].startswith("zpull://[::1]:")
    connect(reader.urls[0].replace("zpull", "zpush")).send(numbered(1))
    assert number_of(reader.recv()) == 1
    with pytest.raises(ZmqUrlError, match=r"needs brackets: \[::1\]:7880"):
        Connection("zpush://::1:7880")


@pytest.mark.parametrize("name", ["A b#c?.sock", "Ünï", "a=b&c", "p%25q", "{x}"])
def test_B12_odd_ipc_paths(connect, tmp_path, name) -> None:
    reader = connect(f"zpull+ipc://{tmp_path}/{name}", noexpand=True)
    connect(f"zpush+ipc://{tmp_path}/{name}", noexpand=True).send(numbered(1))
    assert number_of(reader.recv()) == 1
    assert (tmp_path / name.replace("%25", "%")).is_socket()


def test_B12_brace_lists_of_ipc_paths(connect, tmp_path) -> None:
    reader = connect(f"zpull+ipc://{tmp_path}/A {{b,C}}#{{0..1}}?.sock")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"A {letter}#{digit}?.sock" for letter in "Cb" for digit in "01"
    ]
    sender = connect(f"zpush+ipc://{tmp_path}/A {{b,C}}#{{0..1}}?.sock")
    for number in range(4):
        sender.send(numbered(number))
    assert sorted(number_of(reader.recv()) for _ in range(4)) == [0, 1, 2, 3]
