"""Senders that use a DataLoader with workers: allowed, seeded apart, and gone with their fleet."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tensorcom.testing import processes

SENDERS = 2
LOADER_WORKERS = 2
GONE_S = 5.0

SERVE = """
import sys

from tensorcom.serving import Fleet

def serve(worker, limit):
    import torch  # late, as a sender may: it is seeded all the same
    from torch.utils.data import DataLoader

    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return 100_000
        def __getitem__(self, index):
            return torch.rand(2, dtype=torch.float64)

    loader = DataLoader(Augmented(), batch_size=4, num_workers=2)
    for done, batch in enumerate(loader):
        if done == 0:
            worker.report({"first": batch.flatten().tolist()})
        if worker.stopping.is_set() or done == limit:
            return
        if limit > 1:
            worker.stopping.wait(0.01)

def show(event):
    if event.kind in ("report", "crashed"):
        print(event.kind, event.progress.get("first"), event.detail, flush=True)

if __name__ == "__main__":
    Fleet(serve, (int(sys.argv[1]),), count=2, seed=3, fail_fast=True, on_event=show).run()
"""


@contextmanager
def start(directory, limit: int):
    script = directory / "serve.py"
    script.write_text(SERVE)
    command = [sys.executable, str(script), str(limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            yield parent
        finally:
            parent.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_B02_no_loader_worker_outlives_the_fleet(tmp_path, number) -> None:
    with start(tmp_path, 10**9) as parent:
        lines = [parent.stdout.readline() for _ in range(SENDERS)]
        family = processes.descendants(parent.pid)
        parent.send_signal(number)
        assert [line.split()[0] for line in lines] == ["report"] * SENDERS
        assert len(family) >= SENDERS * (1 + LOADER_WORKERS)
        assert not processes.wait_until_gone(family, timeout_s=GONE_S)
        assert "crashed" not in parent.stdout.read()
        parent.wait()
    assert parent.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 0)


def test_B20_loader_workers_of_different_senders_draw_different_numbers(tmp_path) -> None:
    def draws() -> list[str]:
        with start(tmp_path, 1) as parent:
            return sorted(parent.stdout.read().splitlines())

    first = draws()
    assert len(set(first)) == SENDERS
    assert all(line.startswith("report [") for line in first)
    assert draws() == first
