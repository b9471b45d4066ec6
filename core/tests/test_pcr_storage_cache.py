"""The cache: what it asks for, when it believes what it has, no room, clearing."""

from __future__ import annotations

import errno
import json
import os
import pickle
import uuid
import warnings
from unittest import mock

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from storage_helpers import cache_opener, contents, entry, replace, state_of

from tensorcom.errors import PcrIndexError, PcrReadError
from tensorcom.pcr.storage import PcrEndError, clear_cache, open_storage
from tensorcom.pcr.storage.cache_files import used_bytes
from tensorcom.testing.http_ranges import Fault, RangeServer

NAME = "PCR_0.pcr"
SIZE = 1_000_000
DATA = contents(9, SIZE)
OTHER = contents(10, SIZE)


@pytest.fixture
def origin(tmp_path):
    folder = tmp_path / "origin"
    folder.mkdir()
    (folder / NAME).write_bytes(DATA)
    (folder / "second").write_bytes(OTHER)
    return folder


@pytest.fixture
def server(origin):
    with RangeServer(origin) as started:
        yield started


@pytest.fixture
def open_cached(server, tmp_path):
    """Return a function that opens the server's set with a cache, as a new process would."""
    with cache_opener(server.url, tmp_path / "cache") as make:
        yield make


def methods(server):
    return [request.method for request in server.requests]


# -- what is asked for -----------------------------------------------------------------------------


def test_growth_fetches_only_the_suffix(server, open_cached, tmp_path):
    storage = open_cached()
    for stop in (1000, 400_000, 400_000, 200, 900_000):
        assert storage.read(NAME, 0, stop) == DATA[:stop]
    assert server.gets() == ["bytes=0-999", "bytes=1000-399999", "bytes=400000-899999"]
    assert methods(server) == ["GET"] * 3
    assert server.sent_bytes == 900_000
    assert (entry(tmp_path) / NAME).read_bytes() == DATA[:900_000]


def test_what_another_process_cached_is_asked_about_once(server, open_cached):
    open_cached().read(NAME, 0, 500_000)
    server.requests.clear()
    storage = open_cached()
    for start, size in ((0, 500_000), (0, 1000), (499_000, 1000)):
        assert storage.read(NAME, start, size) == DATA[start : start + size]
    assert methods(server) == ["HEAD"]
    assert server.sent_bytes == 0


def test_growth_of_what_another_process_cached_needs_no_question(server, open_cached):
    open_cached().read(NAME, 0, 500_000)
    server.requests.clear()
    storage = open_cached()
    assert storage.read(NAME, 0, 600_000) == DATA[:600_000]
    assert storage.read(NAME, 0, 600_000) == DATA[:600_000]
    assert methods(server) == ["GET"]
    assert server.gets() == ["bytes=500000-599999"]


def test_reads_that_start_in_the_cache_extend_it_and_others_pass_through(server, open_cached):
    storage = open_cached()
    assert storage.read(NAME, 500_000, 100) == DATA[500_000:500_100]  # nothing before it is there
    assert storage.read(NAME, 0, 1000) == DATA[:1000]
    assert storage.read(NAME, 700, 500) == DATA[700:1200]
    assert storage.read(NAME, 1200, 300) == DATA[1200:1500]
    assert storage.read(NAME, 1501, 9) == DATA[1501:1510]
    assert storage.read(NAME, 3, 1490) == DATA[3:1493]
    assert server.gets() == [
        "bytes=500000-500099", "bytes=0-999", "bytes=1000-1199", "bytes=1200-1499",
        "bytes=1501-1509",
    ]  # fmt: skip


def test_files_and_sets_are_apart(server, open_cached, origin, tmp_path):
    (origin / "inner").mkdir()
    (origin / "inner" / NAME).write_bytes(OTHER[::-1])
    assert open_cached().read(NAME, 0, 100) == DATA[:100]
    assert open_cached().read("second", 0, 100) == OTHER[:100]
    inner = open_storage(f"{server.url}/inner", cache=tmp_path / "cache")
    assert inner.read(NAME, 0, 100) == OTHER[::-1][:100]
    inner.close()
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_names_that_the_cache_uses_itself_are_not_kept(server, open_cached, origin, tmp_path):
    (origin / ".state").write_bytes(b"of the set")
    storage = open_cached()
    assert storage.read(".state", 0, 6) == b"of the"
    assert not (tmp_path / "cache").exists()


def test_a_retry_under_a_cache_asks_for_the_rest(server, open_cached):
    storage = open_cached()
    storage.read(NAME, 0, 1000)
    server.misbehave(Fault(cut_after=5000))
    assert storage.read(NAME, 0, 100_000) == DATA[:100_000]
    assert server.gets()[1:] == ["bytes=1000-99999", "bytes=6000-99999"]


def test_a_failed_read_leaves_the_cache_as_it_was(server, open_cached, tmp_path):
    storage = open_cached(retries=0)
    storage.read(NAME, 0, 1000)
    server.misbehave(Fault(cut_after=5000))
    with pytest.raises(PcrReadError):
        storage.read(NAME, 0, 100_000)
    assert state_of(tmp_path)["length"] == 1000
    with pytest.raises(PcrEndError, match=f"only {SIZE} bytes"):
        storage.read(NAME, 0, SIZE + 1)
    assert storage.read(NAME, 0, 2000) == DATA[:2000]


def test_whole_files_and_sizes(server, open_cached):
    storage = open_cached()
    assert storage.read_all(NAME, SIZE) == DATA
    assert storage.size(NAME) == SIZE
    assert storage.exists(NAME)
    assert storage.read_all(NAME, SIZE) == DATA
    assert methods(server) == ["HEAD", "GET"]


# -- when it is believed ---------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1000, 5000, 600_000])
def test_a_set_that_changed_is_read_anew(server, open_cached, origin, stop):
    open_cached().read(NAME, 0, 5000)
    replace(origin / NAME, OTHER)
    storage = open_cached()
    for _ in range(2):
        assert storage.read(NAME, 0, stop) == OTHER[:stop]
    again = open_cached()
    assert again.read(NAME, 0, stop) == OTHER[:stop]


def test_a_read_from_the_middle_of_a_set_that_changed(server, open_cached, origin, tmp_path):
    open_cached().read(NAME, 0, 5000)
    replace(origin / NAME, OTHER)
    assert open_cached().read(NAME, 4000, 2000) == OTHER[4000:6000]
    storage = open_cached()
    assert storage.read(NAME, 0, 5000) == OTHER[:5000]
    replace(origin / NAME, DATA)
    storage = open_cached()
    assert storage.size(NAME) == SIZE
    assert storage.read(NAME, 4000, 2000) == DATA[4000:6000]
    assert server.gets()[-1] == "bytes=4000-5999"


def test_without_etags_the_size_decides(origin, tmp_path):
    with RangeServer(origin, etags=False) as server:
        storage = open_storage(server.url, cache=tmp_path / "cache")
        storage.read(NAME, 0, 5000)
        storage.close()
        replace(origin / NAME, OTHER[:-1])
        storage = open_storage(server.url, cache=tmp_path / "cache")
        assert storage.read(NAME, 0, 5000) == OTHER[:5000]
        storage.close()


def test_two_processes_that_know_different_versions_agree(server, open_cached, origin):
    old, new = open_cached(), open_cached()
    old.read(NAME, 0, 1000)
    replace(origin / NAME, OTHER)
    assert new.read(NAME, 0, 2000) == OTHER[:2000]
    assert old.read(NAME, 0, 3000) == OTHER[:3000]
    assert new.read(NAME, 0, 3000) == OTHER[:3000]
    assert server.gets()[-1] == "bytes=2000-2999"  # what the other one had read was kept


def test_a_file_that_is_gone_is_not_served_from_the_cache(open_cached, origin):
    open_cached().read(NAME, 0, 1000)
    (origin / NAME).unlink()
    with pytest.raises(PcrIndexError, match="no such file"):
        open_cached().read(NAME, 0, 1000)


def test_a_reader_keeps_the_version_that_it_opened(tmp_path, open_cached, origin):
    open_cached().read(NAME, 0, 5000)
    folder = entry(tmp_path)
    with (folder / NAME).open("rb") as held:
        replace(origin / NAME, OTHER)
        assert open_cached().read(NAME, 0, 5000) == OTHER[:5000]
        assert held.read() == DATA[:5000]


def test_storage_that_tells_versions_apart_from_bytes(tmp_path):
    fs, folder = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    fs.pipe_file(f"{folder}/{NAME}", DATA)
    with cache_opener(f"memory:/{folder}", tmp_path / "cache") as make:
        storage = make()
        change, cat_file = iter([True]), MemoryFileSystem.cat_file

        def changed_before(self, path, **arguments):
            if next(change, False):
                fs.pipe_file(f"{folder}/{NAME}", OTHER)
            return cat_file(self, path, **arguments)

        with mock.patch.object(MemoryFileSystem, "cat_file", changed_before):
            assert storage.read(NAME, 0, 1000) == OTHER[:1000]
        # The bytes are newer than the version they were noted with: never the other way round.
        assert state_of(tmp_path)["tag"] != str(fs.info(f"{folder}/{NAME}")["created"])
        assert make().read(NAME, 0, 2000) == OTHER[:2000]
        fs.pipe_file(f"{folder}/{NAME}", DATA)
        assert make().read(NAME, 0, 3000) == DATA[:3000]
    fs.rm(folder, recursive=True)


# -- no room ---------------------------------------------------------------------------------------


def test_a_full_disk_is_said_once_and_reading_goes_on(server, open_cached, tmp_path, monkeypatch):
    storage = open_cached()
    storage.read(NAME, 0, 1000)
    pwrite = os.pwrite

    def full(file, data, at):
        if at + len(data) > 4096:
            if at < 4096:
                return pwrite(file, bytes(data)[: 4096 - at], at)
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(file, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.warns(RuntimeWarning, match="No space left on device; reading goes on") as caught:
        assert storage.read(NAME, 0, 50_000) == DATA[:50_000]
    assert len(caught) == 1
    assert server.gets() == ["bytes=0-999", "bytes=1000-49999"]  # what came was used
    assert (entry(tmp_path) / NAME).stat().st_size == 1000  # and what was taken given back
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert storage.read(NAME, 0, 60_000) == DATA[:60_000]
        assert storage.read("second", 0, 60_000) == OTHER[:60_000]
        assert storage.read(NAME, 0, 500) == DATA[:500]
    assert server.gets()[2:] == ["bytes=0-59999"] * 2  # and the cache is still read


def test_a_directory_that_cannot_be_made(server, tmp_path):
    (tmp_path / "cache").write_bytes(b"a file")
    storage = open_storage(server.url, cache=tmp_path / "cache")
    with pytest.warns(RuntimeWarning, match="reading goes on"):
        assert storage.read(NAME, 0, 1000) == DATA[:1000]
    assert storage.read(NAME, 0, 2000) == DATA[:2000]
    storage.close()


def test_a_data_file_that_cannot_be_read(server, open_cached, tmp_path, monkeypatch):
    open_cached().read(NAME, 0, 1000)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    storage = open_cached()
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.warns(RuntimeWarning, match="Input/output error"):
        assert storage.read(NAME, 0, 1000) == DATA[:1000]


def test_a_limit_stops_growth_and_deletes_nothing(server, open_cached, tmp_path):
    storage = open_cached(cache_bytes=100_000)
    assert storage.read(NAME, 0, 60_000) == DATA[:60_000]
    for _ in range(2):
        assert storage.read("second", 0, 60_000) == OTHER[:60_000]  # would be too much
    assert storage.read("second", 0, 40_000) == OTHER[:40_000]
    assert storage.read(NAME, 0, 60_001) == DATA[:60_001]
    assert server.gets() == [
        "bytes=0-59999", "bytes=0-59999", "bytes=0-59999", "bytes=0-39999", "bytes=0-60000"
    ]  # fmt: skip
    assert used_bytes(tmp_path / "cache") == 100_000
    server.requests.clear()
    other = open_cached(cache_bytes=100_000)  # counts what is there
    assert other.read("second", 0, 40_001) == OTHER[:40_001]
    assert other.read(NAME, 0, 60_000) == DATA[:60_000]
    assert methods(server) == ["GET", "HEAD"]
    assert used_bytes(tmp_path / "cache") == 100_000


def test_a_limit_counts_what_others_add(server, open_cached):
    storage, other = open_cached(cache_bytes=100_000), open_cached()
    storage.read(NAME, 0, 1000)
    other.read("second", 0, 90_000)
    storage.read(NAME, 0, 2000)
    storage.read(NAME, 0, 3000)
    assert server.gets()[-1] == "bytes=2000-2999"
    assert storage.read(NAME, 0, 20_000) == DATA[:20_000]
    assert server.gets()[-1] == "bytes=0-19999"


# -- clearing --------------------------------------------------------------------------------------


def test_clearing_removes_what_the_cache_made_and_nothing_else(server, open_cached, tmp_path):
    storage = open_cached()
    storage.read(NAME, 0, 5000)
    storage.read("second", 0, 700)
    cache, folder = tmp_path / "cache", entry(tmp_path)
    kept = [cache / "mine", folder / "mine too", folder / ".state" / "x" / "deep",
            cache / "other" / NAME, cache / "fake" / ".cache.json"]  # fmt: skip
    (folder / ".state" / "x").mkdir()
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"keep")
    foreign = cache / "foreign" / ".cache.json"
    foreign.parent.mkdir()
    foreign.write_text('{"format": "of another program"}')
    assert clear_cache(cache) == 5700
    assert all(path.read_bytes() == b"keep" for path in kept)
    found = sorted(path for path in cache.rglob("*") if path.is_file())
    assert found == sorted([*kept, foreign, folder / ".cache.json"])
    assert clear_cache(cache) == 0
    assert storage.read(NAME, 0, 5000) == DATA[:5000]  # an open storage begins anew
    assert state_of_folder(folder)["length"] == 5000


def state_of_folder(folder):
    return json.loads((folder / ".state" / NAME).read_text())


def test_clearing_one_set(server, open_cached, origin, tmp_path):
    local = open_storage(origin, cache=tmp_path / "cache")
    assert local.read(NAME, 0, 300) == DATA[:300]
    open_cached().read(NAME, 0, 200)
    assert clear_cache(tmp_path / "cache", root=origin) == 300
    assert clear_cache(tmp_path / "cache", root=f"{server.url}/") == 200
    assert list((tmp_path / "cache").iterdir()) == []


def test_clearing_what_is_no_cache(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y").write_bytes(b"keep")
    assert clear_cache(tmp_path) == 0
    assert clear_cache(tmp_path / "none") == 0
    assert (tmp_path / "x" / "y").exists()


def test_no_secret_is_written_down(server, tmp_path):
    url = server.url.replace("//", "//user:secret@") + "/?token=secret"
    storage = open_storage(url, cache=tmp_path / "cache")
    storage.read(NAME, 0, 10)
    storage.close()
    texts = [path.read_text() for path in (tmp_path / "cache").rglob("*.json")]
    assert texts
    assert not any("secret" in text for text in texts)


def test_a_pickle_keeps_the_settings(open_cached, server, tmp_path):
    storage = open_cached(cache_bytes=1000, timeout_s=7.0, retries=2)
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.read(NAME, 0, 500) == DATA[:500]
    assert copy.read(NAME, 0, 1001) == DATA[:1001]
    copy.close()
    assert used_bytes(tmp_path / "cache") == 500
    assert (copy._timeout_s, copy._origin._policy.retries) == (7.0, 2)
