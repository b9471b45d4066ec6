"""One record: its bytes, and its images from any prefix."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcom.errors import PcrError, PcrFormatError
from tensorcom.pcr import record
from tensorcom.pcr.layout import MAX_PART_BYTES
from tensorcom.pcr.record import EOI, RecordPrefix, encode_record, join_scans, part_lengths
from tensorcom.pcr.wire import decode_metadata, group_spans

IMAGES = [[b"a1", b"a22", b""], [b"b" * 200, b"", b"b3"], [b"c1", b"c2\xff\xd9", b""]]
LABELS = [2, 0, -1]


def whole(encoded):
    return b"".join(encoded.pieces)


def prefix_of(encoded, groups, data=None, **options):
    ends = np.cumsum(encoded.parts)[: groups + 1]
    data = whole(encoded) if data is None else data
    return RecordPrefix(memoryview(data)[: ends[-1]], ends, path="x.pcr", **options)


def refusal(encoded, groups, data=None, **options):
    with pytest.raises(PcrFormatError) as caught:
        prefix_of(encoded, groups, data, **options)
    assert caught.value.path == "x.pcr"
    return caught.value


def test_parts_and_checksums_are_those_of_the_bytes():
    encoded = encode_record(IMAGES, LABELS)
    data, ends = whole(encoded), np.cumsum(encoded.parts)
    assert ends[-1] == len(data)
    assert (encoded.parts.dtype, encoded.crc32.dtype) == (np.int64, np.uint32)
    parts = [data[start:stop] for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
    assert encoded.crc32.tolist() == [zlib.crc32(part) for part in parts]
    assert decode_metadata(parts[0]).labels.tolist() == LABELS
    assert decode_metadata(parts[0]).groups == 3
    for group, part in enumerate(parts[1:]):
        starts, sizes = group_spans(memoryview(part), 3)
        spans = zip(starts.tolist(), sizes.tolist(), strict=True)
        assert [part[a : a + n] for a, n in spans] == [image[group] for image in IMAGES]
    assert encoded.sizes.tolist() == [[2, 3, 0], [200, 0, 2], [2, 4, 0]]
    assert (encoded.sizes.dtype, encoded.labels.dtype) == (np.int32, np.int32)


def test_images_are_not_copied_into_a_record():
    image = b"x" * 1000
    assert any(piece is image for piece in encode_record([[image]], [0]).pieces)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_a_prefix_gives_every_image(groups, known):
    encoded = encode_record(IMAGES, LABELS)
    options = {"sizes": encoded.sizes, "labels": encoded.labels} if known else {}
    prefix = prefix_of(encoded, groups, **options)
    assert (len(prefix), prefix.scan_groups) == (3, groups)
    assert prefix.labels.tolist() == LABELS
    assert prefix.sizes.tolist() == encoded.sizes[:, :groups].tolist()
    for i, image in enumerate(IMAGES):
        assert prefix.jpeg(i) == join_scans(image[:groups])


def test_a_jpeg_ends_in_eoi_once():
    assert join_scans([b"a", b"b"]) == b"ab" + EOI
    assert join_scans([b"a", b"b" + EOI, b""]) == b"ab" + EOI
    assert join_scans([b"a", b""]) == b"a" + EOI
    assert join_scans([memoryview(b"a" + EOI)]) == b"a" + EOI
    assert join_scans([]) == EOI


@settings(max_examples=60)
@given(st.data())
def test_any_record_comes_back(data):
    count, groups = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    part = st.binary(max_size=200)
    images = data.draw(
        st.lists(st.lists(part, min_size=groups, max_size=groups), min_size=count, max_size=count)
    )
    encoded = encode_record(images, list(range(count)))
    for sizes in (None, encoded.sizes):
        prefix = prefix_of(encoded, groups, sizes=sizes)
        assert [prefix.jpeg(i) for i in range(count)] == [join_scans(image) for image in images]


def test_a_record_may_have_fewer_groups_than_its_set():
    encoded = encode_record(IMAGES, LABELS)
    ends = np.append(np.cumsum(encoded.parts), 2 * [np.sum(encoded.parts)])
    prefix = RecordPrefix(memoryview(whole(encoded)), ends, path="x.pcr")
    assert (prefix.scan_groups, len(prefix.scans(0))) == (5, 5)
    assert prefix.sizes[:, 3:].tolist() == [[0, 0]] * 3
    assert [prefix.jpeg(i) for i in range(3)] == [join_scans(image) for image in IMAGES]
    ends[-1] += 4
    longer = memoryview(whole(encoded) + b"\x0a\x02ab")
    with pytest.raises(PcrFormatError, match="metadata says 3 scan groups, but the index has 5"):
        RecordPrefix(longer, ends, path="x.pcr")


# -- raw groups -------------------------------------------------------------------------------


def raw_record(images):
    head = b"".join(b"\x08" + bytes([label]) for label in range(len(images)))
    groups = [b"".join(image[g] for image in images) for g in range(len(images[0]))]
    parts = [head + b"\x10" + bytes([len(groups)]) + b"\x18\x02", *groups]
    return b"".join(parts), np.cumsum([len(part) for part in parts])


def test_raw_groups_need_sizes():
    data, ends = raw_record(IMAGES)
    sizes = np.array([[len(part) for part in image] for image in IMAGES])
    prefix = RecordPrefix(memoryview(data), ends, path="x.pcr", sizes=sizes)
    assert [prefix.jpeg(i) for i in range(3)] == [join_scans(image) for image in IMAGES]
    for wrong in (
        sizes + [0, 1, 0],
        sizes * [1, -1, 1],
        sizes + [[0, 300, 0], [0, -300, 0], [0] * 3],
    ):
        with pytest.raises(PcrFormatError, match="scan group of 7 bytes, but its image sizes make"):
            RecordPrefix(memoryview(data), ends, path="x.pcr", sizes=wrong)
    with pytest.raises(PcrFormatError, match="needs the image sizes, which only PCR.db has"):
        RecordPrefix(memoryview(data), ends, path="x.pcr")


# -- faults -----------------------------------------------------------------------------------


def test_a_record_that_disagrees_is_refused():
    encoded = encode_record(IMAGES, LABELS)
    head = int(encoded.parts[0])
    other = encoded.labels + np.int32(1)
    error = refusal(encoded, 1, labels=other)
    assert "labels of the record's 3 images are not those of the table of samples" in error.reason
    assert "sizes of 2" in refusal(encoded, 1, sizes=encoded.sizes[:2]).reason
    assert "sizes of 3" in refusal(encoded, 2, sizes=encoded.sizes[:, :1]).reason
    wrong = bytearray(whole(encoded))
    wrong[head + 1] = 3  # the first image is one byte longer
    assert refusal(encoded, 1, wrong).offset is not None
    error = refusal(encoded, 1, wrong, sizes=encoded.sizes)
    assert (error.offset, error.image) == (head, 0)


def test_offsets_of_faults_are_those_of_the_file():
    encoded = encode_record(IMAGES, LABELS)
    start = int(encoded.parts[:2].sum())
    wrong = bytearray(whole(encoded))
    wrong[start] = 0x12
    for sizes in (None, encoded.sizes):
        assert refusal(encoded, 2, wrong, sizes=sizes).offset == start
        assert prefix_of(encoded, 1, wrong, sizes=sizes)  # not looked at


def test_parts_over_2_gib_are_refused_before_they_are_made(monkeypatch):
    sizes = np.full((3, 2), [10, 2**30], np.int64)
    with pytest.raises(PcrError, match="scan group 2 of 3 images has 3221225490 bytes") as caught:
        part_lengths(sizes)
    assert "put fewer images into a record" in caught.value.reason
    limit = np.array([[MAX_PART_BYTES - 6]], np.int64)
    assert part_lengths(limit).tolist() == [MAX_PART_BYTES]
    with pytest.raises(PcrError):
        part_lengths(limit + 1)
    monkeypatch.setattr(record, "MAX_PART_BYTES", 100)
    with pytest.raises(PcrError, match="scan group 1 of 3 images"):
        encode_record(IMAGES, LABELS)
