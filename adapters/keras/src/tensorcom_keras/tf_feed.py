"""Batches of numpy arrays, from a Python source, as a tf.data.Dataset.

Owns what TensorFlow is told of batches beforehand, that each is of that kind, and whose memory it
may take without a copy. Knows nothing of sockets or records.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorcom import ClosedError, SourceError, TensorcomError
from tensorcom.arrays import as_array
from tensorcom.buffers import ALIGNMENT, BufferPool
from tensorcom_keras.pydataset import SequentialPyDataset
from tensorcom_keras.tf_memory import keep_freed_blocks
from tensorcom_keras.tf_process import Flagged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    Arrays = tuple[NDArray[Any], ...]

# What a data set reads from. It lives as long as the data set does, or one that was made of that;
# not in what TensorFlow calls, since it keeps those functions for the life of the process.
_sources: weakref.WeakKeyDictionary[tf.data.Dataset, Any] = weakref.WeakKeyDictionary()


class BatchSpec:
    """What all batches have in common.

    Args:
        structure: tf.TensorSpec of each array, in tuples and dicts as batches are.
        origin: where it is from, such as "as in the first message".
        error: makes the error of a batch that is of another kind, from its text.

    Attributes:
        structure: as given, with tuples in place of lists.
        flat: the specs in the order of `tf.nest.flatten`.

    Raises:
        TypeError: a leaf is no tf.TensorSpec.
    """

    def __init__(
        self, structure: Any, *, origin: str, error: Callable[[str], TensorcomError]
    ) -> None:
        self.structure = _with_tuples(structure)
        self.flat: tuple[Any, ...] = tuple(tf.nest.flatten(self.structure))
        for spec in self.flat:
            if not isinstance(spec, tf.TensorSpec):
                raise TypeError(f"spec holds {spec!r}, expected a tf.TensorSpec for each array")
        self._origin, self._error = origin, error

    @classmethod
    def of(cls, batch: Any, *, origin: str, error: Callable[[str], TensorcomError]) -> BatchSpec:
        """Return that of a batch, in which the length of the first axis may vary.

        Raises:
            TensorcomError: made by `error`; an array is none, or has a dtype unknown to TensorFlow.
        """
        arrays = [to_numpy(leaf, i, error) for i, leaf in enumerate(tf.nest.flatten(batch))]
        specs = [_spec_of(array, i, error) for i, array in enumerate(arrays)]
        return cls(tf.nest.pack_sequence_as(batch, specs), origin=origin, error=error)

    def fit(self, batch: Any) -> Arrays:
        """Return the arrays of a batch, flat.

        Raises:
            TensorcomError: made by `error`; it is of another kind.
        """
        leaves = tf.nest.flatten(batch)
        if len(leaves) != len(self.flat):
            raise self._error(
                f"found {len(leaves)} arrays, expected {len(self.flat)}, {self._origin}"
            )
        arrays = tuple(to_numpy(leaf, i, self._error) for i, leaf in enumerate(leaves))
        for i, (array, spec) in enumerate(zip(arrays, self.flat, strict=True)):
            if not (_has_dtype(array, spec.dtype) and spec.shape.is_compatible_with(array.shape)):
                raise self._error(
                    f"array {i} is {array.dtype} {array.shape}, expected {spec.dtype.name} "
                    f"{spec.shape}, {self._origin}; give spec=, with None for each axis that varies"
                )
        return arrays

    def nothing(self) -> Arrays:
        """Return arrays of this kind with as few elements as may be."""
        found = []
        for spec in self.flat:
            shape = [size or 0 for size in spec.shape] if spec.shape.rank else []
            dtype = "S1" if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
            found.append(np.zeros(shape, dtype))
        return tuple(found)


def _with_tuples(structure: Any) -> Any:
    """Return a structure without lists, of which tf.data would make tensors."""
    if isinstance(structure, dict):
        return {key: _with_tuples(value) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)):
        return tuple(_with_tuples(value) for value in structure)
    return structure


def to_numpy(value: Any, index: int, error: Callable[[str], TensorcomError]) -> NDArray[Any]:
    """Return array number `index` of a batch as numpy.

    Raises:
        TensorcomError: made by `error`; it is no array.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        return as_array(value)
    except TensorcomError as exc:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise error(f"array {index} is a {kind}, expected a numpy array") from exc


def _spec_of(
    array: NDArray[Any], index: int, error: Callable[[str], TensorcomError]
) -> tf.TensorSpec:
    shape = (None, *array.shape[1:]) if array.ndim else ()
    try:
        if array.dtype.kind not in "OU":  # which TensorFlow takes for byte strings
            return tf.TensorSpec(shape, tf.as_dtype(array.dtype))
    except TypeError:
        pass
    raise error(f"array {index} has dtype {array.dtype}, which TensorFlow has not: convert it")


def _has_dtype(array: NDArray[Any], dtype: tf.DType) -> bool:
    if dtype == tf.string:
        return array.dtype.kind == "S"
    return bool(array.dtype.newbyteorder("=") == dtype.as_numpy_dtype)


def owned(array: NDArray[Any], pool: BufferPool, *, is_ours: bool) -> NDArray[Any]:
    """Return an array of which TensorFlow makes a tensor without a copy.

    TensorFlow takes the memory of an array that begins at a multiple of 64, whoever else has it,
    and copies others.

    Args:
        array: any array.
        pool: where a copy goes, which nobody else gets before the tensor is gone.
        is_ours: nobody else will write to `array`, so that it may be taken as it is.

    Returns:
        The array if it can be taken, else a copy; byte strings as they are, which TensorFlow makes
        objects of.
    """
    if array.dtype.kind == "S" or not array.nbytes:
        return array
    is_plain = array.flags.c_contiguous and array.dtype.isnative
    if is_ours and is_plain and array.ctypes.data % ALIGNMENT == 0:
        return array
    memory = np.frombuffer(pool.take(array.nbytes), np.uint8)
    copy = memory.view(array.dtype.newbyteorder("=")).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def make_dataset(
    source: Any,
    start: Callable[[Any], Iterator[Arrays | None]],
    kind: BatchSpec,
    *,
    length: int | None,
) -> tf.data.Dataset:
    """Return a data set whose iterations are those of a source.

    Args:
        source: lives as long as the data set, or another that was made of that.
        start: called with the source; returns the flat arrays of its batches, of that kind, or None
            where there is nothing yet: so that whoever drops the data set's iterator need not wait.
        kind: what the batches have in common.
        length: batches in each iteration, None if that is not known.
    """
    # None of these functions may hold the source.
    reference = weakref.ref(source)
    nothing = (np.False_, *kind.nothing())

    def flagged() -> Iterator[Any]:
        keep_freed_blocks()
        alive = reference()
        if alive is None:
            raise ClosedError("the data set that this one was made of is gone")
        return Flagged(start(alive), nothing)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def has_come(flag: Any, *_: Any) -> Any:
        return flag

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def packed(_: Any, *arrays: Any) -> Any:
        return tf.nest.pack_sequence_as(kind.structure, arrays)

    signature = (tf.TensorSpec((), tf.bool), *kind.flat)
    dataset = tf.data.Dataset.from_generator(flagged, output_signature=signature)
    # Synchronous: else TensorFlow would run the map ahead, as it does by default with the end of
    # any pipeline; batches that nobody asked for are lost with the iterator.
    dataset = dataset.filter(has_come).map(packed, synchronous=True)
    if length is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    if any(spec.dtype.name.startswith("float8") for spec in kind.flat):
        # What optimizes graphs does not know these dtypes, and fails.
        options.experimental_optimization.apply_default_optimizations = False
    dataset = dataset.with_options(options)
    _sources[dataset] = source
    return dataset


def source_of(dataset: tf.data.Dataset) -> Any:
    """Return what `make_dataset` was given for a data set or one that it was made of, else None."""
    found = _sources.get(dataset)
    inputs = getattr(dataset, "_inputs", None)
    if found is not None or inputs is None:
        return found
    return next((s for s in map(source_of, inputs()) if s is not None), None)


def as_tf_dataset(
    source: Iterable[Any], *, spec: Any = None, exact: bool = True
) -> tf.data.Dataset:
    """Return a tf.data.Dataset of the batches of a `StreamPyDataset`, `PcrPyDataset` or the like.

    Each iteration of the data set is one of the source, in the same order, and takes no batch
    before it is asked for: add `prefetch(2)`, after which an iterator that is dropped takes batches
    with it. The batches are equal to those of the source, bit by bit.

    Args:
        source: iterated once for each epoch; yields arrays, in tuples and dicts, with a first axis
            N that may vary. Stays open when the data set is gone.
        spec: tf.TensorSpec of each array, in tuples and dicts as the batches are. None takes it
            from the first batch, now; the first iteration has that batch.
        exact: each iteration has `len(source)` batches, if it has a length: the data set has
            that cardinality, and less is an error. Say False where damaged images are skipped,
            which may leave batches out.

    Raises:
        SourceError: the source has no batch to take a spec from.

    While iterating, errors are TensorFlow's and hold our text.

    Ownership: a batch of our data sets is taken without a copy where it begins at a multiple of
    64 bytes, and copied once otherwise. Arrays of other sources are copied, since they may use them
    again.
    """
    feed = _SourceFeed(source, exact=exact)
    batch_spec = (
        feed.look() if spec is None else BatchSpec(spec, origin="as spec says", error=SourceError)
    )
    length = feed.length()
    return make_dataset(
        feed, lambda feed: feed.start(batch_spec, length), batch_spec, length=length
    )


class _SourceFeed:
    """Iterations over a source.

    Args:
        source: see `as_tf_dataset`.
        exact: the same.
    """

    def __init__(self, source: Any, *, exact: bool) -> None:
        if not hasattr(source, "__iter__"):
            raise TypeError(f"{type(source).__name__} cannot be iterated; see as_tf_dataset")
        self._source, self._exact = source, exact
        self._is_ours = isinstance(source, SequentialPyDataset)
        self._pool = BufferPool()
        self._begun: Iterator[Any] | None = None

    def look(self) -> BatchSpec:
        """Return the spec of the first batch, which comes again."""
        if self._is_ours:
            first = self._source[0]  # as Keras looks at batches
        else:
            batches = iter(self._source)
            for first in batches:
                self._begun = _chain(first, batches)
                break
            else:
                raise SourceError("the source has no batch; give spec=")
        return BatchSpec.of(first, origin="as in the first batch", error=SourceError)

    def length(self) -> int | None:
        """Return the batches of each iteration; None if not known or the next one has fewer."""
        try:
            length = len(self._source) if self._exact else None
        except TypeError:
            return None
        return length if getattr(self._source, "num_batches", length) == length else None

    def start(self, spec: BatchSpec, length: int | None) -> Iterator[Arrays]:
        """Return the arrays of the batches of an iteration, which is to have `length`."""
        begun, self._begun = self._begun, None
        return self._iterate(iter(self._source) if begun is None else begun, spec, length)

    def _iterate(
        self, batches: Iterator[Any], spec: BatchSpec, length: int | None
    ) -> Iterator[Arrays]:
        count = 0
        for batch in batches:
            arrays = spec.fit(batch)
            yield tuple(owned(array, self._pool, is_ours=self._is_ours) for array in arrays)
            count += 1
        if length is not None and count < length:
            raise SourceError(
                f"the source ended after {count} of {length} batches, its length when the data set "
                "was made: say exact=False if batches may be left out, and make the data set anew "
                "after a state was loaded"
            )


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
