"""`tensorcom serve pcr`: what it sends, how it ends, and what it says when it cannot."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from jpeg_helpers import saved
from pcr_helpers import GOLDEN_SETS, cut, flip, make_set
from PIL import Image

from tensorcom import Connection
from tensorcom.cli import serve_pcr
from tensorcom.errors import PcrFormatError, SourceError
from tensorcom.serving.batching import Recipe
from tensorcom.serving.records import pcr_batches

TOTAL = 14


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A set of gray images; the colour is the number of the image."""
    images = [saved(Image.new("RGB", (40, 32), (12 * i,) * 3)) for i in range(TOTAL)]
    labels = [i % 3 for i in range(TOTAL)]
    return make_set(tmp_path_factory.mktemp("set") / "set", images, labels=labels, per_record=4)


@pytest.fixture
def own(tmp_path):
    images = [saved(Image.new("RGB", (40, 32), (12 * i,) * 3)) for i in range(TOTAL)]
    return make_set(tmp_path / "own", images, labels=[0] * TOTAL, per_record=4)


@pytest.fixture
def serve(tmp_path):
    """Start the command as a subprocess; end it with the test."""
    started = []

    def start(*args):
        log = (tmp_path / f"log{len(started)}").open("w+")
        command = [sys.executable, "-m", "tensorcom.cli.main", "serve", "pcr", *map(str, args)]
        started.append((subprocess.Popen(command, stdout=log, stderr=log), log))
        return started[-1]

    yield start
    for process, log in started:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=60)
        log.close()


def text_of(log):
    log.flush()
    log.seek(0)
    return log.read()


def numbers_of(images):
    return [round(int(image.mean()) / 12) for image in images]


def reader(url, **options):
    return Connection(url, timeout_s=60, **options)


# -- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize("urls", ["s", "s{0..2}"])
def test_one_epoch_sends_every_sample_once(serve, made, tmp_path, urls):
    url = f"ipc://{tmp_path}/{urls}"
    process, log = serve(made.root, f"zrpush+{url}", "-b", 4, "--size", 16, "--epochs", 1, "-k", 2)
    with reader(f"zrpull+{url}") as rx:
        batches = list(rx)
    found = [(n, y) for xs, ys in batches for n, y in zip(numbers_of(xs), ys.tolist(), strict=True)]
    assert sorted(found) == [(i, i % 3) for i in range(TOTAL)]
    for xs, ys in batches:
        assert (xs.shape[1:], xs.dtype, ys.dtype) == ((16, 16, 3), np.uint8, np.int32)
    assert process.wait(timeout=60) == 0
    assert f"{TOTAL} samples" in text_of(log)


def test_messages_say_epoch_index_samples_and_scan_groups(serve, made, tmp_path):
    url = f"ipc://{tmp_path}/s"
    serve(
        made.root, "--scan-groups", 3, "-b", 8, "--size", 16, "--epochs", 2, "--no-shuffle",
        "--no-augment", f"zrpush+{url}",
    )  # fmt: skip
    with reader(f"zrpull+{url}") as rx:
        messages = [rx.recv_message() for _ in range(4)]
    metas = [m.meta for m in messages]
    assert [(m.epoch, m.index, m.samples, m.scan_groups) for m in metas] == [
        (0, 0, 8, 3),
        (0, 1, 6, 3),
        (1, 0, 8, 3),
        (1, 1, 6, 3),
    ]
    assert [n for m in messages for n in numbers_of(m.arrays[0])] == 2 * list(range(TOTAL))
    assert messages[0].infos == ["image", "cls"]


def test_parallel_senders_share_a_connecting_url(serve, made, tmp_path):
    url = f"ipc://{tmp_path}/p"
    with reader(f"zpull+{url}") as rx:
        process, _ = serve(made.root, f"zpush+{url}", "-P", 2, "--size", 16, "--epochs", 2)
        found = Counter(n for xs, _ in rx for n in numbers_of(xs))
        assert len(rx.stats.sources) == 2
    assert found == dict.fromkeys(range(TOTAL), 2)
    assert process.wait(timeout=60) == 0


def test_a_set_of_the_original_is_served(serve, tmp_path):
    url = f"ipc://{tmp_path}/s"
    serve(GOLDEN_SETS / "sqlite", "-k", 1, "-n", "--epochs", 1, f"zrpush+{url}")
    with reader(f"zrpull+{url}") as rx:
        ((xs, ys),) = list(rx)
    assert (xs.shape, xs.dtype) == ((12, 224, 224, 3), np.float32)
    assert sorted(ys.tolist()) == sorted(4 * [0, 1, 2])


def test_bad_images_are_skipped_and_told(serve, own, tmp_path):
    flip(own.file(1), 0)
    url = f"ipc://{tmp_path}/s"
    args = ["--size", 16, "--epochs", 1, f"zrpush+{url}"]
    process, log = serve(own.root, "--on-error", "skip", *args)
    with reader(f"zrpull+{url}") as rx:
        found = sorted(n for xs, _ in rx for n in numbers_of(xs))
    assert found == [*range(4), *range(8, TOTAL)]
    assert process.wait(timeout=60) == 0
    assert "skipped" in text_of(log)
    assert "PCR_1.pcr" in text_of(log)


@pytest.mark.parametrize("damage", [lambda path: flip(path, 0), cut, lambda path: path.unlink()])
def test_a_damaged_set_ends_the_command_without_restarts(serve, own, tmp_path, damage):
    damage(own.file(2))
    process, log = serve(own.root, "--size", 16, f"zrpush+ipc://{tmp_path}/s")
    assert process.wait(timeout=60) == 1
    text = text_of(log)
    assert "PCR_2.pcr" in text
    assert "Traceback" not in text
    assert "restart" not in text


def failure(capsys, *args):
    code = serve_pcr.main([str(arg) for arg in args])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return code, lines[0]


def test_what_is_wrong_is_said_before_anything_starts(capsys, made, tmp_path):
    assert failure(capsys, tmp_path)[0] == 1
    assert "holds no set of records" in failure(capsys, tmp_path)[1]
    assert failure(capsys, made.root, "-k", 11) == (
        2,
        "tensorcom serve pcr: error: scan_groups=11, expected 1 to 10",
    )
    assert failure(capsys, made.root, "zpull://127.0.0.1:0")[0] == 2
    assert failure(capsys)[0] == 2


# -- the source -------------------------------------------------------------------------------


def test_senders_have_parts_of_one_order(made):
    recipe = Recipe(batch_size=4, size=8, seed=3)
    found = []
    for index in range(3):
        messages = pcr_batches(made.root, recipe, epochs=1, index=index, count=3)
        found.append([n for m in messages for n in numbers_of(m.arrays[0])])
    assert sorted(map(len, found)) == [4, 5, 5]
    assert sorted(sum(found, [])) == list(range(TOTAL))


def test_epochs_differ_and_a_seed_repeats_them(made):
    def epochs(seed):
        recipe = Recipe(batch_size=TOTAL, size=8, seed=seed)
        return [numbers_of(m.arrays[0]) for m in pcr_batches(made.root, recipe, epochs=2)]

    first, second = epochs(1)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(TOTAL))
    assert epochs(1) == [first, second]
    assert epochs(2) != [first, second]


def test_an_endless_source_goes_on_and_closes(made):
    source = pcr_batches(made.root, Recipe(batch_size=5, size=8))
    metas = [next(source).meta for _ in range(7)]
    assert [m.epoch for m in metas] == [0, 0, 0, 1, 1, 1, 2]
    assert {m.scan_groups for m in metas} == {10}
    source.close()


def test_too_many_senders_and_empty_epochs_are_refused(own):
    with pytest.raises(SourceError, match="14 images are fewer than 15 senders; start fewer"):
        next(pcr_batches(own.root, Recipe(batch_size=2), count=15))
    for record in range(4):
        flip(own.file(record), 0)
    skipped = []
    recipe = Recipe(batch_size=4, size=8, on_error="skip", on_skip=skipped.append)
    with pytest.raises(SourceError, match="epoch 0 gives no batch of 4"):
        next(pcr_batches(own.root, recipe))
    assert len(skipped) == 4
    with pytest.raises(PcrFormatError, match="PCR_"):
        next(pcr_batches(own.root, Recipe(batch_size=4, size=8)))
