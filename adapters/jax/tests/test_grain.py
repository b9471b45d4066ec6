"""Streams and records in Grain: loaders, workers, states."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from jax_helpers import (
    SAMPLES,
    WAIT_S,
    batch,
    counting,
    flat,
    gray_of,
    own_threads,
    run_script,
    write_records,
)

from tensorcom import ReceiveTimeoutError, ZmqUrlError
from tensorcom.pcr import PcrSource
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_jax import PcrDataSource, PcrIterDataset, StreamIterDataset


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "set")


def labels_of(batches: Any) -> list[list[int]]:
    """Return the samples of batches of the data source, having checked their pixels."""
    found = []
    for item in batches:
        labels = item["label"].tolist()
        means = item["image"].reshape(len(labels), -1).mean(axis=1)
        assert all(abs(m - gray_of(n)) < 3 for m, n in zip(means, labels, strict=True))
        found.append(labels)
    return found


def loader(root: Path, *, workers: int = 0, shard: tuple[int, int] = (0, 1)) -> grain.DataLoader:
    return grain.DataLoader(
        data_source=PcrDataSource(root, size=8),
        sampler=grain.samplers.IndexSampler(
            SAMPLES,
            shard_options=grain.sharding.ShardOptions(*shard),
            shuffle=True,
            num_epochs=2,
            seed=3,
        ),
        operations=[grain.transforms.Batch(4)],
        worker_count=workers,
    )


# -- the data source -----------------------------------------------------------------------------


def test_it_is_a_source_of_grain(root: Path) -> None:
    assert isinstance(PcrDataSource(root), grain.sources.RandomAccessDataSource)


def test_a_loader_gives_each_sample_once_an_epoch_and_resumes(root: Path) -> None:
    found = labels_of(loader(root))
    assert sorted(flat(found)) == sorted([*range(SAMPLES)] * 2)
    iterator = iter(loader(root))
    first = labels_of([next(iterator) for _ in range(3)])
    state = iterator.get_state()
    again = iter(loader(root))
    again.set_state(state)
    assert first + labels_of(again) == found


WORKERS = """
import sys
from pathlib import Path
from absl import flags
import jax
import test_grain

if __name__ == "__main__":
    flags.FLAGS([sys.argv[0]])
    assert jax.jit(lambda x: x + 1)(1) == 2  # JAX has its threads
    found = test_grain.labels_of(test_grain.loader(Path(sys.argv[1]), workers=2))
    print(sorted(test_grain.flat(found)) == sorted([*range(test_grain.SAMPLES)] * 2))
"""


def test_C09_worker_processes_are_spawned_without_a_warning(root: Path, tmp_path: Path) -> None:
    """C09: Grain's workers beside JAX's threads."""
    done = run_script(WORKERS, root, flags=("-W", "error::RuntimeWarning"))
    assert done.stdout.strip().splitlines()[-1] == "True"
    assert "fork" not in done.stderr


def strided(root: Path, rank: int, ranks: int, start: int = 0) -> Any:
    """Return a pipeline of Grain in which ranks take samples in turn, from a place on."""
    data = grain.MapDataset.source(PcrDataSource(root, size=8)).shuffle(seed=3)
    return data[start:][rank::ranks].to_iter_dataset().batch(2)


def test_a_pipeline_resumes_on_another_number_of_processes(root: Path) -> None:
    found, states = [], []
    for rank in range(2):
        iterator = iter(strided(root, rank, 2))
        found += flat(labels_of([next(iterator) for _ in range(3)]))
        states.append(iterator.get_state())
    assert states[0] == states[1]
    done = 2 * 3 * 2  # ranks, batches, samples of a batch: Grain's own state is for 2 ranks only
    for rank in range(3):
        found += flat(labels_of(strided(root, rank, 3, done)))
    assert sorted(found) == list(range(SAMPLES))


def test_random_crops_are_made_by_random_map(root: Path) -> None:
    from tensorcom.images import training_view

    def crop(item: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**item, "image": training_view(item["image"], rng, 8)}

    data = grain.MapDataset.source(PcrDataSource(root)).seed(1).random_map(crop).batch(4)
    assert flat(labels_of(data)) == list(range(SAMPLES))


# -- records -------------------------------------------------------------------------------------


def core(root: Path, epoch: int = 0, **arguments: Any) -> list[list[int]]:
    with PcrSource(root, **{"batch_size": 4, "size": 8, **arguments}) as source:
        source.set_epoch(epoch)
        return [labels.tolist() for _, labels in source]


def numbers(batches: Any) -> list[list[int]]:
    return [labels.tolist() for _, labels in batches]


def records(root: Path, **arguments: Any) -> PcrIterDataset:
    return PcrIterDataset(root, **{"batch_size": 4, "size": 8, **arguments})


def test_batches_are_those_of_core_for_as_many_epochs_as_asked_for(root: Path) -> None:
    assert numbers(records(root, seed=2)) == core(root, seed=2)
    assert numbers(records(root, epochs=3)) == sum((core(root, e) for e in range(3)), [])
    assert numbers(records(root, epochs=0)) == []
    assert own_threads() == []
    endless = iter(records(root, epochs=None))
    assert numbers([next(endless) for _ in range(14)])[12:] == core(root, 2)[:2]
    endless.close()
    assert own_threads() == []
    with pytest.raises(ValueError, match="closed"):
        next(endless)


@pytest.mark.parametrize("taken", [0, 1, 6, 7, 12])
def test_a_state_of_records_gives_the_rest(root: Path, taken: int) -> None:
    iterator = iter(records(root, epochs=2))
    found = numbers([next(iterator) for _ in range(taken)])
    state = json.loads(json.dumps(iterator.get_state()))
    iterator.close()
    again = iter(records(root, epochs=2))
    again.set_state(state)
    assert again.get_state() == state
    assert found + numbers(again) == core(root) + core(root, 1)


def test_a_state_after_the_last_epoch_gives_nothing(root: Path) -> None:
    iterator, again = iter(records(root, epochs=2)), iter(records(root, epochs=2))
    assert len(numbers(iterator)) == 12
    again.set_state(iterator.get_state())
    assert numbers(again) == []


def test_a_state_of_records_is_for_any_number_of_processes(root: Path) -> None:
    found, states = [], []
    for rank in range(2):
        iterator = iter(records(root, shard=(rank, 2), end="uneven"))
        found += flat(numbers([next(iterator) for _ in range(2)]))
        states.append(iterator.get_state())
        iterator.close()
    for rank in range(3):
        iterator = iter(records(root, shard=(rank, 3), end="uneven", batch_size=1))
        iterator.set_state(states[1])
        found += flat(numbers(iterator))
        iterator.close()
    assert sorted(found) == list(range(SAMPLES))


def test_transformations_of_grain_follow(root: Path) -> None:
    data = records(root).map(lambda pair: pair[1] * 2).filter(lambda labels: len(labels) == 4)
    assert [labels.tolist() for labels in data] == [
        [2 * label for label in labels] for labels in core(root) if len(labels) == 4
    ]


@pytest.mark.parametrize("epochs", [1, 2])
def test_threads_of_grain_share_records(root: Path, epochs: int) -> None:
    data = grain.experimental.multithread_prefetch(
        records(root, epochs=epochs), num_threads=2, buffer_size=1
    )
    found = numbers(data)
    assert sorted(flat(found)) == sorted([*range(SAMPLES)] * epochs)


LEFT = """
import sys
from tensorcom_jax import PcrIterDataset, StreamIterDataset

if "://" in sys.argv[1]:
    iterator = iter(StreamIterDataset(sys.argv[1], timeout_s=30))
else:
    iterator = iter(PcrIterDataset(sys.argv[1], batch_size=1, size=8))
print(len(next(iterator)))
"""


@pytest.mark.parametrize("kind", ["stream", "records"])
def test_a_process_ends_quietly_with_an_iterator_that_is_left(root: Path, kind: str) -> None:
    with LoopbackServer(counting()) as server:
        done = run_script(LEFT, server.url if kind == "stream" else root)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_workers_of_workers_share_records(root: Path) -> None:
    found = []
    for outer, inner in itertools.product(range(2), range(3)):
        data = records(root, batch_size=2)
        data.set_slice(slice(outer, None, 2))
        data.set_slice(slice(inner, None, 3))
        found += flat(numbers(data))
    assert sorted(found) == list(range(SAMPLES))


MP_PREFETCH = """
import sys
from pathlib import Path
from absl import flags
import grain, test_grain

if __name__ == "__main__":
    flags.FLAGS([sys.argv[0]])
    options = grain.MultiprocessingOptions(num_workers=2)
    if "://" in sys.argv[1]:
        data = test_grain.StreamIterDataset(sys.argv[1], length=7, timeout_s=30)
    else:
        data = test_grain.records(Path(sys.argv[1]))
    print(test_grain.flat(test_grain.numbers(data.mp_prefetch(options))))
"""


def test_worker_processes_share_records_in_the_order_of_one(root: Path) -> None:
    done = run_script(MP_PREFETCH, root)
    readers = [PcrSource(root, batch_size=4, size=8, worker=(n, 2)) for n in range(2)]
    pairs = zip(*map(numbers, readers), strict=True)
    assert json.loads(done.stdout.splitlines()[-1]) == flat([b for pair in pairs for b in pair])


def test_C01_worker_processes_share_a_stream() -> None:
    """C01: two workers give each batch once."""
    with LoopbackServer(counting(), readers=2) as server:
        done = run_script(MP_PREFETCH, server.url)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(set(found)) == 7 * 4


# -- streams -------------------------------------------------------------------------------------


def stream(server: LoopbackServer, **arguments: Any) -> StreamIterDataset:
    return StreamIterDataset(server.url, **{"timeout_s": WAIT_S, **arguments})


def test_a_stream_is_yielded_to_its_end() -> None:
    with LoopbackServer([batch(number) for number in range(5)]) as server:
        iterator = iter(stream(server, layout=("NHWC", "NCHW")))
        found = list(iterator)
        assert list(iterator) == []
        iterator.close()
    assert all(type(item) is tuple for item in found)
    for number, (images, labels) in enumerate(found):
        np.testing.assert_array_equal(labels, batch(number)[1])
        np.testing.assert_array_equal(images, batch(number)[0].transpose(0, 3, 1, 2))
        images[...] = 0  # they are the caller's


def test_a_state_of_a_stream_counts_what_was_taken() -> None:
    with LoopbackServer(counting()) as server:
        iterator = iter(stream(server, length=5))
        assert iterator.get_state() == {"taken": 0}
        assert flat(numbers([next(iterator) for _ in range(2)])) == list(range(8))
        state = json.loads(json.dumps(iterator.get_state()))
        assert state == {"taken": 2}
        iterator.set_state({"taken": 4})
        assert len(list(iterator)) == 1, "in the same iterator"
        iterator.close()
        again = iter(stream(server, length=5))
        again.set_state(state)
        assert len(list(again)) == 3, "in a new one"
        assert again.get_state() == {"taken": 5}
        for wrong in ({}, {"taken": -1}, {"taken": "2"}, None):
            with pytest.raises(ValueError, match="expected what get_state returned"):
                again.set_state(wrong)
        again.close()


def test_a_stream_goes_on_after_an_error() -> None:
    def fail_once(labels: np.ndarray) -> np.ndarray:
        if labels[0] == 4:
            raise ArithmeticError("labels of batch 1")
        return labels

    with LoopbackServer([batch(number) for number in range(3)]) as server:
        iterator = iter(stream(server, batch_transforms=[None, fail_once]))
        assert next(iterator)[1][0] == 0
        with pytest.raises(ArithmeticError, match="labels of batch 1"):
            next(iterator)
        assert [labels[0] for _, labels in iterator] == [8]
        iterator.close()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)


def test_a_server_that_is_not_there_is_a_timeout() -> None:
    with LoopbackServer([]) as server:
        data = stream(server, timeout_s=0.2)
    iterator = iter(data)
    for _ in range(2):
        with pytest.raises(ReceiveTimeoutError, match="is the server running"):
            next(iterator)
    iterator.close()


def test_prefetching_and_placing_of_grain_follow() -> None:
    with LoopbackServer([batch(number) for number in range(5)]) as server:
        data = grain.experimental.device_put(stream(server), None)
        assert [int(labels[0]) // 4 for _, labels in data] == list(range(5))


def test_a_url_that_binds_serves_one_worker() -> None:
    data = StreamIterDataset("zpull://127.0.0.1:0")
    data.set_slice(slice(1, None, 2))
    with pytest.raises(ZmqUrlError, match="one worker can do and 2 cannot"):
        iter(data)
    with pytest.raises(ZmqUrlError, match="zpush sends"):
        StreamIterDataset("zpush://127.0.0.1:1")
    with pytest.raises(ValueError, match="length=-1"):
        StreamIterDataset("zpull://127.0.0.1:1", length=-1)


def test_without_grain_it_is_named_when_it_is_asked_for() -> None:
    script = """
import sys
sys.modules["grain"] = None
import tensorcom_jax
from tensorcom import MissingDependencyError
assert tensorcom_jax.PcrDataSource
for name in ("StreamIterDataset", "PcrIterDataset"):
    try:
        getattr(tensorcom_jax, name)
    except MissingDependencyError as exc:
        print(exc)
try:
    tensorcom_jax.nothing
except AttributeError as exc:
    print(exc)
"""
    out = run_script(script).stdout.splitlines()
    assert out[0] == out[1]
    assert "needs the package 'grain'" in out[0]
    assert "pip install 'tensorcom-jax[grain]'" in out[0]
    assert out[2] == "module 'tensorcom_jax' has no attribute 'nothing'"


def test_importing_the_package_imports_no_grain() -> None:
    assert (
        run_script("import sys, tensorcom_jax; print('grain' in sys.modules)").stdout == "False\n"
    )
