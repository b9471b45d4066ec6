"""Where arrays go: from the host to devices, as a sharding says.

Owns what `sharding=` means, which part of the data a process reads for it, and when a device may
share memory with the host. Knows nothing of streams or records.
"""

from __future__ import annotations

import io
import math
import pickle
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from tensorcom.buffers import BufferPool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from numpy.typing import NDArray

    Target: TypeAlias = Sharding | jax.Device | None
    Shardings: TypeAlias = Target | Sequence[Target]

_DEVICE_KINDS = "biufcV"  # V: those of ml_dtypes


class Placement:
    """Puts the arrays of batches on devices.

    Args:
        sharding: where each array goes: a sharding or a device for all of them, or a sequence of
            one for each by position. None takes JAX's default device. A sharding over several
            processes makes global arrays, of which each process gives its part.

    Raises:
        TypeError: it is none of these.
        ValueError: its entries ask for different parts of the data in this process.
    """

    def __init__(self, sharding: Shardings) -> None:
        several = isinstance(sharding, (list, tuple))
        given: Any = sharding if several else [sharding]
        targets = [_as_sharding(entry) for entry in given]
        if several and not targets:
            raise ValueError("sharding is empty, expected one for each array, or None")
        self._targets = targets if several else None
        self._target = None if several else targets[0]
        self._shardings = [target for target in targets if target is not None]
        self._pool = BufferPool()
        self._sizes: list[int] = []  # leading axes of batches, where processes share arrays
        self._spanning = [target for target in self._shardings if not target.is_fully_addressable]
        shares = {process_share(target) for target in self._spanning}
        if len(shares) > 1:
            raise ValueError(f"shardings give this process different parts of the data: {shares}")
        self._share = next(iter(shares), None)
        # What the samples of a batch of this process must be a multiple of.
        self.pieces = math.lcm(*map(_pieces, self._shardings))

    def __reduce__(self) -> tuple[Any, ...]:
        stream = io.BytesIO()
        _Pickler(stream).dump(self._target if self._targets is None else self._targets)
        return _unpickle, (stream.getvalue(),)

    @property
    def spans_processes(self) -> bool:
        """Whether arrays have parts on devices of other processes."""
        return bool(self._spanning)

    @property
    def is_split(self) -> bool:
        """Whether devices get different parts of an array."""
        return any(not sharding.is_fully_replicated for sharding in self._shardings)

    @property
    def share(self) -> tuple[int, int] | None:
        """(index, count) of the part that this process gives of an array; None if not shared."""
        return self._share

    def shard(self) -> tuple[int, int]:
        """Return (rank, ranks): which part of the data this process reads.

        It is that of the sharding, if that spans processes, else that of the process in a job of
        `jax.distributed`. Starts no backend of JAX before such a job is set up.
        """
        if self._share is not None:
            return self._share
        if jax.distributed.is_initialized():
            return jax.process_index(), jax.process_count()
        return 0, 1

    def check_arrays(self, count: int) -> None:
        """Check that there is one sharding for all arrays of a batch, or one for each.

        Raises:
            ValueError: there are others.
        """
        if self._targets is not None and len(self._targets) != count:
            raise ValueError(f"{len(self._targets)} shardings for {count} arrays")

    def check_samples(self, samples: int) -> None:
        """Check that batches can be split over the devices of this process.

        Args:
            samples: in a batch of this process.

        Raises:
            ValueError: they cannot.
        """
        pieces = self.pieces
        if samples % pieces:
            raise ValueError(
                f"a batch of {samples} samples cannot be split into {pieces} equal parts, as the "
                f"sharding says: give a batch size that {pieces} divides, and drop_last=True where "
                f"it is the last batch that is smaller ({self._shardings})"
            )

    def put(self, arrays: Sequence[Any], *, owned: Sequence[bool] | bool = True) -> tuple[Any, ...]:
        """Return arrays on devices.

        Args:
            arrays: numpy arrays, or trees of such: lists, tuples, dicts. What JAX has no type for
                stays as it is, as do bytes and strings.
            owned: whether nobody else writes to an array from now on, for all or by position.

        Returns:
            jax.Arrays of the same dtypes, also 64-bit ones.

        Raises:
            ValueError: an array does not fit its sharding, or batches differ in size where
                processes share arrays.

        Ownership: CPU devices use the memory of arrays that are owned, contiguous and at a multiple
        of 64, and keep it alive; everything else is copied.
        """
        self.check_arrays(len(arrays))
        targets = self._targets or [self._target] * len(arrays)
        if self._spanning:
            self._check_sizes(arrays)
        owns = [owned] * len(arrays) if isinstance(owned, bool) else owned
        return tuple(
            jax.tree.map(partial(self._put, target=target, owned=own), array)
            for array, target, own in zip(arrays, targets, owns, strict=True)
        )

    def _check_sizes(self, arrays: Sequence[Any]) -> None:
        """Refuse batches that other processes would take for ones of another size."""
        sizes = [len(a) for a in arrays if isinstance(a, np.ndarray) and a.ndim]
        self._sizes = self._sizes or sizes
        if sizes != self._sizes:
            raise ValueError(
                f"batch with leading axes {sizes} after {self._sizes}: processes that share arrays "
                "need batches of one size; serve whole batches only, or give a length that ends "
                "before the last one"
            )

    def _put(self, array: Any, *, target: Sharding | None, owned: bool) -> Any:
        if isinstance(array, np.generic) or (isinstance(array, jax.Array) and target is not None):
            array = np.asarray(array)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in _DEVICE_KINDS:
            return array
        if not (owned and array.flags.c_contiguous and array.dtype.isnative):
            array = self._copy(array)
        with _wide_enough(array.dtype):
            if target is None:
                return jax.device_put(array)
            try:
                if target.is_fully_addressable:
                    return jax.device_put(array, target)
                return jax.make_array_from_process_local_data(target, array)  # type: ignore[no-untyped-call]
            except ValueError as exc:
                raise ValueError(
                    f"array of shape {array.shape} does not fit its sharding: {exc}"
                ) from exc

    def _copy(self, array: NDArray[Any]) -> NDArray[Any]:
        memory = self._pool.take(array.nbytes)
        dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
        copy: NDArray[Any] = np.ndarray(array.shape, dtype, memory)
        np.copyto(copy, array)
        return copy


class _Pickler(pickle.Pickler):
    """Pickles shardings, which JAX refuses as it does devices."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, jax.Device):
            return _find_device, (value.platform, value.id)
        return NotImplemented


def _unpickle(shardings: bytes) -> Placement:
    return Placement(pickle.loads(shardings))  # noqa: S301 - made and read by pickle alone


def _find_device(platform: str, number: int) -> jax.Device:
    for device in jax.devices(platform):
        if device.id == number:
            return device
    raise ValueError(f"this process has no {platform} device {number}, which a sharding names")


def _as_sharding(entry: Any) -> Sharding | None:
    if entry is None or isinstance(entry, Sharding):
        return entry
    if isinstance(entry, jax.Device):
        return SingleDeviceSharding(entry)
    raise TypeError(
        f"sharding is a {type(entry).__name__}, expected a jax.sharding.Sharding such as "
        "NamedSharding(mesh, PartitionSpec('data')), a device, or None"
    )


def _wide_enough(dtype: np.dtype[Any]) -> AbstractContextManager[Any]:
    """Let JAX keep 64-bit values: it cuts them to 32 bits without a word unless told not to."""
    if dtype.itemsize // (1 + (dtype.kind == "c")) < 8:
        return nullcontext()
    home: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # by release
    enable = home.enable_x64
    context: AbstractContextManager[Any] = enable(True)  # noqa: FBT003 - its only argument
    return context


def default_device() -> AbstractContextManager[Any]:
    """Return a context for another thread, in which JAX's default device is that of this one."""
    context: AbstractContextManager[Any] = jax.default_device(jax.config.jax_default_device)  # type: ignore[attr-defined]
    return context


def _axes(sharding: Sharding) -> int:
    return max(1, len(getattr(sharding, "spec", ())))


def _spans(sharding: Sharding) -> dict[int, set[tuple[int, int]]]:
    """Return which parts of the leading axis each process has, of one as long as all devices."""
    length = len(sharding.device_set)
    found: dict[int, set[tuple[int, int]]] = {}
    parts: Any = sharding.devices_indices_map((length,) * _axes(sharding))
    for device, index in parts.items():
        start, stop, _ = index[0].indices(length)
        found.setdefault(device.process_index, set()).add((start, stop))
    return found


def process_share(sharding: Sharding) -> tuple[int, int]:
    """Return (index, count) of the part of the leading axis that this process gives.

    Processes that hold the same part, as where a model is split over processes, have one index.

    Raises:
        ValueError: this process holds no part, or processes hold parts that overlap, or differ in
            size.
    """
    spans = _spans(sharding)
    own = spans.get(jax.process_index())
    if own is None:
        raise ValueError(f"{sharding} has no device of this process")
    parts = sorted({tuple(sorted(part)) for part in spans.values()})
    pieces = [piece for part in parts for piece in part]
    if len({len(part) for part in parts}) > 1 or len(set(pieces)) < len(pieces):
        raise ValueError(
            f"{sharding} gives processes parts of the leading axis that overlap or differ in size"
        )
    return parts.index(tuple(sorted(own))), len(parts)


def _pieces(sharding: Sharding) -> int:
    """Return into how many equal parts a batch of this process is split."""
    if sharding.is_fully_addressable:
        return len({piece for part in _spans(sharding).values() for piece in part})
    return len(_spans(sharding)[jax.process_index()])
