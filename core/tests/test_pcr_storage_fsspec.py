"""Storage by fsspec: short answers, failures, time, sessions; S3 as it goes over the wire."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import subprocess
import sys
import threading
import time

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from storage_helpers import S3_KEYS, contents, put_s3, s3_server

from tensorcom.errors import PcrIndexError, PcrReadError
from tensorcom.pcr.storage import PcrEndError, open_storage
from tensorcom.pcr.storage.base import RetryPolicy
from tensorcom.pcr.storage.remote import FsspecStorage
from tensorcom.testing.http_ranges import Fault, RangeServer

NAME = "PCR_0.pcr"
SIZE = 1_000_000
DATA = contents(7, SIZE)


class Scripted(MemoryFileSystem):
    """Memory whose answers a test decides on."""

    protocol = "scripted"
    calls: list = []
    answers: list = []

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("scripted://", "memory://"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        self.calls.append((start, end))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        data = super().cat_file(path, start=start, end=end, **kwargs)
        return data if answer is None else answer(data)


class Slow(AsyncFileSystem):
    """A file system of coroutines, some of which never end."""

    protocol = "slow"
    stuck = 0

    async def _cat_file(self, path, start=None, end=None, **kwargs):
        if type(self).stuck:
            type(self).stuck -= 1
            await asyncio.Event().wait()
        return DATA[start:end]

    async def _info(self, path, **kwargs):
        return {"size": SIZE, "type": "file"}


@pytest.fixture(autouse=True, scope="module")
def protocols():
    for kind in (Scripted, Slow):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    fsspec.filesystem("memory").pipe_file(f"/set/{NAME}", DATA)
    fsspec.filesystem("memory").pipe_file("/set/folder/x", b"x")
    yield
    fsspec.filesystem("memory").rm("/set", recursive=True)


def scripted(*answers, retries=3):
    Scripted.calls, Scripted.answers = [], list(answers)
    return FsspecStorage("scripted://set", RetryPolicy(retries, 30.0, backoff_s=0.001), {})


def slow(timeout_s, retries=0):
    return FsspecStorage("slow://set", RetryPolicy(retries, timeout_s, backoff_s=0.001), {})


def test_a_prefix_is_one_call_for_exactly_its_bytes():
    assert scripted().read(NAME, 0, 700) == DATA[:700]
    assert Scripted.calls == [(0, 700)]


def test_a_short_answer_is_completed_from_the_byte_reached():
    answers = lambda d: d[:300], lambda d: b"", OSError("reset"), lambda d: d[:100]
    storage = scripted(*answers, retries=4)
    assert storage.read(NAME, 0, 1000) == DATA[:1000]
    assert Scripted.calls == [(0, 1000), (300, 1000), (300, 1000), (300, 1000), (400, 1000)]


def test_failures_end_with_byte_attempts_and_cause():
    storage = scripted(lambda d: d[:300], *[OSError("connection reset")] * 3)
    with pytest.raises(PcrReadError) as caught:
        storage.read(NAME, 50, 1000)
    assert str(caught.value) == (
        f"scripted://set/{NAME} at byte 350: got 300 of 1000 bytes after 4 attempts: "
        "OSError: connection reset"
    )
    assert not isinstance(caught.value, PcrEndError)
    assert isinstance(caught.value.__cause__.__cause__, OSError)


def test_a_range_beyond_the_end_that_storage_calls_an_error():
    storage = scripted(OSError("invalid range"))
    with pytest.raises(PcrEndError, match=f"only {SIZE} bytes"):
        storage.read(NAME, SIZE + 5, 10)
    assert len(Scripted.calls) == 1


def test_more_bytes_than_asked_for():
    with pytest.raises(PcrReadError, match="gives 11 bytes, expected 10"):
        scripted(lambda d: d + b"x").read(NAME, 0, 10)


@pytest.mark.parametrize("error", [PermissionError("no"), NotImplementedError("no ranges")])
def test_failures_that_do_not_pass(error):
    with pytest.raises(PcrReadError, match=f"{type(error).__name__}: no"):
        scripted(error).read(NAME, 0, 10)
    assert len(Scripted.calls) == 1


def test_a_directory_is_no_file():
    storage = scripted()
    assert not storage.exists("folder")
    with pytest.raises(PcrIndexError, match="is a directory"):
        storage.size("folder")


def test_what_never_answers_is_given_up():
    Slow.stuck = 2
    storage = slow(timeout_s=0.05, retries=1)
    with pytest.raises(PcrReadError, match="after 2 attempts: no answer within 0.05 s"):
        storage.read(NAME, 0, 10)
    Slow.stuck = 0
    assert slow(timeout_s=30.0).read(NAME, 0, 10) == DATA[:10]
    storage.close()


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "tensorcom-storage"]


def test_close_ends_the_thread_even_if_something_is_stuck():
    Slow.stuck = 1
    storage = slow(timeout_s=60.0)
    errors = []

    def read():
        try:
            storage.read(NAME, 0, 10)
        except PcrReadError as error:
            errors.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    while not threads():
        time.sleep(0.001)
    while Slow.stuck:
        time.sleep(0.001)
    storage.close()
    reader.join()
    assert threads() == []
    assert errors[0].endswith("the storage was closed meanwhile")


def test_a_storage_that_is_forgotten_ends_its_thread():
    storage = slow(timeout_s=30.0)
    storage.read(NAME, 0, 10)
    assert len(threads()) == 1
    del storage
    gc.collect()
    assert threads() == []


@pytest.fixture(scope="module")
def s3_endpoint():
    with s3_server() as endpoint:
        put_s3(endpoint, "bucket", "set", {NAME: DATA})
        yield endpoint


@pytest.fixture
def wire(s3_endpoint, caplog):
    """Return the requests that the server of S3 noted: method, path and status."""
    caplog.set_level(logging.INFO, logger="werkzeug")
    caplog.clear()

    def requests():
        lines = [r.getMessage() for r in caplog.records if r.name == "werkzeug"]
        plain = [re.sub(r"\x1b\[\d+m", "", line) for line in lines]
        return [tuple(re.search(r'"(\w+) (\S+) HTTP/1.1" (\d+)', line).groups()) for line in plain]

    return requests


def open_s3(endpoint, **arguments):
    return open_storage(
        "s3://bucket/set", storage_options={**S3_KEYS, "endpoint_url": endpoint}, **arguments
    )


def test_s3_needs_one_get(s3_endpoint, wire):
    storage = open_s3(s3_endpoint)
    assert storage.read(NAME, 0, 500_000) == DATA[:500_000]
    assert wire() == [("GET", f"/bucket/set/{NAME}", "206")]
    storage.close()


def test_s3_without_bucket_or_right(s3_endpoint):
    storage = open_storage(
        "s3://nothing/set", storage_options={**S3_KEYS, "endpoint_url": s3_endpoint}
    )
    assert not storage.exists(NAME)
    with pytest.raises(PcrIndexError, match="s3://nothing/set/PCR_0.pcr: no such file"):
        storage.read(NAME, 0, 10)
    storage.close()


@pytest.fixture
def s3_like(tmp_path):
    """A server of which every byte is counted, that answers S3's GET as S3 does."""
    (tmp_path / "bucket" / "set").mkdir(parents=True)
    (tmp_path / "bucket" / "set" / NAME).write_bytes(DATA)
    with RangeServer(tmp_path) as server:
        options = {"anon": True, "endpoint_url": server.url}
        storage = open_storage("s3://bucket/set", storage_options=options)
        yield server, storage
        storage.close()


def test_s3_asks_for_exactly_the_prefix(s3_like):
    server, storage = s3_like
    assert storage.read(NAME, 0, 400_000) == DATA[:400_000]
    assert storage.read(NAME, 400_000, 7) == DATA[400_000:400_007]
    assert server.gets() == ["bytes=0-399999", "bytes=400000-400006"]
    assert server.sent_bytes == 400_007


def test_s3_short_answers_and_ends(s3_like):
    server, storage = s3_like
    server.misbehave(Fault(short_by=100_000))
    assert storage.read(NAME, 0, 400_000) == DATA[:400_000]
    assert server.gets() == ["bytes=0-399999", "bytes=300000-399999"]
    with pytest.raises(PcrEndError, match=f"only {SIZE} bytes"):
        storage.read(NAME, SIZE - 5, 10)


FORK = f"""
import os, sys
from tensorcom.pcr.storage import open_storage
options = {{"key": "test", "secret": "test", "endpoint_url": sys.argv[1]}}
storage = open_storage("s3://bucket/set", storage_options=options)
first = bytes(storage.read("{NAME}", 0, 1000))
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        assert storage.read("{NAME}", 0, 1000) == first
        sys.exit()  # the whole way out: finalizers and all
    children.append(child)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.read("{NAME}", 0, 1000) == first
storage.close()
print("done")
"""


def test_children_that_exit_leave_the_parents_connections_alone(s3_endpoint):
    command = [sys.executable, "-c", FORK, s3_endpoint]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (found.stdout, found.stderr) == ("done\n", "")
