"""stream_dataset: a stream as a tf.data.Dataset.

Owns what the arguments mean and how long the socket lives; receiving is `pump`'s, what TensorFlow
sees `tf_feed`'s, and the stream itself core's Connection.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorcom import Connection, MessageError
from tensorcom.arguments import check_integers, check_reader_options
from tensorcom.buffers import BufferPool
from tensorcom.converters import as_list, check_layout
from tensorcom.zmq_url import receiving_urls, share_urls
from tensorcom_keras.pump import Pump, Reader
from tensorcom_keras.tf_feed import BatchSpec, make_dataset, owned, source_of, to_numpy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

PREFETCH = 2
PREFETCH_BYTES = 128_000_000


def stream_dataset(
    urls: str | Iterable[str],
    *,
    spec: Sequence[tf.TensorSpec] | None = None,
    length: int | None = None,
    layout: tuple[str, str] | None = None,
    batch_transforms: Callable[[Any], Any] | Sequence[Callable[[Any], Any] | None] | None = None,
    timeout_s: float | None = 60.0,
    on_bad_message: str = "raise",
    infos: Sequence[str] | None = None,
    shard: tuple[int, int] = (0, 1),
    prefetch: int = PREFETCH,
    prefetch_bytes: int = PREFETCH_BYTES,
    **options: Any,
) -> tf.data.Dataset:
    """Return a stream as a data set of batches.

    The elements are the batches of the servers, tuples of tensors: no images one by one, which
    would cost more than the network. Each message comes once, in order of arrival.

    A thread receives ahead while an iterator is in use. What it holds stays between iterations, and
    so does the socket: the next iteration goes on where the last one stopped. An iterator that is
    dropped ends the thread, and loses nothing, unless steps after this one (`prefetch`, `shuffle`)
    hold batches. The socket is closed by `close_stream`, or with the last reference to the
    data set, those made of it, and their iterators, or with the process.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        spec: tf.TensorSpec of each array, None for axes that vary. None receives the first message
            now, which the first iteration yields, and takes its dtypes and shapes, with any N.
        length: batches in one iteration, and the cardinality. None iterates to the end of the
            stream.
        layout: (sent, wanted) layout of the first array, such as ("NHWC", "NCHW"); None leaves it.
        batch_transforms: functions applied to the numpy arrays first, by position.
        timeout_s: seconds to wait for a message; None waits for ever.
        on_bad_message: "raise" an error on a message that is none of ours, or "skip" it.
        infos: infos that each message must have, None for any.
        shard: (rank, ranks) of this process in its job: of publishers it reads its part. Pulling
            ranks share by nature.
        prefetch: most batches that wait.
        prefetch_bytes: while the batches that wait hold so many bytes or more, none is received.
        **options: further options of `Connection`: topic filters go into the URL.

    Raises:
        ZmqUrlError: a URL is wrong or sends.
        ValueError, TypeError: an argument is out of range or of another kind.
        ReceiveTimeoutError, MessageError, TransportError: no message came, or none of ours, or the
            stream ended, where `spec` is taken from the first one.

    While iterating, errors are TensorFlow's and hold the class and text of ours: a time-out is a
    tf.errors.UnknownError, and a message that is none of ours, or does not fit the spec, a
    tf.errors.InvalidArgumentError. So is the end of the stream before `length`. The next
    iteration goes on; `ignore_errors` goes on with the same one. Ctrl-C is seen when TensorFlow
    returns, with the next batch or error.

    Ownership: tensors are the received memory, which begins at a multiple of 64 and is used again
    only when they are gone. What `batch_transforms` return, and what is not contiguous, is copied
    once.
    """
    check_integers(0, length=length, optional=True)
    check_integers(1, prefetch=prefetch, prefetch_bytes=prefetch_bytes)
    check_layout(layout)
    if spec is not None and not isinstance(spec, (list, tuple)):
        raise TypeError(f"spec={spec!r}, expected a tf.TensorSpec for each array, in a list")
    check_reader_options(options)
    shared, split = share_urls(receiving_urls(urls), shard)
    transforms = as_list(batch_transforms)
    config: dict[str, Any] = {
        "batch_transforms": transforms,
        "layout": layout,
        "timeout_s": timeout_s,
        "on_bad_message": on_bad_message,
        "infos": infos,
        "split": split,
        **options,
    }
    texts = [str(url) for url in shared]

    def connect() -> Connection:
        return Connection(texts, noexpand=True, lazy=True, **config)

    connect()  # wrong arguments are errors here, not in a thread
    messages = _Messages(transforms + as_list(options.get("converters")))
    pump = Pump(connect, messages.prepare, count=prefetch, size_bytes=prefetch_bytes)
    if spec is not None:
        messages.spec = BatchSpec(tuple(spec), origin="as spec says", error=MessageError)
    else:
        arrays = pump.look()
        try:
            messages.take_spec(arrays)
        except BaseException:
            pump.close()
            raise
        pump.put(messages.prepare(arrays))
    dataset = make_dataset(
        pump,
        lambda pump: Reader(pump, length, url=", ".join(texts)),
        messages.spec,
        length=length,
    )
    weakref.finalize(dataset, pump.disconnect).atexit = False  # then it is the pump's own matter
    return dataset


def close_stream(dataset: tf.data.Dataset) -> None:
    """Close the socket of a data set of `stream_dataset`, and end its thread.

    Batches that wait are dropped, and iterators in use get a ClosedError. The next iteration opens
    a new socket.

    Args:
        dataset: what `stream_dataset` returned, or a data set made of that by `map` and the like.

    Raises:
        TypeError: it is neither.
    """
    pump = source_of(dataset) if isinstance(dataset, tf.data.Dataset) else None
    if not isinstance(pump, Pump):
        raise TypeError(f"{dataset!r} was not made by stream_dataset")
    pump.close()


class _Messages:
    """What becomes of received arrays.

    Args:
        functions: what is applied to them, by position.

    Attributes:
        spec: their kind.
    """

    spec: BatchSpec

    def __init__(self, functions: Sequence[Any]) -> None:
        self._functions = functions
        self._pool = BufferPool()

    def take_spec(self, arrays: list[Any]) -> None:
        """Take the spec from the first message."""
        self.spec = BatchSpec.of(
            tuple(arrays), origin="as in the first message", error=MessageError
        )

    def prepare(self, arrays: list[Any]) -> tuple[NDArray[Any], ...]:
        """Return the arrays as TensorFlow takes them.

        Raises:
            MessageError: they are of another kind than `spec`.
        """
        fitting = self.spec.fit(_flat(arrays))
        return tuple(
            owned(array, self._pool, is_ours=self._is_received(i))
            for i, array in enumerate(fitting)
        )

    def _is_received(self, index: int) -> bool:
        """Return whether an array is the connection's, and not what some function returned."""
        functions = self._functions
        return not functions or functions[index % len(functions)] is None


def _flat(arrays: list[Any]) -> tuple[NDArray[Any], ...]:
    """Return what transforms made of arrays; they may not make dicts and the like."""
    return tuple(to_numpy(array, i, MessageError) for i, array in enumerate(arrays))
