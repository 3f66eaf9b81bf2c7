"""Proper scores: log-loss in nats from log-odds, Brier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit

from draftlab.metrics.arrays import check_prob, check_rows, mean

if TYPE_CHECKING:
    import numpy.typing as npt

    from draftlab._types import BoolArray, FloatArray

_EPSILON = float(np.finfo(np.float64).eps)


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
    return mean(row_log_loss(label, values))


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
    label, values = check_prob(y, prob)
    clipped = np.clip(values, clip, 1 - clip)
    return mean(-np.log(np.where(label, clipped, 1 - clipped)))


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
    label, values = check_prob(y, prob)
    return mean((values - label) ** 2)
