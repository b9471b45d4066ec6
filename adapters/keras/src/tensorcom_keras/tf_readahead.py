"""Asks the kernel for the prefixes that a graph is about to read, and for no more.

Owns the thread that does it, and the queue by which a graph tells it what comes.

A file that is read from its start makes the kernel read on behind the reader's back, by as much as
the disk's `read_ahead_kb`: with the usual settings of fast disks more than a whole prefix, which is
what reading a prefix wants to save. A request ahead of time for just the prefix finds the pages
there when TensorFlow reads, and the kernel then adds nothing. TensorFlow has no operation for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorcom_keras.tf_order import Piece

AHEAD = 4  # records
_END = -1
_PATIENCE_S = 10.0


class Readahead:
    """Reads prefixes ahead of a graph for as long as a data set lives.

    Args:
        directory: of the record files.
        names: of the files.
        ends: int64 (R, 1 + G), offset at which each part of each record ends.
    """

    def __init__(self, directory: str, names: NDArray[Any], ends: NDArray[Any]) -> None:
        # Without a limit, so that a graph never waits for this thread.
        self._queue = tf.queue.FIFOQueue(-1, [tf.int64, tf.int64], [[], []])
        self._thread = threading.Thread(
            target=_follow,
            args=(self._queue, directory, names, ends),
            name="tensorcom-readahead",
            daemon=True,
        )

    def announce(self, piece: Piece, scan_groups: Any) -> Piece:
        """Return the piece; the graph tells the thread that it will be read.

        Args:
            piece: of a record.
            scan_groups: int64, how many groups will be read, unless that changes until then.
        """
        with tf.control_dependencies([self._queue.enqueue([piece.record, scan_groups])]):
            told: Piece = tf.nest.map_structure(tf.identity, piece)
        return told

    def start(self, dataset: tf.data.Dataset) -> None:
        """Work until a data set, and all that was made of it, is gone."""
        self._thread.start()
        weakref.finalize(dataset, _stop, self._queue, self._thread)


def _stop(queue: tf.queue.FIFOQueue, thread: threading.Thread) -> None:
    with tf.init_scope():  # objects may be collected while some function is traced
        end = tf.constant(_END, tf.int64)
        queue.enqueue([end, end])
    if thread is not threading.current_thread():
        thread.join(_PATIENCE_S)  # it may ask a slow server, and this run in a garbage collection


def _follow(
    queue: tf.queue.FIFOQueue, directory: str, names: NDArray[Any], ends: NDArray[Any]
) -> None:
    while True:
        record, groups = (int(value) for value in queue.dequeue())
        if record == _END:
            return
        # What fails here fails again where the record is read, and is an error there.
        with contextlib.suppress(OSError, IndexError):
            _request(f"{directory}/{names[record]}", int(ends[record, groups]))


def _request(path: str, size: int) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.posix_fadvise(file, 0, size, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(file)
