"""What a fit is worth elsewhere and with less: transfer between workloads, and learning curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from draftlab import metrics
from draftlab.metrics.intervals import mean_interval
from draftlab.parallel import run_threads
from draftlab.predictors.logistic import Fit, fit_logistic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab._types import FloatArray, IntArray
    from draftlab.grading.rows import GradedRows

SIZES = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000)
"""Labelled drafts per position, on average, of a learning curve."""
_TRANSFER = {
    "trained_on": pl.String,
    "graded_on": pl.String,
    "n": pl.Int64,
    "n_prompts": pl.Int64,
    "mean_prediction": pl.Float64,
    "rate": pl.Float64,
    "auc": pl.Float64,
    "log_loss": pl.Float64,
    "log_loss_cost": pl.Float64,
    "log_loss_cost_low": pl.Float64,
    "log_loss_cost_high": pl.Float64,
    "ece": pl.Float64,
}
_LEARNING = {
    "rows_per_position": pl.Int64,
    "repeats": pl.Int32,
    "n_train": pl.Float64,
    "n_groups_train": pl.Float64,
    "auc": pl.Float64,
    "auc_sd": pl.Float64,
    "log_loss": pl.Float64,
    "log_loss_sd": pl.Float64,
}


def transfer_table(rows: GradedRows, feature: FloatArray, full: Fit) -> pl.DataFrame:
    """Fit on each dataset and grade on each, always on prompts that the fit did not see.

    Cross-fitted on the diagonal and off it alike, so that the cost of a foreign fit is not mixed
    with that of fewer rows. ``full`` is the fit on all rows, from which the others start.

    Returns
    -------
    polars.DataFrame
        trained_on, graded_on, n, n_prompts, mean_prediction, rate, auc (within folds, weighted by
        pairs), log_loss, log_loss_cost (less that of the dataset's own fit on the same rows),
        log_loss_cost_low and _high (95 % by group), ece.
    """
    names = rows.datasets
    codes = range(len(names))
    logits = run_threads(lambda code: _foreign_log_odds(rows, feature, code, full), codes)
    tables = []
    for trained in range(len(names)):
        for graded in range(len(names)):
            here = (rows.dataset == graded) & np.isfinite(logits[trained] + logits[graded])
            if here.any():
                names_of = {"trained_on": names[trained], "graded_on": names[graded]}
                own, foreign = logits[graded][here], logits[trained][here]
                tables.append(names_of | _compare(rows, np.flatnonzero(here), foreign, own))
    return pl.DataFrame(tables, schema=_TRANSFER)


def learning_table(
    rows: GradedRows, feature: FloatArray, full: Fit, *, seed: int = 0
) -> pl.DataFrame:
    """Grade fits on ever more labelled drafts, whole prompts at a time, on held-out folds.

    Each fold is held out once, and training prompts are drawn from the others in random order
    until there are enough rows. ``full`` is the fit on all rows, from which the others start.

    Returns
    -------
    polars.DataFrame
        rows_per_position (wanted, on average), repeats (folds), n_train and n_groups_train
        (mean), auc and log_loss on the held-out fold (mean), auc_sd, log_loss_sd over the folds.
        The last row uses every training row.
    """
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(np.unique(rows.group[rows.fold != f])) for f in range(rows.num_folds)]
    most = len(feature) * (1 - 1 / max(rows.num_folds, 2)) / rows.num_positions
    wanted = [size for size in SIZES if size < most] + [int(most)]
    sizes = [*wanted[:-1], len(feature)]
    by_fold = run_threads(
        lambda fold: _learn(rows, feature, fold, orders[fold], sizes, full), range(rows.num_folds)
    )
    tables = []
    for size, folds in zip(wanted, zip(*by_fold, strict=True), strict=True):
        n, groups, auc, loss = np.array(folds).T
        tables.append(
            {
                "rows_per_position": size,
                "repeats": len(folds),
                "n_train": float(n.mean()),
                "n_groups_train": float(groups.mean()),
                "auc": float(auc.mean()),
                "auc_sd": float(auc.std(ddof=1)) if len(folds) > 1 else float("nan"),
                "log_loss": float(loss.mean()),
                "log_loss_sd": float(loss.std(ddof=1)) if len(folds) > 1 else float("nan"),
            }
        )
    return pl.DataFrame(tables, schema=_LEARNING)


def _foreign_log_odds(
    rows: GradedRows, feature: FloatArray, dataset: int, start: Fit
) -> FloatArray:
    """Return log-odds of all rows by fits on one dataset without the row's fold."""
    logit = np.full(len(feature), np.nan)
    of_dataset = rows.dataset == dataset
    for fold, held_out in enumerate(rows.fold_slices):
        train = np.flatnonzero(of_dataset & ((rows.fold != fold) | (rows.num_folds == 1)))
        if len(train):
            start = _fit(rows, feature, train, start)
            logit[held_out] = start.log_odds(feature[held_out], rows.position[held_out])
    return logit


def _fit(rows: GradedRows, feature: FloatArray, train: IntArray, start: Fit) -> Fit:
    return fit_logistic(
        feature[train], rows.position[train], rows.accepted[train], rows.num_positions, start=start
    )


def _compare(
    rows: GradedRows, here: IntArray, foreign: FloatArray, own: FloatArray
) -> dict[str, float | int]:
    y, prob = rows.accepted[here], metrics.probability(foreign)
    cost = metrics.row_log_loss(y, foreign) - metrics.row_log_loss(y, own)
    interval = mean_interval(cost, rows.group[here])
    return {
        "n": len(here),
        "n_prompts": len(np.unique(rows.group[here])),
        "mean_prediction": float(prob.mean()),
        "rate": float(y.mean()),
        "auc": metrics.auc(y, foreign, rows.fold[here]),
        "log_loss": metrics.log_loss(y, foreign),
        "log_loss_cost": interval.estimate,
        "log_loss_cost_low": interval.low,
        "log_loss_cost_high": interval.high,
        "ece": metrics.ece(y, prob),
    }


class _Learnt(NamedTuple):
    """Training rows and groups, and the grades of the held-out fold."""

    n: int
    groups: int
    auc: float
    log_loss: float


def _learn(
    rows: GradedRows,
    feature: FloatArray,
    fold: int,
    order: IntArray,
    sizes: Sequence[int],
    fit: Fit,
) -> list[_Learnt]:
    """Return what each size (rising) reaches on one held-out fold."""
    reached = np.cumsum(np.bincount(rows.group, minlength=int(order.max()) + 1)[order])
    held_out = rows.fold_slices[fold] if rows.num_folds > 1 else slice(None)
    y, x, k = rows.accepted[held_out], feature[held_out], rows.position[held_out]
    learnt = []
    for size in reversed(sizes):  # the fit on more rows is a good start for that on fewer
        enough = int(np.searchsorted(reached, size * rows.num_positions)) + 1
        chosen = np.zeros(int(rows.group.max()) + 1, dtype=np.bool_)
        chosen[order[:enough]] = True
        train = np.flatnonzero(chosen[rows.group])
        fit = _fit(rows, feature, train, fit)
        # a position that the few rows do not reach is predicted as the deepest one that they do
        logit = fit.slope * x + _filled(fit.intercepts)[k]
        grades = metrics.auc(y, logit), metrics.log_loss(y, logit)
        learnt.append(_Learnt(len(train), min(enough, len(order)), *grades))
    return learnt[::-1]


def _filled(intercepts: FloatArray) -> FloatArray:
    known = pl.Series(intercepts).fill_nan(None)
    return known.fill_null(strategy="forward").fill_null(strategy="backward").to_numpy()
