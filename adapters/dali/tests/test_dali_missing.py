"""What is said where DALI or a framework is not installed."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from dali_helpers import write_records

from tensorcom import MissingDependencyError
from tensorcom_dali import Loader, PcrSource, train_pipeline, val_pipeline
from tensorcom_dali.imports import import_dali, import_framework


class _Absent:
    """An importer for which some packages are not there."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, name, path=None, target=None):
        if name.startswith(self._names):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_without_dali_sources_work_and_pipelines_say_what_to_install(tmp_path) -> None:
    root = write_records(tmp_path / "set")
    script = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_dali_missing import _Absent\n"
        "for name in [n for n in sys.modules if n.startswith('nvidia')]: del sys.modules[name]\n"
        "sys.meta_path.insert(0, _Absent('nvidia'))\n"
        "from tensorcom_dali import Loader, PcrSource\n"
        "with PcrSource(sys.argv[1], batch_size=4) as source:\n"
        "    print(sum(len(labels) for _, labels in source))\n"
        "    try: next(iter(Loader(source)))\n"
        "    except ImportError as exc: print(type(exc).__name__, exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(root), __file__.rpartition("/")[0]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    count, error = done.stdout.splitlines()
    assert count == "23"
    assert error.startswith("MissingDependencyError a pipeline needs the package 'nvidia.dali'")
    assert "pip install 'tensorcom-dali[cuda13]'" in error
    assert "'tensorcom-dali[cuda12]'" in error


def test_importing_the_package_imports_no_framework() -> None:
    script = (
        "import sys, tensorcom_dali\n"
        "print([n for n in ('nvidia.dali', 'torch', 'jax') if n in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_another_import_that_fails_keeps_its_error() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        import_dali("no_such_module")
    assert not isinstance(caught.value, MissingDependencyError)


@pytest.mark.parametrize("fault", ["no driver", "no init", "no device"])
@pytest.mark.parametrize("pipeline", [train_pipeline, val_pipeline])
def test_a_gpu_that_is_not_there_is_an_error_before_dali_asserts(
    monkeypatch, tmp_path, pipeline, fault
) -> None:
    def load_library(name: str):
        assert name == "libcuda.so.1"
        if fault == "no driver":
            raise OSError("cannot open shared object file")
        return SimpleNamespace(
            cuInit=lambda flags: 100 if fault == "no init" else 0, cuDeviceGetCount=lambda out: 0
        )

    monkeypatch.setattr("ctypes.CDLL", load_library)
    with PcrSource(write_records(tmp_path / "set", samples=3), batch_size=2) as source:
        for decode_device in (None, "cpu", "mixed"):
            with pytest.raises(MissingDependencyError, match="CUDA finds none here: use device"):
                pipeline(source, device="gpu", decode_device=decode_device)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_missing_framework_is_named_with_its_command(monkeypatch, tmp_path, name) -> None:
    import_framework(name)
    real = sys.modules[name]
    monkeypatch.setitem(sys.modules, name, None)
    root = write_records(tmp_path / "set", samples=3)
    with (
        Loader(PcrSource(root, batch_size=2), to=name) as loader,
        pytest.raises(MissingDependencyError, match=f"pip install {name}"),
    ):
        next(iter(loader))
    assert sys.modules[name] is None
    monkeypatch.setitem(sys.modules, name, real)
