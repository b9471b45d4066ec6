"""From images to a set: rows, limits, and what the other formats say of the same records."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from convert_helpers import contents

from tensorcom import SourceError
from tensorcom.errors import PcrError, PcrWriteError
from tensorcom.pcr import assemble
from tensorcom.pcr.assemble import RecordBuilder, check_label, merge_tables, write_set
from tensorcom.pcr.manifest import Manifest, SampleTable
from tensorcom.pcr.scripts import ScanScript, load_script
from tensorcom.pcr.sqlite_index import read_sqlite_index
from tensorcom.pcr.target import Target
from tensorcom.pcr.wire import decode_index

GROUPS = 3


def build(number: int, *sizes: int) -> tuple[bytes, SampleTable]:
    """Build a record of images of these sizes, each of which has nothing in group 2."""
    builder = RecordBuilder(GROUPS)
    for place, size in enumerate(sizes):
        groups = [b"a" * size, b"", b"c" * (2 * size)]
        builder.add(groups, label=place, name=f"{number}/{place}", orientation=place % 9)
    pieces, table = builder.build(number)
    return b"".join(pieces), table


def test_rows_of_a_record() -> None:
    data, table = build(7, 5, 200)
    assert table.sizes.tolist() == [[5, 0, 10], [200, 0, 400]]
    assert table.labels.tolist() == table.orient.tolist() == [0, 1]
    assert [table.name(place) for place in range(2)] == ["7/0", "7/1"]
    assert (table.numbers.tolist(), table.firsts.tolist()) == ([7], [0, 2])
    assert table.parts.sum() == len(data)
    SampleTable.decode(table.encode())  # it contradicts itself nowhere


def test_a_record_of_no_images_has_no_rows() -> None:
    pieces, table = RecordBuilder(GROUPS).build(3)
    assert pieces == ()
    again = SampleTable.decode(table.encode())
    assert (len(again.labels), len(again.numbers), again.parts.shape) == (0, 0, (0, 1 + GROUPS))


def test_rows_join() -> None:
    tables = [build(0, 5, 6)[1], RecordBuilder(GROUPS).build(1)[1], build(4, 7)[1], build(9, 8)[1]]
    table = SampleTable.decode(merge_tables(tables).encode())
    assert table.sizes[:, 0].tolist() == [5, 6, 7, 8]
    assert table.firsts.tolist() == [0, 2, 3, 4]
    assert table.numbers.tolist() == [0, 4, 9]
    assert [table.name(sample) for sample in range(4)] == ["0/0", "0/1", "4/0", "9/0"]
    np.testing.assert_array_equal(table.parts, np.concatenate([t.parts for t in tables]))
    np.testing.assert_array_equal(table.crc32, np.concatenate([t.crc32 for t in tables]))


def test_names_that_are_no_utf8_keep_their_bytes() -> None:
    builder = RecordBuilder(GROUPS)
    builder.add([b"a", b"", b""], label=0, name="a\udcff.jpg", orientation=0)
    table = builder.build(0)[1]
    assert table.names.tobytes() == b"a\xff.jpg"
    assert table.name(0) == "a\udcff.jpg"


def test_X06_a_group_over_2_GiB_is_refused_before_the_record_is_gathered() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 800_000_000

    builder = RecordBuilder(GROUPS)
    for _ in range(2):
        builder.add([b"a", Huge(), b""], label=0, name="", orientation=0)
    with pytest.raises(PcrError) as caught:
        builder.add([b"a", Huge(), b""], label=0, name="", orientation=0)
    assert str(caught.value) == (
        "scan group 2 of 3 images has 2400000018 bytes, expected at most 2147483647: put fewer "
        "images into a record"
    )
    assert len(builder) == 2
    builder.add([b"a", b"", b""], label=0, name="", orientation=0)  # one that fits


@pytest.mark.parametrize(
    ("label", "classes", "reason"),
    [
        ("1", None, "label is '1', expected an integer from 0"),
        (True, None, "label is True, expected an integer from 0"),
        (None, 3, "label is None, expected an integer from 0"),
        (1.0, 3, "label is 1.0, expected an integer from 0"),
        (-1, 3, "label is -1, expected an integer from 0"),
        (3, 3, "label is 3, expected at most 2, the last that has a name"),
        (10**6, None, "label is 1000000, expected at most 999999, without names for classes"),
        (2**31, 2**40, "label is 2147483648, expected at most 2147483647, the last that has a"),
    ],
)
def test_bad_labels(label, classes, reason) -> None:
    with pytest.raises(SourceError) as caught:
        check_label(label, classes, path="x.jpg")
    assert str(caught.value).startswith(f"x.jpg: {reason}")


def test_labels_of_numpy_are_integers() -> None:
    found = check_label(np.int64(2), 3, path="x")
    assert (found, type(found)) == (2, int)
    assert check_label(999_999, None, path="x") == 999_999


@pytest.fixture
def script() -> ScanScript:
    standard = load_script("standard")
    return ScanScript("three", standard.color[:GROUPS])


def test_the_files_of_a_set_agree(tmp_path, script) -> None:
    table = merge_tables([build(0, 5, 6)[1], build(2, 7)[1]])
    with Target(tmp_path) as target:
        manifest = write_set(
            target,
            table,
            script=script,
            class_names=None,
            images_per_record=2,
            sqlite_index=True,
            source_bytes=1234,
        )
    files = contents(tmp_path)
    assert set(files) == {"PCR_index.pb", "PCR_manifest.json", "PCR_samples.ten", "PCR.db"}
    assert Manifest.from_json(files["PCR_manifest.json"]) == manifest
    assert manifest.class_names == ("0", "1")
    assert (manifest.images, manifest.records, manifest.scan_groups) == (3, 2, GROUPS)
    assert manifest.source_bytes == 1234
    assert manifest.created_by == "tensorcom 0.2.0"
    entries = [
        (f"PCR_{number}.pcr", tuple(parts))
        for number, parts in zip((0, 2), table.parts.tolist(), strict=True)
    ]
    assert decode_index(files["PCR_index.pb"]) == entries
    assert read_sqlite_index(files["PCR.db"]).entries[-2:] == entries
    assert manifest.group_bytes == tuple(
        int(table.parts[:, : group + 2].sum()) for group in range(GROUPS)
    )


def test_a_set_of_no_images_is_none(tmp_path, script) -> None:
    table = merge_tables([RecordBuilder(GROUPS).build(0)[1]])
    with Target(tmp_path) as target, pytest.raises(PcrError, match="the set would hold no image"):
        write_set(
            target,
            table,
            script=script,
            class_names=None,
            images_per_record=2,
            sqlite_index=False,
            source_bytes=0,
        )
    assert contents(tmp_path) == {}


def test_the_manifest_comes_last_and_a_failing_index_is_named(
    tmp_path, script, monkeypatch
) -> None:
    def fail(*args, **options) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(assemble, "write_sqlite_index", fail)
    with Target(tmp_path) as target, pytest.raises(PcrWriteError) as caught:
        write_set(
            target,
            build(0, 5)[1],
            script=script,
            class_names=("a",),
            images_per_record=2,
            sqlite_index=True,
            source_bytes=0,
        )
    assert str(caught.value) == (f"{tmp_path}/PCR.db: cannot be written: database or disk is full")
    assert "PCR_manifest.json" not in contents(tmp_path)
