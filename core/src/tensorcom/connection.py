"""Connection: send and receive batches of arrays over ZMQ URLs.

Owns what a stream is to its user: arrays in and out, infos, topics, meta, statistics, iteration
and its end. Leaves frames to `message` and sockets to `transport`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorcom.arguments import check_share
from tensorcom.buffers import BufferPool
from tensorcom.converters import (
    as_list,
    check_layout,
    convert_layout,
    resolve_converters,
    transform_with,
)
from tensorcom.errors import ZmqUrlError
from tensorcom.message import Message
from tensorcom.pipeline import Steps
from tensorcom.progress import Ends, IterationOver, Progress
from tensorcom.receiver import Receiver, check_policy
from tensorcom.sender import Sender, count_samples
from tensorcom.socket_options import SocketOptions
from tensorcom.stats import ConnectionStats, Reporter
from tensorcom.transport import Transport
from tensorcom.zmq_url import ZmqUrl, expand_urls, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tensorcom.converters import Converter, Converters
    from tensorcom.meta import Meta
    from tensorcom.sender import StopSignal

logger = logging.getLogger(__name__)

_USE_DEFAULT: Any = object()
_POOL_BYTES = 128 << 20


class Connection(Steps):
    """A stream of tensors, sent or received.

    The first fourteen arguments are those of the original tensorcom, in its order.

    Args:
        url: a ZMQ URL or several, braces expanded; None to `connect` later.
        epoch: messages in one iteration and the value of `len()`; None iterates to the end of the
            stream and has no length.
        total: most samples (messages with `batch_count=False`) received over the connection's life;
            -1 for no limit.
        multipart: send one frame per array instead of one per message; read either.
        infos: info of each array, written when sending and required when receiving.
        device: None yields numpy arrays, else torch tensors on that device.
        allow64: allow 64-bit numbers to be sent.
        raw: `recv` returns the undecoded frames, bytes-like.
        batch_transforms: functions applied to the arrays by position, repeated if fewer.
        batch_count: count samples (leading axis of the first array) in reports and `total`, not
            messages.
        converters: "numpy", "torch", "torch_cuda", a function or several, after `batch_transforms`.
        report: log the rates (INFO, logger "tensorcom.connection") every so many samples; -1 never.
        stats_horizon: messages that count as recent in `stats`.
        noexpand: take braces in URLs literally.
        layout: (sent, wanted) layout of the first array, such as ("NHWC", "NCHW"); never guessed.
        topic: topic to publish under by default.
        on_bad_message: "raise" MessageError on a message that is none of ours, or "skip" and count.
        send_meta: send the meta frame with source, number and times.
        copy: `send` copies what it is given, so that the caller may change it at once; False sends
            the caller's own memory, which must then stay unchanged.
        split: (index, count): receive only each count-th message by number, for several readers of
            one publisher.
        lazy: open at first use instead of now.
        **options: fields of SocketOptions: hwm, hwm_bytes, max_frame_bytes, timeout_s, linger_ms,
            heartbeat_s, nodrop, curve_key, curve_server_key. Options in a URL go before them.

    Attributes:
        stats: ConnectionStats of this connection.

    Raises:
        ZmqUrlError: a URL is wrong, or the URLs are of several kinds.
        BindError, ConnectError: an address cannot be used.
    """

    def __init__(
        self,
        url: str | Iterable[str] | None = None,
        epoch: int | None = None,
        total: int = -1,
        multipart: bool = True,  # noqa: FBT001, FBT002 - the original's positional order
        infos: Sequence[str] | None = None,
        device: str | None = None,
        allow64: bool = False,  # noqa: FBT001, FBT002
        raw: bool = False,  # noqa: FBT001, FBT002
        batch_transforms: Converter | Sequence[Converter | None] | None = None,
        batch_count: bool = True,  # noqa: FBT001, FBT002
        converters: Converters = None,
        report: int = -1,
        stats_horizon: int = 1000,
        noexpand: bool = False,  # noqa: FBT001, FBT002
        *,
        layout: tuple[str, str] | None = None,
        topic: str | bytes = b"",
        on_bad_message: str = "raise",
        send_meta: bool = True,
        copy: bool = True,
        split: tuple[int, int] | None = None,
        lazy: bool = False,
        **options: Any,
    ) -> None:
        check_policy(on_bad_message)
        check_layout(layout)
        self.epoch = epoch
        self.total = total
        self.multipart = multipart
        self.infos = infos
        self.allow64 = allow64
        self.raw = raw
        self.batch_count = batch_count
        self.report = report
        self.noexpand = noexpand
        self._transforms = as_list(batch_transforms)
        self._device, self._converters_given = device, converters
        self._converters = resolve_converters(converters, device)
        self._topic = topic.encode() if isinstance(topic, str) else bytes(topic)
        self._layout, self._on_bad_message = layout, on_bad_message
        self._send_meta, self._copy = send_meta, copy
        self._split = None if split is None else check_share("split", split)
        self._options = SocketOptions(**options)  # a TypeError names an unknown one
        self._horizon = stats_horizon
        self._urls: list[ZmqUrl] = []
        self._reset_live()
        if url is not None:
            self._add_urls(url, topic="")
            if not lazy:
                self.open()

    def _reset_live(self) -> None:
        self._transport: Transport | None = None
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None
        self._pool = BufferPool(min(self._options.hwm_bytes, _POOL_BYTES))
        self._pending: Message | list[memoryview] | None = None
        self._count = 0
        self.stats = ConnectionStats(self._horizon)

    def connect(self, url: str | Iterable[str], topic: str = "") -> None:
        """Bind or connect one URL more, or several, now.

        Args:
            url: a ZMQ URL or several, braces expanded.
            topic: topic to subscribe to where the URL names none; "" for all.
        """
        self._add_urls(url, topic=topic)
        self.open()

    def _add_urls(self, url: str | Iterable[str], *, topic: str) -> None:
        for text in expand_urls(url, expand=not self.noexpand):
            parsed = parse_url(text)
            if topic and parsed.topic is None:
                parsed = replace(parsed, topic=topic)
            if self._transport is not None:
                self._transport.add(parsed)
            self._urls.append(parsed)
        self._attach()

    def _attach(self) -> None:
        """Make the halves that work on the URLs; nothing opens yet."""
        if self._transport is None:
            self._transport = Transport(self._urls, self._options)
        first = self._urls[0]
        if first.sends:
            self._topic = self._topic or (first.topic or "").encode()
            if self._sender is None:
                self._sender = Sender(
                    self._transport, self._pool, multipart=self.multipart, send_meta=self._send_meta
                )
            return
        self._ends = Ends(self.servers)
        topics = [u.topic for u in self._urls]
        self._receiver = Receiver(
            self._transport,
            self._pool,
            self.stats,
            topics=None if None in topics else {str(t).encode() for t in topics},
            infos=self.infos,
            on_bad_message=self._on_bad_message,
            split=self._split,
            servers=self.servers,
        )

    def open(self) -> None:
        """Bind and connect now, in this process; without effect if that is done."""
        self._live().open()

    def _live(self) -> Transport:
        if self._transport is None:
            raise ZmqUrlError("the connection has no URL; give one to Connection() or connect()")
        return self._transport

    @property
    def urls(self) -> list[str]:
        """URLs of the connection, with the ports that were picked for port 0."""
        return [] if self._transport is None else self._transport.urls

    def wait_for_peers(self, count: int = 1, *, timeout_s: float | None = 60.0) -> bool:
        """Wait until `count` peers are connected; return whether they are.

        For a publisher that is subscribers, and its start barrier: what it sends before is lost.
        """
        return self._live().wait_for_peers(count, timeout_s)

    def close(self, *, flush: bool = True, linger_ms: int | None = None) -> int:
        """Send what is queued, within `linger_ms`, and close; return how many were lost."""
        if self._transport is None:
            return 0
        lost = self._transport.close(flush=flush, linger_ms=linger_ms)
        self._pending = None
        self._pool.clear()
        if lost and flush:
            logger.warning("%s: closed with %d messages unsent", ", ".join(self.urls), lost)
        return lost

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration; the copy opens a socket of its own where it is used."""
        live = ("_transport", "_sender", "_receiver", "_pool", "_pending", "_count", "stats")
        state = {k: v for k, v in self.__dict__.items() if k not in (*live, "_converters")}
        return {**state, "closed": self._transport is not None and self._transport.closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        closed = state.pop("closed")
        self.__dict__.update(state)
        self._converters = resolve_converters(self._converters_given, self._device)
        self._reset_live()
        if self._urls:
            self._attach()
        if closed:
            self.close()

    def send(
        self,
        data: Sequence[Any] | Message,
        allow64: bool = False,  # noqa: FBT001, FBT002 - the original's signature
        *,
        topic: str | bytes | None = None,
        meta: Meta | None = None,
        copy: bool | None = None,
        timeout_s: float | None = _USE_DEFAULT,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Send one batch.

        Args:
            data: arrays (numpy, scalars, torch tensors and others), or a Message.
            allow64: allow 64-bit numbers in this message.
            topic: topic of this message; None takes the message's, then the connection's.
            meta: what to say of the batch; source, number, samples and time are filled in.
            copy: overrides the connection's `copy` for this message.
            timeout_s: seconds to wait for a peer with room; None waits for ever; default is the
                connection's.
            check: called about ten times a second while waiting; may raise to stop.

        Raises:
            TenbinError: an array cannot be sent.
            MessageError: topic or meta cannot be sent.
            SendTimeoutError: no peer took the message in time.

        Ownership: with `copy` the arrays may change at once, without it not before the peer has
        them.
        """
        limit = self._limit(timeout_s)
        if self._sender is None:
            raise ZmqUrlError(f"a {self._urls[0].scheme} connection receives, it does not send")
        message = data if isinstance(data, Message) else Message(data)
        if topic is None:
            key = message.topic or self._topic
        else:
            key = topic.encode() if isinstance(topic, str) else bytes(topic)
        size, samples = self._sender.send(
            Message(message.arrays, message.infos or self.infos or (), key, meta or message.meta),
            allow64=allow64 or self.allow64,
            copy=self._copy if copy is None else copy,
            timeout_s=limit,
            check=check,
        )
        self.stats.add(size)
        self.stats.samples += samples

    def write(self, data: Sequence[Any]) -> None:
        """Do the same as `send`."""
        self.send(data)

    def serve(
        self,
        source: Iterable[Sequence[Any] | Message],
        report: int = -1,
        *,
        end: str | None = None,
        sources: int | None = None,
        stop: StopSignal | None = None,
        copy: bool | None = None,
    ) -> None:
        """Send everything that a source yields, waiting for readers as long as it takes.

        Args:
            source: yields arrays or Messages.
            report: log the rates every so many samples; -1 takes the connection's.
            end: end word to say at the end, after all has left: "stream" ends the readers'
                iteration, "epoch" is for them to see; None says nothing.
            sources: how many senders share the address, so that readers wait for all their ends.
            stop: ends the serving when it is set, also while no reader has room.
            copy: overrides the connection's `copy`.
        """
        reporter = self._reporter(report)

        def check() -> None:
            if stop is not None and stop.is_set():
                raise IterationOver

        try:
            for item in source:
                check()
                message = item if isinstance(item, Message) else Message(item)
                self.send(message, timeout_s=None, check=check, copy=copy)
                reporter.add(count_samples(message.arrays) if self.batch_count else 1)
            if end is not None and self._sender is not None:
                self._sender.finish(end, topic=self._topic, sources=sources, check=check)
        except IterationOver:
            return

    def recv(self) -> list[Any]:
        """Receive one batch, transformed and converted; with `raw` its frames, bytes-like.

        Raises:
            ReceiveTimeoutError: nothing came in `timeout_s`.
            MessageError: the message is none of ours and `on_bad_message` is "raise".

        Ownership: the arrays are the caller's, writable and never used again by the connection.
        """
        return self._finish(self.receive(self._limit(_USE_DEFAULT), None))

    def recv_message(self, *, timeout_s: float | None = _USE_DEFAULT) -> Message:
        """Receive one message with its topic and meta; arrays are numpy and not transformed.

        Args:
            timeout_s: seconds to wait; None waits for ever; default is the connection's.

        Raises:
            ReceiveTimeoutError: nothing came in time.
            MessageError: the message is none of ours and `on_bad_message` is "raise".
        """
        return self._receiving().message(self._limit(timeout_s), None)

    def _limit(self, timeout_s: float | None) -> float | None:
        own = self._live().options.timeout_s
        return own if timeout_s is _USE_DEFAULT else timeout_s

    def _receiving(self) -> Receiver:
        self._live()
        if self._receiver is None:
            raise ZmqUrlError(f"a {self._urls[0].scheme} connection sends, it does not receive")
        return self._receiver

    def receive(self, limit: float | None, progress: Progress | None) -> Message | list[memoryview]:
        """Return the next message for this reader as it came; its frames if `raw`.

        Args:
            limit: seconds to wait, None for ever.
            progress: told of ends, and asked while waiting whether the iteration is over.

        Raises:
            IterationOver: `progress` says so.
            ReceiveTimeoutError: nothing came in time.
            MessageError: the message is none of ours and `on_bad_message` is "raise".
        """
        receiver = self._receiving()
        pending, self._pending = self._pending, None
        if pending is not None:
            return pending
        if not self.raw:
            return receiver.message(limit, progress)
        frames = receiver.frames(limit, progress)
        self.stats.add(sum(len(frame) for frame in frames))
        return frames

    def _finish(self, item: Message | list[memoryview]) -> list[Any]:
        """Return what the caller gets: arrays after transforms, layout and converters."""
        if isinstance(item, list):
            return list(item)
        arrays = transform_with(item.arrays, self._transforms)
        if arrays and self._layout is not None:
            arrays[0] = convert_layout(arrays[0], self._layout)
        return transform_with(arrays, self._converters)

    def items(self, report: int = -1, *, progress: Progress | None = None) -> Iterator[list[Any]]:
        """Receive batches until `epoch` messages or `total` samples have come or the stream ends.

        Args:
            report: log the rates every so many samples; -1 takes the connection's.
            progress: count of messages and ends, shared with other readers of the iteration.
        """
        self._receiving()
        if progress is None:
            self._ends = self._ends.current()
            progress = Progress(self.epoch, ends=self._ends)
        reporter = self._reporter(report)
        while (self.total < 0 or self._count < self.total) and not progress.complete:
            try:
                item = self.receive(self._limit(_USE_DEFAULT), progress)
            except IterationOver:
                return
            if not progress.claim():  # then it is the first of the next iteration
                self._pending = item
                return
            by_message = isinstance(item, list) or not self.batch_count
            size = 1 if by_message else count_samples(item.arrays)  # type: ignore[union-attr]
            self._count += size
            reporter.add(size)
            yield self._finish(item)

    def __iter__(self) -> Iterator[list[Any]]:
        return self.items()

    def __call__(self) -> Iterator[list[Any]]:
        """Iterate; makes the connection the first stage of a `webdataset.DataPipeline`."""
        return self.items()

    def __len__(self) -> int:
        if self.epoch is None:
            raise TypeError("the length of this stream is unknown; give Connection(..., epoch=N)")
        return self.epoch

    @property
    def servers(self) -> int:
        """Addresses that the stream comes from; each has one source or more."""
        return max(1, len({url.endpoint for url in self._urls}))

    def _reporter(self, report: int) -> Reporter:
        every = report if report > 0 else self.report
        return Reporter(every, lambda n: logger.info("%d: %s", n, self.stats.summary()))
