"""Sets of files in every kind of storage, for its tests."""

from __future__ import annotations

import json
import multiprocessing
import os
import uuid
from contextlib import contextmanager
from unittest import mock

import numpy as np

from tensorcom.pcr.storage import open_storage
from tensorcom.pcr.storage.base import RetryPolicy
from tensorcom.pcr.storage.http import HttpStorage
from tensorcom.testing.http_ranges import RangeServer

SIZE = 300_000
NAMES = ("PCR_0.pcr", "a b%20#?é.pcr", "empty.pcr")
S3_KEYS = {"key": "test", "secret": "test"}


def contents(seed: int = 0, size: int = SIZE) -> bytes:
    """Return bytes of which no two ranges are alike."""
    return np.random.default_rng(seed).bytes(size)


def files() -> dict[str, bytes]:
    return {NAMES[0]: contents(0), NAMES[1]: contents(1, 5000), NAMES[2]: b""}


def write(folder, found=None) -> None:
    for name, data in (found or files()).items():
        (folder / name).write_bytes(data)


@contextmanager
def local(tmp_path):
    write(tmp_path)
    yield str(tmp_path), {}


@contextmanager
def file_url(tmp_path):
    write(tmp_path)
    yield f"file://{tmp_path}", {}


@contextmanager
def http(tmp_path):
    folder = tmp_path / "a set"
    folder.mkdir()
    write(folder)
    with RangeServer(tmp_path) as server:
        yield f"{server.url}/a%20set/", {}


@contextmanager
def memory(tmp_path):
    import fsspec

    fs, folder = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    for name, data in files().items():
        fs.pipe_file(f"{folder}/{name}", data)
    yield f"memory:/{folder}", {}
    fs.rm(folder, recursive=True)


@contextmanager
def s3_server():
    """Serve S3 from a thread of this process; yield its URL."""
    from moto.server import ThreadedMotoServer

    # Whatever a machine has of its own for S3 stays out of it.
    environment = {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with mock.patch.dict(os.environ, environment):
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        try:
            yield "http://{}:{}".format(*server.get_host_and_port())
        finally:
            server.stop()


def put_s3(endpoint: str, bucket: str, folder: str, found: dict[str, bytes]) -> None:
    import boto3

    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.create_bucket(Bucket=bucket)
    for name, data in found.items():
        client.put_object(Bucket=bucket, Key=f"{folder}/{name}", Body=data)
    client.close()


KINDS = {"local": local, "file": file_url, "http": http, "memory": memory}


def open_http(url: str, *, retries: int = 3, timeout_s: float = 30.0, **options) -> HttpStorage:
    """Open a URL by HTTP, with pauses too short to wait for."""
    return HttpStorage(url, RetryPolicy(retries, timeout_s, backoff_s=0.001), options)


@contextmanager
def cache_opener(root, directory):
    """Yield a function that opens a set with a cache, as a new process would."""
    opened = []

    def make(**arguments):
        opened.append(open_storage(root, cache=directory, **arguments))
        return opened[-1]

    yield make
    for storage in opened:
        storage.close()


def entry(tmp_path):
    """Return the only folder of the cache in `tmp_path`."""
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    return folder


def state_of(tmp_path, name=NAMES[0]):
    return json.loads((entry(tmp_path) / ".state" / name).read_text())


def replace(path, data) -> None:
    """Replace a file as a writer of sets does; its time differs even on a fast machine."""
    before = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(before + 10**9, before + 10**9))


@contextmanager
def forked(target, *arguments):
    """Run `target(*arguments, connection)` in a forked child; yield it and our end.

    The child does not outlive a test that fails.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=target, args=(*arguments, there))
    child.start()
    there.close()
    try:
        yield child, here
    finally:
        child.kill()
        child.join()
        child.close()
        here.close()
