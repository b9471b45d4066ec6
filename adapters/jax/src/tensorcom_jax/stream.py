"""DeviceStream: a stream as batches on devices.

Owns what is received ahead and what becomes of it when an iteration ends; the stream itself is
core's Connection, and where arrays go `placement`'s.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any

import jax

from tensorcom import Connection, ReceiveTimeoutError
from tensorcom.ahead import Ahead
from tensorcom.arguments import check_integers, check_reader_options, check_share
from tensorcom.converters import as_list, check_layout, convert_layout, transform_with
from tensorcom.progress import Ends, Progress
from tensorcom.zmq_url import receiving_urls, share_urls
from tensorcom_jax.placement import Placement, default_device

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from tensorcom.stats import ConnectionStats
    from tensorcom.zmq_url import ZmqUrl
    from tensorcom_jax.placement import Shardings

    Batch = tuple[Any, ...]
    Transforms = Sequence[Callable[[Any], Any] | None]


class DeviceStream:
    """Batches of a stream, as tuples of `jax.Array`s.

    A thread receives batches and puts them on devices before they are asked for. The socket opens
    with the first iteration and stays open: the next iteration goes on where the last one stopped,
    with what was received ahead. One iteration runs at a time; a new one ends the one before.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        sharding: where arrays go; see `Placement`. Processes that share arrays each give a part of
            each batch, and take batches of one size only.
        prefetch: batches on devices before they are asked for.
        length: batches in one iteration, and the value of `len()`. None iterates to the end of the
            stream, and has no length.
        batch_transforms: functions applied to the numpy arrays, by position, before they leave the
            host; what they return is copied.
        layout: (sent, wanted) layout of the first array, such as ("NHWC", "NCHW"); None leaves it.
        timeout_s: seconds to wait for a message; None waits for ever.
        on_bad_message: "raise" MessageError on a message that is none of ours, or "skip" and count
            it in `stats.bad`.
        infos: infos that each message must have, None for any.
        shard: (rank, ranks) of this process, which share publishers; pulling ranks share by nature.
            None takes them from the sharding if that spans processes, else from `jax.distributed`
            if it is initialised, else (0, 1), when the socket opens.
        **options: further options of `Connection`: total, report and fields of SocketOptions.

    Yields:
        A tuple of arrays for each batch, with the dtypes that were sent. Fixed bytes stay numpy.

    Raises:
        ZmqUrlError: a URL is wrong, or sends.
        ReceiveTimeoutError: no message came in time.
        MessageError: a message is none of ours and `on_bad_message` is "raise".
        ValueError: an array does not fit its sharding.

    Pickles as configuration; sockets, and what was received ahead, stay with their process.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        sharding: Shardings = None,
        prefetch: int = 2,
        length: int | None = None,
        batch_transforms: Callable[[Any], Any] | Transforms | None = None,
        layout: tuple[str, str] | None = None,
        timeout_s: float | None = 60.0,
        on_bad_message: str = "raise",
        infos: Sequence[str] | None = None,
        shard: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        self._urls = receiving_urls(urls)
        check_layout(layout)
        check_integers(0, length=length, optional=True)
        check_integers(1, prefetch=prefetch)
        self._placement = Placement(sharding)
        check_processes_differ(self._placement)
        self._length, self._prefetch = length, prefetch
        self._given_shard = None if shard is None else check_share("shard", shard)
        self._transforms, self._layout = as_list(batch_transforms), layout
        self._config: dict[str, Any] = {
            "timeout_s": timeout_s,
            "on_bad_message": on_bad_message,
            "infos": infos,
            **options,
        }
        self._live: _Live | None = None
        # Wrong arguments are errors here.
        connect(self._urls, self._given_shard or (0, 1), self._config)

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the length of this stream is unknown; give length=N")
        return self._length

    @property
    def stats(self) -> ConnectionStats:
        """What came so far through the socket that is open: messages, bad ones, what is missing."""
        return self._open().connection.stats

    def __getstate__(self) -> dict[str, Any]:
        shard = self._given_shard or self._placement.shard()
        return {**self.__dict__, "_live": None, "_given_shard": shard}

    def __iter__(self) -> Iterator[Batch]:
        live = self._open()
        iteration = live.start(self._length, self._prefetch, self._placed)
        try:
            # No variable, which would hold a batch on its device until the next one comes.
            yield from islice(iteration, self._length)
        finally:
            live.finish(iteration)

    def _open(self) -> _Live:
        if self._live is None or self._live.pid != os.getpid():
            shard = self._given_shard or self._placement.shard()
            self._live = _Live(connect(self._urls, shard, self._config))
        return self._live

    def _placed(self, received: Sequence[Any]) -> Batch:
        """Return a received batch on devices."""
        arrays = transform_with(received, self._transforms)
        # A function may use the memory of what it returned again.
        owned = [array is mine for array, mine in zip(arrays, received, strict=True)]
        if arrays and self._layout is not None:
            arrays[0] = convert_layout(arrays[0], self._layout)
        return self._placement.put(arrays, owned=owned)

    def close(self) -> None:
        """End the iteration and close the socket; iterating again opens a new one.

        What was received ahead is dropped, as is what waits in the socket.
        """
        if self._live is not None and self._live.pid == os.getpid():
            self._live.close()
        self._live = None


class _Counting(Progress):
    """Progress of an iteration that may be told to stop."""

    must_stop: Callable[[], bool] = staticmethod(lambda: False)

    @property
    def complete(self) -> bool:
        return self.must_stop() or super().complete


class _Live:
    """What one process has open: a socket, and what was received ahead of the next iteration."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pid = os.getpid()
        self._ends = Ends(connection.servers)
        self._running: Ahead[Batch] | None = None
        # What an iteration left to the next one: batches, and the end or error after them.
        self._waiting: list[Batch] = []
        self._is_over = False
        self._error: BaseException | None = None

    def start(
        self, length: int | None, prefetch: int, place: Callable[[Sequence[Any]], Batch]
    ) -> Ahead[Batch]:
        """Begin an iteration, and end the one before."""
        if self._running is not None:
            self.finish(self._running)
        waiting, error, is_over = self._waiting, self._error, self._is_over
        self._waiting, self._error, self._is_over = [], None, False
        if is_over or error is not None:
            make = _nothing_but(error)
        else:
            self._ends = self._ends.current()
            left = None if length is None else max(0, length - len(waiting))
            make = self._receiving(_Counting(left, ends=self._ends), place)
        self._running = Ahead(make, depth=prefetch, first=waiting)
        return self._running

    def _receiving(
        self, progress: _Counting, place: Callable[[Sequence[Any]], Batch]
    ) -> Callable[[Callable[[], bool]], Generator[Batch, None, None]]:
        connection, device = self.connection, default_device()

        def receive(must_stop: Callable[[], bool]) -> Generator[Batch, None, None]:
            progress.must_stop = must_stop
            with device:
                for arrays in connection.items(progress=progress):
                    yield place(arrays)

        return receive

    def finish(self, iteration: Ahead[Batch]) -> None:
        """End an iteration, and keep for the next one what it did not take."""
        if iteration is not self._running:
            return
        self._running = None
        self._waiting = iteration.close()
        self._is_over = self._ends.complete and not iteration.is_over
        # By the next iteration, a message may have come.
        failure = iteration.failure
        self._error = None if isinstance(failure, ReceiveTimeoutError) else failure

    def close(self) -> None:
        """End the iteration and close the socket."""
        if self._running is not None:
            self._running.close()
        self._running = None
        self.connection.close()


def _nothing_but(
    error: BaseException | None,
) -> Callable[[Callable[[], bool]], Generator[Batch, None, None]]:
    def receive(_: Callable[[], bool]) -> Generator[Batch, None, None]:
        if error is not None:
            raise error
        yield from ()

    return receive


def connect(urls: list[ZmqUrl], shard: tuple[int, int], config: dict[str, Any]) -> Connection:
    """Return a connection for one of several readers, which opens at first use.

    Raises:
        TypeError: an option is none of a reader whose arrays go to JAX.
        ValueError: an option or `shard` is out of range.
    """
    check_reader_options(config, refused=("converters", "device"))
    shared, split = share_urls(urls, shard)
    texts = [str(url) for url in shared]
    return Connection(texts, noexpand=True, split=split, lazy=True, **config)


def check_processes_differ(placement: Placement) -> None:
    """Refuse a sharding for which several processes would have to receive the same batches.

    Raises:
        ValueError: it is one.
    """
    share = placement.share
    if share is not None and share[1] != jax.process_count():
        raise ValueError(
            f"sharding has {share[1]} different parts of a batch on {jax.process_count()} "
            "processes, but each process receives batches of its own: shard the leading axis over "
            "all processes, or use records"
        )
