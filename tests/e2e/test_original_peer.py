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

    def start(role: str, url: str, multipart: bool, *more: str) -> subprocess.Popen[str]:
        command = [original, str(PEER), role, url, str(int(multipart)), str(COUNT), *more]
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


def every_dtype() -> list[np.ndarray]:
    """Return an array of each dtype that the original can send, in layouts that it cannot."""
    bits = np.random.default_rng(0).integers(0, 256, (2, 3, 40), np.uint8)
    names = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u8")
    plain = [bits.view(name) for name in names]  # with NaNs and infinities among the floats
    nine = np.arange(512, dtype="i2").reshape((2,) * 9)
    return [*plain, nine, plain[1].transpose(2, 0, 1), plain[5].astype(">i4"), bits[:, ::-1]]


@pytest.mark.parametrize("multipart", [True, False], ids=["multipart", "single"])
def test_every_dtype_is_bit_equal_there_and_back(peer, tmp_path, multipart) -> None:
    there, back = f"ipc://{tmp_path}/there", f"ipc://{tmp_path}/back"
    sent = every_dtype()
    with Connection(f"zpull+{back}", timeout_s=30) as client:
        echo = peer("echo", f"zpull+{there}", multipart, f"zpush+{back}")
        assert echo.stdout.readline() == "ready\n"
        with Connection(f"zpush+{there}", multipart=multipart, allow64=True) as server:
            server.send(sent)
            got = client.recv()
    for array, expected in zip(got, sent, strict=True):
        assert array.dtype == expected.dtype.newbyteorder("=")
        assert array.shape == expected.shape
        assert array.tobytes() == expected.astype(array.dtype).tobytes()
        assert array.ctypes.data % 64 == 0
        assert array.flags.writeable


@pytest.mark.parametrize("multipart", [True, False], ids=["multipart", "single"])
def test_what_its_client_reads_has_a_meta_frame(peer, tmp_path, multipart) -> None:
    url = f"ipc://{tmp_path}/s"
    with Connection(f"zrpush+{url}", multipart=multipart) as server:
        with Connection(f"zrpull+{url}", timeout_s=30) as reader:
            server.send(batch(0))
            assert reader.recv_message().meta.seq == 0
        client = peer("receive", f"zrpull+{url}", multipart)
        assert client.stdout.readline() == "ready\n"
        for number in range(1, COUNT + 1):
            server.send(batch(number))
        assert [int(client.stdout.readline()) for _ in range(COUNT)] == list(range(1, COUNT + 1))
