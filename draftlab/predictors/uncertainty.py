"""Intervals of fitted coefficients by group: rows of one prompt do not count as many witnesses.

The sandwich estimator of White (1982) with scores summed over the rows of a group (Liang and
Zeger 1986), on the arrowhead of one slope and K intercepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit, stdtrit

from draftlab.metrics import divide, sum_by
from draftlab.metrics.intervals import LEVEL, half_width

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.predictors.logistic import Fit, Positions


class HalfWidths(NamedTuple):
    """Half the 95 % interval of each coefficient, (K,) float64; NaN where there is none."""

    slopes: FloatArray
    intercepts: FloatArray


def standard_errors(
    fit: Fit, feature: FloatArray, position: Positions, accepted: BoolArray, group: IntArray
) -> tuple[float, float]:
    """Return the standard errors of the shared slope and of the first intercept, by group.

    Examples
    --------
    >>> from draftlab.predictors.logistic import fit_logistic
    >>> x, k, group = np.tile([-1.0, 0.5, 1.0, 2.0], 50), np.zeros(200, np.int64), np.arange(200)
    >>> y = group % 3 > 0
    >>> fit = fit_logistic(x, k, y, 1)
    >>> [round(error, 2) for error in standard_errors(fit, x, k, y, group)]
    [0.14, 0.17]
    """
    halves = coefficient_intervals(fit, feature, position, accepted, group)
    quantile = float(stdtrit(max(len(np.unique(group)) - 1, 1), (1 + LEVEL) / 2))
    return float(halves.slopes[0]) / quantile, float(halves.intercepts[0]) / quantile


def coefficient_intervals(
    fit: Fit,
    feature: FloatArray,
    position: Positions,
    accepted: BoolArray,
    group: IntArray,
    *,
    slope_per_position: bool = False,
) -> HalfWidths:
    """Return half the 95 % intervals of a fit, by group, with the t quantile of G - 1.

    Parameters
    ----------
    fit : Fit
        By maximum likelihood, of these rows.
    feature, position, accepted : (n,) float64, int, bool
        As in `fit_logistic`.
    group : (n,) int
        Codes of (run, group), from 0.
    slope_per_position : bool
        The fit is that of `fit_own_slopes`.

    Returns
    -------
    HalfWidths
        All NaN unless the fit converged and there are two groups; a position without rows has
        NaN, and under ``slope_per_position`` so does one with rows of one group only.

    Examples
    --------
    >>> from draftlab.predictors.logistic import fit_logistic
    >>> rng = np.random.default_rng(0)
    >>> x, k, group = rng.normal(size=9000), rng.integers(0, 2, 9000), np.arange(9000) // 30
    >>> y = rng.random(9000) < expit(0.5 * x)
    >>> fit = fit_logistic(x, k, y, 2)
    >>> coefficient_intervals(fit, x, k, y, group).slopes.round(3).tolist()
    [0.044, 0.044]
    """
    K = len(fit.intercepts)
    if fit.status != "converged":
        return HalfWidths(np.full(K, np.nan), np.full(K, np.nan))
    num_prompts = int(group.max()) + 1
    prob = expit(fit.log_odds(feature, position))
    weight = prob * (1 - prob)
    square, cross, size = (
        sum_by(position, values, K) for values in (weight * feature**2, weight * feature, weight)
    )
    code = group.astype(np.int64) * K + position
    of_rate, of_feature = (
        sum_by(code, values, num_prompts * K).reshape(num_prompts, K)
        for values in (accepted - prob, (accepted - prob) * feature)
    )
    mean = np.nan_to_num(divide(cross, size))
    alone = of_feature - mean * of_rate
    information = square - mean * cross
    if slope_per_position:
        of_slope = divide(alone, information)
    else:
        # one slope for all positions
        of_slope = np.repeat(divide(alone.sum(axis=1, keepdims=True), information.sum()), K, axis=1)
    of_intercept = divide(of_rate - cross * of_slope, size)
    seen = np.bincount(code, minlength=num_prompts * K).reshape(num_prompts, K) > 0
    everywhere = np.broadcast_to(seen.any(axis=1, keepdims=True), seen.shape)
    return HalfWidths(
        _half_widths(of_slope, seen if slope_per_position else everywhere, fit.counts),
        _half_widths(of_intercept, seen if slope_per_position else everywhere, fit.counts),
    )


def _half_widths(influence: FloatArray, counted: BoolArray, counts: IntArray) -> FloatArray:
    group, entry = np.nonzero(counted)
    found = half_width(influence[group, entry], entry, len(counts))
    return np.where(counts > 0, found, np.nan)
