"""Figures by position and workload. Each function returns the figure and the table it draws."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from draftlab.predictors.baselines import ADOPTED
from draftlab.reporting.figures.heat_maps import Form, Shading, Tile, fill_heat_map
from draftlab.reporting.figures.layout import LEAST_SIZE
from draftlab.reporting.figures.shorten import shorten_all
from draftlab.reporting.figures.style import (
    COLOURS,
    INK,
    MUTED,
    Drawing,
    add_legend,
    new_axes,
    styled,
)
from draftlab.reporting.labels import MAX_OWN, format_number, of_cell, own_predictors
from draftlab.reporting.tables import by_position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlab.reporting.labels import CellKey
    from draftlab.studies.evaluate import Evaluation


class Line(NamedTuple):
    """How a predictor is drawn."""

    color: str
    style: str
    marker: str


LINES = {
    "logit_qmax": Line(COLOURS["blue"], "-", "o"),
    "log_qmax": Line(COLOURS["orange"], "-", "s"),
    "top2_margin": Line(COLOURS["green"], "-", "^"),
    "entropy": Line(COLOURS["orange"], "-", "D"),
    "logit_q_sampled": Line(COLOURS["purple"], "--", "v"),
    "qmax": Line(COLOURS["sky"], "-", "P"),
    "confidence": Line(COLOURS["red"], "-", "X"),
    "per_position": Line(MUTED, "--", ""),
    "overlap": Line(MUTED, ":", ""),
}
OWN_LINES = (Line(INK, "-.", "*"), Line(INK, ":", "h"), Line(INK, "--", "p"))
"""Predictors of a plugin, in their order."""
LOSS_BY_POSITION = (
    "logit_qmax", "log_qmax", "qmax", "logit_q_sampled", "confidence", "per_position", "overlap",
)  # fmt: skip


@styled
def plot_auc_by_position(evaluation: Evaluation, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw AUC at each position (the published F1).

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, position, n, auc, auc_low, auc_high.
    """
    table = by_position(evaluation, cell).select(
        "predictor", "name", "position", "n", "auc", "auc_low", "auc_high"
    )
    figure, axes = new_axes(3.0)
    _draw_lines(axes, table, "auc")
    axes.set_ylabel("AUC")
    _position_axis(axes, cell)
    add_legend(figure, axes)
    return figure, table


@styled
def plot_log_loss_by_position(evaluation: Evaluation, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw log-loss at each position.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, position, n, log_loss (nats), log_loss_low, log_loss_high.
    """
    wanted = [*LOSS_BY_POSITION, *own_predictors(evaluation)[:MAX_OWN]]
    table = by_position(evaluation, cell, wanted).select(
        "predictor", "name", "position", "n", "log_loss", "log_loss_low", "log_loss_high"
    )
    figure, axes = new_axes(3.0)
    _draw_lines(axes, table, "log_loss")
    axes.set_ylabel("log-loss, nats")
    _position_axis(axes, cell)
    add_legend(figure, axes)
    return figure, table


@styled
def plot_acceptance(evaluation: Evaluation, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
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
def plot_workloads(evaluation: Evaluation, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw conditional acceptance by workload and position, the easiest workload on top.

    Returns
    -------
    Figure, DataFrame
        Table: dataset, position, n_observed, n_accepted, conditional_rate.
    """
    table = _workloads(evaluation, cell).select(
        "dataset", "position", "n_observed", "n_accepted", "conditional_rate"
    )
    return _draw_tiles(table, "conditional_rate", cell), table


@styled
def plot_workload_survival(evaluation: Evaluation, cell: CellKey) -> tuple[Figure, pl.DataFrame]:
    """Draw survival by workload and position, in the same order of workloads.

    Returns
    -------
    Figure, DataFrame
        Table: dataset, position, n_admitted, n_accepted, survival_rate.
    """
    table = _workloads(evaluation, cell).select(
        "dataset", "position", "n_admitted", "n_accepted", "survival_rate"
    )
    return _draw_tiles(table, "survival_rate", cell), table


_RATES = Shading("sky", 1.0, "share accepted")
_RATE_FORMS = (
    Form(9, 3),
    Form(LEAST_SIZE, 3),
    Form(LEAST_SIZE, 2),
    Form(LEAST_SIZE, 0, 100, ", tiles in %"),
)


def _draw_tiles(table: pl.DataFrame, column: str, cell: CellKey) -> Figure:
    """Draw a tile for each workload and position, its value in it."""
    datasets = table["dataset"].unique(maintain_order=True).to_list()
    K = cell.num_speculative_tokens
    figure, axes = new_axes(4.0)
    axes.set_xlabel("draft position")
    tiles = [
        Tile(position, datasets.index(dataset), rate)
        for dataset, position, rate in table.select("dataset", "position", column).iter_rows()
    ]
    names = shorten_all(datasets, 24 if K <= 8 else 16)
    positions = [str(position) for position in range(K)]
    if tiles:
        fill_heat_map(figure, axes, tiles, names, positions, _RATES, _RATE_FORMS)
    return figure


def _position_axis(axes: Axes, cell: CellKey) -> None:
    axes.set_xlabel("draft position")
    axes.set_xticks(range(cell.num_speculative_tokens))


def _draw_lines(axes: Axes, table: pl.DataFrame, column: str) -> None:
    names = table["predictor"].unique(maintain_order=True).to_list()
    lines = pick_lines(names)
    for predictor in names:
        rows = table.filter(predictor=predictor)
        line = lines[predictor]
        main = predictor == ADOPTED
        axes.plot(
            rows["position"].to_list(), rows[column].to_list(), color=line.color,
            linestyle=line.style, marker=line.marker, linewidth=2.6 if main else 1.4,
            zorder=3 if main else 2, label=rows["name"][0],
        )  # fmt: skip
        axes.fill_between(
            rows["position"].to_list(), rows[f"{column}_low"].to_numpy(),
            rows[f"{column}_high"].to_numpy(), color=line.color, alpha=0.12,
            linewidth=0,
        )  # fmt: skip


def pick_lines(predictors: Sequence[str]) -> dict[str, Line]:
    """Return how each predictor is drawn: ours always alike, others in black."""
    others = itertools.cycle(OWN_LINES)
    return {name: LINES.get(name) or next(others) for name in predictors}


def _workloads(evaluation: Evaluation, cell: CellKey) -> pl.DataFrame:
    """Return the acceptance of each workload, the highest overall rate first."""
    rows = of_cell(evaluation.acceptance, cell).filter(pl.col("dataset").is_not_null())
    overall = pl.col("n_accepted").sum().over("dataset") / pl.col("n_observed").sum().over(
        "dataset"
    )
    return (
        rows.with_columns(overall=overall)
        .sort("overall", "dataset", "position", descending=[True, False, False])
        .drop("overall")
    )


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


def _spell_acceptance(table: pl.DataFrame) -> str:
    conditional = ", ".join(format_number(v, 3) for v in table["conditional_rate"])
    survival = ", ".join(format_number(v, 3) for v in table["survival_rate"])
    return f"By position from 0: conditional {conditional}; survival {survival}."


def _spell_workloads(table: pl.DataFrame, column: str) -> str:
    parts = []
    for dataset in table["dataset"].unique(maintain_order=True):
        values = table.filter(dataset=dataset)[column]
        parts.append(f"{dataset} {', '.join(format_number(v, 3) for v in values)}")
    return f"By position from 0: {'; '.join(parts)}."


def _acceptance_caption(table: pl.DataFrame) -> str:
    observed = ", ".join(format_number(n) for n in table["n_observed"])
    admitted = ", ".join(format_number(n) for n in table["n_admitted"])
    return f"n = {observed} observed and {admitted} sent drafts, by position from 0."


DRAWINGS = (
    Drawing(
        "auc-by-position",
        "AUC by position",
        plot_auc_by_position,
        _count_by_position,
        lambda table: _spell_lines(table, "auc"),
        "A higher AUC separates accepted from rejected drafts better; 0.5 is chance. Bands are 95 "
        "% by prompt. n falls to the right, because few proposals get that far. log(qmax), "
        "-log(-log(qmax)), raw qmax and logit(qmax) rank the rows of one position alike and share "
        "one line.",
    ),
    Drawing(
        "log-loss-by-position",
        "Log-loss by position",
        plot_log_loss_by_position,
        _count_by_position,
        lambda table: _spell_lines(table, "log_loss"),
        "Lower is better. The per-position rate knows nothing about the draft and overlap knows p; "
        "a lossless predictor can only move between these two lines.",
    ),
    Drawing(
        "acceptance-by-position",
        "Acceptance by position",
        plot_acceptance,
        _acceptance_caption,
        _spell_acceptance,
        "Conditional acceptance is the accepted share of the drafts that reached the position. "
        "Survival is the accepted share of all that were sent, so it can only fall.",
    ),
    Drawing(
        "acceptance-by-workload",
        "Conditional acceptance by workload",
        plot_workloads,
        lambda table: f"n = {format_number(table['n_observed'].sum())} observed drafts.",
        lambda table: _spell_workloads(table, "conditional_rate"),
        "A stronger colour means that more drafts are accepted. If colours differ within a column, "
        "one common intercept cannot fit all workloads.",
    ),
    Drawing(
        "survival-by-workload",
        "Survival by workload",
        plot_workload_survival,
        lambda table: f"n = {format_number(table['n_admitted'].sum())} drafts that were sent.",
        lambda table: _spell_workloads(table, "survival_rate"),
        "Each tile is the share of proposals that survive up to the position; it can only fall "
        "along a row. Drafts after a stop token are left out. Deep positions of workloads that "
        "stop often are therefore slightly underestimated.",
    ),
)
"""Figures of metrics and acceptance, in the report's order."""
