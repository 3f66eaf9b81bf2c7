"""Results of simulations and audits as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from draftlab.reporting.console.text import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from draftlab.results import Note
    from draftlab.studies.audit.audit import Audit
    from draftlab.studies.simulate.simulate import Simulation
    from draftlab.studies.simulate.trimming_check import TrimmingCheck

_CHECKS = (
    "kind", "name", "drafting", "threshold", "lossless", "total_variation", "n", "passed",
)  # fmt: skip


def print_simulation(result: Simulation, console: Console) -> None:
    """Print, for each cost table, tokens per second of fixed lengths and gains of policies."""
    keys = ("cost", "cost_source", "pair", "drafting")
    mixed = result.frontier.filter(pl.col("dataset").is_null())
    for (cost, source, *cell), rows in mixed.group_by(keys, maintain_order=True):
        kind = "a model, not a measurement" if source == "model" else source
        say(console, f"\n{cell[0]}, {cell[1]} drafting; cost table: {cost} ({kind})")
        say(console, "Tokens per second of fixed lengths, by requests at once")
        print_table(_by_concurrency(_fixed_lengths(rows)), console)
        gains = result.gains.filter(
            pl.col("dataset").is_null(), cost=cost, pair=cell[0], drafting=cell[1]
        )
        _print_gains(gains, console)
    print_notes(result.notes, console)


def _fixed_lengths(rows: pl.DataFrame) -> pl.DataFrame:
    fixed = rows.filter(policy="fixed")
    return fixed.select(
        pl.format("K = {}", "verify_length").alias("drafts verified"),
        "concurrency",
        shown=_thousands("tokens_per_second"),
    )


def _print_gains(gains: pl.DataFrame, console: Console) -> None:
    """Print gains where there are any, and say where there are none."""
    matters = pl.col("gain").abs().max().over("concurrency") >= _WORTH_PRINTING
    shown = gains.filter(matters)
    flat = gains.filter(~matters)["concurrency"].unique().sort().to_list()
    if flat:
        where = ", ".join(map(str, flat))
        say(console, f"No policy gains or loses anything at {where} requests at once.")
    if shown.is_empty():
        return
    sized = pl.format("{}, {} nodes", "policy", "verify_length")
    named = pl.format("{}/{}", "policy", "predictor")
    covers = pl.col("gain_low") * pl.col("gain_high") <= 0
    percent = pl.format("{}%", (100 * pl.col("gain")).round(1).cast(pl.String))
    plus = pl.when(pl.col("gain") > 0).then(pl.lit("+")).otherwise(pl.lit(""))
    sure = pl.when(covers).then(pl.lit("?")).otherwise(pl.lit(""))
    nothing = pl.col("gain").abs() < _WORTH_PRINTING
    cells = shown.select(
        pl.coalesce(named, sized, "policy").alias("policy"),
        "concurrency",
        shown=pl.when(nothing).then(pl.lit("0")).otherwise(plus + percent + sure),
    )
    say(
        console, "Gain over verifying every draft, by requests at once (? if the interval covers 0)"
    )
    print_table(_by_concurrency(cells), console)


_WORTH_PRINTING = 5e-4
"""Gain that shows with one decimal of a per cent."""


def _by_concurrency(cells: pl.DataFrame) -> pl.DataFrame:
    """Return one row per policy and one column per concurrency."""
    [key] = [name for name in cells.columns if name not in ("concurrency", "shown")]
    wide = cells.pivot("concurrency", index=key, values="shown", maintain_order=True)
    width = {name: max(map(len, [name, *wide[name]])) for name in wide.columns if name != key}
    return wide.select(
        key, *(pl.col(name).str.pad_start(w).alias(name.rjust(w)) for name, w in width.items())
    )


def _thousands(name: str) -> pl.Expr:
    return pl.col(name).map_elements(lambda value: f"{value:,.0f}", return_dtype=pl.String)


def print_trimming_check(result: TrimmingCheck, console: Console) -> None:
    """Print simulated and measured adaptive verification."""
    verdict = "agrees" if result.agrees else "DISAGREES"
    say(
        console,
        f"\nThe simulation {verdict} with the trimmed run: {result.num_requests} requests under "
        f"{result.policy}, {result.concurrency} at once, {result.num_prompts} prompts in both logs",
    )
    print_table(result.measures, console)
    print_notes(result.notes, console)


def print_audit(result: Audit, console: Console) -> None:
    """Print every check of losslessness."""
    print_table(result.checks.select(_CHECKS), console)
    print_notes(result.notes, console)


def print_notes(notes: Sequence[Note], console: Console) -> None:
    """Print one note per line."""
    for note in notes:
        say(console, f"note: {note}")


def say(console: Console, text: str) -> None:
    """Print plain text."""
    console.print(text, markup=False, highlight=False)
