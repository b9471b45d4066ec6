"""Who may import whom, and what no file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "src" / "tensorcom"
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "nvidia")
OPTIONAL = ("PIL", "fsspec", "rich", "s3fs", "simplejpeg", "urllib3", "webdataset")
MAX_LINES = 450
# Built so that this file does not match itself.
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.])/(wor[k]|far[m])/", re.MULTILINE)

# A module of core imports modules of a lower rank, and its own package. "" is the package itself.
RANKS = {
    "_version": 0,
    "arguments": 0,
    "errors": 0,
    "locks": 0,
    "ahead": 1,
    "arrays": 1,
    "buffers": 1,
    "images": 1,
    "meta": 1,
    "pipeline": 1,
    "zmq_url": 1,
    "converters": 2,
    "progress": 2,
    "shards": 2,
    "socket_options": 2,
    "stats": 2,
    "tenbin": 2,
    "pcr": 3,
    "message": 3,
    "recording": 4,
    "transport": 4,
    "receiver": 5,
    "sender": 5,
    "connection": 6,
    "serving": 7,
    "": 8,
    "cli": 9,
    "testing": 10,
}


def files() -> list[Path]:
    """Return the files of the repository, tracked or about to be."""
    if not (ROOT / ".git").exists():
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        return [ROOT / path for path in paths if not any(part[0] == "." for part in path.parts)]
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others"]
    listing = subprocess.run(
        [*command, "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name]


def sources(package: Path) -> list[Path]:
    found = sorted(package.rglob("*.py"))
    assert found, f"no python file under {package}"
    return found


def imports(path: Path) -> set[str]:
    """Return the dotted names that a file imports, anywhere in it: `from a import b` is `a.b`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def core_module(name: str) -> str:
    """Return the module or package directly under `tensorcom` that a dotted name belongs to."""
    part = (name.split(".") + [""])[1]
    exists = (CORE / part).is_dir() or (CORE / f"{part}.py").exists()
    return part if exists else ""


def adapters() -> list[Path]:
    return sorted(path for path in ROOT.glob("adapters/*/src/*") if (path / "__init__.py").exists())


def test_core_imports_no_framework_and_no_extra() -> None:
    code = (
        f"import sys, tensorcom; print(*[n for n in {FRAMEWORKS + OPTIONAL} if n in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert result.stdout.split() == []


def test_one_package_imports_zmq() -> None:
    users = [p for p in sources(CORE) if any(n.split(".")[0] == "zmq" for n in imports(p))]
    assert users == [CORE / "transport" / name for name in ("sockets.py", "transport.py")]


def test_every_module_of_core_has_a_rank() -> None:
    found = {path.relative_to(CORE).parts[0].removesuffix(".py") for path in sources(CORE)}
    assert found - {"__init__"} <= set(RANKS)


@pytest.mark.parametrize("path", sources(CORE), ids=lambda path: str(path.relative_to(CORE)))
def test_core_imports_downwards(path) -> None:
    module = path.relative_to(CORE).parts[0].removesuffix(".py").replace("__init__", "")
    used = {core_module(n) for n in imports(path) if n.split(".")[0] == "tensorcom"} - {module}
    upwards = {name or "tensorcom" for name in used if RANKS[name] >= RANKS[module]}
    assert not upwards


def test_core_imports_no_adapter() -> None:
    for path in sources(CORE):
        assert not [n for n in imports(path) if n.startswith("tensorcom_")], path


@pytest.mark.parametrize("package", adapters(), ids=lambda path: path.name)
def test_adapter_imports_public_names_of_core_only(package) -> None:
    for path in sources(package):
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "tensorcom":
                assert not [part for part in rest if part.startswith("_")], f"{path}: {name}"
            assert not top.startswith("tensorcom_") or top == package.name, f"{path}: {name}"


def test_no_file_is_too_long() -> None:
    lines = {p: len(p.read_text().splitlines()) for p in files() if p.suffix == ".py"}
    assert {str(path): count for path, count in lines.items() if count > MAX_LINES} == {}


def test_no_file_names_a_path_of_one_machine() -> None:
    found = []
    for path in files():
        try:
            text = path.read_text()
        except (UnicodeDecodeError, OSError):
            continue  # a binary file, a link to nowhere, or one that was just removed
        found += [f"{path}: {match[0]!r}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


def test_machine_paths_are_recognised() -> None:
    name = "wor" + "k"
    assert MACHINE_PATH.search(f"see /{name}/main")
    assert MACHINE_PATH.search(f"/{name}/main")
    assert not MACHINE_PATH.search(f"docs/{name}/main")
    assert not MACHINE_PATH.search(f"./{name}/main")
