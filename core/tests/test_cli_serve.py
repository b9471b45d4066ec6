"""The serve commands: what they send, how they end, and what they say when they cannot."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tensorcom import Connection
from tensorcom.cli import serve_dir, serve_replay, serve_shards
from tensorcom.recording import RecordingWriter, read_recording
from tensorcom.testing import processes

CLASSES = ("apple", "bee", "cat")
PER_CLASS = 7
TOTAL = len(CLASSES) * PER_CLASS
DIR = "tensorcom.cli.serve_dir"
REPLAY = "tensorcom.cli.serve_replay"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of gray images; the colour is the number of the image."""
    root = tmp_path_factory.mktemp("images")
    for label, name in enumerate(CLASSES):
        (root / name).mkdir()
        for number in range(PER_CLASS):
            colour = (10 * (label * PER_CLASS + number),) * 3
            Image.new("RGB", (40, 32), colour).save(root / name / f"{number}.png")
    return root


class Server:
    """A serve command as a subprocess."""

    def __init__(self, module, args, log):
        self.log = log
        with log.open("wb") as file:
            command = [sys.executable, "-m", module, *map(str, args)]
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

    def text(self):
        return self.log.read_text()

    def wait(self):
        return self.process.wait(timeout=60)

    def wait_for(self, condition):
        deadline = time.monotonic() + 60
        while not (found := condition()):
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)
        return found

    def senders(self):
        """Return the sender processes, without multiprocessing's own tracker."""
        found = set()
        for each in processes.descendants(self.process.pid):
            with contextlib.suppress(OSError), open(f"/proc/{each.pid}/cmdline") as file:
                if "spawn_main" in file.read():
                    found.add(each)
        return found

    def end(self):
        family = processes.descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for each in processes.alive(family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)


@pytest.fixture
def serve(tmp_path):
    started = []

    def start(module, *args):
        started.append(Server(module, args, tmp_path / f"log{len(started)}"))
        return started[-1]

    yield start
    for server in started:
        server.end()


def reader(url, **options):
    return Connection(url, timeout_s=60, **options)


def numbers_of(batches):
    return [round(int(image.mean()) / 10) for images, _ in batches for image in images]


@pytest.mark.parametrize("urls", ["s0", "s{0..1}"])
def test_one_epoch_sends_every_sample_once(serve, images, tmp_path, urls):
    server = serve(
        DIR, "-d", images, "-b", 4, "--size", 16, "--epochs", 1, f"zrpush+ipc://{tmp_path}/{urls}"
    )
    with reader(f"zrpull+ipc://{tmp_path}/{urls}") as rx:
        batches = list(rx)
    assert sorted(numbers_of(batches)) == list(range(TOTAL))
    for xs, ys in batches:
        assert (xs.shape[1:], xs.dtype, ys.dtype) == ((16, 16, 3), np.uint8, np.int32)
        assert [n // PER_CLASS for n in numbers_of([(xs, ys)])] == ys.tolist()
    assert server.wait() == 0
    assert f"{TOTAL} samples" in server.text()


def test_parallel_senders_share_a_connecting_url(serve, images, tmp_path):
    with reader(f"zpull+ipc://{tmp_path}/p") as rx:
        server = serve(
            DIR, "-d", images, "--size", 16, "--epochs", 2, "-P", 2, f"zpush+ipc://{tmp_path}/p"
        )
        batches = list(rx)
        sources = set(rx.stats.sources)
    assert Counter(numbers_of(batches)) == dict.fromkeys(range(TOTAL), 2)
    assert len(sources) == 2
    assert server.wait() == 0


def test_no_shuffle_keeps_the_order_of_the_folder(serve, images, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x"
    serve(DIR, "-d", images, "-b", 5, "--size", 16, "--epochs", 2, "--no-shuffle", url)
    with reader(url.replace("zrpush", "zrpull")) as rx:
        messages = [rx.recv_message() for _ in range(10)]
    assert numbers_of(m.arrays for m in messages) == 2 * list(range(TOTAL))
    assert [m.meta.epoch for m in messages] == 5 * [0] + 5 * [1]
    assert [m.meta.index for m in messages] == 2 * list(range(5))


def test_shuffled_epochs_differ_and_a_seed_repeats_them(serve, images, tmp_path):
    def served(name, *args):
        url = f"zrpush+ipc://{tmp_path}/{name}"
        serve(DIR, "-d", images, "-b", TOTAL, "--size", 16, "--epochs", 2, *args, url)
        with reader(url.replace("zrpush", "zrpull")) as rx:
            return [numbers_of([batch]) for batch in rx]

    first, second = served("a", "--seed", 5)
    assert sorted(first) == sorted(second) == list(range(TOTAL))
    assert first != second
    assert served("b", "--seed", 5) == [first, second]
    assert served("c", "--seed", 6) != [first, second]


def test_benchmark_sends_one_batch_again_and_again(serve, images, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x"
    server = serve(DIR, "-d", images, "-b", 4, "--size", 16, "-B", url)
    with reader(url.replace("zrpush", "zrpull")) as rx:
        batches = [rx.recv() for _ in range(3 * TOTAL)]
    for xs, ys in batches[1:]:
        assert np.array_equal(xs, batches[0][0])
        assert np.array_equal(ys, batches[0][1])
    server.process.terminate()
    assert server.wait() == 0


def test_normalize_centre_drop_last_and_single_part(serve, images, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x"
    flags = ["-n", "--no-augment", "--drop-last", "--single-part", "--no-shuffle"]
    serve(DIR, "-d", images, "-b", 4, "--size", 16, "--epochs", 1, *flags, url)
    with reader(url.replace("zrpush", "zrpull"), raw=True) as rx:
        assert len(rx.recv()) == 1
    serve(DIR, "-d", images, "-b", 4, "--size", 16, "--epochs", 1, *flags, url + "2")
    with reader(url.replace("zrpush", "zrpull") + "2") as rx:
        batches = list(rx)
    assert [len(ys) for _, ys in batches] == (TOTAL // 4) * [4]
    assert batches[0][0].dtype == np.float32
    expected = (10 / 255 - np.array([0.485, 0.456, 0.406])) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(batches[0][0][1, 5, 5], expected, atol=1e-5)


def test_publisher_waits_for_its_readers_and_publishes_under_a_topic(serve, images, tmp_path):
    url = f"zpub+ipc://{tmp_path}/x"
    args = ["-d", images, "--size", 16, "--epochs", 1, "--wait-for-peers", 1, "--topic", "train"]
    server = serve(DIR, *args, url)
    with reader(url.replace("zpub", "zsub") + "#train") as rx:
        assert sorted(numbers_of(rx)) == list(range(TOTAL))
    assert server.wait() == 0


def test_port_that_was_picked_is_told(serve, images):
    server = serve(DIR, "-d", images, "--size", 16, "--epochs", 1, "zrpush://127.0.0.1:0")

    def picked():
        words = server.text().split()
        urls = [w for w in words if w.startswith("zrpush://127.0.0.1:") and not w.endswith(":0")]
        return urls[0] if urls else None

    with reader(server.wait_for(picked).replace("zrpush", "zrpull")) as rx:
        assert sorted(numbers_of(rx)) == list(range(TOTAL))
    assert server.wait() == 0


def test_report_tells_rates(serve, images, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x"
    server = serve(DIR, "-d", images, "-b", 4, "--size", 16, "-r", 10, url)
    with reader(url.replace("zrpush", "zrpull")) as rx:
        items = iter(rx)
        server.wait_for(lambda: next(items) and "MB/s" in server.text())
    assert "batches/s" in server.text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("scheme", ["zrpush", "zpush", "zpub"])
def test_signal_drains_without_a_reader(serve, images, tmp_path, number, scheme):
    url = f"{scheme}+ipc://{tmp_path}/x{{0..1}}"
    server = serve(DIR, "-d", images, "-b", 4, "--size", 16, "--epochs", 1000, url)
    senders = server.wait_for(lambda: len(found := server.senders()) == 2 and found)
    time.sleep(1)  # most are sending by now; it is as right before
    server.process.send_signal(number)
    assert server.wait() == 0
    assert not processes.alive(senders)
    assert "killed" not in server.text()
    assert "Traceback" not in server.text()


def test_sigterm_while_sending_drains_and_says_what_was_sent(serve, images, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x"
    server = serve(DIR, "-d", images, "-b", 4, "--size", 16, url)
    with reader(url.replace("zrpush", "zrpull")) as rx:
        received = [rx.recv_message() for _ in range(5)]
        senders = server.senders()
        server.process.terminate()
        with contextlib.suppress(TimeoutError):
            while True:
                received.append(rx.recv_message(timeout_s=1))
    assert server.wait() == 0
    assert not processes.alive(senders)
    assert [m.meta.seq for m in received] == list(range(len(received)))
    assert f"{len(received)} batches" in server.text()


def test_killed_sender_is_started_again(serve, images, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x{{0..1}}"
    server = serve(DIR, "-d", images, "-b", 4, "--size", 16, url)
    with reader(url.replace("zrpush", "zrpull")) as rx:
        items = iter(rx)
        server.wait_for(lambda: next(items) and len(rx.stats.sources) == 2)
        os.kill(next(iter(server.senders())).pid, signal.SIGKILL)
        server.wait_for(lambda: next(items) and len(rx.stats.sources) == 3)
    assert "SIGKILL" in server.text()
    assert "restarting in" in server.text()
    server.process.terminate()
    assert server.wait() == 0


def test_fail_fast_ends_with_the_first_crash(serve, images, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x{{0..1}}"
    server = serve(DIR, "-d", images, "--size", 16, "--fail-fast", url)
    senders = server.wait_for(lambda: len(found := server.senders()) == 2 and found)
    os.kill(next(iter(senders)).pid, signal.SIGKILL)
    assert server.wait() == 1
    assert not processes.alive(senders)
    lines = server.text().splitlines()
    assert "exit code -9: killed by SIGKILL" in lines[-1]
    assert lines[-1].startswith("serve-imagenet-dir: error: sender ")


def test_killed_command_leaves_no_sender(serve, images, tmp_path):
    server = serve(DIR, "-d", images, "--size", 16, f"zrpush+ipc://{tmp_path}/x{{0..1}}")
    senders = server.wait_for(lambda: len(found := server.senders()) == 2 and found)
    time.sleep(0.5)
    server.process.kill()
    server.process.wait()
    assert not processes.wait_until_gone(senders, timeout_s=20)


def test_port_in_use_is_one_line_and_no_restart(serve, images):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"zrpush://127.0.0.1:{taken.getsockname()[1]}"
        server = serve(DIR, "-d", images, "--size", 16, url)
        assert server.wait() == 1
    assert "Traceback" not in server.text()
    assert "restarting" not in server.text()
    errors = [line for line in server.text().splitlines() if "error" in line]
    assert len(errors) == 1
    assert url in errors[0]
    assert "in use" in errors[0]


def spoiled(images, tmp_path):
    """Return a folder with one bad image more."""
    root = tmp_path / "spoiled"
    for name in CLASSES:
        (root / name).mkdir(parents=True)
        for number in range(PER_CLASS):
            (root / name / f"{number}.png").symlink_to(images / name / f"{number}.png")
    (root / "cat" / "bad.png").write_bytes(b"no image at all")
    return root


def test_bad_image_ends_the_command_and_is_named(serve, images, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x"
    root = spoiled(images, tmp_path)
    server = serve(DIR, "-d", root, "--size", 16, "--epochs", 1, url)
    with reader(url.replace("zrpush", "zrpull")):
        assert server.wait() == 1
    assert "Traceback" not in server.text()
    assert str(root / "cat" / "bad.png") in server.text().splitlines()[-1]


def test_bad_image_is_skipped_and_named(serve, images, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x"
    root = spoiled(images, tmp_path)
    server = serve(DIR, "-d", root, "--size", 16, "--epochs", 1, "--on-error", "skip", url)
    with reader(url.replace("zrpush", "zrpull")) as rx:
        assert sorted(numbers_of(rx)) == list(range(TOTAL))
    assert server.wait() == 0
    assert str(root / "cat" / "bad.png") in server.text()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["zsub://127.0.0.1:7880"], "zsub receives"),
        (["nonsense"], "has no '://'"),
        (["zrpush+inproc://x"], "inproc"),
        (["-P", "2", "zrpush://127.0.0.1:7880"], "binds, which one process can do; use zpush"),
        (["zpub://127.0.0.1:1", "zpub://127.0.0.1:1"], "binds, which one process can do"),
        (["--topic", "t", "zrpush://127.0.0.1:7880"], "topic"),
        (["-b", "0"], "-b/--batch-size"),
        (["--epochs", "none"], "--epochs"),
        (["--unknown"], "--unknown"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(images, capsys, args, text):
    assert serve_dir.main(["-d", str(images), *args]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("serve-imagenet-dir: error: ")
    assert text in err


@pytest.mark.parametrize(
    ("main", "args", "name"),
    [
        (serve_dir.main, ["-d", "{}/missing"], "missing"),
        (serve_dir.main, ["-d", "{}"], ""),
        (serve_shards.main, ["-u", "{}/missing{{0..1}}.tar"], "missing0.tar"),
        (serve_replay.main, ["{}/missing.ten"], "missing.ten"),
    ],
)
def test_missing_data_is_one_line_that_names_it(tmp_path, capsys, main, args, name):
    args = [arg.format(tmp_path) for arg in args]
    assert main([*args, f"zrpush+ipc://{tmp_path}/x"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(tmp_path / name) in err


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "some.ten"
    with (
        Connection(f"zrpush+ipc://{tmp_path}/rec") as tx,
        reader(f"zrpull+ipc://{tmp_path}/rec") as rx,
        RecordingWriter(path) as writer,
    ):
        for number in range(6):
            tx.send([np.full((2, 3), number, "f4"), np.arange(2)], allow64=True)
            writer.write(rx.recv_message())
    return path


def test_replay_sends_the_messages_in_order(serve, recording, tmp_path):
    url = f"zrpush+ipc://{tmp_path}/x"
    server = serve(REPLAY, recording, url, "--epochs", 2, "--rate", 1000)
    with reader(url.replace("zrpush", "zrpull")) as rx:
        replayed = list(rx)
    originals = [message.arrays for message in read_recording(recording)]
    assert len(replayed) == 12
    for sent, came in zip(2 * originals, replayed, strict=True):
        for one, other in zip(sent, came, strict=True):
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
    assert server.wait() == 0


def test_replay_deals_messages_out_to_senders(serve, recording, tmp_path):
    with reader(f"zpull+ipc://{tmp_path}/x") as rx:
        server = serve(REPLAY, "-P", 2, recording, f"zpush+ipc://{tmp_path}/x")
        values = sorted(int(xs[0, 0]) for xs, _ in rx)
    assert values == list(range(6))
    assert server.wait() == 0


def test_replay_of_a_damaged_file_ends_with_its_name(serve, recording, tmp_path):
    damaged = tmp_path / "damaged.ten"
    damaged.write_bytes(recording.read_bytes()[:-40])
    url = f"zrpush+ipc://{tmp_path}/x"
    server = serve(REPLAY, damaged, url)
    with reader(url.replace("zrpush", "zrpull")):
        assert server.wait() == 1
    assert str(damaged) in server.text().splitlines()[-1]
    assert "Traceback" not in server.text()
