"""StreamSource: a stream of arrays as a source of DALI pipelines.

Owns when messages are received, and the check that DALI can hold them; sockets and messages are
core's Connection.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom import ClosedError, Connection, ReceiveTimeoutError, SourceError
from tensorcom.ahead import Ahead
from tensorcom.arguments import check_integers, check_reader_options, check_share
from tensorcom.converters import as_list, check_layout, convert_layout, transform_with
from tensorcom.progress import Ends, Progress
from tensorcom.zmq_url import receiving_urls, share_urls
from tensorcom_dali.feed import ENDED_EARLY, FORKED, Batch, Source
from tensorcom_dali.ranks import current_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from numpy.typing import NDArray

    from tensorcom.stats import ConnectionStats

    Transforms = Sequence[Callable[[Any], Any] | None]

_HELD = {"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"}
_HELD |= {"float16", "float32", "float64", "bool"}


class StreamSource(Source):
    """Batches of arrays from a stream.

    Give it to `external_source` in a pipeline, or to a `Loader`. A thread receives ahead of use;
    sockets open with the first batch, and stay open between iterations: the next one goes on where
    the last one stopped. What the arrays are is taken from the first message, which therefore is
    waited for when a pipeline is defined. DALI's own types are all there is: uint8 to float64 and
    bool; no complex numbers, no bfloat16, no bytes, no batches without samples, and each array
    keeps its dtype and number of axes.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        length: batches in one iteration and the value of `len()`; None iterates to the end of the
            stream, and has no length.
        layout: (sent, wanted) layout of the first array, such as ("NHWC", "NHWC"), which also tells
            DALI what its axes are; None leaves it, and DALI takes images for HWC.
        batch_size: most samples of a message; None takes the number in the first one, and a
            `Loader` builds its pipeline anew for a message with more.
        timeout_s: seconds to wait for a message; None waits for ever.
        on_bad_message: "raise" MessageError on a message that is none of ours, or "skip" and count
            it in `stats.bad`.
        batch_transforms: functions applied to the numpy arrays first, by position; what they return
            is copied.
        prefetch: messages that are received before they are asked for.
        shard: (rank, ranks) of this process in its job, for publishers, of which each rank takes
            its part; None takes them from torch.distributed or jax.distributed if it is in use,
            else from the variables RANK and WORLD_SIZE, else (0, 1).
        **options: further options of `Connection`: infos, total, report and fields of
            SocketOptions.

    Yields:
        The arrays of a message, in memory of their own that is never written to again.

    Raises:
        ZmqUrlError: a URL is wrong, or sends.
        ReceiveTimeoutError: no message came in time.
        MessageError: a message is none of ours and `on_bad_message` is "raise".
        SourceError: a message is one that DALI cannot hold.
        ClosedError: it was closed while a pipeline read it.

    Pickles: the copy opens sockets of its own.
    """

    is_encoded = False
    is_stream = True

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        length: int | None = None,
        layout: tuple[str, str] | None = None,
        batch_size: int | None = None,
        timeout_s: float | None = 60.0,
        on_bad_message: str = "raise",
        batch_transforms: Callable[[Any], Any] | Transforms | None = None,
        prefetch: int = 2,
        shard: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        check_reader_options(options, refused=("converters", "device"))
        self._urls = receiving_urls(urls)
        check_layout(layout)
        check_integers(0, length=length, optional=True)
        check_integers(1, batch_size=batch_size, optional=True)
        check_integers(1, prefetch=prefetch)
        self.length = length
        self._layout, self._given_size = layout, batch_size
        self._prefetch = prefetch
        self._shard = None if shard is None else check_share("shard", shard)
        self._transforms = as_list(batch_transforms)
        self._config: dict[str, Any] = {
            "timeout_s": timeout_s,
            "on_bad_message": on_bad_message,
            **options,
        }
        self._forget()
        self._make_connection()  # wrong arguments are errors here

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self._ends: Ends | None = None
        self._ahead: Ahead[Batch] | None = None
        self._active = None
        self._form: list[tuple[str, int]] | None = None
        self._batch_size = self._given_size

    def _connected(self) -> Connection:
        if self._pid != os.getpid():
            self._forget()
        if self._connection is None:
            self._connection = self._make_connection()
        return self._connection

    def _make_connection(self) -> Connection:
        """Return a connection that opens at first use."""
        urls, split = share_urls(self._urls, self._shard or current_shard())
        texts = [str(url) for url in urls]
        return Connection(texts, noexpand=True, split=split, lazy=True, **self._config)

    # -- what it is ----------------------------------------------------------------------------

    def first(self) -> Batch | None:
        """Return the next batch and leave it there; None at the end of the stream."""
        self.begin()
        assert self._ahead is not None
        return self._ahead.peek()

    def _first_form(self) -> list[tuple[str, int]]:
        if self._form is None:
            batch = self.first()
            if batch is None:
                raise SourceError("the stream ended before its first message")
            self._form = _form_of(batch.arrays)
            if self._batch_size is None:
                self._batch_size = len(batch.arrays[0])
        return self._form

    @property
    def batch_size(self) -> int:
        """Most samples in a batch; waits for the first message if it was not given."""
        if self._batch_size is None:
            self._first_form()
        assert self._batch_size is not None
        return self._batch_size

    def grow(self, samples: int) -> bool:
        """Let batches have so many samples, unless a `batch_size` was given."""
        if self._given_size is None:
            self._batch_size = samples
        return self._given_size is None

    @property
    def outputs(self) -> list[tuple[str, int, str]]:
        """Of each array the dtype, axes and DALI layout of a sample; waits for a first message."""
        form = [(name, ndim, "") for name, ndim in self._first_form()]
        if self._layout is not None:
            form[0] = (*form[0][:2], self._layout[1][1:])
        return form

    @property
    def stats(self) -> ConnectionStats:
        """What came so far through the socket that is open: messages, bad ones, what is missing."""
        return self._connected().stats

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("the length of this stream is unknown; give length=N")
        return self.length

    def __repr__(self) -> str:
        return f"StreamSource({[str(url) for url in self._urls]})"

    # -- iterating -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Go on receiving, with a new thread where the last one came to an end."""
        connection = self._connected()
        if self._ahead is not None and isinstance(self._ahead.failure, ReceiveTimeoutError):
            self._ahead.close()  # nobody asked then
        elif self._ahead is not None and not self._ahead.is_over:
            return
        servers = connection.servers
        self._ends = Ends(servers) if self._ends is None else self._ends.current()
        receiving = _Receiving(connection, self._ends)
        receiving.steps = self._transforms, self._layout
        self._ahead = Ahead(receiving.batches, depth=self._prefetch, name="tensorcom-dali")

    def pop(self) -> Batch:
        """Return the next batch; StopIteration at the end of the stream.

        Raises:
            ClosedError: the source was closed meanwhile.
        """
        if self._pid != os.getpid():
            raise SourceError(FORKED)
        ahead = self._ahead
        if ahead is None:
            raise ClosedError(ENDED_EARLY)
        try:
            batch = next(ahead)
        except ClosedError:
            raise ClosedError(ENDED_EARLY) from None
        form = _form_of(batch.arrays)
        if self._form is None:
            self._form = form
        if form != self._form:
            raise SourceError(
                f"arrays are {_describe(form)}, but in the first batch {_describe(self._form)}: "
                "an input of a pipeline keeps its dtype and axes"
            )
        return batch

    def parallel_source(self) -> dict[str, Any]:
        """Refuse: a message has no number that a worker could ask for."""
        raise ValueError(
            "parallel=True is for a PcrSource; a stream is received by a thread, and its arrays "
            "were made by its servers"
        )

    # -- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the socket, and drop what was received ahead; iterating again opens a new one."""
        ahead, connection, is_here = self._ahead, self._connection, self._pid == os.getpid()
        self._forget()  # first, for a pipeline that waits in another thread
        if is_here:
            if ahead is not None:
                ahead.close()
            if connection is not None:
                connection.close()

    def __enter__(self) -> StreamSource:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration; a live socket stays with its process."""
        state = {**self.__dict__, "_shard": self._shard or current_shard()}
        live = ("_connection", "_ends", "_ahead", "_active", "_pid", "_form", "_batch_size")
        return {name: value for name, value in state.items() if name not in live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


class _Receiving(Progress):
    """What the thread does: receive until it is to stop, or the stream ends."""

    def __init__(self, connection: Connection, ends: Ends) -> None:
        super().__init__(None, ends=ends)
        self._connection = connection
        self._stopping: Callable[[], bool] = lambda: False
        self.steps: tuple[Transforms, tuple[str, str] | None] = [], None

    @property
    def complete(self) -> bool:
        """Whether nothing more will come; asked while waiting for a message too."""
        return self.ended or self._stopping()

    def claim(self) -> bool:
        """Take any message: how many are received is not decided here."""
        return True

    def batches(self, stopping: Callable[[], bool]) -> Generator[Batch, None, None]:
        """Yield the messages of the stream."""
        self._stopping = stopping
        iterator: Any = self._connection.items(progress=self)
        with closing(iterator) as messages:
            for arrays in messages:
                yield Batch(tuple(_checked(self._prepared(arrays))))

    def _prepared(self, received: list[Any]) -> list[Any]:
        """Return the arrays of a message after transforms, in memory that nobody else writes to."""
        transforms, layout = self.steps
        arrays = [
            # A function may use the memory of what it returned again, when this one still waits.
            array if array is own else np.array(array)
            for array, own in zip(transform_with(received, transforms), received, strict=True)
        ]
        if arrays and layout is not None:
            arrays[0] = convert_layout(arrays[0], layout)
        return arrays


def _checked(arrays: list[Any]) -> list[NDArray[Any]]:
    """Return the arrays of a message as DALI takes them: contiguous, of native byte order."""
    sizes = {array.shape[0] if array.ndim else None for array in arrays}
    if len(sizes) != 1 or None in sizes or 0 in sizes:
        shapes = ", ".join(str(array.shape) for array in arrays) or "none"
        raise SourceError(
            f"arrays have shapes {shapes}, expected the same number of samples, at least 1, in "
            "the first axis of each: a pipeline runs batches of samples"
        )
    for place, array in enumerate(arrays):
        if array.dtype.name not in _HELD:
            raise SourceError(
                f"array {place} is {array.dtype.name}, which DALI has no type for: convert it, or "
                "leave it out, where it is sent; or here by batch_transforms"
            )
    native = (array.astype(array.dtype.newbyteorder("="), copy=False) for array in arrays)
    return [np.ascontiguousarray(array) for array in native]


def _form_of(arrays: Sequence[NDArray[Any]]) -> list[tuple[str, int]]:
    return [(array.dtype.name, array.ndim - 1) for array in arrays]


def _describe(form: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} of {ndim + 1} axes" for name, ndim in form)
