"""Cells: small logs written by hand, with every count said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.errors import InputError
from draftlab.grading.cells import acceptance_table, read_admitted, read_cells
from draftlab.log.reader import open_log
from draftlab.schema import Excluded
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab.grading.cells import Cell

GRAMMAR = int(Excluded.GRAMMAR)


def only_cell(folder: Path, rows: list[dict[str, Any]], **metadata: Any) -> Cell:
    [cell] = read_cells(open_log(write_log(folder, rows, **metadata)), ["entropy"])
    return cell


def verified(step: int, labels: list[bool | None], sent: int, **columns: Any) -> dict[str, Any]:
    """Return a proposal of which the first ``sent`` drafts were sent to the target."""
    admitted = np.arange(len(labels)) < sent
    verify = np.ma.array(np.full(len(labels), step), mask=~admitted)
    return proposal(step, labels, admitted=admitted, verify_step=verify, **columns)


def history() -> list[dict[str, Any]]:
    """Return four proposals of K 3: whole, rejected, trimmed, and one with an excluded draft."""
    return [
        verified(0, [True, True, False], 3),
        verified(1, [False, None, None], 3, request=1),
        verified(2, [True, None, None], 1),
        verified(3, [True, True, True], 3, request=1, excluded=[0, GRAMMAR, GRAMMAR]),
    ]


def test_rates_by_position_are_the_counts_of_the_history(tmp_path: Path) -> None:
    table = acceptance_table(only_cell(tmp_path, history(), num_speculative_tokens=4))
    overall = table.filter(pl.col("dataset").is_null())
    assert overall["position"].to_list() == [0, 1, 2, 3]
    assert overall["n_proposed"].to_list() == [4, 3, 3, 0]  # without the excluded drafts
    assert overall["n_admitted"].to_list() == [4, 2, 2, 0]
    assert overall["n_observed"].to_list() == [4, 1, 1, 0]
    assert overall["n_accepted"].to_list() == [3, 1, 0, 0]
    assert overall["conditional_rate"].fill_nan(None).to_list() == [3 / 4, 1.0, 0.0, None]
    assert overall["survival_rate"].fill_nan(None).to_list() == [3 / 4, 1 / 2, 0.0, None]
    assert overall["hidden_share"].fill_nan(None).to_list() == [0.0, 1 / 3, 1 / 3, None]
    odd = table.filter(dataset="odd")
    assert odd["n_proposed"].to_list() == [2, 1, 1, 0]
    assert odd["n_accepted"].to_list() == [1, 0, 0, 0]
    assert odd["mean_entropy"].fill_nan(None).to_list() == [2.0, None, None, None]


def test_rows_to_grade_are_labelled_eligible_and_of_a_request(tmp_path: Path) -> None:
    cell = only_cell(tmp_path, history(), num_speculative_tokens=3)
    assert cell.rows.select("step", "position", "accepted").rows() == [
        (0, 0, True), (0, 1, True), (0, 2, False), (1, 0, False), (2, 0, True), (3, 0, True),
    ]  # fmt: skip
    assert cell.exclusions.rows() == [("unobserved", 4, 0), ("grammar", 2, 2), ("total", 6, 2)]
    codes = cell.rows.select("dataset", "prompt").unique(maintain_order=True).rows()
    assert [(cell.datasets[d], cell.prompts[p]) for d, p in codes] == [
        ("even", "g0"),
        ("odd", "g1"),
    ]


def test_survival_is_known_as_far_as_no_row_before_is_missing(tmp_path: Path) -> None:
    """Behind a rejection rows did not survive; behind an excluded or trimmed one none counts."""
    cell = only_cell(tmp_path, history(), num_speculative_tokens=3)
    rows = read_admitted(cell, ["entropy"])
    assert rows.select("position", "survived").rows() == [
        (0, True), (1, True), (2, False),
        (0, False), (1, False), (2, False),
        (0, True),
        (0, True),
    ]  # fmt: skip
    assert rows["entropy"].to_list() == [2.0, 1.25, 0.5, 2.0, 1.25, 0.5, 2.0, 2.0]


def test_temperature_zero_requests_make_a_greedy_cell_of_their_own(tmp_path: Path) -> None:
    run = write_log(tmp_path, history(), num_speculative_tokens=3)
    [path] = run.glob("requests/*.parquet")
    cold = pl.when(pl.col("request") == 1).then(0.0).otherwise(1.0).cast(pl.Float32)
    pl.read_parquet(path).with_columns(temperature=cold).write_parquet(path)
    sampled, greedy = read_cells(open_log(run), [])
    assert (sampled.drafting, greedy.drafting) == ("probabilistic", "greedy")
    assert (len(sampled.rows), len(greedy.rows)) == (4, 2)
    assert (sampled.strictest, greedy.strictest) == ("probabilistic", "greedy")
    [both] = read_cells(open_log(run), [], pool=True)
    assert (both.drafting, both.strictest, len(both.rows)) == ("mixed", "probabilistic", 6)


def test_runs_that_agree_are_one_cell_and_others_are_apart(tmp_path: Path) -> None:
    for name, K in (("a", 2), ("b", 2), ("c", 3)):
        rows = [proposal(step, [True, step % 2 == 0]) for step in range(4)]
        write_log(tmp_path, rows, run=name, num_speculative_tokens=K)
    first, second = read_cells(open_log(tmp_path), [])
    assert (first.run, first.runs, first.num_positions) == ("a+b", ("a", "b"), 2)
    assert (second.run, second.num_positions) == ("c", 3)
    assert first.rows["run"].to_list() == [0] * 8 + [1] * 8
    [pooled] = read_cells(open_log(tmp_path), [], pool=True)
    assert pooled.run == "a+b+c"
    assert pooled.num_positions == 3
    assert pooled.metadata["mixed"] == ["num_speculative_tokens"]
    assert pooled.metadata["method"] == "draft_model"


@pytest.mark.parametrize(
    ("policy", "trimmer", "start"),
    [
        ("off", None, None),
        ("entropy", "entropy", None),
        ("online-vllm", "logit_qmax", None),
        ("vllm", "logit_qmax", {"slope": 0.5}),
        ("vllm", "confidence", None),
    ],
)
def test_who_trimmed_is_told_by_the_policy_and_the_estimator(
    tmp_path: Path, policy: str, trimmer: str | None, start: dict[str, float] | None
) -> None:
    cell = only_cell(
        tmp_path, [proposal(0, [True, False])], adaptive_verification=policy, estimator_start=start
    )
    assert cell.trimmed_by == trimmer
    assert cell.trimmed is (policy != "off")


def test_a_nan_where_null_belongs_is_named_with_its_column(tmp_path: Path) -> None:
    run = write_log(tmp_path, [proposal(0, [True, False])])
    [path] = run.glob("drafts/*.parquet")
    nan = pl.lit(float("nan"), dtype=pl.Float32)
    pl.read_parquet(path).with_columns(entropy=nan).write_parquet(path)
    with pytest.raises(InputError, match="column entropy of drafts holds 2 NaN"):
        read_cells(open_log(run), ["entropy"])
    [cell] = read_cells(open_log(run), ["top2_margin"])  # nobody asked for it
    assert cell.rows.columns[-1] == "top2_margin"
