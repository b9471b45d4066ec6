"""One place in a fleet: the process that fills it, its pipe, and the end of both.

Owns a sender's process object and process group. Knows nothing of policy: when a sender is started,
drained or given up is the fleet's decision.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tensorcom.serving.worker import DRAIN_SIGNALS, MAX_REPORT_BYTES, Job, run_sender, worker_seed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

HEALTHY_S = 60.0


class Slot:
    """One sender of a fleet over all of its incarnations.

    Attributes:
        process: the current process, or None between two.
        incarnation: number of the current or last process, from 0.
        failures: crashes since the last healthy minute.
        start_at: monotonic time at which the next process is due, or None when none is.
        error: `summary` and `traceback` of the current process's failure, empty if it gave none.
        was_ready: whether the current process came as far as its target.
    """

    def __init__(self, index: int, count: int, seed: int, job: Job) -> None:
        """Describe sender `index` of `count`; nothing is started."""
        self.index = index
        self._settings = {
            "index": index,
            "count": count,
            "seed": worker_seed(seed, index),
            "fleet_seed": seed,
        }
        self._job = job
        self.process: SpawnProcess | None = None
        self.reader: Connection | None = None
        self.incarnation = -1
        self.failures = 0
        self.start_at: float | None = None
        self.error: dict[str, str] = {}
        self.was_ready = False
        self._started_at = 0.0

    @property
    def is_done(self) -> bool:
        """Whether there is no process, and none to come."""
        return self.process is None and self.start_at is None

    @property
    def pid(self) -> int | None:
        """Process id of the current process."""
        return None if self.process is None else self.process.pid

    def start(self) -> None:
        """Start the next incarnation.

        It starts with the drain signals blocked and opens them when it can handle them, so that
        neither an early SIGTERM nor a terminal's Ctrl-C meets a half-started interpreter.
        """
        self.start_at = None
        self.incarnation += 1
        self.error = {}
        self.was_ready = False
        context = multiprocessing.get_context("spawn")
        reader, writer = context.Pipe(duplex=False)
        settings = {**self._settings, "incarnation": self.incarnation}
        method = multiprocessing.get_start_method(allow_none=True)
        process = context.Process(
            target=run_sender,
            args=(self._job, settings, writer, method),
            name=f"tensorcom-sender-{self.index}",
            daemon=False,  # a daemonic process may not have loader workers of its own
        )
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, DRAIN_SIGNALS)
        try:
            process.start()
        except BaseException:
            reader.close()
            raise
        finally:
            writer.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.process, self.reader, self._started_at = process, reader, time.monotonic()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what the sender reported since the last call, errors and readiness apart."""
        while self.reader is not None:
            try:
                if not self.reader.poll():
                    return
                message = json.loads(self.reader.recv_bytes(MAX_REPORT_BYTES))
            except (OSError, EOFError):
                self._close_reader()
                return
            if message["kind"] == "report":
                yield message["data"]
            elif message["kind"] == "error":
                self.error = message["data"]
            else:
                self.was_ready = True

    def has_exited(self) -> bool:
        """Return whether the process is over, without reaping it.

        Until it is reaped, its process group keeps its id. The process object's own sentinel would
        not do: forked loader workers hold it open.
        """
        if self.pid is None:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # reaped by another part of the program

    def drain(self) -> None:
        """Ask the sender to finish its batch and return. Its loader workers are left to it."""
        self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the sender and its process group."""
        self._signal(os.killpg, signal.SIGKILL)
        self._signal(os.kill, signal.SIGKILL)  # it may not lead a group yet

    def _signal(self, send: Any, number: int) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                send(self.pid, number)

    def reap(self) -> int | None:
        """Kill what is left of an ended sender's group and release the process.

        Returns:
            Its exit code, negative for a signal; None where the program reaped it elsewhere.
        """
        if self.process is None:
            return None
        self._signal(os.killpg, signal.SIGKILL)
        self.process.join()
        exitcode = self.process.exitcode
        with suppress(ValueError):
            self.process.close()
        self._close_reader()
        self.process = None
        return exitcode

    def retry_in(self, backoff_s: float, max_backoff_s: float) -> float:
        """Count a crash, set when the next incarnation is due and return the seconds until then."""
        now = time.monotonic()
        if now - self._started_at >= HEALTHY_S:
            self.failures = 0
        self.failures += 1
        delay_s = min(max_backoff_s, backoff_s * 2.0 ** min(self.failures - 1, 60))
        self.start_at = now + delay_s
        return delay_s

    def _close_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None
