"""Checks of arguments, with errors that name them.

Owns what counts as an integer and as a share; knows nothing of what they are for.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any


def check_integers(least: int | None, *, optional: bool = False, **values: Any) -> None:
    """Check arguments that are integers, numpy's included.

    Args:
        least: the smallest that may be, None for any.
        optional: let None pass.
        **values: by name.

    Raises:
        ValueError: one is no integer, or too small.
    """
    for name, value in values.items():
        if value is None and optional:
            continue
        if not _is_integer(value):
            what = "an integer or None" if optional else "an integer"
            raise ValueError(f"{name}={value!r}, expected {what}")
        if least is not None and value < least:
            raise ValueError(f"{name}={value}, expected at least {least}")


def check_share(name: str, share: Any) -> tuple[int, int]:
    """Return which of several shares one of ranks, workers or readers takes, and of how many.

    Args:
        name: of the argument.
        share: number and count.

    Raises:
        ValueError: it is not a number from 0 and the count over it.
    """
    is_pair = isinstance(share, (tuple, list)) and len(share) == 2
    if not is_pair or not all(map(_is_integer, share)) or not 0 <= share[0] < share[1]:
        raise ValueError(f"{name}={share!r}, expected a number from 0 and the count over it")
    return int(share[0]), int(share[1])


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
