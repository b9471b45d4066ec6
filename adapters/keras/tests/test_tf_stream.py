"""stream_dataset: what it is, iterations, arguments, errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tf_stream_helpers import SPEC, Opener, batch, counting, numbers, opening, spec

from tensorcom import (
    Connection,
    Message,
    ReceiveTimeoutError,
    ZmqUrlError,
)
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_keras.tf_stream import stream_dataset


@pytest.fixture
def opened() -> Iterator[Opener]:
    with opening() as open_one:
        yield open_one


# -- what it is ----------------------------------------------------------------------------------


def test_the_spec_is_that_of_the_first_message_which_comes_first(opened: Opener) -> None:
    with LoopbackServer([batch(n) for n in range(5)]) as server:
        dataset = opened(server.url)
        assert isinstance(dataset, tf.data.Dataset)
        assert dataset.element_spec == tuple(SPEC)
        assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
        assert numbers(dataset) == list(range(5))


def test_with_a_spec_nothing_opens_before_it_is_iterated(opened: Opener, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    dataset = opened(f"zpull+ipc://{path}", spec=SPEC, length=3)
    assert dataset.element_spec == tuple(SPEC)
    assert dataset.cardinality() == 3
    assert not path.exists()
    with Connection(f"zpush+ipc://{path}") as sender:
        batches = iter(dataset)
        sending = threading.Thread(target=sender.serve, args=([batch(n) for n in range(3)],))
        sending.start()
        assert numbers(batches) == [0, 1, 2]
        assert path.exists()
        sending.join()


@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_servers_that_bind(opened: Opener, scheme: str) -> None:
    with LoopbackServer([batch(n) for n in range(9)], scheme=scheme) as server:
        assert numbers(opened(server.url)) == list(range(9))


def test_several_servers(opened: Opener) -> None:
    with LoopbackServer([batch(0)]) as one, LoopbackServer([batch(1)]) as other:
        assert sorted(numbers(opened([one.url, other.url]))) == [0, 1]


DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "?", "c8", "c16"]
EXTENDED = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("shape", [(3, 4), (300, 40, 7), (1,), (0, 5), (2, 3, 4, 5)])
def test_every_dtype_arrives_bit_by_bit(opened: Opener, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    sent = [rng.integers(0, 2, shape).astype(dtype) for dtype in [*DTYPES, *EXTENDED]]
    with LoopbackServer([sent]) as server:
        (received,) = list(opened(server.url))
    assert [tensor.dtype for tensor in received] == [tf.as_dtype(a.dtype) for a in sent]
    for tensor, array in zip(received, sent, strict=True):
        assert tensor.shape == shape
        assert tensor.numpy().tobytes() == array.tobytes()


def test_byte_strings_and_scalars(opened: Opener) -> None:
    names = np.array([b"a cat", b"", b"two\0dogs"])
    with LoopbackServer([[names, np.array(7, "i4")]]) as server:
        dataset = opened(server.url)
        assert dataset.element_spec == tuple(spec(((None,), tf.string), ((), tf.int32)))
        ((found, number),) = list(dataset)
    assert found.numpy().tolist() == names.tolist()
    assert number == 7


# -- iterations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 5])
def test_each_iteration_goes_on_where_the_last_one_stopped(opened: Opener, length: int) -> None:
    with LoopbackServer(counting()) as server:
        dataset = opened(server.url, length=length)
        assert dataset.cardinality() == length
        found = [numbers(dataset) for _ in range(3)]
    assert [len(part) for part in found] == [length] * 3
    assert sum(found, []) == list(range(3 * length))


def test_length_zero_is_no_batch(opened: Opener) -> None:
    with LoopbackServer(counting()) as server:
        assert numbers(opened(server.url, length=0)) == []


def test_a_break_loses_nothing(opened: Opener) -> None:
    with LoopbackServer(counting()) as server:
        dataset = opened(server.url, length=100)
        found = []
        for stop in (1, 2, 3):
            batches = iter(dataset)
            found += numbers(next(batches) for _ in range(stop))
            del batches
        found += numbers(dataset.take(4))
    assert found == list(range(10))


def test_the_end_of_the_stream_is_the_end_also_if_it_came_behind_the_last_batch(
    opened: Opener,
) -> None:
    with LoopbackServer([batch(n) for n in range(4)]) as server:
        dataset = opened(server.url)
        assert numbers(dataset.take(4)) == [0, 1, 2, 3]
        assert numbers(dataset) == []


def test_repeat_goes_on_with_the_stream(opened: Opener) -> None:
    with LoopbackServer(counting()) as server:
        assert numbers(opened(server.url, length=2).repeat(3)) == list(range(6))


def test_iterators_in_use_at_once_share_the_stream_and_its_end(opened: Opener) -> None:
    with LoopbackServer([batch(n) for n in range(20)]) as server:
        dataset = opened(server.url)
        one, other = iter(dataset), iter(dataset)
        found = numbers(next(batches) for _ in range(3) for batches in (one, other))
        found += numbers(one) + numbers(other)
    assert found == list(range(20))


def test_a_stream_that_ends_before_its_length_is_an_error(opened: Opener) -> None:
    with LoopbackServer([batch(0), batch(1)]) as server:
        batches = iter(opened(server.url, length=9))
        assert numbers([next(batches), next(batches)]) == [0, 1]
        with pytest.raises(tf.errors.OpError, match="stream ended after 2 of 9 batches") as caught:
            next(batches)
        assert server.url in str(caught.value)


def ten_images(first: int = 0) -> list[Any]:
    """Return 10 images in batches of 4."""
    return [batch(first, 4), batch(first + 1, 4), batch(first + 2, 2)]


def test_a_partial_batch_does_not_retrace_a_function_of_the_data_set(opened: Opener) -> None:
    traces = []

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        traces.append(images.shape)
        return tf.reduce_sum(tf.cast(images, tf.int32)) + tf.reduce_sum(labels)

    @tf.function
    def epoch(dataset: Any) -> Any:
        count = tf.constant(0)
        for images, labels in dataset:
            count += tf.shape(images)[0]
            step(images, labels)
        return count

    with LoopbackServer(ten_images() * 3) as server:
        dataset = opened(server.url, length=3)
        assert [int(epoch(dataset)), int(epoch(dataset))] == [10, 10]
        assert len(traces) == 1
        traces.clear()
        for images, labels in dataset:
            step(images, labels)
    assert len(traces) <= 2


def small_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss)
    return model


def two_classes() -> Iterator[list[Any]]:
    rng = np.random.default_rng(0)
    for number in range(10_000):
        labels = rng.integers(0, 2, 2 if number % 10 == 9 else 8).astype("i4")
        images = rng.integers(0, 100, (len(labels), 4, 3, 2)) + 100 * labels[:, None, None, None]
        yield [images.astype("u1"), labels]


def test_fit_learns_from_it_and_traces_no_more_than_twice(opened: Opener) -> None:
    model = small_model()
    traces = []
    train_step = model.train_step

    def counted(data: Any) -> Any:
        traces.append(data[0].shape)
        return train_step(data)

    model.train_step = counted
    with LoopbackServer(two_classes()) as server:
        dataset = opened(server.url, length=10)
        history = model.fit(dataset, epochs=3, verbose=0, shuffle=False, validation_data=dataset)
    losses = history.history["loss"]
    assert losses[2] < losses[1] < losses[0]
    assert history.history["val_loss"][2] < losses[0]
    assert len(traces) <= 2


# -- arguments -----------------------------------------------------------------------------------


def test_transforms_come_first_and_then_the_layout(opened: Opener) -> None:
    with LoopbackServer([batch(3)]) as server:
        dataset = opened(
            server.url,
            batch_transforms=[lambda images: images.astype("f4") / 2, None],
            layout=("NHWC", "NCHW"),
        )
        assert dataset.element_spec[0] == tf.TensorSpec((None, 2, 4, 3), tf.float32)
        ((images, labels),) = list(dataset)
    assert (images.numpy() == 1.5).all()
    assert labels.numpy().tolist() == [3] * 4


def test_further_options_are_the_connections(opened: Opener) -> None:
    batches = [Message(batch(n), ["image", "label" if n % 2 else "other"]) for n in range(6)]
    with LoopbackServer(batches, scheme="zpub") as server:
        dataset = opened(server.url, infos=["image", "label"], on_bad_message="skip", hwm=9)
        assert numbers(dataset) == [1, 3, 5]


def test_a_rank_reads_its_part_of_what_is_published(opened: Opener) -> None:
    with LoopbackServer([batch(n) for n in range(6)], scheme="zpub") as server:
        assert numbers(opened(server.url, shard=(1, 3))) == [1, 4]
    with LoopbackServer([batch(0)]) as one, LoopbackServer([batch(1)]) as other:
        urls = [url.replace("zrpull", "zsub") for url in (one.url, other.url)]
        with pytest.raises(ReceiveTimeoutError) as caught:
            opened(urls, shard=(1, 2), timeout_s=0.1)
    assert caught.value.urls == (urls[1],)


URL = "zrpull://127.0.0.1:9"


@pytest.mark.parametrize(
    ("urls", "arguments", "error", "text"),
    [
        ("zpush://127.0.0.1:9", {}, ZmqUrlError, "sends; a data set receives"),
        ("http://x", {}, ZmqUrlError, "scheme 'http'"),
        ([URL, "zsub://127.0.0.1:9"], {}, ZmqUrlError, "one kind"),
        (URL, {"length": -1}, ValueError, "length=-1, expected at least 0"),
        (URL, {"prefetch": 0}, ValueError, "prefetch=0, expected at least 1"),
        (URL, {"prefetch_bytes": 0}, ValueError, "prefetch_bytes=0, expected at least 1"),
        (URL, {"on_bad_message": "drop"}, ValueError, "on_bad_message='drop'"),
        (URL, {"layout": "NHWC"}, ValueError, "layout='NHWC'"),
        (URL, {"colour": 1}, TypeError, "colour"),
        (URL, {"shard": (2, 2)}, ValueError, "shard=(2, 2)"),
        (URL, {"spec": [np.uint8]}, TypeError, "expected a tf.TensorSpec"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_arguments_are_errors_at_once(
    urls: Any, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        stream_dataset(urls, **{"spec": SPEC, **arguments})
