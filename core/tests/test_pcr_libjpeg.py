"""The two tools: what they give, what they say, and what happens without them."""

from __future__ import annotations

import os
import stat
import threading

import pytest
from jpeg_helpers import hard, picture, run_jpegtran, saved

from tensorcom.errors import PcrError
from tensorcom.pcr import libjpeg
from tensorcom.pcr.libjpeg import Output, ToolError, run_library, run_program
from tensorcom.pcr.scripts import FAST

DATA = saved(picture())
EXPECTED = run_jpegtran(DATA, "-optimize", "-progressive")
CUT = hard("A29a.jpg")


@pytest.fixture
def library():
    found = libjpeg.load_library()
    assert found is not None, "libturbojpeg is needed: " + libjpeg.INSTALL_COMMAND
    return found


@pytest.fixture
def program():
    found = libjpeg.find_program()
    assert found is not None, "jpegtran is needed: " + libjpeg.INSTALL_COMMAND
    return found


@pytest.fixture
def fake(tmp_path):
    """Return a function that makes a program out of a shell script."""

    def make(script: str) -> str:
        path = tmp_path / "jpegtran"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def test_both_tools_give_the_same(library, program):
    assert run_library(library, DATA, keep_going=False) == Output(EXPECTED, None)
    assert run_program(program, DATA, None) == Output(EXPECTED, None)


def test_the_program_takes_any_script(program, tmp_path):
    path = tmp_path / "script"
    path.write_text(FAST.text_of(3))
    expected = run_jpegtran(DATA, "-optimize", "-scans", str(path))
    assert run_program(program, DATA, FAST.text_of(3)) == Output(expected, None)


def test_the_library_stops_at_a_warning_or_goes_on(library):
    warning = "Premature end of JPEG file"
    assert run_library(library, CUT, keep_going=False) == Output(None, warning)
    output = run_library(library, CUT, keep_going=True)
    assert output == Output(run_jpegtran(CUT, "-optimize", "-progressive"), warning)


def test_the_program_gives_its_warning_with_the_image(program):
    expected = run_jpegtran(CUT, "-optimize", "-progressive")
    assert run_program(program, CUT, None) == Output(expected, "Premature end of JPEG file")


@pytest.mark.parametrize("keep_going", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("A01.JPEG", "Not a JPEG file: starts with 0x89 0x50"),
        ("A22b.jpg", "SOF type 0xc3"),
        ("A30d.jpg", "JPEG datastream contains no image"),
    ],
)
def test_failures_carry_the_words_of_the_tool(library, program, name, text, keep_going):
    with pytest.raises(ToolError, match=text):
        run_library(library, hard(name), keep_going=keep_going)
    with pytest.raises(ToolError, match=text):
        run_program(program, hard(name), None)


def test_a_failure_that_the_library_calls_a_warning_is_one(library):
    with pytest.raises(ToolError, match="missing SOS marker"):
        run_library(library, hard("A30e.jpg"), keep_going=True)


def test_no_image_gets_the_tables_of_another(library):
    other = saved(picture(), quality=20, optimize=True)
    for marker in (b"\xff\xdb", b"\xff\xc4"):
        run_library(library, other, keep_going=False)
        bare = DATA.replace(marker, b"\xff\xfe")
        try:
            expected = run_jpegtran(bare, "-optimize", "-progressive")
        except AssertionError:
            with pytest.raises(ToolError, match="table 0x00 was not defined"):
                run_library(library, bare, keep_going=False)
        else:
            assert run_library(library, bare, keep_going=False).data == expected


class Counting:
    """The library, with a count of the handles that are open."""

    def __init__(self, library) -> None:
        self._library = library
        self.open = 0

    def __getattr__(self, name: str):
        return getattr(self._library, name)

    def tjInitTransform(self):
        self.open += 1
        return self._library.tjInitTransform()

    def tjDestroy(self, handle) -> None:
        self.open -= 1
        self._library.tjDestroy(handle)


def test_handles_are_given_back(library):
    counting = Counting(library)
    run_library(counting, DATA, keep_going=False)
    run_library(counting, CUT, keep_going=False)
    with pytest.raises(ToolError):
        run_library(counting, b"", keep_going=False)
    assert counting.open == 0


def test_threads_do_not_disturb_each_other(library):
    found: list[bool] = []

    def work() -> None:
        found.extend(
            run_library(library, DATA, keep_going=False).data == EXPECTED for _ in range(20)
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80


def test_a_forked_child_can_go_on(library):
    assert run_library(library, DATA, keep_going=False).data == EXPECTED
    child = os.fork()
    if child == 0:
        same = run_library(library, DATA, keep_going=False).data == EXPECTED
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_library_without_the_function_is_none(monkeypatch):
    monkeypatch.setattr(libjpeg, "_LIBRARIES", ("no-such-library", "libc.so.6"))
    assert libjpeg.load_library.__wrapped__() is None


def test_a_program_that_hangs_is_stopped(fake, monkeypatch):
    monkeypatch.setattr(libjpeg, "TIMEOUT_S", 0.2)
    with pytest.raises(ToolError, match=r"jpegtran took more than 0\.2 s"):
        run_program(fake("exec sleep 100"), DATA, FAST.text_of(3))


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo no memory >&2; exit 1", "no memory"),
        ("echo half an image; echo no memory >&2; exit 1", "no memory"),
        ("exit 1", "jpegtran failed with status 1"),
        ("exit 0", "jpegtran failed with status 0"),
    ],
)
def test_a_program_that_fails_is_an_error(fake, script, text):
    with pytest.raises(ToolError) as caught:
        run_program(fake(script), DATA, None)
    assert str(caught.value) == text


def test_a_program_that_was_killed_says_nothing_of_the_image(fake):
    with pytest.raises(PcrError, match="jpegtran was killed by SIGKILL") as caught:
        run_program(fake("kill -9 $$"), DATA, None)
    assert type(caught.value) is PcrError  # no JpegError, which a conversion may skip


def test_a_program_that_is_gone_is_an_error(tmp_path):
    handles = len(os.listdir("/proc/self/fd"))
    with pytest.raises(PcrError, match="jpegtran did not run: .*No such file"):
        run_program(str(tmp_path / "gone"), DATA, FAST.text_of(3))
    assert len(os.listdir("/proc/self/fd")) == handles


def test_no_shell_sees_the_arguments(fake, tmp_path):
    path = fake('printf "%s\\n" "$@" >"$(dirname "$0")/arguments"; cat')
    run_program(path, DATA, FAST.text_of(3))
    arguments = (tmp_path / "arguments").read_text().split("\n")
    assert arguments[:4] == ["-copy", "none", "-optimize", "-scans"]
    assert arguments[4].startswith("/dev/fd/")
