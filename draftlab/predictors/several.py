"""The acceptance model with several features at once: logit p = w . f + b_k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from draftlab.predictors.logistic import (
    FALLBACK_RIDGE,
    MAX_ITERATIONS,
    STEP_TOLERANCE,
    Positions,
    Status,
)

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray, IntArray

_MAX_HALVINGS = 40
_BLOCK = 8192
_RUNAWAY = 12.0
"""Log-odds per standard deviation (or an intercept) that only separable data ask for."""


@dataclass(frozen=True)
class SeveralFit:
    """Fitted coefficients."""

    weights: FloatArray
    """(d,) per unit of each feature."""
    intercepts: FloatArray
    """(K,): NaN at a position without rows."""
    status: Status
    ridge: float
    iterations: int

    def log_odds(self, features: FloatArray, position: Positions) -> FloatArray:
        """Return w . f + b_k for each row of (n, d) features, (n,) float64."""
        return np.asarray(features @ self.weights + self.intercepts[position])


def fit_several(
    features: FloatArray,
    position: Positions,
    accepted: BoolArray,
    num_positions: int,
    *,
    start: SeveralFit | None = None,
) -> SeveralFit:
    """Fit logit p = w . f + b_k by maximum likelihood with damped Newton steps.

    Features are standardised inside, so that features of different units condition alike. A tiny
    ridge of 1e-9 per row decides between features that say the same.

    Parameters
    ----------
    features : (n, d) float64
        Finite.
    position : (n,) int
        In [0, num_positions).
    accepted : (n,) bool
    num_positions : int
        K.
    start : SeveralFit, optional
        A fit of nearly the same rows to begin from; saves steps, changes nothing else.

    Returns
    -------
    SeveralFit
        ``separable`` where coefficients run away; `FALLBACK_RIDGE` then holds them.

    Raises
    ------
    ValueError
        No rows, shapes that differ or a feature that is not finite.

    Examples
    --------
    >>> from scipy.special import expit
    >>> rng = np.random.default_rng(0)
    >>> features, position = rng.normal(size=(20_000, 2)), rng.integers(0, 2, 20_000)
    >>> accepted = rng.random(20_000) < expit(features @ [1.0, -2.0] + 0.5 * position)
    >>> fit_several(features, position, accepted, 2).weights.round(1).tolist()
    [1.0, -2.0]
    """
    if features.ndim != 2 or not len(features) == len(position) == len(accepted):
        raise ValueError(
            f"wanted (n, d) features, n positions and labels, got {features.shape}, "
            f"{position.shape} and {accepted.shape}"
        )
    if len(features) == 0:
        raise ValueError("cannot fit without rows")
    if not np.isfinite(features).all():
        raise ValueError("features must be finite: clamp or drop the rows first")
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    # a feature a row: sums over rows then run along memory
    standard = np.ascontiguousarray(((features - centre) / scale).T)
    codes = position.astype(np.intp)
    cold = np.zeros(len(standard) + num_positions)
    warm = cold if start is None else _standardised(start, centre, scale)
    fit = _newton(standard, codes, accepted, warm, 1e-9 * len(features))
    if fit.status != "converged" or _runs_away(fit):
        held = _newton(standard, codes, accepted, cold, FALLBACK_RIDGE)
        fit = SeveralFit(held.weights, held.intercepts, "separable", held.ridge, held.iterations)
    weights = fit.weights / scale
    present = np.bincount(position, minlength=num_positions) > 0
    intercepts = np.where(present, fit.intercepts - float(weights @ centre), np.nan)
    return SeveralFit(weights, intercepts, fit.status, fit.ridge, fit.iterations)


def _standardised(fit: SeveralFit, centre: FloatArray, scale: FloatArray) -> FloatArray:
    intercepts = np.nan_to_num(fit.intercepts + float(fit.weights @ centre))
    return np.concatenate([fit.weights * scale, intercepts])


def _runs_away(fit: SeveralFit) -> bool:
    return bool(np.any(np.abs(np.concatenate([fit.weights, fit.intercepts])) > _RUNAWAY))


def _newton(
    features: FloatArray,
    position: IntArray,
    accepted: BoolArray,
    start: FloatArray,
    ridge: float,
) -> SeveralFit:
    d, beta = len(features), start
    value, gradient, hessian = _derivatives(beta, features, position, accepted, ridge)
    previous = 1.0
    for iteration in range(1, MAX_ITERATIONS + 1):
        step = np.linalg.solve(hessian, gradient)
        length = max(float(step @ gradient), 0.0) ** 0.5
        if length * min(1.0, length / previous) <= STEP_TOLERANCE:
            # so near that the likelihood is the parabola that Newton's method takes it for
            beta = beta + step
            return SeveralFit(beta[:d], beta[d:], "converged", ridge, iteration)
        for halving in range(_MAX_HALVINGS):
            trial = beta + 0.5**halving * step
            there = _derivatives(trial, features, position, accepted, ridge)
            if there[0] >= value - 1e-13 * abs(value):
                break
        beta, (value, gradient, hessian) = trial, there
        previous = max(length, 1e-300)
    return SeveralFit(beta[:d], beta[d:], "not_converged", ridge, MAX_ITERATIONS)


def _derivatives(
    beta: FloatArray, features: FloatArray, position: IntArray, accepted: BoolArray, ridge: float
) -> tuple[float, FloatArray, FloatArray]:
    """Return penalised log-likelihood, its gradient and minus its Hessian; features are (d, n)."""
    size = len(beta)
    value, gradient, hessian = 0.0, np.zeros(size), np.zeros((size, size))
    for start in range(0, len(position), _BLOCK):
        rows = slice(start, start + _BLOCK)
        found = _block_derivatives(beta, features[:, rows], position[rows], accepted[rows])
        value += found[0]
        gradient += found[1]
        hessian += found[2]
    hessian += max(ridge, 1e-12) * np.eye(size)
    return value - ridge / 2 * float(beta @ beta), gradient - ridge * beta, hessian


def _block_derivatives(
    beta: FloatArray, features: FloatArray, position: IntArray, accepted: BoolArray
) -> tuple[float, FloatArray, FloatArray]:
    """Return log-likelihood, gradient and minus the Hessian of rows that fit the cache."""
    d, size = len(features), len(beta)
    logit = beta[:d] @ features + beta[d:][position]
    tail = np.exp(-np.abs(logit))
    larger = 1.0 / (1.0 + tail)
    smaller = tail * larger
    weight = smaller * larger  # p (1 - p) without the cancellation of 1 - p
    residual: FloatArray = accepted - np.where(logit >= 0, larger, smaller)
    # every sum over rows at once: those of a position are products with its indicator
    indicator = position == np.arange(size - d)[:, None]
    design = np.concatenate([features, indicator])
    loss = np.maximum(np.where(accepted, -logit, logit), 0.0) + np.log1p(tail)
    return -float(loss.sum()), design @ residual, (design * weight) @ design.T
