"""The documentation works: its blocks run, and its links lead somewhere.

Every python block runs, unless `<!-- not run: reason -->` is on the line before it; a shell block
runs when `<!-- run -->` is. The blocks of a page run in order, in one namespace and one directory.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("pages.py")
PAGE_S = 100
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
LINKED = sorted([*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("*/*.md")])


def load_pages():
    spec = importlib.util.spec_from_file_location("documentation_pages", RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = load_pages()


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_page(page: Path, directory: Path) -> tuple[int, str]:
    """Run a page; what it left running is killed."""
    log = directory.with_suffix(".log")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(RUNNER), str(page)],
            cwd=directory,
            env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            exitcode = process.wait(PAGE_S)
        except subprocess.TimeoutExpired:
            exitcode = -signal.SIGALRM
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return exitcode, log.read_text()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_run(page, tmp_path) -> None:
    directory = tmp_path / "page"
    directory.mkdir()
    exitcode, output = run_page(page, directory)
    assert exitcode == 0, output


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_block_that_does_not_run_says_why(page) -> None:
    for block in pages.split(page.read_text())[0]:
        assert block.mark != "not run" or block.reason, f"{name(page)}:{block.line}: no reason"


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_relative_links_lead_somewhere(page) -> None:
    links = pages.relative_links(pages.split(page.read_text())[1])
    assert [link for link in links if not (page.parent / link).exists()] == []


EXAMPLE = """
Text with a [link](there.md#part), [another](https://example.org) and `[no](link)`.

```python
value = 1
```

<!-- not run: it needs a disk -->
```python
raise SystemExit(1)
```

<!-- run -->
```console
$ echo one > file
one
```

```bash
exit 1
```

- a list
  ```python
  assert open("file").read() == "one\\n"
  value += 1
  assert value == 2
  ```
"""


def test_page_is_split() -> None:
    blocks, prose = pages.split(EXAMPLE)
    assert [block.runs for block in blocks] == [True, False, True, False, True]
    assert [block.reason for block in blocks] == ["", "it needs a disk", "", "", ""]
    assert pages.relative_links(prose) == ["there.md"]


def test_page_runs_in_order(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text(EXAMPLE)
    directory = tmp_path / "page"
    directory.mkdir()
    exitcode, output = run_page(page, directory)
    assert exitcode == 0, output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n```python\n1 / 0\n```\n", 'page.md", line 4'),
        ("<!-- run -->\n```bash\nfalse | true\n```\n", "CalledProcessError"),
    ],
)
def test_failing_block_fails_the_page(tmp_path, text, message) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    directory = tmp_path / "page"
    directory.mkdir()
    exitcode, output = run_page(page, directory)
    assert exitcode == 1
    assert message in output
