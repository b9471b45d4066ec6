"""The child's side of a fleet: what a sender process is given, and how it starts, reports and ends.

Owns the process group, the signals, the seeds, the watch over the parent and the report pipe of one
sender. Knows nothing of sockets, data or restarts: a target is any callable that takes a `Worker`.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import pickle
import random
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.errors import ServingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from multiprocessing.connection import Connection
    from types import FrameType, ModuleType

MAX_REPORT_BYTES = (
    4000  # with its header under PIPE_BUF: written whole or not at all, never in part
)
SUMMARY_BYTES = 800
TRACEBACK_BYTES = 2800
ERROR_SEND_S = 2.0
POLL_S = 0.05
PARENT_POLL_S = 1.0
DRAIN_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopFlag:
    """A flag that a signal handler may set: unlike `threading.Event` it takes no lock."""

    def __init__(self) -> None:
        """Make a flag that is not set."""
        self._is_set = False

    def set(self) -> None:
        """Set the flag, for good."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until the flag is set or `timeout_s` seconds are over; return whether it is set."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_set:
            left_s = POLL_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(POLL_S, left_s))
        return self._is_set


def _to_plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


class ReportPipe:
    """The writing end of a sender's pipe to its parent: one JSON object per message, no pickle."""

    def __init__(self, writer: Connection) -> None:
        """Take over `writer`, a one-way pipe."""
        self._writer = writer
        self._lock = threading.Lock()

    def send(self, kind: str, data: object, *, timeout_s: float = 0.0) -> bool:
        """Send one message, unless the pipe stays full for `timeout_s` seconds.

        Returns:
            Whether it was sent. A parent that is slow or gone costs reports, not throughput.

        Raises:
            ServingError: `data` is not JSON or over `MAX_REPORT_BYTES`.
        """
        try:
            text = json.dumps({"kind": kind, "data": data}, default=_to_plain)
        except (TypeError, ValueError) as error:
            raise ServingError(f"a report has to be a JSON object: {error}") from error
        payload = text.encode("ascii")
        if len(payload) > MAX_REPORT_BYTES:
            raise ServingError(f"a report of {len(payload)} bytes exceeds {MAX_REPORT_BYTES}")
        with self._lock, suppress(OSError, ValueError):
            if select.select([], [self._writer], [], timeout_s)[1]:
                self._writer.send_bytes(payload)
                return True
        return False


@dataclass(frozen=True)
class Worker:
    """What a target knows of the sender process that it runs in.

    Attributes:
        index: number of this sender, from 0.
        count: number of senders in the fleet.
        seed: 64-bit seed of this sender, from the fleet's seed and `index`; the same in each run.
        incarnation: how often this sender was restarted.
        fleet_seed: the seed that the fleet was given.
        stopping: set when the sender is asked to drain: finish the batch, flush and return.
    """

    index: int = 0
    count: int = 1
    seed: int = 0
    incarnation: int = 0
    fleet_seed: int = 0
    stopping: StopFlag = field(default_factory=StopFlag, compare=False)
    pipe: ReportPipe | None = field(default=None, compare=False, repr=False)

    def rng(self, epoch: int) -> np.random.Generator:
        """Return the generator of this sender for `epoch`; the same in each run."""
        return np.random.default_rng(np.random.SeedSequence([self.fleet_seed, self.index, epoch]))

    def report(self, progress: Mapping[str, object]) -> bool:
        """Send a small JSON object, such as rates, to the parent's `on_event`.

        Returns:
            Whether it was sent: a report that would have to wait is dropped.

        Raises:
            ServingError: `progress` is not JSON or over 4000 bytes.
        """
        return self.pipe is not None and self.pipe.send("report", dict(progress))


def worker_seed(seed: int, index: int) -> int:
    """Return the 64-bit seed of sender `index` in a fleet with `seed`."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])


def seed_generators(seed: int) -> None:
    """Seed the global generators of `random`, numpy and, once something imports it, torch.

    Left alone, torch's would start equal in every sender, and its loader workers with it.
    """
    random.seed(seed)
    np.random.seed(np.random.SeedSequence(seed).generate_state(4))
    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _SeedTorchOnImport(seed))
    else:
        torch.manual_seed(seed)


class _SeedTorchOnImport(MetaPathFinder, Loader):
    """Seeds torch right after its import, for a target that imports it late."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._loader: Loader | None = None

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG002 - the protocol's
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        with suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._loader is None else self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self._loader is None:
            return
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        seed = getattr(module, "manual_seed", None)  # an empty namespace package has none
        if seed is not None:
            seed(self._seed)


class Job:
    """A target and its arguments, pickled apart.

    They are unpickled only when the sender watches its parent and can report: the modules that they
    import may take seconds, or fail.
    """

    def __init__(self, target: Callable[..., object], args: tuple[object, ...]) -> None:
        """Hold `target` and `args`."""
        self._load: Callable[[], tuple[Callable[..., object], tuple[object, ...]]]
        self._load = lambda: (target, args)

    def __getstate__(self) -> bytes:
        """Pickle as multiprocessing does: its queues and locks may be among the arguments."""
        return bytes(ForkingPickler.dumps(self._load()))

    def __setstate__(self, state: bytes) -> None:
        """Keep the bytes for later."""
        # The bytes come from the parent through multiprocessing's own pipe, not from a network.
        self._load = lambda: pickle.loads(state)  # noqa: S301

    def run(self, worker: Worker) -> None:
        """Unpickle the target, seed the generators and call the target."""
        target, args = self._load()
        seed_generators(worker.seed)
        target(worker, *args)


def _watch_parent(parent_pid: int, sentinel: int) -> None:
    """Wait for the parent's death, then end this process and all below it.

    The sentinel is a pipe whose writing end only the parent holds. A process that the parent forked
    may hold a copy of it, so that the parent's id is looked at as well.
    """
    is_child = os.getppid() == parent_pid
    while not connection.wait([sentinel], PARENT_POLL_S):
        if is_child and os.getppid() != parent_pid:
            break
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _default_sigterm() -> None:
    with suppress(ValueError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _take_signals(stopping: StopFlag) -> None:
    """Let SIGTERM set `stopping` and ignore SIGINT; the parent decides what Ctrl-C means."""

    def drain(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, drain)
    os.register_at_fork(after_in_child=_default_sigterm)  # so that `terminate` ends loader workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DRAIN_SIGNALS)


def _lead_group() -> None:
    with suppress(PermissionError):  # a session leader leads its group already
        os.setpgid(0, 0)
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        raise ServingError("a sender process has no parent process")
    args = (parent.pid, parent.sentinel)
    threading.Thread(target=_watch_parent, args=args, name="tensorcom-parent", daemon=True).start()


def _tail(text: str, limit_bytes: int) -> str:
    """Return the end of `text` that fits into `limit_bytes` of JSON."""
    while len(json.dumps(text)) > limit_bytes:
        text = text[len(text) // 4 + 1 :]
    return text


def describe_error(error: BaseException) -> dict[str, str]:
    """Return `summary` (class and message) and `traceback` of `error`, of long ones the end."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_exception(error)).strip()
    return {"summary": _tail(summary, SUMMARY_BYTES), "traceback": _tail(trace, TRACEBACK_BYTES)}


def run_sender(
    job: Job, settings: Mapping[str, Any], writer: Connection, start_method: str | None
) -> None:
    """Run one sender: the entry point of a fleet's child process.

    Args:
        job: what to run.
        settings: the plain fields of `Worker`.
        writer: the pipe to the parent.
        start_method: the parent's default for new processes, so that loader workers start here as
            they would there; multiprocessing would leave "spawn".
    """
    multiprocessing.set_start_method(start_method, force=True)
    _lead_group()
    pipe = ReportPipe(writer)
    worker = Worker(**settings, stopping=StopFlag(), pipe=pipe)
    _take_signals(worker.stopping)
    pipe.send("ready", None, timeout_s=ERROR_SEND_S)
    try:
        job.run(worker)
    except Exception as error:  # noqa: BLE001 - whatever a target raises is its parent's to report
        pipe.send("error", describe_error(error), timeout_s=ERROR_SEND_S)
        sys.exit(1)
