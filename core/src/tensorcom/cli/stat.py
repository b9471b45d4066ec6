"""`tensorstat`: summarize the tensors of a stream.

Owns what is read and how the figures are written; `figures` computes them.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.cli.common import (
    EXIT_OK,
    Parser,
    note,
    plain_number,
    positive_int,
    run,
    write_line,
)
from tensorcom.cli.figures import Moments, Numbers, Tensor, Texts
from tensorcom.cli.stream import Reader, add_stream_arguments, progress_bar
from tensorcom.errors import TensorcomError

if TYPE_CHECKING:
    import argparse

    from rich.console import Console
    from rich.table import Table

PROG = "tensorstat"
_BAR_WIDTH = 40
_EXAMPLES = 5
_PIPE_WIDTH = 120


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Run `tensorstat`.

    Args:
        argv: arguments; None takes the program's.
        prog: name to show in help and errors.

    Returns:
        The exit code.
    """
    parser = _parser(prog or PROG)
    return run(parser, lambda args: _summarize(args, parser.prog), argv)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog,
        description=(
            "Summarize the tensors of a stream, position by position: infos, dtypes, shapes with\n"
            "the batch axis N first, extremes, mean and standard deviation of the finite numbers,\n"
            "how many are NaN or infinite, and a histogram. Complex numbers count by magnitude."
        ),
        example=f"""
            {prog} --count 100 zsub://server:7880
            {prog} --channels NHWC --json zsub://server:7880
        """,
    )
    add_stream_arguments(parser)
    parser.add_argument(
        "-c",
        "--count",
        type=positive_int,
        default=10,
        metavar="N",
        help="batches to read (default: 10)",
    )
    parser.add_argument(
        "--bins",
        type=positive_int,
        default=20,
        metavar="N",
        help="most bars of a histogram (default: 20)",
    )
    parser.add_argument(
        "--channels",
        choices=("NHWC", "NCHW"),
        help="also summarize each channel of tensors with 4 axes, which are in this order",
    )
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    return parser


def _summarize(args: argparse.Namespace, prog: str) -> int:
    tensors: list[Tensor] = []
    batches = samples = 0
    bar = progress_bar("reading", total=args.count, unit="batches")
    with Reader(args, prog) as reader, bar as show:
        for message in reader.messages(args.count):
            batches += 1
            arrays = [np.asarray(array) for array in message.arrays]
            samples += arrays[0].shape[0] if arrays[0].ndim else 1
            while len(tensors) < len(arrays):
                tensors.append(Tensor(args.channels))
            for tensor, array, info in zip(tensors, arrays, message.infos, strict=False):
                tensor.add(array, info)
            show(batches)
        bad = reader.bad
    if not batches:
        raise TensorcomError("the stream ended without a batch")
    if batches < args.count:
        note(prog, f"the stream ended after {batches} batches")
    if args.json:
        values = {"batches": batches, "samples": samples, "bad": bad}
        tensors_out = [_as_dict(tensor, args.bins) for tensor in tensors]
        write_line(json.dumps({**values, "tensors": tensors_out}, allow_nan=False))
    else:
        _print(tensors, f"{batches} batches, {samples} samples, {bad} bad messages", args.bins)
    return EXIT_OK


# -- JSON -------------------------------------------------------------------------------------


def _as_dict(tensor: Tensor, bins: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "batches": tensor.batches,
        "infos": list(tensor.infos),
        "dtypes": list(tensor.dtypes),
        "ranks": sorted(tensor.ranks),
        "shape_min": tensor.shape_low,
        "shape_max": tensor.shape_high,
    }
    if tensor.numbers is not None:
        values.update(_moments_dict(tensor.numbers.moments, 0))
        values["nan"], values["inf"] = tensor.numbers.moments.nan, tensor.numbers.moments.inf
        values["histogram"] = [
            {"from": low, "to": high, "count": count} for low, high, count in _bars(tensor, bins)
        ]
        channels = tensor.numbers.channels
        if channels is not None:
            values["channels"] = [_moments_dict(channels, i) for i in range(len(channels.count))]
    if tensor.texts is not None:
        values["texts"] = _texts_dict(tensor.texts)
    return values


def _moments_dict(moments: Moments, column: int) -> dict[str, Any]:
    some = bool(moments.count[column])
    figures = {
        "min": moments.low,
        "max": moments.high,
        "mean": moments.mean,
        "std": moments.deviation,
    }
    return {
        "count": int(moments.count[column]),
        **{k: plain_number(float(v[column])) if some else None for k, v in figures.items()},
    }


def _texts_dict(texts: Texts) -> dict[str, Any]:
    return {
        "count": texts.count,
        "unique": texts.unique,
        "unique_is_lower_bound": texts.full,
        "length_min": texts.shortest,
        "length_max": texts.longest,
        "length_mean": texts.total_length / max(texts.count, 1),
        "common": [{"text": text, "count": count} for text, count in texts.common(_EXAMPLES)],
    }


def _bars(tensor: Tensor, bins: int) -> list[tuple[float, float, int]]:
    histogram = None if tensor.numbers is None else tensor.numbers.histogram
    return [] if histogram is None else histogram.bars(bins)


# -- text -------------------------------------------------------------------------------------


def _print(tensors: list[Tensor], title: str, bins: int) -> None:
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(title)
    console.print(_overview(tensors))
    for position, tensor in enumerate(tensors):
        if tensor.numbers is not None:
            _print_numbers(console, f"tensor {position}", tensor, tensor.numbers, bins)
        if tensor.texts is not None:
            _print_texts(console, f"tensor {position}", tensor.texts)


def _new_table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        left = name in ("info", "dtype", "shape", "")
        table.add_column(name, justify="left" if left else "right")
    return table


def _overview(tensors: list[Tensor]) -> Table:
    from rich.markup import escape

    table = _new_table("", "info", "dtype", "shape", "min", "max", "mean", "std", "NaN", "Inf")
    for position, tensor in enumerate(tensors):
        moments = None if tensor.numbers is None else tensor.numbers.moments
        lost = ("-", "-") if moments is None else (_alarm(moments.nan), _alarm(moments.inf))
        table.add_row(
            str(position),
            escape(", ".join(info or "-" for info in tensor.infos)),
            ", ".join(tensor.dtypes),
            escape(_shape(tensor)),
            *(["-"] * 4 if moments is None else _figures(moments, 0)),
            *lost,
        )
    return table


def _figures(moments: Moments, column: int) -> list[str]:
    if not moments.count[column]:
        return ["-"] * 4
    figures = (moments.low, moments.high, moments.mean, moments.deviation)
    return [f"{values[column]:.5g}" for values in figures]


def _alarm(count: int) -> str:
    return f"[red]{count:,}[/red]" if count else "0"


def _shape(tensor: Tensor) -> str:
    """Return the shape, ranges where it varies: `(N=30…32, 224, 224, 3)`."""
    sizes = []
    for axis, (low, high) in enumerate(zip(tensor.shape_low, tensor.shape_high, strict=True)):
        size = str(low) if low == high else f"{low}…{high}"
        optional = "?" if axis >= min(tensor.ranks) else ""
        sizes.append(f"{'N=' if axis == 0 else ''}{size}{optional}")
    return f"({', '.join(sizes)})"


def _print_numbers(
    console: Console, name: str, tensor: Tensor, numbers: Numbers, bins: int
) -> None:
    from rich.bar import Bar

    if numbers.channels is not None:
        table = _new_table(f"{name} channel", "min", "max", "mean", "std")
        for channel in range(len(numbers.channels.count)):
            table.add_row(str(channel), *_figures(numbers.channels, channel))
        console.print(table)
    bars = _bars(tensor, bins)
    if not bars:
        return
    most = max(count for _, _, count in bars)
    whole = sum(count for _, _, count in bars)
    table = _new_table(f"{name} from", "to", "", "count", "%")
    for low, high, count in bars:
        table.add_row(
            f"{low:.5g}",
            "" if low == high else f"{high:.5g}",
            Bar(most, 0, count, width=_BAR_WIDTH),
            f"{count:,}",
            f"{100 * count / whole:.1f}",
        )
    console.print(table)


def _print_texts(console: Console, name: str, texts: Texts) -> None:
    from rich.markup import escape

    more = "more than " if texts.full else ""
    mean = texts.total_length / max(texts.count, 1)
    console.print(
        f"\n  {name}: {texts.count:,} texts, {more}{texts.unique:,} different, "
        f"{texts.shortest} to {texts.longest} bytes long (mean {mean:.1f})"
    )
    for text, count in texts.common(_EXAMPLES):
        console.print(f"    {count:>8,} × {escape(repr(text))}")


if __name__ == "__main__":
    sys.exit(main())
