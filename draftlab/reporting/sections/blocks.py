"""Blocks: what report.json is made of. Each renderer prints every kind of block and knows no more.

A section holds blocks and sections; a block is a text, a list, lines of code, definitions, a table
or a figure. Tables keep their raw rows, and say which columns are printed and how.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from draftlab.log.files import to_records
from draftlab.predictors.baselines import ADOPTED
from draftlab.reporting.figures.style import to_svg
from draftlab.reporting.labels import format_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import polars as pl

    from draftlab.reporting.figures.style import Drawing

Block = dict[str, Any]
Tone = Literal["plain", "small", "warning"]

DIGITS = 10
"""Significant digits that are kept: sums of floats in another order differ behind them."""

TITLES = {
    "name": "predictor",
    "features": "features",
    "dataset": "workload",
    "n_prompts": "prompts",
    "n_admitted": "admitted",
    "n_observed": "observed",
    "n_accepted": "accepted",
    "n_rejected": "rejected",
    "n_proposals": "proposals",
    "n_requests": "requests",
    "n_datasets": "workloads",
    "rate": "acceptance",
    "conditional_rate": "conditional",
    "survival_rate": "survival",
    "mean_prediction": "predicted",
    "mean_entropy": "H(q), nats",
    "intercept_0": "own b0",
    "slope_sd": "sd of slope",
    "intercept_0_sd": "sd of b0",
    "acceptance_length": "acceptance length",
    "acceptance_length_by_request": "by request",
    "auc": "AUC",
    "log_loss": "log-loss",
    "brier": "Brier",
    "ece": "ECE",
    "ece_null": "expected ECE",
    "excess_ece": "excess ECE",
    "cold_start_labels": "cold start",
    "p_value": "p",
    "num_positions": "K",
}
"""Column titles; others are the column's name in words."""


@dataclass(frozen=True)
class Column:
    """A printed column of a table."""

    key: str
    title: str
    digits: int = 4
    low: str | None = None
    """Keys of the ends of its interval, printed behind it."""
    high: str | None = None
    over: str = ""
    """Title above this column and its neighbours."""
    quiet: bool = False
    """Printed muted: it belongs to somebody else's data."""
    signed: bool = False
    percent: bool = False
    half: bool = False
    """Print half the interval behind ± instead of its ends."""


def section(
    name: str, title: str, blocks: Iterable[Block], sections: Sequence[Block] = ()
) -> Block:
    """Return a section; ``name`` is its id."""
    return {"id": name, "title": title, "blocks": list(blocks), "sections": list(sections)}


def text(value: str, tone: Tone = "plain") -> Block:
    """Return a paragraph."""
    return {"kind": "text", "text": value, "tone": tone}


def items(entries: Iterable[str]) -> list[Block]:
    """Return a list, or nothing where there is no entry."""
    found = list(entries)
    return [{"kind": "items", "items": found}] if found else []


def code(lines: Iterable[str]) -> Block:
    """Return lines of code."""
    return {"kind": "code", "lines": list(lines)}


def definitions(entries: Mapping[str, str]) -> Block:
    """Return terms with their meaning."""
    return {
        "kind": "definitions",
        "entries": [{"term": term, "text": meaning} for term, meaning in entries.items()],
    }


def table(
    name: str,
    frame: pl.DataFrame,
    caption: str,
    columns: Sequence[Column] | None = None,
    *,
    folded: bool = False,
) -> list[Block]:
    """Return a table of the frame, or nothing for an empty one.

    Parameters
    ----------
    name : str
        Its id; unique in the report.
    frame : DataFrame
        report.json and the CSV of the table hold all of it. ``section`` sets rows off
        by rules, ``predictor`` marks the adopted feature, ``status`` is coloured.
    caption : str
    columns : sequence of Column, optional
        The printed ones; all unless told, ends of intervals behind their number.
    folded : bool
        The page shows it on a click, paper not at all.
    """
    if frame.is_empty():
        return []
    chosen = all_columns(frame) if columns is None else columns
    # nobody published a value for these rows: no column of dashes
    empty = {c.key for c in chosen if c.quiet and frame[c.key].null_count() == len(frame)}
    return [
        {
            "kind": "table",
            "id": name,
            "caption": caption,
            "columns": [
                asdict(column) | {"numeric": _numeric(frame, column)}
                for column in chosen
                if column.key not in empty
            ],
            "rows": to_records(frame),
            "folded": folded,
        }
    ]


def all_columns(frame: pl.DataFrame) -> list[Column]:
    """Return a column for each of the frame's, except names that another one prints."""
    names = set(frame.columns)
    hidden = {"section", "remark", "status_reason"} | ({"predictor"} if "name" in names else set())
    found = []
    for name in frame.columns:
        base = name.removesuffix("_low").removesuffix("_high")
        with_ends = {f"{base}_low", f"{base}_high"} <= names
        if name in hidden or (base != name and base in names and with_ends):
            continue
        ends = (f"{name}_low", f"{name}_high") if {f"{name}_low", f"{name}_high"} <= names else None
        low, high = ends or (None, None)
        found.append(Column(name, title_of(name), low=low, high=high))
    return found


def title_of(name: str) -> str:
    """Return the printed title of a column."""
    if name in TITLES:
        return TITLES[name]
    return name.replace("b_", "b") if name.startswith("b_") else name.replace("_", " ")


def draw(drawing: Drawing, prefix: str, *args: Any) -> list[Block]:
    """Return a figure block with its SVG and its table, or nothing where it has no rows."""
    figure, frame = drawing.plot(*args)
    if frame.is_empty():
        return []
    name = f"{prefix}-{drawing.name}"
    [numbers] = table(f"{name}-numbers", frame, f"{drawing.title}, numbers", folded=True)
    return [
        {
            "kind": "figure",
            "id": name,
            "name": drawing.name,
            "title": drawing.title,
            "caption": drawing.caption(frame),
            "alt": drawing.alt(frame),
            "how_to_read": drawing.how_to_read,
            "table": numbers,
            "svg": to_svg(figure, name, drawing.title, drawing.alt(frame)),
        }
    ]


def take_svgs(sections: Iterable[Block]) -> dict[str, str]:
    """Take the figures' SVG out of sections, by id: report.json holds what they draw."""
    return {block["id"]: block.pop("svg") for block in walk(sections) if block["kind"] == "figure"}


def walk(sections: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of sections in their order, inner sections after the outer's blocks."""
    for part in sections:
        yield from part["blocks"]
        yield from walk(part["sections"])


def strict(value: Any) -> Any:
    """Return the value with floats of `DIGITS` digits, and those that JSON lacks as None."""
    if isinstance(value, dict):
        return {str(key): strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [strict(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def printed(block: Block) -> Block:
    """Return a table as text: titles, over (spans), numeric, and rows of cells with their mark."""
    columns = block["columns"]
    rows, before = [], None
    for row in block["rows"]:
        mark = _mark(row)
        rule = before is not None and row.get("section") != before
        before = row.get("section")
        rows.append({"cells": [_print(row, c) for c in columns], "mark": mark, "rule": rule})
    return {
        "titles": [c["title"] for c in columns],
        "over": _spans(columns),
        "numeric": [c["numeric"] for c in columns],
        "quiet": [c["quiet"] for c in columns],
        "status": [c["key"] == "status" for c in columns],
        "rows": rows,
    }


def to_csv(block: Block) -> str:
    """Return all columns of a table's rows as CSV, with the numbers of report.json."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(block["rows"][0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(block["rows"])
    return out.getvalue()


def _numeric(frame: pl.DataFrame, column: Column) -> bool:
    return frame[column.key].dtype.is_numeric()


def _mark(row: Block) -> str:
    if row.get("predictor") == ADOPTED:
        return "main"
    return "quiet" if row.get("section") in ("floor", "ceiling") else ""


def _print(row: Block, column: Block) -> str:
    value = row[column["key"]]
    if column["key"] == "name" and row.get("remark"):
        return f"{value} ({row['remark']})"
    shown = _number(value, column)
    ends = [row[column[end]] for end in ("low", "high") if column[end] is not None]
    if value is None or not ends or None in ends:
        return shown
    if column["half"]:
        return f"{shown} ± {format_number((ends[1] - ends[0]) / 2, column['digits'])}"
    low, high = (_number(end, column) for end in ends)
    return f"{shown} [{low}, {high}]"


def _number(value: Any, column: Block) -> str:
    if not isinstance(value, float):
        return format_number(value)
    if column["percent"]:
        value = 100 * value
    shown = format_number(value, column["digits"]) if column["digits"] else f"{value:,.0f}"
    return (
        f"+{shown}"
        if column["signed"] and value > 0 and float(shown.replace(",", "")) > 0
        else shown
    )


def _spans(columns: list[Block]) -> list[dict[str, Any]]:
    """Return the titles above the titles, each over its columns; nothing where there are none."""
    spans: list[dict[str, Any]] = []
    for column in columns:
        if spans and spans[-1]["title"] == column["over"]:
            spans[-1]["columns"] += 1
        else:
            spans.append({"title": column["over"], "columns": 1})
    return spans if any(span["title"] for span in spans) else []
