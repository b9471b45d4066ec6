"""The cache: damage, crashes at any point, several users at once."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from storage_helpers import cache_opener, contents, entry, forked, replace, state_of

from tensorcom.pcr.storage import cache_files as files_module
from tensorcom.pcr.storage import clear_cache
from tensorcom.pcr.storage.base import FileStat
from tensorcom.pcr.storage.cache_files import EMPTY, CacheFiles
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


def damage_byte(folder):
    with (folder / NAME).open("r+b") as file:
        file.seek(2000)
        file.write(b"\0\0\0\0")


def cut(folder):
    os.truncate(folder / NAME, 100)


def swap(folder):
    (folder / NAME).rename(folder.parent / "old")  # lives on, so that the inode is another
    (folder / NAME).write_bytes(OTHER[:5000])


def lose_state(folder):
    (folder / ".state" / NAME).unlink()


def write_state(text):
    def write(folder):
        (folder / ".state" / NAME).write_text(text)

    return write


DAMAGES = {
    "cut": cut, "swapped": swap, "no state": lose_state, "empty state": write_state(""),
    "no json": write_state("{"), "no object": write_state("[1]"), "null": write_state("null"),
    "bad types": write_state('{"inode": "1", "length": 5000, "crc32": 0, "boot": "", "size": 1, '
                             '"tag": ""}'),
    "missing key": write_state('{"inode": 1}'),
    "no data": lambda folder: (folder / NAME).unlink(),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_what_is_damaged_is_read_anew(open_cached, tmp_path, kind):
    open_cached().read(NAME, 0, 5000)
    DAMAGES[kind](entry(tmp_path))
    storage = open_cached()
    assert storage.read(NAME, 0, 5000) == DATA[:5000]
    assert state_of(tmp_path)["length"] == 5000
    assert (entry(tmp_path) / NAME).read_bytes() == DATA[:5000]


def reboot(monkeypatch):
    monkeypatch.setattr(files_module, "boot_id", lambda: "another boot")


def test_after_another_boot_bytes_are_checked_once(server, open_cached, tmp_path, monkeypatch):
    open_cached().read(NAME, 0, 5000)
    reboot(monkeypatch)
    server.requests.clear()
    storage = open_cached()
    assert storage.read(NAME, 0, 5000) == DATA[:5000]
    assert methods(server) == ["HEAD"]
    assert state_of(tmp_path)["boot"] == "another boot"
    monkeypatch.setattr(files_module, "_crc32", None)  # never again
    assert open_cached().read(NAME, 0, 5000) == DATA[:5000]


def test_bytes_that_a_crash_of_the_system_lost_are_read_anew(
    server, open_cached, tmp_path, monkeypatch
):
    open_cached().read(NAME, 0, 5000)
    damage_byte(entry(tmp_path))
    reboot(monkeypatch)
    assert open_cached().read(NAME, 0, 5000) == DATA[:5000]
    assert server.gets() == ["bytes=0-4999"] * 2


def test_the_checksum_is_that_of_all_bytes_however_they_came(open_cached, tmp_path, monkeypatch):
    storage = open_cached()
    for stop in (10, 5000, 70_000):
        storage.read(NAME, 0, stop)
    reboot(monkeypatch)
    monkeypatch.setattr(files_module.Writer, "restart", None)
    assert open_cached().read(NAME, 0, 70_000) == DATA[:70_000]


# -- killed processes ------------------------------------------------------------------------------


class Killed:
    """Ends the process at its n-th call, as SIGKILL would; before that it does what it stands for.

    Args:
        call: what it stands for.
        count: at which call to end.
        part: what to do of the last call.
    """

    def __init__(self, call, count, part=None):
        self.call, self.left, self.part = call, count, part

    def __call__(self, *arguments, **named):
        self.left -= 1
        if not self.left:
            try:
                if self.part is not None:
                    self.part(*arguments, **named)
            finally:
                os._exit(9)
        return self.call(*arguments, **named)


def half_write(file, data, at):
    PWRITE(file, bytes(data)[: len(data) // 2], at)


PWRITE = os.pwrite
STEPS = {
    "mkdir": lambda n: (os, "mkdir", Killed(os.mkdir, n)),
    "open": lambda n: (os, "open", Killed(os.open, n, lambda *a, **k: None)),
    "after open": lambda n: (os, "open", Killed(os.open, n, os.open)),
    "lock": lambda n: (fcntl, "flock", Killed(fcntl.flock, n, fcntl.flock)),
    "before write": lambda n: (os, "pwrite", Killed(os.pwrite, n)),
    "half write": lambda n: (os, "pwrite", Killed(os.pwrite, n, half_write)),
    "after write": lambda n: (os, "pwrite", Killed(os.pwrite, n, os.pwrite)),
    "unlink": lambda n: (os, "unlink", Killed(os.unlink, n, os.unlink)),
    "before replace": lambda n: (os, "replace", Killed(os.replace, n)),
    "after replace": lambda n: (os, "replace", Killed(os.replace, n, os.replace)),
}


def read_and_die(storage, step, count, stop, connection):
    module, name, killed = STEPS[step](count)
    setattr(module, name, killed)
    connection.send(bytes(storage.read(NAME, 0, stop)) in (DATA[:stop], OTHER[:stop]))
    storage.close()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("before", ["nothing", "a prefix", "another version"])
def test_a_process_killed_at_any_step_does_no_harm(open_cached, origin, tmp_path, before, step):
    right = DATA
    exits = []
    for count in range(1, 40):
        clear_cache(tmp_path / "cache")
        if before != "nothing":
            open_cached().read(NAME, 0, 3000)
        if before == "another version":
            right = OTHER if right is DATA else DATA
            replace(origin / NAME, right)
        with forked(read_and_die, open_cached(), step, count, 50_000) as (child, here):
            child.join()
            exits.append(child.exitcode)
            if child.exitcode == 0:
                assert here.recv()
        for stop in (2000, 50_000, 60_000):
            assert open_cached().read(NAME, 0, stop) == right[:stop]
        assert (entry(tmp_path) / NAME).read_bytes()[:60_000] == right[:60_000]
        clear_cache(tmp_path / "cache")
        assert list((tmp_path / "cache").iterdir()) == []  # all that was created was recorded
        if exits[-1] == 0:
            break  # it had no more such steps
    assert exits[-1] == 0
    assert set(exits[:-1]) <= {9}
    if step.endswith("write"):
        assert exits == [9, 0]


@pytest.mark.parametrize("step", ["open", "after open", "after replace"])
def test_what_a_killed_process_created_is_recorded(open_cached, tmp_path, step):
    exitcode, count = 9, 0
    while exitcode == 9:
        count += 1
        with forked(read_and_die, open_cached(), step, count, 50_000) as (child, _):
            child.join()
            exitcode = child.exitcode
        clear_cache(tmp_path / "cache")
        left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        # Before its mark is there, a folder has nothing but the mark that was to be.
        assert [path.name for path in left] in ([], [".cache.json"])
        for path in left:
            path.unlink()
    assert exitcode == 0
    assert count > 2


def test_who_waited_for_a_lock_takes_that_of_the_new_file(tmp_path, monkeypatch):
    files, waiting, found = CacheFiles(tmp_path, "root", "root"), threading.Event(), []
    try_lock = files_module._try_lock

    def noted(file):
        taken = try_lock(file)
        if not taken:
            waiting.set()
        return taken

    def wait():
        with files.locked("a", 60.0) as writer:
            found.append(writer.state.length)

    monkeypatch.setattr(files_module, "_try_lock", noted)
    thread = threading.Thread(target=wait)
    with files.locked("a", 1.0) as writer:
        thread.start()
        waiting.wait()
        writer.restart()
        writer.append(memoryview(b"aaaa"), FileStat(9, "tag"))
    thread.join()
    assert found == [4]


def read_many(storage, seed, connection):
    wrong = 0
    for number in range(60):
        name, data = ((NAME, DATA), ("second", OTHER))[(number + seed) % 2]
        stop = 1000 + 7919 * ((number * 13 + seed) % 60)
        wrong += storage.read(name, 0, stop) != data[:stop]
    storage.close()
    connection.send(wrong)


def test_many_processes_share_a_cache(server, open_cached, tmp_path):
    with ExitStack() as stack:
        started = [stack.enter_context(forked(read_many, open_cached(), seed)) for seed in range(4)]
        for child, here in started:
            assert here.recv() == 0
            child.join()
            assert child.exitcode == 0
    longest = {NAME: 1000 + 7919 * 58, "second": 1000 + 7919 * 59}  # half of the ends each
    assert server.sent_bytes == sum(longest.values())  # no byte was fetched twice
    assert (entry(tmp_path) / NAME).read_bytes() == DATA[: longest[NAME]]


def test_a_lock_that_is_never_released_is_not_waited_for(server, open_cached, tmp_path):
    open_cached().read(NAME, 0, 1000)
    with (entry(tmp_path) / NAME).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        storage = open_cached(timeout_s=0.1)
        assert storage.read(NAME, 0, 800) == DATA[:800]  # what is there needs no lock
        assert storage.read(NAME, 0, 2000) == DATA[:2000]
        assert state_of(tmp_path)["length"] == 1000
    assert storage.read(NAME, 0, 2000) == DATA[:2000]
    assert state_of(tmp_path)["length"] == 2000


def test_a_child_forked_under_a_lock_does_not_keep_it(server, open_cached, tmp_path):
    storage, children = open_cached(timeout_s=2.0), []

    def fork():
        child = os.fork()
        if child == 0:
            os.close(hold[1])
            os.read(hold[0], 1)  # lives on with a copy of every open file, until the test ends
            os._exit(0)
        children.append(child)

    hold = os.pipe()
    try:
        server.misbehave(Fault(then=fork))
        storage.read(NAME, 0, 1000)
        while not children:
            time.sleep(0.001)
        assert storage.read(NAME, 0, 2000) == DATA[:2000]
        assert state_of(tmp_path)["length"] == 2000
    finally:
        for end in hold:
            os.close(end)
        for child in children:
            os.waitpid(child, 0)


def test_threads_fetch_a_byte_once(server, open_cached):
    storage, wrong = open_cached(), []

    def read(seed):
        for number in range(40):
            stop = 1000 + 997 * ((number * 7 + seed) % 40)
            if storage.read(NAME, 0, stop) != DATA[:stop]:
                wrong.append(stop)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert server.sent_bytes == 1000 + 997 * 39


def test_states_of_another_file_are_not_believed(tmp_path):
    files = CacheFiles(tmp_path, "root", "root")
    with files.locked("a", 1.0) as writer:
        writer.append(memoryview(b"aaaa"), FileStat(9, "tag"))
    with files.locked("b", 1.0) as writer:
        writer.append(memoryview(b"bbbb"), FileStat(9, "tag"))
    (files.place("a", ".state")).replace(files.place("b", ".state"))
    with files.opened("b") as found:
        assert found is None
    with files.locked("b", 1.0) as writer:
        assert writer.state.length == 0


def test_a_data_file_is_replaced_only_after_its_state(tmp_path, monkeypatch):
    files = CacheFiles(tmp_path, "root", "root")
    with files.locked("a", 1.0) as writer:
        writer.append(memoryview(b"aaaa"), FileStat(9, "tag"))
    states, replace_path = [], Path.replace

    def note(self, target):
        if target == files.place("a"):
            states.append(files.load_state("a"))
        return replace_path(self, target)

    monkeypatch.setattr(Path, "replace", note)
    with files.locked("a", 1.0) as writer:
        writer.restart()
    assert states == [EMPTY]


def test_who_reads_an_old_version_keeps_it_even_after_a_crash(tmp_path):
    files = CacheFiles(tmp_path, "root", "root")
    with files.locked("a", 1.0) as writer:
        writer.append(memoryview(b"aaaa"), FileStat(9, "old"))
    with files.opened("a") as (file, state):
        files.store_state("a", EMPTY)  # as a process does that is killed right then
        with files.locked("a", 1.0) as writer:
            assert writer.state == EMPTY
            writer.append(memoryview(b"bbbbbb"), FileStat(9, "new"))
        assert os.pread(file, state.length, 0) == b"aaaa"
    with files.opened("a") as (file, state):
        assert os.pread(file, 9, 0) == b"bbbbbb"
        assert state.stat == FileStat(9, "new")
