"""The acceptance model logit p = w f + b_k: one slope, one intercept per draft position.

Maximum likelihood by Newton's method (IRLS). The Hessian is an arrowhead: the intercepts are
eliminated, the slope is a scalar, so that an iteration costs O(n) and no design matrix exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from draftlab.metrics import sum_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from draftlab._types import BoolArray, FloatArray, IntArray

Status = Literal["converged", "separable", "not_converged"]
Positions = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]

FALLBACK_RIDGE = 1e-3
"""Ridge on slope and intercepts where no finite maximum exists."""
MAX_ITERATIONS = 100
STEP_TOLERANCE = 1e-7
"""Standard errors. The length of a Newton step, sqrt(g' H^-1 g), bounds step and gradient at once,
whatever the feature's unit. A step is the last one if its length times the ratio to the step
before is less: convergence is quadratic, so what remains after it is smaller by far."""
_MAX_HALVINGS = 40
_FLAT = 1e-12
"""Share of the slope's curvature, below which it is the rounding of a feature that is constant
within every position and says nothing beyond the position: its slope stays where it started."""
_ROUNDING = 1e-13
_BLOCK = 8192
"""Rows at a time, so that intermediate arrays stay in the processor's cache: twice as fast."""
_FACTORS = 512
"""Factors 1 + exp(-|z|) <= 2 in one product, whose logarithm is then that of all of them."""
_ENOUGH = 2048
"""Rows of each run that are looked at before all are, to see that data are not separable."""


@dataclass(frozen=True)
class Fit:
    """Fitted coefficients and how the fit ended."""

    slopes: FloatArray
    """(K,): equal entries when the slope is shared."""
    intercepts: FloatArray
    """(K,): NaN at a position without rows."""
    status: Status
    """``separable``: the likelihood has no finite maximum, a ridge holds the coefficients."""
    ridge: float
    """Ridge in force, `FALLBACK_RIDGE` where a separable fit fell back."""
    iterations: int
    log_likelihood: float
    """Of the training rows, in nats, without the penalty."""
    counts: IntArray
    """(K,): training rows by position."""

    @property
    def slope(self) -> float:
        """The shared slope."""
        return float(self.slopes[0])

    @property
    def n(self) -> int:
        """Training rows."""
        return int(self.counts.sum())

    def alone(self, position: int) -> Fit:
        """Return the fit of one position, as of a drafter of one token."""
        here = slice(position, position + 1)
        return replace(
            self,
            slopes=self.slopes[here],
            intercepts=self.intercepts[here],
            counts=self.counts[here],
        )

    def log_odds(self, feature: FloatArray, position: Positions) -> FloatArray:
        """Return w_k f + b_k for each row, (n,) float64."""
        return np.asarray(self.slopes[position] * feature + self.intercepts[position])


class _Moments(NamedTuple):
    """Penalised log-likelihood at a point, its gradient and the arrowhead Hessian."""

    value: float
    slope_gradient: float
    gradient: FloatArray
    slope_curvature: float
    cross: FloatArray
    curvature: FloatArray


def fit_logistic(
    feature: FloatArray,
    position: Positions,
    accepted: BoolArray,
    num_positions: int,
    *,
    ridge: float = 0.0,
    start: Fit | None = None,
) -> Fit:
    """Fit logit p = w f + b_k by maximum likelihood, or penalised by ridge / 2 (w^2 + sum b^2).

    The data are called separable where no finite maximum exists: a position has rows of one
    class only, or a threshold per position, all on the same side, divides the classes. That
    is decided from the data, exactly, and `FALLBACK_RIDGE` then takes the place of no ridge.

    Parameters
    ----------
    feature : (n,) float64
        Finite.
    position : (n,) int
        In [0, num_positions).
    accepted : (n,) bool
    num_positions : int
        K.
    ridge : float
        0 is maximum likelihood.
    start : Fit, optional
        Where to start, to save iterations; zeros unless told.

    Returns
    -------
    Fit
        ``not_converged`` after `MAX_ITERATIONS` steps longer than `STEP_TOLERANCE`.

    Raises
    ------
    ValueError
        Shapes differ, there are no rows, a feature is not finite, or a position lies outside
        [0, num_positions).

    Examples
    --------
    >>> feature = np.array([-2.0, -1.0, 1.0, 2.0])
    >>> position = np.zeros(4, dtype=np.int64)
    >>> accepted = np.array([False, False, True, True])
    >>> fit = fit_logistic(feature, position, accepted, 1)
    >>> fit.status, round(fit.slope, 3)
    ('separable', 5.839)
    """
    _check(feature, position, accepted, num_positions)
    problem = _Problem(feature, position, accepted, num_positions)
    return _solve(problem, ridge, start, None)


def fit_logistic_folds(
    feature: FloatArray,
    position: Positions,
    accepted: BoolArray,
    num_positions: int,
    folds: Sequence[slice],
    full: Fit,
) -> list[Fit]:
    """Fit `fit_logistic` without the rows of each fold, starting at the fit on all rows.

    Sums over all rows less those of the fold give every first step in one pass.

    Parameters
    ----------
    feature, position, accepted, num_positions
        As in `fit_logistic`.
    folds : sequence of slice
        Disjoint runs of rows that together are all of them, each with rows outside it.
    full : Fit
        Of all rows.
    """
    starts = np.array([fold.start for fold in folds])
    whole = _Problem(feature, position, accepted, num_positions, cuts=starts)
    slope, intercepts = _start(full, num_positions)
    sums = whole.sums(slope, intercepts)
    owner = np.searchsorted(starts, whole.start, side="right") - 1
    fits = []
    for code, fold in enumerate(folds):
        before, behind = slice(0, fold.start), slice(fold.stop, len(feature))
        problem = _Problem(
            np.concatenate([feature[before], feature[behind]]),
            np.concatenate([position[before], position[behind]]),
            np.concatenate([accepted[before], accepted[behind]]),
            num_positions,
        )
        outside = owner != code
        fits.append(_solve(problem, 0.0, full, (whole.position[outside], sums[outside])))
    return fits


def _solve(
    problem: _Problem,
    ridge: float,
    start: Fit | None,
    at_start: tuple[IntArray, FloatArray] | None,
) -> Fit:
    """Take Newton steps to the maximum; ``at_start`` are the sums there, if they are known."""
    num_positions = problem.num_positions
    separable = problem.is_separable()
    if separable and ridge == 0:
        ridge = FALLBACK_RIDGE

    def moments(slope: float, intercepts: FloatArray) -> _Moments:
        sums = problem.sums(slope, intercepts)
        return _penalised(problem.position, sums, slope, intercepts, ridge)

    slope, intercepts = _start(start, num_positions)
    if at_start is None:
        here = moments(slope, intercepts)
    else:
        here = _penalised(*at_start, slope, intercepts, ridge)
    status: Status = "not_converged"
    iteration, previous = 0, 1.0
    while status == "not_converged" and iteration < MAX_ITERATIONS:
        iteration += 1
        slope_step, step = _newton_step(here, ridge)
        # g' H^-1 g: the squared length of the step, in standard errors
        decrement = slope_step * here.slope_gradient + float(step @ here.gradient)
        length = max(decrement, 0.0) ** 0.5
        if length * min(1.0, length / previous) <= STEP_TOLERANCE:
            # so near that the likelihood is the parabola that Newton's method takes it for
            slope, intercepts = slope + slope_step, intercepts + step
            here = here._replace(value=here.value + decrement / 2)
            status = "separable" if separable else "converged"
        else:
            slope, intercepts, here = _advance(moments, here, slope, intercepts, slope_step, step)
            previous = max(length, 1e-300)
    counts = problem.counts
    return Fit(
        slopes=np.full(num_positions, slope),
        intercepts=np.where(counts > 0, intercepts, np.nan),
        status=status,
        ridge=ridge,
        iterations=iteration,
        log_likelihood=here.value + _penalty(slope, intercepts, ridge),
        counts=counts,
    )


def fit_own_slopes(
    feature: FloatArray,
    position: Positions,
    accepted: BoolArray,
    num_positions: int,
    *,
    ridge: float = 0.0,
    start: Fit | None = None,
) -> Fit:
    """Fit logit p = w_k f + b_k, an own slope for each position: the ablation of the shared one.

    Parameters and errors are those of `fit_logistic`; ``start`` may have own slopes. A position
    without rows has slope NaN; the status is that of the worst position.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> feature, position = rng.normal(size=4000), rng.integers(0, 2, 4000)
    >>> accepted = rng.random(4000) < 1 / (1 + np.exp(-feature * (1 + position)))
    >>> fit_own_slopes(feature, position, accepted, 2).slopes.round().tolist()
    [1.0, 2.0]
    """
    _check(feature, position, accepted, num_positions)
    slopes, intercepts = np.full((2, num_positions), np.nan)
    fits = {}
    for k in np.unique(position).tolist():
        rows = position == k
        alone = np.zeros(int(np.count_nonzero(rows)), dtype=np.int64)
        fits[k] = fit_logistic(
            feature[rows], alone, accepted[rows], 1,
            ridge=ridge, start=None if start is None else start.alone(k),
        )  # fmt: skip
        slopes[k], intercepts[k] = fits[k].slope, fits[k].intercepts[0]
    worst: tuple[Status, ...] = ("not_converged", "separable", "converged")
    return Fit(
        slopes=slopes,
        intercepts=intercepts,
        status=min((fit.status for fit in fits.values()), key=worst.index),
        ridge=max(fit.ridge for fit in fits.values()),
        iterations=max(fit.iterations for fit in fits.values()),
        log_likelihood=sum(fit.log_likelihood for fit in fits.values()),
        counts=np.bincount(position, minlength=num_positions),
    )


def fit_rates(
    _feature: FloatArray | None, position: Positions, accepted: BoolArray, num_positions: int
) -> Fit:
    """Fit the acceptance rate of each position, as a model whose slope is 0: a floor.

    Parameters are those of `fit_logistic`; the feature is not read.

    Returns
    -------
    Fit
        Intercepts are the log-odds of the rates. A position with one class has no finite
        log-odds: the fit is separable and held by `FALLBACK_RIDGE`.

    Examples
    --------
    >>> fit = fit_rates(None, np.array([0, 0, 1, 1]), np.array([True, False, True, False]), 2)
    >>> fit.intercepts.tolist()
    [0.0, 0.0]
    """
    counts = np.bincount(position, minlength=num_positions)
    hits = np.bincount(position[accepted], minlength=num_positions)
    misses = counts - hits
    if np.any((counts > 0) & ((hits == 0) | (misses == 0))):
        return fit_logistic(np.zeros(len(position)), position, accepted, num_positions)
    present = counts > 0
    intercepts = np.full(num_positions, np.nan)
    intercepts[present] = np.log(hits[present] / misses[present])
    rate = hits[present] / counts[present]
    log_likelihood = hits[present] @ np.log(rate) + misses[present] @ np.log1p(-rate)
    slopes = np.zeros(num_positions)
    return Fit(slopes, intercepts, "converged", 0.0, 0, float(log_likelihood), counts)


def fit_constant(
    _feature: FloatArray | None, position: Positions, accepted: BoolArray, num_positions: int
) -> Fit:
    """Fit one acceptance rate for all positions: the lowest floor. See `fit_rates`.

    Examples
    --------
    >>> fit = fit_constant(None, np.array([0, 0, 1, 1]), np.array([True, False, True, False]), 2)
    >>> fit.intercepts.tolist()
    [0.0, 0.0]
    """
    one = fit_rates(None, np.zeros_like(position), accepted, 1)
    return Fit(
        slopes=np.zeros(num_positions),
        intercepts=np.repeat(one.intercepts, num_positions),
        status=one.status,
        ridge=one.ridge,
        iterations=one.iterations,
        log_likelihood=one.log_likelihood,
        counts=np.bincount(position, minlength=num_positions),
    )


def _check(
    feature: FloatArray, position: Positions, accepted: BoolArray, num_positions: int
) -> None:
    shapes = {feature.shape, position.shape, accepted.shape}
    if len(shapes) > 1 or feature.ndim != 1:
        raise ValueError(
            "feature, position and accepted must share one shape (n,), got "
            f"{feature.shape}, {position.shape} and {accepted.shape}"
        )
    if len(feature) == 0:
        raise ValueError("cannot fit without rows")
    if not np.isfinite(feature).all():
        raise ValueError("feature must be finite: clamp or drop the rows first")
    if position.min() < 0 or position.max() >= num_positions:
        raise ValueError(
            f"position must lie in [0, {num_positions}), got [{position.min()}, {position.max()}]"
        )


class _Problem:
    """Training rows by position, cut into runs that fit the cache."""

    def __init__(
        self,
        feature: FloatArray,
        position: Positions,
        accepted: BoolArray,
        num_positions: int,
        *,
        cuts: IntArray | None = None,
    ) -> None:
        self.num_positions = num_positions
        self.counts = np.bincount(position, minlength=num_positions)
        changes = np.flatnonzero(position[1:] != position[:-1]) + 1
        if cuts is None and len(changes) > len(position) // _ENOUGH + num_positions:
            order = np.argsort(position.astype(np.int16), kind="stable")
            feature, position, accepted = feature[order], position[order], accepted[order]
            changes = np.flatnonzero(position[1:] != position[:-1]) + 1
        edges = [np.arange(0, len(position), _BLOCK), changes]
        if cuts is not None:
            edges.append(cuts[cuts < len(position)])
        self.feature, self.accepted = feature, accepted
        self.start = np.unique(np.concatenate(edges))
        """First row of each run, (R,): one position, and within one block."""
        self.position = position[self.start]
        """Position of each run, (R,)."""

    def sums(self, slope: float, intercepts: FloatArray) -> FloatArray:
        """Return, for each run, the sums that `_penalised` adds up, (R, 6)."""
        out = np.empty((len(self.start), 6))
        bounds = np.searchsorted(self.start, np.arange(0, len(self.feature) + _BLOCK, _BLOCK))
        for first, last in pairwise(bounds.tolist()):
            stop = self.start[last] if last < len(self.start) else len(self.feature)
            start = self.start[first]
            local = self.start[first:last] - start
            intercept = intercepts[self.position[first:last]]
            rows = slice(start, stop)
            out[first:last] = _block_sums(
                self.feature[rows], self.accepted[rows], slope, intercept, local
            )
        return out

    def is_separable(self) -> bool:
        """Whether some direction (w, b) never lowers the likelihood: no maximum is finite.

        If a few rows of each position are not separable, all of them are not: a direction that
        these rows do not stop must leave every one of them where it is, and is then 0.
        """
        few = self._extremes(min(_ENOUGH, _BLOCK))
        if not few.separable and few.covers(self.counts):
            return False
        return self._extremes(_BLOCK).separable

    def _extremes(self, length: int) -> _Extremes:
        low = np.full((self.num_positions, 2), np.inf)
        high = np.full((self.num_positions, 2), -np.inf)
        stops = np.append(self.start[1:], len(self.feature))
        for start, stop, k in zip(self.start, stops, self.position, strict=True):
            rows = slice(start, min(stop, start + length))
            x, y = self.feature[rows], self.accepted[rows]
            for label, part in enumerate((x[~y], x[y])):
                if len(part):
                    low[k, label] = min(low[k, label], part.min())
                    high[k, label] = max(high[k, label], part.max())
        return _Extremes(low, high)


class _Extremes(NamedTuple):
    """Range of the feature by position and label, (K, 2); infinite where there are no rows."""

    low: FloatArray
    high: FloatArray

    def covers(self, counts: IntArray) -> bool:
        return bool((np.isfinite(self.low).any(axis=1) == (counts > 0)).all())

    @property
    def separable(self) -> bool:
        (low_no, low_yes), (high_no, high_yes) = self.low.T, self.high.T
        has_no, has_yes = np.isfinite(low_no), np.isfinite(low_yes)
        if np.any(has_no != has_yes):
            return True  # one class only: the intercept of that position runs away
        rising = high_no[has_no] <= low_yes[has_no]
        falling = high_yes[has_no] <= low_no[has_no]
        spread = np.maximum(high_no, high_yes) > np.minimum(low_no, low_yes)
        return bool((rising.all() or falling.all()) and spread[has_no].any())


def _start(start: Fit | None, num_positions: int) -> tuple[float, FloatArray]:
    if start is None:
        return 0.0, np.zeros(num_positions)
    return float(np.nan_to_num(start.slope)), np.nan_to_num(start.intercepts)


def _penalty(slope: float, intercepts: FloatArray, ridge: float) -> float:
    return ridge / 2 * (slope**2 + float(intercepts @ intercepts))


def _block_sums(
    x: FloatArray, y: BoolArray, slope: float, intercepts: FloatArray, starts: IntArray
) -> FloatArray:
    """Return per run: log-likelihood, r x, r, w x x, w x, w, with r = y - p and w = p (1 - p)."""
    sizes = np.diff(starts, append=len(x))
    logit = slope * x + (intercepts[0] if len(starts) == 1 else np.repeat(intercepts, sizes))
    tail = np.exp(-np.abs(logit))
    above = 1.0 + tail
    larger = 1.0 / above
    smaller = tail * larger
    weight = smaller * larger  # p (1 - p) without the cancellation of 1 - p
    residual = np.where(y, 1.0, 0.0) - np.where(logit >= 0, larger, smaller)
    weighted = weight * x
    wrong = np.maximum(np.where(y, -logit, logit), 0.0)
    columns = (residual * x, residual, weighted * x, weighted, weight)
    out = np.empty((len(starts), 6))
    out[:, 0] = -np.add.reduceat(wrong, starts) - _log_products(above, starts)
    for index, column in enumerate(columns, start=1):
        out[:, index] = np.add.reduceat(column, starts)
    return out


def _log_products(above: FloatArray, starts: IntArray) -> FloatArray:
    """Return the sum of logarithms of each run: few logarithms of products, not one a row."""
    cuts = np.union1d(starts, np.arange(0, len(above), _FACTORS))
    logs = np.log(np.multiply.reduceat(above, cuts))
    return np.asarray(np.add.reduceat(logs, np.searchsorted(cuts, starts)))


def _penalised(
    position: IntArray, sums: FloatArray, slope: float, intercepts: FloatArray, ridge: float
) -> _Moments:
    num_positions = len(intercepts)
    value, slope_gradient, slope_curvature = sums[:, (0, 1, 3)].sum(axis=0).tolist()
    return _Moments(
        value=value - _penalty(slope, intercepts, ridge),
        slope_gradient=slope_gradient - ridge * slope,
        gradient=sum_by(position, sums[:, 2], num_positions) - ridge * intercepts,
        slope_curvature=slope_curvature + ridge,
        cross=sum_by(position, sums[:, 4], num_positions),
        curvature=sum_by(position, sums[:, 5], num_positions) + ridge,
    )


def _newton_step(at: _Moments, ridge: float) -> tuple[float, FloatArray]:
    """Solve the arrowhead system: slope by its Schur complement, then each intercept."""
    present = at.curvature > ridge
    inverse = np.zeros_like(at.curvature)
    inverse[present] = 1.0 / at.curvature[present]
    schur = at.slope_curvature - float(at.cross**2 @ inverse)
    slope_step = 0.0
    if schur > _FLAT * at.slope_curvature:
        slope_step = (at.slope_gradient - float((at.cross * inverse) @ at.gradient)) / schur
    return slope_step, (at.gradient - at.cross * slope_step) * inverse


def _advance(
    moments: Callable[[float, FloatArray], _Moments],
    here: _Moments,
    slope: float,
    intercepts: FloatArray,
    slope_step: float,
    step: FloatArray,
) -> tuple[float, FloatArray, _Moments]:
    """Take the step, halved until the likelihood does not fall beyond its rounding."""
    least = here.value - _ROUNDING * abs(here.value)
    for halving in range(_MAX_HALVINGS):
        size = 0.5**halving
        new_slope, new_intercepts = slope + size * slope_step, intercepts + size * step
        there = moments(new_slope, new_intercepts)
        if there.value >= least:
            return new_slope, new_intercepts, there
    return slope, intercepts, here
