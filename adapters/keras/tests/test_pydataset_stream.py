"""StreamPyDataset: its options, and its life."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorcom import ClosedError, Connection, ReceiveTimeoutError, TransportError, ZmqUrlError
from tensorcom.message import Message
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_keras import StreamPyDataset

URL = "zrpull://127.0.0.1:7880"


def batches(size: int = 4) -> Iterator[list[np.ndarray]]:
    """Yield batches whose labels number the samples."""
    for start in itertools.count(0, size):
        yield [np.zeros((size, 2, 2, 3), np.uint8), np.arange(start, start + size, dtype=np.int32)]


def labels(taken: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in taken]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"urls": "zpush://127.0.0.1:7880"}, "zpush sends; a data set receives"),
        ({"urls": "http://127.0.0.1"}, "http"),
        ({"length": -1}, "length=-1, expected at least 0"),
        ({"rebatch": 0}, "rebatch=0, expected at least 1"),
        ({"shuffle": 5}, "shuffle=5 needs rebatch"),
        ({"shuffle": -1, "rebatch": 2}, "shuffle=-1, expected at least 0"),
        ({"layout": ("NHWC", "CHWN")}, "layout"),
        ({"on_bad_message": "ignore"}, "on_bad_message='ignore'"),
        ({"workers": 0}, "workers=0, expected at least 1"),
        ({"max_queue_size": 0}, "max_queue_size=0, expected at least 1"),
        ({"use_multiprocessing": True}, "share neither a socket"),
    ],
)
def test_wrong_arguments_are_errors_at_once(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        StreamPyDataset(**{"urls": URL, **arguments})
    with pytest.raises(TypeError, match="no_such_option"):
        StreamPyDataset(URL, no_such_option=1)


def test_its_length() -> None:
    assert len(StreamPyDataset(URL, length=3)) == StreamPyDataset(URL, length=3).num_batches == 3
    assert StreamPyDataset(URL).num_batches is None
    with pytest.raises(TypeError, match="give length=N"):
        len(StreamPyDataset(URL))


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_of_another_size_go_on_over_epochs(workers: int) -> None:
    with LoopbackServer(batches()) as server:
        data = StreamPyDataset(server.url, length=3, rebatch=3, workers=workers, timeout_s=20)
        found = labels(data) + labels(data)
        data.close()
    assert found == [[n, n + 1, n + 2] for n in range(0, 18, 3)]


def test_a_shuffle_is_that_of_its_seed_and_rank() -> None:
    orders = []
    for seed, rank in [(1, 0), (1, 0), (2, 0), (1, 1)]:
        with LoopbackServer(itertools.islice(batches(), 5)) as server:
            arguments = {"rebatch": 5, "shuffle": 8, "seed": seed, "shard": (rank, 2)}
            data = StreamPyDataset(server.url, timeout_s=20, **arguments)
            orders.append(sum(labels(data), []))
            data.close()
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders[0] == orders[1]
    assert orders[0] not in (orders[2], orders[3], list(range(20)))


def test_ranks_divide_publishers() -> None:
    with LoopbackServer(itertools.islice(batches(), 6), scheme="zpub", readers=2) as server:
        ranks = [StreamPyDataset(server.url, shard=(n, 2), timeout_s=20) for n in range(2)]
        found: list[Any] = [None, None]

        def read(rank: int) -> None:
            found[rank] = labels(ranks[rank])
            ranks[rank].close()

        threads = [threading.Thread(target=read, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    starts = [[batch[0] for batch in rank] for rank in found]
    assert starts == [[0, 8, 16], [4, 12, 20]]
    urls = [f"zsub://127.0.0.1:{port}" for port in (7880, 7881, 7882)]
    assert StreamPyDataset(urls, shard=(1, 2))._urls == urls[1:2]


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_messages_that_were_skipped_are_counted(workers: int) -> None:
    infos = ["images", "labels"]
    sent = [Message(next(batches()), infos if n != 1 else ["other", "ones"]) for n in range(3)]
    with LoopbackServer(sent) as server:
        data = StreamPyDataset(
            server.url, infos=infos, on_bad_message="skip", workers=workers, timeout_s=20
        )
        assert data.stats.bad == 0
        assert len(labels(data)) == 2
        assert (data.stats.bad, data.stats.count) == (1, 3)
        data.close()


def test_arrays_are_arranged_and_transformed() -> None:
    with LoopbackServer(batches()) as server:
        data = StreamPyDataset(
            server.url,
            length=1,
            batch_transforms=[lambda images: images + np.float32(0.5), None],
            layout=("NHWC", "NCHW"),
            arrange=lambda images, numbers: {"images": images, "numbers": numbers},
            timeout_s=20,
        )
        (batch,) = data
        data.close()
    assert batch["images"].shape == (4, 3, 2, 2)
    assert batch["images"].dtype == np.float32
    assert (batch["images"] == 0.5).all()
    assert batch["numbers"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_keras_looked_at_is_iterated_first(workers: int) -> None:
    with LoopbackServer(batches()) as server:
        data = StreamPyDataset(server.url, length=3, workers=workers, timeout_s=20)
        assert data[0][1].tolist() == [0, 1, 2, 3]
        assert data[1][1].tolist() == [4, 5, 6, 7]
        found = labels(data)
        data.close()
    assert found == [[n, n + 1, n + 2, n + 3] for n in (0, 4, 8)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_end_of_a_stream_is_an_error_to_keras_and_the_next_epoch_new(workers: int) -> None:
    with LoopbackServer(itertools.islice(batches(), 2)) as server:
        data = StreamPyDataset(server.url, length=3, workers=workers, timeout_s=20)
        data.on_epoch_begin()
        assert labels(data[i] for i in range(2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(TransportError, match="ended after 2 batches of this epoch; length=3"):
            data[2]
        data.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_after_the_end_of_a_stream_another_one_may_come(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "stream"
    data = StreamPyDataset(f"zpull+ipc://{path}", workers=workers, timeout_s=20)
    found = []
    for first in (0, 2):
        with Connection(f"zpush+ipc://{path}") as sender:
            sending = itertools.islice(batches(), first, first + 2)
            thread = threading.Thread(
                target=sender.serve, args=(sending,), kwargs={"end": "stream"}
            )
            thread.start()
            found += labels(data)
            thread.join()
    data.close()
    assert [batch[0] for batch in found] == [0, 4, 8, 12]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_timeout_is_an_error_and_the_stream_goes_on(workers: int) -> None:
    goes_on = threading.Event()

    def halting() -> Iterator[list[np.ndarray]]:
        for number, batch in enumerate(batches()):
            if number == 2:
                goes_on.wait(20)
            yield batch

    def patient(data: StreamPyDataset) -> list[int]:
        for _ in range(100):  # the machine may be slow
            try:
                return next(iter(data))[1].tolist()
            except ReceiveTimeoutError:
                continue
        raise AssertionError("nothing came")

    with LoopbackServer(halting()) as server:
        data = StreamPyDataset(server.url, length=4, workers=workers, timeout_s=0.3)
        assert [patient(data), patient(data)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(ReceiveTimeoutError, match=r"no message in 0\.3 s"):
            next(iter(data))
        goes_on.set()
        assert patient(data) == [8, 9, 10, 11]
        data.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_closing_ends_who_waits(workers: int) -> None:
    with LoopbackServer(itertools.islice(batches(), 1), end=False) as server:
        data = StreamPyDataset(server.url, workers=workers, timeout_s=None)
        assert data[0][1].tolist() == [0, 1, 2, 3]
        errors: list[Exception] = []
        waits = threading.Event()
        take = data._open().take

        def wait() -> None:
            data._open().take = lambda ahead: waits.set() or take(ahead)
            try:
                data[1]
            except ClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert waits.wait(20)
        data.close()
        thread.join()
    assert "closed while it waited for a batch" in str(errors[0])
    assert not [t for t in threading.enumerate() if t.name == "tensorcom-ahead"]


def test_a_data_set_that_reads_ahead_pickles_and_is_collected() -> None:
    with LoopbackServer(batches(), readers=1) as server:
        data = StreamPyDataset(server.url, length=2, workers=2, timeout_s=20)
        assert labels(data) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        copy = pickle.loads(pickle.dumps(data))
        (ahead,) = [t for t in threading.enumerate() if t.name == "tensorcom-ahead"]
        del data
        gc.collect()
        ahead.join(20)
        assert not ahead.is_alive()
        assert len(labels(copy)) == 2
        copy.close()


def test_urls_that_do_not_parse_are_named() -> None:
    with pytest.raises(ZmqUrlError, match="nonsense"):
        StreamPyDataset("nonsense")
