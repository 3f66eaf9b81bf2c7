"""Results of replays: text tables and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from draftlab.reporting.tables import format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from draftlab.replaying import Replay

SUMMARY = (
    "estimator", "n", "log_loss", "regret", "ece", "auc", "refits", "refused", "overshoots",
    "diverged", "cold_start_labels", "slope",
)  # fmt: skip
"""Columns of the summary that are printed."""

_COLOURS = ("blue", "orange", "green", "purple", "red", "sky")
_POSITIONS = ("blue", "sky", "green", "orange", "red", "purple")


def print_replay(result: Replay, console: Console) -> None:
    """Print one table a run: every estimator, graded before it learnt each label."""
    for (run,), rows in result.summary.group_by("run", maintain_order=True):
        lines = [
            f"{rows['pair'][0]}, {rows['drafting'][0]} drafting, run {run}",
            describe_replay(result),
        ]
        for line in lines:
            console.print(line, markup=False, highlight=False)
        print_table(rows.select(SUMMARY), console)
    for note in result.notes:
        console.print(f"note: {note}", markup=False, highlight=False)


def describe_replay(result: Replay) -> str:
    """Return how the estimators were run, in one sentence."""
    s = result.settings
    default = "vLLM's default" if s["refit_interval"] == 100 else "not vLLM's default of 100"
    return (
        f"feature {s['feature']}, refit every {s['refit_interval']} steps ({default}), damping "
        f"{s['damping']:g}, ridge {s['ridge']:g}; each draft is predicted before its label is "
        "learnt; regret is log-loss above the offline fit on the same rows"
    )


def print_table(table: pl.DataFrame, console: Console) -> None:
    """Print a frame: text left, numbers right with four decimals."""
    from rich.table import Table

    printed = Table(box=None, pad_edge=False)
    for name, dtype in table.schema.items():
        title = name.replace("_", " ")
        printed.add_column(title, justify="right" if dtype.is_numeric() else "left")
    for row in table.iter_rows():
        printed.add_row(*(_text(value) for value in row))
    console.print(printed)


@styled
def plot_trajectory(replay: Replay) -> tuple[Figure, pl.DataFrame]:
    """Draw slope and intercepts of vLLM's rule after each refit; overshoots are marked.

    Returns
    -------
    Figure, DataFrame
        Table: run, step, position, slope, intercept, overshoot.
    """
    first = replay.coefficients["run"][0]
    rows = replay.coefficients.filter(run=first, estimator="vllm")
    table = rows.with_columns(step=pl.col("step").fill_null(0)).select(
        "run", "step", "position", "slope", "intercept", "overshoot"
    )
    figure = new_figure(3.4)
    upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1, 2]})
    at_first = table.filter(position=0)
    upper.step(
        at_first["step"].to_list(), at_first["slope"].to_list(), where="post", color=COLOURS["blue"]
    )
    upper.set_ylabel("slope")
    for k, colour in zip(table["position"].unique().sort(), _cycle(_POSITIONS), strict=False):
        own = table.filter(position=k)
        lower.step(
            own["step"].to_list(), own["intercept"].to_list(), where="post",
            color=COLOURS[colour], label=f"position {k}", linewidth=1.2,
        )  # fmt: skip
    for step in at_first.filter(pl.col("overshoot"))["step"]:
        lower.axvline(step, color=COLOURS["red"], linestyle=":", linewidth=1)
    lower.set_ylabel("intercept, nats")
    lower.set_xlabel("engine step")
    add_legend(figure, lower)
    return figure, table


@styled
def plot_rolling(replay: Replay) -> tuple[Figure, pl.DataFrame]:
    """Draw log-loss by window for every estimator, above that of the offline fit.

    Returns
    -------
    Figure, DataFrame
        Table: run, estimator, first_step, n, log_loss, ece, regret.
    """
    first = replay.metrics["run"][0]
    rows = replay.metrics.filter(pl.col("window").is_not_null(), run=first)
    table = rows.select("run", "estimator", "first_step", "n", "log_loss", "ece", "regret")
    figure, axes = new_axes(2.8)
    names = [name for name in table["estimator"].unique(maintain_order=True) if name != "offline"]
    column = "log_loss" if table["regret"].null_count() else "regret"
    for name, colour in zip(names, _cycle(_COLOURS), strict=False):
        own = table.filter(estimator=name)
        axes.plot(own["first_step"].to_list(), own[column].to_list(), color=COLOURS[colour],
                  label=name)  # fmt: skip
    if column == "regret":
        axes.axhline(0, color=MUTED, linewidth=0.8)
        # The floor is far above the rest; their differences are what the figure is for.
        axes.set_yscale("symlog", linthresh=0.001)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel("log-loss above offline, nats")
    else:
        axes.set_ylabel("log-loss, nats")
    axes.set_xlabel("first engine step of the window")
    add_legend(figure, axes)
    return figure, table


def _cycle(colours: tuple[str, ...]) -> tuple[str, ...]:
    return colours * 4


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else format_number(value)


def _trajectory_alt(table: pl.DataFrame) -> str:
    slopes = table["slope"]
    marked = table.filter(pl.col("overshoot"))["step"].n_unique()
    return (
        f"Slope between {format_number(slopes.min())} and {format_number(slopes.max())} over "
        f"{table['step'].n_unique()} sets of coefficients; {marked} refits overshot."
    )


def _rolling_alt(table: pl.DataFrame) -> str:
    means = table.group_by("estimator", maintain_order=True).agg(
        (pl.col("log_loss") * pl.col("n")).sum() / pl.col("n").sum()
    )
    return "Log-loss: " + ", ".join(f"{name} {format_number(v)}" for name, v in means.rows()) + "."


REPLAY_DRAWINGS: tuple[Drawing, ...] = (
    Drawing(
        "trajectory",
        "Coefficients of vLLM's rule",
        plot_trajectory,
        lambda table: f"Run {table['run'][0]}, one step in the lines for each refit.",
        _trajectory_alt,
        "Flat lines: the rule has settled. A red dotted line marks a refit that moved a "
        "coefficient by more than 4 nats, further than the data reach.",
    ),
    Drawing(
        "rolling",
        "Regret over time",
        plot_rolling,
        lambda table: f"{int(table.filter(estimator=table['estimator'][0])['n'].sum()):,} drafts.",
        _rolling_alt,
        "Distance from the best fixed fit in each window, on a scale that is linear up to 0.001 "
        "nats and logarithmic beyond. At zero an online rule predicts as well as the offline fit.",
    ),
)
"""Figures of the report's replay section, in order."""
