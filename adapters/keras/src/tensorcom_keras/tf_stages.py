"""The stages of `pcr_dataset`: from a piece of a record to JPEG files, and to a batch of pixels.

Owns what happens to what is damaged; reading, parsing and decoding are those of `tf_parse` and
`tf_views`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorcom_keras.tf_order import Piece, permutation, random_key
from tensorcom_keras.tf_parse import (
    attempt,
    check_groups,
    fail_unless,
    parse_images,
    parse_raw_images,
    read_prefix,
)
from tensorcom_keras.tf_views import decode_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorcom_keras.tf_set import RecordSet

_MORE = "`tensorcom pcr verify` tells more"


@dataclass(frozen=True)
class RecordReader:
    """Reads the samples of a piece.

    Attributes:
        records: the set.
        groups: returns how many groups to read, int64 ().
        seed: of the order.
        shuffle: permute the samples of each record.
        skips: leave a damaged record out, and print a line about it.

    """

    records: RecordSet
    groups: Callable[[], Any]
    seed: int
    shuffle: bool
    skips: bool

    def read(self, piece: Piece) -> tuple[Any, ...]:
        """Read the samples of a piece.

        Returns:
            For each sample: its JPEG file, string, empty if its record is skipped; label, int32;
            numbers of the record and of the image in it, int64; the number drawn for the iteration,
            int64.
        """
        record, start, stop, draw = piece
        jpegs, labels = self._read(record)
        if self.shuffle:
            images = permutation(tf.size(jpegs), self.seed, draw, record)[start:stop]
            jpegs, labels = tf.gather(jpegs, images), tf.gather(labels, images)
        else:
            images = tf.range(start, stop)
            jpegs, labels = jpegs[start:stop], labels[start:stop]  # no copy
        shape = tf.shape(images)
        return jpegs, labels, tf.fill(shape, record), images, tf.fill(shape, draw)

    def _read(self, record: Any) -> tuple[Any, Any]:
        place = self.records.place(record)
        groups = check_groups(self.groups(), self.records.groups)

        def parse(data: Any) -> tuple[Any, Any]:
            if self.records.raw_sizes is None:
                jpegs, labels = parse_images(data, place, groups)
            else:
                sizes = self.records.image_sizes(record)
                jpegs, labels = parse_raw_images(data, place, groups, sizes)
            agree = tf.reduce_all(labels == self.records.labels_of(record))
            jpegs, labels = fail_unless(agree, ["labels are others"], (jpegs, labels))
            return jpegs, labels

        shape = place.samples[tf.newaxis]
        nothing = tf.fill(shape, b""), tf.zeros(shape, tf.int32)

        if self.skips:
            is_whole, found = attempt(lambda: parse(read_prefix(place, groups)), nothing)
            jpegs, labels = tell_unless(is_whole, [place.path, ": record skipped; ", _MORE], found)
        else:
            data = read_prefix(place, groups)
            is_whole, found = attempt(lambda: parse(data), nothing)
            reason = ": record is damaged: framing, images or labels are not those of the index; "
            jpegs, labels = fail_unless(is_whole, [place.path, reason, _MORE], found)
        return jpegs, labels


@dataclass(frozen=True)
class BatchDecoder:
    """Decodes the images of a batch at the same time.

    Attributes:
        records: the set.
        seed: of random views.
        size: side of the views in pixels.
        augment: which view, as for `decode_view`.
        skips: leave out an image that cannot be decoded, and print a line about it.
        num_parallel_calls: images at the same time.

    """

    records: RecordSet
    seed: int
    size: int
    augment: str | None
    skips: bool
    num_parallel_calls: int

    def decode(
        self, jpegs: Any, labels: Any, records: Any, images: Any, draws: Any
    ) -> tuple[Any, Any]:
        """Decode a batch of what `RecordReader.read` returns.

        Returns:
            uint8 (N, size, size, 3) and labels, int32 (N,).
        """
        if self.skips:
            read = jpegs != b""
            columns = jpegs, labels, records, images, draws
            jpegs, labels, records, images, draws = (tf.boolean_mask(c, read) for c in columns)
        count = tf.size(jpegs, tf.int64)
        good, pixels = self._decode(jpegs, records, images, draws, count)
        bad = tf.sets.difference(tf.range(count)[tf.newaxis], good[tf.newaxis]).values
        names = tf.strings.join(
            [
                self.records.paths(tf.gather(records, bad)),
                " image ",
                tf.strings.as_string(tf.gather(images, bad)),
            ]
        )
        named = tf.strings.reduce_join(names, separator=", ")
        complete = tf.size(bad) == 0
        if self.skips:
            text = [named, ": cannot be decoded, skipped; ", _MORE]
            pixels, labels = tell_unless(complete, text, (pixels, tf.gather(labels, good)))
            return pixels, labels
        text = [named, ": cannot be decoded; on_error='skip' leaves it out, and ", _MORE]
        pixels = fail_unless(complete, text, pixels)
        return tf.ensure_shape(pixels, [jpegs.shape[0], *pixels.shape[1:]]), labels

    def _decode(
        self, jpegs: Any, records: Any, images: Any, draws: Any, count: Any
    ) -> tuple[Any, Any]:
        """Return the numbers of what could be decoded, int64 (M,), and its pixels."""
        samples = self.records.firsts(records) + images

        def decode(number: Any, jpeg: Any, sample: Any, draw: Any) -> tuple[Any, Any]:
            key = random_key(self.seed, draw, sample)
            return number, decode_view(jpeg, key, size=self.size, augment=self.augment)

        batch = tf.data.Dataset.from_tensor_slices((tf.range(count), jpegs, samples, draws))
        decoded = batch.map(decode, num_parallel_calls=self.num_parallel_calls)
        found = decoded.ignore_errors(log_warning=True).batch(tf.maximum(count, 1))
        pixels = tf.zeros([0, self.size, self.size, 3], tf.uint8)
        none = tf.data.Dataset.from_tensors((tf.zeros([0], tf.int64), pixels))
        result: tuple[Any, Any] = found.concatenate(none).take(1).get_single_element()
        return result


def drop_places(jpegs: Any, labels: Any, *_: Any) -> tuple[Any, Any]:
    """Return JPEG files and labels only."""
    return jpegs, labels


def drop_damaged(jpegs: Any, labels: Any, *_: Any) -> tuple[Any, Any]:
    """Leave out the samples of records that were skipped."""
    read = jpegs != b""
    return tf.boolean_mask(jpegs, read), tf.boolean_mask(labels, read)


def tell_unless(condition: Any, text: list[Any], value: Any) -> Any:
    """Return `value`; print a text to stderr unless a condition holds."""

    def tell() -> Any:
        with tf.control_dependencies(
            [tf.print(tf.strings.join(["tensorcom: ", *text]), output_stream=sys.stderr)]
        ):
            return tf.nest.map_structure(tf.identity, value)

    return tf.cond(condition, lambda: value, tell)
