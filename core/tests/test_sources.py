"""Data sources: each sample once over all senders, reproducible, errors that name the file."""

from __future__ import annotations

import io
import tarfile
import threading
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from tensorcom import ImageError, SourceError
from tensorcom.recording import RecordingWriter
from tensorcom.serving.batching import Recipe
from tensorcom.serving.sources import (
    folder_batches,
    repeat_one,
    replay_batches,
    shard_batches,
)


def jpeg(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), (value, value, value)).save(out, "JPEG", quality=95)
    return out.getvalue()


@pytest.fixture
def photos(tmp_path):
    """Three classes of five images; the gray value of each image is its number times 10."""
    for number in range(15):
        folder = tmp_path / "photos" / f"class{number // 5}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.jpg").write_bytes(jpeg(number * 10))
    return tmp_path / "photos"


@pytest.fixture
def shards(tmp_path):
    """Three shards of four samples each, one compressed; labels are the samples' numbers."""
    for shard, suffix in enumerate(["tar", "tgz", "tar"]):
        path = tmp_path / f"{shard}.{suffix}"
        with tarfile.open(path, "w:gz" if suffix == "tgz" else "w") as tar:
            for number in range(4 * shard, 4 * shard + 4):
                for key, data in [("jpg", jpeg(number * 10)), ("cls", b"%d" % number)]:
                    info = tarfile.TarInfo(f"{number:03}.{key}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return [str(tmp_path / name) for name in ("0.tar", "1.tgz", "2.tar")]


def recipe(**changes) -> Recipe:
    return Recipe(**{"batch_size": 4, "size": 16, **changes})


def grays(messages) -> list[int]:
    return [round(float(image.mean()) / 10) for m in messages for image in m.arrays[0]]


def test_batches_of_a_folder(photos) -> None:
    messages = list(folder_batches(photos, recipe(), shuffle=False, epochs=1))
    assert [m.arrays[0].shape for m in messages] == [(4, 16, 16, 3)] * 3 + [(3, 16, 16, 3)]
    assert messages[0].arrays[0].dtype == np.uint8
    labels = np.concatenate([m.arrays[1] for m in messages])
    assert labels.dtype == np.int32
    assert labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert grays(messages) == list(range(15))
    assert [m.meta.index for m in messages] == [0, 1, 2, 3]
    assert messages[0].infos == ("image", "cls")
    assert messages[0].meta.times["read"] <= messages[0].meta.times["decoded"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_senders_together_send_each_sample_once_an_epoch(photos, count) -> None:
    for epoch in range(2):
        found = Counter()
        for index in range(count):
            messages = folder_batches(photos, recipe(), epochs=2, index=index, count=count)
            found.update(grays(m for m in messages if m.meta.epoch == epoch))
        assert found == Counter(range(15))


def test_epochs_differ_and_one_seed_gives_one_order(photos) -> None:
    first, second = (
        [grays([m]) for m in folder_batches(photos, recipe(seed=3), epochs=2)] for _ in range(2)
    )
    assert first == second
    assert first[:4] != first[4:]
    assert first != [grays([m]) for m in folder_batches(photos, recipe(seed=4), epochs=2)]


def test_pixels_depend_on_neither_threads_nor_senders(photos) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    for path in photos.glob("*/*.jpg"):
        Image.fromarray(noise).save(path)

    def by_sample(threads: int, count: int) -> list[bytes]:
        found = {}
        for index in range(count):
            part = folder_batches(
                photos, recipe(threads=threads), shuffle=False, epochs=1, index=index, count=count
            )
            images = [image for m in part for image in m.arrays[0]]
            found.update(zip(range(index, 15, count), images, strict=True))
        return [found[number].tobytes() for number in range(15)]

    reference = by_sample(1, 1)
    assert len(set(reference)) > 10, "augmentation draws alike"
    assert by_sample(3, 1) == reference
    assert by_sample(2, 3) == reference


def test_without_augmentation_the_centre_is_sent(photos) -> None:
    a, b = (
        next(folder_batches(photos, recipe(augment=False), shuffle=False)).arrays[0]
        for _ in range(2)
    )
    np.testing.assert_array_equal(a, b)


def test_normalised_batches_are_float(photos) -> None:
    (images, _) = next(folder_batches(photos, recipe(normalize=True), shuffle=False)).arrays
    assert images.dtype == np.float32
    np.testing.assert_allclose(
        images[0, 0, 0], -np.array([0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225], rtol=1e-5
    )


def test_drop_last(photos) -> None:
    messages = list(folder_batches(photos, recipe(drop_last=True), epochs=1))
    assert [len(m.arrays[1]) for m in messages] == [4, 4, 4]


def test_an_endless_source_without_a_batch_is_an_error(photos) -> None:
    with pytest.raises(SourceError, match="epoch 0 gives no batch of 100"):
        next(folder_batches(photos, recipe(batch_size=100, drop_last=True)))
    for path in photos.rglob("*.jpg"):
        path.write_bytes(b"bad")
    with pytest.raises(SourceError, match="images are bad or too few"):
        next(folder_batches(photos, recipe(on_error="skip")))


def test_a_bad_image_is_named_or_skipped(photos) -> None:
    (photos / "class1" / "07.jpg").write_bytes(jpeg(70)[:-300])
    with pytest.raises(ImageError, match=r"class1/07\.jpg"):
        list(folder_batches(photos, recipe(), epochs=1))
    skipped = []
    skipping = recipe(on_error="skip", on_skip=skipped.append)
    messages = list(folder_batches(photos, skipping, shuffle=False, epochs=1))
    assert grays(messages) == [n for n in range(15) if n != 7]
    assert [error.path for error in skipped] == [str(photos / "class1" / "07.jpg")]


def test_more_senders_than_images_is_an_error(photos) -> None:
    with pytest.raises(SourceError, match="15 images are fewer than 16 senders"):
        next(folder_batches(photos, recipe(), index=0, count=16))


def test_a_train_folder_is_taken(photos, tmp_path) -> None:
    root = tmp_path / "imagenet"
    root.mkdir()
    photos.rename(root / "train")
    (root / "val").mkdir()
    assert grays(folder_batches(root, recipe(), shuffle=False, epochs=1)) == list(range(15))


def test_closing_a_source_ends_its_threads(photos) -> None:
    source = folder_batches(photos, recipe(threads=3))
    next(source)
    source.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("tensorcom-decode")]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("shuffle", [False, True])
def test_senders_together_send_all_of_the_shards(shards, count, shuffle) -> None:
    found = Counter()
    for index in range(count):
        messages = list(
            shard_batches(shards, recipe(), shuffle=shuffle, epochs=1, index=index, count=count)
        )
        labels = [int(label) for m in messages for label in m.arrays[1]]
        assert grays(messages) == labels
        found.update(labels)
    assert found == Counter(range(12))


def test_shards_keep_their_order_or_are_shuffled(shards) -> None:
    def labels(**arguments) -> list[int]:
        return [int(x) for m in shard_batches(shards, **arguments) for x in m.arrays[1]]

    assert labels(recipe=recipe(), epochs=1) == list(range(12))
    shuffled = labels(recipe=recipe(), epochs=2, shuffle=True)
    assert shuffled[:12] != list(range(12))
    assert shuffled[:12] != shuffled[12:]
    assert shuffled == labels(recipe=recipe(), epochs=2, shuffle=True)


def test_braces_expand(shards) -> None:
    pattern = shards[0].replace("0.tar", "{0,2}.tar")
    assert sum(len(m.arrays[1]) for m in shard_batches(pattern, recipe(), epochs=1)) == 8


def test_bad_shards_are_named(shards, tmp_path) -> None:
    with pytest.raises(SourceError, match=r"9\.tar: no such shard"):
        next(shard_batches(str(tmp_path / "9.tar"), recipe()))
    (tmp_path / "junk.tar").write_bytes(b"junk" * 500)
    with pytest.raises(SourceError, match=r"junk\.tar: cannot be read"):
        next(shard_batches(str(tmp_path / "junk.tar"), recipe()))
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("a.jpg")
        tar.addfile(info, io.BytesIO())
    with pytest.raises(SourceError, match=r"x\.tar:a: sample's cls is b'', expected a number"):
        next(shard_batches(str(tmp_path / "x.tar"), recipe()))


@pytest.mark.parametrize("label", [b"cat", b"-1", b"2147483648", b"9" * 5000])
def test_a_bad_label_is_named(tmp_path, label) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, data in (("a.jpg", jpeg(1)), ("a.cls", label)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with pytest.raises(SourceError, match=r"x\.tar:a: sample's cls is b.*up to 2147483647"):
        next(shard_batches(str(tmp_path / "x.tar"), recipe()))


def test_replay(photos, tmp_path) -> None:
    sent = list(folder_batches(photos, recipe(), epochs=1))
    with RecordingWriter(tmp_path / "a.ten") as writer:
        for message in sent:
            writer.write(message)
    found = list(replay_batches(tmp_path / "a.ten", epochs=2))
    assert [m.meta.epoch for m in found] == [0] * 4 + [1] * 4
    for a, b in zip(sent + sent, found, strict=True):
        np.testing.assert_array_equal(a.arrays[0], b.arrays[0])
        np.testing.assert_array_equal(a.arrays[1], b.arrays[1])


def test_replaying_nothing_is_an_error(tmp_path) -> None:
    with RecordingWriter(tmp_path / "a.ten"):
        pass
    with pytest.raises(SourceError, match="holds no messages"):
        list(replay_batches(tmp_path / "a.ten"))


def test_repeat_one_closes_its_source_and_repeats(photos) -> None:
    repeated = list(islice(repeat_one(folder_batches(photos, recipe(threads=2))), 5))
    assert all(m.arrays[0] is repeated[0].arrays[0] for m in repeated)
    assert not [t for t in threading.enumerate() if t.name.startswith("tensorcom-decode")]
    with pytest.raises(SourceError, match="no batch to repeat"):
        next(repeat_one(iter(())))
