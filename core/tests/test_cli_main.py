"""The `tensorcom` command: what it dispatches, its help, its exit codes and one-line errors."""

from __future__ import annotations

import io
import logging
import signal
import subprocess
import sys
import threading
import types

import pytest

from tensorcom import Connection, TensorcomError, ZmqUrlError
from tensorcom.cli import common, main, mon, record, show, stat
from tensorcom.cli.main import COMMANDS, SERVE_COMMANDS

READERS = {"tensormon": mon, "tensorstat": stat, "tensorshow": show, "tensorcom record": record}
PROGRAM = [sys.executable, "-m", "tensorcom.cli.main"]


def run_program(*args):
    return subprocess.run([*PROGRAM, *args], capture_output=True, text=True, timeout=60)


def only_line(text):
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


# -- dispatch and help ------------------------------------------------------------------------


def test_help_names_every_command(capsys):
    assert main.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "example:\n  tensorcom mon" in text
    for name in [*COMMANDS, *(f"serve {name}" for name in SERVE_COMMANDS)]:
        assert f"\n  {name} " in text


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(name, capsys):
    assert main.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: tensorcom {name}")
    assert f"example:\n  tensorcom {name}" in text


@pytest.mark.parametrize(("prog", "module"), READERS.items())
def test_a_command_has_a_name_of_its_own(prog, module, capsys):
    assert module.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: {prog}")


def test_version(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == "tensorcom 0.2.0\n"


def test_serve_passes_arguments_and_name_on(monkeypatch):
    seen = []
    fake = types.ModuleType("tensorcom.cli.serve_dir")
    fake.main = lambda argv, prog: seen.append((argv, prog)) or 7
    monkeypatch.setitem(sys.modules, "tensorcom.cli.serve_dir", fake)
    assert main.main(["serve", "dir", "--help", "x"]) == 7
    assert seen == [(["--help", "x"], "tensorcom serve dir")]


def test_serve_help_names_every_source(capsys):
    assert main.main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in SERVE_COMMANDS)


def test_only_the_chosen_command_is_imported():
    code = (
        "import sys; from tensorcom.cli.main import main; main(sys.argv[1:]);"
        "print(sorted(m for m in sys.modules if m.startswith(('tensorcom.cli.', 'rich', 'PIL', "
        "'matplotlib'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=60
    )
    expected = str(["tensorcom.cli.common", "tensorcom.cli.main"])
    assert done.stdout.splitlines() == ["tensorcom 0.2.0", expected]


# -- wrong arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "tensorcom: error: no command given (see --help)"),
        (["serve"], "tensorcom serve: error: no command given (see --help)"),
        (
            ["nope"],
            "tensorcom: error: argument COMMAND: invalid choice: 'nope' "
            "(choose from serve, record, mon, stat, show, pcr)",
        ),
        (
            ["mon", "-c", "0"],
            "tensorcom mon: error: argument -c/--count: '0' is no integer from 1",
        ),
        (
            ["mon", "--timeout-s", "soon"],
            "tensorcom mon: error: argument --timeout-s: 'soon' is not a number of seconds from 0",
        ),
        (
            ["mon", "--interval-s", "0"],
            "tensorcom mon: error: argument --interval-s: '0' is not a number of seconds over 0",
        ),
        (
            ["mon", "-r", "2", "--interval-s", "1"],
            "tensorcom mon: error: argument --interval-s: not allowed with argument -r/--report",
        ),
        (
            ["show", "--label", "-1"],
            "tensorcom show: error: argument --label: '-1' is no integer from 0",
        ),
        (
            ["stat", "--chan", "NHWC"],
            "tensorcom stat: error: unrecognized arguments: --chan",
        ),
        (
            ["record", "zsub://h:1"],
            "tensorcom record: error: the following arguments are required: FILE.ten",
        ),
        (
            ["stat", "zpub://127.0.0.1:7880"],
            "tensorcom stat: error: url 'zpub://127.0.0.1:7880': zpub sends and this command "
            "receives; use zsub",
        ),
        (
            ["mon", "zsub:/h"],
            "tensorcom mon: error: url 'zsub:/h': has no '://'; expected "
            "<scheme>[+<transport>]://<address>",
        ),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(argv, text, capsys):
    assert main.main(argv) == 2
    captured = capsys.readouterr()
    # Python 3.12 quotes the choices no more.
    line = only_line(captured.err)
    choices = line.partition("choose from")
    line = choices[0] + choices[1] + choices[2].replace("'", "")
    assert line == text or line.startswith(text)
    assert captured.out == ""


# -- failures ---------------------------------------------------------------------------------


def test_nothing_to_receive_exits_1(tmp_path, capsys):
    url = f"zrpull+ipc://{tmp_path}/a"
    assert mon.main(["--timeout-s", "0.2", url]) == 1
    assert only_line(capsys.readouterr().err) == (
        f"tensormon: error: {url}: no message in 0.2 s (0 of 1 or more peers connected; none ever "
        "came: is the server running?)"
    )


def test_timeout_in_the_url_goes_before(tmp_path, capsys):
    url = f"zrpull+ipc://{tmp_path}/a?timeout_s=0.1"
    assert stat.main(["--timeout-s", "50", url]) == 1
    assert "no message in 0.1 s" in only_line(capsys.readouterr().err)


def test_only_bad_messages_exit_1_in_time(tmp_path, capsys):
    sock, stop = foreign_sender(f"ipc://{tmp_path}/a")
    with sock, stop:
        assert stat.main(["--timeout-s", "0.2", f"zrpull+ipc://{tmp_path}/a"]) == 1
    line = only_line(capsys.readouterr().err)
    assert "no batch in 0.2 s (" in line
    assert "bad messages skipped, 0 of another topic)" in line


def test_bad_message_can_be_an_error(tmp_path, capsys):
    sock, stop = foreign_sender(f"ipc://{tmp_path}/a")
    with sock, stop:
        code = stat.main(["--on-bad-message", "raise", f"zrpull+ipc://{tmp_path}/a"])
    assert code == 1
    assert only_line(capsys.readouterr().err).startswith("tensorstat: error: message: ")


def foreign_sender(address):
    """Return a connected pair of context managers that send what is no batch, again and again."""
    import zmq  # a foreign program, so not through a Connection

    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDTIMEO, 50)
    socket.bind(address)
    stopping = threading.Event()

    def send():
        while not stopping.is_set():
            try:
                socket.send(b"hello")
            except zmq.Again:
                continue
            stopping.wait(0.01)

    thread = threading.Thread(target=send)

    class Sending:
        def __enter__(self):
            thread.start()

        def __exit__(self, *_):
            stopping.set()
            thread.join()

    class Open:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            socket.close()
            context.term()

    return Open(), Sending()


def parser(name="tool"):
    made = common.Parser(name, description="d", example="e")
    common.add_verbose_argument(made)
    return made


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (TensorcomError("two\nlines"), 1, "tool: error: two lines"),
        (ZmqUrlError("bad"), 2, "tool: error: bad"),
        (ValueError("--x is wrong"), 2, "tool: error: --x is wrong"),
        (FileNotFoundError(2, "No such file or directory", "a"), 1, "tool: error: a: No such file"),
        (OSError("odd"), 1, "tool: error: odd"),
        (KeyboardInterrupt(), 130, None),
        (common.Terminated(), 143, None),
        (BrokenPipeError(), 141, None),
    ],
)
def test_how_a_command_ends_is_its_exit_code(error, code, text, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # so that it is not closed for a broken pipe

    def command(_args):
        raise error

    assert common.run(parser(), command, []) == code
    err = capfd.readouterr().err
    assert err == "" if text is None else only_line(err).startswith(text)


def test_a_bug_is_no_one_line_error():
    def command(_args):
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError, match="bug"):
        common.run(parser(), command, [])


@pytest.mark.parametrize(
    ("argv", "lines"), [([], ["tool: w"]), (["-v"], ["tool: i", "tool: w"])], ids=["quiet", "-v"]
)
def test_the_log_goes_to_standard_error(argv, lines, capsys):
    logger = logging.getLogger("tensorcom.connection")

    def command(_args):
        logger.info("i")
        logger.warning("w")
        return 0

    level, handlers = (
        logging.getLogger("tensorcom").level,
        len(logging.getLogger("tensorcom").handlers),
    )
    assert common.run(parser(), command, argv) == 0
    assert capsys.readouterr().err.splitlines() == lines
    assert logging.getLogger("tensorcom").level == level
    assert len(logging.getLogger("tensorcom").handlers) == handlers


def test_sigterm_handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    inside = []

    def command(_args):
        inside.append(signal.getsignal(signal.SIGTERM))
        return 0

    assert common.run(parser(), command, []) == 0
    assert inside[0] is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_runs_in_a_thread(capsys):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main.main(["--version"])))
    thread.start()
    thread.join()
    assert codes == [0]


# -- as programs ------------------------------------------------------------------------------


def test_program_errors_are_one_line(tmp_path):
    done = run_program("mon", "--timeout-s", "0.1", f"zrpull+ipc://{tmp_path}/a")
    assert done.returncode == 1
    assert only_line(done.stderr).startswith("tensorcom mon: error: zrpull+ipc://")
    done = run_program("mon", "--no-such-flag")
    assert done.returncode == 2
    assert only_line(done.stderr).startswith("tensorcom mon: error: unrecognized arguments")
    done = run_program("mon", "zsub+ipc:///no/such/dir/" + "x" * 200)
    assert done.returncode == 2
    assert "exceeds the system's 107" in only_line(done.stderr)


@pytest.fixture
def heeds_sigint():
    """Heed SIGINT also where the tests run in the background, whose programs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_signals_end_a_program_quietly(number, code, heeds_sigint):
    command = [*PROGRAM, "mon", "--timeout-s", "0", "zpull://127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = process.stderr.readline()
        assert said.startswith("tensorcom mon: listening on zpull://127.0.0.1:")
        process.send_signal(number)
        assert process.wait(30) == code
        assert process.stderr.read() == ""


def test_port_0_is_told(capsys):
    assert mon.main(["--timeout-s", "0.1", "zpull://127.0.0.1:0"]) == 1
    first = capsys.readouterr().err.splitlines()[0]
    port = first.rpartition(":")[2]
    assert first == f"tensormon: listening on zpull://127.0.0.1:{port}"
    assert int(port) > 0


def test_verbose_says_what_is_read(tmp_path, capsys):
    url = f"zrpull+ipc://{tmp_path}/a"
    assert mon.main(["-v", "--timeout-s", "0.1", url]) == 1
    assert capsys.readouterr().err.splitlines()[0] == f"tensormon: reading {url}"


def test_default_url(tmp_path):
    for module in (mon, stat, show):
        args = module._parser("x").parse_args([])
        assert args.urls == ["zsub://127.0.0.1:7880"]
        assert args.timeout_s == 60
        assert args.on_bad_message == "skip"


def test_connection_is_closed_after_a_failure(tmp_path):
    path = f"{tmp_path}/a"
    assert mon.main(["--timeout-s", "0.1", f"zpull+ipc://{path}"]) == 1
    with Connection(f"zpull+ipc://{path}"):  # the address is free again
        pass
