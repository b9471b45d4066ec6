"""Hostile sets of records from public bug reports, one test for each id."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pcr_helpers import copy_golden, cut, make_set

from tensorcom.errors import PcrError, PcrFormatError, PcrIndexError, PcrReadError
from tensorcom.pcr import PcrReader
from tensorcom.pcr.manifest import INDEX_NAME, MANIFEST_NAME, SAMPLES_NAME
from tensorcom.pcr.sqlite_index import FILE_NAME as SQLITE_NAME
from tensorcom.pcr.sqlite_index import write_sqlite_index
from tensorcom.pcr.verify import verify
from tensorcom.pcr.wire import decode_index, decode_metadata, encode_index, group_spans

ROOT = Path(__file__).parent / "hardcases"
CANARY = "PWNED_BY_PICKLE"
MB = 1 << 20


def read_all(root):
    """Read a set in every way."""
    with PcrReader(root) as reader:
        for record in range(len(reader.records)):
            reader.read_record(record)
        for sample in range(len(reader)):
            reader.sample(sample)


def refusal(root):
    """Return the error of reading a set, which may not take much memory."""
    tracemalloc.start()
    try:
        with pytest.raises(PcrError) as caught:
            read_all(root)
        assert tracemalloc.get_traced_memory()[1] < 32 * MB
    finally:
        tracemalloc.stop()
    return caught.value


def peak_bytes():
    """Return the most memory that this process has had; tracing it is slow with many objects."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reasons(root):
    return [str(problem) for problem in verify(root).problems]


def entries_of(root):
    return [[name, list(parts)] for name, parts in decode_index((root / INDEX_NAME).read_bytes())]


def write_entries(root, entries, *, repeat=1):
    """Write the index of a set of the original again, as it repeats itself."""
    names = [name for name, _ in entries for _ in range(repeat)]
    (root / INDEX_NAME).write_bytes(
        encode_index(names, [p for _, p in entries for _ in range(repeat)])
    )


@pytest.fixture
def original(tmp_path):
    root = copy_golden("protobuf", tmp_path / "set")
    (root / SQLITE_NAME).unlink()
    return root


# -- X01: a pickle in PCR.db ------------------------------------------------------------------


def pickle_of(database):
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)) as found:
        values = dict(found.execute("SELECT key, value FROM unnamed"))
    return next(value for value in values.values() if CANARY.encode() in value)


@pytest.mark.parametrize("place", ["m_classes", "PCR_0.pcr", "m_PCR_full_index_PCR_0.pcr_0"])
def test_X01_a_hostile_database_runs_nothing(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    hostile = ROOT / "X01" / SQLITE_NAME
    root = copy_golden("protobuf_raw", tmp_path / "set")
    shutil.copy(hostile, tmp_path / "set" / SQLITE_NAME)
    (root / INDEX_NAME).rename(tmp_path / "index")
    assert isinstance(refusal(root), PcrError)  # the lengths in it are none of a set
    assert reasons(root) != []
    # The same value in a database that is right else.
    shutil.copy(Path(__file__).parent / "pcr" / "protobuf_raw" / SQLITE_NAME, root)
    with closing(sqlite3.connect(root / SQLITE_NAME)) as database, database:
        row = pickle_of(hostile), place, f"/{place}"
        changed = database.execute("UPDATE unnamed SET value = ? WHERE key IN (?, ?)", row)
        assert changed.rowcount == 1
    if place == "m_classes":
        read_all(root)  # it is not looked at
        assert reasons(root) == []
    else:
        error = refusal(root)
        assert isinstance(error, PcrFormatError)
        assert error.path == str(root / SQLITE_NAME)
        assert "pickle asks for posix.mkdir, expected integers only" in error.reason
        assert any(CANARY not in reason and "posix.mkdir" in reason for reason in reasons(root))
    (tmp_path / "index").rename(root / INDEX_NAME)
    with PcrReader(root) as reader:
        assert len(reader) == 17
    verify(root)
    assert not (tmp_path / CANARY).exists()
    assert list(tmp_path.rglob(f"*{CANARY}*")) == []


# -- X02: many tiny fields, and a giant length ------------------------------------------------


def test_X02_tiny_fields_and_a_giant_length_are_bounded(original):
    data = (ROOT / "X02.pcr").read_bytes()
    before = peak_bytes()
    for call in (
        lambda: decode_metadata(data),
        lambda: group_spans(memoryview(data), 200_000),
        lambda: group_spans(memoryview(data), 4),
        lambda: decode_index(data),
    ):
        with pytest.raises(PcrFormatError):
            call()
    entries = entries_of(original)
    path = original / entries[0][0]
    path.write_bytes(data)  # the metadata, and the group after it, are tiny fields
    entries[0][1] = [1000, len(data) - 1000]
    write_entries(original, entries)
    with pytest.raises(PcrFormatError):
        read_all(original)
    assert any(entries[0][0] in reason for reason in reasons(original))
    head = b"\x08\x00" * 200_000 + b"\x10\x01\x18\x01"
    path.write_bytes(head + data)
    entries[0][1] = [len(head), len(data)]
    write_entries(original, entries)
    with pytest.raises(PcrFormatError, match="9223372036854775807 bytes exceeds") as caught:
        read_all(original)
    assert caught.value.offset == len(head) + 400_000
    assert any("9223372036854775807" in reason for reason in reasons(original))
    assert peak_bytes() - before < 128 * MB


def test_X02_groups_that_are_empty_take_no_memory(original):
    entries = entries_of(original)
    path = original / entries[0][0]
    head = b"\x08\x00" * 10_000 + b"\x10\x80\x08\x18\x01"  # 1024 groups
    path.write_bytes(head + b"\x0a\x00" * 10_000)
    entries[0][1] = [len(head), 20_000, *[0] * 1022]
    write_entries(original, entries)
    tracemalloc.start()
    with PcrReader(original) as reader:
        assert len(reader.read_prefix(0)) == 10_000
        assert reader.read_prefix(0).jpeg(9_999) == b"\xff\xd9"
    reasons(original)
    assert tracemalloc.get_traced_memory()[1] < 16 * MB  # with columns for all, 160
    tracemalloc.stop()
    entries[0][1] = [len(head), *[0] * 1022, 20_000]
    write_entries(original, entries)
    assert isinstance(refusal(original), PcrFormatError)


# -- X03: names that lead elsewhere -----------------------------------------------------------


NAMES = ["../x", "../set/PCR_0.pcr", "/etc/passwd", "a\0b", "", ".", "..", "sub/PCR_0.pcr",
         "PCR_0.pcr\0", "C:\\x", "..\\x", ".hidden", "file:///etc/passwd"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("index", [INDEX_NAME, SQLITE_NAME])
def test_X03_names_cannot_leave_the_directory(original, name, index):
    entries = entries_of(original)
    (original / "sub").mkdir()
    shutil.copy(original / entries[0][0], original / "sub")
    shutil.copy(original / entries[0][0], original.parent / "x")
    entries[0][0] = name
    (original / INDEX_NAME).unlink()
    if index == INDEX_NAME:
        write_entries(original, entries, repeat=10)
    else:
        # A slash in front belongs to the form of the original: one is taken off.
        stored = [(f"/{name}" if name.startswith("/") else name, p) for name, p in entries]
        write_sqlite_index(original / index, stored, images=17, classes=3, batch=5)
    error = refusal(original)
    assert isinstance(error, PcrFormatError)
    assert error.path == str(original / index)
    assert "no plain file name" in error.reason or "no readable SQLite" in error.reason
    (problem,) = verify(original).problems
    assert problem.path == index


@pytest.mark.parametrize("target", ["outside", "absolute", "chain", "directory"])
def test_X03_links_cannot_leave_the_directory(original, target):
    entries = entries_of(original)
    path = original / entries[0][0]
    outside = original.parent / "outside"
    shutil.move(path, outside)
    if target == "chain":
        (original / "link").symlink_to(outside)
        path.symlink_to("link")
    elif target == "directory":
        (original / "up").symlink_to(original.parent)
        path.symlink_to("up/outside")
    else:
        path.symlink_to(outside if target == "absolute" else "../outside")
    error = refusal(original)
    assert isinstance(error, PcrFormatError)
    assert "is a link out of the set" in error.reason
    assert any("is a link out of the set" in reason for reason in reasons(original))


def test_X03_a_link_in_the_directory_is_followed(original):
    entries = entries_of(original)
    path = original / entries[0][0]
    shutil.move(path, original / "moved")
    path.symlink_to("moved")
    read_all(original)
    assert reasons(original) == []


def test_X03_our_sets_have_no_names_to_edit(tmp_path):
    made = make_set(tmp_path / "set")
    data = (made.root / INDEX_NAME).read_bytes().replace(b"PCR_0.pcr", b"../../x.p")
    (made.root / INDEX_NAME).write_bytes(data)
    read_all(made.root)  # names come from numbers
    assert any("no plain file name" in reason for reason in reasons(made.root))


# -- X05: index and file disagree -------------------------------------------------------------


def past_the_end(parts):
    parts[-1] += 1000


def far_past_the_end(parts):
    parts[5] = 2**31 - 1


def beyond_a_part(parts):
    parts[5] = 2**31


def beyond_64_bits(parts):
    parts[5] = 2**64 - 8  # -8, as protobuf has it: parts that overlap


def descending(parts):
    parts[2], parts[3] = parts[2] + 100, parts[3] - 100


def descending_below_zero(parts):
    parts[2], parts[3] = parts[2] + parts[3] + 5, 2**64 - 5


def no_metadata(parts):
    parts[0] = 0


def too_many_groups(parts):
    parts.extend([1] * 2000)


def one_group_more(parts):
    parts.append(0)
    parts[-2] -= 1
    parts[-1] += 1


def swapped(parts):
    parts[1], parts[10] = parts[10], parts[1]


def doubled(parts):
    parts[:] = [2 * part for part in parts]


PATCHES = [past_the_end, far_past_the_end, beyond_a_part, beyond_64_bits, descending,
           descending_below_zero, no_metadata, too_many_groups, one_group_more, swapped,
           doubled]  # fmt: skip


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.__name__)
@pytest.mark.parametrize("index", [INDEX_NAME, SQLITE_NAME])
def test_X05_an_index_that_disagrees_with_the_file_is_refused(original, patch, index):
    entries = entries_of(original)
    patch(entries[1][1])
    (original / INDEX_NAME).unlink()
    if index == INDEX_NAME:
        write_entries(original, entries, repeat=10)
    else:
        stored = [(n, [p - (p >> 63 << 64) for p in parts]) for n, parts in entries]
        write_sqlite_index(original / index, stored, images=17, classes=3, batch=5)
    error = refusal(original)
    assert isinstance(error, (PcrFormatError, PcrReadError))
    assert entries[1][0] in str(error)
    assert any(entries[1][0] in reason or index in reason for reason in reasons(original))


@pytest.mark.parametrize(
    "patch",
    [p for p in PATCHES if p is not too_many_groups],  # a table has as many columns as groups
    ids=lambda patch: patch.__name__,
)
def test_X05_a_table_of_ours_that_disagrees_with_the_file_is_refused(tmp_path, patch):
    made = make_set(tmp_path / "set")
    parts = made.table().parts.copy()
    row = parts[1].tolist()
    patch(row)
    parts[1] = [p - (p >> 63 << 64) for p in row[:11]]
    made.rewrite_table(parts=parts)
    error = refusal(made.root)
    assert isinstance(error, (PcrFormatError, PcrReadError))
    assert "PCR_1.pcr" in str(error)
    assert any("PCR_1.pcr" in reason for reason in reasons(made.root))


@pytest.mark.parametrize("count", [0, 9, 1025, 2**31, 2**63])
def test_X05_scan_counts_that_cannot_be_are_refused(original, count):
    entries = entries_of(original)
    path = original / entries[1][0]
    data = path.read_bytes()
    size = entries[1][1][0]
    head = data[: size - 4]
    assert data[size - 4 : size] == b"\x10\x0a\x18\x01"
    varint = bytearray()
    value = count
    while value > 127:
        varint.append(value & 127 | 128)
        value >>= 7
    head += b"\x10" + bytes([*varint, value]) + b"\x18\x01"
    path.write_bytes(head + data[size:])
    entries[1][1][0] = len(head)
    write_entries(original, entries)
    error = refusal(original)
    assert isinstance(error, PcrFormatError)
    assert f"{count} scan groups" in error.reason
    assert any(f"{count} scan groups" in reason for reason in reasons(original))


@pytest.mark.parametrize("groups", [0, 2**31, 2**40])
def test_X05_scan_counts_of_a_manifest_that_cannot_be_are_refused(tmp_path, groups):
    made = make_set(tmp_path / "set")
    data = (made.root / MANIFEST_NAME).read_bytes()
    changed = data.replace(b'"scan_groups": 10', b'"scan_groups": %d' % groups)
    assert changed != data
    (made.root / MANIFEST_NAME).write_bytes(changed)
    assert f"scan_groups is {groups}, expected 1 to 1024" in str(refusal(made.root))
    assert any(f"scan_groups is {groups}" in reason for reason in reasons(made.root))


def test_X05_a_record_cut_by_one_byte_is_refused(original, tmp_path):
    made = make_set(tmp_path / "ours")
    for root in (original, made.root):
        with PcrReader(root) as reader:
            name = reader.records[1].name
        size = (root / name).stat().st_size
        cut(root / name)
        error = refusal(root)
        assert isinstance(error, PcrReadError)
        assert error.path == str(root / name)
        assert error.offset == size - 1
        assert f"only {size - 1} bytes, but was asked for bytes up to {size}" in error.reason
        with PcrReader(root) as reader:  # all that is there can be had
            reader.read_record(1, scan_groups=9)
            reader.read_record(0)
        assert reasons(root) == [
            f"{name} at byte {size - 1}: file ends in group 10, expected {size} bytes"
        ]


def test_X05_entries_that_contradict_each_other_are_refused(original):
    entries = entries_of(original)
    other = [entries[0][0], [*entries[0][1][:-1], entries[0][1][-1] - 1]]
    write_entries(original, [*entries, other])
    assert "has two entries that differ" in str(refusal(original))
    assert any("two entries that differ" in reason for reason in reasons(original))


def test_X05_image_sizes_that_disagree_are_refused(tmp_path):
    made = make_set(tmp_path / "set")
    for value in (-1, 0, 2**31 - 1):
        sizes = made.table().sizes.copy()
        kept = sizes.copy()
        sizes[4, 3] = value
        made.rewrite_table(sizes=sizes)
        error = refusal(made.root)
        assert "PCR_1.pcr" in str(error)
        assert any("PCR_1.pcr group 4" in reason for reason in reasons(made.root))
        made.rewrite_table(sizes=kept)
    assert reasons(made.root) == []
    (made.root / SAMPLES_NAME).unlink()
    assert isinstance(refusal(made.root), PcrIndexError)
    assert np.array_equal(made.labels, [0, 1, 2, 0, 1, 2, 0, 1])
