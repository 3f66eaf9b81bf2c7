"""Grade log-odds against labels in every scope at once: arrays in, one small table out.

Sums are taken once over the rows, per dataset and position, and added up for the wider
scopes; a predictor costs two sorts, whatever the number of scopes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.special import expit

from draftlab import metrics
from draftlab.metrics import BoolArray, FloatArray, IntArray, divide, sum_by


@dataclass(frozen=True)
class Scope:
    """A way to cut the rows: each (dataset, position) belongs to one entry, or to none."""

    name: str
    entry_of_cell: IntArray
    """(D * K,): entry of dataset d and position k at d * K + k; -1 is outside."""
    datasets: tuple[str | None, ...]
    """By entry; None is all."""
    positions: tuple[int | None, ...]

    def __len__(self) -> int:
        return len(self.datasets)

    @property
    def single_position(self) -> bool:
        """Whether no entry mixes positions."""
        return None not in self.positions

    def total(self, by_cell: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Add up (D * K, ...) sums to (entries, ...)."""
        inside = self.entry_of_cell >= 0
        out = np.zeros((len(self), *by_cell.shape[1:]), dtype=by_cell.dtype)
        np.add.at(out, self.entry_of_cell[inside], by_cell[inside])
        return out


@dataclass(frozen=True)
class Rows:
    """Labelled rows that every predictor is graded on; arrays are (n,) int64 unless told."""

    accepted: BoolArray
    position: IntArray
    dataset: IntArray
    """Codes of ``datasets``."""
    fold: IntArray
    """Fold in which the row is held out; all 0 in sample."""
    group: IntArray
    """Codes of (run, group): the unit of clusters."""
    datasets: tuple[str, ...]
    num_positions: int
    num_folds: int

    @property
    def num_cells(self) -> int:
        """Combinations of dataset and position, D * K."""
        return len(self.datasets) * self.num_positions

    @cached_property
    def cell(self) -> IntArray:
        """Dataset and position as one code, d * K + k."""
        return self.dataset * self.num_positions + self.position

    @cached_property
    def fold_position(self) -> IntArray:
        """Fold and position as one code, f * K + k."""
        return self.fold * self.num_positions + self.position

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """The five scopes of the contract."""
        return make_scopes(self.datasets, self.num_positions)

    @cached_property
    def counts(self) -> IntArray:
        """(D * K, F, 2): rejected and accepted rows of each cell and fold."""
        code = (self.cell * self.num_folds + self.fold) * 2 + self.accepted
        flat = np.bincount(code, minlength=self.num_cells * self.num_folds * 2)
        return flat.reshape(self.num_cells, self.num_folds, 2)

    @cached_property
    def training(self) -> tuple[IntArray, ...]:
        """Rows to learn from, for each fold: those outside it, or all rows in sample."""
        if self.num_folds == 1:
            return (np.arange(len(self.fold)),)
        return tuple(np.flatnonzero(self.fold != fold) for fold in range(self.num_folds))

    @cached_property
    def num_groups(self) -> dict[str, IntArray]:
        """Distinct groups of each entry, by scope."""
        groups, cells = np.divmod(
            np.unique(self.group * self.num_cells + self.cell), self.num_cells
        )
        return {scope.name: _count_groups(scope, groups, cells) for scope in self.scopes}


class Grade(NamedTuple):
    """What one predictor scored."""

    table: pl.DataFrame
    """One row per scope and entry: scope, dataset, position, n, n_accepted, n_groups,
    mean_prediction, auc, log_loss, ece, ece_debiased, ece_null, ece_null_high, brier."""
    reliability: pl.DataFrame
    """One row per bin over all rows: bin, low, high, n, n_accepted, mean_prediction, rate."""
    logit: FloatArray
    """(n,): the log-odds that were graded."""


class _Sums(NamedTuple):
    """Sums over rows by cell (D * K,), the first four also by bin (D * K, n_bins)."""

    n: IntArray
    accepted: IntArray
    predicted: FloatArray
    variance: FloatArray
    loss: FloatArray
    squares: FloatArray


def make_scopes(datasets: tuple[str, ...], num_positions: int) -> tuple[Scope, ...]:
    """Return overall, without_first, position, dataset and dataset_position.

    Examples
    --------
    >>> [(scope.name, len(scope)) for scope in make_scopes(("a", "b"), 3)]
    [('overall', 1), ('without_first', 1), ('position', 3), ('dataset', 2), ('dataset_position', 6)]
    """
    names, K = datasets, num_positions
    dataset, position = np.divmod(np.arange(len(names) * K), K)
    each = tuple(range(K))
    return (
        Scope("overall", np.zeros_like(dataset), (None,), (None,)),
        Scope("without_first", np.where(position > 0, 0, -1), (None,), (None,)),
        Scope("position", position, (None,) * K, each),
        Scope("dataset", dataset, names, (None,) * len(names)),
        Scope(
            "dataset_position",
            dataset * K + position,
            tuple(name for name in names for _ in each),
            each * len(names),
        ),
    )


def grade(
    rows: Rows, feature: FloatArray, slopes: FloatArray, intercepts: FloatArray, n_bins: int
) -> Grade:
    """Grade log-odds w f + b, with the coefficients of each row's fold and position.

    Parameters
    ----------
    rows : Rows
    feature : (n,) float64
    slopes, intercepts : (F, K) float64
        Learned without the rows of fold f, or in sample with F = 1.
    n_bins : int
        Equal-width bins of ECE.

    Returns
    -------
    Grade
        AUC is the mean over folds of the AUC within a fold, weighted by its pairs: scores of
        different fits have no common order. The other numbers pool all rows.
    """
    slope, intercept = slopes.ravel(), intercepts.ravel()
    logit = slope[rows.fold_position] * feature + intercept[rows.fold_position]
    sums = _sum_cells(rows, logit, n_bins)
    by_logit, by_feature = np.argsort(logit), np.argsort(feature)
    tables = []
    for scope in rows.scopes:
        if scope.single_position:
            # Within a position w f + b has the order of sign(w) f. Ranking f itself keeps that
            # order where w f + b rounds distinct features to one number, so that monotone
            # features agree exactly.
            wins = _scope_wins(rows, scope, feature, by_feature)
            wins = _turn(wins, rows, scope, slopes)
        else:
            wins = _scope_wins(rows, scope, logit, by_logit)
        tables.append(_scope_table(rows, scope, sums, wins))
    return Grade(pl.concat(tables), _reliability(sums, n_bins), logit)


def _sum_cells(rows: Rows, logit: FloatArray, n_bins: int) -> _Sums:
    prob: FloatArray = expit(logit)
    code = rows.cell * n_bins + metrics.bin_index(prob, metrics.bin_edges(n_bins))
    shape = (rows.num_cells, n_bins)
    size = rows.num_cells * n_bins
    return _Sums(
        n=np.bincount(code, minlength=size).reshape(shape),
        accepted=np.bincount(code[rows.accepted], minlength=size).reshape(shape),
        predicted=sum_by(code, prob, size).reshape(shape),
        variance=sum_by(code, prob * (1 - prob), size).reshape(shape),
        loss=sum_by(rows.cell, metrics.row_log_loss(rows.accepted, logit), rows.num_cells),
        squares=sum_by(rows.cell, (prob - rows.accepted) ** 2, rows.num_cells),
    )


def _scope_wins(rows: Rows, scope: Scope, score: FloatArray, order: IntArray) -> IntArray:
    """Return twice the rightly ordered pairs, (entries, F)."""
    entry = scope.entry_of_cell[rows.cell]
    if scope.entry_of_cell.min() < 0:
        order = order[entry[order] >= 0]
    size = len(scope) * rows.num_folds
    small = np.int16 if size < np.iinfo(np.int16).max else np.int32
    code = (entry * rows.num_folds + rows.fold).astype(small)
    wins = metrics.count_wins(rows.accepted, score, code, size, order)
    return wins.reshape(len(scope), rows.num_folds)


def _turn(wins: IntArray, rows: Rows, scope: Scope, slopes: FloatArray) -> IntArray:
    """Turn wins of the feature into wins of w f: reversed if w < 0, all ties if w = 0."""
    pairs = _pairs(rows, scope)
    slope = slopes[:, np.array(scope.positions, dtype=np.int64)].T
    return np.select([slope > 0, slope < 0], [wins, 2 * pairs - wins], pairs)


def _pairs(rows: Rows, scope: Scope) -> IntArray:
    """Return (accepted, rejected) pairs, (entries, F)."""
    counts = scope.total(rows.counts)
    return np.asarray(counts[..., 0] * counts[..., 1])


def _scope_table(rows: Rows, scope: Scope, sums: _Sums, wins: IntArray) -> pl.DataFrame:
    total = _Sums(*(scope.total(by_cell) for by_cell in sums))
    n, accepted = total.n.sum(axis=1), total.accepted.sum(axis=1)
    null, null_high = metrics.ece_null_of_bins(total.n, total.variance)
    columns: dict[str, Any] = {
        "scope": [scope.name] * len(scope),
        "dataset": pl.Series(scope.datasets, dtype=pl.String),
        "position": pl.Series(scope.positions, dtype=pl.Int16),
        "n": n,
        "n_accepted": accepted,
        "n_groups": rows.num_groups[scope.name],
        "mean_prediction": divide(total.predicted.sum(axis=1), n),
        "auc": divide(wins.sum(axis=1), 2 * _pairs(rows, scope).sum(axis=1)),
        "log_loss": divide(total.loss, n),
        "ece": metrics.ece_of_bins(total.n, total.accepted, total.predicted),
        "ece_debiased": metrics.ece_debiased_of_bins(total.n, total.accepted, total.predicted),
        "ece_null": null,
        "ece_null_high": null_high,
        "brier": divide(total.squares, n),
    }
    return pl.DataFrame(columns)


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


def _count_groups(scope: Scope, groups: IntArray, cells: IntArray) -> IntArray:
    entry = scope.entry_of_cell[cells]
    inside = entry >= 0
    distinct = np.unique(groups[inside] * len(scope) + entry[inside])
    return np.bincount(distinct % len(scope), minlength=len(scope))
