"""`tensorcom pcr convert`: arguments, what it says, signals; and the table of `tensorcom pcr`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from convert_helpers import contents, jpeg, make_folder, make_shard, samples_of, shard_members
from jpeg_helpers import hard

from tensorcom.cli import main, stream
from tensorcom.cli import pcr as pcr_commands
from tensorcom.cli.pcr import convert as command
from tensorcom.pcr import PcrReader
from tensorcom.pcr.scripts import STANDARD

PROGRAM = [sys.executable, "-m", "tensorcom.cli.main", "pcr", "convert"]
TOTAL = 12


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path / "images", TOTAL)


def run(*arguments) -> int:
    return main.main(["pcr", "convert", *map(str, arguments)])


# -- the table ---------------------------------------------------------------------------------


def test_help_names_every_command(capsys) -> None:
    assert main.main(["pcr", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: tensorcom pcr ")
    assert list(pcr_commands.COMMANDS) == [
        "convert",
        "info",
        "verify",
        "ls",
        "cat",
        "extract",
        "fidelity",
    ]
    for name, (_, said) in pcr_commands.COMMANDS.items():
        assert f"\n  {name:10}{said}\n" in text


@pytest.mark.parametrize("name", pcr_commands.COMMANDS)
def test_each_command_has_help_with_an_example(name, capsys) -> None:
    assert main.main(["pcr", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: tensorcom pcr {name}")
    assert f"example:\n  tensorcom pcr {name}" in text


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "tensorcom pcr: error: no command given (see --help)"),
        (["nope"], "tensorcom pcr: error: argument COMMAND: invalid choice: 'nope'"),
        (["convert"], "tensorcom pcr convert: error: the following arguments are required: SOURCE"),
        (
            ["convert", "a", "b", "--images-per-record", "0"],
            "tensorcom pcr convert: error: argument --images-per-record: '0' is no integer from 1",
        ),
        (
            ["convert", "a", "b", "--reencode", "101"],
            "tensorcom pcr convert: error: argument --reencode: '101' is no quality from 1 to 100",
        ),
        (
            ["convert", "a", "b", "--class-names", "/no/such/file"],
            "tensorcom pcr convert: error: argument --class-names: /no/such/file: No such file",
        ),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(argv, text, capsys) -> None:
    assert main.main(["pcr", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(text)


def test_it_is_a_command_of_its_own(capsys) -> None:
    assert command.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: tensorcom pcr convert")


# -- converting --------------------------------------------------------------------------------


def test_a_folder_becomes_a_set(folder, tmp_path, capsys) -> None:
    root = tmp_path / "set"
    assert run(folder, root, "--images-per-record", 5, "--no-shuffle", "--sqlite-index") == 0
    size = sum(len(data) for name, data in contents(root).items() if name.endswith(".pcr"))
    share = size / sum(len(jpeg(number)) for number in range(TOTAL))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"tensorcom pcr convert: wrote {root}: 12 images in 3 records, {size / 1e6:.4g} MB, "
        f"{share:.1%} of the source\n"
    )
    assert [name for name, _, _ in samples_of(root)][::11] == ["ant/000.jpg", "cat/011.jpg"]
    assert "PCR.db" in contents(root)


def test_options_reach_the_conversion(folder, tmp_path, capsys, monkeypatch) -> None:
    seen = {}

    def fake(source, root, **options):
        seen.update(options, source=source, root=root)
        raise OSError("enough")

    monkeypatch.setattr(command, "convert", fake)
    names = tmp_path / "names.txt"
    names.write_text("a b\nc\n")
    assert run("S", "R") == 1
    del seen["on_progress"], seen["stop"]
    defaults = {
        "source": "S",
        "root": "R",
        "images_per_record": 1024,
        "shuffle": None,
        "seed": 0,
        "workers": None,
        "script": "standard",
        "on_error": "raise",
        "lenient": False,
        "reencode": None,
        "class_names": None,
        "allow_empty_class": False,
        "sqlite_index": False,
        "force": False,
        "report": None,
    }
    assert seen == defaults
    run(
        *("S", "R", "--images-per-record", 3, "--shuffle", "--seed", 7, "--workers", 2, "--force"),
        *("--sqlite-index", "--scan-script", "fast", "--on-error", "skip", "--reencode", 90),
        *("--lenient", "--report", "r.jsonl", "--class-names", names, "--allow-empty-class"),
    )
    del seen["on_progress"], seen["stop"]
    assert seen == {
        **defaults,
        "images_per_record": 3,
        "shuffle": True,
        "seed": 7,
        "workers": 2,
        "force": True,
        "sqlite_index": True,
        "script": "fast",
        "on_error": "skip",
        "reencode": 90,
        "lenient": True,
        "report": "r.jsonl",
        "class_names": ("a b", "c"),
        "allow_empty_class": True,
    }


def test_shards_with_names(tmp_path, capsys) -> None:
    make_shard(tmp_path / "0.tar", shard_members(range(3)))
    make_shard(tmp_path / "1.tgz", shard_members(range(3, 4)))
    (tmp_path / "names.txt").write_text("x\né y\nz\n", "utf-8")
    root = tmp_path / "set"
    assert run(f"{tmp_path}/{{0.tar,1.tgz}}", root, "--class-names", tmp_path / "names.txt") == 0
    with PcrReader(root) as reader:
        assert reader.class_names == ("x", "é y", "z")
        assert len(reader) == 4


def test_a_script_from_a_file(folder, tmp_path) -> None:
    (tmp_path / "mine.txt").write_text(STANDARD.text_of(3))
    assert run(folder, tmp_path / "set", "--scan-script", tmp_path / "mine.txt") == 0


def test_what_is_odd_is_counted(folder, tmp_path, capsys) -> None:
    (folder / "ant" / "png.jpg").write_bytes(hard("A01.JPEG"))
    (folder / "ant" / "icc.jpg").write_bytes(hard("A08.jpg"))
    root = tmp_path / "set"
    assert run(folder, root, "--on-error", "skip") == 0
    assert (
        capsys.readouterr()
        .err.rstrip()
        .endswith(f"1 skipped, 1 noted: see {root}/PCR_report.jsonl")
    )
    assert run(folder, root, "--force", "--reencode", "90", "--report", tmp_path / "r") == 0
    assert f"1 re-encoded, 1 noted: see {tmp_path}/r" in capsys.readouterr().err
    statuses = [json.loads(line)["status"] for line in (tmp_path / "r").read_text().splitlines()]
    assert sorted(statuses) == ["noted", "reencoded"]


def test_a_bad_image_says_how_to_go_on(folder, tmp_path, capsys) -> None:
    (folder / "ant" / "png.jpg").write_bytes(hard("A01.JPEG"))
    assert run(folder, tmp_path / "set") == 1
    assert capsys.readouterr().err.splitlines() == [
        "tensorcom pcr convert: finished records stay: --on-error skip goes on without such files",
        f"tensorcom pcr convert: error: {folder}/ant/png.jpg: is PNG, expected JPEG",
    ]
    assert run(folder, tmp_path / "set", "--on-error", "skip", "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_a_set_that_is_there_is_one_line(folder, tmp_path, capsys) -> None:
    run(folder, tmp_path / "set", "-q")
    assert run(folder, tmp_path / "set", "-q") == 1
    assert capsys.readouterr().err == (
        f"tensorcom pcr convert: error: {tmp_path}/set: holds a set; force=True (--force) "
        "replaces it\n"
    )


class Terminal:
    """Standard error that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_gets_a_bar_with_a_rate(folder, tmp_path, monkeypatch, quiet) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    assert run(folder, tmp_path / "set", *["-q"] * quiet) == 0
    if quiet:
        assert terminal.text == ""
    else:
        assert "converting" in terminal.text
        assert f"12/{TOTAL} images" in terminal.text
        assert "left" in terminal.text


def test_the_bar_shows_rate_and_rest(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    with stream.progress_bar("doing", total=1000, unit="things", rate=True) as show:
        for done in range(0, 500, 100):
            show(done)
            time.sleep(0.01)
    assert " things/s" in terminal.text
    assert "400/1000 things" in terminal.text


# -- signals -----------------------------------------------------------------------------------


@pytest.fixture
def heeds_sigint():
    """Heed SIGINT also where the tests run in the background, whose programs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_stops_the_conversion_which_goes_on(
    tmp_path, heeds_sigint, number, code, wait_until, capsys
) -> None:
    """The source is a pipe that ends only when it is told to, so the signal comes in the middle."""
    shard, root = make_shard(tmp_path / "0.tar", shard_members(range(60))), tmp_path / "set"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = [f"pipe:cat {pipe}", str(root), "--images-per-record", "2", "--workers", "1"]
    with subprocess.Popen([*PROGRAM, *arguments], stderr=subprocess.PIPE, text=True) as process:
        data = Path(shard).read_bytes()
        with pipe.open("wb") as writer:
            writer.write(data[: len(data) // 2])
            writer.flush()
            wait_until(lambda: list(root.glob(".PCR_*.done")))
            process.send_signal(number)
            time.sleep(0.05)  # else what follows may come first, which changes nothing but speed
            with contextlib.suppress(BrokenPipeError):
                writer.write(data[len(data) // 2 :])
        said = process.stderr.read()
        assert process.wait(60) == code, said
    done = len(list(root.glob(".PCR_*.done")))
    assert said == (
        f"tensorcom pcr convert: {root} is unfinished, with {2 * done} images in {done} "
        f"record{'s' * (done != 1)}; the same command, run again, goes on\n"
    )
    assert done < 30
