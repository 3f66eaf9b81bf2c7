"""One weight per feature and one intercept per position, against statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit

from draftlab.predictors.logistic import fit_logistic
from draftlab.predictors.several import fit_several


def test_several_features_equal_statsmodels() -> None:
    rng = np.random.default_rng(0)
    features, position = rng.normal(size=(3000, 3)) * [1, 10, 0.1], rng.integers(0, 3, 3000)
    accepted = rng.random(3000) < expit(features @ [0.5, -0.1, 3.0] + position - 1)
    fit = fit_several(features, position, accepted, 4)
    design = np.column_stack([features, position[:, None] == np.arange(3)])
    other = sm.Logit(accepted.astype(float), design).fit(disp=False, tol=1e-12)
    np.testing.assert_allclose(fit.weights, other.params[:3], atol=1e-6)
    np.testing.assert_allclose(fit.intercepts[:3], other.params[3:], atol=1e-6)
    assert np.isnan(fit.intercepts[3])
    assert fit.status == "converged"
    one = fit_logistic(features[:, 0], position, accepted, 4)
    same = fit_several(features[:, :1], position, accepted, 4)
    assert same.weights[0] == pytest.approx(one.slope, abs=1e-6)


def test_a_start_saves_steps_and_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    features, position = rng.normal(size=(3000, 2)) * [1, 10], rng.integers(0, 3, 3000)
    accepted = rng.random(3000) < expit(features @ [0.5, -0.1] + position - 1)
    cold = fit_several(features, position, accepted, 4)
    near = fit_several(features[300:], position[300:], accepted[300:], 4)
    warm = fit_several(features, position, accepted, 4, start=near)
    np.testing.assert_allclose(warm.weights, cold.weights, atol=1e-9)
    np.testing.assert_allclose(warm.intercepts, cold.intercepts, atol=1e-9)
    assert warm.iterations < cold.iterations


def test_separable_features_are_named_and_held() -> None:
    features = np.array([[-2.0], [-1], [1], [2]])
    fit = fit_several(features, np.zeros(4, dtype=int), features[:, 0] > 0, 1)
    assert fit.status == "separable"
    assert np.isfinite(fit.weights).all()
    with pytest.raises(ValueError, match="must be finite"):
        fit_several(features * np.nan, np.zeros(4, dtype=int), features[:, 0] > 0, 1)
    with pytest.raises(ValueError, match="without rows"):
        fit_several(features[:0], np.zeros(0, dtype=int), features[:0, 0] > 0, 1)
    with pytest.raises(ValueError, match="wanted"):
        fit_several(features, np.zeros(3, dtype=int), features[:, 0] > 0, 1)
