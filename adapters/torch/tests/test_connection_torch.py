"""Connection with torch: devices, converters, and the pipelines of WebDataset."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
import webdataset as wds

from tensorcom import Connection


def batch(number: int) -> list[np.ndarray]:
    return [np.full((4, 2, 3, 1), number, "u1"), np.full(4, number, "i4")]


@pytest.fixture
def pair(request):
    """Return a function that makes a sender and a reader with the given arguments."""
    made = []

    def make(**arguments):
        reader = Connection("zpull://127.0.0.1:0", timeout_s=30, **arguments)
        sender = Connection(reader.urls[0].replace("zpull", "zpush"), timeout_s=30, allow64=True)
        made.extend([sender, reader])
        return sender, reader

    yield make
    for connection in made:
        connection.close(flush=False)


def test_device_yields_tensors_with_the_dtypes_that_were_sent(pair) -> None:
    sender, reader = pair(device="cpu")
    sender.send(batch(3))
    images, labels = reader.recv()
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int32)
    assert (images.device.type, images.shape) == ("cpu", (4, 2, 3, 1))
    assert images.unique().tolist() == labels.unique().tolist() == [3]


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("u1", torch.uint8),
        ("?", torch.bool),
        ("i1", torch.int8),
        ("i4", torch.int64),
        ("u2", torch.int64),
        ("i8", torch.int64),
        ("f2", torch.float32),
        ("f4", torch.float32),
        ("f8", torch.float32),
    ],
)
def test_the_torch_converter_yields_what_training_wants(pair, sent, received) -> None:
    sender, reader = pair(converters="torch")
    sender.send([np.arange(2).astype(sent)])
    (tensor,) = reader.recv()
    assert tensor.dtype == received
    assert tensor.tolist() == [0, 1]


def test_converters_on_a_device(pair) -> None:
    sender, reader = pair(device="cpu", converters=[lambda a: a.astype("f4") / 255, None])
    sender.send(batch(255))
    images, labels = reader.recv()
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int32)
    assert images.max() == 1


def test_the_meta_device_gets_no_data(pair) -> None:
    sender, reader = pair(device="meta")
    sender.send(batch(1))
    assert {tensor.device.type for tensor in reader.recv()} == {"meta"}


def test_layout_and_converter(pair) -> None:
    sender, reader = pair(layout=("NHWC", "NCHW"), converters="torch")
    sender.send(batch(1))
    images, _ = reader.recv()
    assert images.shape == (4, 1, 2, 3)


def test_tensors_are_sent_as_arrays(pair) -> None:
    sender, reader = pair(device="cpu")
    tensors = [torch.arange(4), torch.ones(2, requires_grad=True), torch.tensor(3.5).bfloat16()]
    sender.send(tensors)
    for one, other in zip(tensors, reader.recv(), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.detach(), other)


def test_steps_on_tensors(pair) -> None:
    sender, reader = pair(device="cpu")
    reader.epoch = 3
    for number in range(3):
        sender.send(batch(number))
    batches = list(reader.unbatched().shuffled(5, seed=1).rebatch(8))
    assert [tuple(images.shape) for images, _ in batches] == [(8, 2, 3, 1), (4, 2, 3, 1)]
    assert torch.cat([labels for _, labels in batches]).sort()[0].tolist() == (
        [0] * 4 + [1] * 4 + [2] * 4
    )
    for images, labels in batches:
        assert torch.equal(images[:, 0, 0, 0], labels)
    for number in range(3):
        sender.send(batch(number))
    assert [len(labels) for _, labels in reader.rebatch(5)] == [5, 5, 2]


def test_converters_survive_a_pickle(pair) -> None:
    _, reader = pair(converters="torch")
    reader.close()
    config = Connection("zpull://127.0.0.1:0", converters="torch", device="cpu", lazy=True)
    with pickle.loads(pickle.dumps(config)) as twin:
        twin.open()
        with Connection(twin.urls[0].replace("zpull", "zpush")) as sender:
            sender.send(batch(1))
            assert isinstance(twin.recv()[0], torch.Tensor)


def test_a_webdataset_pipeline_begins_with_a_connection(pair) -> None:
    sender, reader = pair(device="cpu")
    reader.epoch = 4
    for number in range(4):
        sender.send(batch(number))
    pipeline = wds.DataPipeline(reader, wds.map(lambda item: item[1]))
    assert [int(labels[0]) for labels in pipeline] == [0, 1, 2, 3]


def test_a_webdataset_pipeline_can_be_iterated_again(pair) -> None:
    sender, reader = pair(device="cpu")
    reader.epoch = 2
    for number in range(4):
        sender.send(batch(number))
    pipeline = wds.DataPipeline(reader)
    found = [[int(labels[0]) for _, labels in pipeline] for _ in range(2)]
    assert found == [[0, 1], [2, 3]]


def test_no_warning_on_the_way_to_a_tensor(pair) -> None:
    sender, reader = pair(converters="torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sender.send([np.broadcast_to(np.float32(1), (3, 4)), np.arange(12)[::-1]])
        ones, numbers = reader.recv()
    assert ones.sum() == 12
    assert numbers.tolist() == list(range(11, -1, -1))
