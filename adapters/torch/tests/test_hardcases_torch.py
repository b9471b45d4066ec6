"""Cases from public bug reports on tensors, each named by its id in the list of hard cases."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from tensorcom import Connection, TenbinError
from tensorcom.converters import to_tensor

DTYPES = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "bool"]
DTYPES += ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "complex64"]


@pytest.fixture
def trip():
    """Return a function that sends values and returns them as a reader with arguments gets them."""
    made = []

    def send(*values, **arguments):
        reader = Connection("zpull://127.0.0.1:0", timeout_s=30, **arguments)
        sender = Connection(reader.urls[0].replace("zpull", "zpush"), timeout_s=30, allow64=True)
        made.extend([sender, reader])
        sender.send(values)
        return reader.recv()

    yield send
    for connection in made:
        connection.close(flush=False)


@pytest.mark.parametrize("arguments", [{}, {"device": "cpu"}, {"converters": "torch"}])
@pytest.mark.parametrize("size", [3, 1_000_000])
def test_B14_received_batches_are_writable_without_a_warning(trip, arguments, size) -> None:
    sent = np.zeros((size,), "f4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (value,) = trip(sent, **arguments)
        tensor = value if arguments else torch.from_numpy(value)
        tensor.add_(1)
    assert tensor.sum() == size
    assert sent.sum() == 0


def test_B14_writing_into_a_batch_changes_no_other(trip) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader = Connection("zpull://127.0.0.1:0", timeout_s=30, device="cpu")
        with reader, Connection(reader.urls[0].replace("zpull", "zpush")) as sender:
            kept = []
            for number in range(20):
                sender.send([np.full((100_000,), number, "u1")])
                (tensor,) = reader.recv()
                tensor.add_(100)
                kept.append(tensor)
    assert [tensor.unique().tolist() for tensor in kept] == [[100 + n] for n in range(20)]


def test_B14_what_is_read_only_is_copied(trip) -> None:
    array = np.zeros(3, "f4")
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_tensor(array).add_(1)
    assert array.sum() == 0


@pytest.mark.parametrize("name", DTYPES)
def test_B16_a_dtype_arrives_exactly(trip, name) -> None:
    dtype = getattr(torch, name)
    tensor = torch.tensor([0.0, 1.0, 3.0]).to(dtype)
    (back,) = trip(tensor, device="cpu")
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_B16_bfloat16_is_no_other_type_on_the_way(trip) -> None:
    (array,) = trip(torch.tensor([1.5, -2.0]).bfloat16())
    assert array.dtype.name == "bfloat16"
    assert array.astype("f4").tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 3, requires_grad=True),
        torch.ones(2, 3, requires_grad=True) * 2,
        torch.arange(6).reshape(2, 3).T,
        torch.arange(6)[::2],
        torch.tensor([1 + 2j]).conj(),
        torch.ones(3).expand(4, 3),
        torch.tensor(2.5),
        torch.empty(0, 4),
    ],
    ids=["grad", "not a leaf", "transposed", "strided", "conjugate", "expanded", "0-d", "empty"],
)
def test_B16_any_tensor_arrives_with_its_values(trip, tensor) -> None:
    (back,) = trip(tensor, device="cpu")
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor.detach().resolve_conj())
    assert not back.requires_grad


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.eye(3).to_sparse(), "send .to_dense()"),
        (torch.empty(2, device="meta"), "meta device"),
    ],
    ids=["sparse", "meta"],
)
def test_B16_other_tensors_are_refused_by_name(trip, tensor, reason) -> None:
    with pytest.raises(TenbinError) as caught:
        trip(tensor)
    assert reason in str(caught.value)
