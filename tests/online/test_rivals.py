"""Rivals of vLLM's rule: each against what it says it is, all against one contract."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from draftlab.online.estimator import Labels, probability
from draftlab.online.rivals import (
    ESTIMATORS,
    DecayedEstimator,
    LimitedEstimator,
    OnlineTemperatures,
    RunningRate,
    SeveralStepsEstimator,
)
from draftlab.online.vllm import Constants, VllmEstimator

if TYPE_CHECKING:
    from draftlab.online.estimator import Estimator

K = 3
SLOPE, INTERCEPTS = 0.7, np.array([0.4, -0.3, -0.9])


def rows(n: int, seed: int, *, shift: float = 0.0) -> Labels:
    """Draw labels from a known model; the logit is to be filled in."""
    generator = np.random.default_rng(seed)
    feature, position = generator.normal(1.0, 2.0, n), generator.integers(0, K, n)
    truth = probability(SLOPE * feature + INTERCEPTS[position] + shift)
    accepted = generator.random(n) < truth
    return Labels(feature, position, np.zeros(n), accepted, np.sort(generator.integers(0, 9, n)))


def predicted(estimator: Estimator, labels: Labels) -> Labels:
    """Fill in what the estimator predicts now."""
    k = labels.position
    return replace(labels, logit=estimator.slopes[k] * labels.feature + estimator.intercepts[k])


def maximum_likelihood(labels: Labels) -> tuple[float, np.ndarray]:
    """Return slope and intercepts of sklearn's unpenalised fit."""
    from sklearn.linear_model import LogisticRegression

    design = np.column_stack([labels.feature, np.eye(K)[labels.position]])
    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=1000)
    model.fit(design, labels.accepted)
    return float(model.coef_[0, 0]), model.coef_[0, 1:]


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_every_estimator_keeps_the_contract(name: str) -> None:
    """Coefficients move at refits only, inputs stay, the state can be copied, results repeat."""
    if name == "river":
        pytest.importorskip("river")
    outcomes = []
    for _ in range(2):
        estimator = ESTIMATORS[name].make(K, Constants(refit_interval=1))
        for seed in range(3):
            labels = predicted(estimator, rows(400, seed))
            before, kept = copy.deepcopy(labels), estimator.intercepts.copy()
            estimator.learn(labels)
            for field in ("feature", "position", "logit", "accepted", "step"):
                np.testing.assert_array_equal(getattr(labels, field), getattr(before, field))
            np.testing.assert_array_equal(estimator.intercepts, kept)
            restored = pickle.loads(pickle.dumps(estimator))
            refit = estimator.refit()
            restored.refit()
            np.testing.assert_array_equal(estimator.intercepts, restored.intercepts)
            np.testing.assert_allclose(estimator.intercepts - kept, refit.intercept_step, atol=1e-9)
        assert estimator.slopes.shape == estimator.intercepts.shape == (K,)
        outcomes.append(np.concatenate([estimator.slopes, estimator.intercepts]))
    np.testing.assert_array_equal(outcomes[0], outcomes[1])


def test_several_steps_reach_the_fit_of_the_round() -> None:
    estimator = SeveralStepsEstimator(K, Constants(damping=0.0, ridge=0.0))
    labels = rows(3000, 0)
    estimator.learn(predicted(estimator, labels))
    estimator.refit()
    slope, intercepts = maximum_likelihood(labels)
    assert estimator.slope == pytest.approx(slope, abs=1e-6)
    np.testing.assert_allclose(estimator.intercepts, intercepts, atol=1e-6)


def test_the_limited_rule_goes_vllms_way_but_no_further_than_its_bound() -> None:
    labels = rows(4000, 1, shift=-4.0)
    whole, limited = VllmEstimator(K), LimitedEstimator(K, max_step=0.25)
    for estimator in (whole, limited):
        estimator.learn(predicted(estimator, labels))
    step, cut = whole.refit(), limited.refit()
    longest = max(abs(step.slope_step), np.abs(step.intercept_step).max())
    assert longest > 0.25
    assert cut.limited
    np.testing.assert_allclose(cut.intercept_step, step.intercept_step * 0.25 / longest)
    assert cut.slope_step == pytest.approx(step.slope_step * 0.25 / longest)


def test_the_limited_rule_is_vllms_within_its_bound() -> None:
    labels = rows(4000, 2)
    whole, limited = VllmEstimator(K), LimitedEstimator(K, max_step=5.0)
    for estimator in (whole, limited):
        estimator.learn(predicted(estimator, labels))
        estimator.refit()
    np.testing.assert_array_equal(whole.intercepts, limited.intercepts)


def test_memory_without_decay_comes_to_the_fit_of_all_rows() -> None:
    """Kept gradients resist: what was learnt from earlier rounds is not learnt again."""
    estimator = DecayedEstimator(K, Constants(damping=0.0, ridge=1e-9), decay=1.0)
    seen = [rows(500, seed) for seed in range(40)]
    for labels in seen:
        estimator.learn(predicted(estimator, labels))
        estimator.refit()
    pooled = Labels(
        *(np.concatenate([getattr(part, name) for part in seen])
          for name in ("feature", "position", "logit", "accepted", "step"))
    )  # fmt: skip
    slope, intercepts = maximum_likelihood(pooled)
    # one Newton step a round instead of a fit: the first rounds were weighted far from the optimum
    assert estimator.slope == pytest.approx(slope, abs=0.01)
    np.testing.assert_allclose(estimator.intercepts, intercepts, atol=0.02)
    last_round, _ = maximum_likelihood(seen[-1])
    assert abs(estimator.slope - slope) < abs(last_round - slope)


def test_running_rates_by_hand() -> None:
    """Position 0: 2 of 3 accepted; position 1: 0 of 1; half an acceptance and rejection before."""
    estimator = RunningRate(2)
    estimator.learn(
        Labels(
            np.zeros(4), np.array([0, 0, 0, 1]), np.zeros(4),
            np.array([True, True, False, False]), np.zeros(4, dtype=np.int64),
        )
    )  # fmt: skip
    estimator.refit()
    assert probability(estimator.intercepts) == pytest.approx([2.5 / 4, 0.5 / 2])


def test_online_temperatures_are_the_best_of_the_grid_for_decayed_counts() -> None:
    """The table by loops: bins, decay, temperatures, then the blend with the pooled one."""
    estimator = OnlineTemperatures(K)
    grid = np.geomspace(0.125, 8.0, 49)
    counts: dict[tuple[int, int, bool], float] = {}

    def loss(position: int | None, temperature: float) -> float:
        total = 0.0
        for (k, index, accepted), weight in counts.items():
            if position is None or k == position:
                z = (-7.5 + index) / temperature
                total += weight * np.log1p(np.exp(-z if accepted else z))
        return total

    for seed in range(4):
        labels = rows(60, seed)
        for f, k, y in zip(labels.feature, labels.position, labels.accepted, strict=True):
            key = int(k), int(np.clip(np.floor(f + 8), 0, 15)), bool(y)
            counts[key] = counts.get(key, 0.0) + 1
        estimator.learn(labels)
        estimator.refit()
        pooled = min(grid, key=lambda t: loss(None, t))
        for k in range(K):
            n = sum(weight for (j, _, _), weight in counts.items() if j == k)
            own = min(grid, key=lambda t, k=k: loss(k, t))  # type: ignore[misc]
            blended = (n * own + 64 * pooled) / (n + 64)
            assert estimator.slopes[k] == pytest.approx(1 / blended, rel=1e-9)
        counts = {key: 0.999 * weight for key, weight in counts.items()}


def test_the_outsider_is_river_itself() -> None:
    river = pytest.importorskip("river")
    labels = rows(50, 7)
    estimator = ESTIMATORS["river"].make(K, Constants())
    estimator.learn(labels)
    estimator.refit()
    model = river.linear_model.LogisticRegression(river.optim.SGD(0.05), intercept_lr=0.0)
    for f, k, y in zip(labels.feature, labels.position, labels.accepted, strict=True):
        model.learn_one({"feature": f, f"position {k}": 1.0}, bool(y))
    for f, k in ((0.3, 0), (-2.0, 2)):
        z = estimator.slopes[k] * f + estimator.intercepts[k]
        prob = model.predict_proba_one({"feature": f, f"position {k}": 1.0})[True]
        assert 1 / (1 + np.exp(-z)) == pytest.approx(prob, abs=1e-12)
