"""Survival: the chance that everything up to a position is accepted, from conditional chances.

Rows of a proposal stand side by side, (P, K) with K positions; NaN marks a position that was not
admitted. Everything is a logarithm, so that a deep product neither underflows nor rounds to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab._types import FloatArray


_BLOCK = 4096
"""Proposals at a time, so that intermediate arrays stay in the processor's cache."""


def log_chance(log_odds: FloatArray) -> FloatArray:
    """Return log sigmoid of log-odds.

    Examples
    --------
    >>> log_chance(np.array([0.0, 800.0])).round(4).tolist()
    [-0.6931, 0.0]
    """
    return np.asarray(np.minimum(log_odds, 0.0) - np.log1p(np.exp(-np.abs(log_odds))))


def log_odds_of_log(log_prob: FloatArray) -> FloatArray:
    """Return log(p / (1 - p)) from log p <= 0; +inf where p is 1.

    Examples
    --------
    >>> log_odds_of_log(np.array([np.log(0.75)])).round(4).tolist()
    [1.0986]
    """
    with np.errstate(divide="ignore"):
        return np.asarray(log_prob - np.log(-np.expm1(log_prob)))


def product(log_odds: FloatArray) -> FloatArray:
    """Return log survival as the product of conditionals c_0 .. c_k.

    Parameters
    ----------
    log_odds : (P, K) float64
        Of conditional acceptance; NaN behind the last admitted position.

    Returns
    -------
    (P, K) float64

    Examples
    --------
    >>> np.exp(product(np.array([[0.0, 0.0]]))).tolist()
    [[0.5, 0.25]]
    """
    out = np.empty_like(log_odds)
    for start in range(0, len(log_odds), _BLOCK):
        part = slice(start, start + _BLOCK)
        np.cumsum(log_chance(log_odds[part]), axis=1, out=out[part])
    return out


def last_factor(drawn: FloatArray, at_draw: FloatArray) -> FloatArray:
    """Return log survival with the drawn tokens' conditionals before k and another one at k.

    When position k is decided on, x_0 .. x_{k-1} are drawn: reading them is lossless, reading x_k
    is not. With accept_prob as ``drawn`` and overlap as ``at_draw`` this is the lossless oracle.

    Parameters
    ----------
    drawn, at_draw : (P, K) float64
        Log-odds of the factors at i < k and of the factor at k.

    Returns
    -------
    (P, K) float64

    Examples
    --------
    >>> drawn, at_draw = np.array([[0.0, 40.0]]), np.array([[np.log(3), 0.0]])
    >>> np.exp(last_factor(drawn, at_draw)).tolist()
    [[0.75, 0.25]]
    """
    out = product(drawn)
    for start in range(0, len(out), _BLOCK):
        part = slice(start, start + _BLOCK)
        last = log_chance(at_draw[part])
        last[:, 1:] += out[part, :-1]
        out[part] = last
    return out


def hybrid(drawn: FloatArray, at_draw: FloatArray) -> FloatArray:
    """Return `last_factor` with a running minimum, so that survival falls along a proposal.

    Examples
    --------
    >>> drawn, at_draw = np.array([[-1.0, 40.0]]), np.array([[-2.0, 40.0]])
    >>> bool(last_factor(drawn, at_draw)[0, 1] > last_factor(drawn, at_draw)[0, 0])
    True
    >>> bool(hybrid(drawn, at_draw)[0, 1] > hybrid(drawn, at_draw)[0, 0])
    False
    """
    out = last_factor(drawn, at_draw)
    return np.minimum.accumulate(out, axis=1, out=out)


@dataclass(frozen=True)
class SurvivalPredictor:
    """A combination of two conditional predictors of one proposal."""

    name: str
    doc: str
    drawn: str
    """Predictor of the factors before k: it may read their drawn tokens."""
    at_draw: str
    """Predictor of the factor at k; it alone decides on losslessness."""
    combine: Callable[[FloatArray, FloatArray], FloatArray]
    """Of their log-odds, both (P, K), to log survival."""


SURVIVAL: dict[str, SurvivalPredictor] = {
    predictor.name: predictor
    for predictor in (
        SurvivalPredictor(
            "hybrid",
            "fitted logit_q_sampled before k, fitted logit_qmax at k, running minimum",
            "logit_q_sampled",
            "logit_qmax",
            hybrid,
        ),
        SurvivalPredictor(
            "oracle",
            "ceiling: accept_prob before k, overlap at k; the best that is lossless at k",
            "accept_prob",
            "overlap",
            last_factor,
        ),
    )
}
"""Survival predictors besides the product of each conditional predictor with itself."""
