"""Hard cases of streams and types with JAX, each by its id."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest
from jax_helpers import WAIT_S, batch, flat, ids, samples_of, write_records

from tensorcom.testing.loopback import LoopbackServer
from tensorcom_jax import DeviceRecords, DeviceStream


@pytest.mark.parametrize("scheme", ["zrpush", "zpub"])
def test_C04_ranks_with_a_length_end_at_the_same_step(scheme: str) -> None:
    sent = (batch(number) for number in range(11 if scheme == "zpub" else 1000))
    with LoopbackServer(sent, scheme=scheme, readers=2) as server:
        streams = [
            DeviceStream(server.url, shard=(rank, 2), length=5, timeout_s=WAIT_S)
            for rank in range(2)
        ]
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(ids, streams))
        for stream in streams:
            stream.close()
    assert [len(samples) for samples in found] == [5 * 4, 5 * 4]
    assert max(Counter(sum(found, [])).values()) == 1


def test_C06_every_batch_is_a_tree_of_the_same_form_the_last_one_too(tmp_path: Path) -> None:
    sent = [[np.ones((samples, 3), "f2"), np.arange(samples)] for samples in (4, 4, 1)]
    root = write_records(tmp_path / "set", samples=9)
    with (
        LoopbackServer(sent) as server,
        closing(DeviceStream(server.url, timeout_s=WAIT_S)) as stream,
        closing(DeviceRecords(root, batch_size=4, size=8)) as records,
    ):
        for batches in (list(stream), list(records)):
            assert len(batches) == 3
            forms = {jax.tree.structure(found) for found in batches}
            assert forms == {jax.tree.structure((0, 0))}
            assert all(isinstance(value, jax.Array) for value in jax.tree.leaves(batches))
            assert len({str([value.dtype for value in found]) for found in batches}) == 1


def test_C10_every_epoch_gives_every_image(tmp_path: Path) -> None:
    root = write_records(tmp_path / "set", samples=10)
    with closing(DeviceRecords(root, batch_size=4, size=8)) as records:
        for _ in range(3):
            epoch = samples_of(records)
            assert [len(labels) for labels in epoch] == [4, 4, 2]
            assert sorted(flat(epoch)) == list(range(10))
