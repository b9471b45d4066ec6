"""What every adapter promises of a stream, whatever the framework."""

from __future__ import annotations

import itertools
import pickle
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from contract_adapters import Adapter, error_of
from contract_streams import FarServer, Feed, batch, counting, numbers
from numpy.typing import NDArray

from tensorcom import Connection, tenbin
from tensorcom.testing.loopback import LoopbackServer

WAIT_S = 30  # bounds each wait
DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "?", "c8", "c16"]
DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


def any_bits(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of any values: no number, infinite, subnormal and negative zero too."""
    if np.dtype(dtype) == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape)


def any_streams(adapter: Adapter, loader: str) -> list[list[list[NDArray[Any]]]]:
    """Return messages of up to three arrays, as Keras takes them, of all dtypes and many shapes."""
    rng = np.random.default_rng(0)
    lacks = adapter.lacks.get(loader, ())
    dtypes = [dtype for dtype in DTYPES if np.dtype(dtype).name not in lacks]
    groups = [dtypes[start : start + 3] for start in range(0, len(dtypes), 3)]
    if loader not in adapter.keeps_axes:
        shapes = [(3, 4), (1,), (), (0, 5), (2, 0), (2, 3, 4, 5)]
        return [[[any_bits(rng, dtype, s) for dtype in g] for g in groups for s in shapes]]
    forms = [[(3, 4), (3,), (3, 5, 2, 4)], [(2, 4), (2,), (2, 5, 2, 4)]]
    forms.append(
        [(1, 6), (1,), (1, 6, 3, 1)] if adapter.needs_samples else [(0, 4), (1,), (0, 5, 2, 4)]
    )
    return [
        [[any_bits(rng, dtype, s) for dtype, s in zip(g, form, strict=False)] for form in forms]
        for g in groups
    ]


def bits(arrays: list[NDArray[Any]]) -> list[tuple[np.dtype[Any], tuple[int, ...], bytes]]:
    return [(array.dtype, array.shape, array.tobytes()) for array in arrays]


def test_arrays_arrive_bit_equal_in_order(adapter: Adapter, loader: str) -> None:
    readers = adapter.workers.get(loader, 1)
    for sent in any_streams(adapter, loader):
        with LoopbackServer(sent, readers=readers) as server:
            dataset = adapter.from_stream(server.url, timeout_s=WAIT_S)
            loading = adapter.loaders[loader](dataset)
            received = [bits([adapter.to_numpy(a) for a in arrays]) for arrays in loading]
            del loading
            adapter.close(dataset)
        expected = [bits(arrays) for arrays in sent]
        if readers > 1:
            assert sorted(received, key=repr) == sorted(expected, key=repr)
        else:
            assert received == expected


def test_a_dtype_that_is_not_to_be_had_is_an_error_that_names_it(
    adapter: Adapter, loader: str
) -> None:
    for name in adapter.lacks.get(loader, ()):
        dtype = getattr(ml_dtypes, name, name)
        with LoopbackServer([[np.zeros((2, 3)).astype(dtype)]]) as server:
            dataset = adapter.from_stream(server.url, timeout_s=WAIT_S)
            error = error_of(adapter.loaders[loader](dataset))
            adapter.close(dataset)
        assert isinstance(error, ValueError)
        assert name in str(error)


@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_each_message_once_to_the_end_of_the_stream(
    adapter: Adapter, loader: str, scheme: str
) -> None:
    readers = adapter.workers.get(loader, 1)
    batches = [batch(number, 2 if number == 22 else 4) for number in range(23)]
    with LoopbackServer(batches, scheme=scheme, readers=readers) as server:
        dataset = adapter.from_stream(server.url, timeout_s=WAIT_S)
        found = numbers(adapter.loaders[loader](dataset), adapter)
        adapter.close(dataset)
    assert Counter(found) == Counter(range(23))
    if readers == 1:
        assert found == list(range(23))


def test_after_the_end_comes_what_the_next_server_sends(adapter: Adapter, loader: str) -> None:
    readers = adapter.workers.get(loader, 1)
    # Elsewhere, for a worker that was forked here would keep its address bound.
    with FarServer(5, readers=readers, end=True) as server:
        dataset = adapter.from_stream(server.url, timeout_s=WAIT_S)
        loading = adapter.loaders[loader](dataset)
        first = numbers(loading, adapter)
    again = [batch(number) for number in range(5, 12)]
    with Connection(server.url.replace("zrpull", "zrpush"), timeout_s=WAIT_S) as sender:
        thread = threading.Thread(target=send, args=(sender, again, readers))
        thread.start()
        try:
            second = numbers(loading, adapter)
        finally:
            del loading
            adapter.close(dataset)
            thread.join()
    assert sorted(first) == list(range(5))
    assert sorted(second) == list(range(5, 12))


def send(sender: Connection, batches: list[Any], readers: int) -> None:
    """Send batches, and the end, once all readers are there."""
    sender.wait_for_peers(readers, timeout_s=WAIT_S)
    sender.serve(batches, end="stream")


def test_length_ends_an_iteration_and_the_next_goes_on(adapter: Adapter, loader: str) -> None:
    readers = adapter.workers.get(loader, 1)
    with LoopbackServer(counting(), readers=readers) as server:
        dataset = adapter.from_stream(server.url, length=7, timeout_s=30)
        loading = adapter.loaders[loader](dataset)
        assert len(loading) == 7
        first = numbers(loading, adapter)
        second = numbers(loading, adapter)
        del loading
        adapter.close(dataset)
    assert len(first) == len(second) == 7
    assert len(set(first + second)) == 14, "a message came twice"
    if readers == 1:
        assert first + second == list(range(14))


def test_a_break_loses_nothing_and_repeats_nothing(adapter: Adapter, loader: str) -> None:
    readers = adapter.workers.get(loader, 1)
    with LoopbackServer(counting(), readers=readers) as server:
        dataset = adapter.from_stream(server.url, timeout_s=WAIT_S)
        loading = adapter.loaders[loader](dataset)
        found = []
        for count in (1, 3, 2):
            found += numbers(itertools.islice(loading, count), adapter)
        del loading
        adapter.close(dataset)
    assert len(set(found)) == 6
    if loader not in adapter.drops:
        assert found == list(range(6))


def test_length_without_one_is_a_type_error(adapter: Adapter) -> None:
    with pytest.raises(TypeError, match="length"):
        len(adapter.from_stream("zrpull://127.0.0.1:7880"))


def test_a_server_that_is_not_there_is_a_timeout_with_our_text(
    adapter: Adapter, loader: str
) -> None:
    with LoopbackServer([]) as server:
        url = server.url
    dataset = adapter.from_stream(url, timeout_s=0.5)
    begun = time.monotonic()
    error = error_of(adapter.loaders[loader](dataset))
    assert time.monotonic() - begun < WAIT_S
    assert isinstance(error, TimeoutError)
    assert re.search(r"no message in 0\.5 s .*is the server running", str(error), re.DOTALL)
    assert url in str(error)
    adapter.close(dataset)


def test_a_server_that_is_killed_is_a_timeout_that_says_when_it_was_seen(
    adapter: Adapter, loader: str
) -> None:
    seen = r"no message in 1 s .*last message from \w+ [\d.]+ s ago"
    # A worker that comes late finds no few messages left by the others.
    with FarServer(1 << 30 if loader in adapter.workers else 6) as server:
        dataset = adapter.from_stream(server.url, timeout_s=1)
        batches = iter(adapter.loaders[loader](dataset))
        found = numbers([next(batches)], adapter)
        server.kill()
        begun = time.monotonic()
        error = error_of(taken(batches, adapter, found))
        assert time.monotonic() - begun < WAIT_S
        del batches
        adapter.close(dataset)
    if loader in adapter.workers:  # the error may be that of a worker that got nothing
        seen = "no message in 1 s"
    assert re.search(seen, str(error), re.DOTALL)
    assert server.url in str(error)
    # What came before it was killed may be lost, but not in part.
    assert found == list(range(len(found))) or loader in adapter.workers


def taken(batches: Any, adapter: Adapter, found: list[int]) -> Iterator[None]:
    """Note the numbers of batches until they end, or an error comes."""
    for arrays in batches:
        found += numbers([arrays], adapter)
        yield


def test_a_bad_message_raises_and_the_stream_goes_on(adapter: Adapter, loader: str) -> None:
    bad = [b"f4 but no header", b"\x80\x04pickle"]
    good = [tenbin.encode_list(batch(number)) for number in range(8)]
    with Feed(good[0], bad, *good[1:], readers=adapter.workers.get(loader, 1)) as feed:
        dataset = adapter.from_stream(feed.url, timeout_s=10)
        loading = adapter.loaders[loader](dataset)
        found: list[int] = []
        error = error_of(taken(loading, adapter, found))
        assert "message: 1 tensor parts, expected pairs of header and data" in str(error)
        if loader not in adapter.drops:
            found += numbers(itertools.islice(loading, 2), adapter)
            assert found == [0, 1, 2]
        del loading
        adapter.close(dataset)


def test_a_bad_message_is_skipped_when_told_so(adapter: Adapter, loader: str) -> None:
    bad = [b"\0" * 40, b"", b"junk"]
    good = [tenbin.encode_list(batch(number)) for number in range(8)]
    with Feed(good[0], bad, *good[1:], readers=adapter.workers.get(loader, 1)) as feed:
        dataset = adapter.from_stream(feed.url, length=2, timeout_s=10, on_bad_message="skip")
        loading = adapter.loaders[loader](dataset)
        found = numbers(loading, adapter)
        del loading
        adapter.close(dataset)
    assert found == [0, 1] or loader in adapter.workers
    assert len(found) == 2


def test_it_pickles_before_and_after_use(adapter: Adapter) -> None:
    with LoopbackServer(counting(), readers=1) as server:
        dataset = pickle.loads(
            pickle.dumps(adapter.from_stream(server.url, length=3, timeout_s=20))
        )
        assert numbers(dataset, adapter) == [0, 1, 2]
        copy = pickle.loads(pickle.dumps(dataset))
        adapter.close(dataset)
        found = numbers(copy, adapter)
        assert len(found) == 3
        assert found == sorted(set(found) - {0, 1, 2})
        adapter.close(copy)


def test_what_was_handed_over_is_never_touched_again(adapter: Adapter, loader: str) -> None:
    readers = adapter.workers.get(loader, 1)
    images, labels = batch(0, samples=64)
    images = np.repeat(np.repeat(images, 8, axis=1), 8, axis=2)  # large enough to be pooled

    def reusing() -> Iterator[list[NDArray[Any]]]:
        for number in range(40):
            images[...] = number
            labels[...] = number
            yield [images, labels]
            assert (images == number).all(), "written to by what sends it"

    with LoopbackServer(reusing(), readers=readers) as server:
        dataset = adapter.from_stream(server.url, timeout_s=WAIT_S)
        loading = adapter.loaders[loader](dataset)
        kept = []
        for arrays in loading:
            kept.append([adapter.to_numpy(array) for array in arrays])
            if kept[-1][0].flags.writeable:
                kept[-1][0][0] = 255  # which must change no other
        del loading
        adapter.close(dataset)
    found = []
    for images, labels in kept:
        found.append(int(labels[0]))
        assert (images[1:] == found[-1]).all()
        assert (images[0] == (255 if images.flags.writeable else found[-1])).all()
        assert (labels == found[-1]).all()
    assert sorted(found) == list(range(40))


def test_layout_is_converted_as_stated(adapter: Adapter) -> None:
    with LoopbackServer([batch(3)]) as server:
        dataset = adapter.from_stream(server.url, layout=("NHWC", "NCHW"), timeout_s=20)
        ((images, _),) = list(dataset)
        adapter.close(dataset)
    np.testing.assert_array_equal(adapter.to_numpy(images), batch(3)[0].transpose(0, 3, 1, 2))
