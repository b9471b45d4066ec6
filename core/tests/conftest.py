"""What every test of core gets: connections and processes that end with it, no leaks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from transport_helpers import LONG_S, address_of

from tensorcom import Connection
from tensorcom.socket_options import SocketOptions
from tensorcom.testing import processes
from tensorcom.transport import Transport
from tensorcom.zmq_url import parse_url

LEAK_WAIT_S = 10.0
KINDS = ("socket:", "pipe:", "anon_inode:[event")

settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def wait_until(condition, timeout_s=30.0):
    """Wait until `condition()` is true; return what it returned, or fail."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.005)
    return value


def tracker_fd() -> int | None:
    return getattr(resource_tracker._resource_tracker, "_fd", None)


def is_tracker(pid: int) -> bool:
    """Tell whether `pid` is a process that multiprocessing keeps to the end."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    return "resource_tracker" in command or "forkserver" in command


def open_handles() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(KINDS) and int(fd) != tracker_fd():
            found.add(f"fd {fd} {target}")
    return found


def zmq_threads() -> set[str]:
    """Return the threads of ZeroMQ contexts, which Python does not know."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            name = Path(f"/proc/self/task/{task}/comm").read_text().strip()
        except OSError:
            continue
        if name.startswith("ZMQ"):
            found.add(f"{name} {task}")
    return found


def python_threads() -> set[str]:
    # pyzmq has one thread per process that lets go of the memory of sent messages.
    return {
        f"thread {thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if type(thread).__name__ != "GarbageCollectorThread"
    }


def child_processes() -> set[str]:
    return {
        f"process {pid}" for pid, _ in processes.descendants(os.getpid()) if not is_tracker(pid)
    }


def resources() -> set[str]:
    return open_handles() | zmq_threads() | python_threads() | child_processes()


@pytest.fixture(scope="session", autouse=True)
def lasting_sockets():
    """Open what lives as long as the process: pyzmq's thread, the context of inproc."""
    sender = Connection("zrpush+inproc://warm-up")
    reader = Connection("zrpull+inproc://warm-up")
    sender.send([np.zeros(4096, "u1")])
    reader.recv()
    sender.close()
    reader.close()
    wait_until(lambda: len(zmq_threads()) == 4)  # two contexts; threads get their names late


@pytest.fixture(autouse=True)
def no_leaks(lasting_sockets):
    """Fail a test that leaves a socket, pipe, context, thread or process behind."""
    before = resources()
    yield
    deadline = time.monotonic() + LEAK_WAIT_S
    gc.collect()
    while (left := resources() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"left behind: {sorted(left)}"


@pytest.fixture
def connect(no_leaks):
    """Return a function that makes Connections and closes them with the test."""
    made = []

    def make(url=None, epoch=None, **arguments):
        arguments.setdefault("timeout_s", 30)
        connection = Connection(url, epoch, **arguments)
        made.append(connection)
        return connection

    yield make
    for connection in made:
        connection.close(flush=False)


@pytest.fixture
def start(no_leaks, tmp_path):
    """Return a function that runs Python source in a process of its own, killed with the test."""
    started = []

    def run(source, *arguments, **options):
        script = tmp_path / f"peer{len(started)}.py"
        script.write_text(source)
        command = [sys.executable, "-u", str(script), *map(str, arguments)]
        options = {"stdout": subprocess.PIPE, "text": True, **options}
        process = subprocess.Popen(command, **options)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(name="wait_until")
def wait_until_fixture():
    """Return the function that polls for a condition."""
    return wait_until


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


@pytest.fixture
def connected(connect):
    """Return a function that makes a sender and a reader; arguments go by their prefix."""

    def make(**arguments):
        sending = {k[5:]: v for k, v in arguments.items() if k.startswith("send_")}
        reading = {k: v for k, v in arguments.items() if not k.startswith("send_")}
        reader = connect("zpull://127.0.0.1:0", **reading)
        sender = connect(reader.urls[0].replace("zpull", "zpush"), **sending)
        return sender, reader

    return make
