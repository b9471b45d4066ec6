"""Checks of arguments, with errors that name them.

Owns what counts as an integer, as a share, and as an option of a data set over a stream.
"""

from __future__ import annotations

import os
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

# Options of Connection that a data set sets itself, and those that only say what is sent.
_OF_DATA_SETS = ("epoch", "lazy", "noexpand", "raw", "split")
_OF_SENDERS = ("allow64", "copy", "multipart", "send_meta", "topic")


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
        if not is_integer(value):
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
    if not is_pair or not all(map(is_integer, share)) or not 0 <= share[0] < share[1]:
        raise ValueError(f"{name}={share!r}, expected a number from 0 and the count over it")
    return int(share[0]), int(share[1])


def environment_share() -> tuple[int, int] | None:
    """Return (rank, ranks) as the variables RANK and WORLD_SIZE say, None unless both are set.

    Raises:
        ValueError: they are not a number from 0 and the count over it.
    """
    rank, ranks = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or ranks is None:
        return None
    try:
        return check_share("shard", (int(rank), int(ranks)))
    except ValueError:
        raise ValueError(
            f"RANK={rank!r} and WORLD_SIZE={ranks!r} in the environment, expected a number from 0 "
            "and the count over it"
        ) from None


def check_reader_options(options: Iterable[str], *, refused: Iterable[str] = ()) -> None:
    """Check the names of options that a data set hands on to `Connection`, which knows the others.

    Args:
        options: their names.
        refused: further ones that would be without effect.

    Raises:
        TypeError: one would be without effect, or is set by data sets.
    """
    given = set(options)
    wrong = [n for n in (*_OF_DATA_SETS, *_OF_SENDERS, *refused) if n in given]
    if wrong:
        raise TypeError(
            f"{', '.join(wrong)}: no option of a data set, which has length and shard; topics are "
            "part of the URL"
        )


def is_integer(value: Any) -> bool:
    """Tell whether a value is an integer, of Python or numpy; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)
