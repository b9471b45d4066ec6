"""`tensormon`: what is counted, when reports come, and their three forms."""

from __future__ import annotations

import io
import itertools
import json
import os
import pty
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from rich.console import Console

from tensorcom import Connection, Message, Meta
from tensorcom.cli import mon
from tensorcom.cli.report import Meter, as_line, as_table
from tensorcom.stats import ConnectionStats

PROGRAM = [sys.executable, "-m", "tensorcom.cli.main", "mon"]


@pytest.fixture
def serve(tmp_path):
    """Start senders in threads, each at an address of its own; stop them after the test."""
    stop = threading.Event()
    running = []

    def start(source, *, end="stream", **options):
        path = f"{tmp_path}/{len(running)}"
        tx = Connection(f"zrpush+ipc://{path}", **options)
        thread = threading.Thread(
            target=tx.serve, args=(source,), kwargs={"end": end, "stop": stop}
        )
        thread.start()
        running.append((tx, thread))
        return f"zrpull+ipc://{path}"

    yield start
    stop.set()
    for tx, thread in running:
        thread.join()
        tx.close(flush=False)


def batches(count, *, samples=4, epoch=None, times=None):
    numbers = range(count) if count is not None else itertools.count()
    for _ in numbers:
        arrays = [np.zeros((samples, 8), np.uint8), np.zeros(samples, np.int32)]
        yield Message(arrays, meta=Meta(epoch=epoch, times=times or {}))


def reports(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# -- what is counted --------------------------------------------------------------------------


def test_counts_of_a_stream(serve, capsys):
    assert mon.main(["--json", "-c", "6", serve(batches(None, epoch=3))]) == 0
    last = reports(capsys)[-1]
    assert last["batches"] == 6
    assert last["samples"] == 24
    assert last["size_bytes"] == 6 * (32 + 16)
    assert last["gaps"] == last["duplicates"] == last["bad"] == last["filtered"] == 0
    assert last["epoch"] == 3
    assert not last["ended"]
    assert last["age_s"] >= 0
    (source,) = last["sources"].values()
    assert source["batches"] == 6
    assert source["epoch"] == 3


def test_ends_with_the_stream(serve, capsys):
    assert mon.main(["--json", serve(batches(5))]) == 0
    last = reports(capsys)[-1]
    assert last["ended"]
    assert last["batches"] == 5
    assert last["samples"] == 20


def test_ends_when_all_sources_have(serve, capsys):
    assert mon.main(["--json", serve(batches(3)), serve(batches(5))]) == 0
    last = reports(capsys)[-1]
    assert last["samples"] == 32
    assert sorted(row["samples"] for row in last["sources"].values()) == [12, 20]
    assert all(row["ended"] for row in last["sources"].values())


def test_a_stream_without_meta_is_counted(serve, capsys):
    assert mon.main(["--json", "-c", "3", serve(batches(None), send_meta=False)]) == 0
    last = reports(capsys)[-1]
    assert (last["batches"], last["samples"]) == (3, 12)
    assert last["sources"] == {}
    assert last["epoch"] is None


def test_raw_counts_bytes_on_the_wire(serve, capsys):
    assert mon.main(["--json", "--raw", "-c", "3", serve(batches(None))]) == 0
    last = reports(capsys)[-1]
    assert last["batches"] == 3
    assert last["size_bytes"] > 3 * 48  # headers and meta count too
    assert last["samples"] == 0
    assert last["sources"] == {}


def test_lost_batches_are_gaps_and_repeated_ones_duplicates(serve, capsys):
    def uneven():
        for seq in (0, 1, 4, 4):
            yield Message([np.zeros((1, 1), np.uint8)], meta=Meta(source="s", seq=seq))

    url = serve(uneven(), send_meta=False, end=None)
    assert mon.main(["--json", "-c", "4", url]) == 0
    last = reports(capsys)[-1]
    assert (last["gaps"], last["duplicates"]) == (2, 1)
    assert last["sources"]["s"]["gaps"] == 2


def test_means_of_the_stages(serve, capsys):
    now = time.time()
    url = serve(batches(None, times={"read": now - 30, "decoded": now - 20}))
    assert mon.main(["--json", "-c", "4", url]) == 0
    stages = reports(capsys)[-1]["mean_stage_s"]
    assert list(stages) == ["decoded", "sent", "received"]
    assert stages["decoded"] == pytest.approx(10)
    assert stages["sent"] >= 20
    assert stages["received"] >= 0


# -- when reports come ------------------------------------------------------------------------


def test_report_every_n_batches_and_the_rest(serve, capsys):
    assert mon.main(["--json", "-r", "3", "-c", "8", serve(batches(None))]) == 0
    assert [report["batches"] for report in reports(capsys)] == [3, 6, 8]


def test_no_second_report_of_the_same(serve, capsys):
    assert mon.main(["--json", "-r", "2", "-c", "4", serve(batches(None))]) == 0
    assert [report["batches"] for report in reports(capsys)] == [2, 4]


def test_report_by_time_comes_without_batches(tmp_path, capsys):
    url = f"zrpull+ipc://{tmp_path}/a"
    assert mon.main(["--json", "--interval-s", "0.01", "--timeout-s", "0.5", url]) == 1
    got = reports(capsys)
    assert len(got) >= 2
    assert got[0]["batches"] == 0
    assert got[0]["age_s"] is None


def test_json_is_one_object_a_line(serve, capsys):
    mon.main(["--json", "-r", "1", "-c", "3", serve(batches(None))])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_plain_lines_where_there_is_no_terminal(serve, capsys):
    assert mon.main(["-r", "2", "-c", "4", serve(batches(None, epoch=1))]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert " s: 2 batches (" in first
    assert " s: 4 batches (" in second
    assert "16 samples (" in second
    assert "0 gaps, 0 duplicates, 0 bad, epoch 1, received " in second
    assert second.endswith(" s ago")


# -- rates ------------------------------------------------------------------------------------


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def add(stats, meter, count, *, source="s", seq=0):
    for i in range(count):
        meta = Meta(source=source, seq=seq + i, samples=2)
        stats.add_message(meta, b"", 1000)
        meter.note(Message((), meta=meta))


def test_the_wait_for_the_first_batch_is_no_part_of_the_rate(monkeypatch):
    clock = Clock(monkeypatch)
    stats = ConnectionStats()
    meter = Meter(stats)
    clock.now += 50
    add(stats, meter, 1)
    clock.now += 2
    add(stats, meter, 4, seq=1)
    report = meter.report()
    assert report.elapsed_s == report.interval_s == 52
    assert report.total.batches_per_s == pytest.approx(4 / 2)
    assert report.total.samples_per_s == pytest.approx(8 / 2)
    assert report.total.bytes_per_s == pytest.approx(4000 / 2)


def test_rates_are_of_the_interval(monkeypatch):
    clock = Clock(monkeypatch)
    stats = ConnectionStats()
    meter = Meter(stats)
    add(stats, meter, 3)
    clock.now += 1
    meter.report()
    add(stats, meter, 5, seq=3)
    clock.now += 2
    row = meter.report().total
    assert (row.batches, row.samples) == (8, 16)
    assert row.batches_per_s == pytest.approx(2.5)
    assert row.age_s() == pytest.approx(2)
    clock.now += 1
    assert meter.report().total.batches_per_s == 0


# -- forms ------------------------------------------------------------------------------------


def render(report, urls=("zsub://h:1",)):
    console = Console(file=io.StringIO(), width=140)
    console.print(as_table(report, urls, state="waiting"))
    return console.file.getvalue()


def test_table_of_several_sources():
    stats = ConnectionStats()
    meter = Meter(stats)
    add(stats, meter, 2, source="one")
    add(stats, meter, 3, source="two", seq=0)
    stats.add_message(Meta(), b"", 1000)
    text = render(meter.report())
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["one"][1] == "2"
    assert rows["two"][1] == "3"
    assert rows["(no"][2] == "1"
    assert rows["all"][1] == "6"
    assert "zsub://h:1" in text


def test_table_of_one_source_has_no_sum():
    stats = ConnectionStats()
    meter = Meter(stats)
    add(stats, meter, 2)
    assert "all" not in render(meter.report())


def test_table_before_the_first_batch_says_that_it_waits():
    report = Meter(ConnectionStats()).report()
    assert "waiting" in render(report)
    assert as_line(report).endswith("nothing yet")


def test_on_a_terminal_it_is_a_table(serve):
    url = serve(batches(4))
    main_end, other_end = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, url],
        stdout=other_end,
        stderr=other_end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "30"},
    ) as process:
        os.close(other_end)
        text = b""
        try:
            while part := os.read(main_end, 65536):
                text += part
        except OSError:  # how Linux says that the other end is closed
            pass
        os.close(main_end)
    assert process.returncode == 0
    assert "→received" in text.decode()
    assert "0 bad messages" in text.decode()


def test_a_closed_pipe_ends_it_quietly(serve):
    url = serve(batches(None))
    with subprocess.Popen(
        [*PROGRAM, "--json", "-r", "1", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert json.loads(process.stdout.readline())["batches"] == 1
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == ""
