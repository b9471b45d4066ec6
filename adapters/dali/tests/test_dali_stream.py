"""StreamSource: arrays of a stream as an external source."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dali_helpers import WAIT_S, define_raw
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def

from tensorcom import Connection, MessageError, ReceiveTimeoutError, SourceError, ZmqUrlError
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_dali import Loader, StreamSource, external_source, plain_pipeline, train_pipeline


def batch(number: int, samples: int = 4) -> list[NDArray[Any]]:
    images = np.full((samples, 6, 5, 3), number % 251, np.uint8)
    return [images, np.full((samples,), number, np.int32)]


def counting() -> Iterator[list[NDArray[Any]]]:
    number = 0
    while True:
        yield batch(number)
        number += 1


def numbers(batches: Any) -> list[int]:
    found = []
    for images, labels in batches:
        number = int(np.asarray(labels)[0])
        assert (np.asarray(images) == number % 251).all()
        found.append(number)
    return found


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
def test_a_pipeline_gets_what_was_sent_last_batch_included(to) -> None:
    sent = [*(batch(n) for n in range(9)), batch(9, samples=1)]
    with LoopbackServer(sent) as server:
        source = StreamSource(server.url, timeout_s=WAIT_S)
        with Loader(source, plain_pipeline, to=to) as loader:
            found = list(loader)
    assert [len(labels) for _, labels in found] == [4] * 9 + [1]
    assert numbers(found) == list(range(10))


def test_a_raw_pipeline_ends_with_the_stream_or_at_its_length() -> None:
    with LoopbackServer(counting()) as server, StreamSource(server.url, length=5) as source:
        pipeline = define_raw(source)
        found = []
        for _ in range(3):
            while True:
                try:
                    images, labels = pipeline.run()
                except StopIteration:
                    pipeline.reset()
                    break
                found.append((images.as_array(), labels.as_array().ravel()))
        assert numbers(found) == list(range(15))
        assert len(source) == 5


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_iterations_go_on_with_each_other_also_after_a_break(to, depth) -> None:
    with LoopbackServer(counting()) as server:
        source = StreamSource(server.url, length=5, timeout_s=WAIT_S)
        with Loader(source, plain_pipeline, to=to, prefetch_queue_depth=depth) as loader:
            found = numbers(loader)
            for pair in loader:
                found += numbers([pair])
                if len(found) == 7:
                    break
            found += numbers(loader)
            found += numbers(loader)
    assert found == list(range(17)), "no message is lost between DALI and its user"


@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_no_more_is_waited_for_than_an_iteration_has(to) -> None:
    # Nothing comes after the last one, and a wait would be for ever.
    with LoopbackServer([batch(n) for n in range(7)], end=False) as server:
        source = StreamSource(server.url, length=3, timeout_s=None)
        with Loader(source, plain_pipeline, to=to, prefetch_queue_depth=3) as loader:
            found = numbers(loader)
            for pair in loader:
                found += numbers([pair])
                break
            found += numbers(loader)
    assert found == list(range(7))


def wait_for_failure(source: StreamSource) -> None:
    deadline = time.monotonic() + WAIT_S
    while source._ahead.failure is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert isinstance(source._ahead.failure, ReceiveTimeoutError)


def test_a_timeout_that_nobody_waited_for_is_none() -> None:
    with Connection("zrpush://127.0.0.1:0") as server:
        url = server.urls[0].replace("zrpush", "zrpull")
        with StreamSource(url, timeout_s=0.5) as source:
            thread = threading.Thread(target=serve, args=(server, [0], None))
            thread.start()
            assert numbers([next(iter(source))]) == [0]
            thread.join()
            wait_for_failure(source)
            thread = threading.Thread(target=serve, args=(server, [1], None))
            thread.start()
            assert numbers([next(iter(source))]) == [1]
            thread.join()


def test_a_timeout_that_only_the_pipeline_waited_for_is_none() -> None:
    with Connection("zrpush://127.0.0.1:0") as server:
        url = server.urls[0].replace("zrpush", "zrpull")
        source = StreamSource(url, timeout_s=0.5)
        with Loader(source, plain_pipeline, prefetch_queue_depth=3) as loader:
            thread = threading.Thread(target=serve, args=(server, [0], None))
            thread.start()
            for pair in loader:
                assert numbers([pair]) == [0]
                break  # DALI has asked for two more, in vain
            thread.join()
            thread = threading.Thread(target=serve, args=(server, [1], None))
            thread.start()
            assert numbers([next(iter(loader))]) == [1]
            thread.join()


def serve(server: Connection, numbers: list[int], end: str | None) -> None:
    """Send batches from a thread, and wait for it."""
    batches = [batch(number) for number in numbers]
    thread = threading.Thread(target=server.serve, args=(batches,), kwargs={"end": end})
    thread.start()
    thread.join(WAIT_S)


def test_a_stream_that_ends_without_a_message_is_an_empty_iteration() -> None:
    with LoopbackServer([]) as server, StreamSource(server.url, timeout_s=WAIT_S) as source:
        assert list(Loader(source, plain_pipeline)) == []
    with (
        LoopbackServer([]) as server,
        StreamSource(server.url, timeout_s=WAIT_S) as source,
        pytest.raises(SourceError, match="ended before its first message"),
    ):
        source.outputs  # noqa: B018 - waits for the first message


@pytest.mark.parametrize("wanted", ["NHWC", "NCHW"])
def test_axes_are_moved_and_named_as_stated(wanted) -> None:
    with (
        LoopbackServer([batch(0)]) as server,
        StreamSource(server.url, layout=("NHWC", wanted), timeout_s=WAIT_S) as source,
    ):
        images, _ = define_raw(source).run()
    assert images.layout() == wanted[1:]
    assert images.as_array().shape[1:] == ((6, 5, 3) if wanted == "NHWC" else (3, 6, 5))


def test_a_train_pipeline_normalises_what_servers_augmented() -> None:
    with LoopbackServer(batch(n) for n in range(5)) as server:
        source = StreamSource(server.url, timeout_s=WAIT_S)
        options = {"mean": (0, 0, 0), "std": (2, 2, 2), "layout": "NCHW"}
        with Loader(source, train_pipeline, to="torch", **options) as loader:
            for number, (images, labels) in enumerate(loader):
                assert images.shape == (4, 3, 6, 5)
                assert (images == number / 2).all()
                assert labels.tolist() == [number] * 4


def test_no_copy_never_shows_another_batch() -> None:
    def reusing() -> Iterator[list[NDArray[Any]]]:
        images, labels = np.zeros((16, 64, 64, 3), np.uint8), np.zeros(16, np.int32)
        for number in range(40):
            images[...], labels[...] = number, number
            yield [images, labels]

    @pipeline_def(batch_size=16, num_threads=2, device_id=None)
    def define(source):
        return tuple(external_source(source, no_copy=True))

    with (
        LoopbackServer(reusing()) as server,
        Loader(StreamSource(server.url, timeout_s=WAIT_S), define) as loader,
    ):
        assert numbers(loader) == list(range(40))


BAD = {
    "complex64": (np.zeros((2, 3), "c8"), "array 1 is complex64, which DALI has no type for"),
    "bytes": (np.array([b"one", b"two"]), r"array 1 is bytes24, which DALI has no type for"),
    "samples": (np.zeros((3, 3), "f4"), r"shapes \(2,\), \(3, 3\), expected the same number"),
    "scalar": (np.float32(1), r"shapes \(2,\), \(\), expected the same number"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_dali_would_garble_is_an_error_before(name) -> None:
    array, text = BAD[name]
    with (
        LoopbackServer([[np.zeros(2, "f4"), array]]) as server,
        StreamSource(server.url, timeout_s=WAIT_S) as source,
        pytest.raises(SourceError, match=text),
    ):
        next(iter(source))


def test_a_batch_without_samples_is_an_error() -> None:
    with (
        LoopbackServer([batch(0, samples=0)]) as server,
        StreamSource(server.url, timeout_s=WAIT_S) as source,
        pytest.raises(SourceError, match="at least 1"),
    ):
        next(iter(source))


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ([np.zeros((4, 2), "f8")], "float64 of 2 axes, but in the first batch float32 of 2 axes"),
        ([np.zeros((4, 2, 1), "f4")], "float32 of 3 axes, but in the first batch float32 of 2"),
        ([np.zeros((5, 2), "f4")], "batch of 5 samples, but the pipeline has batch_size=4"),
    ],
)
def test_a_batch_of_another_form_is_an_error_after_those_before(second, text) -> None:
    first = [np.zeros((4, 2), "f4")]
    with (
        LoopbackServer([first, first, second]) as server,
        StreamSource(server.url, timeout_s=WAIT_S, batch_size=4) as source,
        Loader(source, plain_pipeline) as loader,
    ):
        batches = iter(loader)
        next(batches)
        next(batches)
        with pytest.raises(SourceError, match=text):
            next(batches)


def test_a_larger_batch_fits_where_the_size_was_given() -> None:
    with LoopbackServer([[np.zeros(2, "f4")], [np.zeros(5, "f4")]]) as server:
        source = StreamSource(server.url, batch_size=5, timeout_s=WAIT_S)
        with Loader(source, plain_pipeline) as loader:
            assert [len(array) for (array,) in loader] == [2, 5]


def test_other_byte_orders_and_strides_are_put_right() -> None:
    arrays = [np.arange(24, dtype=">i4").reshape(2, 3, 4), np.arange(6, dtype="u1").reshape(3, 2).T]
    transform = [None, lambda array: array[:, ::-1]]
    with LoopbackServer([arrays]) as server:
        source = StreamSource(server.url, batch_transforms=transform, timeout_s=WAIT_S)
        with Loader(source, plain_pipeline) as loader:
            ((first, second),) = list(loader)
    np.testing.assert_array_equal(first, arrays[0])
    np.testing.assert_array_equal(second, arrays[1][:, ::-1])


def test_a_timeout_comes_after_the_batches_before_and_the_next_iteration_waits_anew() -> None:
    with Connection("zrpush://127.0.0.1:0") as server:
        url = server.urls[0].replace("zrpush", "zrpull")
        source = StreamSource(url, timeout_s=1)
        with Loader(source, plain_pipeline, prefetch_queue_depth=3) as loader:
            thread = threading.Thread(target=serve, args=(server, [0, 1], None))
            thread.start()
            batches = iter(loader)
            assert numbers([next(batches), next(batches)]) == [0, 1]
            thread.join()
            with pytest.raises(ReceiveTimeoutError, match=r"no message in 1 s"):
                next(batches)
            thread = threading.Thread(target=serve, args=(server, [2], "stream"))
            thread.start()
            assert numbers(loader) == [2]
            thread.join()


def test_a_bad_message_is_an_error_and_the_stream_goes_on() -> None:
    import zmq

    from tensorcom import tenbin

    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        source = StreamSource(f"zrpull://127.0.0.1:{port}", length=2, timeout_s=WAIT_S)
        with Loader(source, plain_pipeline) as loader:
            threading.Thread(
                target=lambda: [
                    socket.send_multipart(tenbin.encode_list(batch(0))),
                    socket.send_multipart([b"junk"]),
                    *(socket.send_multipart(tenbin.encode_list(batch(n))) for n in (1, 2)),
                ]
            ).start()
            batches = iter(loader)
            assert numbers([next(batches)]) == [0]
            with pytest.raises(MessageError):
                next(batches)
            assert numbers(loader) == [1, 2]


def test_ranks_share_a_publisher() -> None:
    with LoopbackServer([batch(n) for n in range(8)], scheme="zpub", readers=2) as server:
        sources = [
            StreamSource(server.url, shard=(rank, 2), timeout_s=WAIT_S, batch_size=4)
            for rank in range(2)
        ]
        iterators = [iter(source) for source in sources]
        found: list[list[int]] = [[], []]
        threads = [
            threading.Thread(target=lambda r=rank: found[r].extend(numbers(iterators[r])))
            for rank in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for source in sources:
            source.close()
    assert sorted(sum(found, [])) == list(range(8))
    assert len(found[0]) == len(found[1])


def test_it_pickles_and_closes() -> None:
    before = set(threading.enumerate())
    with LoopbackServer(counting()) as server:
        inside = set(threading.enumerate())
        source = pickle.loads(pickle.dumps(StreamSource(server.url, length=2, timeout_s=WAIT_S)))
        assert numbers(source) == [0, 1]
        copy = pickle.loads(pickle.dumps(source))
        source.close()
        assert len(numbers(copy)) == 2
        copy.close()
        assert set(threading.enumerate()) <= inside
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"urls": "zrpush://127.0.0.1:1"}, ZmqUrlError, "zrpush sends; a data set receives"),
        ({"length": -1}, ValueError, "length=-1, expected at least 0"),
        ({"prefetch": 0}, ValueError, "prefetch=0, expected at least 1"),
        ({"layout": ("HWC", "CHW")}, ValueError, "layout="),
        ({"unknown": 1}, TypeError, "unknown"),
        ({"raw": True}, TypeError, "raw: no option of a data set"),
        ({"shard": (3, 2)}, ValueError, r"shard=\(3, 2\), expected a number from 0"),
    ],
)
def test_wrong_arguments_are_errors_at_once(arguments, error, text) -> None:
    with pytest.raises(error, match=text):
        StreamSource(**{"urls": "zrpull://127.0.0.1:1", **arguments})


def test_what_a_stream_has_not() -> None:
    source = StreamSource("zrpull://127.0.0.1:1")
    with pytest.raises(TypeError, match="length of this stream is unknown"):
        len(source)
    loader = Loader(source)
    text = "a stream has no scan groups, epochs or states"
    for asked in (
        loader.state_dict,
        lambda: loader.load_state_dict({}),
        lambda: loader.set_epoch(1),
    ):
        with pytest.raises(TypeError, match=text):
            asked()
    for name in ("scan_groups", "epoch"):
        with pytest.raises(AttributeError, match=text):
            getattr(loader, name)
    with pytest.raises(AttributeError, match=text):
        loader.scan_groups = 5
    with pytest.raises(ValueError, match="parallel=True is for a PcrSource"):
        source.parallel_source()


SIZES = (2, 4, 1, 7, 3, 7, 9, 1, 12)


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("options", [{}, {"prefetch_queue_depth": 1}])
@pytest.mark.parametrize("length", [None, 3])
def test_a_loader_makes_room_for_larger_batches_and_loses_none(to, options, length) -> None:
    sent = [batch(number, samples) for number, samples in enumerate(SIZES)]
    with (
        LoopbackServer(sent) as server,
        StreamSource(server.url, timeout_s=WAIT_S, length=length) as source,
        Loader(source, plain_pipeline, to=to, **options) as loader,
    ):
        iterations = [list(loader) for _ in range(3 if length else 1)]
    found = [item for iteration in iterations for item in iteration]
    assert [len(labels) for _, labels in found] == list(SIZES)
    assert numbers(found) == list(range(len(SIZES)))
    assert [len(iteration) for iteration in iterations] == ([3, 3, 3] if length else [9])


def test_a_pipeline_of_a_given_size_is_not_made_larger() -> None:
    with (
        LoopbackServer([batch(0, 2), batch(1, 5), batch(2, 4)]) as server,
        Loader(StreamSource(server.url, timeout_s=WAIT_S), plain_pipeline, batch_size=4) as loader,
    ):
        batches = iter(loader)
        assert len(next(batches)[1]) == 2
        with pytest.raises(SourceError, match="batch of 5 samples, but the pipeline has batch_siz"):
            next(batches)
        assert numbers(loader) == [2]


def test_a_pipeline_that_says_its_own_size_is_an_error_where_it_is_too_small() -> None:
    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def define(source):
        return tuple(external_source(source))

    with (
        LoopbackServer([batch(0, 4), batch(1, 5)]) as server,
        Loader(StreamSource(server.url, timeout_s=WAIT_S), define) as loader,
    ):
        batches = iter(loader)
        assert len(next(batches)[1]) == 4
        with pytest.raises(SourceError, match="source has batch_size=5, but the pipeline 4: give"):
            next(batches)


def test_options_about_decoding_are_not_passed_over() -> None:
    with (
        LoopbackServer([batch(0)]) as server,
        Loader(StreamSource(server.url, timeout_s=WAIT_S), train_pipeline, size=64) as loader,
        pytest.raises(ValueError, match=r"size: about decoding and cropping, but StreamSource\("),
    ):
        next(iter(loader))


def test_operators_see_images() -> None:
    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def define(source):
        images, labels = external_source(source)
        return fn.resize(images, size=[3, 3]), labels

    with LoopbackServer([batch(n) for n in range(3)]) as server:
        source = StreamSource(server.url, layout=("NHWC", "NHWC"), timeout_s=WAIT_S)
        with Loader(source, define) as loader:
            assert numbers(loader) == [0, 1, 2]
