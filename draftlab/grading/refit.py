"""Fit a predictor in every way that an evaluation asks for, and tabulate the coefficients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from draftlab.predictors.logistic import (
    FALLBACK_RIDGE,
    Fit,
    fit_logistic,
    fit_logistic_folds,
    fit_own_slopes,
)
from draftlab.predictors.uncertainty import HalfWidths, coefficient_intervals
from draftlab.results import Note

if TYPE_CHECKING:
    from draftlab._types import FloatArray, IntArray
    from draftlab.grading.rows import GradedRows
    from draftlab.predictors.baselines import Fitter, Predictor

_SCHEMA = {
    "predictor": pl.String,
    "dataset": pl.String,
    "fold": pl.Int16,
    "position": pl.Int16,
    "slope": pl.Float64,
    "slope_low": pl.Float64,
    "slope_high": pl.Float64,
    "intercept": pl.Float64,
    "intercept_low": pl.Float64,
    "intercept_high": pl.Float64,
    "n": pl.Int64,
    "status": pl.String,
    "ridge": pl.Float64,
    "iterations": pl.Int32,
    "log_likelihood": pl.Float64,
}


def refit(
    predictor: Predictor, rows: GradedRows, feature: FloatArray, *, slope_per_position: bool = False
) -> tuple[FloatArray, FloatArray, list[pl.DataFrame]]:
    """Fit a predictor on all rows, on each dataset alone, and without each fold.

    Parameters
    ----------
    predictor : Predictor
    rows : GradedRows
    feature : (n,) float64
    slope_per_position : bool
        One slope per position instead of a shared one.

    Returns
    -------
    slopes, intercepts : (F, K) float64
        What predicts the rows of each fold; 1 and 0 where nothing is fitted.
    tables : list of polars.DataFrame
        Coefficients of every fit, one row per position; with 95 % by group where all rows, or
        all of a dataset, are fitted to a feature.
    """
    shape = (rows.num_folds, rows.num_positions)
    if predictor.fit is None:
        return np.ones(shape), np.zeros(shape), []

    def fit(rows_of: slice | IntArray, fitter: Fitter) -> Fit:
        return fitter(
            feature[rows_of], rows.position[rows_of], rows.accepted[rows_of], rows.num_positions
        )

    logistic = fit_own_slopes if slope_per_position else fit_logistic
    is_logistic = predictor.fit is fit_logistic
    full = fit(slice(None), logistic if is_logistic else predictor.fit)
    # the fit on all rows is a good start for the others
    part = partial(logistic, start=full) if is_logistic else predictor.fit

    def spread(rows_of: slice | IntArray, fitted: Fit) -> HalfWidths | None:
        if not is_logistic:
            return None
        return coefficient_intervals(
            fitted,
            feature[rows_of],
            rows.position[rows_of],
            rows.accepted[rows_of],
            rows.group[rows_of],
            slope_per_position=slope_per_position,
        )

    every = slice(None)
    tables = [_table(predictor.name, None, None, full, spread(every, full))]
    for code, dataset in enumerate(rows.datasets):
        index = np.flatnonzero(rows.dataset == code)
        if len(index):
            fitted = fit(index, part)
            tables.append(_table(predictor.name, dataset, None, fitted, spread(index, fitted)))
    fits = [full]
    if rows.num_folds > 1:
        data = (feature, rows.position, rows.accepted, rows.num_positions)
        if is_logistic and not slope_per_position:
            fits = fit_logistic_folds(*data, rows.fold_slices, full)
        else:
            fits = [fit(np.flatnonzero(rows.fold != f), part) for f in range(rows.num_folds)]
        tables += [_table(predictor.name, None, fold, fitted) for fold, fitted in enumerate(fits)]
    return np.stack([f.slopes for f in fits]), np.stack([f.intercepts for f in fits]), tables


def no_coefficients() -> pl.DataFrame:
    """Return the table of coefficients without a row."""
    return pl.DataFrame(schema=_SCHEMA)


def fit_notes(coefficients: pl.DataFrame) -> list[Note]:
    """Return a note for each predictor with fits that did not converge."""
    fits = coefficients.unique(["predictor", "dataset", "fold"], maintain_order=True)
    counts = fits.group_by("predictor", "status", maintain_order=True).len()
    totals = dict(fits.group_by("predictor").len().iter_rows())
    return [
        Note(
            f"fit_{status}",
            f"{predictor}: {count} of {totals[predictor]} fits {status.replace('_', ' ')}"
            + (f", held by a ridge of {FALLBACK_RIDGE}" if status == "separable" else ""),
        )
        for predictor, status, count in counts.iter_rows()
        if status != "converged"
    ]


def _table(
    predictor: str,
    dataset: str | None,
    fold: int | None,
    fit: Fit,
    spread: HalfWidths | None = None,
) -> pl.DataFrame:
    K = len(fit.intercepts)
    slopes, intercepts = spread or (np.full(K, np.nan), np.full(K, np.nan))
    return pl.DataFrame(
        {
            "predictor": [predictor] * K,
            "dataset": [dataset] * K,
            "fold": [fold] * K,
            "position": range(K),
            "slope": fit.slopes,
            "slope_low": fit.slopes - slopes,
            "slope_high": fit.slopes + slopes,
            "intercept": fit.intercepts,
            "intercept_low": fit.intercepts - intercepts,
            "intercept_high": fit.intercepts + intercepts,
            "n": fit.counts,
            "status": [fit.status] * K,
            "ridge": [fit.ridge] * K,
            "iterations": [fit.iterations] * K,
            "log_likelihood": [fit.log_likelihood] * K,
        },
        schema=_SCHEMA,
    )
