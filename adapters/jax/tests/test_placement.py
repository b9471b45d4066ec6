"""Where arrays go, and when a device uses the host's memory."""

from __future__ import annotations

import gc
import pickle
import sys
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from jax_helpers import run_script
from numpy.typing import NDArray

from tensorcom.buffers import BufferPool, aligned_array
from tensorcom_jax.placement import Placement

NARROW = ["u1", "i1", "i2", "u2", "i4", "u4", "f2", "f4", "?", "c8"]
NARROW += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
WIDE = ["i8", "u8", "f8", "c16"]


def address(array: jax.Array) -> int:
    return int(array.addressable_shards[0].data.unsafe_buffer_pointer())


def aligned(shape: tuple[int, ...], dtype: Any = "u1") -> NDArray[Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, aligned_array(size).data)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", [(4, 16), (200_000,), (0, 5), ()])
def test_values_are_kept_and_aligned_memory_is_used(shape: tuple[int, ...], dtype: Any) -> None:
    array = aligned(shape, dtype)
    array[...] = np.random.default_rng(0).integers(0, 2, shape)
    (found,) = Placement(None).put([array])
    assert isinstance(found, jax.Array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.asarray(found).tobytes() == array.tobytes()
    if array.size:
        assert address(found) == array.ctypes.data


@pytest.mark.parametrize("dtype", WIDE)
def test_64_bits_stay_64_bits(dtype: str) -> None:
    assert not jax.config.jax_enable_x64
    array = np.array([2**40 + 1, 3], dtype)
    (found,) = Placement(None).put([array])
    assert found.dtype == dtype
    assert np.asarray(found).tolist() == array.tolist()
    assert not jax.config.jax_enable_x64


def unowned(array: NDArray[Any]) -> NDArray[Any]:
    return array


def misaligned(array: NDArray[Any]) -> NDArray[Any]:
    memory = aligned_array(array.nbytes + 16)[16:]
    memory[...] = array.reshape(-1)
    return memory.reshape(array.shape)


def transposed(array: NDArray[Any]) -> NDArray[Any]:
    return array.transpose(1, 0)


@pytest.mark.parametrize("change", [unowned, misaligned, transposed])
def test_what_cannot_be_shared_is_copied(change: Any) -> None:
    array = aligned((4, 16))
    array[...] = np.arange(64).reshape(4, 16)
    given = change(array)
    expected = given.copy()
    (found,) = Placement(None).put([given], owned=change is not unowned)
    given[...] = 0
    array[...] = 0
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("sharding", [None, SingleDeviceSharding(jax.devices()[0])])
def test_memory_of_a_pool_is_not_used_again_while_a_device_has_it(sharding: Any) -> None:
    pool, placement = BufferPool(), Placement(sharding)
    kept, addresses = [], set()
    for number in range(10):
        memory = np.frombuffer(pool.take(1 << 17), np.uint8)
        memory[...] = number
        (array,) = placement.put([memory])
        assert address(array) == memory.ctypes.data
        addresses.add(memory.ctypes.data)
        kept.append(array)
        del memory, array
    gc.collect()
    assert len(addresses) == 10
    assert [int(array.max()) for array in kept] == list(range(10))
    kept.clear()
    gc.collect()
    assert np.frombuffer(pool.take(1 << 17), np.uint8).ctypes.data in addresses, "it is given back"


def test_memory_of_copies_is_not_used_again_while_a_device_has_it() -> None:
    placement, reused = Placement(None), np.zeros(1 << 17, np.uint8)
    kept = []
    for number in range(10):
        reused[...] = number
        kept += placement.put([reused], owned=False)
    gc.collect()
    addresses = {address(array) for array in kept}
    assert len(addresses) == 10
    assert [(int(array.min()), int(array.max())) for array in kept] == [(n, n) for n in range(10)]
    kept.clear()
    gc.collect()
    assert address(*placement.put([reused], owned=False)) in addresses, "it is given back"


def test_memory_of_a_donated_array_is_not_used_for_the_result() -> None:
    pool = BufferPool()
    double = jax.jit(lambda x: x + x, donate_argnums=0)
    results = []
    for number in range(5):
        memory = np.frombuffer(pool.take(1 << 17), np.uint8)
        memory[...] = number
        results.append(double(*Placement(None).put([memory])))
        del memory
    assert [int(result.max()) for result in results] == [0, 2, 4, 6, 8]


def test_bytes_and_other_values_stay_on_the_host() -> None:
    names = np.array([b"one", b"two"])
    first, images, last = Placement(None).put([names, [aligned((2, 3)), aligned((4, 5))], b"jpeg"])
    assert first is names
    assert [image.shape for image in images] == [(2, 3), (4, 5)]
    assert all(isinstance(image, jax.Array) for image in images)
    assert last == b"jpeg"


def test_trees_keep_their_form_and_their_arrays_go_to_devices() -> None:
    class Pair(NamedTuple):
        image: Any
        name: Any

    device = jax.devices()[0]
    tree = {"views": (aligned((2, 3)), [aligned((4,), "f4")]), "pair": Pair(aligned((1,)), b"x")}
    (found,) = Placement(device).put([tree])
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    assert found["pair"].name == b"x"
    arrays = [leaf for leaf in jax.tree.leaves(found) if leaf != b"x"]
    assert all(isinstance(array, jax.Array) and array.committed for array in arrays)
    assert [array.shape for array in arrays] == [(1,), (2, 3), (4,)]
    assert address(found["pair"].image) == tree["pair"].image.ctypes.data  # type: ignore[attr-defined]


def test_scalars_of_numpy_are_arrays_without_axes() -> None:
    given = [np.float32(2.5), np.int64(2**40), ml_dtypes.bfloat16(1.5), np.bool_(True)]
    found = Placement(None).put(given)
    assert all(isinstance(array, jax.Array) for array in found)
    assert [array.dtype for array in found] == ["f4", "i8", ml_dtypes.bfloat16, "?"]
    assert [array.shape for array in found] == [()] * 4
    assert [array.item() for array in found] == [2.5, 2**40, 1.5, True]
    (text,) = Placement(None).put([np.bytes_(b"one")])
    assert text == b"one"


def test_an_array_of_jax_goes_where_its_sharding_says() -> None:
    array, device = jax.numpy.arange(3), jax.devices()[0]
    assert Placement(None).put([array])[0] is array
    (found,) = Placement(device).put([array])
    assert found.committed
    assert found.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">u2", ">c8"])
def test_values_of_the_other_byte_order_are_kept(dtype: str) -> None:
    array = np.array([1, 2, 3], dtype)
    (found,) = Placement(None).put([array])
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.tolist() == [1, 2, 3]


def test_types_that_jax_lacks_are_an_error_or_stay_on_the_host() -> None:
    for array in (np.array(["one"]), np.array([None, {}]), np.array(["2020-01-01"], "M8[D]")):
        assert Placement(None).put([array])[0] is array
    for array in (np.zeros(2, [("a", "i4")]), np.zeros(2, np.longdouble)):
        with pytest.raises(TypeError, match="is not a valid JAX array type"):
            Placement(None).put([array])


def test_a_sharding_for_each_array() -> None:
    device = jax.devices()[0]
    one, two = Placement([device, None]).put([aligned((2,)), aligned((3,))])
    assert one.committed
    assert not two.committed
    with pytest.raises(ValueError, match="2 shardings for 3 arrays"):
        Placement([device, None]).put([aligned((2,))] * 3)


@pytest.mark.parametrize("wrong", ["data", 3, [object()]])
def test_what_is_no_sharding(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a jax\.sharding\.Sharding such as"):
        Placement(wrong)


@pytest.mark.parametrize("sharding", [None, jax.devices()[0], [jax.devices()[0], None]])
def test_it_pickles(sharding: Any) -> None:
    placement = Placement(sharding)
    copy = pickle.loads(pickle.dumps(placement))
    arrays = [aligned((2,))] * (2 if isinstance(sharding, list) else 1)
    for one, two in zip(placement.put(arrays), copy.put(arrays), strict=True):
        assert (one.committed, one.sharding) == (two.committed, two.sharding)


def test_a_pickle_that_names_another_device_says_so() -> None:
    script = "import sys, pickle, jax; from tensorcom_jax.placement import Placement\n"
    make = script + "print(pickle.dumps(Placement(jax.devices()[3])).hex())"
    data = bytes.fromhex(run_script(make, devices=4).stdout)
    with pytest.raises(ValueError, match="this process has no cpu device 3, which a sharding"):
        pickle.loads(data)


def test_a_shard_is_asked_of_no_backend_before_there_is_a_job() -> None:
    script = """
from jax._src import xla_bridge
from tensorcom_jax.placement import Placement
print(Placement(None).shard(), xla_bridge.backends_are_initialized())
"""
    assert run_script(script).stdout == "(0, 1) False\n"


EIGHT = """
import gc, pickle
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tensorcom.buffers import BufferPool
from tensorcom_jax.placement import Placement, process_share

devices = np.array(jax.devices())
assert len(devices) == 8
flat, grid = Mesh(devices, ("data",)), Mesh(devices.reshape(4, 2), ("data", "model"))
pool = BufferPool()

def fresh(value):
    memory = np.frombuffer(pool.take(1 << 17), np.uint8).reshape(64, -1)
    memory[...] = np.arange(64)[:, None] + value
    return memory

for mesh, spec, parts in [
    (flat, P("data"), 8), (grid, P("data"), 4), (grid, P("data", "model"), 4),
    (grid, P(None, "model"), 1), (flat, P(), 1), (grid, P(("data", "model")), 8),
]:
    sharding = NamedSharding(mesh, spec)
    placement = Placement(sharding)
    assert (process_share(sharding), placement.spans_processes) == ((0, 1), False)
    assert placement.share is None and placement.shard() == (0, 1)
    assert placement.is_split == (spec != P())
    copy = pickle.loads(pickle.dumps(placement))
    assert copy.put([fresh(0)])[0].sharding == sharding
    kept = []
    for value in range(6):
        memory = fresh(value)
        (array,) = placement.put([memory])
        assert array.sharding == sharding and array.shape == memory.shape
        if spec == P("data"):
            places = [s.data.unsafe_buffer_pointer() for s in array.addressable_shards]
            assert min(places) == memory.ctypes.data, "parts are used where they are"
        kept.append(array)
        del memory, array
    gc.collect()
    for value, array in enumerate(kept):
        assert (np.asarray(array) == np.arange(64)[:, None] + value).all()
    placement.check_samples(8)
    try:
        placement.check_samples(3)
    except ValueError as exc:
        assert f"3 samples cannot be split into {parts} equal parts" in str(exc), exc
        assert "drop_last=True" in str(exc)
    else:
        assert parts == placement.pieces == 1
assert Placement([NamedSharding(grid, P("data")), None, devices[0]]).pieces == 4
try:
    Placement(NamedSharding(flat, P("data"))).put([np.zeros((3, 4), np.uint8)])
except ValueError as exc:
    assert "array of shape (3, 4) does not fit its sharding" in str(exc), exc
else:
    raise AssertionError("it fits")
names = np.array([b"a", b"b"])
assert Placement(NamedSharding(flat, P("data"))).put([names])[0] is names
wide = np.full(8, 2**40)
(array,) = Placement(NamedSharding(flat, P("data"))).put([wide])
assert array.dtype == np.int64 and np.asarray(array).tolist() == wide.tolist()
print("done")
"""


def test_eight_devices() -> None:
    done = run_script(EIGHT, devices=8, flags=("-W", "error"))
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_python_is_the_one_that_runs_the_tests() -> None:
    assert run_script("import sys; print(sys.executable)").stdout.strip() == sys.executable
