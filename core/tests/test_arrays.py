"""What counts as an array, and what is said of everything else."""

from __future__ import annotations

import builtins
import enum
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from tensorcom.arrays import EXTENDED_NAMES, PLAIN_NAMES, as_array, extended_dtype
from tensorcom.errors import MissingDependencyError, TenbinError


class Plane(enum.IntEnum):
    RED = 3


class WithArray:
    def __array__(self, dtype=None, copy=None):
        return np.arange(3, dtype="i2")


class WithDlpack:
    def __init__(self):
        self.array = np.arange(4, dtype="f4")

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnDevice:
    def __array__(self, dtype=None, copy=None):
        raise TypeError("call .get()")


def refusal(value):
    with pytest.raises(TenbinError) as caught:
        as_array(value, index=2)
    assert caught.value.index == 2
    return caught.value.reason


@pytest.mark.parametrize("name", sorted(PLAIN_NAMES))
@pytest.mark.parametrize("order", ["<", ">"])
def test_plain_arrays_pass_through(name, order):
    array = np.zeros((2, 3), np.dtype(name).newbyteorder(order))
    assert as_array(array) is array


@pytest.mark.parametrize("name", sorted(EXTENDED_NAMES))
def test_extended_arrays_pass_through(name):
    array = np.zeros((2, 3), extended_dtype(name))
    assert as_array(array) is array


def test_subclasses_become_plain_views(tmp_path):
    mapped = np.memmap(tmp_path / "a", "u1", "w+", shape=(4,))
    found = as_array(mapped)
    assert type(found) is np.ndarray
    assert np.shares_memory(found, mapped)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"),
        (3, "int64"),
        (-(2**63), "int64"),
        (Plane.RED, "int64"),
        (1.5, "float64"),
        (1j, "complex128"),
        (np.float32(2), "float32"),
        (np.bool_(1), "bool"),
        (np.uint64(2**64 - 1), "uint64"),
        (np.bytes_(b"abc"), "bytes24"),
        (ml_dtypes.bfloat16(3), "bfloat16"),
    ],
)
def test_scalars_become_0d(value, dtype):
    array = as_array(value)
    assert (array.shape, array.dtype.name) == ((), dtype)
    assert array[()] == value


def test_protocols():
    assert as_array(WithArray()).tolist() == [0, 1, 2]
    assert as_array(WithDlpack()).tolist() == [0.0, 1.0, 2.0, 3.0]


STRUCTURED = np.dtype([("x", "i4")])
ADVICE = "of ml_dtypes only bfloat16, float8_e4m3fn, float8_e5m2 can; cast it, or send .view('u1')"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "a NoneType is no array: send a numpy array"),
        ({}, "a dict is no array: send a numpy array"),
        ("x", "a str is no array: encode it, and send np.frombuffer(data, 'u1')"),
        (b"x", "a bytes is no array: send np.frombuffer(value, 'u1')"),
        ([1], "a list is no array: send np.asarray(value), or its elements as arrays of their own"),
        ((), "a tuple is no array: send np.asarray(value), or its elements as arrays of their own"),
        (2**63, "the int does not fit 64 bits: send np.uint64(value) or a float"),
        (
            np.ma.masked_equal([1, 2], 2),
            "a masked array would lose its mask: send .filled(value), "
            "and np.ma.getmaskarray(array) as an array of its own",
        ),
        (
            np.array([None]),
            "object cannot be sent: convert the objects to numbers, or to fixed bytes S<n>",
        ),
        (
            np.zeros(1, STRUCTURED),
            "[('x', '<i4')] cannot be sent: send each field as an array of its own",
        ),
        (
            np.zeros(1, STRUCTURED).view(np.recarray),
            "(numpy.record, [('x', '<i4')]) cannot be sent: send each field as an array of its own",
        ),
        (
            np.zeros(1, "M8[ns]"),
            "datetime64[ns] cannot be sent: send .view('i8'), and the unit as its info",
        ),
        (
            np.timedelta64(1, "s"),
            "timedelta64[s] cannot be sent: send .view('i8'), and the unit as its info",
        ),
        (
            np.array("ab"),
            "<U2 cannot be sent: encode to fixed bytes S<n>, "
            "as np.char.encode(array, 'utf-8') does",
        ),
        (np.zeros(1, "V3"), "|V3 cannot be sent: send .view('u1')"),
        (
            np.zeros((2,), np.dtype([("x", "S0")]))["x"],
            "|S0 cannot be sent: fixed bytes hold 1 to 9999999 bytes",
        ),
        (np.zeros(1, ml_dtypes.int4), f"int4 cannot be sent: {ADVICE}"),
        (np.zeros(1, ml_dtypes.float8_e4m3fnuz), f"float8_e4m3fnuz cannot be sent: {ADVICE}"),
        (OnDevice(), f"{__name__}.OnDevice gives no numpy array: call .get()"),
        (object(), "builtins.object is no array: send a numpy array"),
    ],
)
def test_refusals(value, reason):
    assert refusal(value) == reason


@pytest.mark.skipif(np.dtype("g").itemsize == 8, reason="longdouble is float64 here")
@pytest.mark.parametrize(("code", "instead"), [("g", "f8"), ("G", "c16")])
def test_extended_precision_is_refused(code, instead):
    name = np.dtype(code)
    assert refusal(np.zeros(1, code)) == (
        f"{name} cannot be sent: its layout differs between machines; send .astype('{instead}')"
    )


def test_variable_width_strings_are_refused():
    if not hasattr(np, "dtypes") or not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy 1 has no StringDType")
    reason = refusal(np.array(["a"], np.dtypes.StringDType()))
    assert reason.endswith(
        "cannot be sent: encode to fixed bytes S<n>, as np.char.encode(array, 'utf-8') does"
    )


def test_missing_ml_dtypes_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "ml_dtypes":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError) as caught:
        extended_dtype("bfloat16")
    assert caught.value.install_command == "pip install ml_dtypes"
    assert str(caught.value) == (
        "dtype bfloat16 needs the package 'ml_dtypes', which is not installed: "
        "pip install ml_dtypes"
    )


def test_no_framework_is_imported():
    code = (
        "import sys, numpy, tensorcom.arrays, tensorcom.tenbin as t;"
        "t.decode_buffer(t.encode_buffer([numpy.zeros(3), 1.5]));"
        "print([m for m in ('torch', 'jax', 'tensorflow', 'ml_dtypes') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
