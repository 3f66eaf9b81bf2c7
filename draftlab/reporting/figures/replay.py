"""Figures of replays and drift scenarios."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from draftlab.reporting.figures.style import (
    COLOURS,
    INK,
    MUTED,
    Drawing,
    add_legend,
    new_axes,
    new_figure,
    styled,
)
from draftlab.reporting.labels import format_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlab.studies.replay.drift import Drift
    from draftlab.studies.replay.replay import Replay


_COLOURS = ("blue", "orange", "green", "purple", "red", "sky")
_POSITIONS = ("blue", "sky", "green", "orange", "red", "purple")


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
    _draw_trajectory(figure, table)
    return figure, table


def _draw_trajectory(figure: Figure, table: pl.DataFrame) -> tuple[Axes, Axes]:
    """Draw the slope above the intercepts; return both axes."""
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
    return upper, lower


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


@styled
def plot_drift_trajectory(drift: Drift) -> tuple[Figure, pl.DataFrame]:
    """Draw slope and intercepts of one rule over a scenario, with the switches marked.

    Returns
    -------
    Figure, DataFrame
        Table: run, estimator, step, position, slope, intercept, overshoot; of vLLM's rule, or of
        the first that was replayed.
    """
    names = drift.coefficients["estimator"].unique(maintain_order=True).to_list()
    name = "vllm" if "vllm" in names else names[0]
    rows = drift.coefficients.filter(estimator=name)
    table = rows.with_columns(step=pl.col("step").fill_null(0)).select(
        "run", "estimator", "step", "position", "slope", "intercept", "overshoot"
    )
    figure = new_figure(3.6)
    upper, lower = _draw_trajectory(figure, table)
    for axes in (upper, lower):
        if np.abs(axes.dataLim.intervaly).max() > 20:  # the rule left the data: keep both in sight
            _set_wide_scale(axes, 1.0)
        _mark_switches(axes, drift)
    _name_segments(upper, drift)
    return figure, table


def plot_drift_loss(drift: Drift) -> tuple[Figure, pl.DataFrame]:
    """Draw log-loss by window of every estimator over a scenario, with the switches marked.

    Returns
    -------
    Figure, DataFrame
        Table: run, estimator, first_step, n, log_loss, ece, ece_null; the offline fit is one fit
        to all of the scenario.
    """
    return _plot_drift(drift, "log_loss", "log-loss, nats")


def plot_drift_ece(drift: Drift) -> tuple[Figure, pl.DataFrame]:
    """Draw ECE by window of every estimator over a scenario, with the switches marked.

    Returns
    -------
    Figure, DataFrame
        As of `plot_drift_loss`.
    """
    return _plot_drift(drift, "ece", "ECE")


@styled
def _plot_drift(drift: Drift, column: str, label: str) -> tuple[Figure, pl.DataFrame]:
    # The last verdict comes one step behind the scenario, in a window of its own.
    ends = pl.col("first_step") + drift.settings["window"]
    rows = drift.metrics.filter(ends <= sum(segment.steps for segment in drift.scenario))
    table = rows.select("run", "estimator", "first_step", "n", "log_loss", "ece", "ece_null")
    figure, axes = new_axes(3.0)
    names = [name for name in table["estimator"].unique(maintain_order=True) if name != "offline"]
    for index, (name, colour) in enumerate(zip(names, _cycle(_COLOURS), strict=False)):
        own = table.filter(estimator=name)
        axes.plot(own["first_step"].to_list(), own[column].to_list(), color=COLOURS[colour],
                  label=name, linewidth=1.2, zorder=3 - index / len(names))  # fmt: skip
    offline = table.filter(estimator="offline")
    if len(offline):
        axes.plot(offline["first_step"].to_list(), offline[column].to_list(), color=MUTED,
                  label="offline", linewidth=0.9, linestyle="--")  # fmt: skip
    if axes.dataLim.y1 > 5 * float(table[column].median() or np.inf):  # type: ignore[arg-type]
        _set_wide_scale(axes, 0.1)
    axes.set_ylabel(label)
    axes.set_xlabel("first engine step of the window")
    _mark_switches(axes, drift)
    _name_segments(axes, drift)
    add_legend(figure, axes)
    return figure, table


def _set_wide_scale(axes: Axes, linear: float) -> None:
    """Make the vertical axis logarithmic outside +-``linear``, with few ticks."""
    from matplotlib.ticker import SymmetricalLogLocator

    low, high = (float(value) for value in axes.dataLim.intervaly)
    axes.set_yscale("symlog", linthresh=linear)
    axes.set_ylim(3 * min(low, 0.0), 3 * max(high, linear))
    locator = SymmetricalLogLocator(base=10, linthresh=linear)
    locator.set_params(numticks=5)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _mark_switches(axes: Axes, drift: Drift) -> None:
    for step, _ in drift.segments()[1:]:
        axes.axvline(step, color=INK, linestyle="--", linewidth=0.8)


def _name_segments(axes: Axes, drift: Drift) -> None:
    """Write the traffic of each segment above its part of the axes; numbers where it is long."""
    segments = drift.segments()
    room = 60 // len(segments)
    for index, (step, name) in enumerate(segments, start=1):
        axes.annotate(
            name if len(name) <= room else str(index), (step, 1), (2, 2), fontsize=8,
            xycoords=("data", "axes fraction"), textcoords="offset points", color=INK,
        )  # fmt: skip


def _cycle(colours: tuple[str, ...]) -> tuple[str, ...]:
    return colours * 4


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
        lambda table: f"Run {table['run'][0]}. The lines change at each refit.",
        _trajectory_alt,
        "Where the lines are flat, the estimator has settled. A red dotted line marks a refit that "
        "moved a coefficient by more than 4 nats, beyond the range of the data.",
    ),
    Drawing(
        "rolling",
        "Regret over time",
        plot_rolling,
        lambda table: f"{int(table.filter(estimator=table['estimator'][0])['n'].sum()):,} drafts.",
        _rolling_alt,
        "Regret is the log-loss above that of the offline fit in the same window. At zero an "
        "online estimator predicts as well as that fit. The scale is linear up to 0.001 nats and "
        "logarithmic beyond.",
    ),
)
"""Figures of the report's replay section, in order."""


def _drift_alt(column: str) -> Callable[[pl.DataFrame], str]:
    def alt(table: pl.DataFrame) -> str:
        worst = table.group_by("estimator", maintain_order=True).agg(
            mean=(pl.col(column) * pl.col("n")).sum() / pl.col("n").sum(),
            worst=pl.col(column).max(),
        )
        each = (
            f"{name} {format_number(mean)}, at worst {format_number(high)}"
            for name, mean, high in worst.rows()
        )
        return "Mean over the scenario and worst window: " + "; ".join(each) + "."

    return alt


def _drift_caption(table: pl.DataFrame) -> str:
    first = table.filter(estimator=table["estimator"][0])
    return (
        f"{int(first['n'].sum()):,} drafts of run {table['run'][0]} in another order. A workload "
        "that runs out starts again."
    )


_SWITCHES = "At a dashed line the traffic changes to the workload named above it. "
DRIFT_DRAWINGS: tuple[Drawing, ...] = (
    Drawing(
        "drift-trajectory",
        "Coefficients over a change of traffic",
        plot_drift_trajectory,
        lambda table: f"Estimator {table['estimator'][0]}. The lines change at each refit.",
        _trajectory_alt,
        _SWITCHES + "The estimator follows from its next refit on. A red dotted line marks a refit "
        "that moved a coefficient by more than 4 nats, beyond the range of the data. An axis with "
        "values beyond 20 is logarithmic outside -1 to 1.",
    ),
    Drawing(
        "drift-loss",
        "Log-loss over a change of traffic",
        plot_drift_loss,
        _drift_caption,
        _drift_alt("log_loss"),
        _SWITCHES
        + "Lower is better, but some workloads are easier than others. Where lines coincide, the "
        "first in the legend is on top. The grey line is one fit to the whole scenario; an "
        "estimator below it gains by following the traffic.",
    ),
    Drawing(
        "drift-ece",
        "ECE over a change of traffic",
        plot_drift_ece,
        _drift_caption,
        _drift_alt("ece"),
        _SWITCHES
        + "A peak after a switch means that the estimator still trusts its old fit. Small "
        "windows show an ECE above zero even for a perfectly calibrated estimator.",
    ),
)
"""Figures of the report's drift section, in order; each takes a `Drift`."""
