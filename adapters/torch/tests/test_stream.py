"""TensorcomDataset without loader workers: arguments, iterations, tensors, errors."""

from __future__ import annotations

import warnings
from contextlib import closing
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stream_helpers import SAMPLES, WAIT_S, batch, counting, ids

from tensorcom import Message, MessageError, ReceiveTimeoutError, ZmqUrlError
from tensorcom.converters import to_tensor
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset

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
        if array.size:
            assert array.ctypes.data % 64 == 0
            assert tensor.data_ptr() == array.ctypes.data
            assert (array == array.flat[0]).all()
    assert [float(array.flat[0]) for array in received[:2]] == [2, 2]


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
        assert (dataset.stats.bad, dataset.stats.count) == (2, 5)


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


@pytest.mark.parametrize(
    "url", ["zpush://127.0.0.1:1", "zrpub://127.0.0.1:1", "zpub://127.0.0.1:1"]
)
def test_a_sending_url_is_an_error(url: str) -> None:
    with pytest.raises(ZmqUrlError, match="sends; a data set receives") as caught:
        TensorcomDataset(["zsub://127.0.0.1:2", url])
    assert caught.value.url == url


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"shuffle": 10}, ValueError, "shuffle=10 needs rebatch"),
        ({"shuffle": -1, "rebatch": 1}, ValueError, "shuffle=-1, expected at least 0"),
        ({"rebatch": 0}, ValueError, "rebatch=0, expected at least 1"),
        ({"length": -1}, ValueError, "length=-1, expected at least 0"),
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
