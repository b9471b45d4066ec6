"""The wire form: against the protobuf library, and every fault with its place."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tensorcom.errors import PcrFormatError
from tensorcom.pcr import wire


def _messages():
    """Make the messages of docs/formats/pcr.md by the protobuf library."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="pcr.proto", package="pcr", syntax="proto2")
    described = {
        "MetadataRecord": [
            ("labels", 1, field.TYPE_INT32, field.LABEL_REPEATED, False),
            ("progressive_levels", 2, field.TYPE_INT32, field.LABEL_OPTIONAL, None),
            ("version", 3, field.TYPE_INT32, field.LABEL_OPTIONAL, None),
        ],
        "PackedRecord": [
            ("labels", 1, field.TYPE_INT32, field.LABEL_REPEATED, True),
            ("progressive_levels", 2, field.TYPE_INT32, field.LABEL_OPTIONAL, None),
            ("version", 3, field.TYPE_INT32, field.LABEL_OPTIONAL, None),
            ("text", 15, field.TYPE_STRING, field.LABEL_OPTIONAL, None),
            ("number", 16, field.TYPE_FIXED64, field.LABEL_OPTIONAL, None),
            ("real", 2000, field.TYPE_FLOAT, field.LABEL_OPTIONAL, None),
        ],
        "ScanGroup": [("image_bytes", 1, field.TYPE_BYTES, field.LABEL_REPEATED, None)],
        "Entry": [
            ("name", 1, field.TYPE_STRING, field.LABEL_OPTIONAL, None),
            ("offsets", 2, field.TYPE_INT64, field.LABEL_REPEATED, True),
        ],
        "DatasetOffsetsIndex": [("records", 1, ".pcr.Entry", field.LABEL_REPEATED, None)],
    }
    for name, fields in described.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, label, packed in fields:
            added = message.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = field.TYPE_MESSAGE, kind
            else:
                added.type = kind
            if packed is not None:
                added.options.packed = packed
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"pcr.{name}"))
        for name in described
    }


PEER = _messages()
labels_of = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 1000), max_size=30)
images_of = st.lists(st.binary(max_size=300), min_size=1, max_size=20)
lengths_of = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300), min_size=1, max_size=12)
entries_of = st.lists(st.tuples(st.text(max_size=12), lengths_of), max_size=8)


def refusal(call, *args, **options):
    with pytest.raises(PcrFormatError) as caught:
        call(*args, **options)
    return caught.value


# -- against the protobuf library -------------------------------------------------------------


@given(labels_of, st.integers(1, wire.MAX_GROUPS))
def test_metadata_is_what_protobuf_writes_and_reads(labels, groups):
    peer = PEER["MetadataRecord"](labels=labels, progressive_levels=groups, version=1)
    ours = wire.encode_metadata(labels, groups)
    assert ours == peer.SerializeToString()
    found = wire.decode_metadata(ours)
    assert (found.labels.tolist(), found.groups, found.version) == (labels, groups, 1)
    assert found.labels.dtype == np.int32


@given(labels_of, st.integers(1, wire.MAX_GROUPS), st.sampled_from([1, 2]), st.text(max_size=9))
def test_packed_labels_and_unknown_fields_are_read(labels, groups, version, text):
    peer = PEER["PackedRecord"](labels=labels, progressive_levels=groups, version=version)
    peer.text, peer.number, peer.real = text, 7, 0.5
    found = wire.decode_metadata(peer.SerializeToString())
    assert (found.labels.tolist(), found.groups) == (labels, groups)
    assert found.is_raw == (version == 2)


@given(images_of)
def test_a_group_is_what_protobuf_writes_and_reads(images):
    data = b"".join(wire.group_parts(images))
    assert data == PEER["ScanGroup"](image_bytes=images).SerializeToString()
    view = memoryview(data)
    starts, sizes = wire.group_spans(view, len(images))
    assert [view[a : a + n] for a, n in zip(starts, sizes, strict=True)] == images
    known = np.array([len(image) for image in images], np.int64)
    assert wire.group_starts(view, known).tolist() == starts.tolist()


@given(entries_of)
def test_an_index_is_what_protobuf_writes_and_reads(entries):
    peer = PEER["DatasetOffsetsIndex"]()
    for name, lengths in entries:
        peer.records.add(name=name, offsets=lengths)
    data = wire.encode_index([n for n, _ in entries], [p for _, p in entries])
    assert data == peer.SerializeToString()
    unrepeated = [
        (name, tuple(lengths))
        for i, (name, lengths) in enumerate(entries)
        if not i or entries[i - 1] != (name, lengths)
    ]
    assert wire.decode_index(data) == unrepeated


def _peer_or_none(kind, data):
    try:
        return PEER[kind].FromString(data)
    except DecodeError:
        return None


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda tail: b"\x10\x0a\x18\x01" + tail))
def test_any_bytes_are_refused_or_read_as_protobuf_reads_them(data):
    try:
        found = wire.decode_metadata(data)
    except PcrFormatError:
        return
    peer = _peer_or_none("MetadataRecord", data)
    assert peer is not None
    assert found.labels.tolist() == list(peer.labels)
    assert (found.groups, found.version) == (peer.progressive_levels, peer.version or 1)


@given(st.binary(max_size=40) | st.lists(st.binary(max_size=4)).map(
    lambda images: b"".join(wire.group_parts(images))
), st.integers(0, 5), st.binary(max_size=3))  # fmt: skip
def test_any_bytes_are_refused_or_framed_as_protobuf_frames_them(data, place, inserted):
    data = data[:place] + inserted + data[place:]
    peer = _peer_or_none("ScanGroup", data)
    count = 0 if peer is None else len(peer.image_bytes)
    try:
        starts, sizes = wire.group_spans(memoryview(data), count)
    except PcrFormatError:
        return
    assert peer is not None
    spans = zip(starts.tolist(), sizes.tolist(), strict=True)
    assert [data[a : a + n] for a, n in spans] == list(peer.image_bytes)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_indexed_as_protobuf_reads_them(data):
    try:
        found = wire.decode_index(b"\x0a" + bytes([len(data)]) + data)
    except PcrFormatError:
        return
    peer = PEER["Entry"]()
    try:
        peer.MergeFromString(data)
    except DecodeError:  # a name that is no UTF-8, as file systems have them
        assert not found[0][0].isascii()
        return
    assert [(n, [p - (p >> 63 << 64) for p in parts]) for n, parts in found] == [
        (peer.name, list(peer.offsets))
    ]


# -- varints ----------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1))
def test_varints_have_the_size_that_is_said(value):
    size = int(wire.varint_sizes(np.array([value], np.int64))[0])
    assert size == len(wire.encode_varint(value))


@pytest.mark.parametrize("power", range(7, 63, 7))
def test_sizes_of_varints_at_their_limits(power):
    values = np.array([2**power - 1, 2**power], np.int64)
    assert wire.varint_sizes(values).tolist() == [power // 7, power // 7 + 1]


# -- faults -----------------------------------------------------------------------------------


METADATA_FAULTS = {
    b"\x08": (1, "number is cut"),
    b"\x08\x80\x80": (1, "number is cut"),
    b"\x08" + 11 * b"\x80": (1, "number has more than 64 bits"),
    b"\x08" + 9 * b"\xff" + b"\x02": (1, "number has more than 64 bits"),
    b"\x0a\x02\x01\x80": (3, "number is cut"),
    b"\x0a\x05\x01": (0, "field 1 of 5 bytes exceeds the 1 bytes left"),
    b"\x0a" + 8 * b"\xff" + b"\x7f": (0, "field 1 of 9223372036854775807 bytes exceeds the 0"),
    b"\x08\x01\x0b": (2, "wire type 3 of field 1 is none that is used"),
    b"\x02\x00": (0, "field 0"),
    b"\x08\x01": (0, "metadata says None scan groups, expected 1 to 1024"),
    b"\x10\x00": (0, "metadata says 0 scan groups"),
    b"\x10\x80\x80\x80\x80\x08": (0, "metadata says 2147483648 scan groups, expected 1 to 1024"),
    b"\x10\x01\x18\x03": (0, "record version 3 is not known, expected 1 or 2"),
    b"\x10\x01\x08\x80\x80\x80\x80\x08": (0, "label 2147483648 is no 32-bit integer"),
}


@pytest.mark.parametrize("data", METADATA_FAULTS)
def test_metadata_faults_are_named_with_their_place(data):
    offset, text = METADATA_FAULTS[data]
    error = refusal(wire.decode_metadata, data, path="x.pcr")
    assert (error.path, error.offset) == ("x.pcr", offset)
    assert text in error.reason


def test_metadata_without_a_version_is_of_the_first():
    assert wire.decode_metadata(b"\x08\x05\x10\x0a").version == wire.VERSION_GROUPS


GROUP = b"".join(wire.group_parts([b"abc", b"", b"x" * 200]))
GROUP_FAULTS = {
    (GROUP, 2): (7, "scan group holds more than the 2 images of the record"),
    (GROUP, 4): (0, "scan group holds 3 images, but the record 4"),
    (GROUP[:-1], 3): (7, "field 1 of 200 bytes exceeds the 199 bytes left"),
    (GROUP + b"\x0a", 3): (len(GROUP) + 1, "number is cut"),
    (b"\x12\x00", 1): (0, "field 2 in a scan group, expected images only"),
    (b"\x08\x00", 1): (0, "field 1 in a scan group, expected images only"),
}


@pytest.mark.parametrize("case", GROUP_FAULTS)
def test_group_faults_are_named_with_their_place_in_the_file(case):
    offset, text = GROUP_FAULTS[case]
    error = refusal(wire.group_spans, memoryview(case[0]), case[1], path="x.pcr", base=1000)
    assert (error.path, error.offset) == ("x.pcr", 1000 + offset)
    assert text in error.reason


def test_framing_that_disagrees_with_known_sizes_names_the_image():
    sizes = np.array([3, 0, 200], np.int64)
    view = memoryview(GROUP)
    assert wire.group_starts(view, sizes).tolist() == [2, 7, 10]
    total = refusal(wire.group_starts, view, sizes + 1, path="x.pcr", base=50)
    assert total.offset == 50
    assert "scan group of 210 bytes, but its image sizes make 213" in total.reason
    for position, image in ((0, 0), (1, 0), (5, 1), (6, 1), (7, 2), (8, 2), (9, 2)):
        wrong = bytearray(GROUP)
        wrong[position] ^= 0x04
        error = refusal(wire.group_starts, memoryview(wrong), sizes, base=50)
        assert f"image {image} of the scan group is not framed as" in error.reason
        assert error.offset == 50 + (0, 5, 7)[image]
        assert error.image == image
    shifted = sizes + [1, -1, 0]
    assert (
        "image 0" in refusal(wire.group_starts, view, shifted).reason if shifted[1] >= 0 else True
    )


def test_sizes_of_no_image_fit_no_group():
    error = refusal(wire.group_starts, memoryview(b"\x0a\x00"), np.zeros(0, np.int64))
    assert "its image sizes make 0" in error.reason


INDEX_FAULTS = {
    b"\x08\x01": "field 1 in an index, expected records only",
    b"\x12\x00": "field 2 in an index, expected records only",
    b"\x0a\x00": "entry without a name or without lengths",
    b"\x0a\x03\x0a\x01a": "entry without a name or without lengths",
    b"\x0a\x03\x12\x01\x05": "entry without a name or without lengths",
    b"\x0a\x06\x0a\x01a\x12\x01\x80": "number is cut",
    b"\x0a\x7f\x0a": "field 1 of 127 bytes exceeds the 1 bytes left",
}


@pytest.mark.parametrize("data", INDEX_FAULTS)
def test_index_faults_are_named(data):
    error = refusal(wire.decode_index, data, path="PCR_index.pb")
    assert error.path == "PCR_index.pb"
    assert error.offset is not None
    assert INDEX_FAULTS[data] in error.reason


def test_offsets_of_faults_inside_an_entry_are_those_of_the_file():
    entry = b"\x0a\x01a\x12\x01\x05"
    data = 2 * (b"\x0a\x06" + entry) + b"\x0a\x08" + entry + b"\x0b\x00"
    assert refusal(wire.decode_index, data).offset == 16 + 2 + 6


def test_unpacked_lengths_are_read():
    assert wire.decode_index(b"\x0a\x07\x0a\x01a\x10\x05\x10\x06") == [("a", (5, 6))]


def test_names_that_are_no_utf8_survive():
    name = b"\xff\xfe.pcr".decode("utf-8", "surrogateescape")
    assert wire.decode_index(wire.encode_index([name], [[1, 2]])) == [(name, (1, 2))]
