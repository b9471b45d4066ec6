"""PcrReader: what it says of a set, what it reads, and by how many requests."""

from __future__ import annotations

import os
import pickle
import shutil
import threading

import numpy as np
import pytest
from jpeg_helpers import joined, picture, saved
from pcr_helpers import (
    CLASSES,
    GOLDEN_SETS,
    KINDS,
    copy_golden,
    cut,
    flip,
    make_set,
    small_jpegs,
    split,
)

from tensorcom.errors import PcrError, PcrFormatError, PcrIndexError, PcrReadError
from tensorcom.pcr import PcrReader
from tensorcom.pcr.manifest import INDEX_NAME, MANIFEST_NAME, SAMPLES_NAME
from tensorcom.pcr.reader import UNFINISHED_NAME
from tensorcom.pcr.record import encode_record
from tensorcom.pcr.scripts import FAST, STANDARD
from tensorcom.pcr.storage.base import PcrEndError
from tensorcom.pcr.verify import verify
from tensorcom.pcr.wire import encode_index


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A set that the tests only read."""
    return make_set(tmp_path_factory.mktemp("set") / "set")


@pytest.fixture
def own(tmp_path):
    """A set that a test may damage."""
    return make_set(tmp_path / "own")


class Watched:
    """A storage that notes what is asked of it."""

    def __init__(self, storage):
        self._storage = storage
        self.reads = []

    def read(self, name, start, size):
        self.reads.append((name, start, size))
        return self._storage.read(name, start, size)

    def __getattr__(self, name):
        return getattr(self._storage, name)


def watched(root):
    reader = PcrReader(root)
    reader._storage = Watched(reader._storage)
    return reader, reader._storage.reads


# -- what it says -----------------------------------------------------------------------------


def test_a_set_says_what_it_is(made):
    reader = PcrReader(made.root)
    assert len(reader) == len(made) == 8
    assert reader.class_names == CLASSES
    assert reader.scan_groups == 10
    assert reader.script is STANDARD
    assert reader.labels.tolist() == list(made.labels)
    assert reader.labels.dtype == np.int32
    assert reader.starts.tolist() == [0, 3, 6, 8]
    assert [reader.name(i) for i in range(8)] == list(made.names)
    assert reader.root == str(made.root)
    assert repr(reader) == f"PcrReader({str(made.root)!r})"
    assert reader.manifest.images == 8


def test_records_are_a_sequence(made):
    records = PcrReader(made.root).records
    assert len(records) == 3
    assert [(r.name, r.samples) for r in records] == [
        ("PCR_0.pcr", 3),
        ("PCR_1.pcr", 3),
        ("PCR_2.pcr", 2),
    ]
    assert records[-1].name == "PCR_2.pcr"
    assert [r.name for r in records[1:]] == ["PCR_1.pcr", "PCR_2.pcr"]
    with pytest.raises(IndexError):
        records[3]
    for record in records:
        assert record.parts.sum() == (made.root / record.name).stat().st_size


def test_group_bytes_are_what_reading_the_set_takes(made):
    reader, reads = watched(made.root)
    for groups in (1, 4, 10):
        reads.clear()
        for record in range(3):
            reader.read_record(record, scan_groups=groups)
        assert sum(size for _, _, size in reads) == reader.group_bytes[groups - 1]
    assert reader.group_bytes[-1] == sum(f.stat().st_size for f in made.root.glob("*.pcr"))
    assert reader.group_bytes.tolist() == list(reader.manifest.group_bytes)


def test_a_sample_is_in_a_record(made):
    reader = PcrReader(made.root)
    assert [reader.record_of(i) for i in range(8)] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)
    ]  # fmt: skip
    for wrong in (-1, 8, 2**40):
        for call in (reader.record_of, reader.sample, reader.name):
            with pytest.raises(IndexError, match=f"sample {wrong} of a set of 8"):
                call(wrong)
    for call in (reader.read_record, reader.read_prefix, reader.image_sizes):
        with pytest.raises(IndexError, match="record 3 of a set of 3"):
            call(3)


def test_image_sizes(made):
    reader, reads = watched(made.root)
    for record in range(3):
        first, stop = made.starts[record : record + 2]
        expected = [[len(part) for part in made.groups[i]] for i in range(first, stop)]
        assert reader.image_sizes(record).tolist() == expected
        assert reader.image_sizes(record, scan_groups=2).tolist() == [e[:2] for e in expected]
    assert reads == []


# -- what it reads ----------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [*range(1, 11), None])
def test_a_record_is_read_by_one_request(made, groups):
    reader, reads = watched(made.root)
    for record in range(3):
        reads.clear()
        images, labels = reader.read_record(record, scan_groups=groups)
        assert images == made.record(record, groups)
        assert labels.tolist() == list(made.labels[made.starts[record] : made.starts[record + 1]])
        ends = np.cumsum(reader.records[record].parts)
        assert reads == [(f"PCR_{record}.pcr", 0, ends[groups or 10])]


@pytest.mark.parametrize("groups", [*range(1, 11), None])
def test_a_sample_is_read_by_its_own_bytes(made, groups):
    reader, reads = watched(made.root)
    for sample in range(8):
        reads.clear()
        assert reader.sample(sample, scan_groups=groups) == (
            made.jpeg(sample, groups),
            made.labels[sample],
        )
        assert len(reads) == (groups or 10)
        sizes = [len(part) for part in made.groups[sample][:groups]]
        assert sum(size for _, _, size in reads) <= sum(sizes) + 3 * len(sizes)


def test_groups_that_an_image_lacks_are_not_asked_for(tmp_path):
    gray = saved(picture("L"))
    made = make_set(tmp_path / "gray", [gray, saved(picture()), gray], labels=[0, 1, 2])
    reader, reads = watched(made.root)
    for groups in range(1, 11):
        images, _ = reader.read_record(0, scan_groups=groups)
        assert images == made.record(0, groups)
    reads.clear()
    assert reader.sample(2)[0] == made.jpeg(2)
    assert len(reads) == 6


def test_numbers_of_records_may_be_missing(tmp_path):
    made = make_set(tmp_path / "set", numbers=[2, 3, 70])
    reader = PcrReader(made.root)
    assert [r.name for r in reader.records] == ["PCR_2.pcr", "PCR_3.pcr", "PCR_70.pcr"]
    assert [reader.sample(i)[0] for i in range(8)] == [made.jpeg(i) for i in range(8)]


def test_another_script(tmp_path):
    made = make_set(tmp_path / "set", script=FAST)
    reader = PcrReader(made.root)
    assert reader.script is FAST
    assert reader.read_record(1, scan_groups=3)[0] == made.record(1, 3)
    assert split(made.jpeg(0), FAST) == made.groups[0]


def test_what_is_read_can_be_kept(made):
    reader = PcrReader(made.root)
    images, labels = reader.read_record(0)
    copies = [bytes(image) for image in images], labels.copy()
    reader.read_record(1)
    reader.close()
    assert (images, labels.tolist()) == (copies[0], copies[1].tolist())


@pytest.mark.parametrize("wrong", [0, 11, -1, True, "5"])
def test_scan_groups_that_are_not_there_are_refused(made, wrong):
    reader = PcrReader(made.root)
    for call in (reader.read_record, reader.sample, reader.image_sizes):
        with pytest.raises(ValueError, match="scan_groups="):
            call(0, scan_groups=wrong)


# -- sets of the original ---------------------------------------------------------------------


def test_records_of_a_set_of_the_original_may_have_fewer_groups(tmp_path):
    images = [split(jpeg)[: 6 if i < 2 else 10] for i, jpeg in enumerate(small_jpegs(4))]
    entries = []
    for number in range(2):
        record = encode_record(images[2 * number : 2 * number + 2], [0, 1])
        entries.append((f"PCR_{number}.pcr", record.parts.tolist()))
        (tmp_path / f"PCR_{number}.pcr").write_bytes(b"".join(record.pieces))
    (tmp_path / INDEX_NAME).write_bytes(encode_index(*zip(*entries, strict=True)))
    reader = PcrReader(tmp_path)
    assert reader.scan_groups == 10
    for groups in range(1, 11):
        expected = [joined(list(image), groups) for image in images]
        found = [reader.read_record(i, scan_groups=groups)[0] for i in range(2)]
        assert sum(found, []) == expected
        assert [reader.sample(i, scan_groups=groups)[0] for i in range(4)] == expected
    assert verify(tmp_path, decode=True).is_whole


@pytest.mark.parametrize("kind", KINDS)
def test_sets_of_the_original_say_what_they_can(kind):
    reader = PcrReader(GOLDEN_SETS / kind)
    count = 12 if kind == "sqlite" else 17  # the newer converter repeats images
    assert (len(reader), reader.scan_groups, len(reader.records)) == (count, 10, 3)
    assert (reader.class_names, reader.script, reader.manifest) == (None, None, None)
    assert reader.name(0) is None
    sizes = sum(f.stat().st_size for f in (GOLDEN_SETS / kind).glob("*.pcr"))
    assert reader.group_bytes[-1] == sizes


def test_samples_of_one_record_read_it_once():
    reader, reads = watched(GOLDEN_SETS / "protobuf")
    stop = int(reader.starts[1])
    reads.clear()
    for sample in range(stop):
        reader.sample(sample, scan_groups=3)
    assert len(reads) == 1
    reader.sample(0, scan_groups=4)
    assert len(reads) == 2


def test_heads_are_read_once_by_many_threads():
    reader, reads = watched(GOLDEN_SETS / "sqlite")
    threads = [threading.Thread(target=lambda: len(reader)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 3


# -- life -------------------------------------------------------------------------------------


def test_a_reader_pickles_small_and_opens_anew(made):
    with PcrReader(made.root, retries=2) as reader:
        data = pickle.dumps(reader)
    assert len(data) < 500
    assert pickle.loads(data).read_record(2)[0] == made.record(2)
    assert reader.read_record(2)[0] == made.record(2)  # closed, and opened again


def test_a_reader_works_in_a_forked_child(made):
    reader = PcrReader(made.root)
    reader.read_record(0)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if reader.read_record(1)[0] == made.record(1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_many_threads_read_one_reader(made):
    reader = PcrReader(made.root)
    wrong = []

    def read():
        for turn in range(60):
            record, groups = turn % 3, turn % 10 + 1
            if reader.read_record(record, scan_groups=groups)[0] != made.record(record, groups):
                wrong.append(turn)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_relative_roots_survive_a_change_of_directory(made, monkeypatch):
    monkeypatch.chdir(made.root.parent)
    reader = PcrReader("set")
    monkeypatch.chdir("/")
    assert reader.read_record(0)[0] == made.record(0)


# -- faults -----------------------------------------------------------------------------------


def test_what_is_no_set_is_refused(tmp_path, own):
    with pytest.raises(PcrIndexError, match="holds no set of records: none of PCR_manifest.json"):
        PcrReader(tmp_path)
    with pytest.raises(PcrIndexError):
        PcrReader(tmp_path / "absent")
    with pytest.raises(PcrIndexError):
        PcrReader(own.root / INDEX_NAME)


def test_an_unfinished_set_is_refused_and_says_how_to_go_on(own):
    (own.root / MANIFEST_NAME).unlink()
    (own.root / UNFINISHED_NAME).write_text("{}")
    with pytest.raises(PcrIndexError, match="unfinished: run the same conversion again") as caught:
        PcrReader(own.root)
    assert isinstance(caught.value, FileNotFoundError)
    (own.root / UNFINISHED_NAME).unlink()
    assert PcrReader(own.root).manifest is None  # as the original's readers see it


def test_a_file_that_is_missing_is_named(own):
    reader = PcrReader(own.root)
    own.file(1).unlink()
    with pytest.raises(PcrIndexError, match="PCR_1.pcr: no such file"):
        reader.read_record(1)
    assert reader.read_record(0)[0] == own.record(0)
    (own.root / SAMPLES_NAME).unlink()
    with pytest.raises(PcrIndexError, match="PCR_samples.ten: no such file"):
        PcrReader(own.root)


def test_a_manifest_that_contradicts_the_table_is_refused(own):
    own.rewrite_manifest(images=9)
    with pytest.raises(PcrFormatError, match=r"are \(9, 3, 10\), but in PCR_samples.ten \(8, 3"):
        PcrReader(own.root)


def test_a_manifest_with_a_bad_script_is_refused(own):
    own.rewrite_manifest(script={"name": "x", "scans": ["0: 0-0, 0, 0"]})
    with pytest.raises(PcrFormatError, match="PCR_manifest.json.*would lose data"):
        PcrReader(own.root)


def test_a_cut_record_gives_what_is_whole(own):
    cut(own.file(0))
    reader = PcrReader(own.root)
    with pytest.raises(PcrEndError, match="the file has only") as caught:
        reader.read_record(0)
    assert isinstance(caught.value, PcrReadError)
    assert caught.value.offset == own.file(0).stat().st_size
    assert reader.read_record(0, scan_groups=9)[0] == own.record(0, 9)
    with pytest.raises(PcrReadError):
        reader.sample(2)
    assert reader.sample(1)[0] == own.jpeg(1)


def test_labels_that_contradict_the_table_are_refused(own):
    flip(own.file(0), 1)
    with pytest.raises(PcrFormatError, match="PCR_0.pcr at byte 0: labels of the record's 3"):
        PcrReader(own.root).read_record(0)


def test_framing_is_checked_for_records_and_samples(own):
    reader = PcrReader(own.root)
    ends = np.cumsum(reader.records[1].parts)
    flip(own.file(1), int(ends[1]))  # the tag of the first image in group 2
    with pytest.raises(PcrFormatError, match="image 0 of the scan group is not framed") as caught:
        reader.read_record(1, scan_groups=2)
    assert caught.value.offset == ends[1]
    with pytest.raises(PcrFormatError, match=f"PCR_1.pcr at byte {ends[1]}: image is not framed"):
        reader.sample(3, scan_groups=2)
    assert reader.sample(4)[0] == own.jpeg(4)
    assert reader.read_record(1, scan_groups=1)[0] == own.record(1, 1)


@pytest.mark.parametrize("value", [-1, -(2**31), 2**31 - 1, 5])
def test_a_table_with_wrong_sizes_is_refused_where_it_is_used(own, value):
    sizes = own.table().sizes.copy()
    sizes[1, 2] = value
    own.rewrite_table(sizes=sizes)
    reader = PcrReader(own.root)
    for sample in (1, 2):
        with pytest.raises(PcrError):
            reader.sample(sample)
    with pytest.raises(PcrError):
        reader.read_record(0)
    assert reader.sample(0)[0] == own.jpeg(0)
    assert reader.sample(2, scan_groups=2)[0] == own.jpeg(2, 2)


def test_a_link_out_of_the_set_is_not_followed(own, tmp_path):
    shutil.move(own.file(0), tmp_path / "elsewhere")
    own.file(0).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PcrFormatError, match="is a link out of the set"):
        PcrReader(own.root).read_record(0)


def test_a_flipped_bit_in_a_scan_is_no_image(tmp_path) -> None:
    make_set(tmp_path / "set")
    reader = PcrReader(tmp_path / "set")
    record = tmp_path / "set" / reader.table.names[0]
    flip(record, int(reader.table.ends[0, 5]) - 3)  # the data of the last image's scan
    for groups in range(1, reader.scan_groups + 1):
        if groups < 5:
            assert len(reader.read_record(0, scan_groups=groups)[0]) == 3
            continue
        with pytest.raises(PcrFormatError, match="scan group 5 is damaged") as caught:
            reader.read_record(0, scan_groups=groups)
        assert caught.value.offset == int(reader.table.ends[0, 4])


def test_heads_that_cannot_be_read_are_told_or_raised(tmp_path) -> None:
    root = copy_golden("protobuf", tmp_path / "set")
    (root / "PCR_1.pcr").unlink()
    with pytest.raises(PcrIndexError, match=r"PCR_1\.pcr"):
        len(PcrReader(root))
    reader, errors = PcrReader(root), []
    reader.read_heads(on_error=errors.append)
    assert [type(error) for error in errors] == [PcrIndexError]
    assert reader.starts.tolist() == [0, 5, 5, 12]
    assert len(reader.labels) == 12


def test_sizes_of_records_that_do_not_frame_their_images(tmp_path, made) -> None:
    with PcrReader(made.root) as reader:
        assert reader.raw_sizes() is None
    root = copy_golden("protobuf_raw", tmp_path / "set")
    with PcrReader(root) as reader:
        sizes, starts = reader.raw_sizes(), reader.starts
        each = [reader.image_sizes(record) for record in range(len(reader.records))]
        np.testing.assert_array_equal(sizes, np.concatenate(each))
        damaged = reader.table.names[0]
    (root / damaged).write_bytes(b"")
    with PcrReader(root) as reader:
        reader.read_heads(on_error=lambda error: None)
        np.testing.assert_array_equal(reader.raw_sizes(), sizes[starts[1] :])
