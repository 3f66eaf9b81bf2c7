"""The report of two logs: first what makes them incomparable, then differences."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab.reporting.content import FORMAT_VERSION, date_of
from draftlab.reporting.figures.compare import DIFFERENCES, named_rows
from draftlab.reporting.sections import appendix, blocks
from draftlab.reporting.sections.blocks import Block, Column

if TYPE_CHECKING:
    from draftlab.studies.compare import Comparison
    from draftlab.studies.inspect import Inspection


def build_comparison(
    a: Inspection, b: Inspection, comparison: Comparison
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of report.json for two logs, and its figures as SVG by id."""
    command = _command(a, b, appendix.where_words(comparison))
    commands = [*dict.fromkeys(appendix.collected(a) + appendix.collected(b)), command]
    origin = appendix.origin(comparison)
    sections = [
        setup(comparison),
        predictors(comparison),
        acceptance(comparison),
        blocks.section("notes", "Notes", blocks.items(map(str, comparison.notes))),
        appendix.reproduce(commands, origin),
    ]
    sections = [part for part in sections if part["blocks"]]
    svgs = blocks.take_svgs(sections)
    content = {
        "report": FORMAT_VERSION,
        "title": _title(a, b),
        "lede": "How a and b differ, and how sure that is. Every difference is a - b.",
        "facts": [_fact(name, inspection) for name, inspection in (("a", a), ("b", b))]
        + appendix.where_fact(comparison),
        "date": max(date_of(a), date_of(b)),
        "cells": [],
        "settings": comparison.settings,
        "source": None,
        "commands": commands,
        "provenance": origin,
        "sections": sections,
    }
    return blocks.strict(content), svgs


def _title(a: Inspection, b: Inspection) -> str:
    """Name what differs: the pairs, or the runs of one pair."""
    pairs = [_join(log, "pair") for log in (a, b)]
    if pairs[0] != pairs[1]:
        return f"Side by side: {pairs[0]} and {pairs[1]}"
    return f"Side by side: {pairs[0]}, {_join(a, 'run')} and {_join(b, 'run')}"


def _join(log: Inspection, key: str) -> str:
    return ", ".join(dict.fromkeys(run[key] for run in log.runs))


def setup(comparison: Comparison) -> Block:
    """Return what makes the two incomparable, before any number."""
    table = comparison.setup
    differing = table.filter("differs")
    same_prompts = differing.filter(pl.col("setting") != "prompts")
    if same_prompts.is_empty():
        said = blocks.text("No recorded setting makes the two incomparable.")
        reasons: list[Block] = [said]
    else:
        names = ", ".join(same_prompts["setting"])
        reasons = [
            blocks.text(f"The two differ in {names}.", "warning"),
            *blocks.items(
                f"{row['setting']}, {row['a']} in a and {row['b']} in b: {row['consequence']}"
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
    named = named_rows(comparison.predictors)
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
                "K differs, so the rate over all positions is not compared: it falls as K rises, "
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


def _how(rows: pl.DataFrame) -> str:
    way = "paired by prompt" if rows["paired"].all() else "not paired"
    return f"difference with 95 % by prompt, {way}"


def _fact(name: str, log: Inspection) -> list[str]:
    Ks = [str(run["metadata"]["num_speculative_tokens"]) for run in log.runs]
    K = ", ".join(dict.fromkeys(Ks))
    return [f"Log {name}", f"{_join(log, 'pair')}, K = {K}: {_join(log, 'run')}"]


def _command(a: Inspection, b: Inspection, options: list[str]) -> str:
    others = [word for path in b.typed for word in ("--compare", path)]
    return shlex.join(["draftlab", "report", *a.typed, *others, *options, "--out", "report"])
