"""The parts of a page of documentation: blocks, their marks, and links; and a runner for them.

As a program: `python pages.py PAGE` runs the page's blocks in order, in the current directory.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PYTHON = {"python", "py"}
SHELL = {"bash", "sh", "shell", "console"}
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<language>[\w+-]*)")
MARK = re.compile(r"^\s*<!--\s*(?P<kind>run|not run)\s*(?::\s*(?P<reason>.*?))?\s*-->\s*$")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|^\s*\[[^\]]+\]:\s*<?([^\s>]+)", re.MULTILINE)
EXTERNAL = re.compile(r"^([a-z][a-z0-9+.-]*:|#)", re.IGNORECASE)


class Block(NamedTuple):
    """A fenced block: its language, its code, the line of its first line of code, and its mark."""

    language: str
    code: str
    line: int
    mark: str | None
    reason: str

    @property
    def runs(self) -> bool:
        """Whether to run it: python unless marked otherwise, a shell only when marked."""
        if self.language in PYTHON:
            return self.mark != "not run"
        return self.language in SHELL and self.mark == "run"


def split(text: str) -> tuple[list[Block], str]:
    """Return the fenced blocks of a page, and the page without them."""
    blocks, prose = [], []
    lines = iter(enumerate(text.splitlines(), 1))
    previous = ""
    for number, line in lines:
        fence = FENCE.match(line)
        if fence is None:
            prose.append(line)
            previous = line
            continue
        code = []
        for _, inner in lines:
            if inner.strip().startswith(fence["ticks"]) and not inner.strip(" `~"):
                break
            code.append(inner.removeprefix(fence["indent"]))
        else:
            raise ValueError(f"line {number}: the block has no end")
        mark = MARK.match(previous)
        kind, reason = (mark["kind"], mark["reason"] or "") if mark else (None, "")
        blocks.append(Block(fence["language"], "\n".join(code), number + 1, kind, reason))
        previous = ""
    return blocks, "\n".join(prose)


def relative_links(prose: str) -> list[str]:
    """Return the links of a page to files, without their fragments."""
    targets = [first or second for first, second in LINK.findall(re.sub(r"`[^`]*`", "", prose))]
    return [target.split("#")[0] for target in targets if not EXTERNAL.match(target)]


def shell_commands(block: Block) -> str:
    """Return the commands of a shell block; those of a console follow a `$`."""
    if block.language != "console":
        return block.code
    return "\n".join(line[2:] for line in block.code.splitlines() if line.startswith(("$ ", "> ")))


def run(page: Path) -> None:
    """Run the blocks of a page in order; the python blocks share one namespace."""
    namespace = {"__name__": "__main__"}
    for block in split(page.read_text())[0]:
        if not block.runs:
            continue
        print(f"{page.name}:{block.line}: {block.language}", flush=True)
        if block.language in PYTHON:
            padded = "\n" * (block.line - 1) + block.code  # so that tracebacks name the page's line
            exec(compile(padded, str(page), "exec"), namespace)
        else:
            command = ["bash", "-euo", "pipefail", "-c", shell_commands(block)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
