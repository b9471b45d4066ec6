"""PcrSource: reading and decoding overlap; threads begin and end with an iteration; copies work."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from itertools import islice

import pytest
from pcr_set_helpers import WAIT_S, WatchedReader, labels_of, write_set

from tensorcom.images import pool
from tensorcom.pcr import PcrReader, PcrSource
from tensorcom.pcr import feed as feed_module

SIZES = [8, 8, 8, 8]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set"), SIZES)


@pytest.fixture
def watched(root):
    with WatchedReader(root) as reader:
        yield reader
        for gate in reader.gates.values():
            gate.set()


def make(root, **arguments) -> PcrSource:
    defaults = {"batch_size": 4, "size": 16, "threads": 2, "shuffle": False}
    return PcrSource(root, **{**defaults, **arguments})


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("tensorcom-")]


def test_nothing_starts_before_the_first_batch(root) -> None:
    with make(root) as source:
        batches = iter(source)
        assert not threads()
        next(batches)
        names = {thread.name.rpartition("_")[0] for thread in threads()}
        assert names == {"tensorcom-read", "tensorcom-decode"}
        assert len(list(batches)) == 7
        assert not threads()


def test_the_number_of_threads_can_be_set(root) -> None:
    with make(root, prefetch=8) as source:
        for source.threads in (3, 1):
            batches = iter(source)
            next(batches)
            names = [thread.name.rpartition("_")[0] for thread in threads()]
            assert 0 < names.count("tensorcom-decode") <= source.threads
            batches.close()
        assert names.count("tensorcom-decode") == 1


@pytest.mark.parametrize("decode", [True, False])
def test_leaving_a_loop_ends_its_threads(root, decode) -> None:
    with make(root, decode=decode) as source:
        for _ in source:
            break
        assert not threads()
        with pytest.raises(KeyError):
            for _ in source:
                raise KeyError
        assert not threads()


@pytest.mark.parametrize("decode", [True, False])
def test_an_error_ends_the_threads(tmp_path, decode) -> None:
    folder = write_set(tmp_path, SIZES)
    (folder / "PCR_3.pcr").write_bytes((folder / "PCR_3.pcr").read_bytes()[:-1])
    with make(folder, decode=decode) as source:
        batches = iter(source)
        assert len(list(islice(batches, 6))) == 6
        with pytest.raises(Exception, match=r"PCR_3\.pcr"):
            next(batches)
        assert not threads()


def test_dropping_an_iterator_ends_its_threads(root) -> None:
    with make(root) as source:
        batches = iter(source)
        next(batches)
        assert threads()
        del batches
        assert not threads()
        ring: dict = {"batches": iter(source)}
        ring["ring"] = ring
        next(ring["batches"])
        del ring
        gc.collect()
        assert not threads()


def test_closing_a_source_ends_its_iterations(root) -> None:
    source = make(root)
    first, second = iter(source), iter(source)
    next(first)
    next(second)
    source.close()
    assert not threads()
    assert list(first) == list(second) == []
    assert len(list(source)) == 8, "a closed source opens its set again"
    source.close()


def test_a_given_reader_stays_open(watched) -> None:
    make(watched).close()
    closed = []
    watched.close = lambda: closed.append(watched)
    make(watched).close()
    assert not closed
    del watched.close


def test_a_source_closes_the_reader_it_opened(root, monkeypatch) -> None:
    closed = []
    monkeypatch.setattr(PcrReader, "close", lambda reader: closed.append(reader))
    source = make(root)
    source.close()
    with pytest.raises(ValueError, match="scan_groups=99"):
        make(root, scan_groups=99)
    assert len(closed) == 2


def test_records_are_read_while_nobody_asks_for_batches(watched, wait_until) -> None:
    watched.gates = {record: threading.Event() for record in range(4)}
    watched.gates[0].set()
    batches = iter(make(watched, batch_size=1, prefetch=1, threads=1))
    next(batches)
    for record in range(1, 4):
        watched.gates[record].set()
    wait_until(lambda: watched.begun == [0, 1, 2, 3])
    batches.close()


def test_batches_are_handed_out_while_a_record_is_awaited(watched) -> None:
    gate = watched.gates[1] = threading.Event()
    batches = iter(make(watched, prefetch=10))
    assert labels_of(islice(batches, 2)) == list(range(8))
    assert watched.begun == [0, 1]
    gate.set()
    assert labels_of(batches) == list(range(8, TOTAL))


def test_no_more_is_decoded_than_was_asked_for(root) -> None:
    calls = []
    reached = threading.Semaphore(0)

    def transform(image, rng):
        calls.append(None)
        reached.release()
        return image

    with make(root, transform=transform, batch_size=2, prefetch=3) as source:
        batches = iter(source)
        next(batches)
        # The batch, three batches ahead, and one image more.
        for _ in range(2 + 3 * 2):
            assert reached.acquire(timeout=WAIT_S)
        batches.close()
        assert len(calls) <= 2 + 3 * 2 + 1


def test_a_record_is_dropped_with_its_last_image(watched) -> None:
    held = []

    class Feed(feed_module.RecordFeed):
        def release(self, record: int) -> None:
            super().release(record)
            held.append((record, sorted(self._held)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorcom.pcr.batches.RecordFeed", Feed)
        list(make(watched))
    assert held == [(record, []) for record in range(4)]


def test_a_read_that_hangs_does_not_hold_up_the_end(watched, monkeypatch) -> None:
    monkeypatch.setattr(feed_module, "_CLOSE_WAIT_S", 0.01)
    gate = watched.gates[1] = threading.Event()
    batches = iter(make(watched))
    next(batches)
    batches.close()
    left = threads()
    assert [thread.name.rpartition("_")[0] for thread in left] == ["tensorcom-read"]
    gate.set()
    for thread in left:
        thread.join(WAIT_S)
    assert watched.begun == [0, 1]


def test_the_allocator_is_told_when_images_are_decoded(root, monkeypatch) -> None:
    monkeypatch.setattr(pool, "_tuned", False)
    with make(root) as source:
        assert not pool._tuned
        next(iter(source))
    assert pool._tuned


def test_a_copy_by_pickle_goes_on_where_the_original_is(root) -> None:
    with make(root, shuffle=True, scan_groups=3) as source:
        batches = iter(source)
        labels_of(islice(batches, 3))
        copy = pickle.loads(pickle.dumps(source))
        assert copy.state_dict() == source.state_dict()
        assert copy.scan_groups == 3
        assert copy.reader is not source.reader
        expected = source.state_dict()
        batches.close()
        resumed = make(root, shuffle=True)
        resumed.load_state_dict(expected)
        sent = pickle.loads(pickle.dumps(resumed))
        assert labels_of(sent) == labels_of(resumed)
        for one in (copy, resumed, sent):
            one.close()


def test_a_spawned_process_reads(root, start, tmp_path) -> None:
    with make(root) as source:
        next(iter(source))
        (tmp_path / "source").write_bytes(pickle.dumps(source))
    program = start(
        "import pickle, sys, pathlib\n"
        "source = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(*(label for _, labels in source for label in labels))\n",
        tmp_path / "source",
    )
    out, _ = program.communicate(timeout=WAIT_S)
    assert out.split() == [str(label) for label in range(TOTAL)]


FORK = """
import os, sys
from tensorcom.pcr import PcrSource

source = PcrSource(sys.argv[1], batch_size=4, size=16, threads=2, shuffle=False)
batches = iter(source)
next(batches)
child = os.fork()
if child == 0:
    code = 1
    try:
        found = [label for _, labels in source for label in labels.tolist()]
        batches.close()
        source.close()
        code = 0 if found == list(range(32)) else 2
    finally:
        os._exit(code)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert len(list(batches)) == 7
print("both")
"""


def test_a_forked_child_reads_while_the_parent_goes_on(root, start) -> None:
    program = start(FORK, root)
    out, _ = program.communicate(timeout=WAIT_S)
    assert out.split() == ["both"]


@pytest.mark.parametrize("holder", ["sys.modules['__main__']", "json", "sys"])
def test_a_process_may_end_in_the_middle(root, start, holder) -> None:
    # Who holds the iterator decides how late in the end it is closed.
    program = start(
        "import json, sys\n"
        "from tensorcom.pcr import PcrSource\n"
        "batches = iter(PcrSource(sys.argv[1], batch_size=4, size=16))\n"
        "print(len(next(batches)[1]))\n"
        f"{holder}.kept = batches\n"
        "del batches\n",
        root,
        stderr=-1,
    )
    out, errors = program.communicate(timeout=WAIT_S)
    assert (out.split(), errors, program.returncode) == (["4"], "", 0)


def test_no_files_stay_open(root) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with make(root) as source:
        list(source)
        next(iter(source))
    assert set(os.listdir("/proc/self/fd")) <= before
