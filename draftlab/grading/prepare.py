"""Rows of a cell, ready to be fitted and graded: which rows, which folds, which features."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from draftlab.errors import InputError
from draftlab.grading.folds import assign_folds, fold_by_prompt
from draftlab.grading.rows import GradedRows, arrange
from draftlab.predictors.baselines import Features, Predictor
from draftlab.results import Note

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from draftlab._types import IntArray
    from draftlab.grading.cells import Cell

NUM_FOLDS = 5


def refuse_trimmed(cells: Sequence[Cell], asked: list[Predictor], allowed: bool) -> None:
    """Refuse cells that were trimmed live, unless only the trimmer is refitted."""
    names = {predictor.name for predictor in asked}
    for cell in cells:
        if not cell.trimmed or allowed or names == {cell.trimmed_by}:
            continue
        way_out = ""
        if cell.trimmed_by is not None:
            way_out = f", refit only {cell.trimmed_by} (--predictor {cell.trimmed_by})"
        raise InputError(
            f"run {cell.run}: adaptive verification "
            f"({cell.metadata['adaptive_verification']}) chose which drafts were verified, "
            f"so grades of predictors are biased; log with it off{way_out}, or pass "
            "--allow-trimmed"
        )


class Prepared(NamedTuple):
    """Rows of one cell, ready to be fitted and graded; arrays are in the order of ``rows``."""

    predictors: list[Predictor]
    """Those whose columns are on every row."""
    frame: pl.DataFrame
    rows: GradedRows
    features: Features
    log_order: IntArray
    """What puts the rows into log order."""
    fold_of_prompt: IntArray
    """(prompts of the cell,): -1 where none of its rows is graded."""
    dropped: dict[str, int]
    """Eligible labelled rows that are left out, by reason."""
    notes: list[Note]


def prepare(
    cell: Cell,
    predictors: list[Predictor],
    *,
    folds: int | None = NUM_FOLDS,
    chosen: bool = False,
) -> Prepared:
    """Choose the rows that all predictors share, deal them into folds and compute features.

    Parameters
    ----------
    cell : Cell
    predictors : list of Predictor
    folds : int, optional
        None is in sample: one fold that is trained on itself.
    chosen : bool
        The predictors decide on the rows, instead of being left out for a null.

    Raises
    ------
    InputError
        No row to grade, one class, or one group only with folds.
    """
    dropped: dict[str, int] = {}
    kept, frame, notes = _select(cell, predictors, chosen, dropped)
    frame, rows, log_order = _fold(cell, frame, folds, dropped, notes)
    return Prepared(
        predictors=kept,
        frame=frame,
        rows=rows,
        features=Features(kept, frame),
        log_order=log_order,
        fold_of_prompt=fold_by_prompt(frame["prompt"].to_numpy(), rows.fold, len(cell.prompts)),
        dropped=dropped,
        notes=notes,
    )


def _select(
    cell: Cell, predictors: list[Predictor], chosen: bool, dropped: dict[str, int]
) -> tuple[list[Predictor], pl.DataFrame, list[Note]]:
    """Return the predictors to grade and the rows that have all their columns."""
    everywhere = {"logit_qmax"}
    if chosen:
        everywhere = {column for predictor in predictors for column in predictor.columns}
    frame = cell.rows.drop_nulls(sorted(everywhere))
    dropped["feature_null"] = len(cell.rows) - len(frame)
    _refuse_ungradable(cell, frame, sorted(everywhere))
    nulls = {column: frame[column].null_count() for p in predictors for column in p.columns}
    kept, notes = [], []
    for predictor in predictors:
        lacking = [column for column in predictor.columns if nulls[column]]
        if not lacking:
            kept.append(predictor)
            continue
        count = nulls[lacking[0]]
        share = "not recorded" if count == len(frame) else f"null on {count} of {len(frame)} rows"
        text = f"{predictor.name} is left out: column {lacking[0]} is {share}"
        notes.append(Note("predictor_left_out", text))
    return kept, frame, notes


def _refuse_ungradable(cell: Cell, frame: pl.DataFrame, columns: list[str]) -> None:
    if frame.is_empty():
        total = cell.counts.select("proposed", "labelled").sum().row(0)
        raise InputError(
            f"run {cell.run} ({cell.drafting}): no row to grade: {total[0]} eligible proposed "
            f"rows, {total[1]} labelled rows, {len(cell.rows)} both and of a known request, 0 of "
            f"them with {', '.join(columns)}; draftlab inspect names what is missing"
        )
    num_accepted = int(frame["accepted"].sum())
    if num_accepted in (0, len(frame)):
        raise InputError(
            f"run {cell.run} ({cell.drafting}): labels of one class only: {num_accepted} "
            f"accepted, {len(frame) - num_accepted} rejected; log more drafts, or requests that "
            "are sampled otherwise"
        )


def _fold(
    cell: Cell,
    frame: pl.DataFrame,
    folds: int | None,
    dropped: dict[str, int],
    notes: list[Note],
) -> tuple[pl.DataFrame, GradedRows, IntArray]:
    """Assign folds; leave out positions that a fold would have to predict without training.

    Returns the rows that are left, in the order of `GradedRows`, and what puts them into log order.
    """
    if folds is None:
        return _rows(cell, frame, np.zeros(len(frame), dtype=np.int64), 1)
    num_prompts = frame["prompt"].n_unique()
    num_folds = min(folds, num_prompts)
    if num_folds < 2:
        raise InputError(
            f"run {cell.run} ({cell.drafting}): cross-fitting needs at least 2 prompts, the "
            "graded rows have 1; log more prompts, or grade in sample (evaluate(in_sample=True), "
            "draftlab evaluate --in-sample)"
        )
    if num_folds < folds:
        text = f"{num_folds} folds instead of {folds}, because there are no more prompts"
        notes.append(Note("fewer_folds", text))
    codes = {name: frame[name].to_numpy().astype(np.int64) for name in ("dataset", "prompt")}
    fold = assign_folds(codes["dataset"], codes["prompt"], num_folds)
    position = frame["position"].to_numpy().astype(np.int64)
    present = np.zeros((num_folds, cell.num_positions), dtype=np.bool_)
    present[fold, position] = True
    lonely = np.flatnonzero(present.sum(axis=0) == 1)
    keep = ~np.isin(position, lonely)
    dropped["untrained_position"] = int(np.count_nonzero(~keep))
    if len(lonely):
        text = (
            f"{dropped['untrained_position']} rows at positions {lonely.tolist()} are left out: "
            "all are in one fold, so no other rows could train their intercept"
        )
        notes.append(Note("untrained_position", text))
    frame = frame.filter(keep)
    _refuse_ungradable(cell, frame, ["rows of their position in another fold"])
    return _rows(cell, frame, fold[keep], num_folds)


def _rows(
    cell: Cell, frame: pl.DataFrame, fold: IntArray, num_folds: int
) -> tuple[pl.DataFrame, GradedRows, IntArray]:
    present = cell.present
    dataset, position = (frame[c].to_numpy().astype(np.int64) for c in ("dataset", "position"))
    rows, order = arrange(
        accepted=frame["accepted"].to_numpy(),
        position=position,
        dataset=np.searchsorted(present, dataset),
        fold=fold,
        group=cell.group_codes(frame),
        datasets=tuple(cell.datasets[code] for code in present),
        num_positions=cell.num_positions,
        num_folds=num_folds,
    )
    return frame[order], rows, np.argsort(order)
