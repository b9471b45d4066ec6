"""Processes of a JAX job, and devices of one, that share records, streams and arrays."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jax_helpers import (
    RUN_S,
    SAMPLES,
    batch,
    flat,
    run_script,
    samples_of,
    simulated,
    write_records,
)

from tensorcom.pcr import PcrSource
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_jax import DeviceRecords

RANKS, DEVICES = 2, 2  # devices of each process

START = """
import itertools, json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tensorcom_jax import DeviceRecords, DeviceStream
from tensorcom_jax.placement import Placement

port, rank, argument = sys.argv[1:]
rank = int(rank)
early = DeviceRecords(argument, batch_size=2, size=8) if "://" not in argument else None
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
devices = np.array(jax.devices())
assert len(devices) == 4 and jax.process_count() == 2
flat, grid = Mesh(devices, ("data",)), Mesh(devices.reshape(2, 2), ("data", "model"))
across = Mesh(devices.reshape(2, 2).T, ("data", "model"))  # each process has half of the model

def whole(array):
    # What the job as a whole sees, computed by all processes together.
    everywhere = NamedSharding(array.sharding.mesh, P())
    return np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(array))

def refused(make, text):
    try:
        make()
    except ValueError as exc:
        assert text in str(exc), exc
    else:
        raise AssertionError(text)

def run():
"""

END = """
print(json.dumps(run()), flush=True)
jax.distributed.shutdown()
"""


def run_job(body: str, argument: str) -> list[Any]:
    """Run two processes; return what each found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", START + indented + END, str(port), str(rank), argument],
            env=simulated(DEVICES),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        done = [job.communicate(timeout=RUN_S) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert [job.returncode for job in jobs] == [0, 0], done[0][1] + done[1][1]
    return [json.loads(out.splitlines()[-1]) for out, _ in done]  # gloo says what it does


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "set")


def core(root: Path, rank: int, ranks: int = RANKS, epoch: int = 0, **arguments: Any) -> list[Any]:
    with PcrSource(
        root, **{"batch_size": 4, "size": 8, "shard": (rank, ranks), **arguments}
    ) as source:
        source.set_epoch(epoch)
        return [labels.tolist() for _, labels in source]


RECORDS = """
found = {"early": [labels.tolist() for _, labels in early], "length": len(early)}
mean = jax.jit(lambda x: x.astype("f4").mean(axis=(1, 2, 3)))
for name, mesh, spec in [("flat", flat, P("data")), ("grid", grid, P("data"))]:
    records = DeviceRecords(argument, batch_size=4, size=8, sharding=NamedSharding(mesh, spec))
    found[name] = []
    for images, labels in records:
        assert images.shape == (8, 8, 8, 3) and labels.shape == (8,)
        assert images.sharding.mesh == mesh and not images.is_fully_addressable
        numbers = whole(labels)
        assert (abs(whole(mean(images)) - numbers * 37 % 251) < 3).all()
        found[name].append(numbers.tolist())
    for images, labels in itertools.islice(records, 1):
        found["next epoch"] = whole(labels).tolist()
    found["state"] = records.state_dict()
    records.close()
# Where the processes share the rows and split the model, both read the same batches.
for name, spec in [("replicated", P()), ("model", P("data"))]:
    records = DeviceRecords(
        argument, batch_size=4, size=8, sharding=NamedSharding(across, spec), drop_last=True
    )
    images, labels = next(iter(records))
    assert labels.shape == (4,), labels.shape
    found[name] = whole(labels).tolist()
    records.close()
sharding = NamedSharding(flat, P("data"))
for options in ({"end": "uneven"}, {"on_error": "skip"}):
    refused(lambda: DeviceRecords(argument, batch_size=4, sharding=sharding, **options),
            "processes that share arrays need batches of one size")
refused(lambda: DeviceRecords(argument, batch_size=5, sharding=sharding), "a batch of 5 samples")
refused(lambda: DeviceRecords(argument, batch_size=8, size=None, augment=None, sharding=sharding),
        "give a size")
refused(lambda: Placement([sharding, NamedSharding(across, P("data"))]),
        "different parts of the data")
others = [device for device in devices if device.process_index != rank]
refused(lambda: Placement(NamedSharding(Mesh(np.array(others), ("data",)), P("data"))),
        "has no device of this process")
return found
"""


def test_records_are_shared_and_make_global_arrays(root: Path) -> None:
    ranks = run_job(RECORDS, str(root))
    for rank, found in enumerate(ranks):
        # Made before the job was set up, it asked for its rank when it was iterated.
        assert found["early"] == core(root, rank, batch_size=2)
        assert found["length"] == 6
        assert found["replicated"] == found["model"] == core(root, 0, 1)[0]
    del ranks[0]["early"], ranks[1]["early"]
    assert ranks[0] == ranks[1]
    parts = [core(root, rank) for rank in range(RANKS)]
    expected = [one + two for one, two in zip(*parts, strict=True)]
    assert ranks[0]["flat"] == ranks[0]["grid"] == expected
    assert ranks[0]["next epoch"] == sum((core(root, rank, epoch=1)[0] for rank in (0, 1)), [])


def test_the_state_of_two_processes_is_resumed_by_one_and_by_three(root: Path) -> None:
    body = """
records = DeviceRecords(argument, batch_size=3, size=8, end="uneven", prefetch=4)
taken = [labels.tolist() for _, labels in itertools.islice(records, 2)]
return {"taken": taken, "state": records.state_dict()}
"""
    ranks = run_job(body, str(root))
    assert ranks[0]["state"] == ranks[1]["state"]
    taken = sum((flat(found["taken"]) for found in ranks), [])
    assert len(taken) == 12
    for count in (1, 3):
        found = list(taken)
        for rank in range(count):
            shard = (rank, count)
            records = DeviceRecords(root, batch_size=5, size=8, end="uneven", shard=shard)
            records.load_state_dict(ranks[0]["state"])
            found += flat(samples_of(records))
            records.close()
        assert sorted(found) == list(range(SAMPLES))


STREAM = """
sharding = NamedSharding(flat, P("data"))
refused(lambda: DeviceStream(argument, sharding=NamedSharding(across, P("data"))),
        "has 1 different parts of a batch on 2 processes")
stream = DeviceStream(argument, sharding=sharding, length=3, timeout_s=30)
found = []
for images, labels in stream:
    numbers = whole(labels)
    assert images.shape == (8, 4, 3, 2)
    assert (whole(images)[:, 0, 0, 0] == numbers % 251).all()
    found.append(numbers.tolist())
try:
    next(iter(stream))
except ValueError as exc:
    assert "batch with leading axes [2, 2] after [4, 4]: processes that share arrays" in str(exc)
    found.append("refused")
stream.close()
return found
"""


def test_a_stream_makes_global_arrays_of_equal_batches() -> None:
    sent = [batch(number) for number in range(6)] + [batch(99, samples=2)] * 2
    with LoopbackServer(sent, scheme="zpub", readers=RANKS) as server:
        ranks = run_job(STREAM, server.url)
    assert ranks[0] == ranks[1]
    numbers = [batch(number)[1].tolist() for number in range(6)]
    assert ranks[0] == [numbers[0] + numbers[1], numbers[2] + numbers[3], sum(numbers[4:], [])] + [
        "refused"
    ]


SHARED = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tensorcom_jax import DeviceRecords

sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
plain = {"batch_size": 4, "size": 8, "shuffle": False, "sharding": sharding}
records = DeviceRecords(sys.argv[1], on_error="skip", **plain)
print([labels.tolist() for _, labels in records], records.skipped)
assert all(image.sharding == sharding for image, _ in records)
for options in ({"batch_size": 3}, {"size": None, "augment": None}):
    try:
        DeviceRecords(sys.argv[1], **{**plain, **options})
    except ValueError as exc:
        print(exc)
assert len(DeviceRecords(sys.argv[1], **{**plain, "batch_size": 6}, drop_last=True)) == 3
"""

SPLIT = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tensorcom_jax import pcr_iterator

split = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
options = {"decode": False, "sharding": split, "drop_last": True}
try:
    pcr_iterator(sys.argv[1], batch_size=3, **options)
except ValueError as error:
    print(error)
for size in ({}, {"size": None, "augment": None}):
    records = pcr_iterator(sys.argv[1], batch_size=4, **options, **size)
    jpegs, labels = next(iter(records))
    assert [jpeg[:2] for jpeg in jpegs] == [bytes([255, 216])] * 4
    assert labels.sharding == split
    records.close()
"""


def test_labels_alone_are_split_too(root: Path) -> None:
    done = run_script(SPLIT, root, devices=2)
    assert done.stdout.startswith("a batch of 3 samples cannot be split into 2 equal parts"), done


REST = """
import itertools, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tensorcom_jax import DeviceRecords

sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
one = DeviceRecords(sys.argv[1], batch_size=5, size=8)
assert len(list(itertools.islice(one, 1))) == 1
rest = DeviceRecords(sys.argv[1], batch_size=4, size=8, sharding=sharding)
rest.load_state_dict(one.state_dict())
try:
    for images, labels in rest:
        print(len(labels))
except ValueError as exc:
    print(exc)
late = DeviceRecords(sys.argv[1], batch_size=4, size=8, sharding=sharding)
late._shard = lambda: (0, 4)  # as if the job had been set up meanwhile
late.reader.read_prefix = None
try:
    next(iter(late))
except ValueError as exc:
    print(exc)
"""


def test_a_rest_that_devices_cannot_share_says_what_would_do(tmp_path: Path) -> None:
    root = write_records(tmp_path / "set", samples=20)
    out = run_script(REST, root, devices=2).stdout.splitlines()
    assert out[:3] == ["4", "4", "4"]
    assert "a batch of 3 samples cannot be split into 2 equal parts" in out[3]
    assert "drop_last=True" in out[3]
    assert "a batch of 1 samples cannot be split into 2 equal parts" in out[4]


def test_devices_share_what_is_left_of_a_batch(tmp_path: Path) -> None:
    root = write_records(tmp_path / "set", samples=20)
    (root / "PCR_1.pcr").write_bytes(b"")
    out = run_script(SHARED, root, devices=2).stdout.splitlines()
    # Of the second batch, 4 alone is left, which two devices cannot share.
    kept = [[0, 1, 2, 3], [10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]
    assert out[0] == f"{kept} {5 + 1}"
    assert "a batch of 3 samples cannot be split into 2 equal parts" in out[1]
    assert "give a size" in out[2]
