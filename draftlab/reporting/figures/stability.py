"""Figures of what a log says about the model: workloads, transfer, learning, the achievable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from draftlab.published import PUBLISHED
from draftlab.reporting.figures.heat_maps import Form, Shading, Tile, fill_heat_map
from draftlab.reporting.figures.layout import LEAST_SIZE
from draftlab.reporting.figures.point_labels import MOST_NUMBERS, name_points
from draftlab.reporting.figures.shorten import shorten_all
from draftlab.reporting.figures.style import (
    COLOURS,
    MUTED,
    Drawing,
    add_legend,
    new_axes,
    new_figure,
    styled,
)
from draftlab.reporting.labels import format_number, label, of_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlab._types import FloatArray
    from draftlab.reporting.labels import CellKey
    from draftlab.studies.stability.stability import Stability


@styled
def plot_correlation(stability: Stability, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw slope and first intercept of each workload against its mean draft entropy (T4).

    Returns
    -------
    Figure, DataFrame
        Table: dataset, n, mean_entropy (nats), slope and intercept_0 with _low and _high (95 % by
        prompt), slope_r, intercept_0_r (the correlations, on every row). Empty under three
        workloads.
    """
    table = of_cell(stability.workloads, cell).filter(
        pl.col("mean_entropy").is_finite(), pl.col("intercept_0").is_finite()
    )
    correlations = dict(
        of_cell(stability.workload_correlations, cell).select("coefficient", "r").iter_rows()
    )
    table = table.select(
        "dataset", "n", "mean_entropy", "slope", "slope_low", "slope_high", "intercept_0",
        "intercept_0_low", "intercept_0_high",
        slope_r=pl.lit(correlations["slope"], dtype=pl.Float64),
        intercept_0_r=pl.lit(correlations["intercept_0"], dtype=pl.Float64),
    ).sort("mean_entropy")  # fmt: skip
    if len(table) < 3:
        table = table.clear()
    figure = new_figure(2.9)
    panels = figure.subplots(1, 2, sharex=True)
    for axes, column in zip(panels, ("intercept_0", "slope"), strict=True):
        _draw_correlation(axes, table, column)
    panels[0].set_ylabel("log-odds")
    figure.supxlabel("mean draft entropy of the workload, nats", fontsize=9)
    if 0 < len(table) <= MOST_NUMBERS:  # of more, the table beside the figure tells
        name_points(figure, panels, table["dataset"].to_list())
    return figure, table


def _draw_correlation(axes: Axes, table: pl.DataFrame, column: str) -> None:
    from matplotlib.ticker import MaxNLocator

    if table.is_empty():
        return
    x, y = table["mean_entropy"].to_numpy(), table[column].to_numpy()
    axes.plot(*_trend(x, y), color=MUTED, linestyle="--", linewidth=1)
    color = COLOURS["orange" if column == "slope" else "blue"]
    axes.plot(x, y, linestyle="", marker="o", color=color)
    axes.vlines(x, table[f"{column}_low"].to_numpy(), table[f"{column}_high"].to_numpy(),
                color=color, linewidth=1.2)  # fmt: skip
    beside = 0.45 * (x.max() - x.min()) or 0.1
    axes.set_xlim(x.min() - beside, x.max() + beside)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.ticklabel_format(useOffset=False)
    # one scale for both, so that their spread compares
    low, high = _ends(table, column)
    middle = (low + high) / 2
    reach = 0.6 * max(*(np.diff(_ends(table, c))[0] for c in ("slope", "intercept_0")), 0.1)
    axes.set_ylim(middle - reach, middle + reach)
    name = "slope" if column == "slope" else "intercept of position 0"
    axes.set_title(f"{name}, r = {format_number(float(table[f'{column}_r'][0]), 2)}")


def _trend(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return many points of the fitted line; none where all x are one."""
    if x.min() == x.max():
        return np.empty(0), np.empty(0)
    slope, start = np.polyfit(x, y, 1)
    along = np.linspace(x.min(), x.max(), 100)
    return along, start + slope * along


def _ends(table: pl.DataFrame, column: str) -> tuple[float, float]:
    """Return how far the intervals of a coefficient reach, or the points where there are none."""
    values = table.select(f"{column}_low", column, f"{column}_high").to_numpy()
    return float(np.nanmin(values)), float(np.nanmax(values))


@styled
def plot_transfer(stability: Stability, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw what a fit to one workload costs on another, in nats of log-loss above its own fit.

    Returns
    -------
    Figure, DataFrame
        Table: trained_on, graded_on, n, log_loss_cost, log_loss_cost_low, log_loss_cost_high.
        Empty under two workloads.
    """
    table = of_cell(stability.transfer, cell).select(
        "trained_on", "graded_on", "n", "log_loss_cost", "log_loss_cost_low", "log_loss_cost_high"
    )
    datasets = table["trained_on"].unique(maintain_order=True).to_list()
    if len(datasets) < 2:
        table = table.clear()
    figure, axes = new_axes(4.0)
    axes.set_xlabel("graded on")
    axes.set_ylabel("fitted on")
    tiles = [
        Tile(datasets.index(graded), datasets.index(trained), cost)
        for trained, graded, cost in table.select(
            "trained_on", "graded_on", "log_loss_cost"
        ).iter_rows()
    ]
    if tiles:
        names = shorten_all(datasets, 14)
        worst = max([abs(tile.value) for tile in tiles if tile.value == tile.value], default=1.0)
        forms = [Form(LEAST_SIZE, 3), Form(LEAST_SIZE, 2)]
        shading = Shading("orange", worst or 1.0, "nats")
        fill_heat_map(
            figure, axes, tiles, names, names, shading, forms if worst > 0.2 else forms[:1]
        )
    return figure, table


@styled
def plot_learning(stability: Stability, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw held-out log-loss against the labelled drafts that were learnt from.

    Returns
    -------
    Figure, DataFrame
        Table: rows_per_position, repeats, n_train, log_loss, log_loss_sd, auc.
    """
    table = of_cell(stability.learning, cell).select(
        "rows_per_position", "repeats", "n_train", "log_loss", "log_loss_sd", "auc"
    )
    from matplotlib.ticker import LogLocator

    figure, axes = new_axes(2.6)
    # whole prompts were drawn, so that the smallest sizes hold more than was asked for
    x = (table["n_train"] / cell.num_speculative_tokens).to_list()
    y, spread = table["log_loss"].to_numpy(), table["log_loss_sd"].to_numpy()
    axes.plot(x, y, color=COLOURS["blue"], marker="o")
    axes.fill_between(x, y - spread, y + spread, color=COLOURS["blue"], alpha=0.15, linewidth=0)
    if x:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
        )
        axes.xaxis.set_minor_formatter(lambda *_: "")  # within a decade it would print TeX
    axes.set_xlabel("labelled drafts used for the fit, per position")
    axes.set_ylabel("log-loss, nats")
    return figure, table


@styled
def plot_achievable(stability: Stability, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw which share of the way from a constant to the overlap each predictor goes.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, lossless, n, share_of_log_loss, share_of_auc. Empty without
        ``overlap``.
    """
    rows = of_cell(stability.ceiling_share, cell).filter(
        ~pl.col("predictor").is_in(["constant", "overlap", "accept_prob"]), scope="overall"
    )
    names = [label(name).name for name in rows["predictor"]]
    table = (
        rows.with_columns(name=pl.Series(names, dtype=pl.String))
        .select("predictor", "name", "lossless", "n", "share_of_log_loss", "share_of_auc")
        .sort("share_of_log_loss", descending=True, nulls_last=True)
    )
    figure, axes = new_axes(0.9 + 0.24 * len(table))
    for y, row in enumerate(table.iter_rows(named=True)):
        color = COLOURS["blue"] if row["lossless"] else COLOURS["purple"]
        name = "lossless" if row["lossless"] else "not lossless"
        share = row["share_of_log_loss"]
        axes.barh(y, share, color=color, height=0.62, linewidth=0, label=name)
        if share < _LEAST_SHARE:  # far worse than knowing nothing: the bar leaves the axes
            axes.text(0.02, y, f"{100 * share:.0f} %", va="center", fontsize=8)
    axes.set_yticks(range(len(table)), table["name"].to_list())
    axes.invert_yaxis()
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.axvline(1, color=MUTED, linewidth=1, linestyle="--")
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set_xlim(left=max(axes.get_xlim()[0], _LEAST_SHARE))
    axes.set_xlabel("share of the possible improvement in log-loss")
    axes.grid(visible=False, axis="y")
    handles, names = axes.get_legend_handles_labels()
    first = {name: handle for handle, name in reversed(list(zip(handles, names, strict=True)))}
    if first:
        figure.legend(list(first.values()), list(first), loc="outside upper left", ncols=2)
    return figure, table


_LEAST_SHARE = -0.5


@styled
def plot_drift(stability: Stability, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw how log-odds moved from the earlier to the later half at equal features.

    Returns
    -------
    Figure, DataFrame
        Table: position, n_early, n_late, shift (log-odds), shift_low, shift_high, changed.
    """
    table = of_cell(stability.change, cell).filter(pl.col("position").is_not_null())
    table = table.select(
        "position", "n_early", "n_late", "shift", "shift_low", "shift_high", "changed"
    )
    figure, axes = new_axes(2.2)
    x = table["position"].to_list()
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.plot(x, table["shift"].to_list(), linestyle="", marker="o", color=COLOURS["blue"])
    axes.vlines(x, table["shift_low"].to_list(), table["shift_high"].to_list(),
                color=COLOURS["blue"], linewidth=1.4)  # fmt: skip
    axes.set_xticks(x)
    axes.set_xlabel("draft position")
    axes.set_ylabel("shift, log-odds")
    add_legend(figure, axes)
    return figure, table


def _spell_correlation(table: pl.DataFrame) -> str:
    parts = [
        f"{row['dataset']}: entropy {format_number(row['mean_entropy'], 2)}, intercept "
        f"{format_number(row['intercept_0'], 2)}, slope {format_number(row['slope'], 2)}"
        for row in table.iter_rows(named=True)
    ]
    return "; ".join(parts) + "."


def _spell_transfer(table: pl.DataFrame) -> str:
    foreign = table.filter(pl.col("trained_on") != pl.col("graded_on")).sort("log_loss_cost")
    best, worst = (foreign.row(at, named=True) for at in (0, -1))
    parts = [
        f"fitted on {row['trained_on']}, graded on {row['graded_on']}: "
        f"{format_number(row['log_loss_cost'])}"
        for row in (worst, best)
    ]
    return f"Log-loss above the workload's own fit. Worst: {parts[0]}; best: {parts[1]}."


def _spell_learning(table: pl.DataFrame) -> str:
    known = table.unique("n_train", maintain_order=True)  # one prompt may be more than asked for
    parts = [
        f"{format_number(row['n_train'], 0)} drafts: {format_number(row['log_loss'])}"
        for row in known.iter_rows(named=True)
    ]
    return "Held-out log-loss by training drafts. " + "; ".join(parts) + "."


def _spell_achievable(table: pl.DataFrame) -> str:
    parts = [
        f"{row['name']} {format_number(100 * row['share_of_log_loss'], 0)} %"
        for row in table.iter_rows(named=True)
    ]
    return "; ".join(parts) + "."


def _spell_drift(table: pl.DataFrame) -> str:
    shifts = ", ".join(format_number(value, 3) for value in table["shift"])
    changed = int(table["changed"].fill_null(value=False).sum())
    return f"Shift by position from 0: {shifts}; {changed} of {len(table)} changed."


_PUBLISHED = PUBLISHED["T4_correlation"].records()
CORRELATION = Drawing(
    "correlation",
    "Coefficients and draft entropy",
    plot_correlation,
    lambda table: (
        f"n = {format_number(table['n'].sum())} drafts of {len(table)} workloads, each fitted "
        "alone. Bars are 95 % by prompt. Both panels span the same range of log-odds."
    ),
    _spell_correlation,
    "If the points follow the dashed line, the coefficient moves with the entropy of the workload. "
    f"Published correlations are r = {_PUBLISHED['intercept_0']['r']} for the intercept and r = "
    f"{_PUBLISHED['slope']['r']} for the slope. With so few workloads any r may be chance.",
)
TRANSFER = Drawing(
    "transfer",
    "Transfer between workloads",
    plot_transfer,
    lambda table: f"A tile holds at most n = {format_number(table['n'].max())} drafts. In nats.",
    _spell_transfer,
    "A row shows where a fit was made, a column where it is used. The tile is its log-loss above "
    "that of the workload's own fit. A dark column is a workload that needs its own fit.",
)
LEARNING = Drawing(
    "learning",
    "Learning curve",
    plot_learning,
    lambda table: (
        f"n = {format_number(table['rows_per_position'].max())} labelled drafts per position at "
        f"most. The line is the mean of {format_number(table['repeats'].max())} folds, the band "
        "their sd."
    ),
    _spell_learning,
    "Where the curve is flat, more labels no longer help, so an online estimator needs no more "
    "than that.",
)
ACHIEVABLE = Drawing(
    "achievable",
    "Share of the possible improvement",
    plot_achievable,
    lambda table: f"n = {format_number(table['n'].max())} drafts.",
    _spell_achievable,
    "0 % is a constant, which knows nothing about the draft. 100 % is overlap, which knows the "
    "target's distribution before the draw; no lossless predictor can pass it on average.",
)
DRIFT = Drawing(
    "drift",
    "Change from the earlier to the later half",
    plot_drift,
    lambda table: (
        f"n = {format_number(table['n_early'].sum())} earlier and "
        f"{format_number(table['n_late'].sum())} later drafts. Bars are 95 % by prompt."
    ),
    _spell_drift,
    "At zero, drafts with the same feature value are accepted as often later as earlier. If a bar "
    "leaves out zero, one fit for the whole log misses a change.",
)

DRAWINGS: tuple[Drawing, ...] = (CORRELATION, TRANSFER, LEARNING, ACHIEVABLE, DRIFT)
