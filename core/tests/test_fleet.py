"""The supervised fleet: restarts, drains, seeds, and that no process outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from tensorcom.errors import ServingError
from tensorcom.serving import Fleet, FleetEvent, Worker
from tensorcom.testing import processes, senders

QUICK = {"backoff_s": 0.01}
GONE_S = 5.0

PARENT = """
import sys
from tensorcom.serving import Fleet
from tensorcom.testing import senders

def own_target(worker, text):
    worker.report({"state": text})
    worker.stopping.wait()
    worker.report({"state": "flushed"})

def show(event):
    print(event.kind, event.worker, event.exitcode, dict(event.progress), flush=True)

if __name__ == "__main__":
    TARGETS = {"own": (own_target, ("ready",)), "wait": (senders.wait_and_flush, ()),
               "never": (senders.never_stop, ()), "fork": (senders.have_children, (2, "fork")),
               "spawn": (senders.have_children, (2, "spawn"))}
    target, args = TARGETS[sys.argv[1]]
    Fleet(target, args, count=2, grace_s=float(sys.argv[2]), on_event=show).run()
    print("end", flush=True)
"""


class Events(list[FleetEvent]):
    def kinds(self) -> list[str]:
        return [event.kind for event in self if event.kind != "report"]

    def reports(self) -> list[dict]:
        return [dict(event.progress) for event in self if event.kind == "report"]

    def wait_for_reports(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.reports()) < count:
            assert time.monotonic() < deadline, list(self)
            time.sleep(0.01)


class Parent:
    """A program with a fleet of 2, run as a subprocess."""

    def __init__(self, directory: Path, kind: str, grace_s: float = 10.0) -> None:
        script = directory / "parent.py"
        script.write_text(PARENT)
        self.process = subprocess.Popen(
            [sys.executable, str(script), kind, str(grace_s)], stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        for _ in range(2):
            self.read_until("report")
        self.family = processes.descendants(self.process.pid)

    def read_until(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(word):
                return
        raise AssertionError(f"no {word!r} in {self.lines}")

    def rest(self) -> str:
        out, _ = self.process.communicate(timeout=60)
        return "".join(self.lines) + out

    def end(self) -> None:
        self.process.kill()
        for each in processes.alive(self.family):
            os.kill(each.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def parent(tmp_path):
    started = []

    def start(kind: str, grace_s: float = 10.0) -> Parent:
        started.append(Parent(tmp_path, kind, grace_s))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture(autouse=True)
def no_leak():
    resource_tracker.ensure_running()  # Python's own, one for the life of a process
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    yield
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert set(threading.enumerate()) == threads
    assert not processes.zombies(os.getpid())


def test_crashed_sender_is_restarted() -> None:
    events = Events()
    Fleet(senders.crash_once, count=1, on_event=events.append, **QUICK).run()
    assert events.kinds() == ["started", "crashed", "restarting", "started", "finished"]
    crashed = events[1]
    assert (crashed.worker, crashed.exitcode, crashed.incarnation) == (0, 1, 0)
    assert "ValueError: first incarnation" in crashed.detail
    assert events.reports() == [{"incarnation": 1}]
    assert events[-1].incarnation == 1


def test_exit_without_exception_is_a_crash() -> None:
    events = Events()
    Fleet(senders.exit_with, (3,), count=1, on_event=events.append, **QUICK).run()
    assert events[1].exitcode == 3
    assert events[1].detail == "it ended without an exception"


def test_backoff_doubles_up_to_its_limit() -> None:
    events = Events()
    fleet = Fleet(
        senders.crash,
        ("again",),
        count=1,
        backoff_s=0.01,
        max_backoff_s=0.03,
        on_event=lambda event: (events.append(event), len(events) > 11 and fleet.stop()),
    )
    fleet.run()
    delays = [event.detail.split()[-2] for event in events if event.kind == "restarting"]
    assert delays[:4] == ["0.01", "0.02", "0.03", "0.03"]


def test_fail_fast_names_sender_exit_code_and_exception() -> None:
    fleet = Fleet(senders.crash, ("the disk is full",), count=2, fail_fast=True)
    with pytest.raises(ServingError) as caught:
        fleet.run()
    assert str(caught.value) == "sender 0: ended with exit code 1: ValueError: the disk is full"
    assert (caught.value.worker, caught.value.exitcode) == (0, 1)
    assert fleet.pids == ()


def test_fail_fast_names_the_signal() -> None:
    with pytest.raises(ServingError, match=r"sender 0: .*code -9: killed by SIGKILL"):
        Fleet(senders.crash_with_children, (0,), count=1, fail_fast=True).run()


def test_group_of_a_crashed_sender_is_killed() -> None:
    found: set[processes.ProcessId] = set()

    def look(event: FleetEvent) -> None:
        found.update(processes.process_id(pid) for pid in event.progress.get("children", ()))

    with pytest.raises(ServingError):
        Fleet(senders.crash_with_children, (2,), count=1, fail_fast=True, on_event=look).run()
    assert len(found) == 2
    assert not processes.wait_until_gone(found, timeout_s=GONE_S)


def test_context_manager_drains() -> None:
    events = Events()
    with Fleet(senders.wait_and_flush, count=2, on_event=events.append) as fleet:
        events.wait_for_reports(2)
        assert len(fleet.pids) == len(fleet.processes) == 2
        assert not fleet.join(0.01)
    assert sorted(report["state"] for report in events.reports()) == ["flushed"] * 2 + ["ready"] * 2
    assert events.kinds() == ["started"] * 2 + ["draining"] + ["finished"] * 2


def test_stop_at_once_still_drains() -> None:
    events = Events()
    with Fleet(senders.wait_and_flush, count=1, on_event=events.append):
        pass
    assert events.kinds() == ["started", "draining", "finished"]
    assert events.reports()[-1] == {"state": "flushed"}


def test_sender_that_does_not_drain_is_killed() -> None:
    events = Events()
    with Fleet(senders.never_stop, count=1, grace_s=0.2, on_event=events.append):
        events.wait_for_reports(1)
    assert events.kinds() == ["started", "draining", "killed"]
    assert events[-1].detail == "no end within 0.2 s"


def test_error_of_the_callback_ends_the_fleet() -> None:
    def refuse(event: FleetEvent) -> None:
        if event.kind == "report":
            raise KeyError("callback")

    fleet = Fleet(senders.never_stop, count=1, on_event=refuse)
    with pytest.raises(KeyError, match="callback"):
        fleet.run()
    assert fleet.pids == ()


def test_module_that_fails_to_import_is_reported(tmp_path, monkeypatch) -> None:
    module = tmp_path / "fails_in_child.py"
    module.write_text(
        "import multiprocessing\n"
        "if multiprocessing.parent_process(): raise RuntimeError('no import here')\n"
        "def target(worker): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import fails_in_child

    with pytest.raises(ServingError, match="RuntimeError: no import here"):
        Fleet(fails_in_child.target, count=1, fail_fast=True).run()


def test_target_has_to_be_picklable() -> None:
    with pytest.raises(ServingError, match="picklable"):
        Fleet(lambda worker: None, count=2).run()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"count": 0}, "count is 0; a fleet has at least 1 sender"),
        ({"count": 1, "seed": -1}, "seed is -1; a seed is at least 0"),
        ({"count": 1, "grace_s": -1}, "grace_s, backoff_s and max_backoff_s are at least 0"),
    ],
)
def test_arguments_out_of_range(arguments, text) -> None:
    with pytest.raises(ServingError) as caught:
        Fleet(senders.crash_once, **arguments)
    assert str(caught.value) == text


def test_fleet_starts_once() -> None:
    fleet = Fleet(senders.report_draws, count=1)
    fleet.run()
    with pytest.raises(ServingError, match="started before"):
        fleet.start()


def test_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    Fleet(senders.report_draws, count=1).run()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_worker_alone_needs_no_fleet() -> None:
    worker = Worker()
    assert not worker.report({"rate": 1})
    assert not worker.stopping.wait(0)
    worker.stopping.set()
    assert worker.stopping.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains(parent, number) -> None:
    program = parent("own")
    program.process.send_signal(number)
    text = program.rest()
    assert program.process.returncode == 0
    assert text.count("{'state': 'flushed'}") == 2
    assert text.count("finished") == 2
    assert text.endswith("end\n")
    assert not processes.wait_until_gone(program.family, timeout_s=GONE_S)


def test_second_interrupt_kills_at_once(parent) -> None:
    program = parent("never", grace_s=100)
    program.process.send_signal(signal.SIGINT)
    program.read_until("draining")
    program.process.send_signal(signal.SIGINT)
    assert program.rest().count("killed") == 2
    assert program.process.returncode == 0


@pytest.mark.parametrize("kind", ["wait", "fork", "spawn"])
def test_B02_no_process_outlives_a_killed_parent(parent, kind) -> None:
    program = parent(kind)
    assert len(program.family) >= (2 if kind == "wait" else 6)
    program.process.kill()
    assert not processes.wait_until_gone(program.family, timeout_s=GONE_S)


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_B02_no_process_outlives_a_drained_parent(parent, kind) -> None:
    program = parent(kind)
    program.process.terminate()
    assert program.rest().endswith("end\n")
    assert not processes.wait_until_gone(program.family, timeout_s=GONE_S)


def test_B02_senders_that_hang_in_their_children_are_killed_with_them(parent) -> None:
    program = parent("fork", grace_s=0.0)
    program.process.terminate()
    program.rest()
    assert not processes.wait_until_gone(program.family, timeout_s=GONE_S)


def test_B20_senders_draw_different_numbers_and_the_same_in_each_run() -> None:
    def draws(seed: int) -> list[dict]:
        events = Events()
        Fleet(senders.report_draws, count=4, seed=seed, on_event=events.append).run()
        reports = sorted((e for e in events if e.kind == "report"), key=lambda e: e.worker)
        return [dict(event.progress) for event in reports]

    first = draws(7)
    numbers = [str(draw) for each in first for draw in (each["numpy"], each["random"])]
    numbers += [str(epoch) for each in first for epoch in each["epochs"]]
    assert len(first) == 4
    assert len(set(numbers)) == 16
    assert draws(7) == first
    assert draws(8) != first
