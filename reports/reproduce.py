"""Write the published comparisons beside our own, from the sample logs.

Run by `make reproduce`: python reports/reproduce.py. Every figure in reports/reproduction/ and in
the headline of the README comes from here.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from draftlab import evaluate, replay
from draftlab.evaluation import Evaluation
from draftlab.reporting.findings import findings
from draftlab.reporting.tables import (
    Cell,
    by_position,
    cells,
    describe,
    headline_table,
    markdown_table,
    of_cell,
    workload_table,
)

ROOT = Path(__file__).parent.parent
OUT = ROOT / "reports" / "reproduction"
LOGS = {"default": ROOT / "data" / "sample", "temperature-1": ROOT / "data" / "sample-t1"}
START, END = "<!-- headline:", "<!-- /headline -->"


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name, log in LOGS.items():
        cross_fitted, in_sample = evaluate(log), evaluate(log, in_sample=True)
        [cell] = cells(cross_fitted)
        pages = {
            "table-features": _features(cross_fitted, in_sample, cell),
            "table-head": _head(cross_fitted, cell),
            "figure-position-auc": _positions(cross_fitted, cell),
            "table-workloads": _workloads(cross_fitted, cell),
            "replay": _replay(log),
            "orders": _orders(cross_fitted, cell),
        }
        for page, text in pages.items():
            path = OUT / f"{page}-{name}.md"
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
        if name == "default":
            readme = ROOT / "README.md"
            text = readme.read_text(encoding="utf-8")
            readme.write_text(replace_headline(text, cross_fitted, cell), encoding="utf-8")


def replace_headline(readme: str, evaluation: Evaluation, cell: Cell) -> str:
    """Return the README with its headline table made from an evaluation."""
    before, rest = readme.split(START, 1)
    marker, rest = rest.split("-->\n", 1)
    after = rest.split(END, 1)[1]
    block = "\n".join(["", *_described(evaluation, cell), "", feature_table(evaluation, cell), ""])
    return f"{before}{START}{marker}-->\n{block}\n{END}{after}"


def feature_table(evaluation: Evaluation, cell: Cell) -> str:
    """Return the feature table in the published form, as Markdown."""
    table = headline_table(evaluation, cell)
    shown = table.select(
        pl.col("name").alias("predictor"),
        "lossless",
        pl.col("auc").alias("AUC"),
        pl.col("log_loss").alias("log-loss"),
        pl.col("ece").alias("ECE"),
        pl.col("mean_prediction").alias("mean prediction"),
        pl.col("published_auc").alias("published AUC"),
        pl.col("published_log_loss").alias("published log-loss"),
        pl.col("published_ece").alias("published ECE"),
    )
    return markdown_table(shown)


def _features(cross_fitted: Evaluation, in_sample: Evaluation, cell: Cell) -> str:
    lines = [f"# Features: {cell.pair}", "", "Published: T1.", ""]
    for title, evaluation in (("Cross-fitted", cross_fitted), ("In sample", in_sample)):
        lines += [f"## {title}", "", *_described(evaluation, cell), ""]
        lines += [feature_table(evaluation, cell), ""]
    return "\n".join(lines)


def _described(evaluation: Evaluation, cell: Cell) -> list[str]:
    return [f"- {line}" for line in describe(evaluation, cell)]


def _head(evaluation: Evaluation, cell: Cell) -> str:
    rows = of_cell(evaluation.differences, cell)
    lines = [f"# The adopted feature against the others: {cell.pair}", "", "Published: T2, T3.", ""]
    for scope, title in (("overall", "All positions"), ("without_first", "Without position 0")):
        table = rows.filter(scope=scope).select(pl.exclude("scope", "position"))
        lines += [f"## {title}", "", markdown_table(_filled(table)), ""]
    return "\n".join(lines)


def _positions(evaluation: Evaluation, cell: Cell) -> str:
    table = by_position(evaluation, cell).pivot("position", index="name", values="auc")
    return f"# AUC by position: {cell.pair}\n\nPublished: F1.\n\n{markdown_table(table)}\n"


def _workloads(evaluation: Evaluation, cell: Cell) -> str:
    table = workload_table(evaluation, cell)
    title = f"# Workloads, fitted separately: {cell.pair}"
    return f"{title}\n\nPublished: T4.\n\n{markdown_table(table)}\n"


def _replay(log: Path) -> str:
    result = replay(log)
    columns = (
        "estimator",
        "n",
        "log_loss",
        "regret",
        "ece",
        "auc",
        "refits",
        "overshoots",
        "slope",
    )
    table = markdown_table(_filled(result.summary.select(columns)))
    notes = [f"- {note}" for note in result.notes]
    return "\n".join(["# Replay of online estimators", "", table, "", *notes, ""])


def _orders(evaluation: Evaluation, cell: Cell) -> str:
    table = findings(evaluation, cell).select(
        "claim", "table", "metric", "here_better", "here_worse", "status"
    )
    return f"# Published orders: {cell.pair}\n\n{markdown_table(_filled(table))}\n"


def _filled(table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(pl.col(pl.String).fill_null(""))


if __name__ == "__main__":
    main()
