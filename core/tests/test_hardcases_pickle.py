"""X04: no pickle on any wire or in any file, and defaults that stay on the machine."""

from __future__ import annotations

import ast
import os
import pickle
from pathlib import Path

import pytest
import zmq
from pcr_helpers import make_set

import tensorcom
from tensorcom import (
    MessageError,
    ReceiveTimeoutError,
    TenbinError,
    TensorcomError,
    tenbin,
)
from tensorcom.cli import serve_common, serve_replay, stream
from tensorcom.pcr import PcrReader
from tensorcom.pcr.manifest import INDEX_NAME, MANIFEST_NAME, SAMPLES_NAME
from tensorcom.recording import read_recording
from tensorcom.zmq_url import parse_url

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
PACKAGE = Path(tensorcom.__file__).parent


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def canary(tmp_path):
    """Return the folder that must not appear; checked when the test is over."""
    path = tmp_path / "PWNED_BY_PICKLE"
    yield path
    assert not path.exists()


def test_X04_a_canary_is_one(tmp_path):
    pickle.loads(pickle.dumps(Canary(tmp_path / "made")))
    assert (tmp_path / "made").is_dir()


def wire_forms(data):
    return [[data], [data, data], [b"topic", data]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_X04_a_pickle_to_a_pulling_reader_is_a_typed_error(connect, canary, protocol):
    reader = connect("zpull://127.0.0.1:0")
    with zmq.Context() as context, context.socket(zmq.PUSH) as attacker:
        attacker.connect(f"tcp://{reader.urls[0].partition('://')[2]}")
        for frames in wire_forms(pickle.dumps(Canary(canary), protocol)):
            attacker.send_multipart(frames)
            with pytest.raises(MessageError):
                reader.recv()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_X04_a_pickle_to_a_subscriber_is_a_typed_error(connect, canary, protocol):
    with zmq.Context() as context, context.socket(zmq.PUB) as attacker:
        port = attacker.bind_to_random_port("tcp://127.0.0.1")
        reader = connect(f"zsub://127.0.0.1:{port}")
        for frames in wire_forms(pickle.dumps(Canary(canary), protocol)):
            while True:  # what is sent before the subscription arrives is lost
                attacker.send_multipart(frames)
                try:
                    reader.recv_message(timeout_s=0.05)
                except ReceiveTimeoutError:
                    continue
                except MessageError:
                    break
                pytest.fail("a pickle was taken for a message")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_X04_a_pickle_in_a_file_is_a_typed_error(canary, tmp_path, protocol):
    data = pickle.dumps(Canary(canary), protocol)
    path = tmp_path / "x.ten"
    path.write_bytes(data)
    for call in (
        lambda: tenbin.load(path),
        lambda: tenbin.load(path, mmap=True),
        lambda: tenbin.decode_buffer(data),
    ):
        with pytest.raises(TenbinError):
            call()
    with pytest.raises(TensorcomError):
        list(read_recording(path))
    made = make_set(tmp_path / "set")
    for name in (MANIFEST_NAME, SAMPLES_NAME, INDEX_NAME, "PCR_0.pcr"):
        kept = (made.root / name).read_bytes()
        (made.root / name).write_bytes(data)
        if name == INDEX_NAME:
            (made.root / MANIFEST_NAME).rename(tmp_path / "kept")
        with pytest.raises(TensorcomError):
            PcrReader(made.root).read_record(0)
        if name == INDEX_NAME:
            (tmp_path / "kept").rename(made.root / MANIFEST_NAME)
        (made.root / name).write_bytes(kept)
    assert PcrReader(made.root).read_record(0)[0] == made.record(0)


def _loads(path):
    """Return what a module takes from pickle that loads."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"):
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module in ("pickle", "marshal", "shelve"):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.add("allow_pickle")
    return found


def test_X04_nothing_in_the_package_unpickles():
    loading = {
        str(path.relative_to(PACKAGE)): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if (names := _loads(path) - {"dumps", "PicklingError"})
    }
    assert loading == {
        "pcr/sqlite_index.py": {"Unpickler"},  # calls nothing: see X01
        "serving/worker.py": {"loads"},  # from the process that started it, over its own pipe
    }


@pytest.mark.parametrize("module", [serve_common, serve_replay, stream])
def test_X04_default_addresses_are_on_this_machine(module):
    assert parse_url(module.DEFAULT_URL).address.rpartition(":")[0] == "127.0.0.1"
