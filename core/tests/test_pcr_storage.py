"""Storage: what holds wherever the set is."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import pytest
from storage_helpers import KINDS, NAMES, S3_KEYS, SIZE, files, forked, put_s3, s3_server

from tensorcom.errors import (
    MissingDependencyError,
    PcrError,
    PcrFormatError,
    PcrIndexError,
    PcrReadError,
)
from tensorcom.pcr.storage import PcrEndError, open_storage

ALL_KINDS = (*KINDS, "s3")


@pytest.fixture(scope="module", autouse=True)
def s3_place():
    """Root and arguments of the set in a server of S3."""
    with s3_server() as endpoint:
        put_s3(endpoint, "bucket", "a/set", files())
        yield "s3://bucket/a/set", {"storage_options": {**S3_KEYS, "endpoint_url": endpoint}}


@pytest.fixture(params=[*ALL_KINDS, *(f"cached {kind}" for kind in ALL_KINDS)])
def place(request, tmp_path):
    """Root of the set in some storage, and arguments to open it with."""
    kind = request.param.removeprefix("cached ")
    more = {} if kind == request.param else {"cache": tmp_path / "cache"}
    if kind == "s3":
        root, arguments = request.getfixturevalue("s3_place")
        yield root, {**arguments, **more}
        return
    folder = tmp_path / "set"
    folder.mkdir()
    with KINDS[kind](folder) as (root, arguments):
        yield root, {**arguments, **more}


@pytest.fixture
def storage(place):
    root, arguments = place
    opened = open_storage(root, **arguments)
    yield opened
    opened.close()


RANGES = ((0, 0), (0, 1), (0, 3000), (17, 4017), (0, 5000), (4999, 5000), (5000, 5000))


def test_any_range_of_any_file(storage):
    for name, data in files().items():
        for start, stop in RANGES:
            if stop <= len(data):
                assert storage.read(name, start, stop - start) == data[start:stop]


def test_a_whole_file(storage):
    for name, data in files().items():
        assert storage.size(name) == len(data)
        assert storage.exists(name)
        found = storage.read_all(name, SIZE)
        assert isinstance(found, bytes)
        assert found == data
    with pytest.raises(PcrFormatError, match="300000 bytes exceed the limit of 299999"):
        storage.read_all(NAMES[0], SIZE - 1)


def test_memory_of_two_reads_is_not_shared(storage):
    first, second = (storage.read(NAMES[0], 0, 1000) for _ in range(2))
    assert first.format == "B"
    assert first.contiguous
    if not first.readonly:
        first[:] = bytes(1000)
    assert second == files()[NAMES[0]][:1000]


def test_a_read_beyond_the_end_names_the_size(storage):
    for start, size in [(0, SIZE + 1), (SIZE - 1, 2), (SIZE, 1), (SIZE + 99, 7)]:
        text = f"has only {SIZE} bytes.*up to {start + size}"
        with pytest.raises(PcrEndError, match=text) as caught:
            storage.read(NAMES[0], start, size)
        assert isinstance(caught.value, PcrReadError)
        assert caught.value.offset == SIZE
        assert caught.value.path.endswith(NAMES[0])
    assert storage.read(NAMES[0], 0, SIZE) == files()[NAMES[0]]


def test_ranges_that_no_file_has(storage):
    for start, size in [(-1, 5), (0, -1), (2**63, 1), (1, 2**63)]:
        with pytest.raises(PcrFormatError, match="no file has"):
            storage.read(NAMES[0], start, size)


def test_a_hostile_size_takes_no_memory(storage):
    with pytest.raises(PcrEndError):
        storage.read(NAMES[0], 0, 2**60)


def test_a_missing_file(storage):
    assert not storage.exists("PCR_9.pcr")
    for method, arguments in (("read", (0, 5)), ("size", ()), ("read_all", (99,))):
        with pytest.raises(PcrIndexError, match="no such file") as caught:
            getattr(storage, method)("PCR_9.pcr", *arguments)
        assert caught.value.path.endswith("/PCR_9.pcr")


def test_x03_names_that_leave_the_set(storage):
    calls = {"read": (0, 5), "size": (), "read_all": (99,), "exists": (), "local_path": ()}
    for name in ("../x", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "a\0b"):
        for method, arguments in calls.items():
            with pytest.raises(PcrFormatError) as caught:
                getattr(storage, method)(name, *arguments)
            assert repr(name) in str(caught.value)


def test_only_a_directory_has_local_paths(storage, place):
    path = storage.local_path(NAMES[1])
    if "file:" in place[0] or "://" not in place[0]:
        assert path.read_bytes() == files()[NAMES[1]]
        assert storage.is_local
    else:
        assert path is None
        assert not storage.is_local


def test_pickles_by_configuration(storage):
    storage.read(NAMES[0], 0, 10)
    other = pickle.loads(pickle.dumps(storage))
    assert other.root == storage.root
    assert other.read(NAMES[0], 5, 100) == files()[NAMES[0]][5:105]
    other.close()


def test_reads_after_close(storage):
    for _ in range(2):
        assert storage.read(NAMES[0], 0, 100) == files()[NAMES[0]][:100]
        storage.close()
        storage.close()


def test_threads_share_a_storage(storage):
    data, wrong = files()[NAMES[0]], []

    def read(number):
        starts = range(number, 40_000, 1999)
        wrong.extend(s for s in starts if storage.read(NAMES[0], s, 2000) != data[s : s + 2000])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _read_in_child(storage, connection):
    try:
        found = [bytes(storage.read(name, 0, len(data))) for name, data in files().items()]
        storage.close()
        connection.send(found)
    except PcrError as error:
        connection.send(error)


def test_a_forked_child_reads_while_the_parent_goes_on(storage):
    data = files()[NAMES[0]]
    assert storage.read(NAMES[0], 0, 100) == data[:100]  # connections and threads are there now
    with forked(_read_in_child, storage) as first, forked(_read_in_child, storage) as second:
        for start in range(0, 100_000, 20_000):
            assert storage.read(NAMES[0], start, 20_000) == data[start : start + 20_000]
        for child, here in (first, second):
            assert here.recv() == list(files().values())
            child.join()
            assert child.exitcode == 0
    assert storage.read(NAMES[0], 0, 200_000) == data[:200_000]


CHILD = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    storage = pickle.load(file)
sys.stdout.buffer.write(storage.read(sys.argv[2], 7, 1000))
storage.close()
"""


@pytest.mark.parametrize("place", ["local", "http", "s3", "cached http"], indirect=True)
def test_another_process_reads_by_a_pickle(storage, tmp_path):
    (tmp_path / "storage.pickle").write_bytes(pickle.dumps(storage))
    command = [sys.executable, "-W", "error", "-c", CHILD, tmp_path / "storage.pickle", NAMES[0]]
    found = subprocess.run(command, capture_output=True, check=True)
    assert found.stdout == files()[NAMES[0]][7:1007]
    assert found.stderr == b""


def test_options_are_checked(tmp_path):
    with pytest.raises(ValueError, match="retries is -1"):
        open_storage(tmp_path, retries=-1)
    with pytest.raises(ValueError, match="timeout_s is 0"):
        open_storage(tmp_path, timeout_s=0)
    with pytest.raises(ValueError, match="cache_bytes is -1"):
        open_storage(tmp_path, cache=tmp_path, cache_bytes=-1)
    with pytest.raises(TypeError, match="no storage_options.*anon"):
        open_storage(tmp_path, storage_options={"anon": True})
    for root in (3, None, b"set", ["set"]):
        with pytest.raises(TypeError, match="expected a path, a URL or a storage"):
            open_storage(root)
    with pytest.raises(TypeError, match="http storage takes headers.*unknown.*anon"):
        open_storage("http://127.0.0.1/", storage_options={"anon": True})


def test_an_unknown_scheme():
    with pytest.raises(PcrIndexError, match="knows no nonsense:// URLs"):
        open_storage("nonsense://x/y")


@pytest.mark.parametrize(
    ("module", "url", "package", "command"),
    [
        ("urllib3", "https://x/y", "urllib3", "pip install 'tensorcom[remote]'"),
        ("fsspec", "memory://x", "fsspec", "pip install 'tensorcom[remote]'"),
        ("s3fs", "s3://x/y", "s3fs", "pip install 'tensorcom[s3]'"),
        ("gcsfs", "gs://x/y", "gcsfs", "pip install gcsfs"),
    ],
)
def test_missing_packages_say_how_to_get_them(module, url, package, command):
    # A process of its own: modules that are loaded cannot be taken away safely.
    code = f"""
import sys
sys.modules[{module!r}] = None
from tensorcom.errors import MissingDependencyError
from tensorcom.pcr.storage import open_storage
try:
    open_storage({url!r})
except MissingDependencyError as error:
    print(error.package, error.install_command, sep="|")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"{package}|{command}"
    assert issubclass(MissingDependencyError, ImportError)
