"""Figure of two logs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from draftlab.reporting.figures.style import COLOURS, MUTED, Drawing, new_figure, styled
from draftlab.reporting.labels import format_number, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from draftlab.studies.compare import Comparison

_DRAWN = (("auc", "AUC", "blue"), ("log_loss", "log-loss, nats", "orange"))


def named_rows(table: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the printed name of their predictor."""
    names = [label(predictor).name for predictor in table["predictor"]]
    return table.with_columns(name=pl.Series(names, dtype=pl.String))


@styled
def plot_differences(comparison: Comparison) -> tuple[Figure, pl.DataFrame]:
    """Draw a - b of AUC and log-loss for each predictor.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, metric, a, b, difference, low, high, n_prompts.
    """
    rows = named_rows(comparison.predictors).filter(
        pl.col("metric").is_in([metric for metric, _, _ in _DRAWN])
    )
    table = rows.select(
        "predictor", "name", "metric", "a", "b", "difference", "low", "high", "n_prompts"
    )
    names = table["name"].unique(maintain_order=True).to_list()
    figure = new_figure(1.0 + 0.26 * len(names))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (metric, title, color) in zip(panels, _DRAWN, strict=True):
        own = table.filter(metric=metric)
        y = [names.index(name) for name in own["name"]]
        axes.axvline(0, color=MUTED, linewidth=0.8)
        axes.hlines(y, own["low"].to_numpy(), own["high"].to_numpy(), color=COLOURS[color])
        axes.plot(own["difference"].to_numpy(), y, linestyle="", marker="o", color=COLOURS[color])
        axes.set_title(f"{title}, a - b")
        axes.tick_params(axis="x", rotation=30)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return figure, table


def _spell(table: pl.DataFrame) -> str:
    parts = [
        f"{row['name']} {row['metric'].replace('_', '-')} {format_number(row['difference'])} "
        f"({format_number(row['low'])} to {format_number(row['high'])})"
        for row in table.iter_rows(named=True)
    ]
    return "a - b: " + "; ".join(parts) + "."


DIFFERENCES = Drawing(
    "differences",
    "Differences of predictors",
    plot_differences,
    lambda table: (
        f"n = {format_number(table['n_prompts'].max())} prompts. Bars are 95 % by prompt."
    ),
    _spell,
    "Right of zero, a has the higher value. Higher AUC and lower log-loss are better. If a bar "
    "crosses zero, the difference may be chance.",
)

DRAWINGS: tuple[Drawing, ...] = (DIFFERENCES,)
