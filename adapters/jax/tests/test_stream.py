"""DeviceStream: batches, ends, and what is received ahead."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax_helpers import WAIT_S, batch, counting, ids, own_threads, wait_for
from numpy.typing import NDArray

from tensorcom import ClosedError, Connection, ReceiveTimeoutError, ZmqUrlError
from tensorcom.message import Message
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_jax import DeviceStream, stream_iterator


def opened(url: str | list[str], **arguments: Any) -> Any:
    return closing(DeviceStream(url, **{"timeout_s": WAIT_S, **arguments}))


@contextmanager
def streaming(batches: Any, **arguments: Any) -> Iterator[Any]:
    with LoopbackServer(batches) as server, opened(server.url, **arguments) as stream:
        yield stream


def numbers(batches: Any) -> list[int]:
    """Return the numbers of batches of 4 samples."""
    found = ids(batches)
    assert found[::4] == [number for number in found if number % 4 == 0]
    return [number // 4 for number in found[::4]]


# -- what is received ----------------------------------------------------------------------------


def test_batches_are_tuples_of_arrays_on_the_device_that_was_asked_for() -> None:
    device = jax.devices()[0]
    sent = [np.ones((2, 3), ml_dtypes.float8_e5m2), np.zeros(2, ml_dtypes.bfloat16)]
    with LoopbackServer([[*sent, np.array([b"one", b"two"])]]) as server:
        stream = stream_iterator(server.url, [device, None, None], 1, timeout_s=WAIT_S)
        ((one, two, names),) = list(stream)
        stream.close()
    assert (one.dtype, two.dtype) == (ml_dtypes.float8_e5m2, ml_dtypes.bfloat16)
    assert (one.committed, two.committed) == (True, False)
    assert names.tolist() == [b"one", b"two"]


def test_the_default_device_is_that_of_the_thread_that_iterates(monkeypatch: Any) -> None:
    seen = []
    put = jax.device_put

    def noted(*arguments: Any) -> Any:
        seen.append(jax.config.jax_default_device)
        return put(*arguments)

    monkeypatch.setattr(jax, "device_put", noted)
    device = jax.devices()[0]
    with streaming([batch(0)]) as stream, jax.default_device(device):
        assert numbers(stream) == [0]
    assert set(seen) == {device}


@pytest.mark.parametrize("prefetch", [1, 5])
def test_batches_are_received_ahead_and_no_more_than_prefetch(
    prefetch: int, monkeypatch: Any
) -> None:
    placed: list[int] = []
    real = DeviceStream._placed

    def noted(self: Any, received: Any) -> Any:
        placed.append(int(received[1][0]) // 4)
        return real(self, received)

    monkeypatch.setattr(DeviceStream, "_placed", noted)
    with streaming(counting(), prefetch=prefetch) as stream:
        batches = iter(stream)
        assert numbers([next(batches)]) == [0]
        assert wait_for(lambda: len(placed) == 1 + prefetch)
        assert numbers([next(batches)]) == [1]
        assert wait_for(lambda: len(placed) == 2 + prefetch)
        batches.close()
    assert placed == list(range(2 + prefetch))


def test_what_a_function_returns_may_be_used_again_by_it() -> None:
    from tensorcom.buffers import aligned_array

    buffer = aligned_array(4 * 4 * 3 * 2).reshape(4, 4, 3, 2)

    def brighten(images: NDArray[Any]) -> NDArray[Any]:
        np.add(images, 1, out=buffer)
        return buffer

    with streaming(
        [batch(number) for number in range(9)], batch_transforms=[brighten, None]
    ) as stream:
        kept = list(stream)
    for number, (images, labels) in enumerate(kept):
        np.testing.assert_array_equal(images, batch(number)[0] + 1)
        np.testing.assert_array_equal(labels, batch(number)[1])


def test_received_memory_is_used_where_it_is_and_never_again() -> None:
    def large() -> Iterator[list[NDArray[Any]]]:
        for number in range(24):
            yield [np.full((64, 2048), number, "u1")]

    received: dict[int, int] = {}

    def note(array: NDArray[Any]) -> NDArray[Any]:
        received[int(array[0, 0])] = array.ctypes.data
        return array

    with streaming(large(), batch_transforms=note) as stream:
        kept = [images for (images,) in stream]
    gc.collect()
    for number, images in enumerate(kept):
        assert images.addressable_shards[0].data.unsafe_buffer_pointer() == received[number]
        assert (np.asarray(images) == number).all()


def test_layout_is_converted_as_stated() -> None:
    with streaming([batch(3)], layout=("NHWC", "NCHW"), batch_transforms=[lambda x: x]) as stream:
        ((images, labels),) = list(stream)
    np.testing.assert_array_equal(images, batch(3)[0].transpose(0, 3, 1, 2))
    assert labels.tolist() == batch(3)[1].tolist()


# -- iterations and ends -------------------------------------------------------------------------


def test_the_next_iteration_goes_on_with_what_was_received_ahead() -> None:
    with streaming([batch(number) for number in range(20)], prefetch=4) as stream:
        assert numbers(itertools.islice(stream, 3)) == [0, 1, 2]
        assert own_threads() == []
        assert numbers(itertools.islice(stream, 1)) == [3]
        assert numbers(stream) == list(range(4, 20))


def test_an_end_that_was_heard_ahead_is_the_end_of_the_next_iteration() -> None:
    with streaming([batch(number) for number in range(3)], prefetch=8) as stream:
        batches = iter(stream)
        assert numbers([next(batches)]) == [0]
        assert wait_for(lambda: stream._live._ends.complete)
        batches.close()
        assert numbers(itertools.islice(stream, 1)) == [1]
        assert numbers(stream) == [2]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_length_counts_what_was_received_ahead(first: int) -> None:
    with streaming(counting(), length=4, prefetch=3) as stream:
        assert len(stream) == 4
        assert numbers(itertools.islice(stream, first)) == list(range(first))
        assert numbers(stream) == list(range(first, first + 4))
        assert stream._live._waiting == [], "and no more is received"
        assert numbers(stream) == list(range(first + 4, first + 8))


def test_no_more_is_received_than_the_length() -> None:
    with streaming(counting(), length=3, prefetch=8) as stream:
        assert numbers(stream) == [0, 1, 2]
        assert stream._live._waiting == []
        assert stream._live.connection._pending is None


def test_a_new_iteration_ends_the_one_before_which_says_so() -> None:
    with streaming(counting()) as stream:
        one = iter(stream)
        assert numbers([next(one)]) == [0]
        two = iter(stream)
        assert numbers([next(two)]) == [1]
        with pytest.raises(ClosedError, match="another one began"):
            next(one)
        assert numbers([next(two)]) == [2], "the new one is not disturbed"
        stream.close()
        with pytest.raises(ClosedError, match="or the object was closed"):
            next(two)


def test_after_an_end_a_server_that_was_started_again_is_read() -> None:
    with LoopbackServer([batch(0)]) as server:
        stream = DeviceStream(server.url, timeout_s=WAIT_S)
        assert numbers(stream) == [0]
    url = server.url.replace("zrpull", "zrpush")
    with Connection(url) as again:
        serving = threading.Thread(target=again.serve, args=([batch(5)],), kwargs={"end": "stream"})
        serving.start()
        assert numbers(stream) == [5]
        serving.join()
    stream.close()


def test_several_servers_all_end() -> None:
    with ExitStack() as stack:
        servers = [LoopbackServer([batch(n), batch(n + 2)]) for n in (0, 1)]
        urls = [stack.enter_context(server).url for server in servers]
        with opened(urls) as stream:
            assert sorted(numbers(stream)) == [0, 1, 2, 3]


# -- what goes wrong -----------------------------------------------------------------------------


def test_an_error_that_was_met_ahead_comes_in_its_place_also_in_the_next_iteration() -> None:
    def fail(labels: NDArray[Any]) -> NDArray[Any]:
        if labels[0] == 8:
            raise ArithmeticError("labels of batch 2")
        return labels

    with streaming(
        [batch(number) for number in range(4)], prefetch=8, batch_transforms=[None, fail]
    ) as stream:
        batches = iter(stream)
        assert numbers([next(batches)]) == [0]
        assert wait_for(lambda: stream._live._running._shelf._error)
        batches.close()
        batches = iter(stream)
        assert numbers([next(batches)]) == [1]
        with pytest.raises(ArithmeticError, match="labels of batch 2"):
            next(batches)
        assert numbers(stream) == [3]


def test_a_timeout_ahead_of_use_is_forgotten_by_the_next_iteration() -> None:
    def late() -> Iterator[list[NDArray[Any]]]:
        yield batch(0)
        assert go_on.wait(WAIT_S)
        yield batch(1)

    go_on = threading.Event()
    with streaming(late(), timeout_s=0.3) as stream:
        batches = iter(stream)
        assert numbers([next(batches)]) == [0]
        assert wait_for(lambda: stream._live._running._shelf._error)
        batches.close()
        go_on.set()
        assert numbers(stream) == [1]


def test_a_timeout_names_the_server_from_the_thread() -> None:
    with LoopbackServer([]) as server:
        url = server.url
    stream = DeviceStream(url, timeout_s=0.2)
    with pytest.raises(ReceiveTimeoutError, match="is the server running") as caught:
        next(iter(stream))
    stream.close()
    assert caught.value.urls == (url,)
    assert own_threads() == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"layout": ("NHWC", "HWC")}, "layout="),
        ({"on_bad_message": "ignore"}, "on_bad_message='ignore'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DeviceStream("zrpull://127.0.0.1:1", **arguments)


def test_a_url_that_sends() -> None:
    with pytest.raises(ZmqUrlError, match="zpush sends; a data set receives"):
        DeviceStream("zpush://127.0.0.1:1")


def test_bad_messages_that_were_skipped_are_counted() -> None:
    infos = ["images", "labels"]
    sent = [
        Message(batch(0), infos),
        Message(batch(9), ["other", "ones"]),
        Message(batch(1), infos),
    ]
    with streaming(sent, infos=infos, on_bad_message="skip") as stream:
        assert stream.stats.bad == 0
        assert numbers(stream) == [0, 1]
        assert (stream.stats.bad, stream.stats.count) == (1, 3)


# -- life ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["drop", "close", "close stream"])
def test_an_iteration_that_waits_for_the_server_ends_at_once(use: str) -> None:
    with LoopbackServer([batch(0)], end=False) as server:
        stream = DeviceStream(server.url, timeout_s=None)
        batches = iter(stream)
        assert numbers([next(batches)]) == [0]
        assert own_threads() != []
        if use == "drop":
            del batches
        elif use == "close":
            batches.close()
        if use != "close stream":
            assert own_threads() == []
        stream.close()
        assert own_threads() == []


def test_a_copy_has_a_socket_of_its_own_and_takes_over_nothing() -> None:
    with streaming(counting(), length=3) as stream:
        assert numbers(itertools.islice(stream, 2)) == [0, 1]
        copy = pickle.loads(pickle.dumps(stream))
        assert copy._live is None
        assert len(copy) == 3
        stream.close()
        found = numbers(copy)
        copy.close()
        assert len(found) == 3
        assert min(found) > 1


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("urls", [1, 2])
def test_ranks_share_publishers(ranks: int, urls: int) -> None:
    with ExitStack() as stack:
        servers = [
            LoopbackServer(
                [batch(number) for number in range(start, start + 6)],
                scheme="zpub",
                readers=ranks if urls == 1 or ranks == 1 else 1,
            )
            for start in (0, 6)[:urls]
        ]
        shared = [stack.enter_context(server).url for server in servers]
        streams = [
            stack.enter_context(opened(shared, shard=(rank, ranks))) for rank in range(ranks)
        ]
        found: list[list[int]] = [[] for _ in range(ranks)]
        threads = [
            threading.Thread(target=lambda r=rank: found[r].extend(numbers(streams[r])))
            for rank in range(ranks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert sorted(sum(found, [])) == list(range(6 * urls))
    assert all(found)


def test_iterations_are_those_of_core() -> None:
    with LoopbackServer([batch(number) for number in range(12)]) as server:
        connection = Connection(server.url, 4, timeout_s=WAIT_S)
        expected = [[int(labels[0]) // 4 for _, labels in connection] for _ in range(3)]
        connection.close()
    with streaming([batch(number) for number in range(12)], length=4) as stream:
        assert [numbers(stream) for _ in range(3)] == expected
