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

_GAINS = (
    "policy", "predictor", "concurrency", "tokens_per_second", "gain", "gain_low", "gain_high",
    "best_fixed_length", "gain_over_best_fixed", "captured",
)  # fmt: skip
_CHECKS = (
    "kind", "name", "drafting", "threshold", "lossless", "total_variation", "n", "passed",
)  # fmt: skip


def print_simulation(result: Simulation, console: Console) -> None:
    """Print what each policy gains over verifying everything, a table for each cost."""
    sized = pl.format("{}, {} nodes", "policy", "verify_length")
    pooled = result.gains.filter(pl.col("dataset").is_null()).with_columns(
        policy=pl.coalesce(sized, "policy")
    )
    for (cost, source), rows in pooled.group_by("cost", "cost_source", maintain_order=True):
        kind = "a model, not a measurement" if source == "model" else source
        say(console, f"\ncost: {cost} ({kind}); gain over AV off, all workloads")
        print_table(rows.select(_GAINS), console)
    print_notes(result.notes, console)


def print_trimming_check(result: TrimmingCheck, console: Console) -> None:
    """Print simulated beside measured adaptive verification."""
    verdict = "agrees" if result.agrees else "DISAGREES"
    say(
        console,
        f"\nlive check: the simulation {verdict} with {result.num_requests} requests under "
        f"{result.policy}, {result.concurrency} at once, {result.num_prompts} prompts in both",
    )
    print_table(result.measures, console)
    print_notes(result.notes, console)


def print_audit(result: Audit, console: Console) -> None:
    """Print every check of losslessness."""
    print_table(result.checks.select(_CHECKS), console)
    print_notes(result.notes, console)


def print_notes(notes: Sequence[Note], console: Console) -> None:
    """Print notes, one a line."""
    for note in notes:
        say(console, f"note: {note}")


def say(console: Console, text: str) -> None:
    """Print plain text."""
    console.print(text, markup=False, highlight=False)
