"""Figures of a simulation: throughput against interactivity (F2), gains by concurrency (T6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from draftlab.reporting.figures.style import (
    COLOURS,
    MUTED,
    Drawing,
    add_legend,
    new_axes,
    styled,
)
from draftlab.reporting.labels import format_number, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlab.reporting.labels import CellKey
    from draftlab.studies.simulate.simulate import Simulation

_ADAPTIVE = (
    ("logit_qmax", "blue", "o"), ("confidence", "red", "X"), ("hybrid", "purple", "v"),
    ("qmax", "sky", "P"), ("oracle", "green", "D"),
)  # fmt: skip


@styled
def plot_frontier(simulation: Simulation, cell: CellKey, cost: str) -> tuple[Figure, pl.DataFrame]:
    """Draw throughput against what one request sees, over concurrency (the published F2).

    Returns
    -------
    Figure, DataFrame
        Table: name, policy, predictor, verify_length, concurrency, tokens_per_second,
        tokens_per_second_per_request, on_frontier; all workloads mixed.
    """
    from matplotlib.ticker import LogLocator

    rows = of_place(simulation.frontier, cell, cost).filter(pl.col("dataset").is_null())
    rows = rows.filter(pl.col("policy").is_in(["fixed", "av"]))
    names = [policy_name(*row) for row in rows.select(*_POLICY).iter_rows()]
    table = rows.with_columns(name=pl.Series(names, dtype=pl.String)).select(
        "name", *_POLICY, "concurrency", "tokens_per_second", "tokens_per_second_per_request",
        "on_frontier",
    )  # fmt: skip
    figure, axes = new_axes(3.6)
    K = cell.num_speculative_tokens
    for length in range(K + 1):
        own = table.filter(policy="fixed", verify_length=length)
        _draw_speeds(axes, own, MUTED, "", width=0.6 + 1.2 * length / max(K, 1), style="--")
    for predictor, color, marker in _ADAPTIVE:
        own = table.filter(policy="av", predictor=predictor)
        _draw_speeds(axes, own, COLOURS[color], marker, width=1.6, style="-")
    if len(table):
        axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_minor_formatter(lambda *_: "")
    axes.set_xlabel("tokens per second of one request")
    axes.set_ylabel("tokens per second of all")
    add_legend(figure, axes)
    return figure, table


def _draw_speeds(
    axes: Axes, rows: pl.DataFrame, color: str, marker: str, *, width: float, style: str
) -> None:
    if rows.is_empty():
        return
    rows = rows.sort("concurrency")
    axes.plot(
        rows["tokens_per_second_per_request"].to_list(), rows["tokens_per_second"].to_list(),
        color=color, marker=marker, linestyle=style, linewidth=width, label=rows["name"][0],
    )  # fmt: skip


@styled
def plot_gains(simulation: Simulation, cell: CellKey, cost: str) -> tuple[Figure, pl.DataFrame]:
    """Draw the gain of adaptive verification over verifying everything, by concurrency.

    Returns
    -------
    Figure, DataFrame
        Table: name, predictor, concurrency, gain (a share), gain_low, gain_high,
        best_fixed_length, gain_over_best_fixed; all workloads mixed.
    """
    rows = of_place(simulation.gains, cell, cost).filter(pl.col("dataset").is_null(), policy="av")
    names = [policy_name("av", predictor, None) for predictor in rows["predictor"]]
    table = rows.with_columns(name=pl.Series(names, dtype=pl.String)).select(
        "name", "predictor", "concurrency", "gain", "gain_low", "gain_high",
        "best_fixed_length", "gain_over_best_fixed",
    )  # fmt: skip
    figure, axes = new_axes(2.8)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    for predictor, color, marker in _ADAPTIVE:
        own = table.filter(predictor=predictor).sort("concurrency")
        if own.is_empty():
            continue
        x = own["concurrency"].to_list()
        axes.plot(x, own["gain"].to_list(), color=COLOURS[color], marker=marker,
                  label=own["name"][0])  # fmt: skip
        axes.vlines(x, own["gain_low"].to_list(), own["gain_high"].to_list(),
                    color=COLOURS[color], linewidth=1)  # fmt: skip
    if len(table):
        axes.set_xscale("log", base=2)
        axes.set_xticks(table["concurrency"].unique().sort().to_list())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set_xlabel("requests at once")
    axes.set_ylabel("gain of tokens per second")
    add_legend(figure, axes)
    return figure, table


def of_place(frame: pl.DataFrame, cell: CellKey, cost: str) -> pl.DataFrame:
    """Return the rows of one cell and one cost table."""
    return frame.filter(run=cell.run, pair=cell.pair, drafting=cell.drafting, cost=cost)


def policy_name(policy: str, predictor: str | None, verify_length: int | None) -> str:
    """Return the printed name of a policy."""
    if policy == "eagle2":
        return f"EAGLE-2, {verify_length} nodes"
    if verify_length is not None:
        return "plain decoding" if verify_length == 0 else f"fixed {verify_length}"
    names = {"oracle": "lossless oracle", "hybrid": "hybrid"}
    shown = names.get(str(predictor)) or (label(predictor).name if predictor else "")
    return f"AV, {shown}" if policy == "av" else f"{policy} {shown}".strip()


_POLICY = ("policy", "predictor", "verify_length")


def _spell_frontier(table: pl.DataFrame) -> str:
    parts = []
    for concurrency in table["concurrency"].unique().sort():
        best = table.filter(concurrency=concurrency).sort("tokens_per_second", descending=True)
        parts.append(
            f"{concurrency} requests: {best['name'][0]} is fastest with "
            f"{format_number(best['tokens_per_second'][0], 0)} tokens per second"
        )
    return "; ".join(parts) + "."


def _spell_gains(table: pl.DataFrame) -> str:
    parts = []
    for name in table["name"].unique(maintain_order=True):
        own = table.filter(name=name)
        values = ", ".join(
            f"{format_number(100 * gain, 1)} % at {concurrency}"
            for concurrency, gain in own.select("concurrency", "gain").iter_rows()
        )
        parts.append(f"{name}: {values}")
    return "; ".join(parts) + "."


def _points(table: pl.DataFrame) -> str:
    sizes = ", ".join(str(value) for value in table["concurrency"].unique().sort())
    return f"n = {len(table)} points with {sizes} requests at once, all workloads mixed."


FRONTIER = Drawing(
    "frontier",
    "Throughput against interactivity",
    plot_frontier,
    _points,
    _spell_frontier,
    "Up and to the right is better. Each line is a policy, each point a number of requests at "
    "once. A policy is worth using where its line lies outside those of all fixed lengths (dashed; "
    "a thicker line verifies more drafts).",
)
GAINS = Drawing(
    "gains",
    "Gain of adaptive verification",
    plot_gains,
    _points,
    _spell_gains,
    "Above zero, trimming is faster than verifying every draft. Bars are 95 % by prompt, paired. "
    "The oracle knows the target and marks the ceiling. It can lose at small batches, because vLLM "
    "sizes each step from the previous step's confidences.",
)

DRAWINGS: tuple[Drawing, ...] = (FRONTIER, GAINS)
