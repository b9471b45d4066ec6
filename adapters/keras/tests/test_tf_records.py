"""pcr_dataset: samples, order, shares of ranks, fidelity and checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from pcr_set_helpers import check_pixels, labels_of, noise_jpeg, write_set

from tensorcom.errors import PcrIndexError, SourceError
from tensorcom.pcr import PcrReader, PcrSource
from tensorcom.pcr.order import Split
from tensorcom.pcr.wire import encode_index
from tensorcom_keras import pcr_dataset
from tensorcom_keras.tf_order import Part

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "pcr"
SIZES = [5, 4, 6, 1, 7]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set"), SIZES)


def opened(root, **options):
    return pcr_dataset(root, **{"batch_size": 4, "size": 8, **options})


def taken(dataset):
    return [tuple(value.numpy() for value in batch) for batch in dataset]


def of_reader(root, scan_groups):
    """Return all JPEG files and labels, as PcrReader gives them."""
    with PcrReader(root) as reader:
        found = [
            reader.read_record(record, scan_groups=scan_groups)
            for record in range(len(reader.records))
        ]
    jpegs = [jpeg for part, _ in found for jpeg in part]
    return jpegs, np.concatenate([labels for _, labels in found]).tolist()


# -- samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["protobuf", "protobuf_raw", "sqlite"])
def test_bytes_of_golden_sets_at_every_fidelity(kind) -> None:
    groups = tf.Variable(1, dtype=tf.int64)
    dataset = opened(GOLDEN / kind, scan_groups=groups, decode=False, shuffle=False)
    for count in range(1, 11):
        groups.assign(count)
        found = taken(dataset)
        jpegs, labels = of_reader(GOLDEN / kind, count)
        assert [jpeg for part, _ in found for jpeg in part.tolist()] == jpegs
        assert labels_of(found) == labels


def test_bytes_of_a_set_of_this_version(tmp_path) -> None:
    from pcr_helpers import make_set

    make_set(tmp_path / "set")
    with PcrReader(tmp_path / "set") as reader:
        counts = range(1, reader.scan_groups + 1)
    for count in counts:
        found = taken(opened(tmp_path / "set", scan_groups=count, decode=False, shuffle=False))
        jpegs, labels = of_reader(tmp_path / "set", count)
        assert [jpeg for part, _ in found for jpeg in part.tolist()] == jpegs
        assert labels_of(found) == labels


def test_labels_that_are_packed(tmp_path) -> None:
    """As writers of proto3 do it: the metadata then holds a string that is no image."""
    root = write_set(tmp_path / "set", SIZES)
    with PcrReader(root) as reader:
        names, parts = list(reader.table.names), reader.table.parts.tolist()
        starts = reader.starts.tolist()
    for number, name in enumerate(names):
        labels = bytes(range(starts[number], starts[number + 1]))
        metadata = bytes([0x0A, len(labels)]) + labels + bytes([0x10, 10, 0x18, 1])
        images = (root / name).read_bytes()[parts[number][0] :]
        (root / name).write_bytes(metadata + images)
        parts[number][0] = len(metadata)
    (root / "PCR_index.pb").write_bytes(encode_index(names, parts))
    groups = tf.Variable(1, dtype=tf.int64)
    dataset = opened(root, scan_groups=groups, decode=False, shuffle=False)
    for count in range(1, 11):
        groups.assign(count)
        found = taken(dataset)
        jpegs, labels = of_reader(root, count)
        assert [jpeg for part, _ in found for jpeg in part.tolist()] == jpegs
        assert labels_of(found) == labels == list(range(TOTAL))


def test_every_fidelity_shows_the_sample_that_its_label_says(root) -> None:
    for count in range(1, 11):
        found = taken(opened(root, scan_groups=count))
        assert sorted(labels_of(found)) == list(range(TOTAL))
        for images, labels in found:
            assert (images.dtype, images.shape[1:]) == (np.uint8, (8, 8, 3))
            check_pixels(images, labels)


@pytest.mark.parametrize("augment", ["eval", None])
def test_fixed_views_are_those_of_core(tmp_path, augment) -> None:
    """C12: in full, decoders agree to the last bit; resizing is rounded otherwise."""
    root = write_set(tmp_path / "set", [6], make=noise_jpeg)
    found = taken(opened(root, size=24, batch_size=6, augment=augment, shuffle=False))
    with PcrSource(root, size=24, batch_size=6, augment=augment, shuffle=False) as source:
        expected = list(source)
    difference = np.abs(found[0][0].astype(int) - expected[0][0])
    assert difference.max() <= 1
    assert expected[0][0].std() > 20


def test_random_views_are_random_and_those_of_the_seed(tmp_path) -> None:
    root = write_set(tmp_path / "set", [6], make=noise_jpeg)

    def views(**options):
        dataset = opened(root, batch_size=6, size=24, **options)
        return [images[np.argsort(labels)] for images, labels in (*taken(dataset), *taken(dataset))]

    first, second = views(seed=1)
    assert (first != second).any(axis=(1, 2, 3)).all()
    for again, expected in zip(views(seed=1), (first, second), strict=True):
        np.testing.assert_array_equal(again, expected)
    assert (views(seed=2)[0] != first).any()


def test_what_it_is_is_known_beforehand(root) -> None:
    dataset = opened(root, drop_last=True)
    assert int(dataset.cardinality()) == 5
    images, labels = dataset.element_spec
    assert (images.shape.as_list(), images.dtype) == ([4, 8, 8, 3], tf.uint8)
    assert (labels.shape.as_list(), labels.dtype) == ([4], tf.int32)
    dataset = opened(root, decode=False)
    assert int(dataset.cardinality()) == len(taken(dataset)) == 6
    jpegs, labels = dataset.element_spec
    assert (jpegs.shape.as_list(), jpegs.dtype) == ([None], tf.string)
    assert opened(root).element_spec[0].shape.as_list() == [None, 8, 8, 3]


def test_a_partial_last_batch_needs_no_other_trace(root) -> None:
    """C08."""
    traces = []

    @tf.function
    def step(images, labels):
        traces.append(images.shape)
        return tf.reduce_sum(images[..., 0, 0, 0])

    sizes = []
    for _ in range(2):
        for images, labels in opened(root):
            step(images, labels)
            sizes.append(len(labels))
    assert sizes == [4, 4, 4, 4, 4, 3] * 2
    assert len(traces) <= 2


# -- order and shares ----------------------------------------------------------------------------


def test_order_of_the_set_without_shuffle(root) -> None:
    for _ in range(2):
        assert labels_of(taken(opened(root, shuffle=False))) == list(range(TOTAL))


@pytest.mark.parametrize("buffer", [0, 6, 1000])
def test_each_epoch_has_an_order_of_its_own_that_the_seed_gives(root, buffer) -> None:
    datasets = [opened(root, seed=seed, buffer=buffer) for seed in (1, 1, 2)]
    orders = [[labels_of(taken(dataset)) for _ in range(3)] for dataset in datasets]
    assert orders[0] == orders[1]
    different = {tuple(order) for orders_of_seed in orders for order in orders_of_seed}
    assert len(different) == 6
    assert all(sorted(order) == list(range(TOTAL)) for order in different)


def moves_of_the_buffer(root, epochs, **options):
    """Return where each sample of an epoch was before the shuffle buffer, for some epochs."""
    options = {"decode": False, "batch_size": TOTAL, **options}
    without, through = (opened(root, buffer=buffer, **options) for buffer in (0, 1000))
    found = []
    for _ in range(epochs):
        before = labels_of(taken(without))
        found.append(tuple(before.index(label) for label in labels_of(taken(through))))
    return found


def test_the_buffer_moves_samples_otherwise_in_each_epoch_and_for_each_seed(root) -> None:
    moves = [moves_of_the_buffer(root, 2, seed=seed) for seed in (1, 1, 2)]
    assert moves[0] == moves[1]
    assert len({*moves[0], *moves[2], tuple(range(TOTAL))}) == 5


def test_the_buffer_of_the_service_moves_samples_otherwise_for_each_seed(root) -> None:
    moves = [moves_of_the_buffer(root, 1, seed=seed, service=True) for seed in (1, 1, 2)]
    assert moves[0] == moves[1]
    assert len({*moves[0], *moves[2], tuple(range(TOTAL))}) == 3


@pytest.fixture
def set_seed():
    """Set the seed of all of TensorFlow; what it was cannot be asked, so that one stays set."""
    yield tf.random.set_seed
    tf.random.set_seed(1)


def test_seeds_may_be_large(root) -> None:
    assert sorted(labels_of(taken(opened(root, seed=2**64 + 1)))) == list(range(TOTAL))


def test_the_seed_of_tensorflow_changes_nothing(root, set_seed) -> None:
    """Ranks that set seeds of their own share one order; 0 is what many set."""
    found = []
    for seed in (1, 0, 2):
        set_seed(seed)
        dataset = opened(root)
        found.append([taken(dataset) for _ in range(2)])
    for epochs in found[1:]:
        for epoch, expected in zip(epochs, found[0], strict=True):
            assert labels_of(epoch) == labels_of(expected)
            np.testing.assert_array_equal(epoch[0][0], expected[0][0])


@pytest.mark.parametrize("end", ["wrap", "pad", "drop", "uneven"])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_ranks_share_each_epoch(root, end, shuffle, ranks) -> None:
    """C01, C02, C04."""
    datasets = [
        opened(root, shard=(rank, ranks), end=end, shuffle=shuffle) for rank in range(ranks)
    ]
    for _ in range(2):
        found = [taken(dataset) for dataset in datasets]
        assert [len(part) for part in found] == [int(d.cardinality()) for d in datasets]
        counts = [len(labels_of(part)) for part in found]
        samples = [label for part in found for label in labels_of(part)]
        if end == "uneven":
            assert max(counts) - min(counts) <= 1
            assert sorted(samples) == list(range(TOTAL))
        else:
            assert len(set(counts)) == 1
        if end == "drop":
            assert len(samples) == len(set(samples)) == TOTAL // ranks * ranks
        else:
            assert set(samples) == set(range(TOTAL))
            assert len(samples) - TOTAL < ranks


@pytest.mark.parametrize("end", ["wrap", "pad", "drop", "uneven"])
@pytest.mark.parametrize("ranks", [1, 2, 5, 23, 30])
def test_places_of_ranks_are_those_of_core(end, ranks) -> None:
    split = Split(ranks, 1, 1, end, drop_last=False, buffer=0)
    for rank in range(ranks):
        part = Part(TOTAL, rank, ranks, end)
        start, stop = split.rank_span(TOTAL, rank)
        places = range(start, stop)
        inside = [place % TOTAL if end != "pad" else min(place, TOTAL - 1) for place in places]
        assert [place for span in part.spans() for place in range(*span)] == inside
        assert len(part) == len(inside)


def test_more_ranks_than_samples(tmp_path) -> None:
    """C02."""
    root = write_set(tmp_path / "set", [1, 2])
    found = [labels_of(taken(opened(root, shard=(rank, 5)))) for rank in range(5)]
    assert [len(part) for part in found] == [1] * 5
    assert {label for part in found for label in part} == {0, 1, 2}
    with pytest.raises(SourceError, match="3 samples are fewer than 5 ranks, with end='drop'"):
        opened(root, shard=(0, 5), end="drop")


def test_batches_may_overtake_but_none_is_lost(root) -> None:
    found = taken(opened(root, deterministic=False, num_parallel_reads=3, num_parallel_calls=4))
    assert sorted(labels_of(found)) == list(range(TOTAL))
    for images, labels in found:
        check_pixels(images, labels)


# -- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"buffer": 0}, {"shuffle": False}, {"decode": False}], ids=str
)
@pytest.mark.parametrize("batches", [0, 3, 8])
def test_a_checkpoint_gives_the_rest_exactly(root, tmp_path, symbolic, options, batches) -> None:
    def build():
        choice = tf.data.Options()
        choice.experimental_symbolic_checkpoint = symbolic
        return opened(root, seed=5, **options).repeat(2).with_options(choice)

    iterator = iter(build())
    for _ in range(batches):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "checkpoint"))
    rest = taken(iterator)
    again = iter(build())
    tf.train.Checkpoint(iterator=again).read(path)
    found = taken(again)
    assert len(found) == len(rest) == 12 - batches
    for batch, expected in zip(found, rest, strict=True):
        np.testing.assert_array_equal(batch[0], expected[0])
        np.testing.assert_array_equal(batch[1], expected[1])


def test_a_symbolic_checkpoint_is_small(root, tmp_path) -> None:
    choice = tf.data.Options()
    choice.experimental_symbolic_checkpoint = True
    dataset = opened(root, buffer=0, size=200).with_options(choice)
    iterator = iter(dataset)
    next(iterator)
    tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "checkpoint"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000


# -- where sets are ------------------------------------------------------------------------------


def test_urls_go_through_gfile(root) -> None:
    for path in root.iterdir():
        tf.io.gfile.makedirs("ram://sets/one")
        with tf.io.gfile.GFile(f"ram://sets/one/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    found = taken(opened("ram://sets/one/", scan_groups=2, shuffle=False))
    assert labels_of(found) == list(range(TOTAL))
    assert labels_of(taken(opened(f"file://{root}", shuffle=False))) == list(range(TOTAL))
    with pytest.raises(PcrIndexError, match="ram://sets/two: holds no set of records"):
        opened("ram://sets/two")


def test_a_relative_root_may_be_left(root, monkeypatch) -> None:
    monkeypatch.chdir(root.parent)
    dataset = opened(root.name, shuffle=False)
    monkeypatch.chdir("/")
    assert labels_of(taken(dataset)) == list(range(TOTAL))


def test_names_that_are_no_text(tmp_path) -> None:
    root = write_set(tmp_path / os.fsdecode(b"set\xff"), [3])
    control = tmp_path / os.fsdecode(b"control\xff")
    control.write_text("2")
    assert labels_of(taken(opened(root, shuffle=False, scan_groups=control))) == [0, 1, 2]
