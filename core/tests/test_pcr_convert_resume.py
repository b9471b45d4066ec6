"""Going on: after a kill at any moment, the same bytes; with other options or images, an error."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from convert_helpers import (
    Killed,
    contents,
    converted,
    done_in,
    jpeg,
    killed_before,
    make_folder,
    make_shard,
    samples_of,
    shard_members,
)
from jpeg_helpers import hard

from tensorcom.errors import JpegError, PcrIndexError, PcrWriteError, SourceError
from tensorcom.pcr import PcrReader
from tensorcom.pcr.conversion import ConversionReport, convert, job
from tensorcom.pcr.target import Target, done_name

RECORDS = 20
SIZE = 3
PROGRAM = [sys.executable, "-m", "tensorcom.cli.main", "pcr", "convert", "--quiet"]
OPTIONS = {"images_per_record": SIZE, "sqlite_index": True, "on_error": "skip"}
ARGUMENTS = ["--images-per-record", str(SIZE), "--sqlite-index", "--on-error", "skip"]


# -- kills -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = make_folder(tmp_path_factory.mktemp("images"), RECORDS * SIZE - 1)
    (root / "ant" / "001.jpg").write_bytes(b"bad")
    (root / "bee" / "027.jpg").write_bytes(hard("A08.jpg"))
    return root


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory) -> dict[str, bytes]:
    """Return what an uninterrupted conversion writes."""
    root = tmp_path_factory.mktemp("whole")
    report = convert(folder, root, **OPTIONS)
    assert (report.records, report.tally.skipped, report.tally.noted) == (RECORDS, 1, 1)
    return contents(root)


def kill_when(process: subprocess.Popen, root: Path, records: int, wait_s: float) -> None:
    """Kill a converter a little after it has finished that many records, unless it ends before."""
    while process.poll() is None and done_in(root) < records:
        time.sleep(0.0005)
    time.sleep(wait_s)
    process.kill()
    process.wait()


@pytest.mark.parametrize("moment", range(20))
def test_a_kill_leaves_a_set_or_an_unfinished_one_that_goes_on(
    folder, whole, tmp_path, moment
) -> None:
    rng = random.Random(moment)
    root = tmp_path / "set"
    # A record or more each, and the last one twice: files of the set are written after that.
    records = min(moment + rng.randrange(2), RECORDS)
    with subprocess.Popen([*PROGRAM, *ARGUMENTS, str(folder), str(root)]) as process:
        kill_when(process, root, records, rng.uniform(0, 0.02))
    report = go_on(folder, root, whole)
    assert report is None or report.resumed >= records


def go_on(folder: Path, root: Path, whole: dict[str, bytes]) -> ConversionReport | None:
    """Check what a kill left behind, and convert again; None if nothing was left to do."""
    files = contents(root) if root.is_dir() else {}
    if "PCR_manifest.json" in files:
        samples_of(root)
        assert {name: files[name] for name in whole} == whole
    elif "PCR_unfinished.json" in files:
        with pytest.raises(PcrIndexError, match="unfinished"):
            PcrReader(root)
    else:
        assert set(files) <= {".PCR_lock", ".PCR_partial"}
    report = None
    if "PCR_manifest.json" in files and "PCR_unfinished.json" not in files:
        with pytest.raises(PcrWriteError, match="holds a set; force"):
            convert(folder, root, **OPTIONS)
    else:
        report = convert(folder, root, **OPTIONS)
        assert report.finished
    assert contents(root) == whole
    return report


@contextmanager
def killed_after(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let what is inside end at its step after `step`: a file that gets its name, or is removed."""
    count = 0

    def counted(function):
        def call(self, *args, **options):
            nonlocal count
            if self.name != ".PCR_lock":
                count += 1
                if count > step:
                    raise Killed
            return function(self, *args, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", counted(Path.replace))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("step", [*range(0, 44, 7), *range(44, 68, 3)])
def test_a_kill_between_any_two_steps(folder, whole, tmp_path, monkeypatch, step) -> None:
    """End at exact steps: before a file gets its name, or is removed."""
    root = tmp_path / "set"
    with killed_after(step, monkeypatch):
        convert(folder, root, **OPTIONS)
    go_on(folder, root, whole)


def test_what_is_done_is_not_done_again(folder, whole, tmp_path, monkeypatch) -> None:
    root = tmp_path / "set"
    stopped = convert(folder, root, stop=lambda: done_in(root) >= 6, **OPTIONS)
    done = stopped.records
    assert (stopped.finished, stopped.report, stopped.resumed) == (False, None, 0)
    assert 6 <= done < RECORDS
    assert stopped.images in (SIZE * done, SIZE * done - 1)
    assert stopped.tally.files == SIZE * done
    with pytest.raises(PcrIndexError, match="unfinished"):
        PcrReader(root)
    times = {path: path.stat().st_mtime_ns for path in root.glob("PCR_*.pcr")}
    seen = []
    report = convert(folder, root, on_progress=lambda *of: seen.append(of), **OPTIONS)
    assert (report.finished, report.resumed) == (True, done)
    assert seen[0] == (SIZE * done + 1, RECORDS * SIZE - 1)
    assert seen[-1] == (RECORDS * SIZE - 1,) * 2
    assert len(times) == done
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert contents(root) == whole
    assert report.tally.skipped == 1


def test_a_stop_before_the_first_image(folder, tmp_path) -> None:
    report = convert(folder, tmp_path / "set", stop=lambda: True, **OPTIONS)
    assert (report.finished, report.images, report.records) == (False, 0, 0)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_fails_when_it_is_stopped_is_not_skipped(
    folder, whole, tmp_path, monkeypatch, on_error
) -> None:
    """Ctrl-C goes to the programs that convert images too."""
    stopped = threading.Event()

    class Interrupted(job.Transcoder):
        def transcode(self, data, *, path=None):
            if done_in(tmp_path / "set") < 5:
                return super().transcode(data, path=path)
            stopped.set()
            raise JpegError("jpegtran failed with status -2", path=path)

    options = {**OPTIONS, "on_error": on_error}
    with monkeypatch.context() as patch:
        patch.setattr(job, "Transcoder", Interrupted)
        if on_error == "raise":
            (folder / "ant" / "001.jpg").rename(tmp_path / "bad")
        report = convert(folder, tmp_path / "set", stop=stopped.is_set, **options)
    if on_error == "raise":
        (tmp_path / "bad").rename(folder / "ant" / "001.jpg")
    assert not report.finished
    assert report.tally.skipped == 0 or on_error == "skip"
    if on_error == "skip":
        convert(folder, tmp_path / "set", **OPTIONS)
        assert contents(tmp_path / "set") == whole


def test_a_source_that_fails_when_it_is_stopped_is_no_error(tmp_path) -> None:
    """Ctrl-C goes to the programs that read shards too."""
    stopped = threading.Event()

    def samples():
        yield jpeg(0), 0
        stopped.set()
        raise SourceError("cannot be read: exit -2")

    report = convert(samples(), tmp_path / "set", stop=stopped.is_set)
    assert not report.finished
    with pytest.raises(SourceError, match="exit -2"):
        convert(samples(), tmp_path / "set")


def test_a_set_whose_end_was_cut_off_is_cleaned(folder, whole, tmp_path, monkeypatch) -> None:
    def killed(self):
        raise Killed

    root = tmp_path / "set"
    with monkeypatch.context() as patch:
        patch.setattr(Target, "finish", killed)
        with pytest.raises(Killed):
            convert(folder, root, **OPTIONS)
    samples_of(root)  # the manifest goes before
    manifest = root / "PCR_manifest.json"
    with pytest.raises(PcrWriteError, match="holds a set, finished but for.*seed was 0 and is 1"):
        convert(folder, root, seed=1, **OPTIONS)
    unlink = Path.unlink

    def watched(self, missing_ok=False):
        assert self.name not in whole, "a reader of the set may need it"
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    report = convert(folder, root, **OPTIONS)
    assert (report.finished, report.resumed) == (True, RECORDS)
    assert manifest.exists()
    assert contents(root) == whole


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "short record", "lost record"])
def test_what_is_not_whole_is_done_again(folder, whole, tmp_path, damage) -> None:
    root = tmp_path / "set"
    killed_before(4, folder, root, **OPTIONS)
    done, record = root / done_name(2), root / "PCR_2.pcr"
    if damage == "cut":
        os.truncate(done, 100)
    elif damage == "empty":
        os.truncate(done, 0)
    elif damage == "gone":
        done.unlink()
    elif damage == "short record":
        os.truncate(record, 10)
    else:
        record.unlink()
    report = convert(folder, root, **OPTIONS)
    assert report.resumed == 3
    assert contents(root) == whole


def test_records_of_another_set_do_not_stay(folder, whole, tmp_path) -> None:
    root = tmp_path / "set"
    killed_before(2, folder, root, **OPTIONS)
    (root / "PCR_77.pcr").write_bytes(b"of another set")
    convert(folder, root, **OPTIONS)
    assert contents(root) == whole


def test_a_record_of_bad_images_is_done_too(tmp_path) -> None:
    samples = [(b"bad", 0)] * 2 + [(jpeg(0), 1)] * 4
    root = tmp_path / "set"
    options = {"images_per_record": 2, "on_error": "skip"}
    killed_before(1, samples, root, **options)
    assert "PCR_0.pcr" not in contents(root)
    report = convert(samples, root, **options)
    assert report.resumed == 1
    assert (report.images, report.tally.skipped, report.records) == (4, 2, 2)
    assert len(Path(report.report).read_text().splitlines()) == 2


# -- other sources -----------------------------------------------------------------------------


def test_streams_go_on(tmp_path) -> None:
    make_shard(tmp_path / "0.tar", shard_members(range(6)))
    make_shard(tmp_path / "1.tgz", shard_members(range(6, 13)))
    shards = f"{tmp_path}/{{0.tar,1.tgz}}"
    convert(shards, tmp_path / "whole", images_per_record=2)
    for record in (1, 4):
        killed_before(record, shards, tmp_path / "set", images_per_record=2)
    assert convert(shards, tmp_path / "set", images_per_record=2).resumed == 4
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


def test_iterables_are_iterated_again(tmp_path) -> None:
    samples = [(jpeg(number), number) for number in range(9)]
    root = tmp_path / "set"
    killed_before(3, iter(samples), root, images_per_record=2)
    assert convert(iter(samples), root, images_per_record=2).resumed == 3
    assert [image for _, _, image in samples_of(root)] == [
        converted(jpeg(number)) for number in range(9)
    ]


@pytest.mark.parametrize("count", [3, 5, 9])
def test_an_iterable_of_another_length_is_told(tmp_path, count, monkeypatch) -> None:
    def killed(*args):
        raise Killed

    samples = [(jpeg(number), number) for number in range(6)]
    root = tmp_path / "set"
    with monkeypatch.context() as patch:
        patch.setattr(Target, "finish", killed)
        with pytest.raises(Killed):
            convert(samples, root, images_per_record=4)
    (root / "PCR_manifest.json").unlink()
    with pytest.raises(
        PcrWriteError, match=r"record \d was made of \d images, of which the source"
    ):
        convert([*samples, *samples][:count], root, images_per_record=4)
    assert len(convert(samples, root, images_per_record=4).report) > 0


@pytest.mark.parametrize("step", [*range(5), 8, 20, 40])
def test_a_killed_replacement_goes_on_without_force(
    folder, whole, tmp_path, monkeypatch, step
) -> None:
    """What the set before it left is never taken for a part of the new one."""
    root = tmp_path / "set"
    convert(folder, root, **{**OPTIONS, "images_per_record": 2, "sqlite_index": True})
    with killed_after(step, monkeypatch):
        convert(folder, root, force=True, **OPTIONS)
    again = {} if "PCR_unfinished.json" in contents(root) else {"force": True}
    assert convert(folder, root, **OPTIONS, **again).finished
    assert contents(root) == whole
