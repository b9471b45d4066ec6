"""FidelitySchedule: how many scan groups each epoch reads.

Owns the numbers and how they get to who reads: a tf.Variable, a file, or a data set's attribute.
Imports TensorFlow only where a graph asks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from tensorcom.arguments import check_integers, is_integer

if TYPE_CHECKING:
    from collections.abc import Callable


class FidelitySchedule(keras.callbacks.Callback):  # type: ignore[misc]
    """Scan groups by epoch: a Keras callback, and an argument of `pcr_dataset`.

    ```python
    fidelity = FidelitySchedule({0: 1, 5: 2, 20: None})
    train = pcr_dataset(root, batch_size=64, scan_groups=fidelity)
    model.fit(train, epochs=30, callbacks=[fidelity])
    ```

    Without `fit`, call `set_epoch`. Records that were read before are not read again: with a data
    set that goes on over the end of an epoch, those that wait in its buffers have the old number.

    Args:
        schedule: the number by the epoch that it holds from, or a list with the number of each
            epoch, the last of which stays, or a function of the epoch. None reads all groups.
        target: who is told. A path writes the number, and the epoch after it, into a file for the
            graphs that read it, which tf.data service needs; an object gets the number as its
            attribute `scan_groups`, as `PcrPyDataset` has it. None is for the graphs that are given
            the schedule.

    Raises:
        ValueError: the schedule says nothing of epoch 0, or holds a number below 1.
        TypeError: it is none.
    """

    def __init__(
        self,
        schedule: Mapping[int, int | None] | Sequence[int | None] | Callable[[int], int | None],
        *,
        target: Any = None,
    ) -> None:
        super().__init__()
        self._schedule = schedule
        self._path: str | None = None
        if isinstance(target, (str, os.PathLike)):
            path = os.fspath(target)
            self._path = path if "://" in path else str(Path(path).absolute())
        self._object = None if self._path is not None else target
        self._groups: int | None = None  # of the sets that are read
        self._variable: Any = None
        self._epoch = 0
        if not callable(schedule):
            self._check_values(schedule)

    def _check_values(self, schedule: Mapping[int, int | None] | Sequence[int | None]) -> None:
        if not hasattr(schedule, "__getitem__"):
            raise TypeError(
                f"schedule={schedule!r}, expected a mapping, a sequence or a function of the epoch"
            )
        if isinstance(schedule, Mapping):
            for epoch in schedule:
                check_integers(0, epoch=epoch)
            if min(schedule, default=1) > 0:
                raise ValueError("schedule has no number for epoch 0")
            values = list(schedule.values())
        else:
            values = list(schedule)
        if not values:
            raise ValueError("schedule is empty")
        for value in values:
            if value is not None and (not is_integer(value) or value < 1):
                raise ValueError(f"schedule has scan_groups={value!r}, expected at least 1 or None")

    def scan_groups(self, epoch: int) -> int | None:
        """Return the number for an epoch; None is all."""
        schedule = self._schedule
        if callable(schedule):
            return schedule(epoch)
        if isinstance(schedule, Mapping):
            return schedule[max(first for first in schedule if first <= epoch)]
        return schedule[min(epoch, len(schedule) - 1)]

    def set_epoch(self, epoch: int) -> None:
        """Let what is read from now on have the number of an epoch."""
        check_integers(0, epoch=epoch)
        self._epoch = epoch
        value = self.scan_groups(epoch)
        if self._object is not None:
            self._object.scan_groups = value
            return
        if self._groups is None:
            return  # nobody reads yet; who comes gets the number of this epoch
        value = self._number(epoch, self._groups)
        if self._path is not None:
            _write(self._path, f"{value} {epoch}\n")
        else:
            self._variable.assign(value)

    def _number(self, epoch: int, groups: int) -> int:
        """Return the number of an epoch for a set of that many groups."""
        value = self.scan_groups(epoch)
        if value is None:
            return groups
        if not is_integer(value) or not 1 <= value <= groups:
            raise ValueError(
                f"schedule has scan_groups={value!r} in epoch {epoch}, expected 1 to {groups}"
            )
        return int(value)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Set the number of the epoch that begins."""
        self.set_epoch(epoch)

    def bind(self, groups: int) -> Any:
        """Return where a graph reads the number: a path, or a tf.Variable, int64 ().

        Args:
            groups: scan groups of the set that the graph reads.

        Raises:
            ValueError: the schedule has a target that is no file, another set that reads it has
                another number of groups, or the number of the epoch is out of range.
        """
        if self._object is not None:
            raise ValueError("schedule has a data set as its target; graphs need one of their own")
        if self._groups not in (None, groups):
            raise ValueError(
                f"schedule is that of a set of {self._groups} scan groups, and this one has "
                f"{groups}: use a schedule for each"
            )
        self._number(self._epoch, groups)  # an error leaves all as it was
        self._groups = groups
        if self._path is None and self._variable is None:
            import tensorflow as tf

            self._variable = tf.Variable(groups, dtype=tf.int64, trainable=False)
        self.set_epoch(self._epoch)
        return self._variable if self._path is None else self._path


def _write(path: str, text: str) -> None:
    """Replace a file; readers see the old or the new one."""
    if "://" in path:
        import tensorflow as tf

        new = f"{path}.{os.getpid()}.new"
        with tf.io.gfile.GFile(new, "w") as file:
            file.write(text)
        tf.io.gfile.rename(new, path, overwrite=True)
        return
    other = Path(f"{path}.{os.getpid()}.new")
    other.write_text(text)
    other.replace(path)
