"""A window that shows contact sheets one after the other.

Owns the window's life and what its keys do; imports matplotlib when used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorcom.errors import MissingDependencyError, TensorcomError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_SCREEN = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")


class DisplayError(TensorcomError):
    """There is no screen to open a window on."""


def require_window() -> Any:
    """Return matplotlib's pyplot, if it can open a window here.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        DisplayError: there is no screen, or matplotlib has no toolkit to open a window with.
    """
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError as exc:
        raise MissingDependencyError.for_package(
            "matplotlib", "a window (--out FILE.png needs none)", "pip install matplotlib"
        ) from exc
    backend = pyplot.get_backend()
    if backend.lower() in _NO_SCREEN:
        raise DisplayError(
            f"no window can be opened (matplotlib's backend is {backend}): write the images with "
            "--out FILE.png, or where there is a screen, pip install PyQt6"
        )
    return pyplot


class Window:
    """Shows sheets; a key, a click or a timer takes the next, `q` closes.

    Args:
        pyplot: matplotlib's pyplot.
        sheets: yields (picture, text), pictures in RGB.
        interval_s: seconds after which the next is taken by itself; None never.
    """

    def __init__(
        self, pyplot: Any, sheets: Iterator[tuple[Any, str]], *, interval_s: float | None
    ) -> None:
        self._pyplot = pyplot
        self._sheets = sheets
        self._interval_s = interval_s
        self._error: BaseException | None = None
        self.shown = 0

    def run(self) -> None:
        """Open the window and return when it is closed.

        Raises:
            Exception: whatever the sheets raised while the window was open.
        """
        self._figure, self._axes = self._pyplot.subplots(layout="constrained", figsize=(13, 8))
        self._axes.set_axis_off()
        canvas = self._figure.canvas
        canvas.mpl_connect("key_press_event", self._on_event)
        canvas.mpl_connect("button_press_event", self._on_event)
        timer = None
        self.advance()
        if self._interval_s is not None:
            timer = canvas.new_timer(interval=max(int(self._interval_s * 1000), 1))
            timer.add_callback(self.advance)
            timer.start()
        try:
            if self._error is None:
                self._pyplot.show()
        finally:
            if timer is not None:
                timer.stop()
            self._pyplot.close(self._figure)
        if self._error is not None:
            raise self._error

    def _on_event(self, event: Any) -> None:
        if getattr(event, "key", None) != "q":  # which matplotlib takes to close the window
            self.advance()

    def advance(self) -> None:
        """Show the next sheet; after the last one, say so."""
        if self._error is not None:
            return
        try:
            picture, text = next(self._sheets)
        except StopIteration:
            self._axes.set_title("end of the stream")
        except BaseException as exc:  # noqa: BLE001 - a toolkit would print it and go on; run() raises
            self._error = exc
            self._pyplot.close(self._figure)
            return
        else:
            self._axes.clear()
            self._axes.set_axis_off()
            self._axes.imshow(picture)
            self._axes.set_title(text)
            self.shown += 1
        self._figure.canvas.draw_idle()
