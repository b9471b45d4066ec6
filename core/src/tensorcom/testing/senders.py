"""Targets for fleets in tests: importable from spawned processes, which test modules are not.

Owns small senders that crash, report, wait or have children of their own. They send nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext
    from multiprocessing.process import BaseProcess

    from tensorcom.serving import Worker


def crash_once(worker: Worker) -> None:
    """Raise in the first incarnation, report and return in the second."""
    if worker.incarnation == 0:
        raise ValueError("first incarnation")
    worker.report({"incarnation": worker.incarnation})


def crash(worker: Worker, text: str) -> None:
    """Raise `text` in sender 0; wait for the end in the others."""
    if worker.index == 0:
        raise ValueError(text)
    worker.stopping.wait()


def exit_with(worker: Worker, exitcode: int) -> None:
    """Exit with `exitcode` in the first incarnation, without an exception to report."""
    if worker.incarnation == 0:
        sys.exit(exitcode)


def report_draws(worker: Worker) -> None:
    """Report what the generators of this sender draw first."""
    worker.report(
        {
            "numpy": np.random.rand(4).tolist(),
            "random": random.random(),  # noqa: S311 - no secret
            "epochs": [worker.rng(epoch).random(4).tolist() for epoch in range(2)],
        }
    )


def wait_and_flush(worker: Worker) -> None:
    """Report, wait until asked to stop, and report once more."""
    worker.report({"state": "ready"})
    worker.stopping.wait()
    worker.report({"state": "flushed"})


def never_stop(worker: Worker) -> None:
    """Report, and run on whatever is asked."""
    worker.report({"state": "ready"})
    while True:
        time.sleep(60)


def _start_children(count: int, method: Literal["fork", "spawn"]) -> list[BaseProcess]:
    context: ForkContext | SpawnContext = multiprocessing.get_context("spawn")
    if method == "fork":
        context = multiprocessing.get_context("fork")
    children: list[BaseProcess] = []
    for _ in range(count):
        child = context.Process(target=time.sleep, args=(600,))
        child.start()
        children.append(child)
    return children


def have_children(worker: Worker, count: int, method: Literal["fork", "spawn"]) -> None:
    """Start `count` processes that sleep, report, and wait until asked to stop."""
    children = _start_children(count, method)
    worker.report({"children": [child.pid for child in children]})
    worker.stopping.wait()
    for child in children:
        child.terminate()
        child.join()


def crash_with_children(worker: Worker, count: int) -> None:
    """Start `count` processes that sleep, report them, and die by SIGKILL."""
    children = _start_children(count, "spawn")
    worker.report({"children": [child.pid for child in children]})
    os.kill(os.getpid(), signal.SIGKILL)
