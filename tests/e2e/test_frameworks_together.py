"""All frameworks in one process: they load in any order, and read and compute side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pcr_set_helpers import write_set

PACKAGES = ("tensorcom_torch", "tensorcom_keras", "tensorcom_jax", "tensorcom_dali")
SCRIPT = textwrap.dedent("""
    import importlib, sys
    import numpy as np

    root, *packages = sys.argv[1:]
    modules = [importlib.import_module(name) for name in packages]
    datasets = [
        module.from_records(root, batch_size=4, size=8, scan_groups=2, seed=7) for module in modules
    ]
    import tensorcom_dali

    for name in ("torch", "jax"):  # DALI makes the others' arrays too
        data = tensorcom_dali.from_records(root, batch_size=4, size=8, scan_groups=2, seed=7)
        datasets.append(data.to(name))

    # Each computes with its batch, while the others' threads read on.
    import jax, keras, tensorflow as tf, torch

    sums = [
        jax.jit(lambda images: images.astype("int32").sum()),
        lambda images: torch.from_numpy(images.copy()).int().sum(),
        lambda images: tf.reduce_sum(tf.cast(images, tf.int32)),
        lambda images: keras.ops.sum(keras.ops.cast(images, "int32")),
    ]

    def check(datasets, batches_expected):
        count = 0
        for batches in zip(*datasets, strict=True):
            first, *others = [[np.asarray(array) for array in batch] for batch in batches]
            for images, labels in others:
                np.testing.assert_array_equal(images, first[0])
                np.testing.assert_array_equal(labels, first[1])
            for total in sums:
                assert int(total(first[0])) == first[0].sum(dtype="int32")
            count += 1
        assert count == batches_expected
        for dataset in datasets:
            dataset.close()

    check(datasets, 3)

    from tensorcom.testing.loopback import LoopbackServer

    sent = [[np.full((2, 3), n, "u1"), np.full((2,), n, "i4")] for n in range(5)]
    servers = [LoopbackServer(sent) for _ in modules]
    for server in servers:
        server.__enter__()
    urls = [server.url for server in servers]
    streams = [module.from_stream(url, timeout_s=30) for module, url in zip(modules, urls)]
    check(streams, 5)
    for server in servers:
        server.__exit__()

    import tensorcom_keras

    graph = tensorcom_keras.pcr_dataset(root, batch_size=4, size=8, scan_groups=2, shuffle=False)
    assert [n for _, labels in graph.as_numpy_iterator() for n in labels] == list(range(11))
    loaded = [n for n in ("torch", "tensorflow", "keras", "jax", "nvidia.dali") if n in sys.modules]
    print(*loaded)
""")


@pytest.mark.parametrize("first", range(len(PACKAGES)))
def test_in_any_order(tmp_path: Path, first: int) -> None:
    root = write_set(tmp_path / "set", [5, 6])
    order = [*PACKAGES[first:], *PACKAGES[:first]]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root), *order],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "torch tensorflow keras jax nvidia.dali\n"), (
        done.stderr
    )
