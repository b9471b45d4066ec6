"""TensorcomDataset as a source for WebDataset's pipelines and loader."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds

from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset

WAIT_S = 60
SAMPLES = 16
BATCHES = 10


def batches(server: int) -> list[list[Any]]:
    """Return batches whose samples each have an id of their own."""
    found = []
    for number in range(BATCHES):
        ids = np.arange(SAMPLES, dtype="i4") + SAMPLES * (BATCHES * server + number)
        found.append([np.repeat(ids % 251, 6).astype("u1").reshape(SAMPLES, 2, 3), ids])
    return found


def check(loaded: list[Any], servers: int) -> list[int]:
    """Return the sample ids in the order that they came, having checked all of them."""
    ids = torch.cat([labels for _, labels in loaded])
    images = torch.cat([images for images, _ in loaded])
    assert (images == (ids % 251)[:, None, None]).all()
    assert Counter(ids.tolist()) == Counter(range(SAMPLES * BATCHES * servers))
    return ids.tolist()


@pytest.mark.parametrize(("servers", "workers"), [(2, 1), (2, 2), (4, 2)])
def test_unbatched_shuffled_and_batched_by_the_web_loader(servers: int, workers: int) -> None:
    """The flow that hung in the original: publishers, a worker, and steps in the parent."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(LoopbackServer(batches(n), scheme="zpub")) for n in range(servers)
        ]
        ports = ",".join(server.url.rpartition(":")[2] for server in running)
        dataset = TensorcomDataset(f"zsub://127.0.0.1:{{{ports}}}", timeout_s=WAIT_S)
        loader = wds.WebLoader(dataset, num_workers=workers, batch_size=None)
        loaded = list(loader.unbatched().shuffle(1000).batched(64))
    total = SAMPLES * BATCHES * servers
    assert [len(labels) for _, labels in loaded] == [64] * (total // 64) + [total % 64] * (
        total % 64 > 0
    )
    ids = check(loaded, servers)
    assert ids != sorted(ids)


def test_the_web_loader_has_epochs_over_an_endless_stream() -> None:
    def endless() -> Any:
        while True:
            yield from batches(0)

    with ExitStack() as stack:
        running = [stack.enter_context(LoopbackServer(endless(), scheme="zpub")) for _ in range(2)]
        dataset = TensorcomDataset([server.url for server in running], timeout_s=WAIT_S)
        loader = wds.WebLoader(dataset, num_workers=2, batch_size=None)
        epochs = loader.unbatched().shuffle(100).batched(32).with_epoch(5)
        assert [[len(labels) for _, labels in epochs] for _ in range(3)] == [[32] * 5] * 3


def test_it_is_the_first_stage_of_a_pipeline() -> None:
    with (
        LoopbackServer(batches(0)) as server,
        closing(TensorcomDataset(server.url, timeout_s=WAIT_S)) as dataset,
    ):
        pipeline = wds.DataPipeline(
            dataset,
            wds.unbatched(),
            wds.map(lambda sample: (sample[0], sample[1])),
            wds.batched(20),
        )
        loaded = list(pipeline)
    assert [len(labels) for _, labels in loaded] == [20] * 8
    assert check(loaded, 1) == list(range(SAMPLES * BATCHES))


def test_a_pipeline_runs_in_the_workers_of_a_web_loader() -> None:
    with LoopbackServer(batches(0), readers=2) as server:
        pipeline = wds.DataPipeline(
            TensorcomDataset(server.url, timeout_s=WAIT_S), wds.unbatched(), wds.shuffle(50)
        )
        loader = wds.WebLoader(pipeline, num_workers=2, batch_size=None).batched(40)
        loaded = list(loader)
    assert [len(labels) for _, labels in loaded] == [40] * 4
    check(loaded, 1)
