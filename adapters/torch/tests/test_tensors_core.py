"""Torch tensors through the core's tenbin codec."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from tensorcom.arrays import as_array
from tensorcom.converters import to_numpy, to_tensor
from tensorcom.errors import TenbinError
from tensorcom.tenbin import decode_buffer, encode_buffer, encode_list

NUMERIC = (
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "bool complex64 complex128"
)


@pytest.mark.parametrize("name", NUMERIC.split())
def test_numeric_tensors_share_their_memory(name):
    tensor = torch.ones(2, 3, dtype=getattr(torch, name))
    array = as_array(tensor)
    assert array.dtype.name == name
    assert np.array_equal(array, np.ones((2, 3)))
    assert array.__array_interface__["data"][0] == tensor.data_ptr()


@pytest.mark.parametrize(
    ("name", "bits"), [("bfloat16", "int16"), ("float8_e4m3fn", "uint8"), ("float8_e5m2", "uint8")]
)
def test_narrow_floats_keep_every_bit(name, bits):
    integers = torch.arange(-128, 128).to(torch.int16) * (257 if bits == "int16" else 1)
    tensor = integers.to(getattr(torch, bits)).view(getattr(torch, name)).reshape(16, 16)
    array = as_array(tensor)
    assert array.dtype == np.dtype(getattr(ml_dtypes, name))
    (found,) = decode_buffer(encode_buffer([tensor.T]))
    assert found.dtype == array.dtype
    assert found.tobytes() == np.ascontiguousarray(array.T).tobytes()
    assert array.tobytes() == tensor.view(getattr(torch, bits)).numpy().tobytes()


def test_0d_bfloat16():
    array = as_array(torch.tensor(1.5, dtype=torch.bfloat16))
    assert (array.shape, float(array)) == ((), 1.5)


def test_gradients_are_left_behind():
    tensor = torch.arange(3.0, requires_grad=True)
    for value in (tensor, tensor * 2, torch.nn.Parameter(torch.arange(3.0))):
        assert as_array(value).tolist() == value.detach().tolist()
    assert (
        as_array(torch.ones(2, dtype=torch.bfloat16, requires_grad=True)).dtype.name == "bfloat16"
    )


def test_lazy_conjugates_and_negatives_are_resolved():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert as_array(tensor.conj()).tolist() == [1 - 2j, 3 + 4j]
    assert as_array(tensor.conj().imag).tolist() == [-2.0, 4.0]


def test_contiguous_tensors_are_not_copied():
    tensor = torch.zeros(4, dtype=torch.int32)
    _, data = encode_list([tensor])
    tensor[0] = 7
    assert bytes(data[:4]) == b"\7\0\0\0"


def test_views_of_any_stride_arrive_equal():
    tensor = torch.arange(24).reshape(2, 3, 4)
    views = [tensor.permute(2, 0, 1), tensor[:, ::2], tensor[0, 0].expand(3, 4), tensor[:, :0]]
    for view, found in zip(views, decode_buffer(encode_buffer(views)), strict=True):
        assert found.shape == tuple(view.shape)
        assert np.array_equal(found, view.numpy())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.eye(2).to_sparse(), "the torch tensor is not dense: send .to_dense()"),
        (
            lambda: torch.empty(2, device="meta"),
            "the torch tensor is on the meta device and has no data",
        ),
    ],
)
def test_tensors_without_plain_memory_are_refused(make, reason):
    with pytest.raises(TenbinError) as caught:
        as_array(make(), index=1)
    assert (caught.value.reason, caught.value.index) == (reason, 1)


def test_dtypes_that_numpy_lacks_are_refused_by_name():
    with pytest.raises(TenbinError, match=r"^array 0: a torch tensor of float8_e4m3fnuz cannot be"):
        encode_buffer([torch.zeros(2, dtype=torch.float8_e4m3fnuz)])


def test_tensors_become_arrays_of_the_same_bits() -> None:
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    found = to_numpy(tensor)
    assert found.dtype.name == "bfloat16"
    assert torch.equal(to_tensor(found), tensor)
    assert to_numpy("text") == "text"
