"""as_tf_dataset: any source of numpy batches as a tf.data.Dataset."""

from __future__ import annotations

import ctypes
import gc
import platform
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from pcr_set_helpers import write_set
from tf_stream_helpers import WAIT_S, batch, counting, numbers, sockets, wait_until

from tensorcom import MessageError, SourceError
from tensorcom.buffers import BufferPool, aligned_array
from tensorcom.pcr import PcrSource
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_keras import tf_memory
from tensorcom_keras.records import PcrPyDataset
from tensorcom_keras.stream import StreamPyDataset
from tensorcom_keras.tf_feed import BatchSpec, as_tf_dataset, owned


class Source:
    """Yields the batches that a function returns, and counts what it was asked for."""

    def __init__(self, batches: Any, *, length: int | None = None) -> None:
        self._batches, self._length = batches, length
        self.asked = self.iterations = 0

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("no length")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self.iterations += 1
        for item in self._batches:
            self.asked += 1
            yield item


def few(count: int = 3) -> list[Any]:
    return [tuple(batch(n)) for n in range(count)]


SPEC = (tf.TensorSpec((None, 4, 3, 2), tf.uint8), tf.TensorSpec((None,), tf.int32))


# -- batches and their spec ----------------------------------------------------------------------


def test_the_spec_is_that_of_the_first_batch_which_comes_first() -> None:
    source = Source(few(), length=3)
    dataset = as_tf_dataset(source)
    assert dataset.element_spec == SPEC
    assert len(dataset) == 3
    assert source.asked == 1
    for epoch in range(1, 3):
        assert numbers(dataset) == [0, 1, 2]
        assert (source.iterations, source.asked) == (epoch, 3 * epoch)


def test_with_a_spec_nothing_is_asked_of_the_source_before_it_is_iterated() -> None:
    source = Source(few())
    dataset = as_tf_dataset(source, spec=SPEC)
    assert source.iterations == 0
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert numbers(dataset) == [0, 1, 2]


def test_no_batch_is_taken_before_it_is_asked_for() -> None:
    source = Source(few(9))
    dataset = as_tf_dataset(source, spec=SPEC)
    for count in (1, 3):
        source.asked = 0
        batches = iter(dataset)
        assert len(numbers(next(batches) for _ in range(count))) == count
        assert source.asked == count


def test_a_last_batch_of_fewer_samples_keeps_the_spec_and_the_trace() -> None:
    traces = []

    @tf.function
    def total(dataset: Any) -> Any:
        traces.append(1)
        count = tf.constant(0)
        for images, _ in dataset:
            count += tf.shape(images)[0]
        return count

    dataset = as_tf_dataset(Source([batch(0, 4), batch(1, 4), batch(2, 2)], length=3))
    assert [int(total(dataset)) for _ in range(3)] == [10, 10, 10]
    assert len(traces) == 1


@pytest.mark.parametrize(
    "structure",
    [
        {"image": np.ones((2, 3), "f4"), "mask": np.zeros((2, 1), "?")},
        ({"b": np.ones(2), "a": np.zeros(2)}, np.arange(2), np.ones(2, "f2")),
        [np.ones((2, 3), "f4"), np.arange(2)],
        ((np.ones(2), np.zeros((2, 2))), np.arange(2)),
        np.arange(6).reshape(2, 3),
        (np.array([b"x", b"yz"]), np.float32(0.5), 7),
    ],
    ids=["dict", "dicts", "list", "tuples", "array", "strings and scalars"],
)
def test_batches_have_the_structure_of_the_source(structure: Any) -> None:
    (found,) = list(as_tf_dataset(Source([structure])))
    expected = tuple(structure) if isinstance(structure, list) else structure
    tf.nest.assert_same_structure(found, expected)
    for tensor, array in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert np.array_equal(tensor.numpy(), np.asarray(array).astype(tensor.numpy().dtype))


def test_a_plain_generator_is_read_once() -> None:
    dataset = as_tf_dataset(item for item in few())
    assert [numbers(dataset), numbers(dataset)] == [[0, 1, 2], []]


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ((np.zeros((2, 3), "u1"),), "found 1 arrays, expected 2, as spec says"),
        (
            (np.zeros((2, 5), "u1"), np.zeros(2, "i4")),
            "array 0 is uint8 (2, 5), expected uint8 (None, 3), as spec says; give spec=",
        ),
        ((np.zeros((2, 3), "u1"), np.zeros(2, "i8")), "array 1 is int64 (2,), expected int32"),
        ((np.zeros((2, 3), "u1"), "label"), "array 1 is a builtins.str, expected a numpy array"),
        ((np.zeros((2, 3), "u1"), None), "array 1 is a builtins.NoneType, expected a numpy"),
    ],
    ids=["count", "shape", "dtype", "string", "none"],
)
def test_a_batch_of_another_kind_says_what_it_is(item: Any, text: str) -> None:
    spec = (tf.TensorSpec((None, 3), tf.uint8), tf.TensorSpec((None,), tf.int32))
    good = (np.zeros((2, 3), "u1"), np.zeros(2, "i4"))
    batches = iter(as_tf_dataset(Source([good, item]), spec=spec))
    next(batches)
    with pytest.raises(tf.errors.InvalidArgumentError, match="SourceError: " + re.escape(text)):
        next(batches)


def test_an_error_of_the_source_keeps_its_text() -> None:
    def failing() -> Iterator[Any]:
        yield tuple(batch(0))
        raise KeyError("the reason")

    batches = iter(as_tf_dataset(Source(failing())))
    assert numbers([next(batches)]) == [0]
    with pytest.raises(tf.errors.UnknownError, match="KeyError: 'the reason'"):
        next(batches)


def test_fewer_batches_than_the_length_are_an_error_unless_they_may_be() -> None:
    batches = iter(as_tf_dataset(Source(few(2), length=3)))
    assert numbers([next(batches), next(batches)]) == [0, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="ended after 2 of 3 batches"):
        next(batches)
    dataset = as_tf_dataset(Source(few(2), length=3), exact=False)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert numbers(dataset) == [0, 1]


def test_what_is_no_source_is_an_error_at_once() -> None:
    with pytest.raises(SourceError, match=r"the source has no batch; give spec="):
        as_tf_dataset(Source([]))
    with pytest.raises(SourceError, match="array 0 has dtype object"):
        as_tf_dataset(Source([(np.zeros(2, object),)]))
    with pytest.raises(TypeError, match="int cannot be iterated"):
        as_tf_dataset(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected a tf\.TensorSpec"):
        as_tf_dataset(Source(few()), spec=(np.uint8, np.int32))


def test_a_spec_of_unknown_rank_takes_all() -> None:
    shapes = [(2,), (2, 3), (1, 2, 3)]
    source = Source([(np.ones(shape, "f4"),) for shape in shapes])
    dataset = as_tf_dataset(source, spec=(tf.TensorSpec(None, tf.float32),))
    assert [array.shape for (array,) in dataset] == shapes


# -- memory and life -----------------------------------------------------------------------------


def aligned(shape: tuple[int, ...], offset: int = 0) -> NDArray[np.uint8]:
    size = int(np.prod(shape))
    return aligned_array(size + offset)[offset:].reshape(shape)


@pytest.mark.parametrize("offset", [0, 16, 1])
def test_memory_that_a_source_uses_again_does_not_change_tensors(offset: int) -> None:
    memory = aligned((8, 64, 64, 3), offset)

    def reusing() -> Iterator[Any]:
        for number in range(9):
            memory[...] = number
            yield (memory,)

    kept = list(as_tf_dataset(Source(reusing())))
    assert [int(images.numpy().max()) for (images,) in kept] == list(range(9))
    assert [int(images.numpy().min()) for (images,) in kept] == list(range(9))


@pytest.mark.parametrize(
    ("array", "is_ours", "taken"),
    [
        (aligned((4, 100)), True, True),
        (aligned((4, 100)), False, False),
        (aligned((4, 100), 16), True, False),
        (aligned((4, 100)).T, True, False),
        (aligned((4, 100))[:, ::2], True, False),
        (aligned((4, 100)).view(">u2"), True, False),
        (aligned((0, 100)), False, True),
        (np.array([b"ab"]), False, True),
    ],
    ids=["ours", "theirs", "16", "transposed", "strided", "big-endian", "empty", "strings"],
)
def test_what_is_taken_as_it_is(array: NDArray[Any], is_ours: bool, taken: bool) -> None:
    result = owned(array, BufferPool(), is_ours=is_ours)
    assert (result is array) == taken
    assert np.array_equal(result, array)
    if not taken:
        assert result.ctypes.data % 64 == 0
        assert result.flags.c_contiguous
        assert result.dtype.isnative
        assert not np.shares_memory(result, array)


def test_nothing_is_of_every_kind() -> None:
    structure = (
        tf.TensorSpec((None, 4), tf.bfloat16),
        tf.TensorSpec((), tf.string),
        tf.TensorSpec(None, tf.int32),
        tf.TensorSpec((2, None), tf.string),
    )
    kind = BatchSpec(structure, origin="", error=MessageError)
    assert [array.shape for array in kind.nothing()] == [(0, 4), (), (), (2, 0)]
    assert len(kind.fit(kind.nothing())) == 4


class Mallinfo(ctypes.Structure):
    """What glibc's mallinfo returns; number 3 counts blocks that are mapped one by one."""

    _fields_ = [(f"number{i}", ctypes.c_int) for i in range(10)]


@pytest.fixture
def sizes_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tf_memory.GIVEN:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
@pytest.mark.usefixtures("sizes_not_given")
def test_freed_memory_is_kept_for_the_next_batch() -> None:
    mallinfo = ctypes.CDLL(None).mallinfo
    mallinfo.restype = Mallinfo
    list(as_tf_dataset(Source(few())))
    before = mallinfo().number3  # those go back to the kernel when they are freed
    blocks = [bytearray(8 << 20) for _ in range(3)]
    assert mallinfo().number3 == before
    del blocks


@pytest.mark.usefixtures("sizes_not_given")
def test_sizes_that_the_environment_gives_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    library = SimpleNamespace(mallopt=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(tf_memory.ctypes, "CDLL", lambda _: library)
    tf_memory.keep_freed_blocks()
    assert calls
    calls.clear()
    for name in tf_memory.GIVEN:
        with monkeypatch.context() as given:
            given.setenv(name, "1")
            tf_memory.keep_freed_blocks()
    assert not calls


def test_a_source_lives_as_long_as_its_data_sets() -> None:
    source = Source(few())
    alive = weakref.ref(source)
    dataset = as_tf_dataset(source)
    made = dataset.map(lambda images, labels: (images, labels))
    del source, dataset
    gc.collect()
    assert numbers(made) == [0, 1, 2]
    del made
    gc.collect()
    assert alive() is None


def test_an_iterator_that_is_dropped_drops_the_sources() -> None:
    ended = []

    def batches() -> Iterator[Any]:
        try:
            yield from few(9)
        finally:
            ended.append(True)

    iterating = iter(as_tf_dataset(Source(batches()), spec=SPEC))
    next(iterating)
    assert not ended
    del iterating
    assert wait_until(lambda: ended)


# -- our own data sets ---------------------------------------------------------------------------


def test_a_stream() -> None:
    before = sockets()
    with LoopbackServer(counting()) as server:
        source = StreamPyDataset(server.url, length=3, timeout_s=WAIT_S)
        dataset = as_tf_dataset(source)
        assert dataset.element_spec == SPEC
        assert len(dataset) == 3
        assert [numbers(dataset), numbers(dataset)] == [[0, 1, 2], [3, 4, 5]]
        source.close()
    assert wait_until(lambda: sockets() <= before)


def test_a_stream_is_taken_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    received = []

    def keep(images: NDArray[Any]) -> NDArray[Any]:
        received.append(images.ctypes.data)
        return images

    with LoopbackServer([[np.full((8, 64, 64, 3), n, "u1")] for n in range(4)]) as server:
        source = StreamPyDataset(server.url, batch_transforms=[keep], timeout_s=WAIT_S)
        found = [images._numpy().ctypes.data for (images,) in as_tf_dataset(source)]
        source.close()
    assert found == received


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("records") / "set", [5, 5, 4])


def epoch_of(root: Path, epoch: int, **arguments: Any) -> list[Any]:
    with PcrSource(root, batch_size=4, size=16, **arguments) as source:
        source.set_epoch(epoch)
        return list(source)


def check_epoch(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for (images, labels), (wanted, numbers_wanted) in zip(found, expected, strict=True):
        assert np.array_equal(images.numpy(), wanted)
        assert np.array_equal(labels.numpy(), numbers_wanted)


def test_records_are_those_of_core_epoch_by_epoch(root: Path) -> None:
    source = PcrPyDataset(root, batch_size=4, size=16, seed=3)
    dataset = as_tf_dataset(source)
    assert dataset.element_spec[0] == tf.TensorSpec((None, 16, 16, 3), tf.uint8)
    assert len(dataset) == 4
    for epoch in range(2):
        check_epoch(list(dataset), epoch_of(root, epoch, seed=3))
    source.scan_groups = 1
    check_epoch(list(dataset), epoch_of(root, 2, seed=3, scan_groups=1))
    source.close()


def test_records_resume_from_what_was_handed_out(root: Path) -> None:
    source = PcrPyDataset(root, batch_size=4, size=16, seed=3)
    batches = iter(as_tf_dataset(source))
    found = [next(batches)]
    state = source.state_dict()
    del batches
    source.close()
    other = PcrPyDataset(root, batch_size=4, size=16, seed=3)
    other.load_state_dict(state)
    dataset = as_tf_dataset(other)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    check_epoch(found + list(dataset), epoch_of(root, 0, seed=3))
    check_epoch(list(dataset), epoch_of(root, 1, seed=3))
    other.close()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", [4, 4])
    record = root / "PCR_1.pcr"
    source = PcrPyDataset(root, batch_size=4, size=16, shuffle=False, max_queue_size=1)
    dataset = as_tf_dataset(source)
    record.write_bytes(record.read_bytes()[:-100])
    with pytest.raises(tf.errors.OpError, match=r"Pcr\w*Error: .*PCR_1\.pcr"):
        list(dataset)
    source.close()
