"""`tensorcom pcr convert`: make a set of records from a folder or shards of images.

Owns the arguments and what is told of a conversion; `tensorcom.pcr.conversion` does it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcom.cli.common import (
    EXIT_OK,
    Parser,
    add_verbose_argument,
    index,
    note,
    positive_int,
    run,
    stop_on_signals,
)
from tensorcom.cli.stream import progress_bar
from tensorcom.errors import ImageError, JpegError
from tensorcom.pcr.conversion import convert

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorcom.cli.common import StopRequest
    from tensorcom.pcr.conversion import ConversionReport

PROG = "tensorcom pcr convert"
_MAX_QUALITY = 100


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Convert images to a set of records; return the exit code."""
    name = prog or PROG
    return run(_parser(name), lambda args: _convert(args, name), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Convert an image folder (DIR/class/image, or DIR/train/class/image) or WebDataset\n"
            "shards (.tar, .tgz, .tar.gz with an image and cls) to a set of records, without loss\n"
            "and without a change to the source.\n\n"
            "When it was interrupted or killed, the same command goes on where it was. Files that\n"
            "could not be converted, and what was dropped of others, are in PCR_report.jsonl."
        ),
        example=f"""
            {prog} imagenet/ records/ --on-error skip
            {prog} '/data/train-{{0000..0147}}.tar' records/ --class-names names.txt
        """,
    )
    parser.add_argument("source", metavar="SOURCE", help="image folder, or names or URLs of shards")
    parser.add_argument("root", metavar="ROOT", help="directory of the set")
    _add_set_arguments(parser)
    _add_image_arguments(parser)
    parser.add_argument(
        "--workers", type=positive_int, metavar="N", help="threads (default: one for each core)"
    )
    parser.add_argument(
        "--force", action="store_true",
        help="remove the set that is in ROOT, finished or not; other files stay",
    )  # fmt: skip
    parser.add_argument(
        "--report", metavar="FILE", help="where the report goes (default ROOT/PCR_report.jsonl)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show errors only")
    add_verbose_argument(parser)
    return parser


def _add_set_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--images-per-record", type=positive_int, default=1024, metavar="N",
        help="images in each record file (default 1024)",
    )  # fmt: skip
    parser.add_argument(
        "--shuffle", action=argparse.BooleanOptionalAction, default=None,
        help="permute the images (default: folders yes; shards no, and only plain local tars can)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=index, default=0, metavar="N", help="of the permutation (default 0)"
    )
    parser.add_argument(
        "--scan-script", default="standard", metavar="SCRIPT",
        help="standard (default), fast, balanced, or a file as jpegtran's -scans takes it",
    )  # fmt: skip
    parser.add_argument(
        "--sqlite-index", action="store_true", help="write a PCR.db too, for old readers"
    )
    parser.add_argument(
        "--class-names", type=_names, metavar="FILE",
        help="names of the labels of shards, one a line (default: their numbers)",
    )  # fmt: skip


def _add_image_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise",
        help="end at a bad image, or skip and report it (default raise)",
    )  # fmt: skip
    parser.add_argument(
        "--lenient", action="store_true",
        help="take what can be decoded of damaged images, and report it",
    )  # fmt: skip
    parser.add_argument(
        "--reencode", type=_quality, metavar="QUALITY",
        help="encode files that are no JPEG, such as PNG, as JPEG of this quality (1 to 100), and "
        "report each; that is not without loss (default: they are bad)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-empty-class", action="store_true",
        help="keep the labels of folders without images",
    )  # fmt: skip


def _quality(text: str) -> int:
    value = positive_int(text)
    if value > _MAX_QUALITY:
        raise argparse.ArgumentTypeError(f"{text!r} is no quality from 1 to {_MAX_QUALITY}")
    return value


def _names(path: str) -> tuple[str, ...]:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "is not UTF-8"
        raise argparse.ArgumentTypeError(f"{os.fspath(path)}: {reason}") from None
    return tuple(text.splitlines())


def _convert(args: argparse.Namespace, prog: str) -> int:
    with stop_on_signals() as stop:
        try:
            report = _run(args, stop)
        except (JpegError, ImageError):
            if not args.quiet:
                note(prog, "finished records stay: --on-error skip goes on without such files")
            raise
        if not args.quiet:
            note(prog, _text(report))
        if not report.finished:
            if stop.error is None:
                raise RuntimeError("the conversion stopped, and nobody asked for that")
            raise stop.error
    return EXIT_OK


def _run(args: argparse.Namespace, stop: StopRequest) -> ConversionReport:
    with _Bar(quiet=args.quiet) as bar:
        return convert(
            args.source,
            args.root,
            images_per_record=args.images_per_record,
            shuffle=args.shuffle,
            seed=args.seed,
            workers=args.workers,
            script=args.scan_script,
            on_error=args.on_error,
            lenient=args.lenient,
            reencode=args.reencode,
            class_names=args.class_names,
            allow_empty_class=args.allow_empty_class,
            sqlite_index=args.sqlite_index,
            force=args.force,
            report=args.report,
            on_progress=bar.show,
            stop=lambda: stop.error is not None,
        )


class _Bar:
    """A progress bar that appears with the first image, when it is known how many there are."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._stack = contextlib.ExitStack()
        self._update: Callable[[int], None] | None = None

    def show(self, done: int, total: int | None) -> None:
        """Show how many images are done."""
        if self._quiet:
            return
        if self._update is None:
            bar = progress_bar("converting", total=total, unit="images", rate=True)
            self._update = self._stack.enter_context(bar)
        self._update(done)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()


def _text(report: ConversionReport) -> str:
    tally = report.tally
    counts = f"{_count(report.images, 'image')} in {_count(report.records, 'record')}"
    if not report.finished:
        return f"{report.root} is unfinished, with {counts}; the same command, run again, goes on"
    share = report.set_bytes / tally.source_bytes if tally.source_bytes else 0
    size = f"{report.set_bytes / 1e6:.4g} MB, {share:.1%} of the source"
    text = f"wrote {report.root}: {counts}, {size}"
    told = {"skipped": tally.skipped, "re-encoded": tally.reencoded, "noted": tally.noted}
    counted = [f"{count} {what}" for what, count in told.items() if count]
    return f"{text}; {', '.join(counted)}: see {report.report}" if counted else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


if __name__ == "__main__":
    sys.exit(main())
