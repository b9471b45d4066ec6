"""The original program talks to this one: its client to our server, its server to our client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorcom import Connection

PEER = Path(__file__).with_name("original_peer.py")
SCHEMES = [("zpush", "zpull"), ("zrpush", "zrpull"), ("zpub", "zsub"), ("zrpub", "zrsub")]
COUNT = 12


@pytest.fixture(scope="session")
def original(tmp_path_factory) -> str:
    """Return the interpreter of a venv with tensorcom 0.1.0."""
    if given := os.environ.get("TENSORCOM_ORIGINAL_PYTHON"):
        return given
    venv = tmp_path_factory.mktemp("original") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = str(venv / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "numpy", "pyzmq", "braceexpand"], check=True)
    subprocess.run([*pip, "--no-deps", "tensorcom==0.1.0"], check=True)
    return python


@pytest.fixture
def peer(original):
    """Return a function that starts the original program; it ends with the test."""
    started = []

    def start(role: str, url: str, multipart: bool) -> subprocess.Popen[str]:
        command = [original, str(PEER), role, url, str(int(multipart)), str(COUNT)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def addresses(ours: str, theirs: str, tmp_path, transport: str) -> tuple[str, str]:
    """Return a URL for each side; a port is bound and freed, since the original cannot pick one."""
    if transport == "ipc":
        return f"{ours}+ipc://{tmp_path}/s", f"{theirs}+ipc://{tmp_path}/s"
    with Connection("zpull://127.0.0.1:0") as free:
        address = free.urls[0].partition("://")[2]
    return f"{ours}://{address}", f"{theirs}://{address}"


def batch(number: int) -> list[np.ndarray]:
    return [np.full((4, 8, 8, 3), number, "uint8"), np.arange(4, dtype="int32") + number]


@pytest.mark.parametrize("multipart", [True, False], ids=["multipart", "single"])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@pytest.mark.parametrize(("ours", "theirs"), SCHEMES)
def test_its_client_reads_our_server(peer, tmp_path, ours, theirs, transport, multipart) -> None:
    our_url, their_url = addresses(ours, theirs, tmp_path, transport)
    # A client that connects needs the server first, and a server that connects the client.
    server = Connection(our_url, multipart=multipart, lazy=True)
    if ours in ("zpub", "zrpush"):
        server.open()
    client = peer("receive", their_url, multipart)
    assert client.stdout.readline() == "ready\n"
    with server:
        assert server.wait_for_peers(1, timeout_s=30)
        for number in range(COUNT):
            server.send(batch(number))
        found = [int(client.stdout.readline()) for _ in range(COUNT)]
    assert found == list(range(COUNT))
    assert client.wait(30) == 0


@pytest.mark.parametrize("multipart", [True, False], ids=["multipart", "single"])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@pytest.mark.parametrize(("theirs", "ours"), SCHEMES)
def test_our_client_reads_its_server(peer, tmp_path, ours, theirs, transport, multipart) -> None:
    our_url, their_url = addresses(ours, theirs, tmp_path, transport)
    with Connection(our_url, epoch=COUNT, timeout_s=30) as client:
        peer("send", their_url, multipart)
        found = [(images.copy(), int(labels[0])) for images, labels in client]
    numbers = [number for _, number in found]
    assert numbers == list(range(numbers[0], numbers[0] + COUNT))
    for images, number in found:
        assert (images == number).all()
