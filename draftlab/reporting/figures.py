"""Figures of an evaluation. Each function returns the figure and the table that it draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from draftlab.reporting.style import (
    COLOURS,
    MUTED,
    Drawing,
    add_legend,
    new_axes,
    new_figure,
    styled,
)
from draftlab.reporting.tables import ADOPTED, by_position, format_number, label, of_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlab.evaluation import Evaluation
    from draftlab.reporting.tables import Cell


class _Line(NamedTuple):
    color: str
    style: str
    marker: str


_LINES = {
    "logit_qmax": _Line(COLOURS["blue"], "-", "o"),
    "log_qmax": _Line(COLOURS["orange"], "-", "s"),
    "top2_margin": _Line(COLOURS["green"], "-", "^"),
    "entropy": _Line(COLOURS["orange"], "-", "D"),
    "logit_q_sampled": _Line(COLOURS["purple"], "--", "v"),
    "qmax": _Line(COLOURS["sky"], "-", "P"),
    "confidence": _Line(COLOURS["red"], "-", "X"),
    "per_position": _Line(MUTED, "--", ""),
    "overlap": _Line(MUTED, ":", ""),
}
LOSS_BY_POSITION = (
    "logit_qmax", "log_qmax", "qmax", "logit_q_sampled", "confidence", "per_position", "overlap",
)  # fmt: skip
FEW = 30
"""Bins with fewer rows are drawn hollow and apart."""
RELIABILITY = ("logit_qmax", "qmax", "confidence")


@styled
def plot_auc_by_position(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw AUC at each position (the published F1).

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, position, n, auc.
    """
    table = by_position(evaluation, cell).select("predictor", "name", "position", "n", "auc")
    figure, axes = new_axes(3.0)
    _draw_lines(axes, table, "auc")
    axes.set_ylabel("AUC")
    _position_axis(axes, cell)
    add_legend(figure, axes)
    return figure, table


@styled
def plot_log_loss_by_position(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw log-loss at each position.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, position, n, log_loss (nats).
    """
    table = by_position(evaluation, cell, LOSS_BY_POSITION)
    table = table.select("predictor", "name", "position", "n", "log_loss")
    figure, axes = new_axes(3.0)
    _draw_lines(axes, table, "log_loss")
    axes.set_ylabel("log-loss, nats")
    _position_axis(axes, cell)
    add_legend(figure, axes)
    return figure, table


@styled
def plot_reliability(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw the observed rate against the mean prediction, with the counts below.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, bin, low, high, n, n_accepted, mean_prediction, rate.
    """
    table = _reliability(evaluation, cell)
    predictors = table["predictor"].unique(maintain_order=True).to_list()
    columns = max(1, len(predictors))
    figure = new_figure(1.2 + 4.0 / columns)  # panels come out nearly square
    grid = figure.subplots(
        2, columns, squeeze=False, sharex=True, sharey="row",
        gridspec_kw={"height_ratios": [4, 1]},
    )  # fmt: skip
    for (upper, lower), predictor in zip(grid.T, predictors, strict=False):
        _draw_reliability(upper, lower, table.filter(predictor=predictor), predictor)
    grid[0][0].set_ylabel("observed rate")
    grid[1][0].set_ylabel("rows")
    figure.supxlabel("mean prediction in the bin", fontsize=9)
    return figure, table


@styled
def plot_labels(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw how many accepted and rejected rows got which prediction of the adopted feature.

    Returns
    -------
    Figure, DataFrame
        Table: name, bin, low, high, n, n_accepted, n_rejected.
    """
    rows = _reliability(evaluation, cell).filter(predictor=ADOPTED)
    table = rows.with_columns(n_rejected=pl.col("n") - pl.col("n_accepted")).select(
        "name", "bin", "low", "high", "n", "n_accepted", "n_rejected"
    )
    figure, axes = new_axes(2.6)
    width = (table["high"] - table["low"]).to_list()
    for column, sign, color in (("n_accepted", 1, "blue"), ("n_rejected", -1, "red")):
        axes.bar(
            table["low"].to_list(), (sign * table[column]).to_list(), width, align="edge",
            color=COLOURS[color], linewidth=0, label=column.removeprefix("n_"),
        )  # fmt: skip
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"predicted acceptance, fitted {label(ADOPTED).name}")
    axes.set_ylabel("rows")
    add_legend(figure, axes)
    return figure, table


@styled
def plot_acceptance(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw conditional acceptance and survival at each position, all workloads together.

    Returns
    -------
    Figure, DataFrame
        Table: position, n_admitted, n_observed, n_accepted, conditional_rate, survival_rate.
    """
    rows = of_cell(evaluation.acceptance, cell).filter(pl.col("dataset").is_null())
    table = rows.select(
        "position", "n_admitted", "n_observed", "n_accepted", "conditional_rate", "survival_rate"
    )
    figure, axes = new_axes(2.6)
    for column, color, marker, name in (
        ("conditional_rate", "blue", "o", "conditional"),
        ("survival_rate", "red", "s", "survival"),
    ):
        axes.plot(
            table["position"].to_list(), table[column].to_list(), color=COLOURS[color],
            marker=marker, label=name,
        )  # fmt: skip
    axes.set_ylim(0, 1)
    axes.set_ylabel("share accepted")
    _position_axis(axes, cell)
    add_legend(figure, axes)
    return figure, table


@styled
def plot_workloads(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw conditional acceptance by workload and position, the easiest workload on top.

    Returns
    -------
    Figure, DataFrame
        Table: dataset, position, n_observed, n_accepted, conditional_rate.
    """
    from matplotlib.patches import Rectangle

    table = _workloads(evaluation, cell)
    datasets = table["dataset"].unique(maintain_order=True).to_list()
    K = cell.num_speculative_tokens
    figure, axes = new_axes(0.8 + 0.3 * len(datasets))
    for dataset, position, rate in table.select(
        "dataset", "position", "conditional_rate"
    ).iter_rows():
        x, y = position - 0.5, datasets.index(dataset) - 0.5
        shade = 0.0 if math.isnan(rate) else 0.75 * rate
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=COLOURS["sky"], alpha=shade, linewidth=0))
        size = 9 if K <= 10 else 6
        text = format_number(rate, 3 if K <= 10 else 2)
        axes.text(position, y + 0.5, text, ha="center", va="center", fontsize=size)
    axes.set(xlim=(-0.5, K - 0.5), ylim=(len(datasets) - 0.5, -0.5))
    axes.set_yticks(range(len(datasets)), [_shorten(name) for name in datasets])
    _position_axis(axes, cell)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure, table


def _position_axis(axes: Axes, cell: Cell) -> None:
    axes.set_xlabel("draft position")
    axes.set_xticks(range(cell.num_speculative_tokens))


def _draw_lines(axes: Axes, table: pl.DataFrame, column: str) -> None:
    for predictor in table["predictor"].unique(maintain_order=True):
        rows = table.filter(predictor=predictor)
        line = _LINES[predictor]
        main = predictor == ADOPTED
        axes.plot(
            rows["position"].to_list(), rows[column].to_list(), color=line.color,
            linestyle=line.style, marker=line.marker, linewidth=2.6 if main else 1.4,
            zorder=3 if main else 2, label=rows["name"][0],
        )  # fmt: skip


def _draw_reliability(upper: Axes, lower: Axes, rows: pl.DataFrame, predictor: str) -> None:
    from matplotlib.ticker import MaxNLocator

    color = _LINES[predictor].color
    filled = rows.filter(pl.col("n") >= FEW)
    few = rows.filter(pl.col("n").is_between(1, FEW - 1))
    upper.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1)
    upper.plot(
        filled["mean_prediction"].to_list(), filled["rate"].to_list(), color=color,
        marker=_LINES[predictor].marker,
    )  # fmt: skip
    upper.plot(
        few["mean_prediction"].to_list(), few["rate"].to_list(), color=color, linestyle="",
        marker=_LINES[predictor].marker, markerfacecolor="none",
    )  # fmt: skip
    upper.set(xlim=(0, 1), ylim=(0, 1))
    upper.set_title(label(predictor).name)
    width = (rows["high"] - rows["low"]).to_list()
    lower.bar(
        rows["low"].to_list(), rows["n"].to_list(), width, align="edge", color=color, linewidth=0
    )
    lower.yaxis.set_major_formatter(_thousands)
    lower.yaxis.set_major_locator(MaxNLocator(2))
    lower.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _thousands(value: float, _: Any) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _reliability(evaluation: Evaluation, cell: Cell) -> pl.DataFrame:
    rows = of_cell(evaluation.reliability, cell)
    tables = [
        rows.filter(predictor=predictor).with_columns(name=pl.lit(label(predictor).name))
        for predictor in RELIABILITY
    ]
    return pl.concat(tables).select(
        "predictor", "name", "bin", "low", "high", "n", "n_accepted", "mean_prediction", "rate"
    )


def _workloads(evaluation: Evaluation, cell: Cell) -> pl.DataFrame:
    """Return the acceptance of each workload, the highest overall rate first."""
    rows = of_cell(evaluation.acceptance, cell).filter(pl.col("dataset").is_not_null())
    overall = pl.col("n_accepted").sum().over("dataset") / pl.col("n_observed").sum().over(
        "dataset"
    )
    return (
        rows.with_columns(overall=overall)
        .sort("overall", "dataset", "position", descending=[True, False, False])
        .select("dataset", "position", "n_observed", "n_accepted", "conditional_rate")
    )


def _shorten(name: str, limit: int = 24) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _count_by_position(table: pl.DataFrame) -> str:
    first = table.filter(pl.col("predictor") == pl.col("predictor").first())
    counts = ", ".join(format_number(n) for n in first["n"])
    return f"n = {counts} rows at positions 0 to {len(first) - 1}."


def _spell_lines(table: pl.DataFrame, column: str) -> str:
    parts = []
    for predictor in table["predictor"].unique(maintain_order=True):
        rows = table.filter(predictor=predictor)
        values = ", ".join(format_number(v, 3) for v in rows[column])
        parts.append(f"{rows['name'][0]} {values}")
    return f"By position from 0: {'; '.join(parts)}."


def _spell_reliability(table: pl.DataFrame) -> str:
    parts = []
    for predictor in table["predictor"].unique(maintain_order=True):
        rows = table.filter(pl.col("n") > 0, predictor=predictor)
        gap = (pl.col("rate") - pl.col("mean_prediction")).abs() * pl.col("n")
        error = format_number(rows.select(gap.sum() / pl.col("n").sum()).item())
        parts.append(f"{rows['name'][0]}: weighted mean distance from the diagonal {error}")
    return "; ".join(parts) + "."


def _spell_labels(table: pl.DataFrame) -> str:
    accepted, rejected = table["n_accepted"].sum(), table["n_rejected"].sum()
    return (
        f"{format_number(accepted)} accepted rows above, {format_number(rejected)} rejected below."
    )


def _spell_acceptance(table: pl.DataFrame) -> str:
    conditional = ", ".join(format_number(v, 3) for v in table["conditional_rate"])
    survival = ", ".join(format_number(v, 3) for v in table["survival_rate"])
    return f"By position from 0: conditional {conditional}; survival {survival}."


def _spell_workloads(table: pl.DataFrame) -> str:
    parts = []
    for dataset in table["dataset"].unique(maintain_order=True):
        values = table.filter(dataset=dataset)["conditional_rate"]
        parts.append(f"{dataset} {', '.join(format_number(v, 3) for v in values)}")
    return f"By position from 0: {'; '.join(parts)}."


def _reliability_caption(table: pl.DataFrame) -> str:
    n = table.filter(pl.col("predictor") == pl.col("predictor").first())["n"].sum()
    return f"n = {format_number(n)} rows each; bars count rows per bin."


def _acceptance_caption(table: pl.DataFrame) -> str:
    observed = ", ".join(format_number(n) for n in table["n_observed"])
    admitted = ", ".join(format_number(n) for n in table["n_admitted"])
    return f"n = {observed} observed and {admitted} admitted drafts at positions 0 on."


DRAWINGS = (
    Drawing(
        "auc-by-position",
        "AUC by position",
        plot_auc_by_position,
        _count_by_position,
        lambda table: _spell_lines(table, "auc"),
        "Higher separates accepted from rejected drafts better; 0.5 is chance. Only rows that "
        "drafts reached count, so n falls to the right. At one position log(qmax), "
        "-log(-log(qmax)), raw qmax and logit(qmax) order the rows alike and share one line.",
    ),
    Drawing(
        "log-loss-by-position",
        "Log-loss by position",
        plot_log_loss_by_position,
        _count_by_position,
        lambda table: _spell_lines(table, "log_loss"),
        "Lower is better. The per-position rate knows nothing of the draft, the overlap knows p: "
        "what a lossless predictor can gain lies between these two.",
    ),
    Drawing(
        "reliability",
        "Reliability",
        plot_reliability,
        lambda table: (
            f"n = {format_number(table.filter(predictor=table['predictor'][0])['n'].sum())}"
            " rows each; bars count rows per bin."
        ),
        _spell_reliability,
        "On the dashed diagonal, what was predicted is what happened. Under it the predictor is "
        "overconfident, above it underconfident. Hollow points are bins of fewer than "
        f"{FEW} rows, which scatter.",
    ),
    Drawing(
        "labels",
        "Predictions by label",
        plot_labels,
        lambda table: f"n = {format_number(table['n'].sum())} rows.",
        _spell_labels,
        "The further the accepted rows lie to the right of the rejected ones, the higher the "
        "AUC. In a calibrated bin at 0.9 the upper bar is nine times the lower one.",
    ),
    Drawing(
        "acceptance-by-position",
        "Acceptance by position",
        plot_acceptance,
        _acceptance_caption,
        _spell_acceptance,
        "Conditional: accepted, of the drafts that reached the position. Survival: accepted, of "
        "all that were sent; it can only fall with the position.",
    ),
    Drawing(
        "acceptance-by-workload",
        "Conditional acceptance by workload",
        plot_workloads,
        lambda table: f"n = {format_number(table['n_observed'].sum())} observed drafts.",
        _spell_workloads,
        "A stronger colour is more often accepted. Down a column workloads differ, along a row "
        "positions do; what differs down a column, one common intercept cannot follow.",
    ),
)
"""The figures of a report, in its order."""
