"""stream_dataset: what goes wrong, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_stream_helpers import SPEC, WAIT_S, Feed, Opener, batch, numbers, opening, spec

from tensorcom import MessageError, ReceiveTimeoutError, TransportError, tenbin
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_keras.tf_stream import stream_dataset


@pytest.fixture
def opened() -> Iterator[Opener]:
    with opening() as open_one:
        yield open_one


# TensorFlow puts the name of a function in front.
START = r"^(\{\{.*\}\} )?"


def test_no_server_at_all_is_a_timeout(opened: Opener) -> None:
    with LoopbackServer([]) as server:
        url = server.url
    with pytest.raises(ReceiveTimeoutError, match=r"no message in 0\.2 s .*is the server running"):
        stream_dataset(url, timeout_s=0.2)
    dataset = opened(url, spec=SPEC, timeout_s=0.2)
    for _ in range(2):
        with pytest.raises(
            tf.errors.UnknownError,
            match=START + rf"ReceiveTimeoutError: {url}: no message in 0\.2 s .*is the server run",
        ):
            next(iter(dataset))


def test_a_server_that_dies_is_a_timeout_that_says_when_it_was_seen(opened: Opener) -> None:
    with LoopbackServer([batch(0), batch(1)], end=False) as server:
        batches = iter(opened(server.url, timeout_s=1))
        assert numbers([next(batches), next(batches)]) == [0, 1]
    seen = START + r"ReceiveTimeoutError: .*no message in 1 s .*last message from \w+ [\d.]+ s ago"
    with pytest.raises(tf.errors.UnknownError, match=seen):
        next(batches)


def test_a_stream_without_messages_has_no_spec() -> None:
    text = r"ended before its first message.*give spec="
    with LoopbackServer([]) as server, pytest.raises(TransportError, match=text):
        stream_dataset(server.url, timeout_s=WAIT_S)


JUNK = [b"f4 but no header", b"\x80\x04pickle"]


def frames(arrays: list[Any]) -> list[Any]:
    return tenbin.encode_list(arrays)


def test_a_bad_first_message_is_our_error() -> None:
    with Feed(JUNK) as feed, pytest.raises(MessageError):
        stream_dataset(feed.url, timeout_s=WAIT_S)


def test_a_bad_message_raises_and_the_next_iteration_goes_on(opened: Opener) -> None:
    with Feed(frames(batch(0)), JUNK, frames(batch(1))) as feed:
        dataset = opened(feed.url)
        batches = iter(dataset)
        assert numbers([next(batches)]) == [0]
        with pytest.raises(tf.errors.InvalidArgumentError, match=START + "MessageError: message"):
            next(batches)
        assert numbers([next(iter(dataset))]) == [1]


def test_ignoring_errors_goes_on_with_the_same_iteration(opened: Opener) -> None:
    with Feed(frames(batch(0)), JUNK, frames(batch(1)), JUNK, frames(batch(2))) as feed:
        dataset = opened(feed.url, length=3)
        assert numbers(dataset.ignore_errors()) == [0, 1, 2]


def test_a_bad_message_is_skipped_when_told_so(opened: Opener) -> None:
    bad = [b"\0" * 40, b"", b"junk"]
    with Feed(bad, frames(batch(0)), JUNK, frames(batch(1))) as feed:
        assert numbers(opened(feed.url, length=2, on_bad_message="skip")) == [0, 1]


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (
            [np.zeros((4, 5, 3, 2), "u1"), np.zeros(4, "i4")],
            r"array 0 is uint8 \(4, 5, 3, 2\), expected uint8 \(None, 4, 3, 2\), {origin}; "
            r"give spec=, with None for each axis that varies",
        ),
        (
            [np.zeros((4, 4, 3), "u1"), np.zeros(4, "i4")],
            r"array 0 is uint8 \(4, 4, 3\), expected uint8 \(None, 4, 3, 2\), {origin}",
        ),
        (
            [np.zeros((4, 4, 3, 2), "u1"), np.zeros(4, "i8")],
            r"array 1 is int64 \(4,\), expected int32 \(None,\), {origin}",
        ),
        ([np.zeros((4, 4, 3, 2), "u1")], "found 1 arrays, expected 2, {origin}"),
    ],
    ids=["size", "rank", "dtype", "count"],
)
@pytest.mark.parametrize("given", [False, True])
def test_a_message_of_another_kind_says_what_it_is(
    opened: Opener, arrays: list[Any], text: str, given: bool
) -> None:
    with LoopbackServer([batch(0), arrays, batch(2)]) as server:
        dataset = opened(server.url, spec=SPEC if given else None)
        batches = iter(dataset)
        assert numbers([next(batches)]) == [0]
        text = text.format(origin="as spec says" if given else "as in the first message")
        expected = START + "MessageError: message: " + text
        with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
            next(batches)
        assert numbers(batches) == [2]


def test_a_spec_with_free_axes_takes_all_sizes(opened: Opener) -> None:
    sent = [[np.full((2, 3 + n, 4), n, "u1")] for n in range(5)]
    with LoopbackServer(sent) as server:
        found = list(opened(server.url, spec=spec(((None, None, 4), tf.uint8))))
    assert [images.shape for (images,) in found] == [array.shape for (array,) in sent]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ({"a": 1}, "array 0 is a builtins.dict, expected a numpy array"),
        (np.zeros(4, object), "array 0 has dtype object"),
        (np.zeros(4, np.longdouble), "array 0 has dtype .*, which TensorFlow has not"),
    ],
    ids=["dict", "object", "longdouble"],
)
def test_what_a_transform_returns_must_be_an_array(returned: Any, text: str) -> None:
    transforms = [lambda _: returned, None]
    with LoopbackServer([batch(0)]) as server, pytest.raises(MessageError, match=text):
        stream_dataset(server.url, batch_transforms=transforms, timeout_s=WAIT_S)
