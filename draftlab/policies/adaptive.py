"""Adaptive verification for an engine: predict new drafts, admit pending ones, learn.

Order of a step, as in vLLM: pending drafts are admitted (the budget is sized by the survivals
of the proposals before them, given out by their own), the verdict is learnt, coefficients
change every so many steps, new drafts are predicted. Columns are those of the log, flat over
(request, position), as numpy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import polars as pl
from scipy.special import expit

from draftlab.errors import InputError
from draftlab.online.estimator import Estimator, Labels
from draftlab.online.rivals import ESTIMATORS
from draftlab.online.vllm import Constants
from draftlab.policies.budget import allocate, plan_budget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from draftlab._types import FloatArray, IntArray
    from draftlab.policies.cost import CostTable

Columns = dict[str, Any]

LIMIT = 40.0
"""Log-odds and margins are clamped at +-40 nats; a draft without one counts as 40, as in vLLM."""
COLUMN_OF: dict[str, str | None] = {
    "logit_qmax": "logit_qmax",
    "qmax": "logit_qmax",
    "top2_margin": "top2_margin",
    "entropy": "entropy",
    "logit_q_sampled": "logit_q_sampled",
    "confidence": "confidence",
    "constant": None,
    "per_position": None,
}
"""Predictors that an engine can run live, and the column that each reads."""
UNFITTED = ("qmax", "confidence")
ONLINE = "online-"


class Admitted(NamedTuple):
    """What a step verifies."""

    lengths: IntArray
    """(requests,): drafts sent of each."""
    budget: int
    reason: str


class Conditional(Protocol):
    """Predicts conditional acceptance of new drafts."""

    def log_odds(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """Return the feature and the log-odds of each row, (n,)."""

    def learn(self, columns: Columns | None) -> None:
        """Take in the rows that a step graded; None where it graded nothing."""


@dataclass(frozen=True)
class Linear:
    """Log-odds w_k x + b_k with fixed coefficients."""

    column: str | None
    """None: reads the position only."""
    slopes: FloatArray
    """(K,)."""
    intercepts: FloatArray
    """(K,)."""

    def log_odds(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """Return the feature and the log-odds of each row."""
        position = np.asarray(columns["position"])
        feature = _feature(columns, self.column)
        return feature, self.slopes[position] * feature + self.intercepts[position]

    def learn(self, columns: Columns | None) -> None:
        """Do nothing."""


@dataclass
class Online:
    """An online estimator that learns from what it admitted itself."""

    estimator: Estimator
    column: str
    _steps: int = 0

    def log_odds(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """Return the stored feature and the log-odds of each row."""
        now = Linear(self.column, self.estimator.slopes, self.estimator.intercepts)
        return now.log_odds(columns)

    def learn(self, columns: Columns | None) -> None:
        """Learn the graded rows with the predictions made at draft time; refit when due."""
        self._steps += 1
        if columns is not None:
            seen = ~np.ma.getmaskarray(columns["accepted"])
            step = np.full(int(seen.sum()), self._steps)
            prob = np.asarray(columns["live_prediction"], dtype=np.float64)[seen]
            with np.errstate(divide="ignore"):
                logit = np.log(prob) - np.log1p(-prob)
            self.estimator.learn(
                Labels(
                    feature=np.asarray(columns["live_feature"], dtype=np.float64)[seen],
                    position=np.asarray(columns["position"], dtype=np.int64)[seen],
                    logit=np.clip(logit, -LIMIT, LIMIT),
                    accepted=np.ma.getdata(columns["accepted"])[seen],
                    step=step,
                )
            )
        if self._steps % self.estimator.refit_interval == 0:
            self.estimator.refit()


def _feature(columns: Columns, name: str | None) -> FloatArray:
    if name is None:
        return np.zeros(len(columns["position"]))
    raw = np.ma.filled(np.ma.asarray(columns[name], dtype=np.float64), np.nan)
    return np.asarray(np.clip(np.nan_to_num(raw, nan=LIMIT), -LIMIT, LIMIT))


@dataclass
class AdaptiveVerification:
    """vLLM's adaptive verification, to be handed to the reference engine.

    Parameters
    ----------
    name : str
        Of the predictor; stands in run.json.
    num_positions : int
        K.
    cost : CostTable
    conditional : Conditional
        Predicts the factor at each position.
    drawn : Conditional, optional
        Predicts the factors before a position once their tokens are drawn (the hybrid).
    cap : int, optional
        Largest budget.
    """

    name: str
    num_positions: int
    cost: CostTable
    conditional: Conditional
    drawn: Conditional | None = None
    cap: int | None = None
    _before: dict[int, FloatArray] = field(default_factory=dict, init=False)
    _pending: dict[int, FloatArray] = field(default_factory=dict, init=False)

    def predict(self, columns: Columns) -> Columns:
        """Predict new drafts; return the log's columns ``live_feature`` and ``live_prediction``.

        Parameters
        ----------
        columns : dict
            ``request``, ``position`` and the features, (R * K,).
        """
        feature, log_odds = self.conditional.log_odds(columns)
        prob = expit(log_odds)
        grid = prob.reshape(-1, self.num_positions)
        factors = grid
        if self.drawn is not None:
            factors = expit(self.drawn.log_odds(columns)[1]).reshape(grid.shape)
        reached = np.ones_like(grid)
        reached[:, 1:] = np.cumprod(factors, axis=1)[:, :-1]
        survivals = np.minimum.accumulate(reached * grid, axis=1)
        requests = np.asarray(columns["request"])[:: self.num_positions].tolist()
        self._pending = dict(zip(requests, survivals, strict=True))
        return {"live_feature": feature, "live_prediction": prob}

    def admit(
        self, columns: Columns, *, num_sampling_requests: int, num_non_draft_tokens: int
    ) -> Admitted:
        """Return how many of the pending drafts of each request are verified in this step.

        Parameters
        ----------
        columns : dict
            Of the pending proposals, as given to `predict`.
        num_sampling_requests, num_non_draft_tokens : int
            Of the step, prompts that it reads included.
        """
        K = self.num_positions
        requests = np.asarray(columns["request"])[::K].tolist()
        live = np.array([self._pending[r] for r in requests]).reshape(-1, K)
        certain = np.ones(K)
        stale = np.array([self._before.get(r, certain) for r in requests]).reshape(-1, K)
        self._before = self._pending
        tokens = num_non_draft_tokens + np.arange(live.size + 1)
        plan = plan_budget(
            stale.ravel(),
            self.cost.step_ms(num_sampling_requests, tokens),
            num_sampling_requests=num_sampling_requests,
            cap=self.cap,
        )
        return Admitted(allocate(live, plan.budget), plan.budget, plan.reason)

    def learn(self, columns: Columns | None) -> None:
        """Take in the rows that a step graded; None where it graded nothing."""
        self.conditional.learn(columns)

    @property
    def start(self) -> dict[str, Any] | None:
        """Start state of an online estimator, for run.json; None where nothing is learnt."""
        if not isinstance(self.conditional, Online):
            return None
        estimator = self.conditional.estimator
        return {
            "slope": float(estimator.slopes[0]),
            "intercepts": [float(b) for b in estimator.intercepts],
        }


def make_admission(
    name: str,
    cost: CostTable,
    num_positions: int,
    *,
    coefficients: Mapping[str, tuple[FloatArray, FloatArray]] | None = None,
    constants: Constants | None = None,
    cap: int | None = None,
) -> AdaptiveVerification:
    """Return adaptive verification by a predictor.

    Parameters
    ----------
    name : str
        Of `COLUMN_OF`, ``hybrid``, or ``online-NAME`` with an estimator of a replay.
    cost : CostTable
    num_positions : int
        K.
    coefficients : mapping of name to (slopes, intercepts), (K,) each, optional
        Of fitted predictors, as `coefficients_of` takes them from an evaluation.
    constants : Constants, optional
        Of an online estimator.
    cap : int, optional

    Raises
    ------
    InputError
        An unknown predictor, or a fitted one without coefficients.

    Examples
    --------
    >>> from draftlab.policies.cost import Curve, CostTable
    >>> table = CostTable("toy", "model", verify=Curve((1, 9), (1.0, 2.0)))
    >>> make_admission("online-vllm", table, 3).start
    {'slope': 0.5, 'intercepts': [-0.2, -0.2, -0.2]}
    """
    K, known = num_positions, coefficients or {}
    if name.startswith(ONLINE) and name.removeprefix(ONLINE) in ESTIMATORS:
        entry = ESTIMATORS[name.removeprefix(ONLINE)]
        estimator = entry.make(K, constants or Constants())
        online = Online(estimator, entry.feature or "logit_qmax")
        return AdaptiveVerification(name, K, cost, online, cap=cap)
    if name == "hybrid":
        drawn = _linear("logit_q_sampled", K, known)
        return AdaptiveVerification(name, K, cost, _linear("logit_qmax", K, known), drawn, cap)
    if name not in COLUMN_OF:
        wanted = [*COLUMN_OF, "hybrid", *(f"{ONLINE}{n}" for n in ESTIMATORS)]
        raise InputError(f"no engine can run predictor {name!r} live; known: {', '.join(wanted)}")
    return AdaptiveVerification(name, K, cost, _linear(name, K, known), cap=cap)


def coefficients_of(table: pl.DataFrame) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return the slopes and intercepts of each predictor's fit on all rows.

    Parameters
    ----------
    table : polars.DataFrame
        ``coefficients`` of an evaluation, of one cell.
    """
    whole = table.filter(pl.col("dataset").is_null() & pl.col("fold").is_null()).sort("position")
    return {
        str(name): (part["slope"].to_numpy(), part["intercept"].to_numpy())
        for (name,), part in whole.group_by("predictor", maintain_order=True)
    }


def _linear(name: str, K: int, known: Mapping[str, tuple[FloatArray, FloatArray]]) -> Linear:
    if name in UNFITTED:
        return Linear(COLUMN_OF[name], np.ones(K), np.zeros(K))
    if name not in known:
        raise InputError(
            f"predictor {name} is fitted: give the coefficients of an evaluation of a log of "
            "this pair"
        )
    slopes, intercepts = known[name]
    if len(slopes) != K or not np.isfinite([*slopes, *intercepts]).all():
        raise InputError(f"coefficients of {name} must be {K} finite numbers each")
    return Linear(COLUMN_OF[name], np.asarray(slopes), np.asarray(intercepts))
