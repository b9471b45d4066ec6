"""`tensorcom record`: when it stops, what is in the file, and that no part of one stays behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from tensorcom import Connection, Message, MessageError, Meta
from tensorcom.cli import record
from tensorcom.recording import read_recording

PROGRAM = [sys.executable, "-m", "tensorcom.cli.main", "record"]


@pytest.fixture
def serve(tmp_path):
    """Start a sender in a thread; stop it after the test."""
    stop = threading.Event()
    running = []
    folder = tmp_path / "sockets"
    folder.mkdir()

    def start(source, *, end="stream", **options):
        tx = Connection(f"zrpush+ipc://{folder}/{len(running)}", **options)
        thread = threading.Thread(
            target=tx.serve, args=(source,), kwargs={"end": end, "stop": stop}
        )
        thread.start()
        running.append((tx, thread))
        return f"zrpull+ipc://{folder}/{len(running) - 1}"

    yield start
    stop.set()
    for tx, thread in running:
        thread.join()
        tx.close(flush=False)


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "stream.ten"


@pytest.fixture
def heeds_sigint():
    """Heed SIGINT also where the tests run in the background, whose programs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def batches(count=None, *, width=3):
    number = 0
    while count is None or number < count:
        arrays = [np.full((2, width), number % 256, np.uint8), np.array([number, number], np.int32)]
        yield Message(arrays, ["image", "label"], b"train", Meta(epoch=number // 2, index=number))
        number += 1


def recorded(path):
    return list(read_recording(path))


def only_file(out):
    return [path.name for path in out.parent.iterdir()] == [out.name]


def test_count(serve, out, capsys):
    assert record.main([serve(batches()), str(out), "--count", "5"]) == 0
    assert capsys.readouterr().err == (
        f"tensorcom record: wrote {out}: 5 batches, 10 samples, 0.0 MB\n"
    )
    assert len(recorded(out)) == 5
    assert only_file(out)


def test_arrays_infos_topic_and_meta_are_kept(serve, out):
    assert record.main([serve(batches()), str(out), "--count", "3"]) == 0
    for number, message in enumerate(recorded(out)):
        image, label = message.arrays
        assert image.dtype == np.uint8
        assert np.array_equal(image, np.full((2, 3), number))
        assert label.tolist() == [number, number]
        assert list(message.infos) == ["image", "label"]
        assert message.topic == b"train"
        assert (message.meta.epoch, message.meta.index) == (number // 2, number)


def test_end_of_the_stream(serve, out):
    assert record.main([serve(batches(4)), str(out)]) == 0
    assert [int(message.arrays[1][0]) for message in recorded(out)] == [0, 1, 2, 3]


def test_seconds_count_from_the_first_batch(serve, out):
    assert record.main([serve(batches()), str(out), "--seconds", "0.05"]) == 0
    assert recorded(out)


def test_an_existing_file_is_kept_unless_told(serve, out, capsys):
    out.write_bytes(b"precious")
    url = serve(batches())
    assert record.main([url, str(out), "--count", "1"]) == 2
    assert capsys.readouterr().err == (
        f"tensorcom record: error: {out} exists; give --overwrite to replace it\n"
    )
    assert out.read_bytes() == b"precious"
    assert record.main([url, str(out), "--count", "1", "--overwrite"]) == 0
    assert len(recorded(out)) == 1


def test_nothing_came_nothing_is_written(serve, out, capsys):
    assert record.main([serve(iter(())), str(out)]) == 1
    assert "the stream ended without a batch; nothing was written" in capsys.readouterr().err
    assert list(out.parent.iterdir()) == []


def test_no_server_no_file(tmp_path, out, capsys):
    assert record.main([f"zrpull+ipc://{tmp_path}/a", str(out), "--timeout-s", "0.1"]) == 1
    assert "no message in 0.1 s" in capsys.readouterr().err
    assert list(out.parent.iterdir()) == []


def test_what_came_before_a_time_limit_is_kept(serve, out, capsys):
    url = serve(batches(3), end=None)
    assert record.main([url, str(out), "--timeout-s", "0.3"]) == 1
    wrote, error = capsys.readouterr().err.splitlines()
    assert wrote.startswith(f"tensorcom record: wrote {out}: 3 batches, 6 samples")
    assert "no message in 0.3 s" in error
    assert len(recorded(out)) == 3


def test_an_error_in_the_middle_leaves_no_file(serve, out, capsys, monkeypatch):
    def fail(_message):
        raise MessageError("bad")

    monkeypatch.setattr(record, "count_samples", fail)
    assert record.main([serve(batches()), str(out)]) == 1
    assert capsys.readouterr().err == "tensorcom record: error: message: bad\n"
    assert list(out.parent.iterdir()) == []


def test_an_unwritable_path_fails_in_one_line(serve, tmp_path, capsys):
    assert record.main([serve(batches()), str(tmp_path / "none" / "a.ten"), "-c", "1"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupted_recording_is_complete_to_there(number, code, serve, out, heeds_sigint):
    sent = threading.Event()

    def source():
        for i, message in enumerate(batches(width=50_000)):
            if i == 100:  # more than can be queued: the program has taken some
                sent.set()
            yield message

    with subprocess.Popen(
        [*PROGRAM, serve(source()), str(out)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert sent.wait(30)
        process.send_signal(number)
        assert process.wait(60) == code
        assert process.stderr.read().startswith(f"tensorcom record: wrote {out}: ")
    got = [int(message.arrays[1][0]) for message in recorded(out)]
    assert got == list(range(len(got)))
    assert got
    assert only_file(out)


def test_an_interruption_waits_for_the_end_of_a_batch(serve, out, monkeypatch, heeds_sigint):
    def interrupt(message):
        signal.raise_signal(signal.SIGINT)
        return original(message)

    original = record.count_samples
    monkeypatch.setattr(record, "count_samples", interrupt)
    assert record.main([serve(batches()), str(out)]) == 130
    assert len(recorded(out)) == 1


def test_a_second_interruption_gives_up(serve, out, monkeypatch, heeds_sigint):
    def interrupt(_message):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(record, "count_samples", interrupt)
    assert record.main([serve(batches()), str(out)]) == 130
    assert list(out.parent.iterdir()) == []
