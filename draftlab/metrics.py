"""Metrics of binary predictions: arrays in, Python floats out; no files, no printing.

``y`` is the label (accepted or not): drop unobserved positions before calling. ``score`` and
``logit`` are log-odds, ``prob`` is a probability; the caller says which by the function he
calls, nothing is guessed from the range of the values.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.fft import dct, idct
from scipy.ndimage import gaussian_filter1d
from scipy.special import erf, expit

if TYPE_CHECKING:
    import numpy.typing as npt

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Bins = Literal["width", "mass"]
Value = Literal["mean", "centre"]
"""What stands for the predictions of a bin: their mean, or the bin's middle."""

NUM_BINS = 15
_EPSILON = float(np.finfo(np.float64).eps)

_HALF_NORMAL_MEAN = float(np.sqrt(2 / np.pi))
_HALF_NORMAL_THIRD = float(_HALF_NORMAL_MEAN * (4 / np.pi - 1))
_Z95 = 1.6448536269514722
_MANY_BINS = 10_000
_GRID = 4096
_CURVE_POINTS = 256
_BANDWIDTH_STEP = 1e-6


class EceNull(NamedTuple):
    """What a perfectly calibrated predictor would show as plug-in ECE."""

    expected: float
    high: float
    """Upper 95 % quantile."""


class BrierParts(NamedTuple):
    """Brier = reliability - resolution + uncertainty + within, exactly."""

    reliability: float
    """Squared gap of rate and mean prediction; 0 is perfect."""
    resolution: float
    """Spread of the rates around the overall rate; more is better."""
    uncertainty: float
    """rate (1 - rate) of all rows: the Brier score of the constant floor."""
    within: float
    """Variance of predictions within bins less twice their covariance with the labels: negative
    if a finer look at the predictions would tell more."""


class Reliability(NamedTuple):
    """Bins of a reliability diagram, one entry per bin, empty ones included."""

    low: FloatArray
    """Closed left edge."""
    high: FloatArray
    """Open right edge; the last one is closed."""
    n: IntArray
    n_accepted: IntArray
    mean_prediction: FloatArray
    """NaN in an empty bin."""
    rate: FloatArray
    """Share accepted; NaN in an empty bin."""


def auc(y: npt.ArrayLike, score: npt.ArrayLike) -> float:
    """Area under the ROC curve: P(score of an accepted row > score of a rejected one).

    Ties count one half. Exact: pairs are counted in integers after one sort, O(n log n).

    Parameters
    ----------
    y : (n,) bool
        Accepted or not.
    score : (n,) float64
        Anything that orders the rows; infinite values are allowed.

    Returns
    -------
    float
        NaN when one class is missing.

    Raises
    ------
    ValueError
        Shapes differ, a label is not 0 or 1, or a score is NaN.

    Examples
    --------
    >>> auc([True, False, True, False], [3.0, 1.0, 2.0, 2.0])
    0.875
    """
    label, values = check_rows(y, score, "score")
    num_accepted = int(np.count_nonzero(label))
    pairs = num_accepted * (len(label) - num_accepted)
    if pairs == 0:
        return float("nan")
    order = np.argsort(values)
    first = np.zeros(len(label), dtype=np.bool_)
    first[0] = True
    ranked = label[order]
    twice = row_wins(ranked, values[order], first)[ranked].sum()
    return int(twice) / (2 * pairs)


def row_wins(y: BoolArray, score: FloatArray, first: BoolArray) -> IntArray:
    """Count, for each row, twice the pairs with the other class that it is ordered rightly in.

    An accepted row wins over the rejected rows below it, a rejected one over the accepted rows
    above. Twice, so that the half credit of a tie stays an integer: wins of rows, folds and
    shards add up exactly. The accepted rows of a group alone count each of its pairs once.

    Parameters
    ----------
    y : (n,) bool
    score : (n,) float64
        Not falling within a group.
    first : (n,) bool
        Where a group starts; True at 0. Pairs are counted within groups.

    Returns
    -------
    (n,) int64

    Examples
    --------
    >>> y = np.array([False, True, True, False])
    >>> first = np.array([True, False, True, False])
    >>> row_wins(y, np.array([0.0, 1.0, 5.0, 5.0]), first).tolist()
    [2, 2, 1, 1]
    """
    n = len(y)
    below: IntArray = np.cumsum(~y, dtype=np.int64)  # rejected rows up to the row, then before it
    above = np.arange(1, n + 1) - below  # accepted rows up to the row
    below = below - ~y
    bounds = [*np.flatnonzero(first).tolist(), n]
    for start, stop in pairwise(bounds):
        below[start:stop] -= int(below[start])
        # accepted rows behind the row, within its group
        np.subtract(above[stop - 1], above[start:stop], out=above[start:stop])
    wins = np.where(y, below, above)
    wins *= 2
    tied = np.zeros(n + 1, dtype=np.bool_)
    tied[1:n] = (score[1:] == score[:-1]) & ~first[1:]
    if tied.any():
        _halve_ties(wins, y, tied, below, above)
    return wins


def _halve_ties(
    wins: IntArray, y: BoolArray, tied: BoolArray, below: IntArray, above: IntArray
) -> None:
    """Correct the wins of tied rows in place; ``tied`` says that a row equals the one before."""
    start = np.flatnonzero(tied[1:] & ~tied[:-1])  # first row of each tie
    stop = np.flatnonzero(tied[:-1] & ~tied[1:]) + 1
    rows = np.flatnonzero(tied[:-1] | tied[1:])
    size = stop - start
    place = np.cumsum(size) - size
    accepted = np.add.reduceat(y[rows], place, dtype=np.int64)
    of_accepted = 2 * below[start] + size - accepted
    of_rejected = 2 * above[stop - 1] + accepted
    wins[rows] = np.where(y[rows], np.repeat(of_accepted, size), np.repeat(of_rejected, size))


def log_loss(y: npt.ArrayLike, logit: npt.ArrayLike) -> float:
    """Mean negative log-likelihood in nats, from log-odds, without any clipping.

    A row costs log(1 + exp(-z)) if accepted and log(1 + exp(z)) if not.

    Parameters
    ----------
    y : (n,) bool
        Accepted or not.
    logit : (n,) float64
        Log-odds of acceptance, not a probability.

    Returns
    -------
    float
        NaN when n is 0; inf where an infinite log-odds is on the wrong side.

    Raises
    ------
    ValueError
        Shapes differ, a label is not 0 or 1, or a log-odds is NaN.

    Examples
    --------
    >>> log_loss([False, True], [40.0, -800.0])
    420.0
    """
    label, values = check_rows(y, logit, "logit")
    return _mean(row_log_loss(label, values))


def probability(logit: FloatArray) -> FloatArray:
    """Return the probability of log-odds.

    Examples
    --------
    >>> probability(np.array([0.0])).tolist()
    [0.5]
    """
    return np.asarray(expit(logit))


def row_log_loss(y: BoolArray, logit: FloatArray) -> FloatArray:
    """Return the log-loss of each row in nats; unchecked, see `log_loss`."""
    wrong = np.where(y, -logit, logit)
    return np.asarray(np.maximum(wrong, 0.0) + np.log1p(np.exp(-np.abs(wrong))))


def log_loss_from_prob(y: npt.ArrayLike, prob: npt.ArrayLike, *, clip: float = _EPSILON) -> float:
    """Log-loss in nats of probabilities that are clipped to [clip, 1 - clip].

    The clip decides what a certain and wrong prediction costs, so a number needs it beside
    it. Predictors of draftlab hand log-odds to `log_loss`, which needs none.

    Parameters
    ----------
    y : (n,) bool
        Accepted or not.
    prob : (n,) float64
        Probability of acceptance.
    clip : float
        Float64 machine epsilon (2.2e-16) unless told.

    Returns
    -------
    float
        NaN when n is 0.

    Raises
    ------
    ValueError
        Shapes differ, a label is not 0 or 1, or a probability lies outside [0, 1].

    Examples
    --------
    >>> round(log_loss_from_prob([1, 0], [0.0, 0.0]), 2)
    18.02
    """
    label, values = _check_prob(y, prob)
    clipped = np.clip(values, clip, 1 - clip)
    return _mean(-np.log(np.where(label, clipped, 1 - clipped)))


def brier(y: npt.ArrayLike, prob: npt.ArrayLike) -> float:
    """Mean squared difference of probability and label (Brier 1950), in [0, 1].

    Parameters
    ----------
    y : (n,) bool
        Accepted or not.
    prob : (n,) float64
        Predicted probability of acceptance.

    Returns
    -------
    float
        NaN when n is 0.

    Raises
    ------
    ValueError
        Shapes differ, a label is not 0 or 1, or a probability lies outside [0, 1].

    Examples
    --------
    >>> brier([True, False], [0.5, 0.5])
    0.25
    """
    label, values = _check_prob(y, prob)
    return _mean((values - label) ** 2)


def ece(
    y: npt.ArrayLike,
    prob: npt.ArrayLike,
    *,
    n_bins: int = NUM_BINS,
    bins: Bins = "width",
    value: Value = "mean",
) -> float:
    """Return the expected calibration error of binary predictions, in [0, 1].

    sum over bins of n_b / n * |rate_b - mean prediction_b| (Naeini et al., AAAI 2015). The
    label is acceptance, not "the prediction was right". Bins are [i/n, (i+1)/n), the last one
    closed; empty ones count for nothing.

    Parameters
    ----------
    y : (n,) bool
        Accepted or not.
    prob : (n,) float64
        Predicted probability of acceptance.
    n_bins : int
        The number moves the result: print it beside.
    bins : {"width", "mass"}
        Equal width, or edges at the i/n quantiles of ``prob`` (equal predictions stay
        together, so bins may be unequal or empty).
    value : {"mean", "centre"}
        Compare the rate with the mean prediction of the bin, or with its middle, as
        TensorRT-LLM does: that shows an error of calibrated predictions too.

    Returns
    -------
    float
        NaN when n is 0. Biased upward for small n: compare with `ece_null`.

    Raises
    ------
    ValueError
        Shapes differ, a label is not 0 or 1, a probability lies outside [0, 1], or ``n_bins``
        or ``bins`` is unusable.

    Examples
    --------
    >>> ece([1, 0], [0.75, 0.25])
    0.25
    """
    edges, n, accepted, predicted, _ = _bin(y, prob, n_bins, bins)
    if value == "centre":
        predicted = n * (edges[:-1] + edges[1:]) / 2
    elif value != "mean":
        raise ValueError(f"unknown value {value!r}; known: 'centre', 'mean'")
    return float(ece_of_bins(n, accepted, predicted))


def smooth_ece(y: npt.ArrayLike, prob: npt.ArrayLike, *, bandwidth: float | None = None) -> float:
    """Return the smooth calibration error of Blasiok and Nakkiran (ICLR 2024): no bins.

    The residuals label - prediction are smoothed over the prediction axis by a Gaussian that is
    reflected at 0 and 1, and the absolute value is integrated. The bandwidth is the one that
    equals the error that it shows; no parameter is left to choose. Predictions are spread over
    the neighbours on a grid of step 1/4096.

    Parameters
    ----------
    y : (n,) bool
    prob : (n,) float64
        Predicted probability of acceptance.
    bandwidth : float, optional
        Fixed, on the scale of probabilities.

    Returns
    -------
    float
        In [0, 1]; NaN when n is 0. It too is biased upward for small n.

    Raises
    ------
    ValueError
        Shapes differ, a label is not 0 or 1, a probability lies outside [0, 1], or the
        bandwidth is not positive.

    Examples
    --------
    >>> round(smooth_ece([1, 1, 0, 1], [0.5, 0.5, 0.5, 0.5]), 3)
    0.25
    """
    label, values = _check_prob(y, prob)
    if bandwidth is not None and not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth}")
    if len(label) == 0:
        return float("nan")
    spectrum = _residual_spectrum(label, values)
    if bandwidth is not None:
        return _smoothed_error(spectrum, bandwidth)
    # the error falls as the bandwidth rises: one crossing, found by bisection
    low, high = 0.0, 1.0
    while high - low > _BANDWIDTH_STEP:
        middle = (low + high) / 2
        if _smoothed_error(spectrum, middle) < middle:
            high = middle
        else:
            low = middle
    return _smoothed_error(spectrum, high)


class SmoothCurve(NamedTuple):
    """What is observed against what was predicted, without bins."""

    prob: FloatArray
    """(m,): predictions, an even grid inside (0, 1)."""
    rate: FloatArray
    """(m,): smoothed share of accepted rows; NaN where no row is near."""
    density: FloatArray
    """(m,): rows per unit of prediction, smoothed alike, with integral 1."""


def smooth_curve(y: npt.ArrayLike, prob: npt.ArrayLike, *, bandwidth: float) -> SmoothCurve:
    """Return the calibration curve under the kernel of `smooth_ece`: a Gaussian reflected at 0, 1.

    Parameters
    ----------
    y : (n,) bool
    prob : (n,) float64
        Predicted probability of acceptance.
    bandwidth : float
        Of the kernel; `smooth_ece` itself is the one that Blasiok and Nakkiran draw with.

    Returns
    -------
    SmoothCurve
        On 256 points; the kernel is cut at four bandwidths.

    Raises
    ------
    ValueError
        As in `smooth_ece`.

    Examples
    --------
    >>> curve = smooth_curve([True, False, True, True], [0.5, 0.5, 0.5, 0.5], bandwidth=0.1)
    >>> curve.rate[128].round(3).item(), bool(np.isnan(curve.rate[0]))
    (0.75, True)
    """
    label, values = _check_prob(y, prob)
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth}")
    inside = np.minimum((values * _CURVE_POINTS).astype(np.int64), _CURVE_POINTS - 1)
    rows = np.bincount(inside, minlength=_CURVE_POINTS).astype(np.float64)
    accepted = np.bincount(inside[label], minlength=_CURVE_POINTS).astype(np.float64)
    smoothed, smoothed_accepted = (
        gaussian_filter1d(counts, bandwidth * _CURVE_POINTS, mode="reflect", truncate=4.0)
        for counts in (rows, accepted)
    )
    grid = (np.arange(_CURVE_POINTS) + 0.5) / _CURVE_POINTS
    density = divide(smoothed * _CURVE_POINTS, np.float64(len(values)))
    return SmoothCurve(grid, divide(smoothed_accepted, smoothed), density)


def _residual_spectrum(label: BoolArray, values: FloatArray) -> FloatArray:
    """Return the cosine transform of the residuals on the grid: what a reflected kernel scales."""
    place = values * _GRID
    lower = np.minimum(place.astype(np.int64), _GRID - 1)
    upper_share = place - lower
    residual = (label - values) / len(label)
    grid = sum_by(lower, residual * (1 - upper_share), _GRID + 1)
    grid += sum_by(lower + 1, residual * upper_share, _GRID + 1)
    grid[[0, -1]] *= 2  # a point on the mirror is its own image
    return np.asarray(dct(grid, type=1))


def _smoothed_error(spectrum: FloatArray, bandwidth: float) -> float:
    frequency = np.pi * np.arange(_GRID + 1)
    smooth = idct(spectrum * np.exp(-0.5 * (bandwidth * frequency) ** 2), type=1)
    weight = np.ones(_GRID + 1)
    weight[[0, -1]] = 0.5  # trapezoids
    return float(np.abs(smooth) @ weight)


def brier_decomposition(
    y: npt.ArrayLike, prob: npt.ArrayLike, *, n_bins: int = NUM_BINS, bins: Bins = "width"
) -> BrierParts:
    """Split the Brier score over bins (Murphy 1973), exactly (Stephenson et al. 2008).

    Murphy's three parts sum to the score only if predictions within a bin are equal; ``within``
    is the rest. Parameters and errors are those of `ece`.

    Examples
    --------
    >>> parts = brier_decomposition([1, 0, 1, 1], [0.9, 0.1, 0.6, 0.6], n_bins=2)
    >>> round(parts.reliability - parts.resolution + parts.uncertainty + parts.within, 4)
    0.085
    >>> round(brier([1, 0, 1, 1], [0.9, 0.1, 0.6, 0.6]), 4)
    0.085
    """
    label, values = _check_prob(y, prob)
    index = _bin_index(values, n_bins, bins)
    n, accepted = (np.bincount(i, minlength=n_bins) for i in (index, index[label]))
    parts = brier_parts_of_bins(
        n,
        accepted,
        sum_by(index, values, n_bins),
        sum_by(index, values * (1 - values), n_bins),
        sum_by(index[label], values[label], n_bins),
    )
    return BrierParts(*(float(part) for part in parts))


def ece_debiased(
    y: npt.ArrayLike, prob: npt.ArrayLike, *, n_bins: int = NUM_BINS, bins: Bins = "width"
) -> float:
    """ECE less an estimate of its upward bias, bin by bin.

    sum over bins of n_b / n * (2 |d| - E|N(d, s^2)|) with d = rate - mean prediction and
    s^2 = rate (1 - rate) / n_b: the L1 form of Kumar, Liang and Ma (NeurIPS 2019), in closed
    form. It takes away a part of the bias, not all; slightly negative values are noise.

    Parameters and errors are those of `ece`.

    Returns
    -------
    float
        NaN when n is 0.

    Examples
    --------
    >>> round(ece_debiased([1, 0, 1, 1], [0.6, 0.6, 0.6, 0.6]), 4)
    0.0874
    """
    _, n, accepted, predicted, _ = _bin(y, prob, n_bins, bins)
    return float(ece_debiased_of_bins(n, accepted, predicted))


def ece_null(prob: npt.ArrayLike, *, n_bins: int = NUM_BINS, bins: Bins = "width") -> EceNull:
    """Return what plug-in ECE would be if every prediction were exactly right.

    The sum of label - prediction over a bin then has variance V = sum p (1 - p) and is taken
    as normal, so its absolute value has mean sqrt(2 V / pi), or 2 V where that is less (bins
    that expect hardly one event). The quantile of the sum over bins is a Cornish-Fisher
    expansion with the third cumulant of half-normals; with one bin it gives the exact 1.96.
    A predictor that was fitted to the same rows can lie below.

    Parameters
    ----------
    prob : (n,) float64
        Predictions.
    n_bins, bins
        As in `ece`.

    Returns
    -------
    EceNull
        Expected value and upper 95 % quantile; NaN when n is 0.

    Raises
    ------
    ValueError
        A probability lies outside [0, 1], or ``n_bins`` or ``bins`` is unusable.

    Examples
    --------
    >>> expected, high = ece_null(np.full(10_000, 0.5), n_bins=15)
    >>> round(expected, 4), round(high, 4)
    (0.004, 0.0098)
    """
    no_label = np.zeros(np.shape(prob), dtype=np.bool_)
    _, n, _, _, variance = _bin(no_label, prob, n_bins, bins)
    expected, high = ece_null_of_bins(n, variance)
    return EceNull(float(expected), float(high))


def ece_and_null(
    y: npt.ArrayLike, prob: npt.ArrayLike, *, n_bins: int = NUM_BINS, bins: Bins = "width"
) -> tuple[float, float]:
    """Return `ece` and the expected value of `ece_null`, from one pass.

    Examples
    --------
    >>> ece_and_null([1, 0], [1.0, 0.0])
    (0.0, 0.0)
    """
    _, n, accepted, predicted, variance = _bin(y, prob, n_bins, bins)
    null, _ = ece_null_of_bins(n, variance)
    return float(ece_of_bins(n, accepted, predicted)), float(null)


def reliability(
    y: npt.ArrayLike, prob: npt.ArrayLike, *, n_bins: int = NUM_BINS, bins: Bins = "width"
) -> Reliability:
    """Return counts, mean prediction and rate of each bin; `ece` is their weighted gap.

    Parameters and errors are those of `ece`.

    Examples
    --------
    >>> table = reliability([1, 0, 1], [0.9, 0.1, 0.8], n_bins=2)
    >>> table.n.tolist(), table.rate.tolist()
    ([1, 2], [0.0, 1.0])
    """
    edges, n, accepted, predicted, _ = _bin(y, prob, n_bins, bins)
    mean, rate = divide(predicted, n), divide(accepted, n)
    return Reliability(edges[:-1], edges[1:], n, accepted, mean, rate)


def bin_edges(n_bins: int) -> FloatArray:
    """Return the edges i / n_bins of equal-width bins, each the float nearest to the ratio."""
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    return np.asarray(np.arange(n_bins + 1) / n_bins)


def bin_index(prob: FloatArray, edges: FloatArray) -> IntArray:
    """Return the bin of each probability: closed left, the last one closed on both sides.

    Compared with the edges themselves: ``floor(prob * n_bins)`` puts some edges into the bin
    below, because the product is rounded.
    """
    n_bins = len(edges) - 1
    if n_bins > _MANY_BINS or edges[0] != 0.0 or not np.array_equal(edges, bin_edges(n_bins)):
        return np.searchsorted(edges[1:-1], prob, side="right")
    # the rounded product is off by one bin at most: put right by comparison, faster than a search
    index = (prob * n_bins).astype(np.int16)
    np.minimum(index, n_bins - 1, out=index)
    index += prob >= np.append(edges[1:-1], np.inf)[index]
    index -= prob < edges[index]
    return index.astype(np.int64)


# The functions below take sums per bin, shape (..., n_bins), and reduce the last axis: sums of
# positions, datasets and shards add up, and one pass over the rows serves every scope.


def ece_of_bins(
    n: np.ndarray[Any, Any], accepted: np.ndarray[Any, Any], predicted: FloatArray
) -> FloatArray:
    """Return ECE from counts, accepted counts and summed predictions per bin."""
    return divide(np.abs(accepted - predicted).sum(axis=-1), n.sum(axis=-1))


def ece_debiased_of_bins(
    n: np.ndarray[Any, Any], accepted: np.ndarray[Any, Any], predicted: FloatArray
) -> FloatArray:
    """Return the debiased ECE of `ece_debiased` from the sums of `ece_of_bins`."""
    gap = np.abs(accepted - predicted)
    variance = accepted * (1 - accepted / np.maximum(n, 1))
    total = (2 * gap - _folded_normal_mean(gap, variance)).sum(axis=-1)
    return divide(total, n.sum(axis=-1))


def ece_null_of_bins(
    n: np.ndarray[Any, Any], variance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return expected value and 95 % quantile of `ece_null` from summed p (1 - p) per bin."""
    mean = np.minimum(_HALF_NORMAL_MEAN * np.sqrt(variance), 2 * variance)
    spread = np.sqrt((variance - mean**2).sum(axis=-1))
    # relative to the spread: the cube of a tiny one would be 0
    relative = np.sqrt(variance) / np.where(spread > 0, spread, 1.0)[..., None]
    skewness = _HALF_NORMAL_THIRD * (relative**3).sum(axis=-1)
    quantile = _Z95 + (_Z95**2 - 1) / 6 * skewness
    total = n.sum(axis=-1)
    expected = mean.sum(axis=-1)
    return divide(expected, total), divide(expected + spread * quantile, total)


def brier_parts_of_bins(
    n: np.ndarray[Any, Any],
    accepted: np.ndarray[Any, Any],
    predicted: FloatArray,
    variance: FloatArray,
    predicted_accepted: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the parts of `BrierParts` from sums per bin.

    ``variance`` sums p (1 - p), ``predicted_accepted`` sums p over accepted rows.
    """
    total = n.sum(axis=-1)
    size = np.maximum(n, 1)
    rate, mean = accepted / size, predicted / size
    overall = divide(accepted.sum(axis=-1), total)
    reliability = divide((n * (mean - rate) ** 2).sum(axis=-1), total)
    resolution = divide((n * (rate - overall[..., None]) ** 2).sum(axis=-1), total)
    squares = predicted - variance
    spread = squares - predicted * mean
    covariance = predicted_accepted - accepted * mean
    within = divide((spread - 2 * covariance).sum(axis=-1), total)
    return reliability, resolution, overall * (1 - overall), within


def divide(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> FloatArray:
    """Divide elementwise; NaN where the denominator is 0: undefined is never a number."""
    below = np.asarray(denominator, dtype=np.float64)
    above = np.asarray(numerator, dtype=np.float64)
    out = np.full(np.broadcast_shapes(above.shape, below.shape), np.nan)
    np.divide(above, below, out=out, where=below != 0)
    return out


def correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return Pearson's correlation; NaN where either is constant or there are under two values.

    Examples
    --------
    >>> correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    1.0
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (x, y))
    if len(a) < 2:
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    # sums, not a BLAS product: its threads would meet those of run_threads
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else float("nan")


def sum_by(index: np.ndarray[Any, Any], values: FloatArray, size: int) -> FloatArray:
    """Sum the values of each index in [0, size)."""
    return np.asarray(np.bincount(index, values, size), dtype=np.float64)


def _folded_normal_mean(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Return E|N(mean, variance)|, mean >= 0."""
    deviation = np.sqrt(variance)
    ratio = mean / np.where(deviation > 0, deviation, 1.0)
    folded = _HALF_NORMAL_MEAN * deviation * np.exp(-0.5 * ratio**2)
    inside = folded + mean * erf(ratio / np.sqrt(2))
    return np.asarray(np.where(deviation > 0, inside, mean))


def _bin(
    y: npt.ArrayLike, prob: npt.ArrayLike, n_bins: int, bins: Bins
) -> tuple[FloatArray, IntArray, IntArray, FloatArray, FloatArray]:
    """Return edges and, per bin: n, accepted, sum of predictions, sum of p (1 - p)."""
    label, values = _check_prob(y, prob)
    edges = _edges(values, n_bins, bins)
    index = bin_index(values, edges)
    n, accepted = (np.bincount(i, minlength=n_bins) for i in (index, index[label]))
    predicted = sum_by(index, values, n_bins)
    variance = sum_by(index, values * (1 - values), n_bins)
    return edges, n, accepted, predicted, variance


def _edges(values: FloatArray, n_bins: int, bins: Bins) -> FloatArray:
    edges = bin_edges(n_bins)
    if bins == "mass":
        return np.quantile(values, edges) if len(values) else edges
    if bins != "width":
        raise ValueError(f"unknown bins {bins!r}; known: 'mass', 'width'")
    return edges


def _bin_index(values: FloatArray, n_bins: int, bins: Bins) -> IntArray:
    return bin_index(values, _edges(values, n_bins, bins))


def check_rows(y: npt.ArrayLike, values: npt.ArrayLike, name: str) -> tuple[BoolArray, FloatArray]:
    """Return labels as bool and values as float64, or say what is wrong with them."""
    label = np.asarray(y)
    numbers = np.asarray(values, dtype=np.float64)
    if label.ndim != 1 or label.shape != numbers.shape:
        raise ValueError(
            f"y and {name} must share one shape (n,), got {label.shape} and {numbers.shape}"
        )
    if label.dtype != np.bool_:
        if not np.isin(label, (0, 1)).all():
            raise ValueError("y must hold only 0 and 1 (drop unobserved rows first)")
        label = label.astype(np.bool_)
    num_nan = int(np.count_nonzero(np.isnan(numbers)))
    if num_nan:
        raise ValueError(f"{name} holds {num_nan} NaN of {len(numbers)} values")
    return label, numbers


def _check_prob(y: npt.ArrayLike, prob: npt.ArrayLike) -> tuple[BoolArray, FloatArray]:
    label, values = check_rows(y, prob, "prob")
    outside = values[(values < 0) | (values > 1)]
    if len(outside):
        raise ValueError(
            f"prob must lie in [0, 1], got {len(outside)} outside, such as {outside[0]}; "
            "log-odds go to log_loss and auc"
        )
    return label, values


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")
