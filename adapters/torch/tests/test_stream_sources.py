"""TensorcomDataset in one process: rebatching, several sources, ends, ranks."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from stream_helpers import SAMPLES, WAIT_S, batch, counting, ids, read_all
from torch import distributed

from tensorcom import Connection, Message, MessageError, ReceiveTimeoutError
from tensorcom.progress import Progress
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset, from_stream

# -- rebatch and shuffle -------------------------------------------------------------------------


def test_rebatch_yields_batches_of_its_size_and_the_rest_at_the_end() -> None:
    with (
        LoopbackServer([batch(n) for n in range(5)]) as server,
        closing(TensorcomDataset(server.url, rebatch=6, timeout_s=WAIT_S)) as dataset,
    ):
        found = list(dataset)
    assert all(type(values) is list for values in found)
    assert [len(labels) for _, labels in found] == [6, 6, 6, 2]
    assert ids(found) == list(range(20))


@pytest.mark.parametrize("shuffle", [0, 7])
def test_length_counts_rebatched_batches_and_leftovers_go_on(shuffle: int) -> None:
    with (
        LoopbackServer([batch(n) for n in range(15)]) as server,
        closing(
            TensorcomDataset(server.url, length=4, rebatch=5, shuffle=shuffle, timeout_s=WAIT_S)
        ) as dataset,
    ):
        epochs = [list(dataset) for _ in range(3)]
        assert list(dataset) == []
    sizes = [[len(labels) for _, labels in epoch] for epoch in epochs]
    assert sizes == [[5] * 4] * 3
    found = ids(sum(epochs, []))
    assert sorted(found) == list(range(60))
    assert (found == list(range(60))) == (shuffle == 0)


def test_rebatched_tensors_are_writable_and_on_their_own() -> None:
    with (
        LoopbackServer([batch(0, 12)]) as server,
        closing(TensorcomDataset(server.url, rebatch=3, timeout_s=WAIT_S)) as dataset,
    ):
        found = [labels.mul_(10) for _, labels in dataset]
    assert torch.cat(found).tolist() == list(range(0, 120, 10))


def test_rebatch_keeps_byte_strings_and_bfloat16() -> None:
    sent = [
        [np.array([b"a", b"long", b"mid"]), np.array([n, n + 1, n + 2], ml_dtypes.bfloat16)]
        for n in (0, 3)
    ]
    for shuffle in (0, 4):
        with (
            LoopbackServer(sent) as server,
            closing(
                TensorcomDataset(server.url, rebatch=2, shuffle=shuffle, timeout_s=WAIT_S)
            ) as dataset,
        ):
            found = list(dataset)
        pairs = sorted(
            (float(v), text)
            for texts, values in found
            for text, v in zip(texts, values, strict=True)
        )
        assert [len(texts) for texts, _ in found] == [2, 2, 2]
        assert all(values.dtype == torch.bfloat16 for _, values in found)
        assert pairs == list(zip(range(6), [b"a", b"long", b"mid"] * 2, strict=True))


def shuffled(seed: int | None) -> list[int]:
    with (
        LoopbackServer([batch(n) for n in range(8)]) as server,
        closing(
            TensorcomDataset(server.url, rebatch=4, shuffle=16, seed=seed, timeout_s=WAIT_S)
        ) as dataset,
    ):
        return ids(dataset)


def test_one_seed_gives_one_order() -> None:
    orders = [shuffled(1), shuffled(1), shuffled(2)]
    assert orders[0] == orders[1] != orders[2]
    assert all(sorted(order) == list(range(32)) for order in orders)


def test_without_a_seed_the_order_is_torchs() -> None:
    orders = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        orders.append(shuffled(None))
    assert orders[0] == orders[1] != orders[2]


def test_a_bad_message_does_not_end_a_rebatched_stream() -> None:
    messages = [Message([np.arange(3, dtype="i4")], ["ok" if n != 1 else "bad"]) for n in range(4)]
    with (
        LoopbackServer(messages) as server,
        closing(TensorcomDataset(server.url, infos=["ok"], rebatch=3, timeout_s=WAIT_S)) as dataset,
    ):
        iterator = iter(dataset)
        assert next(iterator)[0].tolist() == [0, 1, 2]
        with pytest.raises(MessageError):
            next(iterator)
        assert [values.tolist() for (values,) in dataset] == [[0, 1, 2]] * 2


# -- several sources, topics, ends ---------------------------------------------------------------


def test_braces_expand_to_several_servers() -> None:
    with (
        LoopbackServer([batch(n) for n in range(4)]) as one,
        LoopbackServer([batch(n) for n in range(4, 9)]) as two,
    ):
        ports = ",".join(server.url.rpartition(":")[2] for server in (one, two))
        url = f"zrpull://127.0.0.1:{{{ports}}}"
        with closing(TensorcomDataset(url, timeout_s=WAIT_S)) as dataset:
            found = ids(dataset)
    assert sorted(found) == list(range(9 * SAMPLES))
    assert [n for n in found if n < 16] == list(range(16)), "a server's own order is kept"


def test_sources_may_end_in_different_iterations() -> None:
    with (
        LoopbackServer([batch(n) for n in range(2)]) as one,
        LoopbackServer([batch(n) for n in range(2, 13)]) as two,
        closing(TensorcomDataset([one.url, two.url], length=6, timeout_s=5)) as dataset,
    ):
        epochs = [ids(dataset) for _ in range(3)]
    assert sorted(sum(epochs, [])) == list(range(13 * SAMPLES))
    assert [len(found) // SAMPLES for found in epochs] == [6, 6, 1]


def test_a_message_for_which_an_iteration_has_no_room_begins_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        LoopbackServer([batch(n) for n in range(3)]) as server,
        closing(TensorcomDataset(server.url, timeout_s=WAIT_S)) as dataset,
    ):
        with monkeypatch.context() as patch:  # another worker takes the last while this one waits
            patch.setattr(Progress, "claim", lambda self: False)
            assert ids(dataset) == []
        assert ids(dataset) == list(range(3 * SAMPLES))


def test_a_topic_in_the_url_filters_exactly() -> None:
    def topics() -> Iterator[Message]:
        for number, topic in enumerate([b"train", b"test", b"training", b"train"]):
            yield Message(batch(number), topic=topic)

    with (
        LoopbackServer(topics(), scheme="zpub") as server,
        closing(TensorcomDataset(f"{server.url}#train", timeout_s=WAIT_S)) as dataset,
    ):
        assert [int(labels[0]) // SAMPLES for _, labels in dataset] == [0, 3]


@pytest.mark.parametrize("rebatch", [None, SAMPLES])
def test_two_iterators_at_once_share_the_stream(rebatch: int | None) -> None:
    with (
        LoopbackServer([batch(n) for n in range(6)]) as server,
        closing(TensorcomDataset(server.url, rebatch=rebatch, timeout_s=5)) as dataset,
    ):
        one, two = iter(dataset), iter(dataset)
        pairs = [(int(a[1][0]), int(b[1][0])) for a, b in zip(one, two, strict=True)]
    assert pairs == [(0, 4), (8, 12), (16, 20)]


def test_a_break_loses_nothing() -> None:
    with (
        LoopbackServer([batch(n) for n in range(9)]) as server,
        closing(TensorcomDataset(server.url, timeout_s=WAIT_S)) as dataset,
    ):
        first = [next(iter(dataset))]
        for values in dataset:
            first.append(values)
            if len(first) == 4:
                break
        assert ids(first + list(dataset)) == list(range(9 * SAMPLES))


def test_close_ends_the_connection_and_iterating_opens_another() -> None:
    dataset = TensorcomDataset("zrpull://127.0.0.1:1")
    dataset.close()  # never opened
    with LoopbackServer(counting()) as server:
        dataset = TensorcomDataset(server.url, length=2, timeout_s=WAIT_S)
        assert ids(dataset) == list(range(2 * SAMPLES))
        dataset.close()
        dataset.close()
        assert len(ids(dataset)) == 2 * SAMPLES
        dataset.close()


def test_a_binding_url_serves_one_reader(tmp_path: Any) -> None:
    address = f"ipc://{tmp_path}/socket"
    with (
        closing(TensorcomDataset(f"zpull+{address}", timeout_s=WAIT_S)) as dataset,
        Connection(f"zpush+{address}") as server,
        ThreadPoolExecutor(1) as thread,
    ):
        serving = thread.submit(server.serve, [batch(0), batch(1)], end="stream")
        assert ids(dataset) == list(range(2 * SAMPLES))
        dataset.close()  # the server waits for it to read its end word, or to go
        serving.result(WAIT_S)


# -- ranks ---------------------------------------------------------------------------------------


def parts(datasets: list[Any], server: LoopbackServer) -> list[list[int]]:
    with server:
        found = read_all(datasets)
        for dataset in datasets:
            dataset.close()
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_split_a_publisher_by_number(ranks: int) -> None:
    server = LoopbackServer([batch(n) for n in range(8)], scheme="zpub", readers=ranks)
    datasets = [
        TensorcomDataset(server.url, shard=(rank, ranks), timeout_s=WAIT_S) for rank in range(ranks)
    ]
    for rank, found in enumerate(parts(datasets, server)):
        assert [n // SAMPLES for n in found[::SAMPLES]] == list(range(rank, 8, ranks))


def test_ranks_deal_out_publishers() -> None:
    sent = [[batch(10 * server + n) for n in range(3)] for server in range(3)]
    servers = [LoopbackServer(batches, scheme="zpub") for batches in sent]
    urls = [server.url for server in servers]
    datasets = [TensorcomDataset(urls, shard=(rank, 2), timeout_s=WAIT_S) for rank in range(2)]
    with servers[0], servers[1], servers[2]:
        found = read_all(datasets)
        for dataset in datasets:
            dataset.close()
    assert [sorted({n // SAMPLES // 10 for n in part}) for part in found] == [[0, 2], [1]]
    assert [len(part) // SAMPLES for part in found] == [6, 3]


def test_ranks_share_a_pushing_server_whatever_their_shard() -> None:
    server = LoopbackServer([batch(n) for n in range(6)])
    dataset = TensorcomDataset(server.url, shard=(1, 2), timeout_s=WAIT_S)
    assert parts([dataset], server) == [list(range(6 * SAMPLES))]


def seqs_of_a_publisher(dataset_of: Any) -> list[int]:
    server = LoopbackServer([batch(n) for n in range(6)], scheme="zpub")
    (found,) = parts([dataset_of(server.url)], server)
    return [n // SAMPLES for n in found[::SAMPLES]]


def test_the_shard_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert seqs_of_a_publisher(lambda url: TensorcomDataset(url, timeout_s=WAIT_S)) == [1, 4]
    assert seqs_of_a_publisher(
        lambda url: TensorcomDataset(url, shard=(0, 2), timeout_s=WAIT_S)
    ) == [0, 2, 4]


def test_the_shard_is_torch_distributeds_though_it_starts_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")

    def made_early(url: str) -> Any:
        dataset = TensorcomDataset(url, timeout_s=WAIT_S)
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_rank", lambda: 2)
        monkeypatch.setattr(distributed, "get_world_size", lambda: 3)
        return dataset

    assert seqs_of_a_publisher(made_early) == [2, 5]


def test_a_pickle_for_a_worker_carries_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    def pickled_in_a_rank(url: str) -> Any:
        dataset = TensorcomDataset(url, timeout_s=WAIT_S)
        with monkeypatch.context() as patch:
            patch.setattr(distributed, "is_initialized", lambda: True)
            patch.setattr(distributed, "get_rank", lambda: 1)
            patch.setattr(distributed, "get_world_size", lambda: 2)
            data = pickle.dumps(dataset)
        return pickle.loads(data)

    assert seqs_of_a_publisher(pickled_in_a_rank) == [1, 3, 5]


# -- the shared constructor ----------------------------------------------------------------------


def test_from_stream_passes_its_arguments_on() -> None:
    with (
        LoopbackServer(counting()) as server,
        closing(
            from_stream(server.url, length=2, layout=("NHWC", "NCHW"), timeout_s=WAIT_S)
        ) as dataset,
    ):
        assert isinstance(dataset, TensorcomDataset)
        shapes = [tuple(images.shape) for images, _ in dataset]
    assert shapes == [(SAMPLES, 2, 4, 3)] * 2
    with LoopbackServer([]) as server:
        url = server.url
    with (
        closing(from_stream(url, timeout_s=0.1)) as dataset,
        pytest.raises(ReceiveTimeoutError, match=r"no message in 0\.1 s"),
    ):
        next(iter(dataset))
    with pytest.raises(ValueError, match="'never' is not one of"):
        from_stream(url, on_bad_message="never")


def test_a_pickle_is_the_configuration() -> None:
    with LoopbackServer(counting()) as server:
        dataset = TensorcomDataset(server.url, length=3, converters="torch", timeout_s=WAIT_S)
        with closing(dataset):
            assert ids(dataset) == list(range(3 * SAMPLES))
            copy = pickle.loads(pickle.dumps(dataset))
        with closing(copy):
            assert len(copy) == 3
            assert [labels.dtype for _, labels in copy] == [torch.int64] * 3
