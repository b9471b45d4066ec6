"""Two ranks of a distributed job train from one stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN_S = 100
STEPS = 8

JOB = '''
"""python job.py SCHEME SERVERS WORKERS START DIRECTORY: each rank writes what it saw there."""

import contextlib
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tensorcom.testing.loopback import LoopbackServer
from tensorcom_torch import TensorcomDataset

RANKS, STEPS = 2, 8


def batches(server):
    rng = np.random.default_rng(server)
    number = 0
    while True:
        inputs = rng.normal(size=(16, 2)).astype("f4")
        targets = inputs @ np.array([[2.0], [-1.0]], "f4")
        yield [inputs, targets, np.full(16, 1000 * server + number, "i4")]
        number += 1


def train(rank, dataset, workers, directory):
    warnings.simplefilter("error")
    torch.manual_seed(0)  # on each rank the same, as many programs do
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=RANKS
    )
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    seen, losses = [], []
    for epoch in range(2):
        torch.manual_seed(0)
        for inputs, targets, numbers in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            seen.append(int(numbers[0]))
            losses.append(float(loss.detach()))
    weights = [parameter.flatten().tolist() for parameter in model.parameters()]
    result = {"seen": seen, "losses": losses, "weights": weights}
    Path(directory, f"{rank}.json").write_text(json.dumps(result))
    distributed.barrier()
    dataset.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    scheme, servers, workers, start, directory = sys.argv[1:]
    servers, workers = int(servers), int(workers)
    # Each publisher waits for all that read it, so that the numbers are the same in each run.
    readers = RANKS * max(workers, 1) // servers if scheme == "zpub" else 1
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(LoopbackServer(batches(n), scheme=scheme, readers=readers))
            for n in range(servers)
        ]
        # Made here, before there are ranks; the ranks share nothing through it.
        dataset = TensorcomDataset([s.url for s in running], length=STEPS, timeout_s=60)
        multiprocessing.start_processes(
            train, (dataset, workers, directory), nprocs=RANKS, start_method=start
        )
'''


@pytest.mark.parametrize(
    ("scheme", "servers", "workers", "start"),
    [
        ("zrpush", 1, 2, "fork"),
        ("zrpush", 1, 1, "spawn"),
        ("zpub", 1, 0, "fork"),
        ("zpub", 1, 1, "fork"),
        ("zpub", 2, 1, "fork"),
    ],
)
def test_two_ranks_train_on_batches_of_their_own(
    tmp_path: Path, scheme: str, servers: int, workers: int, start: str
) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = [sys.executable, str(script), scheme, str(servers), str(workers), start]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    seen = [set(rank["seen"]) for rank in ranks]
    assert [len(rank["seen"]) for rank in ranks] == [2 * STEPS] * 2
    assert [len(numbers) for numbers in seen] == [2 * STEPS] * 2, "a rank had a batch twice"
    assert not seen[0] & seen[1], "both ranks had a batch"
    assert ranks[0]["weights"] == ranks[1]["weights"]
    for rank in ranks:
        assert rank["losses"][-1] < rank["losses"][0] / 4
    if scheme == "zpub":  # by number, or by publisher where there is one for each
        owner = [{n % 2 if servers == 1 else n // 1000 for n in numbers} for numbers in seen]
        assert owner == [{0}, {1}]
