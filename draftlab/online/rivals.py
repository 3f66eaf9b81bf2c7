"""Rivals of vLLM's rule, with its interface, and the table of all estimators by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from draftlab.errors import MissingExtraError
from draftlab.online.estimator import Estimator, Labels, Refit
from draftlab.online.smoothing import SMOOTHED
from draftlab.online.vllm import (
    EARLY,
    Constants,
    MarginEstimator,
    VllmEstimator,
    newton_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab._types import FloatArray

MAX_STEP = 1.0
"""Bound of the limited rule: nats that the log-odds of a typical draft may move in one refit."""
DECAY = 0.7
"""Weight that a round keeps in the next one under the decayed rule."""
NEWTON_STEPS = 5
NEVER = 2**62
"""Refit interval of what never refits, in steps."""


@dataclass
class LimitedEstimator(VllmEstimator):
    """vLLM's rule with a trust region: no coefficient moves by more than ``max_step`` a refit.

    Where predictions are nearly certain the weights p (1 - p) vanish and a Newton step leaves the
    region in which its parabola describes the likelihood. Scaling the whole step keeps its
    direction; coefficients are kept within +-``bound``.
    """

    max_step: float = MAX_STEP
    bound: float = 20.0

    def refit(self) -> Refit:
        """Make the Newton step, scaled down to the trust region."""
        step = newton_step(self.statistics, self.slope, self.constants)
        longest = max(abs(step.slope_step), float(np.abs(step.intercept_step).max()))
        scale = 1.0 if longest <= self.max_step else self.max_step / longest
        slope = float(np.clip(self.slope + scale * step.slope_step, 0.0, self.bound))
        intercepts = np.clip(self.intercepts + scale * step.intercept_step, -self.bound, self.bound)
        taken = replace(
            step,
            slope_step=slope - self.slope,
            intercept_step=intercepts - self.intercepts,
            limited=scale < 1,
        )
        self.slope, self.intercepts = slope, intercepts
        self.statistics.clear()
        return taken


@dataclass
class DecayedEstimator(VllmEstimator):
    """vLLM's rule with memory: sums are decayed at a refit instead of cleared.

    The kept gradient is that of the old rounds' parabola at the new coefficients, g - H step, so
    that memory resists the new round and does not push twice.
    """

    decay: float = DECAY

    def refit(self) -> Refit:
        """Make the Newton step on the decayed sums, then decay them."""
        sums = self.statistics
        step = newton_step(sums, self.slope, self.constants)
        self.slope += step.slope_step
        self.intercepts = self.intercepts + step.intercept_step
        a, b, c = sums.information
        moved = step.slope_step, step.intercept_step
        sums.gradient -= np.stack([a * moved[0] + b * moved[1], b * moved[0] + c * moved[1]])
        sums.information *= self.decay
        sums.gradient *= self.decay
        sums.counts = np.floor(self.decay * sums.counts).astype(np.int64)
        return step


@dataclass
class SeveralStepsEstimator(VllmEstimator):
    """Newton steps to near convergence on the round's own rows; it must keep those rows."""

    newton_steps: int = NEWTON_STEPS
    _rows: list[Labels] = field(default_factory=list)

    def learn(self, labels: Labels) -> None:
        """Keep the labels of the round."""
        self._rows.append(labels)

    def refit(self) -> Refit:
        """Make several damped steps, predictions renewed before each; the last is reported."""
        start = self.slope, self.intercepts
        step = newton_step(self.statistics, self.slope, self.constants)
        for _ in range(self.newton_steps):
            self.statistics.clear()
            for rows in self._rows:
                logit = self.slope * rows.feature + self.intercepts[rows.position]
                self.statistics.add(replace(rows, logit=logit, prediction=None))
            step = newton_step(self.statistics, self.slope, self.constants)
            self.slope += step.slope_step
            self.intercepts = self.intercepts + step.intercept_step
        self._rows.clear()
        self.statistics.clear()
        return replace(
            step, slope_step=self.slope - start[0], intercept_step=self.intercepts - start[1]
        )


@dataclass
class RunningRate:
    """Floor: each position's acceptance rate so far, without a feature."""

    num_positions: int
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        self.refit_interval = 1
        self.slopes: FloatArray = np.zeros(self.num_positions)
        self.intercepts: FloatArray = np.zeros(self.num_positions)
        # Half an acceptance and half a rejection to begin with: no rate is 0 or 1.
        self._counts = np.full((2, self.num_positions), 0.5)

    def learn(self, labels: Labels) -> None:
        """Count labels."""
        for value in (0, 1):
            chosen = labels.position[labels.accepted == bool(value)]
            self._counts[value] += np.bincount(chosen, minlength=self.num_positions)

    def refit(self) -> Refit:
        """Move to the present rates."""
        before = self.intercepts
        self.intercepts = np.log(self._counts[1] / self._counts[0])
        counts = np.zeros(self.num_positions, dtype=np.int64)
        return Refit(counts, 0.0, self.intercepts - before)


@dataclass
class OnlineTemperatures:
    """Online sequential temperature scaling of a trained head's logits, one per position.

    Constants of vLLM's branch (issue #52053): counts in 16 bins over logits -8..8 decay by 0.999 a
    step, 49 temperatures from 0.125 to 8, a position's temperature blends with the pooled one by
    n / (n + 64). A bin stands for its middle; the temperature of least log-loss is taken.
    """

    num_positions: int
    constants: Constants = field(default_factory=Constants)
    decay: float = 0.999
    prior_weight: float = 64.0

    def __post_init__(self) -> None:
        self.refit_interval = 1
        edges = np.linspace(-8.0, 8.0, 17)
        self._edges = edges[1:-1]
        self._middle = (edges[:-1] + edges[1:]) / 2
        self._grid = np.geomspace(0.125, 8.0, 49)
        scaled = self._middle / self._grid[:, None]
        self._loss = np.stack([np.logaddexp(0, scaled), np.logaddexp(0, -scaled)])
        self._counts = np.zeros((2, self.num_positions, 16))
        self.slopes: FloatArray = np.ones(self.num_positions)
        self.intercepts: FloatArray = np.zeros(self.num_positions)

    def learn(self, labels: Labels) -> None:
        """Count labels by position and bin of the raw logit."""
        index = labels.position * 16 + np.searchsorted(self._edges, labels.feature, side="right")
        for value in (0, 1):
            chosen = index[labels.accepted == bool(value)]
            self._counts[value] += np.bincount(chosen, minlength=16 * self.num_positions).reshape(
                self.num_positions, 16
            )

    def refit(self) -> Refit:
        """Choose temperatures, then decay the counts."""
        before = self.slopes
        own = self._grid[self._losses(self._counts).argmin(axis=-1)]
        pooled = self._grid[self._losses(self._counts.sum(axis=1, keepdims=True)).argmin()]
        n = self._counts.sum(axis=(0, 2))
        weight = n / (n + self.prior_weight)
        seen = self._counts.sum() > 0
        self.slopes = 1 / (weight * own + (1 - weight) * (pooled if seen else 1.0))
        self._counts *= self.decay
        change = self.slopes - before
        largest = float(change[np.abs(change).argmax()])
        counts = np.zeros(self.num_positions, dtype=np.int64)
        return Refit(counts, largest, np.zeros(self.num_positions))

    def _losses(self, counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the log-loss at each temperature, [positions, temperatures]."""
        losses: np.ndarray[Any, Any] = np.einsum("vkb,vtb->kt", counts, self._loss)
        return losses


@dataclass
class HeadAsIs:
    """The trained head's own log-odds: slope 1, no intercepts; it learns nothing."""

    num_positions: int
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        self.refit_interval = NEVER
        self.slopes: FloatArray = np.ones(self.num_positions)
        self.intercepts: FloatArray = np.zeros(self.num_positions)

    def learn(self, labels: Labels) -> None:
        """Pass over the labels."""

    def refit(self) -> Refit:
        """Stay."""
        zeros = np.zeros(self.num_positions)
        return Refit(zeros.astype(np.int64), 0.0, zeros)


@dataclass
class RiverLogistic:
    """Plain online logistic regression of river, by stochastic gradient, label by label."""

    num_positions: int
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        try:
            from river import linear_model, optim
        except ImportError:
            raise MissingExtraError(
                "the estimator 'river' needs the package river; install it with `pip install river`"
            ) from None
        self.refit_interval = 1
        self._model = linear_model.LogisticRegression(optim.SGD(0.05), intercept_lr=0.0)
        self._names = [f"position {k}" for k in range(self.num_positions)]
        self.slopes: FloatArray = np.zeros(self.num_positions)
        self.intercepts: FloatArray = np.zeros(self.num_positions)

    def learn(self, labels: Labels) -> None:
        """Feed the labels one by one."""
        rows = zip(
            labels.feature.tolist(), labels.position.tolist(), labels.accepted.tolist(), strict=True
        )
        for feature, position, accepted in rows:
            self._model.learn_one({"feature": feature, self._names[position]: 1.0}, accepted)

    def refit(self) -> Refit:
        """Read the weights."""
        weights = self._model.weights
        before = self.intercepts
        self.slopes = np.full(self.num_positions, float(weights.get("feature", 0.0)))
        self.intercepts = np.array([float(weights.get(name, 0.0)) for name in self._names])
        counts = np.zeros(self.num_positions, dtype=np.int64)
        return Refit(counts, 0.0, self.intercepts - before)


@dataclass(frozen=True)
class Entry:
    """An estimator by name."""

    make: Callable[..., Estimator]
    """From K and the constants of the shipped rule, then the rival's own by name."""
    doc: str
    feature: str | None = None
    """The column it reads whatever the user chose; None: the chosen one."""
    every_label: bool = False
    """Learns from rows that are not eligible too, as vLLM does."""
    own: tuple[str, ...] = ()
    """Constants that it alone has."""


def _early(kind: Callable[..., Estimator]) -> Callable[..., Estimator]:
    """Return how an estimator is made with the start values of the early commits."""
    start = {"start_slope": EARLY.start_slope, "start_intercept": EARLY.start_intercept}
    return lambda num_positions, constants: kind(num_positions, replace(constants, **start))


ESTIMATORS: dict[str, Entry] = {
    "vllm": Entry(VllmEstimator, "vLLM's rule as shipped in 0.32 and 0.33", every_label=True),
    "step-limited": Entry(
        LimitedEstimator, "vLLM's rule in a trust region, 1 nat a refit", own=("max_step",)
    ),
    "exp-decay": Entry(
        DecayedEstimator, "vLLM's rule with sums that decay, by 0.7 a refit", own=("decay",)
    ),
    "newton-until-converged": Entry(
        SeveralStepsEstimator, "five Newton steps on each round's rows"
    ),
    "early-start": Entry(
        _early(VllmEstimator),
        "the shipped rule from the early start values 0 and 1.5",
        every_label=True,
    ),
    "early-drawn": Entry(
        _early(VllmEstimator),
        "an early commit: log-odds of the drawn token, which is not lossless",
        feature="logit_q_sampled",
        every_label=True,
    ),
    "early-margin": Entry(
        _early(MarginEstimator),
        "an early commit: top-2 margin, slope and intercept per position",
        feature="top2_margin",
        every_label=True,
    ),
    "online-sts": Entry(
        OnlineTemperatures, "online temperatures for the trained head", feature="confidence"
    ),
    "head": Entry(HeadAsIs, "the trained head as it is", feature="confidence"),
    "ema-head": Entry(
        HeadAsIs, "the trained head, smoothed along each request by 0.8", feature=SMOOTHED
    ),
    "river": Entry(RiverLogistic, "river's online logistic regression"),
    "running-rate": Entry(RunningRate, "floor: the rate of each position so far"),
}
"""Estimators by name; `replay` adds the ceiling, an offline fit on the same rows."""

DEFAULT_ESTIMATORS = ("vllm", "step-limited", "exp-decay", "newton-until-converged", "running-rate")

OWN_CONSTANTS = tuple(name for entry in ESTIMATORS.values() for name in entry.own)
"""Constants of rivals alone; those of the shipped rule are `Constants`."""
