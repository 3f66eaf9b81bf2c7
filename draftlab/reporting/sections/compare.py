"""The report of two logs side by side: first what makes them incomparable, then differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab.reporting.content import FORMAT_VERSION, date_of
from draftlab.reporting.figures.style import COLOURS, MUTED, Drawing, new_figure, styled
from draftlab.reporting.sections import appendix, blocks
from draftlab.reporting.sections.blocks import Block, Column
from draftlab.reporting.tables import format_number, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from draftlab.log.reader import DraftLog
    from draftlab.studies.compare import Comparison

_DRAWN = (("auc", "AUC", "blue"), ("log_loss", "log-loss, nats", "orange"))


def build_comparison(
    a: DraftLog, b: DraftLog, comparison: Comparison
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of report.json for two logs, and its figures as SVG by id."""
    commands = [*dict.fromkeys(appendix.collected(a) + appendix.collected(b)), _command(a, b)]
    sections = [
        setup(comparison),
        predictors(comparison),
        acceptance(comparison),
        blocks.section("notes", "Notes", blocks.items(comparison.notes)),
        appendix.reproduce(commands, comparison.provenance),
    ]
    sections = [part for part in sections if part["blocks"]]
    svgs = blocks.take_svgs(sections)
    content = {
        "report": FORMAT_VERSION,
        "title": _title(a, b),
        "lede": "What differs between a and b, and how sure that is; every difference is a - b.",
        "facts": [*(_fact(name, log) for name, log in (("a", a), ("b", b)))],
        "date": max(date_of(a), date_of(b)),
        "cells": [],
        "settings": comparison.settings,
        "source": None,
        "commands": commands,
        "provenance": comparison.provenance,
        "sections": sections,
    }
    return blocks.strict(content), svgs


def _title(a: DraftLog, b: DraftLog) -> str:
    """Name what differs: the pairs, or the runs of one pair."""
    pairs = [", ".join(dict.fromkeys(run.pair for run in log.runs)) for log in (a, b)]
    if pairs[0] != pairs[1]:
        return f"Side by side: {pairs[0]} and {pairs[1]}"
    runs = [", ".join(run.name for run in log.runs) for log in (a, b)]
    return f"Side by side: {pairs[0]}, {runs[0]} and {runs[1]}"


def setup(comparison: Comparison) -> Block:
    """Return what makes the two incomparable, before any number."""
    table = comparison.setup
    differing = table.filter("differs")
    same_prompts = differing.filter(pl.col("setting") != "prompts")
    if same_prompts.is_empty():
        said = blocks.text("Nothing that is recorded makes the two incomparable.")
        reasons: list[Block] = [said]
    else:
        names = ", ".join(same_prompts["setting"])
        reasons = [
            blocks.text(f"The two differ in {names}.", "warning"),
            *blocks.items(
                f"{row['setting']}: {row['a']} against {row['b']}: {row['consequence']}"
                for row in same_prompts.iter_rows(named=True)
            ),
        ]
    prompts = table.filter(setting="prompts").row(0, named=True)
    reasons.append(
        blocks.text(f"Prompts: {prompts['a']} in a, {prompts['b']} in b, {prompts['consequence']}.")
    )
    shown = table.select("setting", "a", "b", "differs")
    return blocks.section(
        "setup",
        "What makes them incomparable",
        [*reasons, *blocks.table("setup-table", shown, "How a and b were recorded.")],
    )


def predictors(comparison: Comparison) -> Block:
    """Return the grades of each predictor in both logs, and their difference."""
    parts: list[Block] = blocks.draw(DIFFERENCES, "predictors", comparison)
    named = _named(comparison.predictors)
    for metric, title in (
        ("auc", "AUC"),
        ("log_loss", "Log-loss, nats"),
        ("brier", "Brier"),
        ("mean_prediction", "Mean prediction"),
    ):
        rows = named.filter(metric=metric)
        parts += blocks.table(f"predictors-{metric}", rows, f"{title}: {_how(rows)}.", _COMPARED)
    return blocks.section("predictors", "Predictors", parts)


def acceptance(comparison: Comparison) -> Block:
    """Return acceptance lengths and conditional acceptance, never a rate across K."""
    rows = comparison.acceptance
    lengths = rows.filter(measure="acceptance_length").with_columns(
        pl.col("dataset").fill_null("all")
    )
    rates = rows.filter(measure="conditional").with_columns(
        pl.col("position").cast(pl.String).fill_null("all")
    )
    parts = [
        *blocks.table(
            "acceptance-lengths",
            lengths,
            f"Acceptance length, tokens per verification: {_how(lengths)}.",
            [Column("dataset", "workload"), *_COMPARED[1:]],
        ),
        *blocks.table(
            "acceptance-rates",
            rates,
            f"Conditional acceptance by position: {_how(rates)}.",
            [Column("position", "position"), *_COMPARED[1:]],
        ),
    ]
    if not rates["comparable"].all():
        parts.append(
            blocks.text(
                "K differs: the rate over all positions is not compared, as it falls with K "
                "whatever the drafter does.",
                "warning",
            )
        )
    return blocks.section("acceptance", "Acceptance", parts)


_COMPARED = [
    Column("name", "predictor"),
    Column("a", "a"),
    Column("b", "b"),
    Column("difference", "a - b", 4, "low", "high", signed=True),
    Column("distinguishable", "distinguishable"),
    Column("n_a", "n of a"),
    Column("n_b", "n of b"),
    Column("n_prompts", "prompts"),
]


def _named(table: pl.DataFrame) -> pl.DataFrame:
    names = [label(predictor).name for predictor in table["predictor"]]
    return table.with_columns(name=pl.Series(names, dtype=pl.String))


def _how(rows: pl.DataFrame) -> str:
    way = "paired by prompt" if rows["paired"].all() else "not paired"
    return f"difference with 95 % by prompt, {way}"


def _fact(name: str, log: DraftLog) -> list[str]:
    pairs = ", ".join(dict.fromkeys(run.pair for run in log.runs))
    Ks = ", ".join(dict.fromkeys(str(r.metadata["num_speculative_tokens"]) for r in log.runs))
    return [f"Log {name}", f"{pairs}, K = {Ks}: {', '.join(run.name for run in log.runs)}"]


def _command(a: DraftLog, b: DraftLog) -> str:
    first, second = (" ".join(appendix.printed_paths(log)) for log in (a, b))
    others = " ".join(f"--compare {path}" for path in second.split())
    return f"draftlab report {first} {others} --out report"


@styled
def plot_differences(comparison: Comparison) -> tuple[Figure, pl.DataFrame]:
    """Draw a - b of AUC and log-loss for each predictor.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, metric, a, b, difference, low, high, n_prompts.
    """
    rows = _named(comparison.predictors).filter(
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
        f"n = {format_number(table['n_prompts'].max())} prompts; bars are 95 % by prompt."
    ),
    _spell,
    "Right of zero a has more. More AUC and less log-loss are better; a bar that crosses zero is "
    "no difference that other prompts would be sure to show.",
)
