"""What our sets add: the manifest, the table of samples, and what each refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcom.errors import PcrFormatError
from tensorcom.pcr.manifest import SAMPLES_NAME, Manifest, SampleTable, encode_name
from tensorcom.pcr.scripts import STANDARD
from tensorcom.tenbin import encode_buffer

MANIFEST = Manifest(
    images=5,
    records=2,
    scan_groups=3,
    images_per_record=3,
    class_names=("ant", "bée", "\udcff", 'q"'),
    script=STANDARD.to_json(),
    group_bytes=(10, 2**40, 2**50),
    samples_crc32=0xFFFFFFFF,
    created_by="tests 1.0",
)


def make_table(**changes):
    names = [b"a.jpg", b"", b"\xff\xfe", "é".encode(), b"last"]
    columns = {
        "sizes": np.arange(15, dtype=np.int32).reshape(5, 3),
        "labels": np.array([0, 1, 2, 1, 0], np.int32),
        "orient": np.array([0, 1, 6, 8, 0], np.uint8),
        "nameends": np.cumsum([len(name) for name in names], dtype=np.int64),
        "names": np.frombuffer(b"".join(names), np.uint8),
        "firsts": np.array([0, 3, 5], np.int64),
        "numbers": np.array([0, 7], np.int64),
        "parts": np.array([[5, 10, 11, 12], [4, 2**30, 2**30, 2**30]], np.int64),
        "crc32": np.array([[1, 2, 3, 4], [5, 6, 7, 0xFFFFFFFF]], np.uint32),
    }
    return SampleTable(**{**columns, **changes})


def same(left, right):
    return all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in SampleTable.__dataclass_fields__
    )


# -- manifest ---------------------------------------------------------------------------------


def test_a_manifest_comes_back():
    data = MANIFEST.to_json()
    assert Manifest.from_json(data) == MANIFEST
    assert data.isascii()
    assert json.loads(data)["format"] == "tensorcom-pcr"


def changed(**changes):
    return json.dumps({**json.loads(MANIFEST.to_json()), **changes}).encode()


def without(key):
    value = json.loads(MANIFEST.to_json())
    del value[key]
    return json.dumps(value).encode()


FAULTS = {
    "no JSON": (b"{", "is no JSON"),
    "no text": (b"\xff", "is no JSON"),
    "deep": (b"[" * 100_000, "is no JSON"),
    "a list": (b"[]", 'has no "format": "tensorcom-pcr"'),
    "another format": (changed(format="x"), 'has no "format"'),
    "a later version": (changed(format_version=2), "format version 2 is not known, expected 1"),
    "a version as text": (changed(format_version="1"), "format version '1' is not known"),
    "no groups": (changed(scan_groups=0), "scan_groups is 0, expected 1 to 1024"),
    "too many groups": (changed(scan_groups=2**31), "scan_groups is 2147483648"),
    "negative": (changed(images=-1), "images is -1, expected an integer from 0"),
    "a float": (changed(records=1.0), "records is 1.0, expected an integer from 0"),
    "a boolean": (changed(images_per_record=True), "images_per_record is True"),
    "huge": (changed(images=10**30), "expected an integer from 0"),
    "no script": (changed(scan_script=None), "scan_script is no object"),
    "names of another kind": (changed(class_names=["a", 1]), "class_names is no list of str"),
    "bytes as text": (changed(group_bytes="12"), "group_bytes is no list of int"),
    "no checksum": (without("samples_crc32"), "samples_crc32 is None"),
    "no names": (without("class_names"), "class_names is no list of str"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_manifests_that_cannot_be_are_refused(name):
    data, text = FAULTS[name]
    with pytest.raises(PcrFormatError) as caught:
        Manifest.from_json(data, path="m.json")
    assert caught.value.path == "m.json"
    assert text in caught.value.reason


@given(st.binary(max_size=50) | st.recursive(
    st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_json_is_refused(data):
    with pytest.raises(PcrFormatError):
        Manifest.from_json(data)


# -- table of samples -------------------------------------------------------------------------


def test_a_table_comes_back_from_bytes_and_as_a_map(tmp_path):
    table = make_table()
    data = table.encode()
    assert same(SampleTable.decode(data), table)
    (tmp_path / SAMPLES_NAME).write_bytes(data)
    loaded = SampleTable.load(tmp_path / SAMPLES_NAME)
    assert same(loaded, table)
    assert not loaded.sizes.flags.writeable
    assert not loaded.sizes.flags.owndata


def test_names_may_be_any_bytes():
    table = make_table()
    assert [table.name(i) for i in range(5)] == ["a.jpg", "", "\udcff\udcfe", "é", "last"]
    for i in range(5):
        start = 0 if i == 0 else int(table.nameends[i - 1])
        stop = int(table.nameends[i])
        assert encode_name(table.name(i)) == table.names[start:stop].tobytes()
    assert encode_name("a\ud800") == b"a\\ud800"  # a surrogate that no file system gave


def test_names_that_contradict_themselves_are_refused():
    for ends in ([9, 3, 9, 9, 9], [-1, 5, 5, 5, 5], [5, 5, 7, 9, 2**40]):
        table = make_table(nameends=np.array(ends, np.int64))
        with pytest.raises(PcrFormatError, match="name of sample . is out of bounds"):
            for sample in range(5):
                table.name(sample)


def test_records_are_named_by_their_numbers():
    table = make_table().record_table()
    assert tuple(table.names) == ("PCR_0.pcr", "PCR_7.pcr")
    assert table.ends[1].tolist() == [4, 4 + 2**30, 4 + 2**31, 4 + 3 * 2**30]


TABLE_FAULTS = {
    "sizes of another width": ({"sizes": np.zeros((5, 2), np.int32)}, "array 'sizes' has shape"),
    "too few sizes": ({"sizes": np.zeros((4, 3), np.int32)}, "array 'sizes' has shape (4, 3)"),
    "too few orientations": ({"orient": np.zeros(4, np.uint8)}, "array 'orient' has shape"),
    "too few names": ({"nameends": np.zeros(4, np.int64)}, "array 'nameends' has shape"),
    "too few firsts": ({"firsts": np.array([0, 5])}, "array 'firsts' has shape (2,)"),
    "too few checksums": ({"crc32": np.zeros((1, 4), np.uint32)}, "array 'crc32' has shape"),
    "sizes of another type": ({"sizes": np.zeros((5, 3), np.int64)}, "array 'sizes' is int64"),
    "labels of two axes": ({"labels": np.zeros((5, 1), np.int32)}, "'labels' is int32 (5, 1)"),
    "firsts from elsewhere": ({"firsts": np.array([1, 3, 5])}, "do not follow each other"),
    "firsts to elsewhere": ({"firsts": np.array([0, 3, 6])}, "do not follow each other"),
    "an empty record": ({"firsts": np.array([0, 5, 5])}, "do not follow each other"),
    "firsts that descend": ({"firsts": np.array([0, 9, 5])}, "do not follow each other"),
    "a negative number": ({"numbers": np.array([-1, 0])}, "do not ascend"),
    "a number twice": ({"numbers": np.array([3, 3])}, "do not ascend"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE_FAULTS)
def test_tables_that_contradict_themselves_are_refused(name, tmp_path):
    changes, text = TABLE_FAULTS[name]
    data = make_table(**changes).encode()
    with pytest.raises(PcrFormatError) as caught:
        SampleTable.decode(data, path="s.ten")
    assert caught.value.path == "s.ten"
    assert text in caught.value.reason
    path = tmp_path / SAMPLES_NAME
    path.write_bytes(data)
    with pytest.raises(PcrFormatError) as caught:
        SampleTable.load(path)
    assert caught.value.path == str(path)


def test_arrays_that_are_missing_are_named():
    data = encode_buffer([np.zeros(3, np.int32)], ["labels"])
    with pytest.raises(PcrFormatError, match="array 'sizes' is nothing, expected int32 of 2 axes"):
        SampleTable.decode(data)


def test_further_arrays_are_passed_over():
    table = make_table()
    names = list(SampleTable.__dataclass_fields__)
    arrays = [np.zeros(2), *(getattr(table, name) for name in names)]
    assert same(SampleTable.decode(encode_buffer(arrays, ["later", *names])), table)


@pytest.mark.parametrize("size", [0, 8, 1000, -1])
def test_cut_tables_are_refused(tmp_path, size):
    data = make_table().encode()[:size]
    with pytest.raises(PcrFormatError, match="table of samples|array 'sizes' is nothing"):
        SampleTable.decode(data)
    (tmp_path / SAMPLES_NAME).write_bytes(data)
    with pytest.raises(PcrFormatError):
        SampleTable.load(tmp_path / SAMPLES_NAME)


@given(st.data())
def test_damaged_tables_are_refused_or_consistent(data):
    good = bytearray(make_table().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = SampleTable.decode(good)
        records = table.record_table()
    except PcrFormatError:
        return
    assert len(records) == len(table.numbers)
    assert table.firsts[-1] == len(table.labels) == len(table.sizes)


def test_parts_that_cannot_be_are_refused():
    table = replace(make_table(), parts=np.array([[5, 1, 1, 1], [5, -1, 1, 1]], np.int64))
    with pytest.raises(PcrFormatError, match="record PCR_7.pcr: part 1 has the length -1"):
        table.record_table(path="s.ten")
