"""Record files in a TensorFlow graph: a prefix of a file read, and its images joined.

Owns the operations between a file and JPEG strings; what a record is called, where its parts end
and which samples of it are wanted comes from outside. Stock operations only, no Python in the
graph.

Source: docs/formats/pcr.md, "Record files".
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf
from google.protobuf import descriptor_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

EOI = b"\xff\xd9"
_FIELD = descriptor_pb2.FieldDescriptorProto


class RecordPlace(NamedTuple):
    """A record file, and where its parts end.

    Attributes:
        path: string, the file.
        ends: int64 (1 + G,), offset at which the metadata and each group end.
        groups: int64, scan groups that the record has.
        samples: int64, images in it.
    """

    path: Any
    ends: Any
    groups: Any
    samples: Any


def attempt(function: Callable[[], Any], fallback: Any) -> tuple[Any, Any]:
    """Run a function in the graph, and take `fallback` if one of its operations fails.

    TensorFlow logs as a warning what failed.

    Args:
        function: returns a structure of tensors.
        fallback: a structure of the same types; shapes may differ where they are unknown.

    Returns:
        bool (), whether it succeeded, and the structure.
    """
    tried = tf.data.Dataset.from_tensors(0).map(lambda _: (True, function()))
    instead = tf.data.Dataset.from_tensors((False, fallback))
    either = tried.ignore_errors(log_warning=True).concatenate(instead).take(1)
    ok, value = either.get_single_element()
    return ok, value


def fail_unless(condition: Any, text: list[Any], value: Any) -> Any:
    """Return `value`; fail with a text, joined of strings (), unless a condition holds."""
    with tf.control_dependencies([tf.debugging.Assert(condition, [tf.strings.join(text)])]):
        return tf.nest.map_structure(tf.identity, value)


def check_groups(scan_groups: Any, groups: int) -> Any:
    """Return how many groups to read, int64; an error if the set has not so many."""
    scan_groups = tf.cast(scan_groups, tf.int64)
    fits = (scan_groups >= 1) & (scan_groups <= groups)
    found = tf.strings.as_string(scan_groups)
    return fail_unless(fits, ["scan_groups=", found, f", expected 1 to {groups}"], scan_groups)


def read_prefix(place: RecordPlace, scan_groups: Any) -> Any:
    """Read a record up to the end of a group, by one request of just these bytes.

    An error that names the file if it cannot be read.

    Args:
        place: the record.
        scan_groups: int64, groups to read.

    Returns:
        string (), the bytes; an error if the file is not of the size that the index says.
    """
    size = place.ends[scan_groups]
    # The footer makes the file's size part of the check; the buffer makes it one read. No function
    # is around the data set, so that TensorFlow sees, when it shards files, that this reads one.
    records = tf.data.FixedLengthRecordDataset(
        place.path,
        record_bytes=size,
        header_bytes=0,
        footer_bytes=place.ends[-1] - size,
        buffer_size=size,
    )
    nothing = tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))
    found = records.batch(2).concatenate(nothing).take(1)
    prefixes = found.get_single_element()
    return tf.cond(
        tf.size(prefixes) == 1, lambda: tf.reshape(prefixes, []), lambda: _explain_size(place)
    )


def _explain_size(place: RecordPlace) -> Any:
    """Fail with an error that says what the size of a file is, and should be."""
    found = tf.strings.length(tf.io.read_file(place.path), unit="BYTE")  # or its own error
    sizes = [tf.strings.as_string(found), tf.strings.as_string(place.ends[-1])]
    text = [place.path, " has ", sizes[0], " bytes, expected the ", sizes[1], " of the index"]
    return fail_unless(tf.constant(False), text, tf.constant(b""))  # noqa: FBT003 - a tensor


def parse_images(data: Any, place: RecordPlace, scan_groups: Any) -> tuple[Any, Any]:
    """Join the images of a record of version 1.

    Args:
        data: string, the file's bytes up to the end of a group.
        place: the record.
        scan_groups: int64, groups that they hold.

    Returns:
        JPEG files, string (N,), and labels, int32 (N,).
    """
    labels, not_images = _parse_head(data, place)
    # Messages one after the other are one message: groups follow as one list of images. To begin at
    # the metadata saves a copy; its labels are passed over there, or come as one string if packed.
    parts = _strings_in(data)[1][not_images:]
    groups = tf.minimum(scan_groups, place.groups)
    grid = tf.reshape(parts, tf.stack([groups, place.samples]))
    return join_scans(grid, _most_groups(place)), labels


def parse_raw_images(
    data: Any, place: RecordPlace, scan_groups: Any, sizes: Any
) -> tuple[Any, Any]:
    """Join the images of a record of version 2, which does not frame them.

    Args:
        data: string, the file's bytes up to the end of a group.
        place: the record.
        scan_groups: int64, groups that they hold.
        sizes: int64 (N, G), bytes of each image in each group.

    Returns:
        As `parse_images`.
    """
    labels, _ = _parse_head(data, place)
    groups = tf.minimum(scan_groups, place.groups)
    sizes = tf.transpose(sizes[:, :groups])
    ends = place.ends[: groups + 1]
    agree = tf.reduce_all(tf.reduce_sum(sizes, axis=1) == ends[1:] - ends[:-1])
    starts = tf.cumsum(sizes, axis=1, exclusive=True) + ends[:-1, tf.newaxis]
    spans = tf.stack([tf.reshape(starts, [-1]), tf.reshape(sizes, [-1])], axis=1)
    spans = fail_unless(agree, ["image sizes are not those of the groups"], spans)
    # One cut at a time: with many, `substr` copies the whole record for each.
    parts = tf.map_fn(
        lambda span: tf.strings.substr(data, span[0], span[1]),
        spans,
        fn_output_signature=tf.TensorSpec([], tf.string),
    )
    grid = tf.reshape(parts, tf.stack([groups, place.samples]))
    return join_scans(grid, _most_groups(place)), labels


def join_scans(scans: Any, most: int) -> Any:
    """Join scans to JPEG files, which end in FF D9 once.

    Args:
        scans: string (k, N), k from 1 to `most`.
        most: the largest k that there can be.

    Returns:
        string (N,).
    """
    count = tf.shape(scans)[0]
    lengths = tf.strings.length(scans)
    tails = tf.strings.substr(scans, -tf.minimum(lengths, 2), tf.fill(tf.shape(scans), 2))
    last = count - 1 - tf.argmax(lengths[::-1] > 0, output_type=tf.int32)
    images = tf.range(tf.shape(scans)[1])
    tail = tf.gather_nd(tails, tf.stack([last, images], axis=1))
    end = tf.where(tail == EOI, b"", EOI)

    def join(rows: int) -> Any:
        return tf.strings.join([*(scans[row] for row in range(rows)), end])

    # Rows are parts of the same memory, so that only `join` copies: hence a branch for each count.
    return tf.switch_case(count - 1, [partial(join, rows) for rows in range(1, most + 1)])


def _most_groups(place: RecordPlace) -> int:
    return int(place.ends.shape[0]) - 1


def _parse_head(data: Any, place: RecordPlace) -> tuple[Any, Any]:
    """Return the labels, int32 (N,), and how many strings `_strings_in` finds in the metadata."""
    head = tf.strings.substr(data, tf.constant(0, tf.int64), place.ends[0])
    _, (labels,) = tf.io.decode_proto(head, "pcr.Metadata", ["labels"], [tf.int32], _descriptor())
    return tf.reshape(labels, place.samples[tf.newaxis]), _strings_in(head)[0]


def _strings_in(data: Any) -> tuple[Any, Any]:
    """Return how many strings scan groups hold, int32 (), and these: string (M,)."""
    sizes, (parts,) = tf.io.decode_proto(
        data, "pcr.ScanGroup", ["image_bytes"], [tf.string], _descriptor()
    )
    return sizes[0], parts


def _descriptor() -> bytes:
    """Return the messages as the reader wants them: both dialects, packed labels or not."""
    file = descriptor_pb2.FileDescriptorProto(name="pcr.proto", package="pcr", syntax="proto3")
    repeated, label_type, bytes_type = _FIELD.LABEL_REPEATED, _FIELD.TYPE_INT32, _FIELD.TYPE_BYTES
    metadata = file.message_type.add(name="Metadata")
    metadata.field.add(name="labels", number=1, type=label_type, label=repeated)
    group = file.message_type.add(name="ScanGroup")
    group.field.add(name="image_bytes", number=1, type=bytes_type, label=repeated)
    files: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return b"bytes://" + files
