"""Which adapters and loaders the suite runs over, and the watch for leaks."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from contract_adapters import ADAPTERS
from contract_resources import handles, settles, threads

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


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread, a socket, shared memory or a process behind."""
    import multiprocessing.forkserver as forkserver
    import multiprocessing.resource_tracker as tracker

    gc.collect()
    had, held, pid = threads(), handles(), os.getpid()
    children = descendants(pid)
    yield

    def leaked() -> tuple[object, int, object]:
        gc.collect()
        # The standard library keeps these two for the process's life once spawn was used.
        kept = {forkserver._forkserver._forkserver_pid, tracker._resource_tracker._pid}
        left = {p for p in descendants(pid) - children if p.pid not in kept}
        return threads() - had, max(handles() - held, 0), left

    settles(lambda: not any(leaked()))
    left = leaked()
    assert not left[0], f"threads left: {left[0]}"
    assert not left[1], f"{left[1]} sockets, records or files of shared memory left"
    assert not left[2], f"processes left: {left[2]}"
