"""Figure of a sweep of an estimator's constants."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.stats import rankdata

from draftlab.log.files import write_text
from draftlab.reporting.figures.style import COLOURS, Drawing, new_figure, styled, to_svg
from draftlab.reporting.labels import format_number

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def sweep_table(table: pl.DataFrame) -> pl.DataFrame:
    """Return a sweep as it is printed: constants and what came out, whole numbers as such."""
    whole = [
        name
        for name, dtype in table.schema.items()
        if dtype.is_float() and (table[name] == table[name].round()).all()
    ]
    columns = [name for name in table.columns if name not in ("pair", "drafting", "estimator")]
    if table["run"].n_unique() == 1:
        columns.remove("run")
    return table.select(columns).with_columns(pl.col(name).cast(pl.Int64) for name in whole)


SWEPT = {"log_loss": "log-loss, nats", "regret": "regret, nats", "ece": "ECE"}
"""What a sweep is drawn in."""


@styled
def plot_sweep(table: pl.DataFrame) -> tuple[Figure, pl.DataFrame]:
    """Draw a sweep: a line over one constant, a heat map over two, numbers in the cells.

    Over more than two constants a cell is the combination of the rest with the least log-loss.

    Parameters
    ----------
    table : DataFrame
        Of `draftlab.studies.replay.sweep.sweep`; of several runs the first is drawn.

    Returns
    -------
    Figure, DataFrame
        Table: the drawn combinations, a row each, with run, estimator and every constant.
    """
    names = table.columns[table.columns.index("estimator") + 1 : table.columns.index("n")]
    rows = table.filter(run=table["run"][0])
    first = names[:2]
    drawn = rows.sort("log_loss", nulls_last=True, maintain_order=True)
    drawn = drawn.unique(first, keep="first", maintain_order=True).sort(first)
    drawn = drawn.select("run", "estimator", *names, "n", *SWEPT, "overshoots", "diverged")
    if len(names) == 1:
        return _plot_sweep_line(drawn, names[0]), drawn
    count = drawn[names[0]].n_unique()
    figure = new_figure(len(SWEPT) * (0.75 + 0.24 * count))
    for axes, (column, title) in zip(figure.subplots(len(SWEPT), 1), SWEPT.items(), strict=True):
        _draw_cells(axes, drawn, first, column)
        axes.set_title(title, loc="left")
    axes.set_xlabel(first[1].replace("_", " "))
    return figure, drawn


def _plot_sweep_line(table: pl.DataFrame, name: str) -> Figure:
    figure = new_figure(4.2)
    panels = figure.subplots(len(SWEPT), 1, sharex=True)
    places = list(range(len(table)))
    for axes, (column, title) in zip(panels, SWEPT.items(), strict=True):
        axes.plot(places, table[column].to_list(), color=COLOURS["blue"], marker="o")
        axes.set_title(title, loc="left")
    axes.set_xticks(places, [f"{value:g}" for value in table[name]])
    axes.set_xlabel(name.replace("_", " "))
    return figure


def _draw_cells(axes: Axes, table: pl.DataFrame, names: list[str], column: str) -> None:
    """Draw one heat map; the values of a constant are categories, evenly spaced."""
    down, across = (table[name].unique().sort().to_list() for name in names)
    grid = np.full((len(down), len(across)), np.nan)
    for y, x, value in table.select(*names, column).rows():
        grid[down.index(y), across.index(x)] = np.nan if value is None else value
    # Ranks, not values: one diverged combination would leave all others one colour.
    order = rankdata(grid, nan_policy="omit").reshape(grid.shape)
    axes.pcolormesh(order, cmap="cividis_r", edgecolors="white", linewidth=1)
    for (y, x), value in np.ndenumerate(grid):
        dark = order[y, x] > (1 + np.nanmax(order)) / 2
        axes.text(x + 0.5, y + 0.5, format_number(value), ha="center", va="center", fontsize=8,
                  color="#ffffff" if dark else "#000000")  # fmt: skip
    axes.set_xticks(np.arange(len(across)) + 0.5, [f"{value:g}" for value in across])
    axes.set_yticks(np.arange(len(down)) + 0.5, [f"{value:g}" for value in down])
    axes.set_ylabel(names[0].replace("_", " "))
    axes.tick_params(length=0)
    axes.grid(visible=False)


def write_sweep(table: pl.DataFrame, path: Path) -> None:
    """Write the figure of a sweep as an SVG file of its own, with what it shows as description."""
    figure, drawn = plot_sweep(table)
    text = f"{SWEEP_DRAWING.caption(drawn)} {SWEEP_DRAWING.how_to_read}"
    svg = to_svg(figure, SWEEP_DRAWING.name, SWEEP_DRAWING.title, text)
    alone = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '
                        'xmlns:xlink="http://www.w3.org/1999/xlink" ', 1)  # fmt: skip
    printed = re.sub(r"var\(--\w+, (#\w+)\)", r"\1", alone)  # a viewer may know no variables
    write_text(path, printed + "\n")


def _sweep_caption(table: pl.DataFrame) -> str:
    names = table.columns[2 : table.columns.index("n")]
    n = table.select("n").row(0)[0]
    text = f"{table['estimator'][0]} over run {table['run'][0]}, {n:,} drafts."
    if len(names) > 2:
        rest = " and ".join(name.replace("_", " ") for name in names[2:])
        text += f" Each cell shows the {rest} with the lowest log-loss."
    return text


def _sweep_alt(table: pl.DataFrame) -> str:
    best = table.sort("log_loss", nulls_last=True).row(0, named=True)
    names = table.columns[2 : table.columns.index("n")]
    where = ", ".join(f"{name.replace('_', ' ')} {best[name]:g}" for name in names)
    return (
        f"The lowest log-loss is {format_number(best['log_loss'])} at {where}, the highest "
        f"{format_number(table['log_loss'].max())}."
    )


SWEEP_DRAWING = Drawing(
    "sweep",
    "Sweep of the constants",
    plot_sweep,
    _sweep_caption,
    _sweep_alt,
    "Darker cells are worse. Colours show ranks only, so read the differences from the numbers. "
    "Regret is log-loss above the offline fit.",
)
"""Figure of a sweep; takes its table."""

DRAWINGS: tuple[Drawing, ...] = (SWEEP_DRAWING,)
