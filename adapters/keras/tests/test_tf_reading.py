"""How files are read: one request of just the prefix, which the kernel was asked for before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading

import pytest
from pcr_set_helpers import noise_jpeg, write_set

from tensorcom.pcr import PcrReader
from tensorcom_keras import pcr_dataset

SIZES = [5, 4, 6, 1, 7]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set"), SIZES, make=noise_jpeg)


def read_bytes() -> int:
    """Return the bytes that this process has read by system calls."""
    with open("/proc/self/io") as file:
        return int(file.read().split()[1])


@pytest.mark.parametrize("groups", [1, 5, 10])
def test_just_the_prefixes_are_read(root, groups) -> None:
    with PcrReader(root) as reader:
        expected = int(reader.group_bytes[groups - 1])
    dataset = pcr_dataset(root, batch_size=4, decode=False, scan_groups=groups)
    list(dataset)
    start = read_bytes()
    own = read_bytes() - start
    before = read_bytes()
    list(dataset)
    read = read_bytes() - before - own
    assert expected <= read < expected + 4096  # counters of events and the like


@pytest.fixture
def requests(monkeypatch):
    """Note the files, and the ranges of them, that the kernel is asked for."""
    found: list[tuple[str, int, int]] = []
    request = os.posix_fadvise

    def note(file: int, start: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        found.append((os.readlink(f"/proc/self/fd/{file}"), start, size))
        request(file, start, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", note)
    return found


def readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "tensorcom-readahead"]


def run_script(script: str, root) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_kernel_is_asked_for_just_the_prefixes(root, requests) -> None:
    with PcrReader(root) as reader:
        ends = reader.table.ends[:, 3].tolist()
    dataset = pcr_dataset(root, batch_size=4, scan_groups=3, decode=False)
    list(dataset)
    list(dataset)
    del dataset
    gc.collect()
    assert not readers()  # which has done all that it was told before it ended
    expected = [(f"{root}/PCR_{record}.pcr", 0, end) for record, end in enumerate(ends)]
    assert sorted(requests) == sorted(expected * 2)


def test_the_thread_lives_as_long_as_what_was_made_of_the_data_set(root, requests) -> None:
    derived = pcr_dataset(root, batch_size=4, decode=False).map(lambda *batch: batch).prefetch(1)
    gc.collect()
    assert len(readers()) == 1
    iterator = iter(derived)
    del derived
    gc.collect()
    next(iterator)
    assert len(readers()) == 1
    del iterator
    gc.collect()
    assert not readers()


def test_a_data_set_may_go_while_a_function_is_traced(root) -> None:
    """There, operations are noted and not run; the thread is told its end all the same."""
    script = textwrap.dedent("""
        import sys, threading
        import tensorflow as tf
        from tensorcom_keras import pcr_dataset

        datasets = [pcr_dataset(sys.argv[1], batch_size=4, size=8)]

        @tf.function
        def count():
            datasets.clear()
            dataset = pcr_dataset(sys.argv[1], batch_size=4, size=8)
            return dataset.reduce(0, lambda counted, batch: counted + tf.size(batch[1]))

        print(int(count()), [t.name for t in threading.enumerate() if "readahead" in t.name])
    """)
    done = run_script(script, root)
    assert (done.returncode, done.stdout) == (0, f"{sum(SIZES)} []\n"), done.stderr


def test_without_it_there_is_no_thread(root, requests) -> None:
    dataset = pcr_dataset(root, batch_size=4, decode=False, readahead=False)
    assert not readers()
    list(dataset)
    assert requests == []


def test_a_missing_file_does_not_end_the_thread(tmp_path, requests) -> None:
    root = write_set(tmp_path / "set", SIZES)
    dataset = pcr_dataset(root, batch_size=4, decode=False, shuffle=False, on_error="skip")
    (root / "PCR_0.pcr").unlink()
    list(dataset)
    del dataset
    gc.collect()
    assert [os.path.basename(path) for path, *_ in requests][-1] == "PCR_4.pcr"


def test_a_process_ends_in_the_middle_of_an_epoch(root) -> None:
    script = textwrap.dedent("""
        import sys
        from tensorcom_keras import pcr_dataset
        dataset = pcr_dataset(sys.argv[1], batch_size=1, size=8)
        iterator = iter(dataset)
        next(iterator)
        print("done")
    """)
    done = run_script(script, root)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
