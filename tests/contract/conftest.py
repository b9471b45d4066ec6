"""Which adapters and loaders the suite runs over, and the watch for leaks."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator

import pytest
from contract_adapters import ADAPTERS

from tensorcom.testing.processes import descendants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--adapter",
        action="append",
        choices=sorted(ADAPTERS),
        help="adapter to run the contract over; all of them by default",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = metafunc.config.getoption("adapter") or sorted(ADAPTERS)
    if "loader" in metafunc.fixturenames:
        pairs = [(ADAPTERS[name], loader) for name in names for loader in ADAPTERS[name].loaders]
        ids = [f"{name}-{loader}" for name in names for loader in ADAPTERS[name].loaders]
        metafunc.parametrize(("adapter", "loader"), pairs, ids=ids)
    elif "adapter" in metafunc.fixturenames:
        metafunc.parametrize("adapter", [ADAPTERS[name] for name in names], ids=names)


def _threads() -> set[threading.Thread]:
    # pyzmq frees sent buffers in one thread of the process, which stays; so do the threads of a
    # framework's own pool, which Python knows once it ran in them.
    kept = ("GarbageCollectorThread", "_DummyThread")
    return {t for t in threading.enumerate() if type(t).__name__ not in kept}


def _handles() -> int:
    """Count sockets and files of shared memory, but for multiprocessing's heap, which stays."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        in_shm = target.startswith("/dev/shm/") and "/pym-" not in target
        count += in_shm or target.startswith("socket:")
    return count


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread, a socket, shared memory or a process behind."""
    import multiprocessing.forkserver as forkserver
    import multiprocessing.resource_tracker as tracker

    gc.collect()
    threads, handles, pid = _threads(), _handles(), os.getpid()
    children = descendants(pid)
    yield
    deadline = time.monotonic() + 10
    while True:
        gc.collect()
        # The standard library keeps these two for the process's life once spawn was used.
        kept = {forkserver._forkserver._forkserver_pid, tracker._resource_tracker._pid}
        left = {p for p in descendants(pid) - children if p.pid not in kept}
        leaked = (_threads() - threads, max(_handles() - handles, 0), left)
        if not any(leaked) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not leaked[0], f"threads left: {leaked[0]}"
    assert not leaked[1], f"{leaked[1]} sockets or files of shared memory left"
    assert not leaked[2], f"processes left: {leaked[2]}"
