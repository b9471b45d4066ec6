"""The table of records: what it refuses, and where it says that parts end."""

from __future__ import annotations

import numpy as np
import pytest

from tensorcom.errors import PcrFormatError
from tensorcom.pcr.layout import MAX_PART_BYTES, RecordTable, check_name, record_name
from tensorcom.pcr.wire import MAX_GROUPS

GOOD = [("a.pcr", (5, 10, 0, 7)), ("b.pcr", (6, 1, 2))]


def refusal(entries):
    with pytest.raises(PcrFormatError) as caught:
        RecordTable.from_entries(entries, path="PCR_index.pb")
    assert caught.value.path == "PCR_index.pb"
    return caught.value.reason


def test_a_table_has_lengths_and_ends():
    table = RecordTable.from_entries(GOOD)
    assert (len(table), table.groups, tuple(table.names)) == (2, 3, ("a.pcr", "b.pcr"))
    assert table.parts.tolist() == [[5, 10, 0, 7], [6, 1, 2, 0]]
    assert table.ends.tolist() == [[5, 15, 15, 22], [6, 7, 9, 9]]
    assert table.parts.dtype == table.ends.dtype == np.int64


def test_entries_that_come_again_count_once():
    table = RecordTable.from_entries([GOOD[0], GOOD[1], GOOD[0], GOOD[1]])
    assert tuple(table.names) == ("a.pcr", "b.pcr")


def test_ends_are_beyond_32_bits():
    table = RecordTable.from_entries([("a", [MAX_PART_BYTES] * 4)])
    assert table.ends[0, -1] == 4 * MAX_PART_BYTES


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "../x", "/x", "a/b", "a\\b", "a\0b", "C:x", "x/"]
)
def test_names_that_are_no_plain_file_names_are_refused(name):
    with pytest.raises(PcrFormatError, match="is no plain file name of the set's directory"):
        check_name(name)
    assert "no plain file name" in refusal([(name, (1, 2))])


@pytest.mark.parametrize("name", ["PCR_0.pcr", "a b", "é", "\udcff", "x..y", "~"])
def test_plain_names_are_taken(name):
    assert check_name(name) == name


FAULTS = {
    "nothing": ([], "index names no record"),
    "no groups": ([("a", (5,))], "record a has 0 scan groups, expected 1 to 1024"),
    "too many groups": ([("a", [1] * (MAX_GROUPS + 2))], "record a has 1025 scan groups"),
    "two that differ": ([*GOOD, ("a.pcr", (5, 10, 0, 8))], "record a.pcr has two entries"),
    "negative": ([("a", (5, -1))], "record a has a part of impossible length: (5, -1)"),
    "negative as protobuf has it": ([("a", (5, (1 << 64) - 1))], "impossible length"),
    "too long": ([("a", (5, MAX_PART_BYTES + 1))], "impossible length"),
    "no metadata": ([("a", (0, 5))], "record a: part 0 has the length 0, expected 1 to 2147483647"),
    "no first group": ([GOOD[0], ("b", (3, 0, 5))], "record b: part 1 has the length 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_entries_that_cannot_be_are_refused(name):
    entries, text = FAULTS[name]
    assert text in refusal(entries)


def test_arrays_that_cannot_be_are_refused():
    for row in ([1, 1, -1], [1, 1, MAX_PART_BYTES + 1], [0, 1, 1], [1, 0, 1]):
        with pytest.raises(PcrFormatError, match="record b: part . has the length"):
            RecordTable.of(("a", "b"), np.array([[1, 1, 0], row], np.int64))


def test_scan_groups_are_checked():
    table = RecordTable.from_entries(GOOD)
    assert [table.check_groups(k) for k in (1, 3, np.int64(2), None)] == [1, 3, 2, 3]
    for wrong in (0, -1, 4, 2**31):
        with pytest.raises(ValueError, match=f"scan_groups={wrong}, expected 1 to 3"):
            table.check_groups(wrong)
    for wrong in (True, 1.0, "1"):
        with pytest.raises(ValueError, match="expected an integer or None"):
            table.check_groups(wrong)


def test_record_names():
    assert record_name(12) == "PCR_12.pcr"
