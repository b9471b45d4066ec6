"""How to run things: the only place that knows.

`nox -l` lists the sessions, `nox -s tests` runs all tests. Sessions that run our code need the
system packages of SYSTEM_PACKAGES: they are installed where that is possible without asking, and
named with the command otherwise.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import time
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "typecheck", "tests"]

ROOT = Path(__file__).parent

# Every distribution: its import package, the extras that its tests need, what it comes with, and
# the requirement files of what else its tests need.
# Siblings have to come in the same pip command: PyPI's tensorcom 0.1.0 is another program.
DISTS = {
    "core": {
        "path": "core",
        "package": "tensorcom",
        "extras": "[images,shards,s3,fidelity]",
        "needs": [],
        "requirements": [],
    },
    "torch": {
        "path": "adapters/torch",
        "package": "tensorcom_torch",
        "extras": "",
        "needs": ["core"],
        "requirements": [],
    },
    "keras": {
        "path": "adapters/keras",
        "package": "tensorcom_keras",
        "extras": "[tensorflow-cpu]",
        "needs": ["core"],
        "requirements": ["backends"],
    },
    "jax": {
        "path": "adapters/jax",
        "package": "tensorcom_jax",
        "extras": "[grain]",
        "needs": ["core"],
        "requirements": ["train_jax"],
    },
    "dali": {
        "path": "adapters/dali",
        "package": "tensorcom_dali",
        "extras": "[cuda13]",
        "needs": ["core"],
        "requirements": ["backends"],
    },
}

# What transcodes JPEG without loss: a library that is loaded, and a program that is run.
SYSTEM_PACKAGES = ("libturbojpeg0", "libjpeg-turbo-progs")

# Tests that cross packages. Golden files and architecture need no framework: they run with core.
CORE_TESTS = ["tests/golden", "tests/architecture"]
CROSS_TESTS = {"contract": "tests/contract", "e2e": "tests/e2e", "docs": "tests/docs"}


def editable(*names: str) -> list[str]:
    """Return pip's arguments for editable installs of `names`."""
    return [arg for name in names for arg in ("-e", DISTS[name]["path"] + DISTS[name]["extras"])]


def install(session: nox.Session, names: list[str], *requirements: str) -> None:
    """Install distributions and requirement files in one pip command, within constraints.txt."""
    files = [arg for name in requirements for arg in ("-r", f"requirements/{name}.txt")]
    session.install("-c", "constraints.txt", *editable(*names), *files)


def has_system_packages() -> bool:
    """Tell whether libturbojpeg can be loaded and jpegtran run."""
    if shutil.which("jpegtran") is None:
        return False
    try:
        ctypes.CDLL("libturbojpeg.so.0")
    except OSError:
        return False
    return True


def require_system_packages(session: nox.Session) -> None:
    """Install the system packages if they are missing and this is root; else say how."""
    if has_system_packages():
        return
    install = ["apt-get", "install", "-y", *SYSTEM_PACKAGES]
    if shutil.which("apt-get") and os.geteuid() == 0:
        env = {"DEBIAN_FRONTEND": "noninteractive"}
        session.run("apt-get", "update", external=True, success_codes=[0, 100])
        session.run(*install, external=True, env=env)
    if not has_system_packages():
        command = " ".join(install)
        session.error(f"libturbojpeg.so.0 and jpegtran are needed; as root: {command}")


def original_python(session: nox.Session) -> str:
    """Return the python of a venv with the original tensorcom 0.1.0, the peer of the e2e tests.

    Its distribution has our name, so that it cannot live beside ours. It asks for torch and
    webdataset, which its library and monitors do not import.
    """
    venv = Path(session.cache_dir) / "original"
    python = str(venv / "bin" / "python")
    if not Path(python).exists():
        session.run("python", "-m", "venv", str(venv))
    pip = [python, "-m", "pip", "install", "--quiet"]
    session.run(*pip, "numpy", "pyzmq", "braceexpand", external=True)
    session.run(*pip, "--no-deps", "tensorcom==0.1.0", external=True)
    return python


def pytest(session: nox.Session, *paths: str, **env: str) -> None:
    """Run pytest from the root on `paths`, with the session's own arguments."""
    require_system_packages(session)
    session.run("python", "-m", "pytest", *paths, *session.posargs, env=env)


def all_requirements() -> list[str]:
    """Return the requirement files of all distributions' tests, each once."""
    return sorted({name for dist in DISTS.values() for name in dist["requirements"]})


def cross_tests(session: nox.Session, *paths: str) -> None:
    """Run tests that need every package and the original program."""
    install(session, list(DISTS), "test", *all_requirements())
    original = original_python(session)
    for path in paths:
        # A process for each framework: some of them object to a fork, which torch's loaders do.
        each = [["--adapter", name] for name in DISTS if name != "core"]
        is_whole = path == CROSS_TESTS["contract"] and "--adapter" not in session.posargs
        for options in each if is_whole else [[]]:
            pytest(session, path, *options, TENSORCOM_ORIGINAL_PYTHON=original)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    session.install("-r", "requirements/lint.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check the types of every package."""
    install(session, list(DISTS), "typecheck", *all_requirements())
    for dist in DISTS.values():
        session.run("mypy", "--strict", f"{dist['path']}/src")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run all tests: each package's in its own venv, then those that cross packages."""
    for name in [*(f"tests_{name}" for name in DISTS), "tests_cross"]:
        session.notify(name)


@nox.session(default=False)
def tests_cross(session: nox.Session) -> None:
    """Run the tests that cross packages."""
    cross_tests(session, *CROSS_TESTS.values())


def add_package_session(name: str) -> None:
    """Define `tests_<name>`: the tests of one package, with no more installed than it asks for."""
    dist = DISTS[name]

    def run(session: nox.Session) -> None:
        install(session, [*dist["needs"], name], "test", *dist["requirements"])
        pytest(session, f"{dist['path']}/tests", *(CORE_TESTS if name == "core" else []))

    run.__doc__ = f"Run the tests of {dist['package']} alone."
    nox.session(run, name=f"tests_{name}", default=False)


def add_cross_session(name: str) -> None:
    """Define a session for one directory of tests that cross packages."""

    def run(session: nox.Session) -> None:
        cross_tests(session, CROSS_TESTS[name])

    run.__doc__ = f"Run {CROSS_TESTS[name]} alone."
    nox.session(run, name=name, default=False)


for _name in DISTS:
    add_package_session(_name)
for _name in CROSS_TESTS:
    add_cross_session(_name)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Run the fuzz tests on new examples for a time: `nox -s fuzz -- SECONDS` (60)."""
    require_system_packages(session)
    install(session, ["core"], "fuzz")
    budget_s = float(session.posargs[0]) if session.posargs else 60.0
    found = [*Path("core/tests").glob("test_*fuzz*.py"), *Path("tests/fuzz").glob("test_*.py")]
    paths = [str(path) for path in sorted(found)]
    end = time.monotonic() + budget_s
    while time.monotonic() < end:
        seed = f"--hypothesis-seed={secrets.randbits(32)}"
        env = {"TENSORCOM_FUZZ_EXAMPLES": "2000"}
        session.run("python", "-m", "pytest", "-q", seed, "--timeout=1200", *paths, env=env)


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """Run the demonstration."""
    require_system_packages(session)
    install(session, ["core", "torch"], "demo")
    session.run("python", "examples/demo.py", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run all benchmarks, or one: `nox -s bench -- NAME --its-own-options`."""
    require_system_packages(session)
    install(session, list(DISTS), "bench", *all_requirements())
    scripts = sorted(path for path in Path("benchmarks").glob("*.py") if path.name[0] != "_")
    args = list(session.posargs)
    if args and args[0] in {script.stem for script in scripts}:
        scripts = [Path("benchmarks", args.pop(0) + ".py")]
    for script in scripts:
        session.run("python", str(script), *args)


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build every distribution into dist/, and import the wheels in a new venv."""
    session.install("-r", "requirements/build.txt")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for dist in DISTS.values():
        session.run("python", "-m", "build", "--outdir", "dist", dist["path"])
    venv = Path(session.create_tmp()) / "wheels"
    session.run("python", "-m", "venv", "--clear", str(venv))
    python = str(venv / "bin" / "python")
    wheels = [str(wheel) for wheel in sorted(Path("dist").glob("*.whl"))]
    session.run(python, "-m", "pip", "install", "-c", "constraints.txt", *wheels, external=True)
    for dist in DISTS.values():
        session.run(
            python,
            "-I",
            "-c",
            f"import {dist['package']} as p; print(p.__version__, p.__file__)",
            external=True,
        )
