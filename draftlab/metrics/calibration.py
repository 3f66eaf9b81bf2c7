"""Calibration over bins: ECE and its null, reliability, the parts of the Brier score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.special import erf

from draftlab.metrics.arrays import check_prob, divide, sum_by

if TYPE_CHECKING:
    import numpy.typing as npt

    from draftlab._types import FloatArray, IntArray

Bins = Literal["width", "mass"]
Value = Literal["mean", "centre"]
"""What stands for the predictions of a bin: their mean, or the bin's middle."""
NUM_BINS = 15
_HALF_NORMAL_MEAN = float(np.sqrt(2 / np.pi))
_HALF_NORMAL_THIRD = float(_HALF_NORMAL_MEAN * (4 / np.pi - 1))
_Z95 = 1.6448536269514722
_MANY_BINS = 10_000


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


def brier_decomposition(
    y: npt.ArrayLike, prob: npt.ArrayLike, *, n_bins: int = NUM_BINS, bins: Bins = "width"
) -> BrierParts:
    """Split the Brier score over bins (Murphy 1973), exactly (Stephenson et al. 2008).

    Murphy's three parts sum to the score only if predictions within a bin are equal; ``within``
    is the rest. Parameters and errors are those of `ece`.

    Examples
    --------
    >>> from draftlab.metrics import brier
    >>> parts = brier_decomposition([1, 0, 1, 1], [0.9, 0.1, 0.6, 0.6], n_bins=2)
    >>> round(parts.reliability - parts.resolution + parts.uncertainty + parts.within, 4)
    0.085
    >>> round(brier([1, 0, 1, 1], [0.9, 0.1, 0.6, 0.6]), 4)
    0.085
    """
    label, values = check_prob(y, prob)
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
    label, values = check_prob(y, prob)
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
