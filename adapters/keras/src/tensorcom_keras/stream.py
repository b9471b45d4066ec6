"""StreamPyDataset: a stream as a Keras PyDataset.

Owns how ranks share a stream and what the end of one means to Keras; the stream itself is core's
Connection, and what Keras asks `pydataset`'s.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from tensorcom import ClosedError, Connection, Stream, TransportError
from tensorcom.ahead import Ahead
from tensorcom.arguments import check_integers, check_reader_options
from tensorcom.converters import check_layout
from tensorcom.progress import Ends, Progress
from tensorcom.zmq_url import receiving_urls, share_urls
from tensorcom_keras.pydataset import SequentialPyDataset, Taken, arranged, current_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from tensorcom.stats import ConnectionStats

    Transforms = Sequence[Callable[[Any], Any] | None] | None


class StreamPyDataset(SequentialPyDataset):
    """Batches from a stream, for `fit`, `evaluate` and `predict` on any backend of Keras.

    Each message is handed out once, in order of arrival; what Keras only looks at comes again. The
    ranks of a distributed job share a stream: pulling ranks by nature, and of publishers each takes
    its part. The socket opens at the first batch and stays open: each epoch goes on where the last
    one stopped. A data set is used by one `fit` or loop at a time.

    On TensorFlow Keras asks for a batch or two ahead, in a thread of its own. With `length`, and no
    `steps_per_epoch`, it asks for none after the last one. With `steps_per_epoch` or
    `validation_steps`, what it asked for is lost at the end of each fit, evaluation and validation,
    which waits for it up to `timeout_s`. `stream_dataset`, and `as_tf_dataset` of this, lose
    nothing there and do not wait.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        length: batches of an epoch, the value of `len()`; None has no length: `fit` then needs
            `steps_per_epoch`, and `for` goes to the end of the stream.
        arrange: called with the arrays of a batch, returns what Keras takes: x, (x, y) or (x, y,
            sample_weight), with dicts or tuples in it. None yields the arrays as a tuple, so that
            messages of one to three arrays are just that.
        batch_transforms: functions applied to the arrays, by position.
        layout: (sent, wanted) layout of the first array, such as ("NHWC", "NCHW"); None leaves it.
        rebatch: samples per batch; None leaves the batches as they were sent.
        shuffle: samples in a shuffle buffer, 0 for none; needs `rebatch`.
        seed: of the shuffle buffer; None takes any.
        timeout_s: seconds to wait for a message; None waits for ever.
        on_bad_message: "raise" MessageError on a message that is none of ours, or "skip" and count
            it in `stats.bad`.
        infos: infos that each message must have, None for any.
        shard: (rank, ranks) of this process in its job; None takes them from the backend if that is
            distributed, else from the variables RANK and WORLD_SIZE, else (0, 1).
        workers: 1 receives a batch when Keras asks for it. More receive up to `max_queue_size`
            ahead, in one thread, since a stream has one order.
        use_multiprocessing: must be False.
        max_queue_size: see `workers`.
        **options: further options of `Connection`: topic filters go into the URL.

    Yields:
        A tuple of numpy arrays, in memory of their own, or what `arrange` returns.

    Raises:
        ZmqUrlError: a URL is wrong or sends.
        ReceiveTimeoutError: no message came in time.
        MessageError: a message is none of ours and `on_bad_message` is "raise".
        TransportError: the stream ended, and Keras wants one more batch.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        length: int | None = None,
        arrange: Callable[..., Any] | None = None,
        batch_transforms: Transforms = None,
        layout: tuple[str, str] | None = None,
        rebatch: int | None = None,
        shuffle: int = 0,
        seed: int | None = None,
        timeout_s: float | None = 60.0,
        on_bad_message: str = "raise",
        infos: Sequence[str] | None = None,
        shard: tuple[int, int] | None = None,
        workers: int = 1,
        use_multiprocessing: bool = False,
        max_queue_size: int = 10,
        **options: Any,
    ) -> None:
        super().__init__(
            workers=workers,
            use_multiprocessing=use_multiprocessing,
            max_queue_size=max_queue_size,
        )
        check_layout(layout)
        check_integers(0, length=length, optional=True)
        check_integers(1, rebatch=rebatch, optional=True)
        check_integers(0, shuffle=shuffle)
        check_integers(None, seed=seed, optional=True)
        if shuffle and not rebatch:
            raise ValueError(f"shuffle={shuffle} needs rebatch, the batch size to yield")
        self._length, self._arrange = length, arrange
        self._steps = rebatch, shuffle, seed
        shard = current_shard() if shard is None else shard
        check_reader_options(options)
        shared, split = share_urls(receiving_urls(urls), shard)
        self._urls, self._rank = [str(url) for url in shared], shard[0]
        self._config: dict[str, Any] = {
            "batch_transforms": batch_transforms,
            "layout": layout,
            "timeout_s": timeout_s,
            "on_bad_message": on_bad_message,
            "infos": infos,
            "split": split,
            **options,
        }
        self._live: _Live | None = None
        self._connect()  # wrong arguments are errors here

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the length of this stream is unknown; give length=N")
        return self._length

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; None if it has no length."""
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration; a live socket stays with its process."""
        return {**super().__getstate__(), "_live": None}

    @property
    def stats(self) -> ConnectionStats:
        """What came so far through the socket that is open: messages, bad ones, what is missing."""
        return self._open().connection.stats

    def _connect(self) -> Connection:
        """Return a connection that opens at first use."""
        return Connection(self._urls, noexpand=True, lazy=True, **self._config)

    def _open(self) -> _Live:
        if self._live is None:
            self._live = _Live(self._connect(), self._steps, self._rank)
        return self._live

    # -- batches -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self._follow_fork()
        with self._state:
            self._cursor.open()
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        count = 0
        while self._length is None or count < self._length:
            with self._pulling:
                again = self._cursor.again
                batch = again.popleft().batch if again else self._receive()
            if batch is None:
                return
            count += 1
            yield batch

    def _receive(self) -> Any:
        """Return the next batch, None at the end of the stream."""
        live = self._open()
        arrays = live.take(self._queue_size if (self._threads or 1) > 1 else 0)
        if arrays is None:
            if live.stop.is_set():
                raise ClosedError("closed while it waited for a batch", url=self._urls[0])
            return None
        return arranged(arrays, self._arrange)

    def _take(self) -> Any:
        batch = self._receive()
        if batch is None:
            count = self._cursor.position
            if self._length is None:
                fix = "give a length, steps_per_epoch that fit in, or iter(dataset), which ends"
            else:
                fix = f"length={self._length} batches were expected"
            raise TransportError(
                f"the stream ended after {count} batches of this epoch; {fix}", url=self._urls[0]
            )
        if self._arrange is None and not 1 <= len(batch) <= 3:
            raise ValueError(
                f"a message of {len(batch)} arrays; Keras takes x, (x, y) or (x, y, "
                "sample_weight): give arrange=, a function of the arrays that returns one of these"
            )
        return batch

    def _start_epoch(self) -> None:
        """Do nothing: an epoch goes on where the last one stopped."""

    def _mark(self) -> None:
        return None

    def _may_come_again(self, taken: Taken) -> bool:  # noqa: ARG002
        return True

    def _go_back(self, mark: Any) -> None:
        raise NotImplementedError  # what was taken comes again as it is

    def _forget_parent(self) -> None:
        self._live = None

    def close(self) -> None:
        """Close this process's socket; the next batch opens a new one."""
        live = self._live
        if live is not None:
            live.stop.set()  # wakes who waits for a batch
        with self._pulling:
            self._live = None
            if live is not None and self._pid == os.getpid():
                live.close()


class _Live:
    """What one process has open.

    Args:
        connection: where batches come from.
        steps: samples per batch, in the shuffle buffer, and its seed.
        rank: of this process.

    Attributes:
        stop: makes who waits return.
        connection: as given.
    """

    def __init__(
        self, connection: Connection, steps: tuple[int | None, int, int | None], rank: int
    ) -> None:
        self.stop, self.connection = threading.Event(), connection
        self._receiving = _Receiving(connection, steps, rank, self.stop)
        self._ahead: Ahead[Any] | None = None

    def take(self, ahead: int) -> Any:
        """Return the arrays of the next batch, None at the end of the stream.

        Args:
            ahead: batches to receive ahead; 0 receives when asked.
        """
        if self._ahead is None:
            if not ahead:
                return self._receiving.next()
            self._ahead = Ahead(self._receiving.all, depth=ahead)
        try:
            return next(self._ahead, None)
        finally:
            if self._ahead.is_over:
                self._ahead = None  # its thread has ended

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self.connection.close()


class _Receiving:
    """Batches from a connection, to the end of the stream, and from there again."""

    def __init__(
        self,
        connection: Connection,
        steps: tuple[int | None, int, int | None],
        rank: int,
        stop: threading.Event,
    ) -> None:
        self.connection = connection
        self._steps, self._rank, self._stop = steps, rank, stop
        self._must_stop: Callable[[], bool] = lambda: False
        self._ends = Ends(connection.servers)
        self._batches: Iterator[Any] | None = None

    def all(self, must_stop: Callable[[], bool]) -> Generator[Any, None, None]:
        """Yield the batches to the end of the stream, for a thread that is told to stop."""
        self._must_stop = must_stop
        while (batch := self.next()) is not None:
            yield batch

    def _stops(self) -> bool:
        return self._stop.is_set() or self._must_stop()

    def next(self) -> Any:
        """Return the next batch, None at the end of the stream."""
        if self._batches is None:
            self._batches = self._start()
        try:
            batch = next(self._batches, None)
        except BaseException:
            self._batches = None  # a generator that raised is over
            raise
        if batch is None:
            self._batches = None
        return batch

    def _start(self) -> Iterator[Any]:
        self._ends = self._ends.current()
        progress = _Stoppable(self._ends, self._stops)
        rebatch, shuffle, seed = self._steps
        stream = Stream(lambda: self.connection.items(progress=progress))
        if rebatch is None:
            return iter(stream)
        if shuffle:
            own = None if seed is None else hash((seed, self._rank))
            stream = stream.unbatched().shuffled(shuffle, seed=own)
        return iter(stream.rebatch(rebatch))


class _Stoppable(Progress):
    """An iteration to the end of a stream, or until it is stopped."""

    def __init__(self, ends: Ends, stops: Callable[[], bool]) -> None:
        super().__init__(None, ends=ends)
        self._stops = stops

    @property
    def complete(self) -> bool:
        return self._stops() or super().complete


def from_stream(
    urls: str | Iterable[str],
    *,
    length: int | None = None,
    layout: tuple[str, str] | None = None,
    timeout_s: float | None = 60.0,
    on_bad_message: str = "raise",
) -> StreamPyDataset:
    """Return a data set over a stream; every adapter has this function with these arguments.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        length: batches of an epoch; None goes to the end of the stream.
        layout: (sent, wanted) layout of the first array; None leaves it.
        timeout_s: seconds to wait for a message; None waits for ever.
        on_bad_message: "raise" or "skip".
    """
    return StreamPyDataset(
        urls, length=length, layout=layout, timeout_s=timeout_s, on_bad_message=on_bad_message
    )
