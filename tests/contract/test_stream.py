"""What every adapter promises of a stream, whatever the framework."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zmq
from contract_adapters import ADAPTERS, Adapter, error_of
from numpy.typing import NDArray

from tensorcom import tenbin
from tensorcom.testing.loopback import LoopbackServer

DTYPES = ["u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", "c8", "c16", ml_dtypes.bfloat16]


def batch(number: int, samples: int = 4) -> list[NDArray[Any]]:
    """Return images whose pixels and labels tell their number."""
    images = np.random.default_rng(number).integers(0, 256, (samples, 6, 5, 3), np.uint8)
    return [images, np.full((samples,), number, np.int32)]


def numbers(batches: Any, adapter: Adapter) -> list[int]:
    """Return the number of each batch, having checked its pixels."""
    found = []
    for images, labels in batches:
        number = int(adapter.to_numpy(labels)[0])
        np.testing.assert_array_equal(adapter.to_numpy(images), batch(number)[0])
        found.append(number)
    return found


def counting() -> Iterator[list[NDArray[Any]]]:
    number = 0
    while True:
        yield batch(number)
        number += 1


def test_arrays_arrive_bit_equal_in_order(adapter: Adapter) -> None:
    rng = np.random.default_rng(0)
    shapes = [(3, 4), (1,), (0, 5), (2, 3, 4, 5)]
    streams = [[shape] for shape in shapes if shape[0]] if adapter.has_one_form else [shapes]
    dtypes = [np.dtype(dtype) for dtype in DTYPES if np.dtype(dtype).name not in adapter.lacks]
    for stream in streams:
        sent = [[rng.integers(0, 2, shape).astype(dtype) for dtype in dtypes] for shape in stream]
        with LoopbackServer(sent) as server:
            dataset = adapter.from_stream(server.url, timeout_s=20)
            received = [[adapter.to_numpy(a) for a in arrays] for arrays in dataset]
            adapter.close(dataset)
        assert len(received) == len(sent)
        for got, expected in zip(received, sent, strict=True):
            assert [a.dtype for a in got] == [a.dtype for a in expected]
            assert [a.shape for a in got] == [a.shape for a in expected]
            for a, b in zip(got, expected, strict=True):
                assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_each_message_once_to_the_end_of_the_stream(
    adapter: Adapter, loader: str, scheme: str
) -> None:
    readers = adapter.workers.get(loader, 1)
    batches = [batch(number) for number in range(23)]
    with LoopbackServer(batches, scheme=scheme, readers=readers) as server:
        dataset = adapter.from_stream(server.url, timeout_s=30)
        found = numbers(adapter.loaders[loader](dataset), adapter)
        adapter.close(dataset)
    assert Counter(found) == Counter(range(23))
    if readers == 1:
        assert found == list(range(23))


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


def test_length_without_one_is_a_type_error(adapter: Adapter) -> None:
    with pytest.raises(TypeError, match="length"):
        len(adapter.from_stream("zrpull://127.0.0.1:7880"))


def test_a_server_that_is_not_there_is_a_timeout_with_our_text(
    adapter: Adapter, loader: str
) -> None:
    with LoopbackServer([]) as server:
        url = server.url
    dataset = adapter.from_stream(url, timeout_s=0.5)
    error = error_of(adapter.loaders[loader](dataset))
    assert isinstance(error, TimeoutError)
    assert re.search(r"no message in 0\.5 s .*is the server running", str(error), re.DOTALL)
    assert url in str(error)
    adapter.close(dataset)


def test_a_server_that_dies_is_a_timeout_that_says_when_it_was_seen(adapter: Adapter) -> None:
    seen = r"no message in 1 s .*last message from \w+ [\d.]+ s ago"
    with LoopbackServer([batch(0)], end=False) as server:
        dataset = adapter.from_stream(server.url, timeout_s=1)
        batches = iter(dataset)
        assert numbers([next(batches)], adapter) == [0]
    with pytest.raises(TimeoutError, match=seen):
        next(batches)
    adapter.close(dataset)


def test_a_bad_message_raises_and_the_stream_goes_on(adapter: Adapter) -> None:
    bad = [b"f4 but no header", b"\x80\x04pickle"]
    with Feed(bad, tenbin.encode_list(batch(1))) as feed:
        dataset = adapter.from_stream(feed.url, timeout_s=10)
        with pytest.raises(ValueError, match="message"):
            next(iter(dataset))
        assert numbers([next(iter(dataset))], adapter) == [1]
        adapter.close(dataset)


def test_a_bad_message_is_skipped_when_told_so(adapter: Adapter) -> None:
    bad = [b"\0" * 40, b"", b"junk"]
    with Feed(tenbin.encode_list(batch(0)), bad, tenbin.encode_list(batch(1))) as feed:
        dataset = adapter.from_stream(feed.url, length=2, timeout_s=10, on_bad_message="skip")
        assert numbers(dataset, adapter) == [0, 1]
        adapter.close(dataset)


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


def test_what_was_handed_over_is_never_touched_again(adapter: Adapter) -> None:
    def reusing() -> Iterator[list[NDArray[Any]]]:
        images, labels = batch(0, samples=64)
        images = np.repeat(np.repeat(images, 8, axis=1), 8, axis=2)  # large enough to be pooled
        for number in range(40):
            images[...] = number
            labels[...] = number
            yield [images, labels]

    with LoopbackServer(reusing()) as server:
        dataset = adapter.from_stream(server.url, timeout_s=20)
        kept = [[adapter.to_numpy(a) for a in arrays] for arrays in dataset]
        adapter.close(dataset)
    assert len(kept) == 40
    for number, (images, labels) in enumerate(kept):
        assert (images == number).all()
        assert (labels == number).all()


def test_layout_is_converted_as_stated(adapter: Adapter) -> None:
    with LoopbackServer([batch(3)]) as server:
        dataset = adapter.from_stream(server.url, layout=("NHWC", "NCHW"), timeout_s=20)
        ((images, _),) = list(dataset)
        adapter.close(dataset)
    np.testing.assert_array_equal(adapter.to_numpy(images), batch(3)[0].transpose(0, 3, 1, 2))


def test_a_break_after_the_first_batch_ends_the_process(adapter: Adapter, loader: str) -> None:
    script = textwrap.dedent("""
        import sys
        import test_stream
        from contract_adapters import ADAPTERS
        from tensorcom.testing.loopback import LoopbackServer

        if __name__ == "__main__":
            adapter, loader = ADAPTERS[sys.argv[1]], sys.argv[2]
            server = LoopbackServer(test_stream.counting(), readers=1)
            server.__enter__()
            dataset = adapter.from_stream(server.url, timeout_s=30)
            for images, labels in adapter.loaders[loader](dataset):
                break
            server.__exit__()
            print("done")
    """)
    name = next(name for name, entry in ADAPTERS.items() if entry is adapter)
    done = subprocess.run(
        [sys.executable, "-c", script, name, loader],
        cwd=__file__.rpartition("/")[0],
        env={**os.environ, **adapter.quiet},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


class Feed:
    """A foreign PUSH socket that sends any frames, once a reader is there."""

    def __init__(self, *messages: list[Any]) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.linger = 0
        self.url = f"zrpull://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._messages = messages
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        for frames in self._messages:
            self._socket.send_multipart(frames)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._socket.close()
        self._context.term()
