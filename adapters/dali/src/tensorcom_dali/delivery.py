"""From what a pipeline makes to arrays of a framework.

Owns how a pipeline is run, and run on after a batch that it could not make; knows no sources.
DALI's own iterators do the conversion to torch and JAX. They are driven so that none of their
counting takes part: they know no length, and no last batch policy.
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tensorcom import SourceError
from tensorcom_dali.imports import import_framework

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

FRAMEWORKS = ("numpy", "torch", "jax")


class Delivery(Protocol):
    """What runs a pipeline."""

    def take(self) -> list[Any]:
        """Return the next batch; StopIteration at the end.

        Raises:
            RuntimeError: DALI cannot make it.
            SourceError: the framework cannot hold it.
        """
        ...

    def recover(self) -> None:
        """Go on after such an error."""
        ...

    def reset(self) -> None:
        """Go on after the end."""
        ...

    def checkpoint(self) -> bytes:
        """Return the state of the pipeline's random generators after the last batch."""
        ...


def deliver(pipeline: Any, framework: str) -> Delivery:
    """Return what runs a pipeline for a framework: "numpy", "torch" or "jax"."""
    if framework == "numpy":
        return _NumpyDelivery(pipeline)
    return _PluginDelivery(pipeline, framework)


class _NumpyDelivery:
    """Copies of a pipeline's outputs, in main memory."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        pipeline.build()

    def take(self) -> list[Any]:
        return [_to_numpy(output) for output in self._pipeline.run()]

    def recover(self) -> None:
        """Do nothing: `run` starts a batch before it hands one out."""

    def reset(self) -> None:
        self._pipeline.reset()

    def checkpoint(self) -> bytes:
        return bytes(self._pipeline.checkpoint())


def _to_numpy(output: Any) -> Any:
    if hasattr(output, "as_cpu"):
        output = output.as_cpu()
    if output.is_dense_tensor():
        return output.as_array()
    return [np.array(output.at(place)) for place in range(len(output))]


class _PluginDelivery:
    """Outputs of a pipeline through DALI's iterator for a framework, with or without a copy."""

    def __init__(self, pipeline: Any, framework: str) -> None:
        plugin = import_framework(framework)
        pipeline.build()
        self._pipeline = pipeline
        self._keeping_types: Callable[[], AbstractContextManager[Any]] = nullcontext
        if framework == "jax":
            self._keeping_types = _wide_types
        self._names = [str(number) for number in range(pipeline.num_outputs)]
        self._iterator = plugin.DALIGenericIterator(
            [pipeline], self._names, size=-1, auto_reset=False, prepare_first_batch=False
        )

    def take(self) -> list[Any]:
        try:
            with self._keeping_types():
                batch = next(self._iterator)
        except KeyError as exc:  # of DALI's table of torch's types
            name = getattr(exc.args[0], "name", None)
            if name is None:
                raise
            raise SourceError(
                f"an output is {name.lower()}, which DALI's iterator for torch has no type for: "
                "convert it in the pipeline by fn.cast, or a stream's array by batch_transforms"
            ) from exc
        values = batch[0] if isinstance(batch, list) else batch  # one for each pipeline, in torch
        return [values[name] for name in self._names]

    def recover(self) -> None:
        """Start the batch that the iterator did not, or it would end its epoch early."""
        self._pipeline.enable_api_check(enable=False)
        try:
            self._pipeline.schedule_run()
        finally:
            self._pipeline.enable_api_check(enable=True)

    def reset(self) -> None:
        self._iterator.reset()

    def checkpoint(self) -> bytes:
        (checkpoint,) = self._iterator.checkpoints()
        return bytes(checkpoint)


def _wide_types() -> AbstractContextManager[Any]:
    """Let JAX keep 64-bit values: DALI's iterator lets it cut them to 32 bits without a word."""
    jax: Any = importlib.import_module("jax")
    home = jax if hasattr(jax, "enable_x64") else jax.experimental  # by release
    context: AbstractContextManager[Any] = home.enable_x64(True)  # noqa: FBT003 - its only argument
    return context
