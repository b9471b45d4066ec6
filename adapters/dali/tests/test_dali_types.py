"""What becomes of arrays of each dtype, and of what is no array at all."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest
import zmq
from dali_helpers import WAIT_S
from nvidia.dali import fn, pipeline_def, types

from tensorcom import SourceError, tenbin
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_dali import Loader, StreamSource, external_source, plain_pipeline

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64"]
NOT_OF_TORCH = ("uint16", "uint32", "uint64")


def values(dtype: str) -> np.ndarray:
    """Return the largest and smallest values of a type, which no other one holds all of."""
    if dtype == "bool":
        return np.array([True, False])
    limits: Any = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    return np.array([limits.max, limits.min], dtype)


KEPT = [(to, dtype) for to in ("numpy", "torch", "jax") for dtype in DTYPES]
KEPT = [case for case in KEPT if case not in [("torch", dtype) for dtype in NOT_OF_TORCH]]


@pytest.mark.parametrize(("to", "dtype"), KEPT)
def test_values_and_types_are_kept(to, dtype) -> None:
    with (
        LoopbackServer([[values(dtype)]] * 2) as server,
        StreamSource(server.url, timeout_s=WAIT_S) as source,
        Loader(source, plain_pipeline, to=to) as loader,
    ):
        for (array,) in loader:
            found = np.asarray(array)
            assert found.dtype == dtype
            assert found.tolist() == values(dtype).tolist()
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("dtype", NOT_OF_TORCH)
def test_a_type_that_the_iterator_for_torch_has_not_is_named(dtype) -> None:
    text = f"an output is {dtype}, which DALI's iterator for torch has no type for: convert it"
    with (
        LoopbackServer([[values(dtype)]] * 3) as server,
        StreamSource(server.url, timeout_s=WAIT_S) as source,
        Loader(source, plain_pipeline, to="torch") as loader,
    ):
        for _ in range(2):
            with pytest.raises(SourceError, match=text):
                next(iter(loader))
        assert [array.tolist() for (array,) in loader.to("numpy")] == [values(dtype).tolist()]


def test_bad_messages_that_are_skipped_are_counted() -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        url = f"zrpull://127.0.0.1:{port}"
        with StreamSource(url, length=2, timeout_s=WAIT_S, on_bad_message="skip") as source:
            assert source.stats.bad == 0
            good, bad = tenbin.encode_list([values("uint8")]), [b"junk"]
            # A thread: it waits for who receives.
            thread = threading.Thread(
                target=lambda: [socket.send_multipart(frames) for frames in (good, bad, good)]
            )
            thread.start()
            assert len(list(source)) == 2
            thread.join(WAIT_S)
            assert source.stats.bad == 1


def test_what_the_error_advises_helps() -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def define(source):
        (numbers,) = external_source(source)
        return fn.cast(numbers, dtype=types.INT64)

    with (
        LoopbackServer([[values("uint32")]]) as server,
        StreamSource(server.url, timeout_s=WAIT_S) as source,
        Loader(source, define, to="torch") as loader,
    ):
        ((array,),) = loader
        assert array.tolist() == values("uint32").tolist()
