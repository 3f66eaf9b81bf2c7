"""Intervals of ratios and of AUC by group: one influence per group, no resampling.

Rows of one request resemble one another, so the group (the prompt), not the row, is what
repeats. Every metric here is a ratio of sums or of pair counts; its first-order influence is
summed over the rows of a group, and the variance is that of the sums (for AUC this is the
clustered DeLong of Obuchowski, Biometrics 1997). Coefficients count as given: what the spread
of a cross-fitted score says is how it would differ on other prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from draftlab.metrics.arrays import check_rows, divide, sum_by
from draftlab.metrics.ranking import row_pairs

if TYPE_CHECKING:
    import numpy.typing as npt

    from draftlab._types import FloatArray, IntArray

LEVEL = 0.95


class Interval(NamedTuple):
    """A number with its 95 % interval."""

    estimate: float
    low: float
    high: float


def mean_interval(values: npt.ArrayLike, group: npt.ArrayLike) -> Interval:
    """Return the mean of the values with a 95 % interval by group.

    Sizes of groups are random too: the mean is taken as a ratio of two sums.

    Parameters
    ----------
    values : (n,) float64
        A row's log-loss, squared error or prediction; finite.
    group : (n,) int
        Codes of (run, group).

    Returns
    -------
    Interval
        Unclipped; low and high are NaN with fewer than two groups.

    Examples
    --------
    >>> [round(number, 3) for number in mean_interval([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1])]
    [2.5, -10.206, 15.206]
    """
    numbers = np.asarray(values, dtype=np.float64)
    clusters, num_prompts = _codes(group)
    total, size = sum_by(clusters, numbers, num_prompts), np.bincount(clusters)
    ratio, influence = ratio_influence(total, size, np.zeros(num_prompts, dtype=np.int64), 1)
    return _interval(ratio, influence, num_prompts)


def auc_interval(y: npt.ArrayLike, score: npt.ArrayLike, group: npt.ArrayLike) -> Interval:
    """Return the AUC with a 95 % interval by group (Obuchowski 1997, from DeLong's components).

    Parameters
    ----------
    y : (n,) bool
    score : (n,) float64
    group : (n,) int
        Codes of (run, group).

    Returns
    -------
    Interval
        Unclipped; NaN where one class is missing or there are fewer than two groups.

    Raises
    ------
    ValueError
        As in `metrics.auc`.

    Examples
    --------
    >>> y, score = [True, False, True, False], [3.0, 1.0, 2.0, 2.0]
    >>> found = auc_interval(y, score, [0, 0, 1, 1])
    >>> found.estimate, round(found.low, 2)
    (0.875, -2.3)
    """
    label, values = check_rows(y, score, "score")
    clusters, num_prompts = _codes(group)
    wins, chances = row_pairs(label, values)
    entry = np.zeros(num_prompts, dtype=np.int64)
    ratio, influence = auc_influence(
        sum_by(clusters, wins, num_prompts), sum_by(clusters, chances, num_prompts), entry, entry, 1
    )
    return _interval(ratio, influence, num_prompts)


def ratio_influence(
    above: npt.ArrayLike, below: npt.ArrayLike, entry: IntArray, num_entries: int
) -> tuple[FloatArray, FloatArray]:
    """Return ratios of sums over clusters, and each cluster's influence on its ratio.

    Parameters
    ----------
    above, below : (C,) float64 or int64
        Sums over the rows of each cluster, such as loss and rows; for AUC see `auc_influence`.
    entry : (C,) int64
        The number that the cluster belongs to; a group has one cluster per entry.
    num_entries : int

    Returns
    -------
    ratio : (entries,) float64
        NaN over nothing.
    influence : (C,) float64
        (above - ratio * below) / sum of below; sums to 0 in each entry.
    """
    above, below = np.asarray(above), np.asarray(below)
    total = np.zeros(num_entries, dtype=above.dtype)
    size = np.zeros(num_entries, dtype=below.dtype)
    np.add.at(total, entry, above)
    np.add.at(size, entry, below)
    ratio = divide(total, size)
    return ratio, divide(above - ratio[entry] * below, size[entry])


def auc_influence(
    wins: npt.ArrayLike,
    chances: npt.ArrayLike,
    entry: IntArray,
    fold: IntArray,
    num_entries: int,
) -> tuple[FloatArray, FloatArray]:
    """Return AUCs within folds, and the influence of each cluster on its AUC.

    Pairs are made within folds: that one fold scored better than another is no difference
    between its groups, so that each fold has a mean of its own taken off.

    Parameters
    ----------
    wins, chances : (C,) float64 or int64
        Sums over the rows of each cluster of what `row_pairs` returns.
    entry : (C,) int64
        The AUC that the cluster belongs to.
    fold : (C,) int64
        The fold that the cluster lies in.
    num_entries : int

    Returns
    -------
    auc : (entries,) float64
        NaN without a pair.
    influence : (C,) float64
        To first order, in units of AUC; sums to 0 in each fold of an entry.
    """
    wins, chances = np.asarray(wins), np.asarray(chances)
    auc, _ = ratio_influence(wins, chances, entry, num_entries)
    num_folds = int(fold.max(initial=0)) + 1
    stratum = entry * num_folds + fold
    of_fold, _ = ratio_influence(wins, chances, stratum, num_entries * num_folds)
    gap = wins - np.nan_to_num(of_fold)[stratum] * chances
    pairs = sum_by(entry, chances.astype(np.float64), num_entries)[entry]
    return auc, 2 * divide(gap, pairs)  # twice: a pair is seen from both of its ends


def half_width(
    influence: FloatArray, entry: IntArray, num_entries: int, strata: npt.ArrayLike = 1
) -> FloatArray:
    """Return half the length of the 95 % interval of each entry, from influences of its clusters.

    sqrt(G / (G - S) * sum of squares) times the t quantile with G - S degrees of freedom.

    Parameters
    ----------
    influence : (C,) float64
        Centred within strata.
    entry : (C,) int64
    num_entries : int
    strata : int or (entries,) int64
        S, the means that were taken off: 1, or the folds within which an AUC was counted.

    Returns
    -------
    (entries,) float64
        NaN where the G clusters are no more than S, or an influence is NaN.
    """
    clusters = np.bincount(entry, minlength=num_entries)
    squares = sum_by(entry, influence**2, num_entries)
    freedom = clusters - np.asarray(strata)
    enough = freedom > 0
    quantile = stdtrit(np.where(enough, freedom, 1), (1 + LEVEL) / 2)
    variance = np.where(enough, divide(squares * clusters, freedom), 0.0)
    return np.where(enough, quantile * np.sqrt(variance), np.nan)


def _codes(group: npt.ArrayLike) -> tuple[IntArray, int]:
    distinct, codes = np.unique(np.asarray(group), return_inverse=True)
    return codes, len(distinct)


def _interval(ratio: FloatArray, influence: FloatArray, num_prompts: int) -> Interval:
    half = half_width(influence, np.zeros(num_prompts, dtype=np.int64), 1)
    estimate, width = float(ratio[0]), float(half[0])
    return Interval(estimate, estimate - width, estimate + width)


def bounded(estimate: FloatArray, half: FloatArray, limits: tuple[float, float]) -> tuple[Any, Any]:
    """Return low and high, cut to the range that the metric can take."""
    return np.clip(estimate - half, *limits), np.clip(estimate + half, *limits)
