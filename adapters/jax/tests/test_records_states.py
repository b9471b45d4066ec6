"""States of DeviceRecords: what was handed out, whatever was read ahead, for other ranks too."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path

import pytest
from jax_helpers import SAMPLES, flat, samples_of, wait_for, write_records
from jax_record_helpers import BATCHES, core, opened, read_ahead

from tensorcom import ClosedError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("gray") / "set")


@pytest.mark.parametrize("taken", range(BATCHES + 1))
def test_a_state_counts_what_was_handed_out_whatever_was_read_ahead(root: Path, taken: int) -> None:
    with opened(root, prefetch=BATCHES, seed=5) as records:
        iterator = iter(records)
        found = samples_of(itertools.islice(iterator, taken))
        if taken:
            assert wait_for(lambda: records._running._shelf._is_finished)
        state = json.loads(json.dumps(records.state_dict()))
        iterator.close()
        assert records.state_dict() == state
    with opened(root) as again:
        again.load_state_dict(state)
        assert again.state_dict() == state
        found += samples_of(again)
        assert samples_of(again) == core(root, 1, seed=5)
    assert found == core(root, seed=5)


def test_after_the_end_the_state_is_that_of_the_next_epoch(root: Path) -> None:
    with opened(root) as records, opened(root) as again:
        samples_of(records)
        again.load_state_dict(records.state_dict())
        assert samples_of(again) == core(root, 1)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_state_is_for_any_number_of_ranks(root: Path, ranks: int) -> None:
    found, states = [], []
    for rank in range(2):
        with opened(root, shard=(rank, 2), end="uneven", batch_size=2) as records:
            found += flat(samples_of(itertools.islice(records, 3)))
            states.append(records.state_dict())
    assert states[0] == states[1]
    for rank in range(ranks):
        with opened(root, shard=(rank, ranks), end="uneven", batch_size=3) as records:
            records.load_state_dict(states[0])
            found += flat(samples_of(records))
    assert sorted(found) == list(range(SAMPLES))


def test_loading_ends_the_iteration_that_runs(root: Path) -> None:
    with opened(root) as records:
        state = records.state_dict()
        with read_ahead(records, 2) as iterator:
            records.load_state_dict(state)
            with pytest.raises(ClosedError):
                next(iterator)
        assert samples_of(records) == core(root)


@pytest.mark.parametrize("taken", [0, 2, BATCHES])
def test_a_pickle_begins_with_the_epoch_that_comes_next(root: Path, taken: int) -> None:
    with opened(root, seed=2, scan_groups=3) as records:
        iterator = iter(records)
        assert len(list(itertools.islice(iterator, taken))) == taken
        copy = pickle.loads(pickle.dumps(records))
        assert copy._source is None
        assert copy.scan_groups == 3
        epoch = 1 if taken else 0
        assert samples_of(copy) == core(root, epoch, seed=2)
        assert samples_of(copy) == core(root, epoch + 1, seed=2)
        copy.close()
        iterator.close()


def test_a_pickle_has_the_state_that_waits(root: Path) -> None:
    with opened(root) as records, opened(root) as again:
        assert len(list(itertools.islice(records, 2))) == 2
        again.load_state_dict(records.state_dict())
        copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(again))))
        assert samples_of(copy) == core(root)[2:]
        copy.close()


def test_a_pickle_has_the_seed_of_a_state_that_was_loaded(root: Path) -> None:
    with opened(root, seed=5) as records, opened(root) as again:
        again.load_state_dict(records.state_dict())
        assert samples_of(itertools.islice(again, 2)) == core(root, seed=5)[:2]
        copy = pickle.loads(pickle.dumps(again))
        assert samples_of(copy) == core(root, 1, seed=5)
        copy.close()


def test_a_rank_that_is_known_late_goes_on_where_it_was(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorcom_jax.placement import Placement

    with opened(root, seed=4) as records:
        records.set_epoch(2)
        assert len(samples_of(itertools.islice(records, 1))) == 1
        monkeypatch.setattr(Placement, "shard", lambda _: (1, 2))
        assert samples_of(records) == core(root, 3, seed=4, shard=(1, 2))
