"""Intervals of coefficients: against statsmodels' clustered sandwich, and against known truth."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit
from scipy.stats import t

from draftlab.predictors.logistic import fit_logistic, fit_own_slopes
from draftlab.predictors.uncertainty import coefficient_intervals
from tests.predictors.test_logistic import one_hot, random_rows

GROUPS = 60


@pytest.mark.parametrize("K", [1, 4])
def test_a_shared_slope_has_the_clustered_errors_of_statsmodels(K: int) -> None:
    feature, position, accepted = random_rows(n=3000, K=K)
    group = np.arange(3000) % GROUPS
    fit = fit_logistic(feature, position, accepted, K)
    found = coefficient_intervals(fit, feature, position, accepted, group)
    model = sm.Logit(accepted.astype(float), one_hot(feature, position))
    theirs = model.fit(disp=0, cov_type="cluster", cov_kwds={"groups": group}, tol=1e-12)
    # they also count the coefficients, and use the normal quantile
    correction = np.sqrt((3000 - 1) / (3000 - (K + 1)))
    half = t.ppf(0.975, GROUPS - 1) * theirs.bse / correction
    assert found.slopes == pytest.approx(np.full(K, half[0]), rel=1e-5)
    assert found.intercepts == pytest.approx(half[1:], rel=1e-5)


def test_own_slopes_have_the_errors_of_each_position_alone() -> None:
    feature, position, accepted = random_rows(n=4000, K=3)
    group = np.arange(4000) // 50
    fit = fit_own_slopes(feature, position, accepted, 4)
    found = coefficient_intervals(fit, feature, position, accepted, group, slope_per_position=True)
    for k in range(3):
        here = position == k
        alone = fit_logistic(feature[here], 0 * position[here], accepted[here], 1)
        own = coefficient_intervals(
            alone, feature[here], 0 * position[here], accepted[here], group[here]
        )
        assert found.slopes[k] == pytest.approx(own.slopes[0], rel=1e-6)
        assert found.intercepts[k] == pytest.approx(own.intercepts[0], rel=1e-6)
    assert np.isnan([found.slopes[3], found.intercepts[3]]).all()


def test_there_is_no_interval_without_a_maximum_or_with_one_group() -> None:
    feature, position, accepted = random_rows(n=500, K=2)
    split = feature > 0
    separable = fit_logistic(feature, position, split, 2)
    assert separable.status == "separable"
    found = coefficient_intervals(separable, feature, position, split, np.arange(500))
    assert np.isnan(found.slopes).all()
    fit = fit_logistic(feature, position, accepted, 2)
    one = coefficient_intervals(fit, feature, position, accepted, np.zeros(500, dtype=np.int64))
    assert np.isnan(one.slopes).all()
    assert np.isnan(one.intercepts).all()


def test_intervals_hold_the_truth_where_rows_of_a_prompt_are_alike() -> None:
    """A prompt shifts its own slope and intercept; row-wise errors would be far too small."""
    rng = np.random.default_rng(3)
    held, rowwise = 0, 0
    repeats, prompts, rows = 200, 60, 40
    for _ in range(repeats):
        group = np.repeat(np.arange(prompts), rows)
        feature = rng.normal(size=len(group))
        position = np.tile(np.arange(2), len(group) // 2)
        slope = 0.5 + rng.normal(0, 0.4, prompts)[group]
        accepted = rng.random(len(group)) < expit(slope * feature)
        fit = fit_logistic(feature, position, accepted, 2)
        by_prompt, by_row = (
            coefficient_intervals(fit, feature, position, accepted, codes).slopes[0]
            for codes in (group, np.arange(len(group)))
        )
        # the best common slope is a little flatter than the mean of the prompts' own
        held += abs(fit.slope - _CENTRE) <= by_prompt
        rowwise += abs(fit.slope - _CENTRE) <= by_row
    assert held >= 0.9 * repeats
    assert rowwise < 0.85 * repeats


def _flattened(slope: float, sd: float) -> float:
    """Return the slope of the logistic fit to slopes that vary, at infinitely many rows."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.linspace(-6, 6, 2001)
    density = np.exp(-(grid**2) / 2)
    truth = (weights[:, None] * expit((slope + sd * nodes[:, None]) * grid)).sum(0) / weights.sum()
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        score = (density * grid * (truth - expit(middle * grid))).sum()
        low, high = (middle, high) if score > 0 else (low, middle)
    return low


_CENTRE = _flattened(0.5, 0.4)
