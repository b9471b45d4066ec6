"""Fleets: a number of sender processes that are started, watched, restarted and ended together.

Owns the policy: what happens when a sender crashes, finishes, reports, or is asked to stop. Knows
nothing of what senders send; the process of one sender is in `slot`, its inner side in `worker`.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import pickle
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from typing import TYPE_CHECKING, Any, Literal

from tensorcom.errors import ServingError
from tensorcom.serving.slot import Slot
from tensorcom.serving.worker import POLL_S, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.context import SpawnProcess
    from types import FrameType, TracebackType

logger = logging.getLogger("tensorcom.serving")

EventKind = Literal["started", "crashed", "restarting", "finished", "report", "draining", "killed"]
LEVELS = {"crashed": logging.ERROR, "killed": logging.WARNING, "restarting": logging.WARNING}


@dataclass(frozen=True)
class FleetEvent:
    """Something that happened in a fleet.

    Attributes:
        kind: what happened.
        worker: index of the sender, or None for the whole fleet.
        pid: its process id.
        incarnation: how often it had been restarted.
        exitcode: its exit code, negative for a signal.
        detail: for people: the traceback of a crash, the delay of a restart.
        progress: what the sender reported, for `report`.
    """

    kind: EventKind
    worker: int | None = None
    pid: int | None = None
    incarnation: int = 0
    exitcode: int | None = None
    detail: str = ""
    progress: Mapping[str, Any] = field(default_factory=dict)


class Fleet:
    """A supervised fleet of sender processes.

    Each sender is a spawned process that leads its own process group and calls
    `target(worker, *args)`. It may have processes of its own, such as loader workers: they end with
    it, also when the process that holds the fleet is killed. Processes that leave the group
    (`setsid`) are out of reach.

    Use `run()` for a program that only serves, or the context manager to serve beside other work.
    """

    def __init__(
        self,
        target: Callable[..., object],
        args: Sequence[object] = (),
        *,
        count: int,
        seed: int = 0,
        fail_fast: bool = False,
        grace_s: float = 10.0,
        backoff_s: float = 0.5,
        max_backoff_s: float = 30.0,
        on_event: Callable[[FleetEvent], object] | None = None,
    ) -> None:
        """Describe a fleet; nothing is started.

        Args:
            target: called in each process as `target(worker, *args)`; a function at the top level
                of a module, since it is pickled.
            args: more arguments for `target`, pickled too.
            count: number of senders, at least 1.
            seed: at least 0; each sender's own seed is made from it and the sender's index.
            fail_fast: end the whole fleet when one sender crashes, instead of restarting it.
            grace_s: seconds that a draining sender has before it is killed.
            backoff_s: delay of the first restart; it doubles with each crash and starts anew after
                a minute without one.
            max_backoff_s: limit of that delay.
            on_event: called for each event, one at a time, in the fleet's own thread. What it
                raises ends the fleet and comes out of `run` or `join`.

        Raises:
            ServingError: a value is out of range.
        """
        if count < 1:
            raise ServingError(f"count is {count}; a fleet has at least 1 sender")
        if seed < 0:
            raise ServingError(f"seed is {seed}; a seed is at least 0")
        if min(grace_s, backoff_s, max_backoff_s) < 0:
            raise ServingError("grace_s, backoff_s and max_backoff_s are at least 0")
        job = Job(target, tuple(args))
        self._slots = [Slot(index, count, seed, job) for index in range(count)]
        self._fail_fast = fail_fast
        self._grace_s = grace_s
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._on_event = on_event
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        # Plain flags, set by signal handlers and other threads and read every POLL_S: no locks.
        self._stop_asked = False
        self._kill_asked = False
        self._kill_at: float | None = None

    @property
    def processes(self) -> tuple[SpawnProcess, ...]:
        """The sender processes that run now."""
        return tuple(process for slot in self._slots if (process := slot.process) is not None)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the senders that run now."""
        return tuple(pid for slot in self._slots if (pid := slot.pid) is not None)

    def run(self) -> None:
        """Serve until every sender has finished, or the fleet was asked to stop.

        In the main thread SIGTERM and SIGINT drain the fleet while this runs: each sender finishes
        its batch; what has not ended after `grace_s` is killed. A second SIGINT kills at once.

        Raises:
            ServingError: a sender crashed and `fail_fast` is set, or the fleet cannot be started.
        """
        with self._signals_handled():
            self.start()
            self.join()

    def start(self) -> None:
        """Start the senders and the thread that watches them; return at once.

        Raises:
            ServingError: started before, started from a daemonic process, or the target or its
                arguments cannot be pickled.
        """
        if self._thread is not None:
            raise ServingError("the fleet was started before; make a new one")
        if multiprocessing.current_process().daemon:
            raise ServingError("a daemonic process cannot have senders; start it with daemon=False")
        resource_tracker.ensure_running()  # else the first sender would, and unblock its signals
        try:
            for slot in self._slots:
                slot.start()
        except BaseException as error:
            self._kill_all()
            if isinstance(error, (pickle.PicklingError, AttributeError, TypeError)):
                raise ServingError(
                    "the target and its arguments have to be picklable, the target a function at "
                    f"the top level of a module: {error}"
                ) from error
            raise
        self._thread = threading.Thread(target=self._supervise, name="tensorcom-fleet", daemon=True)
        atexit.register(self._end)
        self._thread.start()

    def stop(self) -> None:
        """Ask the fleet to drain, as SIGTERM does; return at once. Any thread may call it."""
        self._stop_asked = True

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the fleet has ended.

        Args:
            timeout_s: seconds to wait, None for ever.

        Returns:
            Whether it has ended; when it has, no process, pipe or thread of it is left.

        Raises:
            ServingError: a sender crashed and `fail_fast` is set.
        """
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        atexit.unregister(self._end)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return True

    def __enter__(self) -> Fleet:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end()
        except ServingError:
            if error is None:  # else the error of the block is the one to see
                raise

    def _end(self) -> None:
        self.stop()
        self.join()

    @contextmanager
    def _signals_handled(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        interrupts = 0

        def handle(number: int, _frame: FrameType | None) -> None:
            nonlocal interrupts
            interrupts += number == signal.SIGINT
            self._stop_asked = True
            self._kill_asked = interrupts > 1

        previous = {
            number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _supervise(self) -> None:
        try:
            for slot in self._slots:
                self._emit_started(slot)
            while not all(slot.is_done for slot in self._slots):
                self._wait()
                for slot in self._slots:
                    self._look_after(slot)
                self._advance_stop()
        except Exception as error:  # noqa: BLE001 - join raises it in the caller's thread
            self._error = error
        finally:
            self._kill_all()

    def _wait(self) -> None:
        """Sleep until a sender writes, at most `POLL_S`."""
        readers = [slot.reader for slot in self._slots if slot.reader is not None]
        if not readers:
            time.sleep(POLL_S)
        elif connection.wait(readers, POLL_S):
            time.sleep(POLL_S / 10)  # senders that report without pause do not make this loop hot

    def _look_after(self, slot: Slot) -> None:
        has_exited = slot.has_exited()  # before the pipe is read, so that last words are not lost
        for progress in slot.messages():
            self._emit("report", slot, progress=progress)
        if has_exited:
            self._settle(slot)
        elif slot.start_at is not None and time.monotonic() >= slot.start_at:
            try:
                slot.start()
            except OSError as error:
                self._restart(slot, f"could not be started: {error}")
            else:
                self._emit_started(slot)

    def _settle(self, slot: Slot) -> None:
        """Decide what follows the end of a sender."""
        pid = slot.pid
        exitcode = slot.reap()
        if exitcode == 0 or (
            self._kill_at is not None and exitcode in {-signal.SIGTERM, -signal.SIGKILL}
        ):
            self._emit("finished", slot, pid=pid, exitcode=exitcode)
            return
        error = slot.error or _describe_exit(exitcode, was_ready=slot.was_ready)
        self._emit("crashed", slot, pid=pid, exitcode=exitcode, detail=error["traceback"])
        if self._kill_at is not None:
            return
        if self._fail_fast:
            reason = f"ended with exit code {exitcode}: {error['summary']}"
            self._error = self._error or ServingError(reason, worker=slot.index, exitcode=exitcode)
            self._stop_asked = True
        else:
            self._restart(slot, f"exit code {exitcode}")

    def _restart(self, slot: Slot, reason: str) -> None:
        delay_s = slot.retry_in(self._backoff_s, self._max_backoff_s)
        self._emit("restarting", slot, detail=f"{reason}; restarting in {delay_s:.3g} s")

    def _advance_stop(self) -> None:
        """Begin to drain when asked to, and kill what has not ended in time."""
        if self._stop_asked and self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s
            self._emit(
                "draining", None, detail=f"{len(self.pids)} senders have {self._grace_s:g} s"
            )
            for slot in self._slots:
                slot.start_at = None
                slot.drain()
        if self._kill_at is None or not (self._kill_asked or time.monotonic() >= self._kill_at):
            return
        for slot in self._slots:
            if slot.process is not None and not slot.has_exited():
                why = "asked to" if self._kill_asked else f"no end within {self._grace_s:g} s"
                self._emit("killed", slot, detail=why)
                self._end_slot(slot)

    def _kill_all(self) -> None:
        for slot in self._slots:
            self._end_slot(slot)

    @staticmethod
    def _end_slot(slot: Slot) -> None:
        slot.start_at = None
        slot.kill()
        slot.reap()

    def _emit_started(self, slot: Slot) -> None:
        self._emit("started", slot)

    def _emit(self, kind: EventKind, slot: Slot | None, **fields: Any) -> None:
        if slot is not None:
            fields = {
                "worker": slot.index,
                "pid": slot.pid,
                "incarnation": slot.incarnation,
                **fields,
            }
        event = FleetEvent(kind, **fields)
        if kind == "report":
            logger.debug("sender %s reported %s", event.worker, dict(event.progress))
        else:
            name = "fleet" if slot is None else f"sender {slot.index} (pid {event.pid})"
            text = f": {event.detail}" if event.detail else ""
            logger.log(LEVELS.get(kind, logging.INFO), "%s %s%s", name, kind, text)
        if self._on_event is not None:
            self._on_event(event)


def _describe_exit(exitcode: int | None, *, was_ready: bool) -> dict[str, str]:
    """Say what is known of a sender that ended without an error of its own."""
    text = "it ended without an exception"
    if exitcode is None:
        text = "its exit status was taken by another part of the program"
    elif exitcode < 0:
        text = f"killed by {_signal_name(-exitcode)}"
    elif not was_ready:
        text = (
            "it ended before its target ran; a script that starts a fleet does so under "
            "`if __name__ == '__main__':`"
        )
    return {"summary": text, "traceback": text}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
