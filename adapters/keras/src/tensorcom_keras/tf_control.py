"""What can be changed while a graph reads: the scan groups, and the epoch for tf.data service.

Owns where these numbers come from: a constant, a tf.Variable, or a file; who changes them is
`fidelity`'s.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorcom_keras.fidelity import FidelitySchedule
from tensorcom_keras.tf_parse import fail_unless

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS = r"\s*-?\d{1,18}(\s+\d{1,18})?\s*"


@dataclass(frozen=True)
class Control:
    """The numbers, each as a function that makes the operation which reads it.

    Attributes:
        groups: scan groups to read, int64 ().
        epoch: number of the epoch, int64 (); 0 unless a file says it.
    """

    groups: Callable[[], Any]
    epoch: Callable[[], Any]


def control_of(scan_groups: Any, groups: int, *, service: bool = False) -> Control:
    """Return where a graph finds its numbers.

    Args:
        scan_groups: as for `pcr_dataset`.
        groups: scan groups of the set.
        service: the graph is for tf.data service.

    Raises:
        ValueError: `scan_groups` is out of range now, of another kind, or a Variable for tf.data
            service.
    """
    if isinstance(scan_groups, FidelitySchedule):
        scan_groups = scan_groups.bind(groups)
    if scan_groups is None:
        scan_groups = groups
    if isinstance(scan_groups, (str, os.PathLike)):
        path = os.fspath(scan_groups)
        if "://" not in path:
            path = str(Path(path).absolute())
        _check_value(_read_number(path), groups)
        return Control(lambda: _numbers_in(path)[0], lambda: _numbers_in(path)[1])
    if isinstance(scan_groups, tf.Variable):
        if service:
            raise ValueError(
                "tf.data service keeps the value that a Variable has at the start: give "
                "scan_groups as the path of a file, or as a FidelitySchedule with one as target"
            )
        if not scan_groups.dtype.is_integer or scan_groups.shape.rank != 0:
            raise ValueError(
                f"scan_groups is a Variable of {scan_groups.dtype.name} {scan_groups.shape}, "
                "expected an integer ()"
            )
        _check_value(int(scan_groups.numpy()), groups)
        return Control(lambda: tf.cast(scan_groups.read_value(), tf.int64), _zero)
    if isinstance(scan_groups, bool) or not isinstance(scan_groups, (int, np.integer)):
        raise ValueError(  # noqa: TRY004 - the same error as for other values
            f"scan_groups={scan_groups!r}, expected an integer, None, a tf.Variable, the path of a "
            "file, or a FidelitySchedule"
        )
    _check_value(int(scan_groups), groups)
    return Control(lambda: tf.constant(scan_groups, tf.int64), _zero)


def _zero() -> Any:
    return tf.zeros([], tf.int64)


def _check_value(value: int, groups: int) -> None:
    if not 1 <= value <= groups:
        raise ValueError(f"scan_groups={value}, expected 1 to {groups}")


def _read_number(path: str) -> int:
    try:
        return int(_numbers_in(path)[0])
    except (tf.errors.OpError, ValueError) as exc:
        raise ValueError(
            f"scan_groups={path!r}, expected a file that holds a number: {exc}"
        ) from None


def _numbers_in(path: str) -> Any:
    """Return the two numbers in a file, int64 (2,); what is missing is 0."""
    name = os.fsencode(path)
    # A name that is known when an iterator is made lets TensorFlow read the file once only. With a
    # seed, the operation is also one that deterministic programs may have.
    unknown = tf.random.uniform([], 0, 1, tf.int32, seed=1)
    text = tf.io.read_file(tf.strings.substr(tf.constant(name), 0, len(name) + unknown))
    fits = tf.strings.regex_full_match(text, _NUMBERS)
    text = fail_unless(fits, [name, " holds '", text, "', expected scan_groups"], text)
    words = tf.strings.split(tf.strings.join([text, " 0 0"]))
    return tf.strings.to_number(words[:2], tf.int64)
