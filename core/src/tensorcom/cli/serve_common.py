"""What the serve commands share: arguments, the sender process, progress and errors.

Owns how a fleet of senders is run from the command line; what is sent comes from `serving.sources`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorcom.cli.common import add_verbose_argument, index, note, positive_int
from tensorcom.connection import Connection
from tensorcom.errors import ServingError, ZmqUrlError
from tensorcom.message import check_topic
from tensorcom.sender import count_samples
from tensorcom.serving import Fleet, FleetEvent, Worker
from tensorcom.serving.sources import repeat_one
from tensorcom.socket_options import SocketOptions
from tensorcom.zmq_url import expand_urls, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tensorcom.message import Message

    MakeSource = Callable[[Worker, dict[str, Any]], Iterator[Message]]

DEFAULT_URL = "zpub://127.0.0.1:7880"
# A restart cannot mend these: the sender would fail in the same way for ever.
FATAL = {
    "BindError",
    "ConnectError",
    "ImageError",
    "JpegError",
    "MessageError",
    "MissingDependencyError",
    "PcrEndError",
    "PcrFormatError",
    "PcrIndexError",
    "SourceError",
    "TenbinError",
    "ZmqUrlError",
}
_REPORT_S = 0.5
_LAST_REPORT_S = 2.0
_GRACE_S = 5.0  # beyond what closing may take
_ANY_PORT = (":0", ":*")


def add_url_argument(parser: argparse.ArgumentParser) -> None:
    """Add the URLs."""
    parser.add_argument(
        "url",
        nargs="*",
        default=[DEFAULT_URL],
        help=f"ZMQ URLs to serve on, braces expanded, a process for each (default {DEFAULT_URL})",
    )


def add_serving_arguments(parser: argparse.ArgumentParser, *, parallel: str) -> None:
    """Add what every serve command takes; `parallel` is the short flag of --parallel."""
    parser.add_argument(
        "-r", "--report", type=index, default=100, metavar="N",
        help="report progress each N batches, 0 never (default 100)",
    )  # fmt: skip
    parser.add_argument(
        parallel, "--parallel", type=positive_int, default=1, metavar="N",
        help="processes per URL; more than one needs a URL that connects: zpush or zrpub",
    )  # fmt: skip
    parser.add_argument(
        "--wait-for-peers", type=index, default=0, metavar="N",
        help="start when N readers are there: what a publisher sends before is lost (default 0)",
    )  # fmt: skip
    parser.add_argument("--topic", default="", help="topic to publish under (zpub and zrpub)")
    parser.add_argument(
        "--fail-fast", action="store_true", help="end when a process crashes; else restart it"
    )
    parser.add_argument(
        "--single-part", action="store_true", help="send each message as one frame, not several"
    )
    add_verbose_argument(parser)


def add_image_arguments(parser: argparse.ArgumentParser, *, threads: tuple[str, str]) -> None:
    """Add what the commands that decode images take; `threads` are the flags for threads."""
    parser.add_argument(
        "-b", "--batch-size", type=positive_int, default=32, metavar="N",
        help="samples per batch (default 32)",
    )  # fmt: skip
    parser.add_argument(
        "-B", "--benchmark", action="store_true",
        help="send one preloaded batch for ever: the speed of all but reading and decoding",
    )  # fmt: skip
    parser.add_argument(
        *threads, dest="threads", type=index, default=0, metavar="N",
        help="further decoding threads per process (default 0)",
    )  # fmt: skip
    parser.add_argument(
        "--epochs", type=positive_int, metavar="N",
        help="passes over the data, then say the end of the stream (default: endless)",
    )  # fmt: skip
    parser.add_argument(
        "--size", type=positive_int, default=224, metavar="PIXELS", help="image side (default 224)"
    )
    parser.add_argument(
        "--no-augment", dest="augment", action="store_false", default=True,
        help="send the centre of each image instead of a random crop and flip",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--normalize", action="store_true",
        help="send float32 by ImageNet's mean and deviation instead of uint8",
    )  # fmt: skip
    parser.add_argument(
        "--drop-last", action="store_true", help="leave out an epoch's last, smaller batch"
    )
    parser.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise",
        help="end at a bad image, or skip and report it (default raise)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=index, default=0, help="of order and augmentation (default 0)"
    )


@dataclass(frozen=True)
class Service:
    """What a sender process is told; pickled.

    Attributes:
        urls: a URL for each sender.
        make_source: called with the worker and `settings`; a function at the top level of a module.
        settings: arguments of the command.
    """

    urls: tuple[str, ...]
    make_source: MakeSource
    settings: dict[str, Any]


def sender_urls(urls: list[str], parallel: int, topic: str = "") -> tuple[str, ...]:
    """Return a URL for each sender process.

    Raises:
        ZmqUrlError: a URL is wrong, receives, is given twice, binds and is to be shared, does not
            leave its process, or has no topics though one is given.
        MessageError: the topic cannot be sent.
    """
    check_topic(topic.encode())
    expanded = expand_urls(urls)
    for text in expanded:
        url = parse_url(text)
        if not url.sends:
            raise ZmqUrlError(
                f"{url.scheme} receives; serve on zpub, zrpush, zpush or zrpub", url=text
            )
        if url.transport == "inproc":
            raise ZmqUrlError("inproc does not leave the sender's process; use ipc", url=text)
        if topic and url.kind != "pub":
            raise ZmqUrlError(f"{url.scheme} has no topics; leave --topic out", url=text)
        shared = parallel > 1 or expanded.count(text) > 1
        if url.binds and shared and not (parallel == 1 and url.address.endswith(_ANY_PORT)):
            raise ZmqUrlError(
                f"{url.scheme} binds, which one process can do; use zpush or zrpub, "
                "or a URL for each process, as in …:788{0..3}",
                url=text,
            )
    return tuple(text for text in expanded for _ in range(parallel))


def send(worker: Worker, service: Service) -> None:
    """Send from one process of the fleet: its whole life."""
    url, settings = service.urls[worker.index], service.settings
    source = service.make_source(worker, settings)
    if settings.get("benchmark"):
        source = repeat_one(source)
    connection = Connection(
        url,
        copy=False,
        multipart=not settings["single_part"],
        allow64=True,
        noexpand=True,
        topic=settings["topic"],
    )
    try:
        if parse_url(url).address.endswith(_ANY_PORT):
            worker.report({"urls": connection.urls})
        while not connection.wait_for_peers(settings["wait_for_peers"], timeout_s=0.1):
            if worker.stopping.is_set():
                return
        with contextlib.closing(_counted(source, worker)) as counted:
            connection.serve(
                counted, end="stream", sources=service.urls.count(url), stop=worker.stopping
            )
    finally:
        # Once asked to stop: without a reader, what is queued would not leave in any time.
        hopeless = worker.stopping.is_set() and not connection.wait_for_peers(1, timeout_s=0)
        connection.close(linger_ms=0 if hopeless else None)


def _counted(source: Iterator[Message], worker: Worker) -> Generator[Message, None, None]:
    """Yield messages, and report now and then how many have been sent."""
    batches = samples = size = 0
    due = time.monotonic() + _REPORT_S
    try:
        for message in source:
            yield message
            batches += 1
            samples += count_samples(message.arrays)
            size += sum(array.nbytes for array in message.arrays)
            if time.monotonic() >= due and worker.report(_figures(batches, samples, size)):
                batches = samples = size = 0
                due = time.monotonic() + _REPORT_S
    finally:
        deadline = time.monotonic() + _LAST_REPORT_S
        while not worker.report(_figures(batches, samples, size)) and time.monotonic() < deadline:
            time.sleep(0.01)
        close = getattr(source, "close", None)
        if close is not None:
            close()


def _figures(batches: int, samples: int, size_bytes: int) -> dict[str, int]:
    return {"batches": batches, "samples": samples, "size_bytes": size_bytes}


def serve(args: argparse.Namespace, prog: str, make_source: MakeSource) -> int:
    """Run the fleet until it ends, is asked to stop, or fails."""
    urls = sender_urls(args.url, args.parallel, args.topic)
    settings = {**vars(args), "prog": prog}
    watch = _Watch(prog, args.report, len(urls))
    linger_ms = max(SocketOptions().for_url(parse_url(url)).linger_ms for url in urls)
    with _quiet_fleet(verbose=args.verbose):
        Fleet(
            send,
            (Service(urls, make_source, settings),),
            count=len(urls),
            seed=settings.get("seed", 0),
            fail_fast=args.fail_fast,
            grace_s=linger_ms / 1000 + _GRACE_S,
            on_event=watch,
        ).run()
    watch.finish()
    return 0


@contextlib.contextmanager
def _quiet_fleet(*, verbose: bool) -> Iterator[None]:
    """Leave what happens to the one-line notes; the fleet's log has tracebacks, for `-v`."""
    log = logging.getLogger("tensorcom.serving")
    level = log.level
    log.setLevel(level if verbose else logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@dataclass
class _Watch:
    """Tells on standard error how a fleet is doing."""

    prog: str
    every: int
    senders: int
    batches: int = 0
    samples: int = 0
    size_bytes: int = 0
    restarts: int = 0
    shown: int = 0
    reason: str = ""
    start: float = field(default_factory=time.monotonic)

    def __call__(self, event: FleetEvent) -> None:
        if event.kind == "report":
            self._on_report(event)
        elif event.kind == "crashed":
            self.reason = event.detail.strip().splitlines()[-1]
            name, _, text = self.reason.partition(": ")
            if name.rpartition(".")[2] in FATAL:
                raise ServingError(text, worker=event.worker, exitcode=event.exitcode)
        elif event.kind == "restarting":
            self.restarts += 1
            when = event.detail.rpartition("; ")[2]
            note(self.prog, f"sender {event.worker} crashed: {self.reason}; {when}")
        elif event.kind in ("draining", "killed"):
            sender = "" if event.worker is None else f"sender {event.worker} "
            note(self.prog, f"{sender}{event.kind}: {event.detail}")

    def _on_report(self, event: FleetEvent) -> None:
        if "skipped" in event.progress:
            note(self.prog, f"skipped {event.progress['skipped']}")
            return
        if "urls" in event.progress:
            note(self.prog, f"sender {event.worker} on {', '.join(event.progress['urls'])}")
            return
        if not self.batches:
            self.start = time.monotonic() - _REPORT_S
        self.batches += event.progress["batches"]
        self.samples += event.progress["samples"]
        self.size_bytes += event.progress["size_bytes"]
        if self.every and self.batches - self.shown >= self.every:
            self._show()

    def _show(self) -> None:
        self.shown = self.batches
        seconds = max(time.monotonic() - self.start, 1e-9)
        restarts = f", {self.restarts} restarts" if self.restarts else ""
        note(
            self.prog,
            f"{self.batches} batches, {self.samples} samples: "
            f"{self.batches / seconds:.1f} batches/s, {self.samples / seconds:.0f} samples/s, "
            f"{self.size_bytes / seconds / 1e6:.1f} MB/s by {self.senders} processes{restarts}",
        )

    def finish(self) -> None:
        """Tell the last figures."""
        if self.every and self.batches > self.shown:
            self._show()
