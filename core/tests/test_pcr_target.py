"""The directory of a set: one writer, whole files, and nothing removed that was not written."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tensorcom.errors import PcrWriteError
from tensorcom.pcr import target as module
from tensorcom.pcr.target import Held, Target, done_name, write_whole

OTHERS = ("notes.txt", "PCR_x.pcr", "PCR_01.pcr", "my_PCR_1.pcr", "PCR_index.pb.bak", ".hidden")
SET = ("PCR_0.pcr", "PCR_12.pcr", "PCR_index.pb", "PCR_manifest.json", "PCR_samples.ten", "PCR.db")
LEFT = (".PCR_0.done", ".PCR_12.done", ".PCR_partial", ".PCR_partial-journal")


def fill(root: Path, *names: str) -> None:
    root.mkdir(exist_ok=True)
    for name in names:
        (root / name).write_bytes(name.encode())


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


@pytest.mark.parametrize(
    ("there", "held"),
    [
        ((), Held.NOTHING),
        ((*OTHERS, *LEFT, "PCR_samples.ten", "PCR_report.jsonl"), Held.NOTHING),
        (("PCR_0.pcr",), Held.SET),
        (("PCR.db",), Held.SET),
        (("PCR_index.pb",), Held.SET),
        (("PCR_manifest.json",), Held.SET),
        (("PCR_unfinished.json", "PCR_0.pcr", "PCR_index.pb"), Held.UNFINISHED),
        (("PCR_unfinished.json", "PCR_manifest.json"), Held.UNCLEANED),
    ],
)
def test_what_is_held(tmp_path, there, held) -> None:
    fill(tmp_path, *there)
    with Target(tmp_path) as target:
        assert target.held() is held


def test_a_set_is_refused_and_what_its_conversion_left_goes(tmp_path) -> None:
    fill(tmp_path, *OTHERS, *SET, *LEFT)
    with Target(tmp_path) as target, pytest.raises(PcrWriteError) as caught:
        target.begin({"by": "test"}, force=False)
    assert str(caught.value) == f"{tmp_path}: holds a set; force=True (--force) replaces it"
    assert names(tmp_path) == {*OTHERS, *SET}


def test_an_unfinished_set_is_refused(tmp_path) -> None:
    fill(tmp_path, "PCR_unfinished.json", *LEFT)
    with Target(tmp_path) as target, pytest.raises(PcrWriteError, match="holds an unfinished set;"):
        target.begin({"by": "test"}, force=False)
    assert names(tmp_path) == {"PCR_unfinished.json", *LEFT}


@pytest.mark.parametrize("unfinished", [(), ("PCR_unfinished.json",)])
def test_force_removes_only_what_a_conversion_wrote(tmp_path, unfinished) -> None:
    fill(tmp_path, *OTHERS, *SET, *LEFT, *unfinished, "PCR_report.jsonl")
    (tmp_path / "sub").mkdir()
    fill(tmp_path / "sub", *SET)
    with Target(tmp_path) as target:
        target.begin({"by": "test"}, force=True)
        assert names(tmp_path) == {*OTHERS, "sub", "PCR_unfinished.json", ".PCR_lock"}
        assert target.state()["by"] == "test"
    assert names(tmp_path / "sub") == set(SET)
    assert all((tmp_path / name).read_bytes() == name.encode() for name in OTHERS)


def test_force_does_not_follow_links(tmp_path) -> None:
    fill(tmp_path / "elsewhere", "precious")
    fill(tmp_path / "set")
    (tmp_path / "set" / "PCR_0.pcr").symlink_to(tmp_path / "elsewhere" / "precious")
    with Target(tmp_path / "set") as target:
        target.begin({}, force=True)
    assert names(tmp_path / "set") == {"PCR_unfinished.json"}
    assert (tmp_path / "elsewhere" / "precious").exists()


def steps(monkeypatch) -> list[str]:
    """Return a list to which the name of each file that is removed or gets its name is added."""
    done: list[str] = []
    unlink, replace = Path.unlink, Path.replace

    def watched_unlink(self, missing_ok=False):
        if self.exists() and not self.name.startswith((".PCR_lock", ".PCR_partial")):
            done.append(f"-{self.name}")
        unlink(self, missing_ok=missing_ok)

    def watched_replace(self, new):
        done.append(f"+{Path(new).name}")
        return replace(self, new)

    monkeypatch.setattr(Path, "unlink", watched_unlink)
    monkeypatch.setattr(Path, "replace", watched_replace)
    return done


def test_a_kill_between_the_steps_of_force_leaves_one_set_or_an_unfinished_one(
    tmp_path, monkeypatch
) -> None:
    fill(tmp_path, *SET, ".PCR_0.done", "PCR_unfinished.json")
    done = steps(monkeypatch)
    with Target(tmp_path) as target:
        target.begin({}, force=True)
    # What says that a record is done goes before the file that it would be taken for a part of.
    assert done[:4] == [
        "-PCR_unfinished.json",
        "-.PCR_0.done",
        "+PCR_unfinished.json",
        "-PCR_manifest.json",
    ]


def test_a_kill_between_the_steps_of_the_end_leaves_a_set(tmp_path, monkeypatch) -> None:
    fill(tmp_path, *SET, *LEFT, "PCR_unfinished.json")
    done = steps(monkeypatch)
    with Target(tmp_path) as target:
        target.finish()
    assert done[0] == "-PCR_unfinished.json"
    assert names(tmp_path) == set(SET)


def test_going_on_keeps_what_is_done(tmp_path) -> None:
    fill(tmp_path, *OTHERS, *SET, *LEFT, "PCR_1.pcr", "PCR_unfinished.json", ".PCR_7.done")
    (tmp_path / "PCR_manifest.json").unlink()
    with Target(tmp_path) as target:
        assert target.done() == [0, 7, 12]
        target.go_on({"by": "new"}, [0, 12])
        kept = {"PCR_0.pcr", "PCR_12.pcr", ".PCR_0.done", ".PCR_12.done"}
        assert names(tmp_path) == {*OTHERS, *kept, "PCR_unfinished.json", ".PCR_lock"}
        assert target.state()["by"] == "new"


def test_abandoning_leaves_nothing_of_ours(tmp_path) -> None:
    with Target(tmp_path / "a" / "b") as target:
        target.begin({}, force=False)
        target.write("PCR_0.pcr", [b"x"])
        target.write(done_name(0), [b"x"])
        target.abandon()
    assert names(tmp_path / "a" / "b") == set()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"[" * 100_000, b'{"format": "x"}'])
def test_a_damaged_state_says_how_to_start_over(tmp_path, text) -> None:
    (tmp_path / "PCR_unfinished.json").write_bytes(text)
    with Target(tmp_path) as target, pytest.raises(PcrWriteError) as caught:
        target.state()
    assert str(caught.value) == (
        f"{tmp_path}: PCR_unfinished.json is damaged: force=True (--force) starts over"
    )


def test_the_state_of_another_version_is_not_gone_on_with(tmp_path, monkeypatch) -> None:
    with Target(tmp_path) as target:
        target.begin({}, force=False)
        monkeypatch.setattr(module, "_STATE_VERSION", 2)
        with pytest.raises(PcrWriteError, match="another version of tensorcom began"):
            target.state()


def test_there_is_one_writer(tmp_path) -> None:
    with Target(tmp_path), pytest.raises(PcrWriteError) as caught:
        Target(tmp_path)
    assert str(caught.value) == f"{tmp_path}: another process is writing a set here"
    Target(tmp_path).close()
    assert names(tmp_path) == set()


def test_another_process_is_kept_out_until_the_first_is_killed(tmp_path) -> None:
    code = (
        "import sys; from tensorcom.pcr.target import Target; t = Target(sys.argv[1]);"
        "print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"in\n"
        with pytest.raises(PcrWriteError, match="another process"):
            Target(tmp_path)
        process.kill()
        process.wait()
    Target(tmp_path).close()


def test_a_lock_that_was_removed_by_its_owner_is_none(tmp_path, monkeypatch) -> None:
    """The next writer opens the lock file, and before it locks it, the first one ends."""
    first = Target(tmp_path)
    flock = module.fcntl.flock

    def late(file, how):
        first.close()
        flock(file, how)

    monkeypatch.setattr(module.fcntl, "flock", late)
    with Target(tmp_path):
        monkeypatch.undo()
        with pytest.raises(PcrWriteError, match="another process"):
            Target(tmp_path)


def test_a_file_system_without_locks_is_used_with_a_warning(tmp_path, monkeypatch, caplog) -> None:
    def no_locks(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", no_locks)
    with caplog.at_level(logging.WARNING), Target(tmp_path):
        pass
    assert "the file system has no locks" in caplog.text


def test_a_url_or_file_is_no_target(tmp_path) -> None:
    with pytest.raises(PcrWriteError, match="s3://bucket/set: a set is written to a local dir"):
        Target("s3://bucket/set")
    (tmp_path / "file").touch()
    with pytest.raises(PcrWriteError, match="file: cannot be written: File exists"):
        Target(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written_is_named(tmp_path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PcrWriteError, match=r"cannot be written: Permission denied"):
        Target(tmp_path)


def test_a_file_that_cannot_be_written_is_not_there(tmp_path, monkeypatch) -> None:
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with Target(tmp_path) as target:
        target.write("a", [b"old"])
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(PcrWriteError) as caught:
            target.write("a", [b"new"])
        with pytest.raises(PcrWriteError), target.partial("a") as path:
            path.write_bytes(b"new")
    assert str(caught.value) == f"{tmp_path}/a: cannot be written: No space left on device"
    assert isinstance(caught.value, OSError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_whole_file_replaces_another(tmp_path) -> None:
    write_whole(tmp_path / "a", [b"one", b"", memoryview(b"two")])
    write_whole(tmp_path / "a", iter([b"three"]))
    assert names(tmp_path) == {"a"}
    assert (tmp_path / "a").read_bytes() == b"three"
    with pytest.raises(PcrWriteError, match="none/a: cannot be written: No such file"):
        write_whole(tmp_path / "none" / "a", [])


def test_bytes_are_on_the_disk_before_they_have_a_name(tmp_path, monkeypatch) -> None:
    done = steps(monkeypatch)
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("sync"), fsync(file)))
    with Target(tmp_path) as target:
        target.write("a", [b"x"])
        with target.partial("b") as path:
            path.write_bytes(b"y")
    assert done == ["sync", "+a", "sync", "sync", "+b", "sync"]


def test_a_report_goes_into_a_pipe_and_through_a_link(tmp_path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "file")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, link):
            write_whole(path, [b"one", b"two"])
        assert os.read(reader, 100) == b"onetwo"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"onetwo"
