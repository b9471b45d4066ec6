"""`PCR.db`, the index of older sets, read without running what it holds, and written.

Owns the SQLite table and its pickled values; knows nothing of records.

A pickle can name any function to call. Values are read by an unpickler that knows stand-ins for the
few names that integer arrays need, and nothing else: no code of the file or of numpy runs.

Source: docs/formats/pcr.md, "Older indexes".
"""

from __future__ import annotations

import io
import pickle
import pickletools
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensorcom.errors import PcrFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

FILE_NAME = "PCR.db"
_TABLE = "unnamed"
_SIZES_KEY = "m_PCR_full_index_"
_MAX_VALUE_BYTES = 1 << 28
_MAX_STEPS = 100_000_000  # of SQLite's machine: seconds
_STEPS = 1_000_000
_INTEGERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}
_PROTOCOL = 2  # read by every Python that the original ran on


class SqliteIndex:
    """What a `PCR.db` says.

    Args:
        values: its plain values by key.
        path: the file, for errors.

    Attributes:
        entries: (name, part lengths) of each record, in the file's order.
    """

    def __init__(self, values: Mapping[str, bytes], path: str | None) -> None:
        self._values, self._path = values, path
        self.entries = [
            (key.removeprefix("/"), tuple(self._integers(key).tolist()))
            for key in values
            if not key.startswith("m_")
        ]

    def image_sizes(self, name: str, groups: int) -> NDArray[np.int64] | None:
        """Return the bytes of each image in each group of a record, int64 (N, groups).

        None if the file does not say.
        """
        keys = [f"{_SIZES_KEY}{name}_{group}" for group in range(groups)]
        if not all(key in self._values for key in keys):
            return None
        columns = [self._integers(key) for key in keys]
        if len({len(column) for column in columns}) != 1:
            raise PcrFormatError(
                f"record {name} has image sizes of unequal number", path=self._path
            )
        return np.stack(columns, axis=1)

    def _integers(self, key: str) -> NDArray[np.int64]:
        value = load_integers(self._values[key], key=key, path=self._path)
        if value.ndim != 1:
            raise PcrFormatError(f"value of {key!r} is no list of integers", path=self._path)
        return value


def read_sqlite_index(data: bytes, *, path: str | None = None) -> SqliteIndex:
    """Read a `PCR.db`.

    Args:
        data: the whole file.
        path: its name, for errors.

    Raises:
        PcrFormatError: it is no SQLite file, has no such table, or a record's value is anything but
            a list or array of integers.
    """
    with _in_memory(data) as database, _errors(path):
        database.execute("PRAGMA trusted_schema = OFF")
        kinds = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (_TABLE,))
        if [kind for (kind,) in kinds] != ["table"]:
            raise PcrFormatError(f"holds no table {_TABLE!r}", path=path)
        budget = iter(range(_MAX_STEPS // _STEPS))
        database.set_progress_handler(lambda: next(budget, None) is None, _STEPS)
        rows = database.execute(
            f"SELECT key, value FROM {_TABLE} "  # noqa: S608 - a constant
            "WHERE typeof(key) = 'text' AND typeof(value) = 'blob' ORDER BY rowid"
        ).fetchall()
    return SqliteIndex(dict(rows), path)


@contextmanager
def _in_memory(data: bytes) -> Iterator[sqlite3.Connection]:
    """Open a database from bytes: never the file itself, so that nothing is written beside it."""
    with tempfile.TemporaryDirectory(prefix="tensorcom-") as folder:
        copy = Path(folder) / FILE_NAME
        copy.write_bytes(data)
        uri = f"{copy.as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            yield database


@contextmanager
def _errors(path: str | None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise PcrFormatError(f"is no readable SQLite database: {exc}", path=path) from exc


def load_integers(data: bytes, *, key: str, path: str | None = None) -> NDArray[np.int64]:
    """Unpickle a list or array of integers, or one integer as an array of no axes.

    Raises:
        PcrFormatError: the pickle is anything else; nothing that it names is called.
    """
    if len(data) > _MAX_VALUE_BYTES:
        raise PcrFormatError(
            f"value of {key!r} has {len(data)} bytes, expected at most {_MAX_VALUE_BYTES}",
            path=path,
        )
    try:
        _check_memo(data)
        value = _Unpickler(io.BytesIO(data), encoding="latin1").load()
        value = value.integers() if isinstance(value, _Array) else value
    except PcrFormatError as exc:
        raise PcrFormatError(f"value of {key!r}: {exc.reason}", path=path) from None
    except Exception as exc:  # noqa: BLE001 - bad pickles raise anything
        raise PcrFormatError(f"value of {key!r} is no pickle: {exc}", path=path) from exc
    plain = value if isinstance(value, list) else [value]
    if not all(type(item) is int and -(1 << 63) <= item < 1 << 63 for item in plain):
        raise PcrFormatError(f"value of {key!r} is no list of integers", path=path)
    result = np.array(plain, np.int64)
    return result if isinstance(value, list) else result[0]


def _check_memo(data: bytes) -> None:
    """Refuse a pickle that puts things far away in its memo, which takes memory up to there."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name.endswith("PUT") and isinstance(argument, int) and argument > len(data):
            _refuse(f"place {argument} of its memo")


def _refuse(what: str) -> NoReturn:
    raise PcrFormatError(f"pickle asks for {what}, expected integers only")


class _DType:
    """Stands in for `numpy.dtype`."""

    def __init__(self, code: object = "", *_: object) -> None:
        if code not in _INTEGERS:
            _refuse(f"the dtype {code!r}")
        self.code, self.order = str(code), "<"

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|"):  # noqa: PLR2004
            _refuse("a dtype of another kind")
        self.order = state[1]


class _Array:
    """Stands in for a numpy array of integers."""

    def __init__(self, dtype: object = None, data: object = b"") -> None:
        self._dtype, self._data = dtype, data

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:  # noqa: PLR2004 - numpy's own form
            _refuse("an array of another kind")
        self._dtype, self._data = state[2], state[4]

    def integers(self) -> list[int]:
        """Return the values."""
        data = self._data.encode("latin1") if isinstance(self._data, str) else self._data
        if not isinstance(self._dtype, _DType) or not isinstance(data, (bytes, bytearray)):
            _refuse("an array of another kind")
        dtype = np.dtype(self._dtype.order + self._dtype.code)
        if len(data) % dtype.itemsize:
            _refuse("an array that is cut")
        values: list[int] = np.frombuffer(data, dtype).tolist()
        return values


def _frombuffer(data: object = b"", dtype: object = None, *_: object) -> _Array:
    return _Array(dtype, data)


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _ndarray(*_: object) -> NoReturn:
    _refuse("a call of numpy.ndarray")


def _scalar(dtype: object = None, data: object = b"") -> int:
    values = _Array(dtype, data).integers()
    return values[0] if len(values) == 1 else _refuse("a number of several values")


def _encode(text: object = "", encoding: object = "") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        _refuse("an encoding")
    return text.encode("latin1")


def _no_bytes(*arguments: object) -> bytes:
    return _refuse("bytes of something") if arguments else b""


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _ndarray,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,  # of an empty array
    ("builtins", "bytes"): _no_bytes,
}
for _package in ("numpy.core", "numpy._core"):
    _STAND_INS[f"{_package}.numeric", "_frombuffer"] = _frombuffer
    _STAND_INS[f"{_package}.multiarray", "_reconstruct"] = _reconstruct
    _STAND_INS[f"{_package}.multiarray", "scalar"] = _scalar


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        found = _STAND_INS.get((module, name))
        return found if found is not None else _refuse(f"{module}.{name}")

    def persistent_load(self, pid: object, /) -> NoReturn:
        _refuse(f"the object {pid!r}")


def write_sqlite_index(
    path: Path,
    entries: Iterable[tuple[str, Sequence[int]]],
    *,
    images: int,
    classes: int,
    batch: int,
) -> None:
    """Write a `PCR.db` that the original's readers take.

    Args:
        path: a new file.
        entries: name and part lengths of each record.
        images: images in the set.
        classes: classes in the set.
        batch: images in a record.
    """
    values: list[tuple[str, object]] = [
        ("m_dataset_size", images),
        ("m_classes", list(range(classes))),
        ("m_batch_size", batch),
    ]
    values += [(name, [int(part) for part in parts]) for name, parts in entries]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f'CREATE TABLE "{_TABLE}" (key TEXT PRIMARY KEY, value BLOB)')
        database.executemany(
            f"INSERT INTO {_TABLE} VALUES (?, ?)",  # noqa: S608 - a constant
            ((key, pickle.dumps(value, _PROTOCOL)) for key, value in values),
        )
