"""`tensorcom pcr ls`: rows, filters and forms."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from pcr_helpers import GOLDEN_SETS, make_set

from tensorcom.cli.pcr import ls
from tensorcom.pcr import PcrReader


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("set") / "set")


def lines_of(capsys, *args):
    assert ls.main([str(arg) for arg in args]) == 0
    return capsys.readouterr().out.splitlines()


def rows_of(capsys, *args):
    return [json.loads(line) for line in lines_of(capsys, "--json", *args)]


def samples_of(capsys, *args):
    return [row["sample"] for row in rows_of(capsys, *args)]


def error_of(capsys, *args):
    assert ls.main([str(arg) for arg in args]) == 2
    found = capsys.readouterr()
    (line,) = found.err.splitlines()
    return line


@pytest.mark.parametrize("groups", [1, 4, None])
def test_every_sample_is_a_row(capsys, made, groups):
    args = [] if groups is None else ["-k", groups]
    assert rows_of(capsys, made.root, *args) == [
        {
            "sample": i,
            "record": f"PCR_{i // 3}.pcr",
            "image": i % 3,
            "size_bytes": len(made.jpeg(i, groups)) - 2,
            "label": made.labels[i],
            "class": made.class_names[made.labels[i]],
            "name": made.names[i],
        }
        for i in range(8)
    ]


def test_text_is_in_columns(capsys, made):
    lines = lines_of(capsys, made.root)
    assert lines[0].split() == ["sample", "record", "image", "size_bytes", "label", "class", "name"]
    assert lines[2].split() == [
        "1", "PCR_0.pcr", "1", str(len(made.jpeg(1)) - 2), "1", "bee", "bee/1.jpg"
    ]  # fmt: skip
    assert len({line.index("/") - 3 for line in lines[1:]}) == 1
    assert lines[0].index("name") == lines[1].index("ant/")


def test_filters(capsys, made):
    assert samples_of(capsys, made.root, "--samples", "2:5") == [2, 3, 4]
    assert samples_of(capsys, made.root, "--samples", "6:") == [6, 7]
    assert samples_of(capsys, made.root, "--samples", ":1") == [0]
    assert samples_of(capsys, made.root, "--label", 1) == [1, 4, 7]
    assert samples_of(capsys, made.root, "--class", "cat") == [2, 5]
    assert samples_of(capsys, made.root, "--name", "*/[34].jpg") == [3, 4]
    assert samples_of(capsys, made.root, "--record", "PCR_2.pcr") == [6, 7]
    assert samples_of(capsys, made.root, "--class", "bee", "--samples", "3:6") == [4]
    assert samples_of(capsys, made.root, "--label", 9) == []


def test_records(capsys, made):
    reader = PcrReader(made.root)
    assert rows_of(capsys, made.root, "--records", "-k", 2) == [
        {
            "record": record.name,
            "first": int(reader.starts[i]),
            "images": record.samples,
            "size_bytes": int(np.cumsum(record.parts)[2]),
        }
        for i, record in enumerate(reader.records)
    ]
    lines = lines_of(capsys, made.root, "--records", "--label", 2)
    assert [line.split()[0] for line in lines] == ["record", "PCR_0.pcr", "PCR_1.pcr"]


@pytest.mark.parametrize("kind", ["sqlite", "protobuf", "protobuf_raw"])
def test_sets_of_the_original(capsys, kind):
    reader = PcrReader(GOLDEN_SETS / kind)
    rows = rows_of(capsys, GOLDEN_SETS / kind, "-k", 2)
    assert [row["label"] for row in rows] == reader.labels.tolist()
    for row in rows:
        assert row["size_bytes"] + 2 == len(reader.sample(row["sample"], scan_groups=2)[0])
        assert (row["class"], row["name"]) == (None, None)
    assert lines_of(capsys, GOLDEN_SETS / kind)[1].split()[-2:] == ["-", "-"]
    assert "does not name its classes" in error_of(capsys, GOLDEN_SETS / kind, "--class", "x")
    assert rows_of(capsys, GOLDEN_SETS / kind, "--name", "x*") == []


def test_what_is_not_there_is_refused(capsys, made):
    assert "has no record x" in error_of(capsys, made.root, "--record", "x")
    assert "has no class x" in error_of(capsys, made.root, "--class", "x")
    assert "scan_groups=11, expected 1 to 10" in error_of(capsys, made.root, "-k", 11)
    assert "'3' is no range" in error_of(capsys, made.root, "--samples", "3")
    assert "'-1:2' is no range" in error_of(capsys, made.root, "--samples=-1:2")


def test_hostile_names_are_one_line(capsys, tmp_path):
    names = ["a\nb\x1b[2J", "\udcff", "é", "\u202e", "", "x", "y", "z"]
    classes = ("a\tb", "\ud800", "c")
    made = make_set(tmp_path / "set", names=names, class_names=classes)
    lines = lines_of(capsys, made.root)
    assert len(lines) == 9
    assert all(line.isprintable() for line in lines)
    assert lines[1].endswith("a\\tb    a\\nb\\x1b[2J")
    assert lines[2].endswith("\\ud800  \\xff")
    assert lines[3].endswith("é")
    rows = rows_of(capsys, made.root)
    assert [row["name"] for row in rows] == names


def test_a_reader_that_goes_away_ends_it_quietly(made):
    command = [sys.executable, "-m", "tensorcom.cli.pcr.ls", str(made.root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert error == b""
