"""Rows made ready: which are kept, in which fold, and the way back to the log's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.errors import InputError
from draftlab.grading.cells import read_cells
from draftlab.grading.folds import assign_folds
from draftlab.grading.prepare import prepare, refuse_trimmed
from draftlab.log.reader import open_log
from draftlab.predictors.baselines import PREDICTORS
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab.grading.cells import Cell

COLUMNS = ("logit_qmax", "entropy", "overlap")


def make_cell(folder: Path, *, prompts: int = 6, **metadata: Any) -> Cell:
    """Return a cell of 60 proposals; every third is rejected at once, overlap is on half of all."""
    rng = np.random.default_rng(1)
    rows = []
    for step in range(60):
        labels = [False, None] if step % 3 == 0 else [True, step % 2 == 0]
        feature = rng.normal(size=2)
        overlap = np.full(2, 0.5 if step % 2 else np.nan)
        rows.append(
            proposal(step, labels, request=step % prompts, logit_qmax=feature, overlap=overlap)
        )
    [cell] = read_cells(open_log(write_log(folder, rows, **metadata)), COLUMNS)
    return cell


def test_rows_go_back_to_the_order_of_the_log(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    ready = prepare(cell, [PREDICTORS["logit_qmax"]], folds=3)
    assert ready.frame[ready.log_order].equals(cell.rows)
    np.testing.assert_array_equal(ready.rows.accepted, ready.frame["accepted"].to_numpy())
    np.testing.assert_array_equal(ready.rows.position, ready.frame["position"].to_numpy())
    feature = ready.frame["logit_qmax"].cast(pl.Float64).to_numpy()
    np.testing.assert_array_equal(ready.features["logit_qmax"], feature)
    assert ready.dropped == {"feature_null": 0, "untrained_position": 0}


def test_folds_are_those_of_the_rule(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    ready = prepare(cell, [PREDICTORS["logit_qmax"]], folds=3)
    dataset, prompt = (
        ready.frame[name].to_numpy().astype(np.int64) for name in ("dataset", "prompt")
    )
    np.testing.assert_array_equal(ready.rows.fold, assign_folds(dataset, prompt, 3))
    assert ready.rows.num_folds == 3
    in_sample = prepare(cell, [PREDICTORS["logit_qmax"]], folds=None)
    assert in_sample.rows.num_folds == 1
    assert (in_sample.rows.fold == 0).all()


def test_no_more_folds_than_prompts(tmp_path: Path) -> None:
    ready = prepare(make_cell(tmp_path / "two", prompts=2), [PREDICTORS["entropy"]], folds=5)
    assert ready.rows.num_folds == 2
    [note] = ready.notes
    assert str(note) == "2 folds instead of 5, because there are no more prompts"
    alone = make_cell(tmp_path / "one", prompts=1)
    with pytest.raises(InputError, match="at least 2 prompts"):
        prepare(alone, [PREDICTORS["entropy"]])
    assert prepare(alone, [PREDICTORS["entropy"]], folds=None).rows.num_folds == 1


def test_a_gap_costs_the_predictor_or_the_rows(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    gaps = cell.rows["overlap"].null_count()
    both = [PREDICTORS["logit_qmax"], PREDICTORS["overlap"]]
    all_rows = prepare(cell, both)
    assert [predictor.name for predictor in all_rows.predictors] == ["logit_qmax"]
    assert len(all_rows.frame) == len(cell.rows)
    [note] = [str(note) for note in all_rows.notes]
    share = f"null on {gaps} of {len(cell.rows)} rows"
    assert note == f"overlap is left out: column overlap is {share}"
    chosen = prepare(cell, both, chosen=True)
    assert [predictor.name for predictor in chosen.predictors] == ["logit_qmax", "overlap"]
    assert chosen.dropped["feature_null"] == gaps
    assert len(chosen.frame) == len(cell.rows) - gaps


def test_a_position_that_one_fold_alone_has_is_left_out(tmp_path: Path) -> None:
    rows = [proposal(step, [True, step % 2 == 0], request=step % 4) for step in range(16)]
    for step, last in ((20, True), (21, False)):
        rows.append(proposal(step, [True, True, last], request=1))
    log = open_log(write_log(tmp_path, rows, num_speculative_tokens=3))
    [cell] = read_cells(log, ["logit_qmax"])
    ready = prepare(cell, [PREDICTORS["logit_qmax"]], folds=4)
    assert ready.dropped["untrained_position"] == 2
    assert ready.rows.position.max() == 1
    assert "2 rows at positions [2] are left out" in str(ready.notes[0])
    assert prepare(cell, [PREDICTORS["logit_qmax"]], folds=None).rows.position.max() == 2


def test_labels_of_one_class_are_refused(tmp_path: Path) -> None:
    log = open_log(write_log(tmp_path, [proposal(s, [True, True], request=s) for s in range(4)]))
    [cell] = read_cells(log, ["logit_qmax"])
    with pytest.raises(InputError, match="one class only: 8 accepted, 0 rejected"):
        prepare(cell, [PREDICTORS["logit_qmax"]])


def test_of_a_trimmed_log_only_the_trimmer_is_refitted(tmp_path: Path) -> None:
    cell = make_cell(tmp_path, adaptive_verification="entropy")
    trimmer, other = PREDICTORS["entropy"], PREDICTORS["logit_qmax"]
    refuse_trimmed([cell], [trimmer], allowed=False)
    refuse_trimmed([cell], [trimmer, other], allowed=True)
    with pytest.raises(InputError, match="refit only entropy .*--allow-trimmed"):
        refuse_trimmed([cell], [trimmer, other], allowed=False)
