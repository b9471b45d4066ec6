"""`verify`: what is whole passes, and what the index files say is compared."""

from __future__ import annotations

import pickle
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
from jpeg_helpers import hard, picture, saved
from pcr_helpers import GOLDEN_SETS, KINDS, copy_golden, cut, flip, make_set

from tensorcom.errors import PcrIndexError
from tensorcom.pcr import PcrReader
from tensorcom.pcr.manifest import INDEX_NAME, MANIFEST_NAME, SAMPLES_NAME, Manifest
from tensorcom.pcr.problems import Problem
from tensorcom.pcr.reader import UNFINISHED_NAME
from tensorcom.pcr.scripts import BALANCED, FAST
from tensorcom.pcr.sqlite_index import FILE_NAME as SQLITE_NAME
from tensorcom.pcr.sqlite_index import write_sqlite_index
from tensorcom.pcr.verify import verify
from tensorcom.pcr.verify_record import RecordCheck
from tensorcom.pcr.wire import encode_index


@pytest.fixture
def made(tmp_path):
    return make_set(tmp_path / "set", sqlite=True)


def found(root, **options):
    return [str(problem) for problem in verify(root, **options).problems]


def only(root, **options):
    problems = verify(root, **options).problems
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


# -- what is whole ----------------------------------------------------------------------------


@pytest.mark.parametrize("decode", [False, True])
def test_a_whole_set_passes(made, decode):
    report = verify(made.root, decode=decode)
    assert report.is_whole
    assert report.problems == ()
    assert (report.records, report.images, report.decoded) == (3, 8, decode)
    assert report.size_bytes == sum(path.stat().st_size for path in made.root.glob("*.pcr"))
    assert (report.has_checksums, report.others, report.is_listed) == (True, {}, True)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_sets_of_the_original_pass(kind):
    report = verify(GOLDEN_SETS / kind, decode=True)
    assert report.problems == ()
    assert not report.has_checksums
    assert (report.records, report.images) == (3, 12 if kind == "sqlite" else 17)
    assert report.others == {}


@pytest.mark.parametrize("script", [FAST, BALANCED], ids=lambda script: script.name)
def test_sets_of_other_scripts_and_images_pass(tmp_path, script):
    images = [saved(picture("L")), saved(picture()), hard("A03.jpg"), saved(picture("L", 9, 8))]
    root = make_set(tmp_path / "set", images, labels=[0, 1, 2, 2], script=script).root
    assert found(root, decode=True) == []


def test_a_set_in_fsspecs_memory(made):
    memory = fsspec.filesystem("memory")
    for path in made.root.iterdir():
        memory.pipe_file(f"/verify/{path.name}", path.read_bytes())
    memory.pipe_file("/verify/stray.txt", b"")
    try:
        report = verify("memory://verify", decode=True)
        assert report.is_whole
        assert report.others == {"stray.txt": "not a file of the set"}
        memory.pipe_file("/verify/PCR_1.pcr", b"x")
        assert any("PCR_1.pcr" in text for text in found("memory://verify"))
    finally:
        memory.rm("/verify", recursive=True)


def test_progress_and_problems_are_told_as_they_come(made):
    flip(made.file(1), 200)
    seen, told = [], []
    report = verify(
        made.root,
        threads=1,
        on_progress=lambda *counts: seen.append(counts),
        on_problem=lambda problem: told.append((problem, len(seen))),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert tuple(problem for problem, _ in told) == report.problems
    assert all(done == 1 for _, done in told)


def test_records_are_checked_in_several_threads(made, monkeypatch):
    meeting = threading.Barrier(3, timeout=60)
    check = RecordCheck.__call__
    monkeypatch.setattr(
        RecordCheck, "__call__", lambda self, record: meeting.wait() and None or check(self, record)
    )
    assert verify(made.root, threads=3).is_whole


# -- damage in what says what is there --------------------------------------------------------


def test_any_changed_byte_of_the_table_of_samples_is_found(made):
    path = made.root / SAMPLES_NAME
    for offset in range(0, path.stat().st_size, 37):
        flip(path, offset, 0x40)
        problems = verify(made.root, threads=1).problems
        flip(path, offset, 0x40)
        assert problems[0].path == SAMPLES_NAME
        assert "checksum is" in problems[0].reason
    assert verify(made.root).is_whole


def test_any_changed_byte_of_the_index_is_found(made):
    path = made.root / INDEX_NAME
    for offset in range(path.stat().st_size):
        flip(path, offset)
        problems = verify(made.root, threads=1).problems
        flip(path, offset)
        assert problems
        assert {problem.path for problem in problems} == {INDEX_NAME}
    assert verify(made.root).is_whole


def test_an_index_that_says_something_else_names_the_record(made):
    entries = [(r.name, r.parts.tolist()) for r in PcrReader(made.root).records]
    entries[1][1][3] += 1
    del entries[2]
    entries.append(("PCR_9.pcr", [5, 5]))
    (made.root / INDEX_NAME).write_bytes(encode_index(*zip(*entries, strict=True)))
    (made.root / SQLITE_NAME).unlink()
    write_sqlite_index(made.root / SQLITE_NAME, entries[:1], images=1, classes=1, batch=1)
    assert found(made.root) == [
        "PCR_index.pb: lengths of PCR_1.pcr are not those in PCR_samples.ten",
        "PCR_index.pb: lacks PCR_2.pcr, which PCR_samples.ten names",
        "PCR_index.pb: names PCR_9.pcr, which PCR_samples.ten lacks",
        "PCR.db: lacks PCR_1.pcr, which PCR_samples.ten names",
        "PCR.db: lacks PCR_2.pcr, which PCR_samples.ten names",
    ]


def test_files_that_are_missing(made):
    (made.root / INDEX_NAME).unlink()
    (made.root / SQLITE_NAME).unlink()  # may be
    assert found(made.root) == ["PCR_index.pb: no such file"]


def test_records_are_checked_by_what_is_left_of_the_index(made):
    (made.root / SAMPLES_NAME).unlink()
    cut(made.file(1))
    texts = found(made.root)
    assert texts[0] == "PCR_samples.ten: no such file"
    assert "PCR_1.pcr at byte" in texts[1]
    (made.root / INDEX_NAME).write_bytes(b"\xff")
    assert [text.split(":")[0].split()[0] for text in found(made.root)] == [
        "PCR_samples.ten",
        "PCR_index.pb",
        "PCR_1.pcr",
    ]
    (made.root / SQLITE_NAME).unlink()
    report = verify(made.root)
    assert [problem.path for problem in report.problems] == [SAMPLES_NAME, INDEX_NAME]
    assert (report.records, report.images) == (0, 0)


def test_a_manifest_that_is_damaged(made):
    flip(made.root / MANIFEST_NAME, 0)
    problem = only(made.root)
    assert problem.path == MANIFEST_NAME
    assert "is no JSON" in problem.reason


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"images": 9}, "images is 9, but by PCR_samples.ten 8"),
        ({"records": 2}, "records is 2, but by PCR_samples.ten 3"),
        ({"scan_groups": 9}, "scan_groups is 9, but by PCR_samples.ten 10"),
        ({"group_bytes": (1,)}, "group_bytes is (1,), but by PCR_samples.ten ("),
        ({"images_per_record": 2}, "images_per_record is 2, but a record has 3"),
        ({"class_names": ("a", "b")}, "sample 2: its label has no name, of 2, and 1 more"),
        ({"script": {"name": "x", "scans": []}}, "0 scans, expected 1 to"),
        ({"samples_crc32": 0}, "but 00000000 in the manifest"),
    ],
)
def test_a_manifest_that_contradicts_the_table(made, changes, text):
    made.rewrite_manifest(**changes)
    assert text in str(only(made.root))


@pytest.mark.parametrize(
    ("column", "row", "value", "text"),
    [
        ("nameends", 3, 0, "sample 3: its name ends before it begins"),
        ("nameends", 7, 1000, "names end at 1000, but there are"),
        ("orient", 5, 9, "sample 5: its orientation is not in 0 to 8"),
        ("labels", 5, -1, "sample 5: its label is negative"),
        ("parts", (1, 0), -4, "record PCR_1.pcr: part 0 has the length -4"),
    ],
)
def test_rows_that_cannot_be(made, column, row, value, text):
    values = getattr(made.table(), column).copy()
    values[row] = value
    made.rewrite_table(**{column: values})
    assert any(f"PCR_samples.ten: {text}" in problem for problem in found(made.root))


# -- sets of the original ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_sets_of_the_original(tmp_path, kind):
    root = copy_golden(kind, tmp_path / kind)
    reader = PcrReader(root)
    record = reader.records[0]
    path = root / record.name
    image, _ = reader.sample(1)
    frame = path.read_bytes().index(image[:20], 20) + image.index(b"\xff\xc2")
    flip(path, frame + 4, 0x04)
    problem = only(root)
    assert (problem.path, problem.image, problem.sample) == (record.name, 1, None)
    flip(path, frame + 4, 0x04)
    cut(path)
    assert "file ends in group 10" in only(root).reason


def test_raw_records_need_their_sizes(tmp_path):
    root = copy_golden("protobuf_raw", tmp_path / "raw")
    (root / SQLITE_NAME).unlink()
    assert found(root) == [
        f"PCR_{i}.pcr: is of version 2 with {n} images, but PCR.db has no sizes of it"
        for i, n in enumerate(np.diff(PcrReader(root).starts).tolist())
    ]


@pytest.mark.parametrize("change", [[1, 0], [5000, -5000]])
def test_sizes_of_raw_records_that_are_wrong(tmp_path, change):
    root = copy_golden("protobuf_raw", tmp_path / "raw")
    key = "m_PCR_full_index_PCR_1.pcr_3"
    with closing(sqlite3.connect(root / SQLITE_NAME)) as database, database:
        (value,) = database.execute("SELECT value FROM unnamed WHERE key = ?", (key,)).fetchone()
        sizes = pickle.loads(value)
        sizes[:2] += change
        row = pickle.dumps(sizes), key
        database.execute("UPDATE unnamed SET value = ? WHERE key = ?", row)
    problem = only(root)
    assert (problem.path, problem.part) == ("PCR_1.pcr", 4)
    assert "its image sizes in PCR.db make" in problem.reason


def test_an_index_of_the_original_that_is_damaged(tmp_path):
    root = copy_golden("sqlite", tmp_path / "sqlite")
    cut(root / SQLITE_NAME, 5000)
    assert only(root).path == SQLITE_NAME


# -- what is beside a set ---------------------------------------------------------------------


def test_other_files_are_named_and_harm_nothing(made):
    for name in ("notes.txt", UNFINISHED_NAME, ".PCR_3.done", "PCR_7.pcr"):
        (made.root / name).write_text("")
    (made.root / "folder").mkdir()
    (made.root / "PCR_report.jsonl").write_text("")
    report = verify(made.root)
    assert report.is_whole
    assert report.others == {
        ".PCR_3.done": "left by a conversion that was interrupted",
        "PCR_7.pcr": "a record that the index does not name",
        "PCR_unfinished.json": "left by a conversion that was interrupted",
        "folder": "not a file of the set",
        "notes.txt": "not a file of the set",
    }


def test_what_is_no_set_is_refused(tmp_path, made):
    with pytest.raises(PcrIndexError, match="holds no set of records"):
        verify(tmp_path)
    (made.root / MANIFEST_NAME).unlink()
    (made.root / UNFINISHED_NAME).write_text("{}")
    with pytest.raises(PcrIndexError, match="unfinished"):
        verify(made.root)


def test_verify_changes_nothing(made):
    def state():
        return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in made.root.iterdir()}

    before = state()
    verify(made.root, decode=True)
    assert state() == before
    assert Path(made.root).exists()


def test_problems_are_one_line_that_can_be_printed():
    assert str(Problem("a\udcff", "x", part=0, image=3)) == "a\\xff metadata image 3: x"
    assert str(Problem("a", "x", part=2, image=3, sample=9, offset=5)) == (
        "a group 2 image 3 (sample 9) at byte 5: x"
    )


def test_a_manifest_of_another_script_is_a_problem(tmp_path) -> None:
    root = tmp_path / "set"
    make_set(root)
    path = root / MANIFEST_NAME
    manifest = Manifest.from_json(path.read_bytes())
    path.write_bytes(replace(manifest, script=FAST.to_json()).to_json())
    assert any("scans are not those of the script fast" in reason for reason in found(root))


def test_an_edited_manifest_is_a_problem(tmp_path) -> None:
    root = tmp_path / "set"
    make_set(root)
    path = root / MANIFEST_NAME
    path.write_bytes(path.read_bytes().replace(b'"ant"', b'"ape"'))
    assert any("crc32 is not that of the other keys" in reason for reason in found(root))
