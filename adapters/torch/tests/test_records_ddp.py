"""Two ranks of a distributed job train from one set of records."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from record_helpers import SAMPLES, flat, make_dataset, samples_of, write_records

RUN_S = 100
RANKS = 2

JOB = '''
"""python job.py ROOT START DIRECTORY RUN...: each rank writes the samples that it got.

RUN is END,WORKERS,TAKEN: the policy, loader workers, and batches that were taken before.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tensorcom_torch import PcrDataset

RANKS, BATCH = 2, 3


def make(root, end, taken):
    # Made here, before there are ranks; the ranks share nothing through it.
    dataset = PcrDataset(root, batch_size=BATCH, size=8, end=end, layout="NCHW", threads=1)
    before = PcrDataset(root, batch_size=BATCH, size=8, end=end, shard=(0, RANKS))
    dataset.load_state_dict(before.state_after(taken, epoch=0))
    return dataset


def train(rank, runs, directory):
    warnings.simplefilter("error")
    torch.manual_seed(0)  # on each rank the same, as many programs do
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=RANKS
    )
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 1)
    model = torch.nn.Sequential(*layers)
    equal = DistributedDataParallel(model)
    found = []
    for end, workers, dataset in runs:
        loader = DataLoader(
            dataset,
            batch_size=None,
            num_workers=workers,
        )
        epochs = []
        for epoch in range(2):
            torch.manual_seed(0)
            batches = []
            for images, labels in loader:
                batches.append(labels.tolist())
                if end != "uneven":  # a rank would wait for gradients that do not come
                    equal(images / 255).sum().backward()
            epochs.append(batches)
        found.append({"length": len(loader), "epochs": epochs})
    weights = [float(parameter.grad.sum()) for parameter in model.parameters()]
    result = {"found": found, "gradients": weights}
    Path(directory, f"{rank}.json").write_text(json.dumps(result))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    root, start, directory, *texts = sys.argv[1:]
    runs = []
    for end, workers, taken in (text.split(",") for text in texts):
        runs.append((end, int(workers), make(root, end, int(taken))))
    multiprocessing.start_processes(
        train, (runs, directory), nprocs=RANKS, start_method=start
    )
'''

FORKED = [
    "wrap,0,0",
    "wrap,1,0",
    "wrap,2,2",
    "pad,1,0",
    "drop,0,0",
    "drop,2,0",
    "uneven,0,1",
    "uneven,2,0",
]


@pytest.mark.parametrize(
    ("start", "runs"), [("fork", FORKED), ("spawn", ["wrap,0,0", "uneven,0,2"])]
)
def test_two_ranks_share_each_epoch(tmp_path: Path, start: str, runs: list[str]) -> None:
    root = write_records(tmp_path / "set")
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(script), str(root), start, str(tmp_path), *runs],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert ranks[0]["gradients"] == ranks[1]["gradients"]
    for run, *found in zip(runs, *(rank["found"] for rank in ranks), strict=True):
        end, _, taken = run.split(",")
        for epoch, before in ((0, int(taken)), (1, 0)):
            check_epoch([rank["epochs"][epoch] for rank in found], end, handed(root, end, before))
            for rank in found:
                left = rank["length"] - before
                assert end == "uneven" or len(rank["epochs"][epoch]) == left, run
        assert found[0]["epochs"][0] != found[0]["epochs"][1], "another order"


def handed(root: Path, end: str, batches: int) -> list[int]:
    """Return the samples that both ranks get in their first batches of epoch 0."""
    found = []
    for rank in range(RANKS):
        dataset = make_dataset(root, batch_size=3, end=end, shard=(rank, RANKS))
        found += flat(samples_of(itertools.islice(dataset, batches)))
    return found


def check_epoch(ranks: list[list[list[int]]], end: str, before: list[int]) -> None:
    """Check what the ranks got of an epoch of which `before` was handed out before."""
    counts = [sum(map(len, batches)) for batches in ranks]
    samples = Counter(sample for batches in ranks for batch in batches for sample in batch)
    repeated = sum(counts) - len(samples) + len(set(before) & set(samples))
    if end == "uneven":
        assert abs(counts[0] - counts[1]) <= 1
    else:
        assert counts[0] == counts[1]
    if end in ("drop", "uneven"):
        assert repeated == 0
        missing = set(range(SAMPLES)) - set(before) - set(samples)
        assert len(missing) == ((SAMPLES - len(before)) % RANKS if end == "drop" else 0)
    else:
        assert repeated <= RANKS - 1
        assert set(before) | set(samples) == set(range(SAMPLES))
