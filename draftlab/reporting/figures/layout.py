"""How large what a figure holds comes out, in inches, as it is now laid out."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_SIZE = 8
"""Points: smaller text is not read on a phone."""


def size_of(figure: Figure, axes: Axes) -> tuple[float, float]:
    """Return width and height of axes as they are now laid out, in inches."""
    engine = figure.get_layout_engine()
    if engine is not None:
        with _missing_glyphs():
            engine.execute(figure)
    box = axes.get_window_extent()
    return box.width / figure.dpi, box.height / figure.dpi


def set_height(figure: Figure, axes: Axes, height: float) -> None:
    """Stretch a figure until its axes have this height, in inches."""
    missing = height - size_of(figure, axes)[1]
    figure.set_figheight(figure.get_figheight() + missing)


def text_size(figure: Figure, text: str, size: float) -> tuple[float, float]:
    """Return width and height of a text, in inches; its size in points."""
    probe = figure.text(0, 0, text, fontsize=size)
    with _missing_glyphs():
        box = probe.get_window_extent()
    probe.remove()
    return box.width / figure.dpi, box.height / figure.dpi


def line_height(size: float) -> float:
    """Return the height of a line of text with the room around it, in inches."""
    return 1.3 * size / 72


@contextlib.contextmanager
def _missing_glyphs() -> Iterator[None]:
    """Measure names that our font cannot print: the reader's browser can."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield
