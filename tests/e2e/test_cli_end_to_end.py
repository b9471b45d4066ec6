"""The commands together, as a user starts them: serve, record, replay, and read what they send."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image

import tensorcom
from tensorcom.images import ImageFolder, center_crop, decode_image
from tensorcom.recording import read_recording

CLASSES = ("apple", "bee", "cat", "dog")
PER_CLASS = 6
TOTAL = len(CLASSES) * PER_CLASS


def command(name):
    """Return an installed command, which stands beside this Python."""
    path = Path(sys.executable).with_name(name)
    return str(path) if path.exists() else shutil.which(name)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (root / name).mkdir()
        for number in range(PER_CLASS):
            coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
            image = Image.fromarray(coarse).resize((80, 60))
            image.save(root / name / f"{label}{number}.jpg", quality=95)
    return root


@pytest.fixture
def start(tmp_path):
    """Start commands in the background; the test waits for them, or they are killed."""
    running = []

    def run(*args):
        log = (tmp_path / f"log{len(running)}").open("wb")
        process = subprocess.Popen(
            [command(args[0]), *map(str, args[1:])], stdout=log, stderr=log, cwd=tmp_path
        )
        log.close()
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()


def run(*args, cwd):
    subprocess.run([command(args[0]), *map(str, args[1:])], cwd=cwd, check=True, timeout=100)


def check_same(arrays, expected):
    for one, other in zip(arrays, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def test_serve_record_replay_is_bit_equal(start, images, tmp_path):
    flags = ["-b", 5, "--size", 48, "--epochs", 2, "--seed", 3]
    server = start("tensorcom", "serve", "dir", "-d", images, *flags, "zrpush+ipc://s{0..1}")
    run("tensorcom", "record", "zrpull+ipc://s{0..1}", "one.ten", cwd=tmp_path)
    assert server.wait(timeout=60) == 0
    first = list(read_recording(tmp_path / "one.ten"))
    assert sum(m.arrays[0].shape[0] for m in first) == 2 * TOTAL
    assert Counter(np.concatenate([m.arrays[1] for m in first]).tolist()) == dict.fromkeys(
        range(len(CLASSES)), 2 * PER_CLASS
    )

    replay = start("tensorcom", "serve", "replay", "one.ten", "zrpush+ipc://replay")
    with tensorcom.Connection(f"zrpull+ipc://{tmp_path}/replay") as connection:
        for arrays, message in zip(connection, first, strict=True):
            check_same(arrays, message.arrays)
    assert replay.wait(timeout=60) == 0

    replay = start("tensorcom", "serve", "replay", "one.ten", "zrpush+ipc://replay")
    run("tensorcom", "record", "zrpull+ipc://replay", "two.ten", cwd=tmp_path)
    assert replay.wait(timeout=60) == 0
    for again, message in zip(read_recording(tmp_path / "two.ten"), first, strict=True):
        check_same(again.arrays, message.arrays)
        assert again.infos == message.infos


def write_shards(images, folder):
    """Write one .tar and one .tgz of all images; return the bytes of each image by label."""
    paths = [path for name in CLASSES for path in sorted((images / name).iterdir())]
    for number, suffix in enumerate(("tar", "tgz")):
        with webdataset.TarWriter(str(folder / f"train-{number}.{suffix}")) as tar:
            for path in paths[number::2]:
                label = CLASSES.index(path.parent.name)
                tar.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": label})
    return paths


@pytest.mark.parametrize("urls", ["s0", "s{0..1}", "s{0..2}"])
def test_shards_send_every_sample_once(start, images, tmp_path, urls):
    paths = write_shards(images, tmp_path)
    flags = ["-b", 5, "--size", 48, "--epochs", 1, "--no-augment"]
    shards = [arg for name in ("train-0.tar", "train-1.tgz") for arg in ("-u", name)]
    server = start("serve-imagenet-shards", *shards, *flags, f"zrpush+ipc://{urls}")
    expected = Counter(
        (CLASSES.index(path.parent.name), pixels_of(path).tobytes()) for path in paths
    )
    came = Counter()
    with tensorcom.Connection(f"zrpull+ipc://{tmp_path}/{urls}", timeout_s=60) as connection:
        for xs, ys in connection:
            came.update((int(y), x.tobytes()) for x, y in zip(xs, ys, strict=True))
    assert came == expected
    assert server.wait(timeout=60) == 0


def pixels_of(path):
    return center_crop(decode_image(path.read_bytes()), 48, resize=round(48 * 256 / 224))


def test_original_flow_publisher_and_subscriber(start, images, tmp_path):
    """`serve-imagenet-dir`, then `for xs, ys in tensorcom.Connection(...)`, as ever."""
    start("serve-imagenet-dir", "-d", images, "-b", 4, "zpub+ipc://stream")
    labels = ImageFolder(images).labels
    with tensorcom.Connection(f"zsub+ipc://{tmp_path}/stream", epoch=20) as training:
        assert len(training) == 20
        count = 0
        for xs, ys in training:
            assert (xs.shape, xs.dtype) == ((4, 224, 224, 3), np.uint8)
            assert (ys.shape, ys.dtype) == ((4,), np.int32)
            assert set(ys.tolist()) <= set(labels.tolist())
            assert xs.flags.writeable
            count += 1
    assert count == 20


def test_two_readers_share_a_pushed_stream(start, images, tmp_path):
    server = start(
        "serve-imagenet-dir", "-d", images, "-b", 2, "--size", 32, "--epochs", 1,
        "--no-augment", "--wait-for-peers", 2, "zrpush+ipc://shared",
    )  # fmt: skip
    script = (
        "import sys, tensorcom\n"
        "with tensorcom.Connection(sys.argv[1], timeout_s=60) as connection:\n"
        "    print(sum(len(ys) for xs, ys in connection))\n"
    )
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", script, "zrpull+ipc://shared"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ.copy(),
        )
        for _ in range(2)
    ]
    counts = [int(each.communicate(timeout=60)[0]) for each in readers]
    assert sum(counts) == TOTAL
    assert min(counts) > 0
    assert server.wait(timeout=60) == 0
