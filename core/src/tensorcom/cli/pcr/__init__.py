"""`tensorcom pcr`: the commands for sets of progressive compressed records.

Owns which module runs which command, and imports only that one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tensorcom.cli.common import Parser, add_command, dispatch, listing

if TYPE_CHECKING:
    from collections.abc import Mapping

PROG = "tensorcom pcr"

COMMANDS: Mapping[str, tuple[str, str]] = {
    "convert": ("tensorcom.cli.pcr.convert", "convert a folder or shards of images to a set"),
    "info": ("tensorcom.cli.pcr.info", "say what is in a set, and what each scan group costs"),
    "verify": ("tensorcom.cli.pcr.verify", "check every checksum and length of a set"),
    "ls": ("tensorcom.cli.pcr.ls", "list the images of a set"),
    "cat": ("tensorcom.cli.pcr.cat", "write one image to standard output"),
    "extract": ("tensorcom.cli.pcr.extract", "write the images of a set as JPEG files"),
    "fidelity": ("tensorcom.cli.pcr.fidelity", "measure what each scan group adds to the images"),
}


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Run `tensorcom pcr`.

    Args:
        argv: arguments; None takes the program's.
        prog: name to show in help and errors.

    Returns:
        The exit code.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    name = prog or PROG
    return dispatch(given, name, COMMANDS, _parser(name))


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Sets of progressive compressed records: JPEG images that are read at the fidelity\n"
            f"that each reader chooses.\n\ncommands:\n{listing(COMMANDS)}"
            f"\n\n'{prog} COMMAND --help' says more."
        ),
        example=f"{prog} convert imagenet/ records/",
    )
    add_command(parser, tuple(COMMANDS))
    return parser
