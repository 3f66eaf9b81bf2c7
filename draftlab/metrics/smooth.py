"""Smooth calibration error and curve of Blasiok and Nakkiran (ICLR 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.fft import dct, idct
from scipy.ndimage import gaussian_filter1d

from draftlab.metrics.arrays import check_prob, divide, sum_by

if TYPE_CHECKING:
    import numpy.typing as npt

    from draftlab._types import BoolArray, FloatArray

_GRID = 4096
_CURVE_POINTS = 256
_BANDWIDTH_STEP = 1e-6


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
    label, values = check_prob(y, prob)
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
    label, values = check_prob(y, prob)
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
