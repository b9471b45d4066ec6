"""`tensorcom`: the one command that holds the others.

Owns which module runs which command, and imports only that one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tensorcom._version import __version__
from tensorcom.cli.common import Parser, add_command, dispatch, listing

if TYPE_CHECKING:
    from collections.abc import Mapping

PROG = "tensorcom"

SERVE_COMMANDS: Mapping[str, tuple[str, str]] = {
    "dir": ("tensorcom.cli.serve_dir", "serve batches from a directory of images"),
    "shards": ("tensorcom.cli.serve_shards", "serve batches from WebDataset shards"),
    "pcr": ("tensorcom.cli.serve_pcr", "serve batches from a set of records"),
    "replay": ("tensorcom.cli.serve_replay", "serve a recorded stream again"),
}
COMMANDS: Mapping[str, tuple[str, str]] = {
    "record": ("tensorcom.cli.record", "write a stream to a file"),
    "mon": ("tensorcom.cli.mon", "watch the rates and losses of a stream"),
    "stat": ("tensorcom.cli.stat", "summarize the tensors of a stream"),
    "show": ("tensorcom.cli.show", "show the images of a stream"),
    "pcr": ("tensorcom.cli.pcr", "make, check and look into sets of records"),
}


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Run `tensorcom`.

    Args:
        argv: arguments; None takes the program's.
        prog: name to show in help and errors.

    Returns:
        The exit code.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    name = prog or PROG
    if given[:1] == ["serve"]:
        return dispatch(given[1:], f"{name} serve", SERVE_COMMANDS, _serve_parser(f"{name} serve"))
    return dispatch(given, name, COMMANDS, _parser(name))


def _parser(prog: str) -> Parser:
    serve = "\n".join(f"  serve {name:8}{text}" for name, (_, text) in SERVE_COMMANDS.items())
    others = "\n".join(f"  {name:14}{text}" for name, (_, text) in COMMANDS.items())
    parser = Parser(
        prog,
        description=(
            "Streams of tensors: serve, record and look at them. Sets of image records.\n\n"
            f"commands:\n{serve}\n{others}\n\n'{prog} COMMAND --help' says more."
        ),
        example=f"{prog} mon zsub://127.0.0.1:7880",
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    add_command(parser, ("serve", *COMMANDS))
    return parser


def _serve_parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=f"Serve a stream.\n\ncommands:\n{listing(SERVE_COMMANDS)}",
        example=f"{prog} dir --help",
    )
    add_command(parser, tuple(SERVE_COMMANDS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
