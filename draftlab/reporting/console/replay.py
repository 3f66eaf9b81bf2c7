"""Replays and drift scenarios as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftlab.reporting.console.text import print_table
from draftlab.reporting.replay_tables import (
    DISAGREEMENT,
    SUMMARY,
    describe_drift,
    describe_replay,
    explain_recovery,
    mild_switches,
    recovery_table,
)

if TYPE_CHECKING:
    from rich.console import Console

    from draftlab.studies.replay.drift import Drift
    from draftlab.studies.replay.replay import Replay


def print_replay(result: Replay, console: Console) -> None:
    """Print one table per run: every estimator, graded before it learnt each label."""
    for (run,), rows in result.summary.group_by("run", maintain_order=True):
        lines = [
            f"{rows['pair'][0]}, {rows['drafting'][0]} drafting, run {run}",
            describe_replay(result),
        ]
        for line in lines:
            console.print(line, markup=False, highlight=False)
        print_table(rows.select(SUMMARY), console)
    if len(result.groups):
        console.print(f"by {result.settings['by'].partition(':')[0]}", markup=False)
        print_table(result.groups.drop("pair", "drafting"), console)
    if len(result.disagreement):
        print_table(result.disagreement.select(DISAGREEMENT), console)
    for note in result.notes:
        console.print(f"note: {note}", markup=False, highlight=False)


def print_drift(drift: Drift, console: Console) -> None:
    """Print the recovery after each switch."""
    for line in (describe_drift(drift), *explain_recovery(drift)):
        console.print(line, markup=False, highlight=False)
    print_table(recovery_table(drift), console)
    for note in (*mild_switches(drift), *drift.notes):
        console.print(f"note: {note}", markup=False, highlight=False)
