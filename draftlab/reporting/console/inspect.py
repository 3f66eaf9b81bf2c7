"""What is in a log, in plain words, and one table per run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab.reporting.console.text import print_table
from draftlab.schema import Excluded

if TYPE_CHECKING:
    from rich.console import Console

    from draftlab.studies.inspect import Inspection

_COUNTS = ("requests", "prompts", "proposals", "labelled")
_RATES = ("acceptance", "acceptance_length", "acceptance_length_by_request")


def print_inspection(inspection: Inspection, console: Console) -> None:
    """Print what `inspect` found."""
    for run in inspection.runs:
        _print_run(console, run, inspection.workloads.filter(pl.col("run") == run["run"]))
    for finding in inspection.findings.iter_rows(named=True):
        console.print(
            f"{finding['code']} {finding['severity']}: {finding['title']}: {finding['message']}",
            markup=False,
            highlight=False,
        )
    if inspection.findings.is_empty():
        console.print("all checks passed")


_PLACE = ("step", "position", "verify_step", "admitted", "accepted", "excluded")


def print_request(inspection: Inspection, console: Console) -> None:
    """Print the request that was asked for: its facts, then its drafts; columns of nulls not."""
    for row in inspection.request.iter_rows(named=True):
        for name, value in row.items():
            if value is not None:
                shown = f"{value:g}" if isinstance(value, float) else str(value)
                console.print(f"{name:<14} {shown}", markup=False, highlight=False, soft_wrap=True)
    rows = inspection.rows
    hidden = ("run", "request", "slot", *_PLACE)
    measured = [c for c in rows.columns if c not in hidden and rows[c].null_count() < len(rows)]
    places = rows.select(
        pl.col("step", "position", "verify_step").cast(pl.String),
        "admitted",
        "accepted",
        pl.col("excluded").map_elements(_reasons, return_dtype=pl.String),
    )
    print_table(pl.concat([places, rows.select(measured)], how="horizontal"), console)


def _reasons(bits: int) -> str:
    """Name the bits of ``excluded``."""
    return ", ".join(bit.name.lower() for bit in Excluded if bit & bits and bit.name) or "no"


def _print_run(console: Console, run: dict[str, Any], workloads: pl.DataFrame) -> None:
    from rich.table import Table

    meta, rows = run["metadata"], run["rows"]
    lines = [
        f"run      {run['run']} ({'closed' if meta['closed'] else 'NOT CLOSED'}, {run['path']})",
        f"pair     {run['pair']}, {meta['method']}, {meta['drafting']} drafting, "
        f"K = {meta['num_speculative_tokens']}",
        f"engine   {meta['engine']} on {meta['device']}, verification {meta['verification']}, "
        f"adaptive verification {meta['adaptive_verification']}",
        f"rows     {rows['drafts']:,} drafts, {rows['steps']:,} steps, "
        f"{rows['requests']:,} requests",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("workload")
    for title in (*_COUNTS, "acceptance", "AL", "AL/request"):
        table.add_column(title, justify="right")
    for row in workloads.iter_rows(named=True):
        table.add_row(row["dataset"], *(_number(row[key]) for key in (*_COUNTS, *_RATES)))
    console.print(table)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
