"""Recalibrate log-odds: temperature, Platt, beta, isotonic, and sequential temperature scaling.

The first four map the log-odds of conditional acceptance and learn from observed rows. STS (DSpark,
arXiv 2607.05147) scales by one temperature per position, chosen from left to right so that the
product up to the position is calibrated as survival; it learns from admitted rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit

from draftlab.metrics import divide
from draftlab.predictors.logistic import Positions, fit_logistic
from draftlab.predictors.several import fit_several

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab._types import BoolArray, FloatArray, IntArray

THIN_ROWS = 200
"""Fewer rows are called thin: the published learning curve stops rising at about 250."""
THIN_CLASS = 20
"""Fewer rows of either class are called thin too."""
STS_BINS = 20
STS_GRID = (0.05, 20.0, 256)
"""Least and largest temperature and how many, log-spaced; 1 is added. DeepSpec's, as are the bins
floor(20 p)."""
_ITERATIONS = 50


class Map(NamedTuple):
    """A fitted map of log-odds to log-odds."""

    parameters: dict[str, float]
    apply: Callable[[FloatArray], FloatArray]
    note: str | None
    """Why it is the identity, or what a reader must know."""
    n: int
    """Training rows."""


@dataclass(frozen=True)
class Calibrator:
    """Maps of one method: one for all positions, or one for each."""

    method: str
    per_position: bool
    maps: tuple[Map, ...]
    """One, or K."""

    def log_odds(self, log_odds: FloatArray, position: Positions) -> FloatArray:
        """Return recalibrated log-odds, (n,) float64."""
        if not self.per_position:
            return self.maps[0].apply(log_odds)
        out = np.array(log_odds, dtype=np.float64)
        for k, one in enumerate(self.maps):
            here = position == k
            out[here] = one.apply(out[here])
        return out


class Sts(NamedTuple):
    """Sequential temperature scaling; arrays are (K,)."""

    temperatures: FloatArray
    """1 at a position that no row reaches."""
    ece_before: FloatArray
    """Cumulative: of the survival product up to the position; NaN without rows."""
    ece_after: FloatArray
    counts: IntArray
    at_edge: BoolArray
    """The best temperature is the least or the largest of the grid."""
    thin: BoolArray


def identity(log_odds: FloatArray) -> FloatArray:
    """Return log-odds as they are."""
    return log_odds


def fit_calibrator(
    method: str,
    log_odds: FloatArray,
    position: Positions,
    accepted: BoolArray,
    num_positions: int,
    *,
    per_position: bool = False,
) -> Calibrator:
    """Fit a calibrator of conditional acceptance.

    Where the classes do not overlap, no recalibration is defined: the map is then the identity,
    with a note.

    Parameters
    ----------
    method : str
        Key of `CALIBRATORS`.
    log_odds : (n,) float64
        Finite, such as those of raw qmax or of a trained head.
    position : (n,) int
    accepted : (n,) bool
    num_positions : int
    per_position : bool
        One map for each position instead of one for all.

    Raises
    ------
    ValueError
        An unknown method, or shapes that differ.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> log_odds = rng.normal(size=20_000)
    >>> accepted = rng.random(20_000) < expit(log_odds / 2)
    >>> one = fit_calibrator("temperature", log_odds, np.zeros(20_000, int), accepted, 1)
    >>> round(one.maps[0].parameters["temperature"], 1)
    2.0
    """
    if method not in CALIBRATORS:
        raise ValueError(f"unknown method {method!r}; known: {', '.join(CALIBRATORS)}")
    if not log_odds.shape == position.shape == accepted.shape:
        raise ValueError(
            "log_odds, position and accepted must share one shape (n,), got "
            f"{log_odds.shape}, {position.shape} and {accepted.shape}"
        )
    parts = [np.ones(len(position), dtype=np.bool_)]
    if per_position:
        parts = [position == k for k in range(num_positions)]
    maps = tuple(_fit_map(method, log_odds[part], accepted[part]) for part in parts)
    return Calibrator(method, per_position, maps)


def _fit_map(method: str, log_odds: FloatArray, accepted: BoolArray) -> Map:
    num_accepted = int(accepted.sum())
    if num_accepted in (0, len(accepted)):
        return Map({}, identity, "identity: rows of one class only", len(accepted))
    if log_odds[~accepted].max() <= log_odds[accepted].min():
        return Map({}, identity, "identity: separable, every order is right", len(accepted))
    fitted = CALIBRATORS[method](log_odds, accepted)
    thin = len(accepted) < THIN_ROWS or min(num_accepted, len(accepted) - num_accepted) < THIN_CLASS
    if thin and fitted.note is None:
        return fitted._replace(note=f"thin data: {len(accepted)} rows, {num_accepted} accepted")
    return fitted


def _temperature(log_odds: FloatArray, accepted: BoolArray) -> Map:
    """Maximum likelihood of sigmoid(z / T), by Newton on 1 / T."""
    weight = 1.0
    for _ in range(_ITERATIONS):
        prob = expit(weight * log_odds)
        gradient = float(((accepted - prob) * log_odds).sum())
        curvature = float((prob * (1 - prob) * log_odds**2).sum())
        if curvature <= 0:
            break
        step = gradient / curvature
        # the likelihood is concave in 1 / T; a long step is cut so that it cannot overshoot far
        step = float(np.clip(step, -0.5 * abs(weight) - 0.05, abs(weight) + 0.05))
        weight += step
        if abs(step) < 1e-12:
            break
    if weight <= 0:
        note = "identity: acceptance falls as the log-odds rise, so no temperature fits"
        return Map({}, identity, note, len(accepted))
    return Map({"temperature": 1 / weight}, lambda z: weight * z, None, len(accepted))


def _platt(log_odds: FloatArray, accepted: BoolArray) -> Map:
    """Maximum likelihood of sigmoid(w z + b) (Platt 1999, without his smoothed labels)."""
    fit = fit_logistic(log_odds, np.zeros(len(log_odds), dtype=np.int64), accepted, 1)
    slope, intercept = fit.slope, float(fit.intercepts[0])
    note = None if slope > 0 else "the order is reversed: acceptance falls as the log-odds rise"
    parameters = {"slope": slope, "intercept": intercept}
    return Map(parameters, lambda z: slope * z + intercept, note, len(accepted))


def _beta(log_odds: FloatArray, accepted: BoolArray) -> Map:
    """Maximum likelihood of a log p - b log(1 - p) + c, a, b >= 0 (Kull et al., AISTATS 2017)."""
    both = _beta_features(log_odds)
    weights, intercept = _beta_fit(both, accepted, (0, 1))
    for lost, kept in ((0, 1), (1, 0)):
        if weights[lost] < 0:  # as in the paper: drop it and fit the other alone
            weights, intercept = _beta_fit(both, accepted, (kept,))
    a, b = weights
    parameters = {"a": float(a), "b": float(b), "c": intercept}
    return Map(parameters, lambda z: _beta_features(z) @ weights + intercept, None, len(accepted))


def _beta_features(log_odds: FloatArray) -> FloatArray:
    """Return log p and -log(1 - p), (n, 2)."""
    return np.stack([-np.logaddexp(0, -log_odds), np.logaddexp(0, log_odds)], axis=1)


def _beta_fit(
    both: FloatArray, accepted: BoolArray, columns: tuple[int, ...]
) -> tuple[FloatArray, float]:
    fit = fit_several(both[:, columns], np.zeros(len(both), dtype=np.int64), accepted, 1)
    weights = np.zeros(2)
    weights[list(columns)] = np.maximum(fit.weights, 0.0) if len(columns) == 1 else fit.weights
    return weights, float(fit.intercepts[0])


def _isotonic(log_odds: FloatArray, accepted: BoolArray) -> Map:
    """Pool adjacent violators; rates are kept half a row away from 0 and 1."""
    from sklearn.isotonic import IsotonicRegression  # half a second that few need

    n = len(accepted)
    regression = IsotonicRegression(
        y_min=0.5 / n, y_max=1 - 0.5 / n, increasing=True, out_of_bounds="clip"
    )
    regression.fit(log_odds, accepted.astype(np.float64))
    thresholds = len(np.unique(regression.y_thresholds_))

    def apply(z: FloatArray) -> FloatArray:
        if len(z) == 0:
            return z
        prob = regression.predict(z)
        return np.asarray(np.log(prob) - np.log1p(-prob))

    return Map({"levels": float(thresholds)}, apply, None, n)


CALIBRATORS: dict[str, Callable[[FloatArray, BoolArray], Map]] = {
    "temperature": _temperature,
    "platt": _platt,
    "beta": _beta,
    "isotonic": _isotonic,
}
"""Methods that map conditional log-odds."""


def sts_grid() -> FloatArray:
    """Return the candidate temperatures in rising order."""
    low, high, size = STS_GRID
    return np.unique(np.append(np.geomspace(low, high, size), 1.0))


def cumulative_ece(prob: FloatArray, survived: BoolArray) -> float:
    """Return ECE as DeepSpec bins it: floor(20 p), the top one clipped in; mean prediction.

    Examples
    --------
    >>> cumulative_ece(np.array([0.5, 0.5]), np.array([True, False]))
    0.0
    """
    if len(prob) == 0:
        return float("nan")
    index = np.minimum((prob * STS_BINS).astype(np.int64), STS_BINS - 1)
    gaps = np.bincount(index, prob - survived, minlength=STS_BINS)
    return float(np.abs(gaps).sum() / len(prob))


def fit_sts(log_odds: FloatArray, survived: BoolArray) -> Sts:
    """Choose a temperature per position, left to right, by the ECE of the product so far.

    DeepSpec's rule: with the temperatures before k fixed, the first candidate of the grid with
    the lowest cumulative ECE wins; a position that no row reaches keeps 1.

    Parameters
    ----------
    log_odds : (P, K) float64
        Of conditional acceptance, NaN where a position was not admitted. Rows behind a rejection
        belong to it: they did not survive.
    survived : (P, K) bool
        Everything up to the position was accepted.

    Returns
    -------
    Sts

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> log_odds = rng.normal(1, 2, size=(20_000, 2))
    >>> survived = np.cumprod(rng.random((20_000, 2)) < expit(log_odds / 2), axis=1).astype(bool)
    >>> bool(np.all(np.abs(fit_sts(log_odds, survived).temperatures - 2) < 0.3))
    True
    """
    num_positions = log_odds.shape[1]
    grid = sts_grid()
    temperatures = np.ones(num_positions)
    before, after = np.full((2, num_positions), np.nan)
    counts = np.isfinite(log_odds).sum(axis=0)
    raw = np.ones(len(log_odds))
    scaled = np.ones(len(log_odds))
    thin = counts < THIN_ROWS
    for k in range(num_positions):
        rows = np.flatnonzero(np.isfinite(log_odds[:, k]))
        if len(rows) == 0:
            continue
        z, label, product = log_odds[rows, k], survived[rows, k], scaled[rows]
        errors = [cumulative_ece(product * expit(z / t), label) for t in grid]
        temperatures[k] = grid[int(np.argmin(errors))]
        raw[rows] *= expit(z)
        scaled[rows] *= expit(z / temperatures[k])
        before[k] = cumulative_ece(raw[rows], label)
        after[k] = min(errors)
        thin[k] |= min(int(label.sum()), int((~label).sum())) < THIN_CLASS
    at_edge = (temperatures <= grid[0]) | (temperatures >= grid[-1])
    return Sts(temperatures, before, after, counts, at_edge, thin)


def survival_ece(
    log_odds: FloatArray, survived: BoolArray, temperatures: FloatArray
) -> tuple[FloatArray, float]:
    """Return cumulative ECE by position, (K,), and its row-weighted mean."""
    product = np.cumprod(expit(log_odds / temperatures), axis=1)
    by_position = np.array(
        [
            cumulative_ece(product[known, k], survived[known, k])
            for k, known in enumerate(np.isfinite(log_odds).T)
        ]
    )
    counts = np.isfinite(log_odds).sum(axis=0)
    mean = float(divide(np.nansum(by_position * counts), counts.sum()))
    return by_position, mean


def parameters_of(calibrator: Calibrator) -> list[dict[str, Any]]:
    """Return the fitted maps as rows: position (None: all), parameters, n, note."""
    return [
        {
            "position": k if calibrator.per_position else None,
            "parameters": dict(one.parameters),
            "n": one.n,
            "note": one.note,
        }
        for k, one in enumerate(calibrator.maps)
    ]
