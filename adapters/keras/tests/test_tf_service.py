"""pcr_dataset on tf.data service: a dispatcher and two workers on the loopback interface."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from pcr_set_helpers import check_pixels, labels_of, write_set

from tensorcom_keras import FidelitySchedule, pcr_dataset
from tensorcom_keras.tf_order import Part, split_piece_dataset

SIZES = [5, 4, 6, 1, 7, 3, 8]
TOTAL = sum(SIZES)
service = tf.data.experimental.service
Policy = service.ShardingPolicy


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


SERVERS = textwrap.dedent("""
    import os, sys
    import tensorflow as tf

    service = tf.data.experimental.service
    addresses = [f"localhost:{port}" for port in sys.argv[1:]]
    # FILE and DATA deal out by place in this list.
    config = service.DispatcherConfig(port=0, worker_addresses=addresses)
    dispatcher = service.DispatchServer(config)
    workers = [
        service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=dispatcher.target.split("://")[1],
                worker_address=address,
                port=int(address.rpartition(":")[2]),
            )
        )
        for address in addresses
    ]
    print(dispatcher.target, flush=True)
    sys.stdin.read()  # until the tests are over
    os._exit(0)
""")


@pytest.fixture(scope="module")
def target():
    command = [sys.executable, "-c", SERVERS, *map(str, free_ports(2))]
    servers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield servers.stdout.readline().strip()
    servers.communicate(timeout=60)
    assert servers.returncode == 0


@pytest.fixture
def root(tmp_path):
    return write_set(tmp_path / "set", SIZES)


def distributed(root, target, policy, **options):
    dataset = pcr_dataset(root, batch_size=4, size=8, service=True, **options)
    return dataset.apply(service.distribute(processing_mode=policy, service=target))


def taken(dataset):
    return [tuple(value.numpy() for value in batch) for batch in dataset]


@pytest.mark.parametrize("policy", [Policy.DYNAMIC, Policy.FILE, Policy.DATA], ids=str)
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_sample_comes_once_an_epoch(root, target, tmp_path, policy, shuffle) -> None:
    fidelity = FidelitySchedule([10, 2, 1], target=tmp_path / "control")
    dataset = distributed(root, target, policy, shuffle=shuffle, scan_groups=fidelity)
    orders = []
    for epoch in range(3):
        fidelity.set_epoch(epoch)
        found = taken(dataset)
        for images, labels in found:
            check_pixels(images, labels)
        orders.append(labels_of(found))
        assert sorted(orders[-1]) == list(range(TOTAL))
    if shuffle:
        assert len({tuple(order) for order in orders}) == 3


def test_scan_groups_follow_the_file(root, target, tmp_path) -> None:
    fidelity = FidelitySchedule({0: 10, 1: 1, 2: 5}, target=tmp_path / "control")
    dataset = distributed(
        root, target, Policy.DYNAMIC, scan_groups=fidelity, decode=False, shuffle=False
    )
    sizes = []
    for epoch in range(3):
        fidelity.set_epoch(epoch)
        sizes.append(sum(len(jpeg) for jpegs, _ in taken(dataset) for jpeg in jpegs))
    expected = [
        sum(
            len(jpeg)
            for jpegs, _ in taken(
                pcr_dataset(root, batch_size=4, decode=False, shuffle=False, scan_groups=groups)
            )
            for jpeg in jpegs
        )
        for groups in (10, 1, 5)
    ]
    assert sizes == expected
    assert sizes[1] < sizes[2] < sizes[0]


def test_a_variable_is_refused(root) -> None:
    variable = tf.Variable(3, dtype=tf.int64)
    for scan_groups in (variable, FidelitySchedule([3])):
        with pytest.raises(ValueError, match="tf.data service keeps the value .* path of a file"):
            pcr_dataset(root, batch_size=4, service=True, scan_groups=scan_groups)


def test_a_damaged_record_is_an_error_here(root, target) -> None:
    path = root / "PCR_2.pcr"
    path.write_bytes(path.read_bytes()[:99])
    with pytest.raises(tf.errors.OpError, match=r"PCR_2\.pcr"):
        taken(distributed(root, target, Policy.DYNAMIC))


def test_a_file_gives_order_and_crops_of_its_epoch(root, tmp_path) -> None:
    control = tmp_path / "control"
    control.write_text("2\n")
    dataset = pcr_dataset(root, batch_size=4, size=8, service=True, scan_groups=control, seed=3)
    first, again = taken(dataset), taken(dataset)
    control.write_text("2 1\n")
    other = taken(dataset)
    assert labels_of(first) == labels_of(again) != labels_of(other)
    np.testing.assert_array_equal(first[0][0], again[0][0])


def test_records_are_dealt_out_otherwise_in_each_epoch_and_for_each_seed() -> None:
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        part = Part(50, 0, 1, "wrap")
        pieces = split_piece_dataset(
            np.arange(51), part, lambda: tf.constant(epoch, tf.int64), seed=seed, shuffle=True
        )
        return tuple(int(piece.record) for piece in pieces)

    assert order(1, 0) == order(1, 0)
    assert len({order(seed, epoch) for seed in (1, 2) for epoch in range(3)}) == 6


def test_an_epoch_that_begins_under_way_changes_no_order() -> None:
    number = tf.Variable(0, dtype=tf.int64)
    pieces = split_piece_dataset(
        np.arange(51), Part(50, 0, 1, "wrap"), number.read_value, seed=1, shuffle=True
    )
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    found = []
    for piece in pieces.with_options(options):
        found.append(int(piece.record))
        assert int(piece.draw) == 0
        number.assign_add(1)
    assert sorted(found) == list(range(50)) != found
    assert {int(piece.draw) for piece in pieces} == {50}
