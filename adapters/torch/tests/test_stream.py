"""TensorcomDataset without loader workers: arguments, iterations, tensors, errors."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import distributed

from tensorcom import Connection, Message, MessageError, ReceiveTimeoutError, ZmqUrlError
from tensorcom.converters import to_tensor
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset, from_stream

WAIT_S = 30
SAMPLES = 4


def batch(number: int, samples: int = SAMPLES) -> list[NDArray[Any]]:
    """Return images of which each pixel is the sample's id, and the ids."""
    ids = np.arange(samples, dtype="i4") + number * samples
    return [np.broadcast_to(ids.reshape(-1, 1, 1, 1) % 251, (samples, 4, 3, 2)).astype("u1"), ids]


def counting() -> Iterator[list[NDArray[Any]]]:
    number = 0
    while True:
        yield batch(number)
        number += 1


def ids(batches: Any) -> list[int]:
    """Return the sample ids of batches, having checked their pixels."""
    found: list[int] = []
    for images, labels in batches:
        assert torch.equal(images[:, 0, 0, 0], (labels % 251).to(torch.uint8))
        found.extend(labels.tolist())
    return found


def read_all(datasets: list[Any]) -> list[list[int]]:
    """Iterate data sets to their ends at the same time."""
    with ThreadPoolExecutor(len(datasets)) as threads:
        return list(threads.map(ids, datasets))


# -- length --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 5])
def test_length_is_the_number_of_batches_and_the_next_iteration_goes_on(length: int) -> None:
    with (
        LoopbackServer(counting()) as server,
        closing(TensorcomDataset(server.url, length=length, timeout_s=WAIT_S)) as dataset,
    ):
        assert len(dataset) == length
        seen = [ids(dataset) for _ in range(3)]
    assert [len(found) for found in seen] == [length * SAMPLES] * 3
    assert sum(seen, []) == list(range(3 * length * SAMPLES))


def test_without_length_it_iterates_to_the_end_and_has_no_len() -> None:
    with (
        LoopbackServer([batch(n) for n in range(5)]) as server,
        closing(TensorcomDataset(server.url, timeout_s=WAIT_S)) as dataset,
    ):
        with pytest.raises(TypeError, match="length of this stream is unknown; give length=N"):
            len(dataset)
        assert ids(dataset) == list(range(5 * SAMPLES))


def test_a_stream_shorter_than_length_ends_quietly() -> None:
    with (
        LoopbackServer([batch(0), batch(1)]) as server,
        closing(TensorcomDataset(server.url, length=9, timeout_s=WAIT_S)) as dataset,
    ):
        assert ids(dataset) == list(range(2 * SAMPLES))


# -- converters, transforms, layout --------------------------------------------------------------


def one_batch(arrays: list[Any], **arguments: Any) -> list[Any]:
    with (
        LoopbackServer([arrays]) as server,
        closing(TensorcomDataset(server.url, timeout_s=WAIT_S, **arguments)) as dataset,
    ):
        (found,) = list(dataset)
    assert type(found) is list
    return found


ARRAYS = [np.ones((2, 3), "u1"), np.arange(2, dtype="i4"), np.ones(2, "f2"), np.ones(2, "u2")]


@pytest.mark.parametrize(
    ("converters", "kinds"),
    [
        (None, [torch.uint8, torch.int32, torch.float16, torch.uint16]),
        ("torch", [torch.uint8, torch.int64, torch.float32, torch.int64]),
        ("numpy", [np.dtype(name) for name in ("u1", "i4", "f2", "u2")]),
        (torch.from_numpy, [torch.uint8, torch.int32, torch.float16, torch.uint16]),
        (
            [torch.from_numpy, None],
            [torch.uint8, np.dtype("i4"), torch.float16, np.dtype("u2")],
        ),
        (
            [None, lambda labels: torch.from_numpy(labels).double(), None, torch.from_numpy],
            [np.dtype("u1"), torch.float64, np.dtype("f2"), torch.uint16],
        ),
    ],
    ids=["none", "torch", "numpy", "callable", "fewer", "positions"],
)
def test_converters(converters: Any, kinds: list[Any]) -> None:
    found = one_batch(ARRAYS, converters=converters)
    assert [value.dtype for value in found] == kinds
    assert found[1].tolist() == [0, 1]


def test_batch_transforms_see_numpy_arrays_in_the_sent_layout_before_converters() -> None:
    seen: list[Any] = []

    def add_one(images: Any) -> Any:
        seen.append((type(images), images.shape))
        return images + 1

    images, labels = one_batch(
        batch(0), batch_transforms=[add_one, None], layout=("NHWC", "NCHW"), converters="torch"
    )
    assert seen == [(np.ndarray, (SAMPLES, 4, 3, 2))]
    assert images.shape == (SAMPLES, 2, 4, 3)
    assert images[:, 0, 0, 0].tolist() == [1, 2, 3, 4]
    assert labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("layout", [("NHWC", "NCHW"), ("NCHW", "NHWC"), ("NHWC", "NHWC"), None])
def test_layout_moves_axes_as_stated(layout: Any) -> None:
    sent = np.random.default_rng(0).integers(0, 255, (2, 3, 4, 5), np.uint8)
    order = (0, 1, 2, 3)
    if layout and layout[0] != layout[1]:
        order = (0, 3, 1, 2) if layout[1] == "NCHW" else (0, 2, 3, 1)
    images, labels = one_batch([sent, np.arange(2, dtype="i4")], layout=layout)
    assert torch.equal(images, torch.from_numpy(sent.transpose(order)))
    assert labels.tolist() == [0, 1]


def test_bfloat16_and_float8_become_torch_tensors_of_the_same_bits() -> None:
    values = np.array([[-1.5, 0.0, 3.25, np.inf]], "f4")
    kinds = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
    sent = [values.astype(getattr(ml_dtypes, kind)) for kind in kinds]
    for value, array, kind in zip(one_batch(sent), sent, kinds, strict=True):
        assert value.dtype == getattr(torch, kind)
        assert np.array_equal(value.float().numpy(), array.astype("f4"), equal_nan=True)


def test_byte_strings_stay_numpy_arrays() -> None:
    captions = np.array([b"a cat", b"", b"two dogs"])
    (found,) = one_batch([captions])
    assert isinstance(found, np.ndarray)
    assert found.dtype == captions.dtype
    assert found.tolist() == captions.tolist()


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [None, ("NHWC", "NCHW")])
@pytest.mark.parametrize("side", [2, 256], ids=["small", "pooled"])
def test_tensors_are_the_received_memory_aligned_and_writable(side: int, layout: Any) -> None:
    received: list[NDArray[Any]] = []

    def keep(array: NDArray[Any]) -> Any:
        received.append(array)
        return to_tensor(array)

    sent = [np.ones((3, side, side, 3), "u1"), np.ones(3, "f4"), np.zeros((0, 2), "i2")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = one_batch(sent, converters=keep, layout=layout)
        for tensor in found:
            tensor.add_(1)
    for tensor, array in zip(found, received, strict=True):
        assert array.flags.writeable
        assert np.shares_memory(tensor.numpy(), array) or not array.size
        assert array.ctypes.data % 64 == 0
        assert tensor.numel() == 0 or tensor.data_ptr() == array.ctypes.data
        assert (array == 2).all()


def test_by_default_tensors_are_aligned_and_shared_with_nothing() -> None:
    with (
        LoopbackServer([[np.full((64, 64, 64), n, "u1")] for n in range(9)]) as server,
        closing(TensorcomDataset(server.url, timeout_s=WAIT_S)) as dataset,
    ):
        kept = []
        for (images,) in dataset:
            assert images.data_ptr() % 64 == 0
            kept.append(images.add_(100))
    assert [images.unique().tolist() for images in kept] == [[n + 100] for n in range(9)]
    assert len({images.data_ptr() for images in kept}) == 9


# -- bad messages, infos, options ----------------------------------------------------------------


def labelled() -> list[Message]:
    return [Message(batch(n), ["image", "label" if n % 2 == 0 else "other"]) for n in range(5)]


def test_a_message_with_other_infos_is_an_error_and_the_stream_goes_on() -> None:
    with (
        LoopbackServer(labelled()) as server,
        closing(
            TensorcomDataset(server.url, infos=["image", "label"], timeout_s=WAIT_S)
        ) as dataset,
    ):
        iterator = iter(dataset)
        assert next(iterator)[1][0] == 0
        with pytest.raises(MessageError, match=r"\['image', 'other'\], expected"):
            next(iterator)
        assert next(iter(dataset))[1][0] == 2 * SAMPLES


def test_messages_with_other_infos_are_skipped_when_told_so() -> None:
    with (
        LoopbackServer(labelled()) as server,
        closing(
            TensorcomDataset(
                server.url, infos=["image", "label"], on_bad_message="skip", timeout_s=WAIT_S
            )
        ) as dataset,
    ):
        assert [int(labels[0]) // SAMPLES for _, labels in dataset] == [0, 2, 4]


def test_a_url_option_overrides_the_argument() -> None:
    with LoopbackServer([]) as server:
        url = server.url
    with (
        closing(TensorcomDataset(f"{url}?timeout_s=0.2", timeout_s=600)) as dataset,
        pytest.raises(ReceiveTimeoutError) as caught,
    ):
        next(iter(dataset))
    assert caught.value.timeout_s == 0.2


def test_further_options_are_the_connections() -> None:
    with (
        LoopbackServer(counting()) as server,
        closing(
            TensorcomDataset(server.url, total=8, hwm=1, device="cpu", timeout_s=WAIT_S)
        ) as dataset,
    ):
        assert ids(dataset) == list(range(8))


def test_timeout_names_the_servers_and_the_next_iteration_tries_again() -> None:
    with LoopbackServer([]) as server:
        url = server.url
    for rebatch in (None, 2):
        with closing(TensorcomDataset(url, rebatch=rebatch, timeout_s=0.1)) as dataset:
            for _ in range(3):
                with pytest.raises(ReceiveTimeoutError, match="is the server running") as caught:
                    list(dataset)
                assert url in str(caught.value)


@pytest.mark.parametrize("url", ["zpush://127.0.0.1:1", "zrpub://127.0.0.1:1", "zpub://:1"])
def test_a_sending_url_is_an_error(url: str) -> None:
    with pytest.raises(ZmqUrlError, match="sends; a data set receives") as caught:
        TensorcomDataset(["zsub://127.0.0.1:2", url])
    assert caught.value.url == url


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"shuffle": 10}, ValueError, "shuffle=10 needs rebatch"),
        ({"shuffle": -1, "rebatch": 1}, ValueError, "shuffle=-1, expected 0 or more"),
        ({"rebatch": 0}, ValueError, "rebatch=0, expected 1 or more"),
        ({"length": -1}, ValueError, "length=-1, expected 0 or more"),
        ({"layout": ("NHWC", "CHWN")}, ValueError, "expected"),
        ({"converters": "tensor"}, ValueError, "'tensor' is not one of numpy, torch"),
        ({"on_bad_message": "ignore"}, ValueError, "'ignore' is not one of"),
        ({"timeout": 3}, TypeError, "'?timeout'?"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_arguments_are_errors_at_once(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        TensorcomDataset("zrpull://127.0.0.1:1", **arguments)


@pytest.mark.parametrize("urls", [[], ["zsub://127.0.0.1:1", "zrpull://127.0.0.1:2"], "http://x"])
def test_wrong_urls_are_errors_at_once(urls: Any) -> None:
    with pytest.raises(ZmqUrlError):
        TensorcomDataset(urls)


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
            (float(v), text) for texts, values in found for text, v in zip(texts, values)
        )
        assert [len(texts) for texts, _ in found] == [2, 2, 2]
        assert all(values.dtype == torch.bfloat16 for _, values in found)
        assert pairs == list(zip(range(6), [b"a", b"long", b"mid"] * 2))


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
        closing(
            TensorcomDataset(server.url, infos=["ok"], rebatch=3, timeout_s=WAIT_S)
        ) as dataset,
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
        epochs = [ids(dataset) for _ in range(4)]
    assert sorted(sum(epochs, [])) == list(range(13 * SAMPLES))
    assert [len(found) // SAMPLES for found in epochs] == [6, 6, 1, 0]


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
        serving.result()


# -- ranks ---------------------------------------------------------------------------------------


def parts(scheme: str, datasets: list[Any], server: LoopbackServer) -> list[list[int]]:
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
    for rank, found in enumerate(parts("zpub", datasets, server)):
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
    assert parts("zrpush", [dataset], server) == [list(range(6 * SAMPLES))]


def seqs_of_a_publisher(dataset_of: Any) -> list[int]:
    server = LoopbackServer([batch(n) for n in range(6)], scheme="zpub")
    (found,) = parts("zpub", [dataset_of(server.url)], server)
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
