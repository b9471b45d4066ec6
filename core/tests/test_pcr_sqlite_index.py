"""`PCR.db`: read without running anything, every kind of pickle, and written for old readers."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pcr_helpers import GOLDEN_SETS

from tensorcom.errors import PcrFormatError
from tensorcom.pcr.sqlite_index import (
    load_integers,
    read_sqlite_index,
    write_sqlite_index,
)

DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "<i8", ">i8", ">i4", "<u2"]


def load(value, protocol=2):
    return load_integers(pickle.dumps(value, protocol), key="k", path="PCR.db")


def refusal(data, key="k"):
    with pytest.raises(PcrFormatError) as caught:
        load_integers(data, key=key, path="PCR.db")
    assert caught.value.path == "PCR.db"
    assert f"value of '{key}'" in caught.value.reason
    return caught.value.reason


def database(path, rows, schema="CREATE TABLE unnamed (key TEXT PRIMARY KEY, value BLOB)"):
    with closing(sqlite3.connect(path)) as found, found:
        found.execute(schema)
        found.executemany("INSERT INTO unnamed VALUES (?, ?)", rows)
    return path.read_bytes()


# -- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_lists_of_integers(protocol, values):
    found = load(values, protocol)
    assert found.tolist() == values
    assert found.dtype == np.int64


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_and_lists_of_numpys_integers(protocol, dtype):
    array = np.array([0, 1, 100, 127], dtype)
    assert load(array, protocol).tolist() == array.tolist()
    assert load(list(array), protocol).tolist() == array.tolist()
    assert load(array[2], protocol).tolist() == 100
    assert load(np.zeros(0, dtype), protocol).tolist() == []


def test_an_array_as_python_2_pickled_it():
    data = (
        b"cnumpy.core.multiarray\n_reconstruct\np0\n(cnumpy\nndarray\np1\n(I0\ntp2\nS'b'\np3\n"
        b"tp4\nRp5\n(I1\n(I2\ntp6\ncnumpy\ndtype\np7\n(S'i4'\np8\nI0\nI1\ntp9\nRp10\n(I3\nS'<'\n"
        b"p11\nNNNI-1\nI-1\nI0\ntp12\nbI00\nS'\\x01\\x00\\x00\\x00\\x02\\x00\\x00\\x00'\np13\n"
        b"tp14\nb."
    )
    assert load_integers(data, key="k").tolist() == [1, 2]


class Canary:
    """A pickle that makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


REFUSED = {
    "text": "a",
    "none": None,
    "a float": 1.5,
    "floats": [1, 2.0],
    "booleans": [True],
    "nested": [[1]],
    "a dict": {1: 2},
    "a tuple": (1, 2),
    "too large": [2**63],
    "an array of floats": np.zeros(3),
    "an array of objects": np.array([1, None], object),
    "an array of times": np.zeros(3, "M8[s]"),
    "an array of bools": np.zeros(3, bool),
    "a structured array": np.zeros(3, "i4,i4"),
    "a float of numpy": np.float64(1),
    "a set": {1, 2},
    "a complex number": 1j,
    "bytes": b"123",
}


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("name", REFUSED)
def test_other_values_are_refused(name, protocol):
    refusal(pickle.dumps(REFUSED[name], protocol))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_that_a_pickle_names_is_called(tmp_path, protocol):
    reason = refusal(pickle.dumps(Canary(tmp_path / "made"), protocol))
    assert "pickle asks for posix.mkdir, expected integers only" in reason
    refusal(pickle.dumps([1, Canary(tmp_path / "made")], protocol))
    assert not (tmp_path / "made").exists()


HOSTILE = {
    "a submodule": b"cos.path\nexists\n(S'/'\ntR.",
    "an attribute of a stand-in": b"cnumpy\ndtype.__init__\n.",
    "an attribute by protocol 4": b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
    "numpy's loader": b"cnumpy\nload\n(S'x'\ntR.",
    "the builtins": b"c__builtin__\neval\n(S'1'\ntR.",
    "an extension code": b"\x80\x02\x82\x01.",
    "a persistent object": b"P1\n.",
    "a persistent object from the stack": b"I1\nQ.",
    "an instance": b"(S'x'\nios\nsystem\n.",
    "ndarray itself": b"cnumpy\nndarray\n(tR.",
    "a dtype of objects": b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
    "a scalar of several": b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'i4'\nI0\nI1\ntR"
    b"c_codecs\nencode\n(V12345678\nS'latin1'\ntRtR.",
    "another encoding": b"c_codecs\nencode\n(Vx\nS'zlib'\ntR.",
    "a loop": b"]q\x00h\x00a.",
    "nothing": b"",
    "no pickle": b"hello",
    "a cut one": pickle.dumps([1, 2, 3])[:-3],
    "a long one that is not there": b"\x8d" + (2**40).to_bytes(8, "little") + b".",
    "a mark too few": b"t.",
    "a frame too long": b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"].",
    "a memo away": b"]r\x00\x00\x01\x00.",
    "a memo far away": b"]r\xff\xff\xff\xff.",
    "a memo far away as text": b"]p4294967295\n.",
    "an array of text": b"cnumpy.core.numeric\n_frombuffer\n"
    b"(V\\u1234\ncnumpy\ndtype\n(S'i1'\ntRtR.",
    "an array that is cut": b"cnumpy.core.numeric\n_frombuffer\n"
    b"(Vabc\ncnumpy\ndtype\n(S'i4'\ntRtR.",
    "bytes of a size": b"cbuiltins\nbytes\n(I1000000000000\ntR.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused(name):
    refusal(HOSTILE[name])


def test_values_have_a_limit(monkeypatch):
    monkeypatch.setattr("tensorcom.pcr.sqlite_index._MAX_VALUE_BYTES", 10)
    assert "expected at most 10" in refusal(pickle.dumps(list(range(100))))


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_integers(data):
    try:
        found = load_integers(data, key="k")
    except PcrFormatError:
        return
    assert found.dtype == np.int64


@given(st.data())
def test_pickles_with_changed_bytes_are_refused_or_integers(data):
    good = bytearray(pickle.dumps(np.arange(9), data.draw(st.integers(0, 5))))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = load_integers(bytes(good), key="k")
    except PcrFormatError:
        return
    assert found.dtype == np.int64


# -- the database -----------------------------------------------------------------------------


def test_entries_come_in_the_order_of_the_file_and_values_about_the_set_are_left_out(tmp_path):
    rows = [
        ("m_dataset_size", pickle.dumps("not looked at")),
        ("PCR_1.pcr", pickle.dumps([5, 6])),
        ("/PCR_0.pcr", pickle.dumps(np.array([7, 8, 9]))),
        ("m_PCR_full_index_PCR_1.pcr_0", pickle.dumps(np.array([1, 5]))),
        ("m_PCR_full_index_PCR_1.pcr_1", pickle.dumps([2, 6])),
    ]
    index = read_sqlite_index(database(tmp_path / "PCR.db", rows))
    assert index.entries == [("PCR_1.pcr", (5, 6)), ("PCR_0.pcr", (7, 8, 9))]
    assert index.image_sizes("PCR_1.pcr", 2).tolist() == [[1, 2], [5, 6]]
    assert index.image_sizes("PCR_1.pcr", 3) is None
    assert index.image_sizes("PCR_0.pcr", 1) is None


def test_image_sizes_of_unequal_number_are_refused(tmp_path):
    rows = [(f"m_PCR_full_index_a_{i}", pickle.dumps([1] * (2 + i))) for i in range(2)]
    index = read_sqlite_index(database(tmp_path / "PCR.db", rows), path="PCR.db")
    with pytest.raises(PcrFormatError, match="record a has image sizes of unequal number"):
        index.image_sizes("a", 2)


def test_a_value_that_is_no_list_is_refused(tmp_path):
    data = database(tmp_path / "PCR.db", [("a", pickle.dumps(5))])
    with pytest.raises(PcrFormatError, match="value of 'a' is no list of integers"):
        read_sqlite_index(data)


VIEW = """CREATE VIEW unnamed AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c)
SELECT 'k' || x AS key, x'80' AS value FROM c"""


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE other (key, value)", VIEW, "CREATE TABLE unnamed (other)"]
)
def test_other_schemas_are_refused(tmp_path, statement):
    with closing(sqlite3.connect(tmp_path / "x.db")) as found, found:
        found.execute(statement)
    with pytest.raises(PcrFormatError, match="holds no table|no such column"):
        read_sqlite_index((tmp_path / "x.db").read_bytes(), path="x.db")


def test_a_query_that_does_not_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorcom.pcr.sqlite_index._STEPS", 10)
    monkeypatch.setattr("tensorcom.pcr.sqlite_index._MAX_STEPS", 100)
    rows = [(str(i), pickle.dumps([1, 2])) for i in range(1000)]
    data = database(tmp_path / "PCR.db", rows)
    with pytest.raises(PcrFormatError, match="interrupted"):
        read_sqlite_index(data)


@pytest.mark.parametrize("cut", [0, 10, 100, 5000])
def test_files_that_are_no_database_are_refused(cut):
    data = (GOLDEN_SETS / "sqlite" / "PCR.db").read_bytes()[:cut]
    with pytest.raises(PcrFormatError):
        read_sqlite_index(data, path="PCR.db")


@given(st.data())
def test_damaged_databases_are_refused_or_read(data):
    good = bytearray((GOLDEN_SETS / "sqlite" / "PCR.db").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        index = read_sqlite_index(bytes(good))
    except PcrFormatError:
        return
    assert all(isinstance(part, int) for _, parts in index.entries for part in parts)


def test_reading_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    read_sqlite_index((GOLDEN_SETS / "sqlite" / "PCR.db").read_bytes())
    assert list(tmp_path.iterdir()) == []


# -- writing ----------------------------------------------------------------------------------


def test_what_is_written_is_read_and_plain(tmp_path):
    entries = [("PCR_0.pcr", np.array([5, 6, 7])), ("PCR_3.pcr", [2**40, 1, 1])]
    path = tmp_path / "PCR.db"
    write_sqlite_index(path, entries, images=9, classes=3, batch=4)
    index = read_sqlite_index(path.read_bytes())
    assert index.entries == [("PCR_0.pcr", (5, 6, 7)), ("PCR_3.pcr", (2**40, 1, 1))]
    with closing(sqlite3.connect(path)) as found:
        values = dict(found.execute("SELECT key, value FROM unnamed"))
    plain = {key: pickle.loads(value) for key, value in values.items()}
    assert plain["m_dataset_size"] == 9
    assert plain["m_classes"] == [0, 1, 2]
    assert plain["m_batch_size"] == 4
    for value in values.values():  # nothing in it needs a name
        text = io.StringIO()
        pickletools.dis(value, text)
        assert "GLOBAL" not in text.getvalue()
        assert value[:2] == b"\x80\x02"
