"""Hard cases of processes and types around DALI, each by its id."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from dali_helpers import write_records

from tensorcom.testing.loopback import LoopbackServer
from tensorcom_dali import Loader, PcrSource, from_stream, plain_pipeline

C09 = """
import os, sys

forks = []
os.register_at_fork(before=lambda: forks.append(1))

import jax, numpy as np
assert jax.jit(lambda x: x + 1)(1) == 2  # JAX has its threads

from tensorcom.testing.loopback import LoopbackServer
from tensorcom_dali import Loader, PcrSource, from_stream, train_pipeline

step = jax.jit(lambda x: x.astype("f4").sum())
with Loader(PcrSource(sys.argv[1], batch_size=4), train_pipeline, size=8, to="jax") as loader:
    for _ in range(2):
        assert sum(len(labels) for images, labels in loader if np.isfinite(step(images))) == 10
with LoopbackServer([[np.full((4, 3), n, "u1")] for n in range(5)]) as server:
    with from_stream(server.url, timeout_s=30).to("jax") as stream:
        assert [float(step(values)) for (values,) in stream] == [12.0 * n for n in range(5)]
print(forks)
"""


def test_C09_nothing_forks_and_nothing_warns_beside_jax(tmp_path: Path) -> None:
    root = write_records(tmp_path / "set", samples=10)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", C09, str(root)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


KINDS = {"numpy": np.ndarray, "torch": torch.Tensor, "jax": jax.Array}


@pytest.mark.parametrize("to", KINDS)
def test_C06_every_batch_has_the_same_types_the_last_one_too(tmp_path: Path, to: str) -> None:
    root = write_records(tmp_path / "set", samples=10)
    source = PcrSource(root, batch_size=4, decode=True, size=8)
    with (
        LoopbackServer(
            [[np.ones((2, 3), "u1"), np.arange(2)], [np.ones((1, 3), "u1"), np.ones(1, int)]]
        ) as server,
        Loader(source, plain_pipeline, to=to) as records,
        from_stream(server.url, timeout_s=30).to(to) as stream,
    ):
        for batches in (list(records), list(stream)):
            for batch in batches:
                assert type(batch) is list
                assert all(isinstance(value, KINDS[to]) for value in batch)
            assert len({str([value.dtype for value in batch]) for batch in batches}) == 1
