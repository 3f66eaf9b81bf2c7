"""vLLM's online acceptance estimator, as shipped in 0.32 and 0.33 (PR #52228).

p = sigmoid(w f + b_k): one slope for all positions, one intercept each. In every engine step the
verdicts are folded into sums first, then every `refit_interval` steps one damped Newton step is
made, then the new drafts are predicted. Whatever the coefficients are by then, a label counts with
the prediction made at draft time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from draftlab.online.estimator import Labels, Refit, RoundStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from draftlab._types import FloatArray

FEATURE_LIMIT = 40.0
"""Stored features are clipped at +-40 nats."""


@dataclass(frozen=True)
class Constants:
    """Constants of the shipped estimator."""

    refit_interval: int = 100
    """Engine steps between refits; steps that graded nothing count too."""
    damping: float = 50.0
    """Shrinks each refit step by n / (n + damping), where n counts all labels of the round for the
    slope, and those of its position for an intercept."""
    ridge: float = 1e-3
    """Ridge added to the Hessian only, once for the slope and once for each intercept."""
    start_slope: float = 0.5
    start_intercept: float = -0.2


EARLY = Constants(start_slope=0.0, start_intercept=1.5)
"""Start values of the pull request's earlier commits."""


@dataclass
class VllmEstimator:
    """The shipped rule: shared slope, arrowhead solve, one damped Newton step a round.

    Parameters
    ----------
    num_positions : int
        K.
    constants : Constants
    """

    num_positions: int
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        self.refit_interval = self.constants.refit_interval
        self.slope = self.constants.start_slope
        self.intercepts: FloatArray = np.full(self.num_positions, self.constants.start_intercept)
        self.statistics = RoundStatistics(self.num_positions)

    @property
    def slopes(self) -> FloatArray:
        """[K], all equal."""
        return np.full(self.num_positions, self.slope)

    def learn(self, labels: Labels) -> None:
        """Fold labels into the sums of the round."""
        self.statistics.add(labels)

    def refit(self) -> Refit:
        """Make one damped Newton step and clear the sums."""
        step = newton_step(self.statistics, self.slope, self.constants)
        self.slope += step.slope_step
        self.intercepts = self.intercepts + step.intercept_step
        self.statistics.clear()
        return step


def newton_step(statistics: RoundStatistics, slope: float, constants: Constants) -> Refit:
    """Return vLLM's step: intercepts eliminated, slope damped and guarded, intercepts follow.

    A slope step that is NaN or would make the slope negative is refused (not clipped), and the
    intercepts move as if it were 0; a NaN intercept step is dropped. No step is limited in size.
    """
    (a, b, c), (u, v), n = statistics.information, statistics.gradient, statistics.counts
    c = c + constants.ridge
    with np.errstate(invalid="ignore", divide="ignore"):
        numerator = u.sum() - (b * v / c).sum()
        denominator = a.sum() + constants.ridge - (b * b / c).sum()
        slope_step = float(np.divide(numerator, denominator))
        slope_step *= _damp(n.sum(), constants.damping)
        refused = _refusal(slope, slope_step)
        if refused is not None:
            slope_step = 0.0
        intercept_step = (v - b * slope_step) / c * _damp(n, constants.damping)
    return Refit(
        counts=n.copy(),
        slope_step=slope_step,
        intercept_step=np.nan_to_num(intercept_step, nan=0.0, posinf=np.inf, neginf=-np.inf),
        refused=refused,
    )


def _damp(n: Any, damping: float) -> Any:
    return n / np.maximum(n + damping, np.finfo(np.float64).tiny)


def _refusal(slope: float, step: float) -> str | None:
    if np.isnan(step):
        return "nan"
    return "negative" if slope + step < 0 else None


def from_snapshot(
    snapshot: Mapping[str, Any], num_positions: int, constants: Constants | None = None
) -> tuple[VllmEstimator, int]:
    """Return the estimator that a run.json's ``estimator_start`` describes.

    Keys: ``slope``, ``intercepts`` [K]; optional ``info`` [K, 3], ``grad`` [K, 2], ``counts`` [K]
    of the round in progress and ``steps_since_refit``.

    Returns
    -------
    estimator, steps_since_refit
    """
    estimator = VllmEstimator(
        num_positions, replace(constants or Constants(), start_slope=float(snapshot["slope"]))
    )
    estimator.intercepts = np.asarray(snapshot["intercepts"], dtype=np.float64)
    if estimator.intercepts.shape != (num_positions,):
        raise ValueError(
            f"snapshot has {estimator.intercepts.size} intercepts, the run {num_positions}"
        )
    if "info" in snapshot:
        estimator.statistics.information = np.asarray(snapshot["info"], dtype=np.float64).T
        estimator.statistics.gradient = np.asarray(snapshot["grad"], dtype=np.float64).T
        estimator.statistics.counts = np.asarray(snapshot["counts"], dtype=np.int64)
    return estimator, int(snapshot.get("steps_since_refit", 0))


def stored_feature(log_odds: FloatArray, *, float32: bool = False) -> FloatArray:
    """Return log-odds of the top token as the estimator stores them: clipped at +-40.

    With ``float32``, as vLLM's kernel quantises them: -log(fl32(1 + exp(-f)) - 1). No value lies
    between 23 log 2 = 15.94 and 40 then, and values above 10 are visibly coarse. A row whose
    feature is null (nonfinite logits) counts as 40, as in vLLM.
    """
    f = np.where(np.isnan(log_odds), FEATURE_LIMIT, log_odds)
    if float32:
        with np.errstate(divide="ignore", over="ignore"):
            rest = (1.0 + np.exp(-f)).astype(np.float32) - np.float32(1)
            f = -np.log(rest).astype(np.float64)
    return np.clip(f, -FEATURE_LIMIT, FEATURE_LIMIT)


@dataclass
class MarginEstimator:
    """The pull request's first variant: top-2 margin, a slope and an intercept per position.

    A position with fewer than ``min_count`` labels in a round is skipped. Ridge and solve are
    those of the shipped rule on each position's own 2 x 2 system.
    """

    num_positions: int
    constants: Constants = EARLY
    min_count: int = 50

    def __post_init__(self) -> None:
        self.refit_interval = self.constants.refit_interval
        self.slopes: FloatArray = np.full(self.num_positions, self.constants.start_slope)
        self.intercepts: FloatArray = np.full(self.num_positions, self.constants.start_intercept)
        self.statistics = RoundStatistics(self.num_positions)

    def learn(self, labels: Labels) -> None:
        """Fold labels into the sums of the round."""
        self.statistics.add(labels)

    def refit(self) -> Refit:
        """Make one Newton step per position that has enough labels."""
        (a, b, c), (u, v) = self.statistics.information, self.statistics.gradient
        n = self.statistics.counts.copy()
        a, c = a + self.constants.ridge, c + self.constants.ridge
        determinant = a * c - b * b
        enough = n >= self.min_count
        slope_step = np.where(enough, (c * u - b * v) / determinant, 0.0)
        intercept_step = np.where(enough, (a * v - b * u) / determinant, 0.0)
        self.slopes = self.slopes + slope_step
        self.intercepts = self.intercepts + intercept_step
        self.statistics.clear()
        return Refit(n, float(slope_step[np.abs(slope_step).argmax()]), intercept_step)
