"""The plot of `tensorcom pcr fidelity`.

Owns how it looks; needs matplotlib, which is an extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorcom.errors import MissingDependencyError, PcrWriteError
from tensorcom.images.folder import printable

try:
    from matplotlib.figure import Figure
except ImportError as exc:
    raise MissingDependencyError.for_package(
        "matplotlib", "drawing a plot", "pip install 'tensorcom[fidelity]'"
    ) from exc

if TYPE_CHECKING:
    from pathlib import Path

    from tensorcom.pcr.fidelity import FidelityReport

_FORMATS = ("png", "svg", "pdf")
_CLOSE_PERCENT = 3  # points whose labels would lie on each other
_INK, _MUTED = "#1f4e79", "#9db8d2"


def check_suffix(path: Path) -> str:
    """Return the format that the suffix of a file says.

    Raises:
        PcrWriteError: it says none.
    """
    kind = path.suffix[1:].lower()
    if kind not in _FORMATS:
        names = ", ".join(f".{name}" for name in _FORMATS)
        raise PcrWriteError(f"suffix is none of {names}", path=printable(str(path)))
    return kind


def draw_fidelity(report: FidelityReport, title: str, path: Path) -> None:
    """Draw MS-SSIM over the share of the set's bytes.

    Args:
        report: what was measured.
        title: above the plot.
        path: the file; its suffix says the format.

    Raises:
        PcrWriteError: the suffix is none of a format, or the file cannot be written.
    """
    kind = check_suffix(path)
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    rows = [row for row in report.groups if row.ms_ssim is not None]
    shares = [100 * row.share for row in rows]
    means = [row.ms_ssim or 0.0 for row in rows]
    lows = [row.ms_ssim_low or 0.0 for row in rows]
    axes.fill_between(shares, lows, means, color=_MUTED, alpha=0.4, label="without the worst tenth")
    axes.plot(shares, means, "o-", color=_INK, label="mean of the images")
    before = -100.0
    for row, share, mean in zip(rows, shares, means, strict=True):
        is_close = share - before < _CLOSE_PERCENT
        before = -100.0 if is_close else share
        place = (0, -16) if is_close else (0, 7)
        text = str(row.scan_groups)
        axes.annotate(text, (share, mean), place, textcoords="offset points", ha="center")
    axes.set_title(title, fontsize=10, wrap=True, parse_math=False)
    axes.set_xlabel("bytes read, % of the set (scan_groups at the points)")
    axes.set_ylabel("MS-SSIM")
    axes.set_xlim(0, 104)
    axes.set_ylim(top=1 + 0.06 * (1 - min([*lows, 0.99])))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    try:
        figure.savefig(path, format=kind)
    except OSError as exc:
        reason = f"cannot be written: {exc.strerror or exc}"
        raise PcrWriteError(reason, path=printable(str(path))) from exc
