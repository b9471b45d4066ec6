"""FidelitySchedule: what each epoch reads, by Variable, by file, and by attribute."""

from __future__ import annotations

import pytest
import tensorflow as tf
from pcr_set_helpers import write_set

from tensorcom_keras import FidelitySchedule, pcr_dataset


class Reader:
    scan_groups = 7


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set"), [3, 4])


def size_of(dataset) -> int:
    return sum(len(jpeg) for jpegs, _ in dataset.as_numpy_iterator() for jpeg in jpegs)


@pytest.mark.parametrize(
    "schedule",
    [{0: 1, 2: 5, 4: None}, [1, 1, 5, 5, None], lambda epoch: (1, 1, 5, 5, None, None)[epoch]],
)
def test_numbers_by_epoch(schedule) -> None:
    found = [FidelitySchedule(schedule).scan_groups(epoch) for epoch in range(6)]
    assert found == [1, 1, 5, 5, None, None]


def test_an_object_gets_them() -> None:
    reader = Reader()
    fidelity = FidelitySchedule([2, None], target=reader)
    assert reader.scan_groups == 7
    fidelity.on_epoch_begin(0)
    assert reader.scan_groups == 2
    fidelity.on_epoch_begin(1)
    assert reader.scan_groups is None


@pytest.mark.parametrize("has_file", [True, False])
def test_graphs_read_them(root, tmp_path, has_file) -> None:
    target = tmp_path / "control" if has_file else None
    fidelity = FidelitySchedule({0: 1, 1: 3, 2: None}, target=target)
    options = {"batch_size": 2, "decode": False}
    dataset = pcr_dataset(root, scan_groups=fidelity, **options)
    sizes = []
    for epoch in (0, 1, 2, 0):
        fidelity.set_epoch(epoch)
        sizes.append(size_of(dataset))
    expected = [size_of(pcr_dataset(root, scan_groups=k, **options)) for k in (1, 3, None, 1)]
    assert sizes == expected
    assert sizes[0] < sizes[1] < sizes[2]
    if has_file:
        assert target.read_text() == "1 0\n"


@pytest.mark.parametrize("has_file", [True, False])
def test_a_change_shows_within_an_iteration(tmp_path, has_file) -> None:
    root = write_set(tmp_path / "set", [1] * 40)
    fidelity = FidelitySchedule([1, 10], target=tmp_path / "control" if has_file else None)
    dataset = pcr_dataset(root, scan_groups=fidelity, batch_size=1, decode=False, shuffle=False)
    sizes = []
    for jpegs, _ in dataset:
        sizes.append(len(jpegs.numpy()[0]))
        if len(sizes) == 2:
            fidelity.set_epoch(1)
    assert sizes[0] < sizes[-1]


@pytest.mark.parametrize("has_file", [True, False])
def test_a_change_under_way_is_seen(tmp_path, has_file) -> None:
    root = write_set(tmp_path / "set", [1] * 40)
    target = tmp_path / "control" if has_file else None
    fidelity = FidelitySchedule([1, None], target=target)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    dataset = pcr_dataset(root, batch_size=1, decode=False, shuffle=False, scan_groups=fidelity)
    found = []
    for jpegs, _ in dataset.with_options(options):
        found += jpegs.numpy().tolist()
        fidelity.set_epoch(1)
    ends = []
    for groups in (1, None):
        (all_of_it,) = pcr_dataset(
            root, batch_size=40, decode=False, shuffle=False, scan_groups=groups
        )
        ends.append(all_of_it[0].numpy().tolist())
    assert (found[0], found[-1]) == (ends[0][0], ends[1][-1])


def test_a_graph_that_comes_late_has_the_epoch_that_is(root) -> None:
    fidelity = FidelitySchedule([1, 4])
    fidelity.set_epoch(1)
    late = pcr_dataset(root, scan_groups=fidelity, batch_size=2, decode=False)
    assert size_of(late) == size_of(pcr_dataset(root, scan_groups=4, batch_size=2, decode=False))


def test_one_fidelity_for_two_graphs(root) -> None:
    fidelity = FidelitySchedule([2, 1])
    both = [pcr_dataset(root, scan_groups=fidelity, batch_size=2, decode=False) for _ in range(2)]
    before = [size_of(dataset) for dataset in both]
    fidelity.set_epoch(1)
    after = [size_of(dataset) for dataset in both]
    assert before[0] == before[1] > after[0] == after[1]


def test_fit_sets_them(root) -> None:
    import keras

    fidelity = FidelitySchedule([1, 2, 3])
    variable = fidelity.bind(10)
    seen = []
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(int(variable)))
    dataset = pcr_dataset(root, batch_size=7, size=8).map(lambda x, y: (x, tf.one_hot(y, 2)))
    model.fit(dataset, epochs=3, verbose=0, shuffle=False, callbacks=[fidelity, note])
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("schedule", [{}, [], {1: 3}, [0], [3, -1], {0: 2, 5: 0}, [1.5], "12"])
def test_schedules_that_say_nothing_or_nonsense(schedule) -> None:
    with pytest.raises(ValueError, match="schedule"):
        FidelitySchedule(schedule)


def test_a_relative_target_stays_where_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fidelity = FidelitySchedule([1, 2], target="control")
    monkeypatch.chdir("/")
    assert fidelity.bind(10) == str(tmp_path / "control")
    fidelity.set_epoch(1)
    assert (tmp_path / "control").read_text() == "2 1\n"


def test_a_url_as_target(root) -> None:
    fidelity = FidelitySchedule([1, 2], target="ram://fidelity/control")
    dataset = pcr_dataset(root, scan_groups=fidelity, batch_size=2, decode=False)
    first = size_of(dataset)
    fidelity.set_epoch(1)
    assert size_of(dataset) > first
    with tf.io.gfile.GFile("ram://fidelity/control") as file:
        assert file.read() == "2 1\n"
    assert tf.io.gfile.listdir("ram://fidelity") == ["control"]


def test_a_set_that_does_not_fit_changes_nothing() -> None:
    fidelity = FidelitySchedule([11])
    with pytest.raises(ValueError, match="scan_groups=11 in epoch 0, expected 1 to 10"):
        fidelity.bind(10)
    assert int(fidelity.bind(12)) == 11
    strange = FidelitySchedule(lambda epoch: 1.5)
    with pytest.raises(ValueError, match="scan_groups=1.5 in epoch 0"):
        strange.bind(10)


def test_numbers_out_of_range_of_the_set(root) -> None:
    fidelity = FidelitySchedule(lambda epoch: 9 + epoch)
    fidelity.bind(10)
    fidelity.set_epoch(1)
    with pytest.raises(ValueError, match="scan_groups=11 in epoch 2, expected 1 to 10"):
        fidelity.set_epoch(2)
    with pytest.raises(ValueError, match="that of a set of 10 scan groups, and this one has 6"):
        fidelity.bind(6)
