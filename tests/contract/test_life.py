"""What every adapter leaves behind: when it is closed, when it is pickled, when a program ends."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from contract_adapters import Adapter, send_labels
from contract_records import core, opened, samples_of, taken, write_records
from contract_resources import files, settles, threads
from contract_streams import FarServer, counting, numbers

from tensorcom.testing.loopback import LoopbackServer

EXIT_S = 5  # from the first batch to the end of the process
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "set")


# -- closing -------------------------------------------------------------------------------------


def check_closing(adapter: Adapter, loader: str, dataset: Any) -> None:
    """Take a batch and close, twice; see that nothing is left that was not there before.

    What the framework opens once is there after the first time. The iteration is still referred to:
    what is left is not for a garbage collector to find. Only worker processes end with theirs.
    """
    loading = None
    for _ in range(2):
        had, held = threads(), files()
        if loading is None:
            loading = adapter.loaders[loader](dataset)
        batches = iter(loading)
        taken(itertools.islice(batches, 1), adapter)
        if loader in adapter.drops:
            loading = batches = None
        adapter.close(dataset)
        assert settles(lambda had=had: threads() <= had), threads() - had
    assert settles(lambda: not files() - held), files() - held
    del loading, batches


def test_closing_a_stream_leaves_no_thread_and_no_socket(adapter: Adapter, loader: str) -> None:
    with FarServer() as server:
        check_closing(adapter, loader, adapter.from_stream(server.url, timeout_s=30))


def test_closing_records_leaves_no_thread_and_no_file(
    adapter: Adapter, loader: str, root: Path
) -> None:
    dataset = opened(adapter, root, batch_size=1)
    check_closing(adapter, loader, dataset)
    assert not [name for name in files() if name.endswith(".pcr")]
    found = taken(dataset, adapter)
    adapter.close(dataset)
    assert samples_of(found) == samples_of(core(root, 2, batch_size=1))


# -- other processes -----------------------------------------------------------------------------


def labels_in_child(adapter: Adapter, dataset: Any, batches: int) -> list[list[int]]:
    """Return the labels of batches that a spawned process takes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=send_labels, args=(adapter.name, dataset, batches, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(60), "the process waits for ever"
        return ours.recv()
    finally:
        ours.close()
        process.join(10)
        process.kill()
        process.join()
        process.close()


def test_a_spawned_process_takes_a_stream_that_was_in_use(adapter: Adapter) -> None:
    with FarServer() as server:
        dataset = adapter.from_stream(server.url, length=3, timeout_s=30)
        ours = numbers(dataset, adapter)
        theirs = [labels[0] for labels in labels_in_child(adapter, dataset, 2)]
        adapter.close(dataset)
    assert ours == [0, 1, 2]
    assert theirs == sorted(set(theirs) - {0, 1, 2})
    assert len(theirs) == 2


def test_a_spawned_process_takes_records_that_were_in_use(adapter: Adapter, root: Path) -> None:
    dataset = opened(adapter, root)
    taken(dataset, adapter)
    expected = [labels.tolist() for _, labels in core(root, 1)]
    assert labels_in_child(adapter, dataset, 9) == expected
    assert [labels.tolist() for _, labels in taken(dataset, adapter)] == expected
    adapter.close(dataset)


# -- the end of a program ------------------------------------------------------------------------

BREAK = textwrap.dedent("""
    import sys
    import contract_records
    from contract_adapters import ADAPTERS

    if __name__ == "__main__":
        name, loader, where, how = sys.argv[1:]
        adapter = ADAPTERS[name]
        if "://" in where:
            dataset = adapter.from_stream(where, timeout_s=None)
        else:
            dataset = contract_records.opened(adapter, where, batch_size=1)
        batches = iter(adapter.loaders[loader](dataset))
        for images, labels in batches:
            break
        if how == "dropped":
            del batches
        print("done", flush=True)
""")


def check_end(adapter: Adapter, loader: str, where: Path | str, how: str) -> None:
    """Run a program that leaves an iteration, and see that it ends in time and says nothing."""
    took = [float("inf")]
    while min(took) > EXIT_S and len(took) <= 3:  # also where the machine is busy
        took.append(time_of_end(adapter, loader, str(where), how))
    assert min(took) < EXIT_S


def time_of_end(adapter: Adapter, *arguments: str) -> float:
    """Return how long the program takes to end, in seconds."""
    with subprocess.Popen(
        [sys.executable, "-c", BREAK, adapter.name, *arguments],
        cwd=HERE,
        env={**os.environ, **adapter.quiet},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        guard = threading.Timer(60, process.kill)
        guard.start()
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            begun = time.monotonic()
            said += process.communicate()[0]
            took = time.monotonic() - begun
        finally:
            guard.cancel()
            guard.join()
    assert (process.returncode, said) == (0, "done\n")
    return took


@pytest.mark.parametrize("kind", ["stream", "records"])
def test_a_break_after_the_first_batch_ends_the_process(
    adapter: Adapter, loader: str, kind: str, root: Path
) -> None:
    if kind == "records":
        check_end(adapter, loader, root, "dropped")
        return
    with FarServer() as server:
        check_end(adapter, loader, server.url, "dropped")


@pytest.mark.parametrize("kind", ["stream", "records"])
def test_a_process_ends_with_an_iteration_under_way(
    adapter: Adapter, kind: str, root: Path
) -> None:
    if kind == "records":
        check_end(adapter, "plain", root, "held")
        return
    # Nothing more comes: whoever waits for it has to be woken.
    with LoopbackServer(itertools.islice(counting(), 1), end=False) as server:
        check_end(adapter, "plain", server.url, "held")


# -- what is installed ---------------------------------------------------------------------------

FRAMEWORKS = {"torch": "torch", "keras": "keras", "jax": "jax", "dali": "nvidia"}


@pytest.mark.parametrize("kind", ["stream", "records"])
def test_a_framework_that_is_missing_fails(adapter: Adapter, kind: str, tmp_path: Path) -> None:
    """The suite says so of itself: it neither skips nor passes."""
    module = FRAMEWORKS[adapter.name]
    (tmp_path / module).mkdir()
    text = f"raise ModuleNotFoundError('No module named {module!r}', name={module!r})\n"
    (tmp_path / module / "__init__.py").write_text(text)
    test = {"stream": "each_message_once", "records": "layout_is_as_stated"}[kind]
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"),
            *(str(HERE / f"test_{kind}.py"), "--adapter", adapter.name, "-k", f"{test} and plain"),
        ],
        cwd=HERE.parent.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert module in done.stdout
    summary = done.stdout.splitlines()[-1]
    assert "failed" in summary
    assert "passed" not in summary
    assert "skipped" not in summary
