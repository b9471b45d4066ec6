"""pcr_dataset: what goes wrong is an exception that names the file, or skipped and said so."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
import tensorflow as tf
from pcr_helpers import cut, flip, make_set
from pcr_set_helpers import check_pixels, labels_of, write_set

from tensorcom.errors import PcrError, PcrFormatError, PcrReadError, SourceError
from tensorcom.pcr import PcrReader
from tensorcom.pcr.wire import encode_index
from tensorcom_keras import FidelitySchedule, pcr_dataset

SIZES = [5, 4, 6]
TOTAL = sum(SIZES)
WRONG_SIZE = r"PCR_1\.pcr(\" has body length| has \d+ bytes, expected the \d+ of the index)"
LOST = set(range(5, 9))  # the samples of record 1


@pytest.fixture
def root(tmp_path):
    return write_set(tmp_path / "set", SIZES)


def opened(root, **options):
    return pcr_dataset(root, **{"batch_size": 4, "size": 8, "shuffle": False, **options})


def taken(dataset):
    return [tuple(value.numpy() for value in batch) for batch in dataset]


def remove(root) -> str:
    (root / "PCR_1.pcr").unlink()
    return r"PCR_1\.pcr; No such file"


def shorten(root) -> str:
    cut(root / "PCR_1.pcr")
    return WRONG_SIZE


def lengthen(root) -> str:
    path = root / "PCR_1.pcr"
    path.write_bytes(path.read_bytes() + b"x")
    return WRONG_SIZE


def double(root) -> str:
    path = root / "PCR_1.pcr"
    path.write_bytes(path.read_bytes() * 2)
    return WRONG_SIZE


def empty(root) -> str:
    (root / "PCR_1.pcr").write_bytes(b"")
    return WRONG_SIZE


def break_framing(root) -> str:
    with PcrReader(root) as reader:
        start = int(reader.table.ends[1, 0])
    flip(root / "PCR_1.pcr", start, 0x07)
    return r"PCR_1\.pcr: record is damaged: framing"


def break_a_length(root) -> str:
    with PcrReader(root) as reader:
        start = int(reader.table.ends[1, 0])
    flip(root / "PCR_1.pcr", start + 1, 0x01)
    return r"PCR_1\.pcr: record is damaged: framing"


def break_metadata(root) -> str:
    path = root / "PCR_1.pcr"
    path.write_bytes(b"\xff" * 4 + path.read_bytes()[4:])
    return r"PCR_1\.pcr: record is damaged: framing"


RECORD_DAMAGES = [
    remove,
    shorten,
    lengthen,
    double,
    empty,
    break_framing,
    break_a_length,
    break_metadata,
]


@pytest.mark.parametrize("damage", RECORD_DAMAGES)
@pytest.mark.parametrize("decode", [True, False])
def test_a_damaged_record(root, damage, decode) -> None:
    with PcrReader(root) as reader:
        assert len(reader) == TOTAL  # heads were whole when the set was opened
    raising, skipping = (
        opened(root, decode=decode, on_error=policy) for policy in ("raise", "skip")
    )
    text = damage(root)
    with pytest.raises(tf.errors.OpError, match=text):
        taken(raising)
    assert set(labels_of(taken(skipping))) == set(range(TOTAL)) - LOST


@pytest.mark.parametrize("damage", RECORD_DAMAGES)
def test_what_is_skipped_is_said(root, capfd, damage) -> None:
    dataset = opened(root, on_error="skip")
    damage(root)
    found = taken(dataset)
    assert labels_of(found) == sorted(set(range(TOTAL)) - LOST)
    for images, labels in found:
        check_pixels(images, labels)
    said = [line for line in capfd.readouterr().err.splitlines() if line[:11] == "tensorcom: "]
    more = "`tensorcom pcr verify` tells more"
    assert said == [f"tensorcom: {root}/PCR_1.pcr: record skipped; {more}"]


def break_image(root, image: int) -> None:
    """Damage an image of record 1 so that no decoder takes it; its framing stays."""
    path = root / "PCR_1.pcr"
    with PcrReader(root) as reader:
        jpegs, _ = reader.read_record(1, scan_groups=1)
    data = bytearray(path.read_bytes())
    start = data.index(jpegs[image][:-2])
    data[start : start + 2] = b"\0\0"
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [remove, empty, break_metadata])
def test_heads_that_cannot_be_read_when_a_set_is_opened(root, capfd, damage) -> None:
    damage(root)
    with pytest.raises(PcrError, match=r"PCR_1\.pcr"):
        opened(root)
    dataset = opened(root, on_error="skip", end="uneven")
    assert re.search(r"tensorcom: .*PCR_1\.pcr.*: record skipped", capfd.readouterr().err)
    assert labels_of(taken(dataset)) == sorted(set(range(TOTAL)) - LOST)


def test_a_damaged_image_is_named(root) -> None:
    break_image(root, 2)
    dataset = opened(root)
    iterator = iter(dataset)
    next(iterator)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        next(iterator)
    assert f"{root}/PCR_1.pcr image 2: cannot be decoded" in str(raised.value)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_damaged_image_is_skipped_and_said(root, capfd, shuffle) -> None:
    break_image(root, 0)
    break_image(root, 3)
    found = taken(opened(root, on_error="skip", shuffle=shuffle))
    assert sorted(labels_of(found)) == sorted(set(range(TOTAL)) - {5, 8})
    for images, labels in found:
        check_pixels(images, labels)
    said = capfd.readouterr().err
    assert sorted(re.findall(r"PCR_1\.pcr image \d", said)) == [
        "PCR_1.pcr image 0",
        "PCR_1.pcr image 3",
    ]


def test_a_batch_of_which_nothing_is_left_is_left_out(root) -> None:
    dataset = opened(root, on_error="skip", batch_size=1)
    remove(root)
    assert [len(labels) for _, labels in taken(dataset)] == [1] * (TOTAL - len(LOST))
    assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY


@pytest.mark.parametrize("change", [-1, 1, 1 << 31])
def test_an_index_that_disagrees_with_the_files(root, change) -> None:
    """X05."""
    with PcrReader(root) as reader:
        names, parts = list(reader.table.names), reader.table.parts.tolist()
    parts[1][3] += change
    (root / "PCR_index.pb").write_bytes(encode_index(names, parts))
    with pytest.raises((PcrError, tf.errors.OpError), match=r"PCR_1\.pcr"):
        taken(opened(root))


def test_an_index_of_other_counts_of_images(tmp_path) -> None:
    """X05: a table of samples of another set of the same size."""
    make_set(tmp_path / "set")
    data = bytearray((tmp_path / "set" / "PCR_samples.ten").read_bytes())
    (tmp_path / "set" / "PCR_samples.ten").write_bytes(data[: len(data) // 2])
    with pytest.raises(PcrFormatError):
        opened(tmp_path / "set")


def test_labels_that_disagree_with_the_table_of_samples(tmp_path) -> None:
    made = make_set(tmp_path / "set")
    flip(made.file(1), 3, 0x01)  # a label: each has a tag before it
    with PcrReader(made.root) as reader, pytest.raises(PcrFormatError, match="labels"):
        reader.read_record(1)
    with pytest.raises(tf.errors.OpError, match=f"{made.file(1)}: record is damaged: .* labels"):
        taken(opened(made.root))
    kept = set(range(len(made))) - set(range(made.starts[1], made.starts[2]))
    found = labels_of(taken(opened(made.root, on_error="skip")))
    assert found == [made.labels[sample] for sample in sorted(kept)]


def test_a_link_out_of_the_set(root, tmp_path) -> None:
    """X03."""
    (root / "PCR_1.pcr").rename(tmp_path / "elsewhere")
    (root / "PCR_1.pcr").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PcrError, match="PCR_1.pcr"):
        opened(root)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_record_that_is_no_file(tmp_path, policy) -> None:
    """X03: opening a pipe would wait for ever."""
    made = make_set(tmp_path / "set")
    made.file(1).unlink()
    os.mkfifo(made.file(1))
    with pytest.raises(PcrFormatError, match=f"{made.file(1)}: is no regular file"):
        opened(made.root, on_error=policy)


def test_a_record_damaged_while_it_is_read_is_no_hang(root) -> None:
    """Both stages run ahead; what they meet comes when its batch does."""
    dataset = opened(root, num_parallel_reads=3)
    iterator = iter(dataset)
    remove(root)
    with pytest.raises(tf.errors.NotFoundError):
        for _ in range(5):
            next(iterator)


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scan_groups": 0}, "scan_groups=0, expected 1 to 10"),
        ({"scan_groups": 11}, "scan_groups=11, expected 1 to 10"),
        ({"scan_groups": True}, "scan_groups=True, expected an integer"),
        ({"scan_groups": 1.0}, "scan_groups=1.0, expected an integer"),
        ({"scan_groups": "/nowhere/k"}, "/nowhere/k.*, expected a file that holds a number"),
        ({"batch_size": 0}, "batch_size=0, expected at least 1"),
        ({"size": 0}, "size=0"),
        ({"buffer": -1}, "buffer=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"num_parallel_reads": 0}, "num_parallel_reads=0"),
        ({"num_parallel_calls": 0}, "num_parallel_calls=0"),
        ({"augment": "test"}, "augment='test', expected 'train', 'eval' or None"),
        ({"end": "stop"}, "end='stop', expected one of wrap, pad, drop, uneven"),
        ({"on_error": "ignore"}, "on_error='ignore', expected 'raise' or 'skip'"),
        ({"shard": (2, 2)}, r"shard=\(2, 2\)"),
        ({"scan_groups": FidelitySchedule([11])}, "scan_groups=11 in epoch 0, expected 1 to 10"),
        ({"scan_groups": FidelitySchedule([1], target=object())}, "has a data set as its target"),
    ],
    ids=str,
)
def test_arguments_out_of_range(root, options, text) -> None:
    with pytest.raises(ValueError, match=text):
        opened(root, **options)


@pytest.mark.parametrize(
    "variable", [lambda: tf.Variable(1.0), lambda: tf.Variable([1]), lambda: tf.Variable(0)]
)
def test_variables_of_another_kind(root, variable) -> None:
    with pytest.raises(ValueError, match="scan_groups"):
        opened(root, scan_groups=variable())


def test_a_variable_that_goes_out_of_range(root) -> None:
    groups = tf.Variable(3, dtype=tf.int32)
    dataset = opened(root, scan_groups=groups)
    taken(dataset)
    for wrong in (0, 11, -5):
        groups.assign(wrong)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"scan_groups={wrong}, expected"):
            taken(dataset)


@pytest.mark.parametrize("text", ["", "x", "2.5", "2 x", "2 1 3", "9" * 30])
def test_a_file_that_holds_no_number(root, tmp_path, text) -> None:
    control = tmp_path / "control"
    control.write_text("3")
    dataset = opened(root, scan_groups=control)
    control.write_text(text)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{control} holds .*{text}"):
        taken(dataset)
    with pytest.raises(ValueError, match=f"{control} holds .*{text}"):
        opened(root, scan_groups=control)


def test_sets_without_samples_or_batches(tmp_path, root) -> None:
    with pytest.raises(SourceError, match="drop_last leaves no batch of 16 of a rank's 15"):
        opened(root, batch_size=16, drop_last=True)
    with pytest.raises((SourceError, PcrError)):
        opened(write_set(tmp_path / "empty", []))


def test_a_url_that_tensorflow_does_not_know() -> None:
    with pytest.raises(PcrReadError, match="https://localhost/set/.*https"):
        opened("https://localhost/set")


def test_images_are_told_apart(root) -> None:
    assert len(np.unique(labels_of(taken(opened(root))))) == TOTAL
