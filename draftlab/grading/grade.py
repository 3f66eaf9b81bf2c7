"""Grade log-odds against labels in every scope at once: arrays in, one small table out.

Sums are taken once over the rows, per fold, position, dataset and group, and added up for the
wider scopes; a predictor costs one sort, whatever the number of scopes. The same sums give
every interval.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from scipy.special import expit

from draftlab import metrics
from draftlab.grading.rows import Clusters, GradedRows, Scope, order_of_values
from draftlab.metrics import divide, row_wins, sum_by
from draftlab.metrics.intervals import auc_influence, bounded, half_width, ratio_influence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.grading.rows import View

SCORES = ("auc", "log_loss", "brier", "mean_prediction")
"""Metrics that have an interval, in the order of `Grade.influence`."""
_WIDTHS = (10, 15, 20)
"""Counts of equal-width bins in use: netcal; torchmetrics and SGLang; DeepSpec."""
_LEAST_BANDWIDTH = 0.02
"""Below it the smooth curve of a calibrated predictor is noise."""
SCORE_LIMIT = 6.0
"""Log-odds at which scores are gathered in the outermost bins."""
_SCORE_BINS = 24
"""Half a unit of log-odds each: the edges are exact."""
_NUM_BINNED = 5
_BRIER_PARTS = ("brier_reliability", "brier_resolution", "brier_uncertainty", "brier_within")
_LIMITS = {
    "auc": (0.0, 1.0),
    "log_loss": (0.0, np.inf),
    "brier": (0.0, 1.0),
    "mean_prediction": (0.0, 1.0),
}


class Grade(NamedTuple):
    """What one predictor scored."""

    table: pl.DataFrame
    """One row per scope and entry: scope, dataset, position, n, n_accepted, n_prompts,
    mean_prediction, auc, log_loss, ece, ece_debiased, ece_null, ece_null_high, brier, its parts
    brier_reliability, brier_resolution, brier_uncertainty and brier_within, and _low and _high
    of `SCORES`."""
    reliability: pl.DataFrame
    """One row per bin over all rows: bin, low, high, n, n_accepted, mean_prediction, rate."""
    calibration: dict[str, pl.DataFrame]
    """Of the conditional view, over all rows; empty in the survival view and of some scopes.
    ``ece_conventions``: bins, n_bins, value, ece, ece_null (what perfect calibration would show;
    NaN where that is not known). ``smooth_curves``: bandwidth, prob, rate, density.
    ``scores``: low, high, n_accepted, n_rejected by log-odds."""
    logit: FloatArray
    """(n,): the log-odds that were graded."""
    influence: dict[str, FloatArray]
    """By scope, (4, clusters): what each group adds to each of `SCORES`, to first order."""
    view: View


class _Sums(NamedTuple):
    """Sums over rows: the first `_NUM_BINNED` by cell and bin (D * K, n_bins), then by unit."""

    n: IntArray
    accepted: IntArray
    predicted: FloatArray
    variance: FloatArray
    predicted_accepted: FloatArray
    unit_loss: FloatArray
    unit_squares: FloatArray
    unit_predicted: FloatArray


class Orders:
    """Rows of each fold and position sorted by a feature, remembered for its monotone kin.

    log qmax, log-odds and loglog of one column share an order: to see that values rise along a
    known order is far cheaper than to sort them.
    """

    def __init__(self, rows: GradedRows) -> None:
        self._rows = rows
        self._known: list[list[list[IntArray]]] = []

    def of(self, feature: FloatArray) -> list[list[IntArray]]:
        """Return, for each fold and position, the rows in rising order of the feature."""
        for orders in tuple(self._known):
            if all(_rises(feature, order) for fold in orders for order in fold):
                return orders
        orders = [
            [part.start + order_of_values(feature[part]) for part in parts]
            for parts in self._rows.fold_position_slices
        ]
        self._known.append(orders)
        return orders


def grade(
    rows: GradedRows,
    feature: FloatArray,
    slopes: FloatArray,
    intercepts: FloatArray,
    n_bins: int,
    *,
    orders: Orders | None = None,
    view: View = "conditional",
    scopes: Sequence[str] | None = None,
) -> Grade:
    """Grade log-odds w f + b, with the coefficients of each row's fold and position.

    Parameters
    ----------
    rows : GradedRows
    feature : (n,) float64
    slopes, intercepts : (F, K) float64
        Learned without the rows of fold f, or in sample with F = 1.
    n_bins : int
        Equal-width bins of ECE.
    orders : Orders, optional
        To share sorts between predictors.
    view : {"conditional", "survival"}
        What the log-odds predict; the labels of the rows must be of the same view.
    scopes : sequence of str, optional
        All unless told.

    Returns
    -------
    Grade
        AUC is the mean over folds of the AUC within a fold, weighted by its pairs: scores of
        different fits have no common order. The other numbers pool all rows.

    Raises
    ------
    ValueError
        The views differ.
    """
    if view != rows.view:
        raise ValueError(f"{view} predictions do not meet {rows.view} labels: the views never mix")
    wanted = [scope for scope in rows.scopes if scopes is None or scope.name in scopes]
    logit = _log_odds(rows, feature, slopes, intercepts)
    prob: FloatArray = expit(logit)
    fine = _sum_rows(rows, logit, prob, math.lcm(n_bins, *_WIDTHS))
    calibration = {}
    if view == "conditional" and scopes is None:
        conventions = _conventions(rows, prob, fine, n_bins)
        calibration = {
            "ece_conventions": conventions,
            "smooth_curves": _smooth_curve(rows, prob, conventions),
            "scores": _scores(rows, logit),
        }
    del prob  # arrays of millions of rows: at most a few at once
    sums = _coarser(fine, n_bins)
    by_feature = (orders or Orders(rows)).of(feature)
    wins = _all_wins(rows, wanted, feature, logit, slopes, by_feature)
    tables, influences = [], {}
    for scope in wanted:
        table, influences[scope.name] = _scope_table(rows, scope, sums, wins[scope.name])
        tables.append(table)
    return Grade(
        table=pl.concat(tables),
        reliability=_reliability(sums, n_bins),
        calibration=calibration,
        logit=logit,
        influence=influences,
        view=view,
    )


def _all_wins(
    rows: GradedRows,
    scopes: Sequence[Scope],
    feature: FloatArray,
    logit: FloatArray,
    slopes: FloatArray,
    by_feature: list[list[IntArray]],
) -> dict[str, IntArray]:
    """Return the wins of each unit, by scope.

    Within a position w f + b has the order of sign(w) f. Ranking f itself keeps that order where
    w f + b rounds distinct features to one number, so that monotone features agree exactly.
    """
    wins = {}
    ranked = _rank(rows, feature, (np.concatenate(parts) for parts in by_feature))
    for scope in scopes:
        if scope.single_position:
            wins[scope.name] = _turn(rows, scope, _unit_wins(rows, scope, ranked), slopes)
    ranked = _rank(rows, logit, _merge(logit, by_feature, slopes))
    for scope in scopes:
        if not scope.single_position:
            wins[scope.name] = _unit_wins(rows, scope, ranked)
    return wins


def _log_odds(
    rows: GradedRows, feature: FloatArray, slopes: FloatArray, intercepts: FloatArray
) -> FloatArray:
    logit = np.empty(len(feature))
    for fold, parts in enumerate(rows.fold_position_slices):
        for position, part in enumerate(parts):
            logit[part] = slopes[fold, position] * feature[part] + intercepts[fold, position]
    return logit


def _sum_rows(rows: GradedRows, logit: FloatArray, prob: FloatArray, n_bins: int) -> _Sums:
    code = rows.cell.astype(np.int64) * n_bins + metrics.bin_index(prob, metrics.bin_edges(n_bins))
    shape = (rows.num_cells, n_bins)
    size = rows.num_cells * n_bins
    accepted_code, accepted_prob = code[rows.accepted], prob[rows.accepted]
    return _Sums(
        n=np.bincount(code, minlength=size).reshape(shape),
        accepted=np.bincount(accepted_code, minlength=size).reshape(shape),
        predicted=sum_by(code, prob, size).reshape(shape),
        variance=sum_by(code, prob * (1 - prob), size).reshape(shape),
        predicted_accepted=sum_by(accepted_code, accepted_prob, size).reshape(shape),
        unit_loss=rows.sum_units(metrics.row_log_loss(rows.accepted, logit)),
        unit_squares=rows.sum_units((prob - rows.accepted) ** 2),
        unit_predicted=rows.sum_units(prob),
    )


def _coarser(sums: _Sums, n_bins: int) -> _Sums:
    """Add up bins: the edges of the coarser ones are among those of the finer ones."""
    by_bin = [total.reshape(len(total), n_bins, -1).sum(axis=2) for total in sums[:_NUM_BINNED]]
    return _Sums(*by_bin, *sums[_NUM_BINNED:])


def _conventions(rows: GradedRows, prob: FloatArray, fine: _Sums, n_bins: int) -> pl.DataFrame:
    """Grade all rows by every convention that is in use: the number moves with them."""
    kinds: list[tuple[str, int | None, str]] = [
        *(("width", n, "mean") for n in sorted({*_WIDTHS, n_bins})),
        ("width", 20, "centre"),
        ("mass", n_bins, "mean"),
        ("smooth", None, "none"),
    ]
    values: list[tuple[float, float]] = []
    for bins, count, value in kinds:
        if count is None:
            values.append((metrics.smooth_ece(rows.accepted, prob), float("nan")))
        elif bins == "mass":
            values.append(metrics.ece_and_null(rows.accepted, prob, n_bins=count, bins="mass"))
        else:
            values.append(_width_convention(fine, count, value))
    return pl.DataFrame(
        {
            "view": ["conditional"] * len(kinds),
            "bins": [bins for bins, _, _ in kinds],
            "n_bins": pl.Series([count for _, count, _ in kinds], dtype=pl.Int32),
            "value": [value for _, _, value in kinds],
            "ece": [error for error, _ in values],
            "ece_null": [null for _, null in values],
        }
    )


def _smooth_curve(rows: GradedRows, prob: FloatArray, conventions: pl.DataFrame) -> pl.DataFrame:
    """Return the calibration curve under the kernel of smooth ECE, on an even grid."""
    [error] = conventions.filter(bins="smooth")["ece"]
    bandwidth = max(_LEAST_BANDWIDTH, float(np.nan_to_num(error)))
    curve = metrics.smooth_curve(rows.accepted, prob, bandwidth=bandwidth)
    return pl.DataFrame(curve._asdict()).select(pl.lit(bandwidth).alias("bandwidth"), pl.all())


def _scores(rows: GradedRows, logit: FloatArray) -> pl.DataFrame:
    """Count rows by log-odds and label; the outermost bins hold all beyond."""
    low, high = -SCORE_LIMIT, SCORE_LIMIT
    place = (np.clip(logit, low, high) - low) * (_SCORE_BINS / (high - low))
    index = np.minimum(place.astype(np.int64), _SCORE_BINS - 1)
    edges = np.linspace(low, high, _SCORE_BINS + 1)
    counts = (np.bincount(index[c], minlength=_SCORE_BINS) for c in (rows.accepted, ~rows.accepted))
    named = dict(zip(("n_accepted", "n_rejected"), counts, strict=True))
    return pl.DataFrame({"low": edges[:-1], "high": edges[1:], **named})


def _width_convention(fine: _Sums, n_bins: int, value: str) -> tuple[float, float]:
    total = [by_cell.sum(axis=0) for by_cell in _coarser(fine, n_bins)[:_NUM_BINNED]]
    n, accepted, predicted, variance = total[:4]
    if value == "centre":
        edges = metrics.bin_edges(n_bins)
        middle = n * (edges[:-1] + edges[1:]) / 2
        return float(metrics.ece_of_bins(n, accepted, middle)), float("nan")
    null, _ = metrics.ece_null_of_bins(n, variance)
    return float(metrics.ece_of_bins(n, accepted, predicted)), float(null)


def _rises(feature: FloatArray, order: IntArray) -> bool:
    """Whether the values rise along an order; a look at the first rows mostly suffices."""
    for part in (order[:1000], order):
        values = feature[part]
        if np.any(values[1:] < values[:-1]):
            return False
    return True


def _merge(
    logit: FloatArray, by_feature: list[list[IntArray]], slopes: FloatArray
) -> Iterator[IntArray]:
    """Yield the rows of each fold in rising order of log-odds.

    Within a position the order of the feature is known: a stable sort merges its rising runs.
    """
    for fold, parts in enumerate(by_feature):
        runs = [
            order[::-1] if slopes[fold, position] < 0 else order
            for position, order in enumerate(parts)
        ]
        joined = np.concatenate(runs)
        yield joined[np.argsort(logit[joined], kind="stable")]


class _Ranked(NamedTuple):
    """Rows of one fold in rising order of a score; gathered once for several scopes."""

    order: IntArray
    score: FloatArray
    accepted: BoolArray


def _rank(rows: GradedRows, score: FloatArray, orders: Iterable[IntArray]) -> list[_Ranked]:
    return [_Ranked(order, score[order], rows.accepted[order]) for order in orders]


def _unit_wins(rows: GradedRows, scope: Scope, ranked: Sequence[_Ranked]) -> IntArray:
    """Return twice the pairs that the rows of each unit win, (units inside the scope,)."""
    wins = np.zeros(len(rows.fold), dtype=np.int64)
    for fold in ranked:
        order, score, accepted = fold
        first = np.zeros(len(order), dtype=np.bool_)
        first[:1] = True
        if len(scope) > 1 or scope.entry_of_cell.min() < 0:
            entry = rows.entries[scope.name][order]
            if scope.entry_of_cell.min() < 0:
                inside = np.flatnonzero(entry >= 0)
                order, score, accepted = order[inside], score[inside], accepted[inside]
                entry = entry[inside]
            if np.any(entry[1:] < entry[:-1]):
                # a radix sort of small integers, which keeps the order of the scores
                regrouped = np.argsort(entry, kind="stable")
                order, score, accepted = order[regrouped], score[regrouped], accepted[regrouped]
                entry = entry[regrouped]
            first = np.ones(len(order), dtype=np.bool_)
            first[1:] = entry[1:] != entry[:-1]
        wins[order] = row_wins(accepted, score, first)
    by_unit = rows.sum_units(wins)
    return np.asarray(by_unit[rows.clusters[scope.name].inside])


def _turn(rows: GradedRows, scope: Scope, wins: IntArray, slopes: FloatArray) -> IntArray:
    """Turn wins of the feature into wins of w f: reversed if w < 0, all ties if w = 0."""
    clusters = rows.clusters[scope.name]
    units = rows.units
    slope = slopes[units.fold[clusters.inside], units.position[clusters.inside]]
    chances = clusters.chances
    return np.select([slope > 0, slope < 0], [wins, chances - wins], chances // 2)


def _scope_table(
    rows: GradedRows, scope: Scope, sums: _Sums, wins: IntArray
) -> tuple[pl.DataFrame, FloatArray]:
    n, accepted, predicted, variance, predicted_accepted = (
        scope.total(by_cell) for by_cell in sums[:_NUM_BINNED]
    )
    clusters = rows.clusters[scope.name]
    size = clusters.total(rows.units.n[clusters.inside])
    above = {
        "log_loss": sums.unit_loss,
        "brier": sums.unit_squares,
        "mean_prediction": sums.unit_predicted,
    }
    ratios = {
        name: ratio_influence(
            clusters.total(by_unit[clusters.inside]), size, clusters.entry, len(scope)
        )
        for name, by_unit in above.items()
    }
    ratios["auc"] = auc_influence(
        clusters.total(wins),
        clusters.total(clusters.chances),
        clusters.entry,
        clusters.fold,
        len(scope),
    )
    null, null_high = metrics.ece_null_of_bins(n, variance)
    columns: dict[str, Any] = {
        "scope": [scope.name] * len(scope),
        "dataset": pl.Series(scope.datasets, dtype=pl.String),
        "position": pl.Series(scope.positions, dtype=pl.Int16),
        "n": n.sum(axis=1),
        "n_accepted": accepted.sum(axis=1),
        "n_prompts": np.bincount(clusters.entry, minlength=len(scope)),
        "ece": metrics.ece_of_bins(n, accepted, predicted),
        "ece_debiased": metrics.ece_debiased_of_bins(n, accepted, predicted),
        "ece_null": null,
        "ece_null_high": null_high,
    }
    parts = metrics.brier_parts_of_bins(n, accepted, predicted, variance, predicted_accepted)
    columns |= dict(zip(_BRIER_PARTS, parts, strict=True))
    for name in SCORES:
        estimate, of_group = ratios[name]
        half = half_width(of_group, clusters.entry, len(scope), strata_of(name, clusters))
        columns[name] = estimate
        columns[f"{name}_low"], columns[f"{name}_high"] = bounded(estimate, half, _LIMITS[name])
    return pl.DataFrame(columns), np.stack([ratios[name][1] for name in SCORES])


def strata_of(name: str, clusters: Clusters) -> IntArray | int:
    """Return the strata that the influence on a metric is centred in: folds, for AUC."""
    return clusters.strata if name == "auc" else 1


def _reliability(sums: _Sums, n_bins: int) -> pl.DataFrame:
    edges = metrics.bin_edges(n_bins)
    n, accepted, predicted = (
        by_bin.sum(axis=0) for by_bin in (sums.n, sums.accepted, sums.predicted)
    )
    return pl.DataFrame(
        {
            "bin": np.arange(n_bins, dtype=np.int32),
            "low": edges[:-1],
            "high": edges[1:],
            "n": n,
            "n_accepted": accepted,
            "mean_prediction": divide(predicted, n),
            "rate": divide(accepted, n),
        }
    )
