"""Local storage: links, files that are none, system calls."""

from __future__ import annotations

import os

import pytest
from storage_helpers import contents

from tensorcom.errors import PcrFormatError, PcrIndexError, PcrReadError
from tensorcom.pcr.storage import PcrEndError, open_storage

NAME = "PCR_0.pcr"
DATA = contents(3, 50_000)


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "set"
    found.mkdir()
    (found / NAME).write_bytes(DATA)
    (tmp_path / "secret").write_bytes(b"not of the set")
    return found


@pytest.fixture
def storage(folder):
    return open_storage(folder)


def test_x03_links_out_of_the_set(folder, storage):
    (folder / "relative").symlink_to("../secret")
    (folder / "absolute").symlink_to(folder.parent / "secret")
    (folder / "through").symlink_to("relative")
    (folder / "nowhere").symlink_to("../no such file")
    (folder / "sibling").symlink_to(folder.parent / "set2")  # its path starts as the set's does
    for name in ("relative", "absolute", "through", "nowhere", "sibling"):
        for call in (lambda n: storage.read(n, 0, 3), storage.size, storage.local_path):
            with pytest.raises(PcrFormatError, match=f"{name!r} is a link out of the set"):
                call(name)


def test_links_within_the_set(folder, storage):
    (folder / "inner").mkdir()
    (folder / "inner" / "deep").write_bytes(DATA[:10])
    (folder / "link").symlink_to(NAME)
    (folder / "twice").symlink_to("link")
    (folder / "absolute").symlink_to(folder / NAME)
    (folder / "down").symlink_to("inner/deep")
    for name in ("link", "twice", "absolute"):
        assert storage.read(name, 100, 900) == DATA[100:1000]
        assert storage.local_path(name) == (folder / NAME).resolve()
    assert storage.read("down", 0, 10) == DATA[:10]


def test_a_set_behind_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    (folder / "inside").symlink_to(NAME)
    storage = open_storage(tmp_path / "link")
    assert storage.read("inside", 0, 10) == DATA[:10]


def test_links_that_lead_nowhere(folder, storage):
    (folder / "dangling").symlink_to("missing")
    (folder / "loop").symlink_to("loop")
    with pytest.raises(PcrIndexError, match="no such file"):
        storage.read("dangling", 0, 1)
    with pytest.raises(PcrReadError, match="Too many levels of symbolic links"):
        storage.read("loop", 0, 1)


def test_what_is_no_regular_file(folder, storage):
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("folder", "pipe"):  # a pipe without a writer would block who opens it
        with pytest.raises(PcrFormatError, match="is no regular file"):
            storage.read(name, 0, 1)
    (folder / "null").symlink_to("/dev/null")
    with pytest.raises(PcrFormatError, match="link out of the set"):
        storage.read("null", 0, 1)


def test_a_missing_directory(tmp_path):
    storage = open_storage(tmp_path / "none")
    assert not storage.exists(NAME)
    with pytest.raises(PcrIndexError, match=r"none/PCR_0\.pcr: no such file"):
        storage.read(NAME, 0, 1)
    (tmp_path / "none").write_bytes(b"a file")
    with pytest.raises(PcrIndexError):
        storage.read(NAME, 0, 1)


def test_a_relative_root_stays_where_it_was(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = open_storage("set")
    assert storage.root == "set"
    monkeypatch.chdir("/")
    assert storage.read(NAME, 1, 9) == DATA[1:10]


def test_one_system_call_reads_exactly_the_prefix(storage, monkeypatch):
    calls = []
    preadv = os.preadv

    def counted(file, buffers, offset):
        calls.append((offset, sum(map(len, buffers))))
        return preadv(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    storage.read(NAME, 0, 12_345)
    storage.read(NAME, 40_000, 10_000)
    with pytest.raises(PcrEndError):
        storage.read(NAME, 40_000, 10_001)
    assert calls == [(0, 12_345), (40_000, 10_000)]


def test_no_bytes_are_read_ahead(folder, storage):
    def read_bytes() -> int:
        with open("/proc/self/io") as file:
            return int(file.readline().split()[1])

    read_bytes()
    before = read_bytes()
    cost = read_bytes() - before  # of reading /proc itself
    before = read_bytes()
    storage.read(NAME, 0, 30_000)
    assert read_bytes() - before == 30_000 + cost


def test_a_read_that_the_system_answers_in_pieces(storage, monkeypatch):
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda f, buffers, at: preadv(f, [buffers[0][:1000]], at))
    assert storage.read(NAME, 17, 45_000) == DATA[17:45_017]


def test_a_file_that_shrinks_while_it_is_read(folder, storage, monkeypatch):
    preadv = os.preadv

    def cut(file, buffers, offset):
        os.truncate(folder / NAME, 20_000)
        return preadv(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", cut)
    with pytest.raises(PcrReadError, match="got 19000 of 30000 bytes: the file was cut") as caught:
        storage.read(NAME, 1000, 30_000)
    assert not isinstance(caught.value, PcrEndError)
    assert caught.value.offset == 20_000


def test_errors_of_the_system_keep_their_text(storage, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(PcrReadError, match=r"PCR_0\.pcr: cannot be read: Input/output error"):
        storage.read(NAME, 0, 5)


def test_names_that_are_no_utf8(folder, storage):
    name = os.fsdecode(b"PCR_\xff.pcr")
    (folder / name).write_bytes(b"abc")
    assert storage.read(name, 0, 3) == b"abc"
    with pytest.raises(PcrEndError) as caught:
        storage.read(name, 0, 4)
    assert r"PCR_\xff.pcr" in str(caught.value)
