"""An evaluation as text: the published table, differences, AUC by position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from draftlab.predictors.baselines import ADOPTED
from draftlab.reporting.console.text import print_table
from draftlab.reporting.labels import (
    UNDEFINED,
    CellKey,
    cells,
    format_number,
    label,
    of_cell,
)
from draftlab.reporting.tables import (
    by_position,
    by_value,
    calibration_line,
    describe,
    headline_table,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from draftlab.studies.evaluate import Evaluation


_POSITIONS_PRINTED = 9


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print every cell of an evaluation as text of at most 100 columns."""
    if where := evaluation.settings.get("where"):
        _print(console, f"part of the log: {where}")
    for cell in cells(evaluation):
        for line in (*describe(evaluation, cell), calibration_line(evaluation, cell)):
            _print(console, line)
        console.print(rich_headline(headline_table(evaluation, cell)))
        for line in _LEGEND:
            _print(console, line)
        console.print(_rich_positions(by_position(evaluation, cell)))
        if evaluation.settings.get("by"):
            _print_by(evaluation, cell, console)
        if len(of_cell(evaluation.differences, cell)):
            console.print()
            console.print(_rich_differences(evaluation, cell))
    for note in evaluation.notes:
        _print(console, f"note: {note}")


def _print_by(evaluation: Evaluation, cell: CellKey, console: Console) -> None:
    """Print the grades of the adopted predictor, or of the first, by value."""
    grades = by_value(evaluation, cell)
    shown = ADOPTED if ADOPTED in set(grades["predictor"]) else grades["predictor"][0]
    _print(console, f"\n{label(shown).name} by {evaluation.settings['by'].partition(':')[0]}")
    print_table(grades.filter(predictor=shown).drop("predictor", "name"), console)
    _print(console, "")


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)


_LEGEND = (
    "constant and per-position rate are floors: they know no feature. overlap and accept_prob are",
    "ceilings: they know the target's p, accept_prob also the drawn token. exp. = ECE of a "
    "perfectly",
    "calibrated predictor with this many rows; pred. = mean prediction; publ. = vLLM PR #52228",
    "(other models: compare the ranking only).",
    "",
)
_PRINTED = {
    "auc": "AUC",
    "log_loss": "log-\nloss",
    "ece": "ECE",
    "ece_null": "exp.",
    "brier": "Brier",
    "mean_prediction": "pred.",
    "published_auc": "publ.\nAUC",
    "published_log_loss": "publ.\nloss",
    "published_ece": "publ.\nECE",
}


def rich_headline(table: pl.DataFrame) -> Table:
    """Return the headline table for a terminal; its columns are those of `headline_table`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    out.add_column("predictor", max_width=24, vertical="bottom")
    out.add_column("lossless", vertical="bottom")
    for name, title in _PRINTED.items():
        out.add_column(title, justify="right", style="dim" if "published" in name else None)
    previous = None
    for row in table.rows(named=True):
        if previous not in (None, row["section"]):
            out.add_section()
        previous = row["section"]
        main = row["predictor"] == ADOPTED
        out.add_row(
            Text(f"{row['name']} (adopted)" if main else row["name"]),
            format_number(row["lossless"]),
            *(format_number(row[column]) for column in _PRINTED),
            style="bold" if main else "",
        )
    return out


def _rich_differences(evaluation: Evaluation, cell: CellKey) -> Table:
    """Return the adopted feature minus the others, paired, with 95 % intervals by prompt."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = of_cell(evaluation.differences, cell).filter(
        pl.col("metric").is_in(["auc", "log_loss"]), scope="overall", predictor_a=ADOPTED
    )
    out = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    out.add_column(f"{label(ADOPTED).name} minus", max_width=24)
    for title in ("AUC", "log-loss"):
        out.add_column(f"{title} [95 % by prompt; ? covers 0]", justify="right")
    for name in rows["predictor_b"].unique(maintain_order=True):
        mine = rows.filter(predictor_b=name)
        entries = [_difference(mine.filter(metric=metric)) for metric in ("auc", "log_loss")]
        out.add_row(Text(label(name).name), *entries)
    return out


def _difference(rows: pl.DataFrame) -> str:
    if rows.is_empty():
        return UNDEFINED
    row = rows.row(0, named=True)
    sure = " " if row["distinguishable"] else "?"
    return f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]{sure}"


def _rich_positions(table: pl.DataFrame) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    positions = table["position"].unique().sort().to_list()
    shown = positions[:_POSITIONS_PRINTED]
    more = "" if len(shown) == len(positions) else f" (first {len(shown)} of {len(positions)})"
    out = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    out.add_column(f"AUC by position{more}", max_width=24)
    for position in shown:
        out.add_column(str(position), justify="right")
    for name in table["name"].unique(maintain_order=True):
        values = dict(table.filter(name=name).select("position", "auc").iter_rows())
        out.add_row(Text(name), *(format_number(values.get(k)) for k in shown))
    return out
