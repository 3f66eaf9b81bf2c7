"""What every online estimator is: coefficients by position that change at refits only.

The engine predicts with the coefficients of the moment, stores feature and prediction, and learns
from both when the verdict arrives. All estimators here predict log-odds w_k f + b_k with K slopes
and K intercepts (a shared slope is K equal ones), so that a replay between two refits is one
vectorised pass and a late label finds its prediction in the history of coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

OVERSHOOT = 4.0
"""A refit that moves an intercept by more nats, or the slope by more, is flagged: log-odds of
acceptance span about that much, so such a step leaves the data behind."""


@dataclass(frozen=True)
class Labels:
    """Labels that arrived since the last refit; arrays over rows."""

    feature: FloatArray
    """As stored at draft time, nats."""
    position: NDArray[np.int64]
    logit: FloatArray
    """Log-odds predicted at draft time."""
    accepted: NDArray[np.bool_]
    step: NDArray[np.int64]
    """Engine step of the verdict, non-decreasing."""
    prediction: FloatArray | None = None
    """Probability of ``logit``, where it is at hand."""


@dataclass(frozen=True)
class Refit:
    """What one refit did."""

    counts: NDArray[np.int64]
    """[K], labels of the round."""
    slope_step: float
    """Largest change of a slope, signed."""
    intercept_step: FloatArray
    """[K], change of the intercepts, nats."""
    refused: str | None = None
    """Why the slope stayed: ``nan`` or ``negative``; None where it moved."""
    limited: bool = False
    """A rival's bound cut the step."""

    @property
    def overshoot(self) -> bool:
        """Whether a coefficient moved by more than `OVERSHOOT`, or is no number."""
        largest = max(abs(self.slope_step), float(np.abs(self.intercept_step).max(initial=0.0)))
        return not largest <= OVERSHOOT


class Estimator(Protocol):
    """An online estimator; its state is O(K)."""

    refit_interval: int
    """Engine steps (verdict calls) between refits."""

    @property
    def slopes(self) -> FloatArray:
        """[K] float64."""

    @property
    def intercepts(self) -> FloatArray:
        """[K] float64, nats."""

    def learn(self, labels: Labels) -> None:
        """Take in labels; coefficients stay as they are."""

    def refit(self) -> Refit:
        """Change the coefficients after ``refit_interval`` steps."""


@dataclass
class RoundStatistics:
    """Sums over the labels of a round, by position: what one Newton step needs."""

    num_positions: int
    information: FloatArray = field(init=False)
    """[3, K]: sums of v f^2, v f, v with v = p (1 - p) of the stored predictions."""
    gradient: FloatArray = field(init=False)
    """[2, K]: sums of (y - p) f and (y - p)."""
    counts: NDArray[np.int64] = field(init=False)
    """[K]."""

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.information = np.zeros((3, self.num_positions))
        self.gradient = np.zeros((2, self.num_positions))
        self.counts = np.zeros(self.num_positions, dtype=np.int64)

    def add(self, labels: Labels) -> None:
        """Add labels, weighted and centred by the predictions made at draft time."""
        prob = probability(labels.logit) if labels.prediction is None else labels.prediction
        weight = prob * (1 - prob)
        residual = labels.accepted - prob
        f = labels.feature
        by_feature = weight * f
        terms: tuple[Any, ...] = (by_feature * f, by_feature, weight, residual * f, residual)
        size = self.num_positions
        sums = [np.bincount(labels.position, term, size) for term in terms]
        self.information += sums[:3]
        self.gradient += sums[3:]
        self.counts += np.bincount(labels.position, minlength=size)


def probability(logit: FloatArray) -> FloatArray:
    """Return sigmoid(logit); faster than scipy's, and as exact: e^-z may well overflow."""
    out: FloatArray = np.negative(logit)
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
    out += 1.0
    return np.reciprocal(out, out=out)
