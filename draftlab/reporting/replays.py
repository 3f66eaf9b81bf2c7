"""Results of replays as text tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftlab.reporting.tables import format_number

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from draftlab.replaying import Replay

_COLUMNS = (
    "estimator", "n", "log_loss", "regret", "ece", "auc", "refits", "refused", "overshoots",
    "diverged", "cold_start_labels", "slope",
)  # fmt: skip


def print_replay(result: Replay, console: Console) -> None:
    """Print one table a run: every estimator, graded before it learnt each label."""
    settings = result.settings
    for (run,), rows in result.summary.group_by("run", maintain_order=True):
        lines = [
            f"{rows['pair'][0]}, {rows['drafting'][0]} drafting, run {run}",
            f"feature {settings['feature']}, refit every {settings['refit_interval']} steps, "
            f"damping {settings['damping']:g}, ridge {settings['ridge']:g}; predicted before "
            "learnt; regret is log-loss above the offline fit on the same rows",
        ]
        for line in lines:
            console.print(line, markup=False, highlight=False)
        print_table(rows.select(_COLUMNS), console)
    for note in result.notes:
        console.print(f"note: {note}", markup=False, highlight=False)


def print_table(table: pl.DataFrame, console: Console) -> None:
    """Print a frame: text left, numbers right with four decimals."""
    from rich.table import Table

    printed = Table(box=None, pad_edge=False)
    for name, dtype in table.schema.items():
        printed.add_column(
            name.replace("_", " "), justify="right" if dtype.is_numeric() else "left"
        )
    for row in table.iter_rows():
        printed.add_row(*(_text(value) for value in row))
    console.print(printed)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else format_number(value)
