"""What lets a conversion go on, what keeps it from that, and what is kept of a finished record."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from convert_helpers import contents, done_in, jpeg, killed_before, make_folder, samples_of
from jpeg_helpers import hard

from tensorcom.errors import JpegError, PcrWriteError
from tensorcom.pcr import PcrReader
from tensorcom.pcr.conversion import convert
from tensorcom.pcr.conversion.report import NOTED, SKIPPED, Tally, report_line
from tensorcom.pcr.conversion.state import Done, differences, load_done
from tensorcom.pcr.target import Target, done_name
from tensorcom.pcr.writer import PcrWriter


@pytest.fixture
def begun(tmp_path) -> Path:
    """Return an unfinished set of the folder `images`, with two records."""
    make_folder(tmp_path / "images")
    root = tmp_path / "set"
    killed_before(2, tmp_path / "images", root, images_per_record=2)
    return root


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"images_per_record": 3}, "images_per_record was 2 and is 3"),
        ({"seed": 7}, "seed was 0 and is 7"),
        ({"shuffle": False}, "shuffle was True and is False; seed was 0 and is None"),
        ({"script": "fast"}, "script was 'standard' and is 'fast'"),
        ({"sqlite_index": True}, "sqlite_index was False and is True"),
    ],
)
def test_other_options_are_told(begun, tmp_path, options, reason) -> None:
    before = contents(begun)
    with pytest.raises(PcrWriteError) as caught:
        convert(tmp_path / "images", begun, **{"images_per_record": 2, **options})
    assert str(caught.value) == (
        f"{begun}: holds an unfinished set, but {reason}: force=True (--force) starts over"
    )
    assert contents(begun) == before
    convert(tmp_path / "images", begun, **{"images_per_record": 2, **options, "force": True})
    assert len(samples_of(begun)) == 12


def test_a_changed_source_is_told(begun, tmp_path) -> None:
    path = tmp_path / "images" / "ant" / "000.jpg"
    os.utime(path, (1, 1))
    with pytest.raises(PcrWriteError, match="but names, sizes or times of the source's files have"):
        convert(tmp_path / "images", begun, images_per_record=2)
    (tmp_path / "images" / "ant" / "new.jpg").write_bytes(jpeg(50))
    with pytest.raises(PcrWriteError, match="images was 12 and is 13; names, sizes or times of"):
        convert(tmp_path / "images", begun, images_per_record=2)
    with pytest.raises(PcrWriteError, match="kind was 'folder' and is 'iterable'"):
        convert([(jpeg(0), 0)], begun, images_per_record=2)


def test_what_does_not_matter_may_differ(begun, tmp_path) -> None:
    convert(tmp_path / "images", tmp_path / "whole", images_per_record=2)
    report = tmp_path / "r.jsonl"
    convert(
        tmp_path / "images",
        begun,
        images_per_record=2,
        workers=3,
        on_error="skip",
        report=report,
    )
    assert {**contents(begun), "PCR_report.jsonl": report.read_bytes()} == contents(
        tmp_path / "whole"
    )


def test_a_bad_image_stops_and_a_milder_policy_goes_on(tmp_path) -> None:
    """What a strict policy has finished is what a milder one makes of it."""
    images = make_folder(tmp_path / "images")
    (images / "cat" / "png.jpg").write_bytes(hard("A01.JPEG"))
    options = {"images_per_record": 2, "shuffle": False, "workers": 1}
    root = tmp_path / "set"
    with pytest.raises(JpegError, match="is PNG"):
        convert(images, root, **options)
    assert done_in(root) > 0
    report = convert(images, root, reencode=90, **options)
    assert (report.tally.reencoded, report.tally.skipped) == (1, 0)
    assert report.resumed > 0
    convert(images, tmp_path / "whole", reencode=90, **options)
    assert contents(root) == contents(tmp_path / "whole")


def test_a_policy_does_not_change_once_files_were_skipped(tmp_path) -> None:
    images = make_folder(tmp_path / "images")
    (images / "ant" / "000.jpg").write_bytes(hard("A01.JPEG"))
    options = {"images_per_record": 2, "shuffle": False, "on_error": "skip"}
    root = tmp_path / "set"
    killed_before(1, images, root, **options)
    with pytest.raises(PcrWriteError, match="but reencode was None and is 90: force"):
        convert(images, root, reencode=90, **options)


def test_the_set_of_a_writer_does_not_go_on(tmp_path) -> None:
    writer = PcrWriter(tmp_path, images_per_record=1)
    writer.add(jpeg(0), 0)
    writer._target.close()  # as a kill would
    with pytest.raises(PcrWriteError, match="'PcrWriter' began the unfinished set in it, which"):
        convert([(jpeg(0), 0)], tmp_path, images_per_record=1)
    with pytest.raises(PcrWriteError, match="holds an unfinished set; force=True"):
        PcrWriter(tmp_path)


def state(**changes) -> dict:
    made = {
        "by": "convert",
        "source": {"kind": "folder", "images": 3},
        "options": {"seed": 0, "class_names": ["a", "b", "c", "d", "e"]},
        "policy": {"lenient": False, "reencode": None},
    }
    return json.loads(json.dumps({**made, **changes}))


@pytest.mark.parametrize(
    ("old", "new", "skipped", "found"),
    [
        ({}, {}, 5, []),
        ({"policy": {"lenient": True, "reencode": None}}, {}, 0, ["lenient was True and is False"]),
        ({}, {"policy": {"lenient": True, "reencode": 50}}, 0, []),
        (
            {},
            {"policy": {"lenient": True, "reencode": None}},
            1,
            ["lenient was False and is True"],
        ),
        (
            {"policy": {"lenient": False, "reencode": 80}},
            {"policy": {"lenient": False, "reencode": 90}},
            0,
            ["reencode was 80 and is 90"],
        ),
        ({"source": 5}, {}, 0, ["its source is not known"]),
        ({"by": None}, {}, 0, ["None began the unfinished set in it, which cannot go on"]),
        (
            {"options": {"seed": 0, "class_names": ["a"]}},
            {},
            0,
            ["class_names was ['a'] and is ['a', 'b', 'c'] and 2 more"],
        ),
    ],
)
def test_differences(old, new, skipped, found) -> None:
    assert differences(state(**old), state(**new), skipped=skipped) == found


def test_what_is_known_of_a_record_comes_back(tmp_path) -> None:
    with PcrWriter(tmp_path / "set") as writer:
        writer.add(jpeg(0), 0, name="a")
    with PcrReader(tmp_path / "set") as reader:
        table, groups = reader._samples, reader.scan_groups
    lines = report_line("a\udcff", SKIPPED, ["b", "c"]) + report_line("d", NOTED, ["e"])
    done = Done(0, table, Tally(5, 1, 2, 1, 77), lines)
    with Target(tmp_path / "set") as target:
        target.write(done_name(0), done.encode())
        found = load_done(target, 0, groups)
        assert load_done(target, 1, groups) is None
        assert load_done(target, 0, groups - 1) is None
    assert (found.tally, found.lines) == (done.tally, lines)
    assert found.table.name(0) == "a"
    assert [json.loads(line) for line in lines.splitlines()] == [
        {"path": "a\udcff", "status": "skipped", "reason": "b; c"},
        {"path": "d", "status": "noted", "notes": ["e"]},
    ]
