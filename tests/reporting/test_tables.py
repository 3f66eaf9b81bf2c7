"""Tables: values from the evaluation, order of the published table, text that fits."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from draftlab.published import PUBLISHED
from draftlab.reporting.console.evaluate import print_evaluation
from draftlab.reporting.labels import UNDEFINED, CellKey, format_number
from draftlab.reporting.sections.findings import findings
from draftlab.reporting.tables import (
    by_position,
    coefficient_table,
    headline_table,
    markdown_table,
    workload_table,
)

if TYPE_CHECKING:
    from draftlab.studies.evaluate import Evaluation

EXACT = 1e-12  # sums of a few thousand float64 in another order


def test_headline_takes_values_from_the_evaluation(
    evaluation: Evaluation, cells: dict[str, CellKey]
) -> None:
    table = headline_table(evaluation, cells["plain"])
    overall = evaluation.metrics.filter(run="plain", scope="overall")
    for column in ("predictor", "lossless", "auc", "log_loss", "ece", "ece_null", "brier", "n"):
        assert table[column].to_list() == overall[column].to_list(), column
    rate = overall["n_accepted"][0] / overall["n"][0]
    assert table["rate"].to_list() == pytest.approx([rate] * len(table), abs=EXACT)


def test_headline_order_and_published_values(
    evaluation: Evaluation, cells: dict[str, CellKey]
) -> None:
    table = headline_table(evaluation, cells["head"])
    assert table["predictor"].to_list() == [*PUBLISHED["T1"].records(), "constant", "per_position"]
    assert table["section"].to_list() == ["published"] * 9 + ["floor"] * 2
    assert table["published_auc"].to_list()[:2] == [0.8069, 0.8156]
    assert table["published_ece"].to_list()[-3:] == [0.0052, None, None]
    adopted = table.filter(predictor="logit_qmax").row(0, named=True)
    assert (adopted["name"], adopted["remark"]) == ("logit(qmax)", "adopted by vLLM")


def test_several_cells_are_not_pooled(evaluation: Evaluation) -> None:
    with pytest.raises(ValueError, match="not pooled"):
        headline_table(evaluation)


def test_k_comes_from_the_positions(cells: dict[str, CellKey]) -> None:
    assert {run: cell.num_speculative_tokens for run, cell in cells.items()} == {
        "plain": 5,
        "head": 2,
    }


def test_by_position_keeps_the_asked_order(
    evaluation: Evaluation, cells: dict[str, CellKey]
) -> None:
    table = by_position(evaluation, cells["plain"], ["entropy", "absent", "log_qmax"])
    assert table["predictor"].to_list() == ["entropy"] * 5 + ["log_qmax"] * 5
    assert table["position"].to_list() == list(range(5)) * 2
    assert table["name"].unique().sort().to_list() == ["H(q)", "log(qmax)"]


def test_workloads_hold_their_own_fit(evaluation: Evaluation, cells: dict[str, CellKey]) -> None:
    table = workload_table(evaluation, cells["plain"])
    assert table["rate"].is_sorted(descending=True)
    code = table.filter(dataset="code").row(0, named=True)
    own = evaluation.coefficients.filter(
        run="plain", dataset="code", predictor="logit_qmax", position=0
    )
    assert (code["slope"], code["intercept_0"]) == (own["slope"][0], own["intercept"][0])
    rows = evaluation.acceptance.filter(run="plain", dataset="code")
    entropy = np.average(rows["mean_entropy"].to_numpy(), weights=rows["n_observed"].to_numpy())
    assert code["mean_entropy"] == pytest.approx(entropy, abs=EXACT)


def test_coefficients_are_of_the_fit_on_all_rows(
    evaluation: Evaluation, cells: dict[str, CellKey]
) -> None:
    row = coefficient_table(evaluation, cells["plain"]).filter(predictor="logit_qmax")
    fits = evaluation.coefficients.filter(
        pl.col("dataset").is_null(), run="plain", predictor="logit_qmax"
    )
    full = fits.filter(pl.col("fold").is_null())
    assert row["slope"][0] == full["slope"][0]
    assert [row[f"b_{k}"][0] for k in range(5)] == full["intercept"].to_list()
    for end in ("low", "high"):
        assert row[f"slope_{end}"][0] == full[f"slope_{end}"][0]
        ends = [row[f"b_{k}_{end}"][0] for k in range(5)]
        assert ends == full[f"intercept_{end}"].to_list()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5000"),
        (-0.00001, "0.0000"),
        (math.nan, UNDEFINED),
        (None, UNDEFINED),
        (False, "no"),
        (10_500_000, "10,500,000"),
    ],
)
def test_format_number(value: object, text: str) -> None:
    assert format_number(value) == text


def test_markdown_survives_bars_and_nan() -> None:
    frame = pl.DataFrame({"name": ["a|b\nc"], "auc": [math.nan], "n": [1200]})
    assert markdown_table(frame).splitlines() == [
        "| name | auc | n |",
        "|:---|---:|---:|",
        f"| a\\|b c | {UNDEFINED} | 1,200 |",
    ]


def test_print_fits_100_columns_and_says_what_was_run(evaluation: Evaluation) -> None:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    print_evaluation(evaluation, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 100
    assert "cross-fitted, 5 folds by prompt" in text
    assert "unobserved" in text
    assert "15 equal-width bins" in text
    assert "…" not in text  # nothing was cut
    adopted = next(line for line in text.splitlines() if line.startswith("logit(qmax) (adopted)"))
    auc = headline_table_auc(evaluation)
    assert adopted.split()[2:4] == ["yes", format_number(auc)]


def headline_table_auc(evaluation: Evaluation) -> float:
    """Return the AUC of the adopted feature in the first cell."""
    rows = evaluation.metrics.filter(predictor="logit_qmax", scope="overall")
    return float(rows["auc"][0])


def test_findings_follow_the_numbers(evaluation: Evaluation, cells: dict[str, CellKey]) -> None:
    """Swapping the log-loss of two predictors turns the finding about them."""
    cell = cells["plain"]

    def status(result: Evaluation) -> tuple[str, float, float]:
        rows = findings(result, cell).filter(
            metric="log_loss", better="logit_qmax", worse="log_qmax"
        )
        return rows.select("status", "here_better", "here_worse").row(0)

    held, better, worse = status(evaluation)
    assert (held, better < worse) == ("holds", True)
    swapped = {"logit_qmax": "log_qmax", "log_qmax": "logit_qmax"}
    turned = evaluation.metrics.with_columns(pl.col("predictor").replace(swapped))
    assert status(replace(evaluation, metrics=turned)) == ("does not hold", worse, better)


def test_findings_need_both_sides(evaluation: Evaluation, cells: dict[str, CellKey]) -> None:
    plain, head = (findings(evaluation, cells[run]) for run in ("plain", "head"))
    assert "confidence" not in {*plain["better"], *plain["worse"]}
    without_first = head.filter(scope="without_first", metric="auc").row(0, named=True)
    assert without_first["claim"] == (
        "logit(qmax) has higher AUC than trained head without position 0"
    )
    # four workloads are enough for the correlation, the two of the other run are not
    assert len(plain.filter(metric="correlation")) == 1
    assert len(head.filter(metric="correlation")) == 0


def test_equal_numbers_neither_hold_nor_fail(
    evaluation: Evaluation, cells: dict[str, CellKey]
) -> None:
    flat = evaluation.metrics.with_columns(auc=pl.lit(0.7))
    table = findings(replace(evaluation, metrics=flat), cells["plain"]).filter(metric="auc")
    assert table["status"].unique().to_list() == ["equal"]


def test_undefined_numbers_make_no_finding(
    evaluation: Evaluation, cells: dict[str, CellKey]
) -> None:
    undefined = evaluation.metrics.with_columns(auc=pl.lit(math.nan))
    table = findings(replace(evaluation, metrics=undefined), cells["plain"])
    assert "auc" not in set(table["metric"])


@pytest.mark.slow
def test_tables_do_not_load_matplotlib() -> None:
    code = "import draftlab.reporting.tables, sys; print('matplotlib' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_a_difference_that_may_be_chance_is_undecided(
    evaluation: Evaluation, cells: dict[str, CellKey]
) -> None:
    certain = findings(evaluation, cells["plain"])
    unsure = evaluation.differences.with_columns(distinguishable=pl.lit(value=False))
    table = findings(replace(evaluation, differences=unsure), cells["plain"])
    compared = table.filter(pl.col("metric").is_in(["auc", "log_loss"]), pl.col("table") == "T1")
    assert set(compared["status"]) <= {"undecided", "equal"}
    assert "holds" in set(certain["status"])
