"""TensorcomDataset: a stream as a torch IterableDataset.

Owns how loader workers and ranks share a stream; the stream itself is core's Connection.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tensorcom import Connection, Stream, ZmqUrlError
from tensorcom.arguments import check_integers, check_reader_options
from tensorcom.converters import check_layout, to_tensor
from tensorcom.progress import Ends, Progress, ProgressBoard
from tensorcom.zmq_url import receiving_urls, share_urls
from tensorcom_torch.workers import Shard, failing, loader_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tensorcom.meta import Meta
    from tensorcom.stats import ConnectionStats

    Converters = str | Callable[[Any], Any] | Sequence[Callable[[Any], Any] | None] | None


class TensorcomDataset(IterableDataset[list[Any]]):
    """Batches of tensors from a stream.

    Use it with `DataLoader(dataset, batch_size=None, num_workers=n)`: the batches are made by the
    servers. Each message is yielded once over all workers, whatever `n` and the start method:

    - PUSH/PULL: connecting sockets share the stream.
    - PUB/SUB with a URL for each worker or more: the URLs are dealt out to the workers.
    - PUB/SUB with fewer URLs than workers: every worker reads them, each keeps its share by number.
    - A URL that binds serves one worker only; with several it is an error that names zrpull.

    The ranks of a distributed job share publishers in the same way; pulling ranks share by nature.

    Sockets open where the iteration runs, in the worker or, without workers, in this process, and
    stay open between iterations: the next one goes on where the last one stopped.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        length: batches yielded in one iteration, over all workers of this process, and the value of
            `len()`. None iterates to the end of the stream, and has no length.
        converters: as of `Connection`; None yields tensors with the dtypes that were sent.
        batch_transforms: functions applied to the numpy arrays first, by position.
        layout: (sent, wanted) layout of the first array, such as ("NHWC", "NCHW"); None leaves it.
        rebatch: samples per yielded batch; None leaves the batches as they were sent.
        shuffle: samples in a shuffle buffer between received and yielded batches, 0 for none; needs
            `rebatch`.
        seed: what the shuffle buffer of each worker and rank makes its own seed of; None takes
            torch's.
        timeout_s: seconds to wait for a message; None waits for ever.
        on_bad_message: "raise" MessageError on a message that is none of ours, or "skip" and count
            it in `stats.bad`.
        infos: infos that each message must have, None for any.
        shard: (rank, ranks) of this process in its job; None takes them from torch.distributed if
            it is initialised, else from the variables RANK and WORLD_SIZE, else (0, 1), when the
            iteration begins.
        **options: further options of `Connection`: topic filters go into the URL.

    Yields:
        A list of tensors per batch, in memory of their own, writable.

    Raises:
        ZmqUrlError: a URL is wrong, sends, or binds and is iterated by several workers.
        ReceiveTimeoutError: no message came in time.
        MessageError: a message is none of ours and `on_bad_message` is "raise".
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        length: int | None = None,
        converters: Converters = None,
        batch_transforms: Sequence[Callable[[Any], Any] | None] | None = None,
        layout: tuple[str, str] | None = None,
        rebatch: int | None = None,
        shuffle: int = 0,
        seed: int | None = None,
        timeout_s: float | None = 60.0,
        on_bad_message: str = "raise",
        infos: Sequence[str] | None = None,
        shard: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_reader_options(options)
        self._urls = receiving_urls(urls)
        check_layout(layout)
        check_integers(0, length=length, optional=True)
        check_integers(1, rebatch=rebatch, optional=True)
        check_integers(0, shuffle=shuffle)
        check_integers(None, seed=seed, optional=True)
        if shuffle and not rebatch:
            raise ValueError(f"shuffle={shuffle} needs rebatch, the batch size to yield")
        self._length = length
        self._rebatch = rebatch
        self._shuffle = shuffle
        self._seed = seed
        self._shard = Shard(shard)
        self._iterations = 0
        self._board = ProgressBoard()
        self._live: _Live | None = None
        self._config: dict[str, Any] = {
            "batch_transforms": batch_transforms,
            "converters": to_tensor if converters is None else converters,
            "layout": layout,
            "timeout_s": timeout_s,
            "on_bad_message": on_bad_message,
            "infos": infos,
            **options,
        }
        self._connection((0, 1))  # wrong arguments are errors here, not in a worker

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the length of this stream is unknown; give length=N")
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration; a live socket stays with its process."""
        return {**self.__dict__, "_live": None, "_iterations": 0}

    @property
    def stats(self) -> ConnectionStats:
        """What came so far through the socket of this process: loader workers have their own."""
        return self._open(self._shard.current()).connection.stats

    def __iter__(self) -> Iterator[list[Any]]:
        info = get_worker_info()
        try:
            return self._iterate(info)
        except Exception as exc:
            if info is None:
                raise
            return failing(exc)

    def _iterate(self, info: Any) -> Iterator[list[Any]]:
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        rank, ranks = self._shard.current()
        reader = rank * workers + worker
        self._check_binding(workers)
        iteration, self._iterations = self._iterations, self._iterations + 1
        live = self._open((reader, ranks * workers))
        ends = live.ends()
        if info is None:
            progress = Progress(self._length, ends=ends)
        else:
            key = loader_key(info.seed - info.id, info.id)
            progress = self._board.join(key, iteration, worker, self._length, ends=ends)
        if not self._rebatch:
            return live.connection.items(progress=progress)
        return self._rebatched(live, progress, reader)

    def _check_binding(self, workers: int) -> None:
        """Refuse a URL that binds where several workers would do it."""
        binding = [url for url in self._urls if url.binds]
        if binding and workers > 1:
            scheme, other = ("zrpull", "zrpush") if binding[0].kind == "pull" else ("zsub", "zpub")
            raise ZmqUrlError(
                f"binds, which one worker can do and {workers} cannot; let the servers bind "
                f"({other}) and read with {scheme}, or use num_workers <= 1",
                url=str(binding[0]),
            )

    def _open(self, share: tuple[int, int]) -> _Live:
        """Return what this process has open: kept between iterations, so that nothing is lost."""
        if self._live is not None and self._live.share != share:
            self.close()
        if self._live is None or self._live.pid != os.getpid():
            self._live = _Live(self._connection(share), share)
        return self._live

    def _connection(self, share: tuple[int, int]) -> Connection:
        """Return the connection of one of several readers, which opens at first use."""
        urls, split = share_urls(self._urls, share)
        texts = [str(url) for url in urls]
        return Connection(texts, noexpand=True, split=split, lazy=True, **self._config)

    def _rebatched(self, live: _Live, progress: Progress, reader: int) -> Iterator[list[Any]]:
        """Yield batches of another size; samples left over go into the next iteration."""
        while progress.claim():
            live.relay.target = progress
            if live.batches is None:
                live.batches = self._batches(live, reader)
            try:
                batch = next(live.batches, None)
            except BaseException:
                live.batches = None  # a generator that raised is over
                raise
            if batch is None:
                live.batches = None
                return
            yield list(batch)

    def _batches(self, live: _Live, reader: int) -> Iterator[Sequence[Any]]:
        """Return batches of another size, to the end of the stream."""
        stream = Stream(lambda: live.connection.items(progress=live.relay))
        if self._shuffle:
            seed = torch.initial_seed() if self._seed is None else self._seed
            stream = stream.unbatched().shuffled(self._shuffle, seed=hash((seed, reader)))
        return iter(stream.rebatch(self._rebatch or 1))

    def close(self) -> None:
        """Close this process's socket; iterating again opens a new one."""
        if self._live is not None and self._live.pid == os.getpid():
            self._live.connection.close()
        self._live = None


class _Live:
    """What one process has open, for its share of the stream."""

    def __init__(self, connection: Connection, share: tuple[int, int]) -> None:
        self.connection, self.share = connection, share
        self.pid = os.getpid()
        self.relay = _Relay()
        self.batches: Iterator[Sequence[Any]] | None = None
        self._ends = Ends(connection.servers)

    def ends(self) -> Ends:
        """Return the ends that a new iteration starts from."""
        self._ends = self._ends.current()
        return self._ends


class _Relay(Progress):
    """Progress of an iteration that counts the batches it yields, not those it receives.

    The generator that receives outlives an iteration; `target` is the progress of the current one.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.target = Progress(None)

    def claim(self) -> bool:
        return True

    def note_end(self, meta: Meta) -> None:
        self.target.note_end(meta)

    @property
    def complete(self) -> bool:
        return self.target.ended


def from_stream(
    urls: str | Iterable[str],
    *,
    length: int | None = None,
    layout: tuple[str, str] | None = None,
    timeout_s: float | None = 60.0,
    on_bad_message: str = "raise",
) -> TensorcomDataset:
    """Return a data set over a stream; every adapter has this function with these arguments.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        length: batches in one iteration; None iterates to the end of the stream.
        layout: (sent, wanted) layout of the first array; None leaves it.
        timeout_s: seconds to wait for a message; None waits for ever.
        on_bad_message: "raise" or "skip".
    """
    return TensorcomDataset(
        urls, length=length, layout=layout, timeout_s=timeout_s, on_bad_message=on_bad_message
    )
