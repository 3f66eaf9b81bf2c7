"""Grade survival: predictions that everything up to a position is accepted, on admitted rows.

Conditional predictions meet conditional labels (`grading`, observed rows), survival predictions
meet survival labels (here, every admitted row): the two are never mixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from draftlab.grading.cells import Cell, read_admitted
from draftlab.grading.grade import grade
from draftlab.grading.grid import ProposalGrid, make_grid
from draftlab.grading.rows import GradedRows, arrange
from draftlab.metrics import correlation
from draftlab.metrics.intervals import mean_interval
from draftlab.parallel import run_threads
from draftlab.predictors.baselines import Features, Predictor
from draftlab.predictors.survival import SURVIVAL, SurvivalPredictor, log_odds_of_log, product
from draftlab.results import Note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from draftlab._types import FloatArray, IntArray

PRODUCTS = ("logit_qmax", "qmax", "confidence", "per_position")
"""Conditional predictors whose products are graded unless the user names some."""
LENGTH_BINS = 10
_SCOPES = ("overall", "without_first", "position", "dataset")
SURVIVAL_COLUMNS = (
    *("predictor", "lossless", "fitted", "trimmed", "view", "scope", "dataset", "position"),
    *("n", "n_accepted", "n_prompts"),
    *("mean_prediction", "mean_prediction_low", "mean_prediction_high"),
    *("auc", "auc_low", "auc_high", "log_loss", "log_loss_low", "log_loss_high"),
    *("ece", "ece_bins", "ece_debiased", "ece_null", "ece_null_high"),
    *("brier", "brier_low", "brier_high"),
    *("brier_reliability", "brier_resolution", "brier_uncertainty", "brier_within"),
)
_LENGTHS: dict[str, Any] = {
    "dataset": pl.String,
    "n_proposals": pl.Int64,
    "n_prompts": pl.Int64,
    "expected_accepted": pl.Float64,
    "observed_accepted": pl.Float64,
    "bias": pl.Float64,
    "bias_low": pl.Float64,
    "bias_high": pl.Float64,
    "correlation": pl.Float64,
}
_CALIBRATION: dict[str, Any] = {
    "bin": pl.Int32,
    "low": pl.Float64,
    "high": pl.Float64,
    "n_proposals": pl.Int64,
    "n_prompts": pl.Int64,
    "expected_accepted": pl.Float64,
    "observed_accepted": pl.Float64,
    "observed_accepted_low": pl.Float64,
    "observed_accepted_high": pl.Float64,
}


class Coefficients(NamedTuple):
    """Of one conditional predictor, (F, K) each: learned without the rows of fold f."""

    slopes: FloatArray
    intercepts: FloatArray


class SurvivalTables(NamedTuple):
    """Results, without the columns that name the cell."""

    metrics: pl.DataFrame
    """As the conditional metrics, for the scopes overall, without_first, position and dataset;
    n counts admitted rows, n_accepted those that survived."""
    lengths: pl.DataFrame
    """One row per predictor and dataset (null: all): predictor, lossless, dataset, n_proposals,
    n_prompts, expected_accepted (mean over proposals of the summed survival, the sum that
    adaptive verification budgets with), observed_accepted, bias (expected - observed), bias_low,
    bias_high (95 % by group), correlation."""
    length_calibration: pl.DataFrame
    """Proposals in bins of equal mass by expected length: predictor, bin, low, high,
    n_proposals, n_prompts, expected_accepted, observed_accepted, observed_accepted_low, _high.
    The terms of the sum are predictions made at different times (that of k before x_k is drawn,
    later ones after), so even the oracle's curve is exact in the mean only, not by bin."""
    notes: list[Note]


def grade_survival(
    cell: Cell,
    predictors: Sequence[Predictor],
    coefficients: dict[str, Coefficients],
    fold_of_prompt: IntArray,
    n_bins: int,
    alone: Sequence[str] | None = PRODUCTS,
) -> SurvivalTables:
    """Grade products of conditionals, the lossless hybrid and the lossless oracle.

    Parameters
    ----------
    cell : Cell
    predictors : sequence of Predictor
        Conditional ones; the hybrid and the oracle need theirs among them.
    coefficients : dict of Coefficients
        By predictor: the fold of a proposal chooses.
    fold_of_prompt : (prompts,) int64
        -1: the prompt was not graded.
    n_bins : int
        Equal-width bins of ECE.
    alone : sequence of str, optional
        Predictors whose own product is graded; None is all.
    """
    columns = sorted({column for predictor in predictors for column in predictor.columns})
    frame = read_admitted(cell, columns)
    fold = fold_of_prompt[frame["prompt"].to_numpy()]
    kept = (frame["position"].to_numpy() < _trained(coefficients, cell)) & (fold >= 0)
    if not kept.all():
        frame, fold = frame.filter(kept), fold[kept]
    usable, notes = _usable(predictors, frame)
    if not kept.all():
        text = f"survival: {int((~kept).sum())} sent drafts are left out because no fit covers them"
        notes.append(Note("survival_uncovered", text))
    rows, order = _arrange(cell, frame, fold)
    grid = make_grid(cell, frame, fold_of_prompt)
    features = Features(usable, grid.rows)
    place = grid.place[order]

    def log_odds(name: str) -> FloatArray:
        logit = grid.spread(features[name])
        slopes, intercepts = coefficients[name]
        for fold in range(len(slopes)):
            here = grid.fold == fold
            logit[here] = slopes[fold] * logit[here] + intercepts[fold]
        return logit

    def work(plan: _Plan) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        log_survival = plan.log_survival(log_odds)
        logit = log_odds_of_log(log_survival.reshape(-1)[place])
        expected = np.nansum(np.exp(log_survival), axis=1)
        del log_survival  # arrays of all proposals: at most a few at once
        ones = np.ones((rows.num_folds, rows.num_positions))
        graded = grade(rows, logit, ones, 0 * ones, n_bins, view="survival", scopes=_SCOPES)
        label = {"predictor": pl.lit(plan.name), "lossless": pl.lit(plan.lossless)}
        return (
            graded.table.with_columns(
                **label,
                fitted=pl.lit(plan.fitted),
                trimmed=pl.lit(cell.trimmed),
                view=pl.lit(graded.view),
                ece_bins=pl.lit(n_bins, dtype=pl.Int32),
            ).select(SURVIVAL_COLUMNS),
            _lengths(cell, grid, expected).select(**label, **_all(_LENGTHS)),
            _calibration(grid, expected).select(predictor=label["predictor"], **_all(_CALIBRATION)),
        )

    done = run_threads(work, _plans(cell, usable, alone))
    metrics, lengths, calibration = (pl.concat(tables) for tables in zip(*done, strict=True))
    return SurvivalTables(metrics, lengths, calibration, notes)


class _Plan(NamedTuple):
    """One survival predictor: how to get it from conditional log-odds."""

    name: str
    lossless: bool
    fitted: bool
    log_survival: Callable[[Callable[[str], FloatArray]], FloatArray]


def _plans(cell: Cell, usable: list[Predictor], alone: Sequence[str] | None) -> list[_Plan]:
    known = {predictor.name: predictor for predictor in usable}
    plans = [
        _Plan(
            name,
            predictor.lossless(cell.strictest),
            predictor.fitted,
            lambda log_odds, name=name: product(log_odds(name)),  # type: ignore[misc]
        )
        for name, predictor in known.items()
        if alone is None or name in alone
    ]
    for name, combined in SURVIVAL.items():
        if combined.drawn in known and combined.at_draw in known:
            last = known[combined.at_draw]
            plans.append(
                _Plan(name, last.lossless(cell.strictest), last.fitted, _combine(combined))
            )
    return plans


def _combine(
    combined: SurvivalPredictor,
) -> Callable[[Callable[[str], FloatArray]], FloatArray]:
    return lambda log_odds: combined.combine(log_odds(combined.drawn), log_odds(combined.at_draw))


def _trained(coefficients: dict[str, Coefficients], cell: Cell) -> int:
    """Return how many positions from 0 on have coefficients in every fold."""
    known = np.ones(cell.num_positions, dtype=np.bool_)
    for fit in coefficients.values():
        known &= np.isfinite(fit.intercepts).all(axis=0)
    return int(np.argmin(known)) if not known.all() else cell.num_positions


def _usable(
    predictors: Sequence[Predictor], frame: pl.DataFrame
) -> tuple[list[Predictor], list[Note]]:
    """Leave out predictors with gaps: rows behind a rejection lack them more often than others."""
    usable, notes = [], []
    for predictor in predictors:
        gaps = [column for column in predictor.columns if frame[column].null_count()]
        if gaps:
            text = f"survival of {predictor.name} is left out: {gaps[0]} has nulls"
            notes.append(Note("survival_left_out", text))
        else:
            usable.append(predictor)
    return usable, notes


def _arrange(cell: Cell, frame: pl.DataFrame, fold: IntArray) -> tuple[GradedRows, IntArray]:
    present = cell.present
    return arrange(
        accepted=frame["survived"].to_numpy(),
        position=frame["position"].to_numpy(),
        dataset=np.searchsorted(present, frame["dataset"].to_numpy()),
        fold=fold,
        group=cell.group_codes(frame),
        datasets=tuple(cell.datasets[code] for code in present),
        num_positions=cell.num_positions,
        num_folds=int(fold.max(initial=0)) + 1,
        view="survival",
    )


def _lengths(cell: Cell, grid: ProposalGrid, expected: FloatArray) -> pl.DataFrame:
    observed = grid.num_survived
    parts: list[tuple[str | None, IntArray]] = [(None, np.arange(len(grid)))]
    parts += [(cell.datasets[d], np.flatnonzero(grid.dataset == d)) for d in cell.present]
    tables = []
    for name, part in parts:
        if len(part) == 0:
            continue
        bias, half, num_prompts = _mean_by_group(expected[part] - observed[part], grid.group[part])
        tables.append(
            {
                "dataset": name,
                "n_proposals": len(part),
                "n_prompts": num_prompts,
                "expected_accepted": float(expected[part].mean()),
                "observed_accepted": float(observed[part].mean()),
                "bias": bias,
                "bias_low": bias - half,
                "bias_high": bias + half,
                "correlation": correlation(expected[part], observed[part]),
            }
        )
    return pl.DataFrame(tables, schema=_LENGTHS)


def _calibration(grid: ProposalGrid, expected: FloatArray) -> pl.DataFrame:
    observed = grid.num_survived
    edges = np.quantile(expected, np.linspace(0, 1, LENGTH_BINS + 1))
    index = np.searchsorted(edges[1:-1], expected, side="right")
    tables = []
    for code in np.unique(index).tolist():
        part = index == code
        rate, half, num_prompts = _mean_by_group(observed[part], grid.group[part])
        tables.append(
            {
                "bin": code,
                "low": float(edges[code]),
                "high": float(edges[code + 1]),
                "n_proposals": int(part.sum()),
                "n_prompts": num_prompts,
                "expected_accepted": float(expected[part].mean()),
                "observed_accepted": rate,
                "observed_accepted_low": rate - half,
                "observed_accepted_high": rate + half,
            }
        )
    return pl.DataFrame(tables, schema=_CALIBRATION)


def _mean_by_group(values: np.ndarray[Any, Any], group: IntArray) -> tuple[float, float, int]:
    interval = mean_interval(values, group)
    return interval.estimate, interval.high - interval.estimate, len(np.unique(group))


def _all(schema: dict[str, Any]) -> dict[str, pl.Expr]:
    return {name: pl.col(name) for name in schema}
