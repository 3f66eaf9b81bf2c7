"""Heat maps: tiles with numbers as long as these are legible, and names beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from draftlab.reporting.figures.layout import (
    LEAST_SIZE,
    line_height,
    set_height,
    size_of,
    text_size,
)
from draftlab.reporting.figures.style import COLOURS, MUTED
from draftlab.reporting.labels import format_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GAP = 0.04
"""Inches between texts that stand side by side."""
_TALL, _USUAL, _TALLEST = 0.31, 4.5, 6.5
"""Inches: a row of tiles, all rows together, and all rows where there are ever so many."""


class Tile(NamedTuple):
    """A tile of a heat map; row 0 is on top."""

    column: int
    row: int
    value: float


class Shading(NamedTuple):
    """What colour a value has: none at 0 or below, all of it at the most."""

    color: str
    most: float
    meaning: str
    """Of the values; printed where a scale replaces numbers."""

    def strength(self, value: float) -> float:
        """Return the opacity of a value; 0 where it is not a number."""
        if math.isnan(value):
            return 0.0
        return 0.75 * min(max(value / self.most, 0.0), 1.0)


class Form(NamedTuple):
    """How the numbers of a heat map are written."""

    size: float
    digits: int
    factor: float = 1.0
    unit: str = ""
    """Added to the label of the horizontal axis."""

    def spell(self, value: float) -> str:
        """Return the text of a tile."""
        return format_number(self.factor * value, self.digits)


def fill_heat_map(
    figure: Figure,
    axes: Axes,
    tiles: Sequence[Tile],
    rows: Sequence[str],
    columns: Sequence[str],
    shading: Shading,
    forms: Sequence[Form],
) -> None:
    """Draw tiles with names beside them, and numbers in the first form that fits every tile.

    Where none fits, a scale of colours stands above. The figure grows with its rows.
    """
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    least = line_height(LEAST_SIZE) * len(rows)
    height = min(max(min(_TALL * len(rows), _USUAL), least), _TALLEST)
    _name_tiles(figure, axes, rows, columns, height)
    tile = (size_of(figure, axes)[0] / len(columns), height / len(rows))
    form = next((form for form in forms if _fits(figure, tiles, form, tile)), None)
    if form is None:
        height = min(max(tile[0], line_height(9)) * len(rows), height)
        _add_scale(figure, shading)
    set_height(figure, axes, height)
    _draw_shades(axes, tiles, shading)  # many artists: after all that has to be laid out
    if form is not None:
        _write_numbers(axes, tiles, form)


def _draw_shades(axes: Axes, tiles: Sequence[Tile], shading: Shading) -> None:
    from matplotlib.patches import Rectangle

    color = COLOURS[shading.color]
    for column, row, value in tiles:
        strength, corner = shading.strength(value), (column - 0.5, row - 0.5)
        if strength > 0:
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=color, alpha=strength, linewidth=0))


def _name_tiles(
    figure: Figure, axes: Axes, rows: Sequence[str], columns: Sequence[str], height: float
) -> None:
    """Name rows and columns; where names of columns fit neither way, these are numbered."""
    size = 9 if len(rows) <= _FEW else LEAST_SIZE
    axes.set_xticks([])
    every = _pick_step(len(rows), height, line_height(size))
    axes.set_yticks(range(0, len(rows), every), rows[::every], fontsize=size)
    width = size_of(figure, axes)[0]
    widest = max(text_size(figure, name, size)[0] for name in columns)
    if (widest + _GAP) * len(columns) <= width:
        axes.set_xticks(range(len(columns)), columns, fontsize=size)
    elif rows != columns:  # positions, which are numbers already
        every = _pick_step(len(columns), width, widest + _GAP)
        axes.set_xticks(range(0, len(columns), every), columns[::every], fontsize=size)
    elif line_height(size) * len(columns) <= width:
        axes.set_xticks(range(len(columns)), columns, fontsize=size, rotation=90)
    else:
        numbers = [str(i + 1) for i in range(len(columns))]
        names = [f"{name}  {number}" for name, number in zip(rows, numbers, strict=True)]
        _name_tiles(figure, axes, names, numbers, height)


_FEW = 16
"""Names that have the room for the usual size of text."""


def _pick_step(count: int, length: float, each: float) -> int:
    """Return which of so many labels are printed along a length: every n-th."""
    return next((n for n in (1, 2, 5, 10, 20, 50) if each * count <= n * length), 100)


def _fits(figure: Figure, tiles: Sequence[Tile], form: Form, room: tuple[float, float]) -> bool:
    """Whether every number of a heat map stays inside a tile of this width and height."""
    texts = {form.spell(tile.value) for tile in tiles}
    longest = sorted(texts, key=lambda text: (len(text), text))[-_LONGEST:]  # the widest is here
    widest = max((text_size(figure, text, form.size)[0] for text in longest), default=0.0)
    return widest + _GAP <= room[0] and line_height(form.size) <= room[1]


_LONGEST = 20


def _write_numbers(axes: Axes, tiles: Sequence[Tile], form: Form) -> None:
    for column, row, value in tiles:
        axes.text(column, row, form.spell(value), ha="center", va="center", fontsize=form.size)
    axes.set_xlabel(axes.get_xlabel() + form.unit)


def _add_scale(figure: Figure, shading: Shading) -> None:
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    color = COLOURS[shading.color]
    steps = [
        value for value in MaxNLocator(4).tick_values(0, shading.most) if value <= shading.most
    ]
    patches = [
        Patch(facecolor=(color, shading.strength(value)), edgecolor=MUTED, label=f"{value:g}")
        for value in steps
    ]
    figure.legend(
        handles=patches, loc="outside upper left", ncols=len(patches), title=shading.meaning,
        title_fontsize=9, alignment="left", columnspacing=1.2, handlelength=1.4,
    )  # fmt: skip
