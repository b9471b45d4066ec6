"""`tensorcom pcr cat`: the bytes of one image, and where they may go."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pcr_helpers import GOLDEN_SETS, make_set

from tensorcom.cli.pcr import cat
from tensorcom.pcr import PcrReader


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("set") / "set")


def run(capsysbinary, *args):
    code = cat.main([str(arg) for arg in args])
    found = capsysbinary.readouterr()
    return code, found.out, found.err.decode()


@pytest.mark.parametrize("groups", [1, 5, None])
def test_the_bytes_of_an_image(capsysbinary, made, groups):
    args = [] if groups is None else ["-k", groups]
    for sample in (0, 4, 7):
        expected = made.jpeg(sample, groups)
        assert run(capsysbinary, made.root, sample, *args) == (0, expected, "")


def test_a_set_of_the_original(capsysbinary):
    expected, _ = PcrReader(GOLDEN_SETS / "protobuf_raw").sample(5, scan_groups=3)
    assert run(capsysbinary, GOLDEN_SETS / "protobuf_raw", 5, "-k", 3) == (0, expected, "")


def test_a_file_is_written_once(capsysbinary, made, tmp_path):
    out = tmp_path / "a" / "out.jpg"
    assert run(capsysbinary, made.root, 3, "-o", out) == (0, b"", "")
    assert out.read_bytes() == made.jpeg(3)
    code, _, error = run(capsysbinary, made.root, 4, "-o", out)
    assert code == 1
    assert f"{out}: exists; give --overwrite" in error
    assert out.read_bytes() == made.jpeg(3)
    assert run(capsysbinary, made.root, 4, "-o", out, "--overwrite")[0] == 0
    assert out.read_bytes() == made.jpeg(4)
    assert [path.name for path in out.parent.iterdir()] == ["out.jpg"]


def test_a_pipe_is_written_to_and_stays_one(capsysbinary, made, tmp_path):
    # A pipe stands for devices: a test must not be able to replace one of the machine's.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run(capsysbinary, made.root, 3, "-k", 1, "-o", pipe, "--overwrite")[0] == 0
        assert os.read(reader, 1 << 16) == made.jpeg(3, 1)
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_a_terminal_is_spared(capsysbinary, made, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, error = run(capsysbinary, made.root, 3)
    assert (code, out) == (2, b"")
    assert "no text for a terminal; give -o FILE" in error


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((8,), "sample 8 of a set of 8, from 0"),
        (("x",), "'x' is no integer"),
        ((0, "-k", 11), "11"),
    ],
)
def test_what_is_not_there_is_refused(capsysbinary, made, args, text):
    code, out, error = run(capsysbinary, made.root, *args)
    assert (code, out) == (2, b"")
    assert text in error


def test_bytes_go_through_a_pipe(made):
    command = [sys.executable, "-m", "tensorcom.cli.main", "pcr", "cat", str(made.root), "2"]
    found = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert found.stdout == made.jpeg(2)
