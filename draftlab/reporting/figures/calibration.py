"""Figures of calibration: reliability with its smooth curve, scores by label, lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from draftlab.grading.grade import SCORE_LIMIT
from draftlab.predictors.baselines import ADOPTED
from draftlab.reporting.figures.predictors import Line, pick_lines
from draftlab.reporting.figures.shorten import shorten
from draftlab.reporting.figures.style import (
    COLOURS,
    MUTED,
    Drawing,
    add_legend,
    new_axes,
    new_figure,
    styled,
)
from draftlab.reporting.labels import (
    UNDEFINED,
    format_number,
    label,
    of_cell,
    own_predictors,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlab.reporting.labels import CellKey
    from draftlab.studies.evaluate import Evaluation

FEW = 30
"""Bins with fewer rows are drawn hollow and apart."""
_RELIABILITY = ("logit_qmax", "qmax", "confidence")
SMOOTHING = 0.02
"""Width around a point of the smooth curve in which so many rows must lie for it to be drawn."""
_SURVIVAL_LINES = (
    ("hybrid", "blue", "o"), ("logit_qmax", "sky", "s"), ("qmax", "orange", "^"),
    ("confidence", "red", "X"), ("oracle", "green", "D"),
)  # fmt: skip


@styled
def plot_reliability(evaluation: Evaluation, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw the observed rate against the mean prediction, with the counts below.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, bin, low, high, n, n_accepted, mean_prediction, rate.
    """
    table = _reliability(evaluation, cell)
    curves = _smooth(evaluation, cell)
    predictors = table["predictor"].unique(maintain_order=True).to_list()
    columns, lines = max(1, len(predictors)), pick_lines(predictors)
    figure = new_figure(1.2 + 4.0 / columns)  # panels come out nearly square
    grid = figure.subplots(
        2, columns, squeeze=False, sharex=True, sharey="row",
        gridspec_kw={"height_ratios": [4, 1]},
    )  # fmt: skip
    for (upper, lower), predictor in zip(grid.T, predictors, strict=False):
        if predictor in curves:
            curve = curves[predictor]
            upper.plot(
                curve["prob"].to_numpy(), curve["rate"].to_numpy(), color=lines[predictor].color,
                linewidth=1.4,
            )  # fmt: skip
        _draw_reliability(upper, lower, table.filter(predictor=predictor), lines[predictor])
    grid[0][0].set_ylabel("observed rate")
    grid[1][0].set_ylabel("rows")
    figure.supxlabel("mean prediction in the bin", fontsize=9)
    return figure, table


@styled
def plot_labels(evaluation: Evaluation, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
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
def plot_scores(evaluation: Evaluation, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw how log-odds of predictors are spread over accepted and over rejected rows.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, low, high (log-odds; the outermost bins hold all beyond),
        n_accepted, n_rejected.
    """
    table = _scores(evaluation, cell)
    predictors = table["predictor"].unique(maintain_order=True).to_list()
    figure = new_figure(0.6 + 1.0 * max(1, len(predictors)))
    axes = figure.subplots(max(1, len(predictors)), 1, squeeze=False, sharex=True)[:, 0]
    for ax, predictor in zip(axes, predictors, strict=False):
        rows = table.filter(predictor=predictor)
        edges = [*rows["low"], rows["high"][-1]]
        for column, color, style in (
            ("n_accepted", "blue", "-"),
            ("n_rejected", "red", "--"),
        ):
            share = (rows[column] / rows[column].sum()).to_list()
            ax.stairs(share, edges, color=COLOURS[color], linestyle=style, linewidth=1.4,
                      label=column.removeprefix("n_"))  # fmt: skip
        ax.set_title(label(predictor).name, loc="left")
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
    axes[-1].set_xlabel("predicted log-odds of acceptance")
    add_legend(figure, axes[0])
    return figure, table


@styled
def plot_lengths(evaluation: Evaluation, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw observed against expected accepted drafts of a proposal, in ten bins of equal mass.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, bin, n_proposals, expected_accepted, observed_accepted,
        observed_accepted_low, observed_accepted_high.
    """
    rows = of_cell(evaluation.length_calibration, cell)
    known = [line for line in _SURVIVAL_LINES if line[0] in set(rows["predictor"])]
    parts = [
        rows.filter(predictor=predictor)
        .sort("bin")
        .with_columns(name=pl.lit(survival_label(predictor)))
        for predictor, _, _ in known
    ]
    table = pl.concat([rows.head(0).with_columns(name=pl.lit("")), *parts]).select(
        "predictor", "name", "bin", "n_proposals", "expected_accepted", "observed_accepted",
        "observed_accepted_low", "observed_accepted_high",
    )  # fmt: skip
    figure, axes = new_axes(3.2)
    K = cell.num_speculative_tokens
    axes.plot([0, K], [0, K], color=MUTED, linestyle="--", linewidth=1)
    for predictor, color, marker in known:
        own = table.filter(predictor=predictor)
        x, y = own["expected_accepted"].to_list(), own["observed_accepted"].to_list()
        axes.plot(x, y, color=COLOURS[color], marker=marker, label=own["name"][0])
        axes.vlines(x, own["observed_accepted_low"].to_list(),
                    own["observed_accepted_high"].to_list(), color=COLOURS[color],
                    linewidth=1)  # fmt: skip
    axes.set(xlim=(0, K), ylim=(0, K))
    axes.set_xlabel("expected accepted drafts per proposal")
    axes.set_ylabel("observed")
    add_legend(figure, axes)
    return figure, table


def survival_label(predictor: str) -> str:
    """Return the printed name of a survival predictor."""
    names = {
        "hybrid": "hybrid",
        "oracle": "lossless oracle",
        "per_position": "per-position rates",
    }
    return names.get(predictor) or f"product of {label(predictor).name.replace(', unfitted', '')}"


def _scores(evaluation: Evaluation, cell: CellKey) -> pl.DataFrame:
    rows = of_cell(evaluation.scores, cell)
    tables = [
        rows.filter(predictor=predictor).with_columns(name=pl.lit(label(predictor).name))
        for predictor in shown_reliability(evaluation)
    ]
    return pl.concat(tables).select("predictor", "name", "low", "high", "n_accepted", "n_rejected")


def _smooth(evaluation: Evaluation, cell: CellKey) -> dict[str, pl.DataFrame]:
    """Return the smooth curves of the shown predictors, cut where a bin would be too thin."""
    rows = of_cell(evaluation.smooth_curves, cell)
    sizes = of_cell(evaluation.reliability, cell).group_by("predictor").agg(pl.col("n").sum())
    near = pl.col("density") * pl.col("n") * SMOOTHING
    cut = rows.join(sizes, on="predictor", maintain_order="left").with_columns(
        rate=pl.when(near >= FEW).then("rate").otherwise(float("nan"))
    )
    shown = shown_reliability(evaluation)
    return {name: own for name in shown if len(own := cut.filter(predictor=name))}


def _draw_reliability(upper: Axes, lower: Axes, rows: pl.DataFrame, line: Line) -> None:
    from matplotlib.ticker import MaxNLocator

    color = line.color
    filled = rows.filter(pl.col("n") >= FEW)
    few = rows.filter(pl.col("n").is_between(1, FEW - 1))
    upper.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1)
    upper.plot(
        filled["mean_prediction"].to_list(), filled["rate"].to_list(), color=color, linestyle="",
        marker=line.marker,
    )  # fmt: skip
    upper.plot(
        few["mean_prediction"].to_list(), few["rate"].to_list(), color=color, linestyle="",
        marker=line.marker, markerfacecolor="none",
    )  # fmt: skip
    upper.set(xlim=(0, 1), ylim=(0, 1))
    upper.set_title(shorten(rows["name"][0], 20))
    width = (rows["high"] - rows["low"]).to_list()
    lower.bar(
        rows["low"].to_list(), rows["n"].to_list(), width, align="edge", color=color, linewidth=0
    )
    lower.yaxis.set_major_formatter(_thousands)
    lower.yaxis.set_major_locator(MaxNLocator(2))
    lower.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _thousands(value: float, _: Any) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def shown_reliability(evaluation: Evaluation) -> list[str]:
    """Return the predictors whose calibration is drawn: ours and one of a plugin."""
    return [*_RELIABILITY, *own_predictors(evaluation)[:1]]


def _reliability(evaluation: Evaluation, cell: CellKey) -> pl.DataFrame:
    rows = of_cell(evaluation.reliability, cell)
    tables = [
        rows.filter(predictor=predictor).with_columns(name=pl.lit(label(predictor).name))
        for predictor in shown_reliability(evaluation)
    ]
    return pl.concat(tables).select(
        "predictor", "name", "bin", "low", "high", "n", "n_accepted", "mean_prediction", "rate"
    )


def _spell_reliability(table: pl.DataFrame) -> str:
    parts = []
    for predictor in table["predictor"].unique(maintain_order=True):
        rows = table.filter(pl.col("n") > 0, predictor=predictor)
        gap = (pl.col("rate") - pl.col("mean_prediction")).abs() * pl.col("n")
        error = format_number(rows.select(gap.sum() / pl.col("n").sum()).item())
        parts.append(f"{rows['name'][0]}: the weighted mean distance from the diagonal is {error}")
    return "; ".join(parts) + "."


def _spell_labels(table: pl.DataFrame) -> str:
    accepted, rejected = table["n_accepted"].sum(), table["n_rejected"].sum()
    return (
        f"{format_number(accepted)} accepted rows above, {format_number(rejected)} rejected below."
    )


def _count_labels(table: pl.DataFrame, column: str) -> str:
    return format_number(table.filter(predictor=table["predictor"].first())[column].sum())


def _spell_scores(table: pl.DataFrame) -> str:
    parts = []
    for predictor in table["predictor"].unique(maintain_order=True):
        rows = table.filter(predictor=predictor)
        medians = [_median_bin(rows, column) for column in ("n_accepted", "n_rejected")]
        parts.append(f"{rows['name'][0]}: {medians[0]} accepted, {medians[1]} rejected")
    return "Bin of the median log-odds by label. " + "; ".join(parts) + "."


def _median_bin(rows: pl.DataFrame, column: str) -> str:
    counts = rows[column].to_numpy()
    if not counts.any():
        return UNDEFINED
    at = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))
    return f"{format_number(rows['low'][at], 1)} to {format_number(rows['high'][at], 1)}"


def _spell_lengths(table: pl.DataFrame) -> str:
    parts = []
    for predictor in table["predictor"].unique(maintain_order=True):
        rows = table.filter(predictor=predictor)
        ends = [
            f"{format_number(rows['expected_accepted'][at], 2)} expected, "
            f"{format_number(rows['observed_accepted'][at], 2)} observed"
            for at in (0, -1)
        ]
        parts.append(f"{rows['name'][0]}: lowest tenth {ends[0]}; highest {ends[1]}")
    return "; ".join(parts) + "."


DRAWINGS = (
    Drawing(
        "reliability",
        "Reliability",
        plot_reliability,
        lambda table: (
            f"n = {format_number(table.filter(predictor=table['predictor'][0])['n'].sum())}"
            " rows each; bars count rows per bin."
        ),
        _spell_reliability,
        "On the dashed diagonal, predicted and observed acceptance agree. Below it the predictor "
        "is overconfident, above it underconfident. The line shows the same data without bins. "
        f"Hollow points are bins of fewer than {FEW} rows and scatter widely.",
    ),
    Drawing(
        "labels",
        "Predictions by label",
        plot_labels,
        lambda table: f"n = {format_number(table['n'].sum())} rows.",
        _spell_labels,
        "The further the accepted rows lie to the right of the rejected ones, the higher is the "
        "AUC. In a calibrated bin at 0.9 the upper bar is nine times as long as the lower one.",
    ),
    Drawing(
        "scores",
        "Scores by label",
        plot_scores,
        lambda table: (
            f"n = {_count_labels(table, 'n_accepted')} accepted and "
            f"{_count_labels(table, 'n_rejected')} rejected rows in each panel; "
            "shares of each label, on a log-odds axis."
        ),
        _spell_scores,
        "The less the two outlines overlap, the better the predictor separates. For a calibrated "
        "predictor they cross at the log-odds of the overall rate. The outermost bins hold all "
        f"rows beyond ±{SCORE_LIMIT:g}.",
    ),
)
"""Figures of conditional calibration, in the report's order."""

LENGTHS = Drawing(
    "lengths",
    "Expected and observed accepted drafts",
    plot_lengths,
    lambda table: (
        f"n = {format_number(table.filter(predictor=table['predictor'][0])['n_proposals'].sum())}"
        " proposals for each predictor, split into ten equal groups; bars are 95 % by prompt."
    ),
    _spell_lengths,
    "On the diagonal, expected and observed accepted drafts agree. The wider the points spread, "
    "the more there is to gain by choosing which drafts to verify.",
)

SURVIVAL_DRAWINGS: tuple[Drawing, ...] = (LENGTHS,)
