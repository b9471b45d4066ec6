"""All frameworks in one process: they load in any order, and read the same records there."""

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
    for batches in zip(*datasets, strict=True):
        first, *others = [[np.asarray(array) for array in batch] for batch in batches]
        for images, labels in others:
            np.testing.assert_array_equal(images, first[0])
            np.testing.assert_array_equal(labels, first[1])
    for dataset in datasets:
        dataset.close()

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
