"""The shared-slope fit: known answers, independent implementations, identities, edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from draftlab.predictors.logistic import (
    FALLBACK_RIDGE,
    Fit,
    fit_constant,
    fit_logistic,
    fit_logistic_folds,
    fit_own_slopes,
    fit_rates,
)

AGAINST_OTHERS = 1e-6  # their convergence, not ours
ROUNDING = 1e-12

Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]


def random_rows(n: int = 4000, K: int = 4, slope: float = 0.5, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    feature, position = rng.normal(1.0, 3.0, n), rng.integers(0, K, n)
    return feature, position, rng.random(n) < expit(slope * feature + 0.3 - 0.2 * position)


def one_hot(feature: np.ndarray[Any, Any], position: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.column_stack([feature, position[:, None] == np.unique(position)])


def test_equals_statsmodels_and_scikit_learn() -> None:
    feature, position, accepted = random_rows()
    fit = fit_logistic(feature, position, accepted, 4)
    found = np.array([fit.slope, *fit.intercepts])
    design = one_hot(feature, position)
    other = sm.Logit(accepted.astype(float), design).fit(disp=False, tol=1e-12)
    np.testing.assert_allclose(found, other.params, atol=AGAINST_OTHERS)
    assert fit.log_likelihood == pytest.approx(other.llf, rel=1e-12)
    sklearn = LogisticRegression(
        C=np.inf, fit_intercept=False, tol=1e-10, max_iter=1000, solver="newton-cholesky"
    ).fit(design, accepted)
    np.testing.assert_allclose(found, sklearn.coef_[0], atol=AGAINST_OTHERS)
    assert fit.status == "converged"
    assert fit.n == len(feature)
    assert fit.counts.tolist() == np.bincount(position).tolist()


def test_gradient_is_zero_at_the_optimum() -> None:
    feature, position, accepted = random_rows()
    fit = fit_logistic(feature, position, accepted, 4)
    residual = accepted - expit(fit.log_odds(feature, position))
    assert abs(residual @ feature) < 1e-8
    assert np.abs(np.bincount(position, residual)).max() < 1e-8


def test_folds_equal_fits_without_their_rows() -> None:
    feature, position, accepted = random_rows(30_000, seed=3)
    order = np.lexsort((position, np.arange(30_000) * 5 // 30_000))
    feature, position, accepted = feature[order], position[order], accepted[order]
    folds = [slice(6000 * f, 6000 * (f + 1)) for f in range(5)]
    full = fit_logistic(feature, position, accepted, 4)
    for fold, fit in zip(
        folds, fit_logistic_folds(feature, position, accepted, 4, folds, full), strict=True
    ):
        rest = np.ones(30_000, dtype=bool)
        rest[fold] = False
        alone = fit_logistic(feature[rest], position[rest], accepted[rest], 4)
        np.testing.assert_allclose(fit.intercepts, alone.intercepts, atol=1e-9)
        assert fit.slope == pytest.approx(alone.slope, abs=1e-9)
        assert fit.log_likelihood == pytest.approx(alone.log_likelihood, rel=ROUNDING)
        assert fit.counts.tolist() == alone.counts.tolist()


def test_the_order_of_rows_does_not_matter() -> None:
    feature, position, accepted = random_rows(20_000)
    order = np.argsort(position, kind="stable")
    fit = fit_logistic(feature, position, accepted, 4)
    ordered = fit_logistic(feature[order], position[order], accepted[order], 4)
    np.testing.assert_allclose(fit.intercepts, ordered.intercepts, atol=1e-10)


def test_ridge_equals_scikit_learn() -> None:
    feature, position, accepted = random_rows(400)
    fit = fit_logistic(feature, position, accepted, 4, ridge=2.0)
    other = LogisticRegression(
        C=1 / 2.0, fit_intercept=False, tol=1e-10, max_iter=1000, solver="newton-cholesky"
    ).fit(one_hot(feature, position), accepted)
    np.testing.assert_allclose([fit.slope, *fit.intercepts], other.coef_[0], atol=AGAINST_OTHERS)


@pytest.mark.parametrize(("ridge", "slope"), [(0.0, 5.839), (0.001, 5.839), (1.0, 1.0066)])
def test_separable_data_are_named_and_held(ridge: float, slope: float) -> None:
    feature, accepted = np.array([-2.0, -1, 1, 2]), np.array([False, False, True, True])
    fit = fit_logistic(feature, np.zeros(4, dtype=int), accepted, 1, ridge=ridge)
    assert fit.status == "separable"
    assert fit.ridge == (ridge or FALLBACK_RIDGE)
    assert fit.slope == pytest.approx(slope, abs=5e-4)
    assert fit.intercepts[0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("feature", "position", "accepted", "status"),
    [
        pytest.param([0, 1, 1, 2], [0, 0, 0, 0], [0, 0, 1, 1], "separable", id="touching"),
        pytest.param([0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 0, 0], "separable", id="falling"),
        pytest.param([0, 1, 5, 6], [0, 0, 1, 1], [0, 1, 0, 1], "separable", id="own-thresholds"),
        pytest.param([0, 1, 5, 6], [0, 0, 1, 1], [0, 1, 1, 0], "converged", id="opposite-sides"),
        pytest.param(
            [0, 1, 0, 2, 3], [0, 0, 0, 0, 1], [0, 1, 1, 0, 1], "separable", id="one-class"
        ),
        pytest.param([0, 2, 1, 3], [0, 0, 0, 0], [0, 1, 1, 0], "converged", id="overlapping"),
        pytest.param([1, 1, 2, 2], [0, 0, 1, 1], [0, 1, 1, 0], "converged", id="flat"),
    ],
)
def test_separability_is_decided_exactly(
    feature: list[float], position: list[int], accepted: list[int], status: str
) -> None:
    fit = fit_logistic(
        np.array(feature, dtype=float), np.array(position), np.array(accepted, dtype=bool), 2
    )
    assert fit.status == status
    assert np.isfinite(fit.slope)
    present = fit.counts > 0
    assert np.isfinite(fit.intercepts[present]).all()
    assert np.isnan(fit.intercepts[~present]).all()


def test_a_flat_feature_gives_the_rates() -> None:
    _, position, accepted = random_rows()
    flat = fit_logistic(position * 2.0, position, accepted, 4)
    assert flat.slope == 0.0
    rates = fit_rates(None, position, accepted, 4)
    np.testing.assert_allclose(flat.intercepts, rates.intercepts, atol=1e-9)
    assert flat.log_likelihood == pytest.approx(rates.log_likelihood, rel=ROUNDING)


def test_floors_are_the_rates_of_their_rows() -> None:
    _, position, accepted = random_rows()
    by_position = fit_rates(None, position, accepted, 5)
    for k in range(4):
        rate = accepted[position == k].mean()
        assert expit(by_position.intercepts[k]) == pytest.approx(rate, abs=ROUNDING)
    assert np.isnan(by_position.intercepts[4])
    constant = fit_constant(None, position, accepted, 5)
    np.testing.assert_allclose(expit(constant.intercepts), accepted.mean(), atol=ROUNDING)
    assert constant.slope == by_position.slope == 0.0
    assert constant.n == by_position.n == len(position)


def test_a_rate_of_one_class_is_separable_and_finite() -> None:
    position = np.array([0, 0, 1, 1])
    fit = fit_rates(None, position, np.array([True, False, True, True]), 2)
    assert fit.status == "separable"
    assert fit.intercepts[0] == pytest.approx(0.0, abs=1e-9)
    # 2 (1 - sigmoid(b)) = 0.001 b
    b = fit.intercepts[1]
    assert 2 * (1 - expit(b)) == pytest.approx(FALLBACK_RIDGE * b, rel=1e-6)


def test_own_slopes_are_the_fits_of_each_position() -> None:
    feature, position, accepted = random_rows()
    own = fit_own_slopes(feature, position, accepted, 5)
    for k in range(4):
        rows = position == k
        alone = fit_logistic(feature[rows], np.zeros(rows.sum(), dtype=int), accepted[rows], 1)
        assert own.slopes[k] == alone.slope
        assert own.intercepts[k] == alone.intercepts[0]
    assert np.isnan(own.slopes[4])
    shared = fit_logistic(feature, position, accepted, 5)
    assert own.log_likelihood > shared.log_likelihood


def coefficients(fit: Fit) -> np.ndarray[Any, Any]:
    return np.array([fit.slope, *fit.intercepts])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(-5, 5), st.floats(0.1, 10))
def test_a_fit_ignores_order_and_scale_and_repeated_rows(
    seed: int, shift: float, scale: float
) -> None:
    rows = random_rows(300, 3, seed=seed)
    feature, position, accepted = rows
    fit = fit_logistic(*rows, 3)
    order = np.random.default_rng(seed).permutation(300)
    again = fit_logistic(feature[order], position[order], accepted[order], 3)
    np.testing.assert_allclose(coefficients(again), coefficients(fit), rtol=0, atol=ROUNDING)
    feature_2, position_2, accepted_2 = (np.tile(column, 2) for column in rows)
    twice = fit_logistic(feature_2, position_2, accepted_2, 3)
    np.testing.assert_allclose(coefficients(twice), coefficients(fit), atol=1e-10)
    shifted = fit_logistic(feature + shift, position, accepted, 3)
    assert shifted.slope == pytest.approx(fit.slope, abs=1e-9)
    np.testing.assert_allclose(shifted.intercepts, fit.intercepts - fit.slope * shift, atol=1e-8)
    scaled = fit_logistic(feature * scale, position, accepted, 3)
    assert scaled.slope * scale == pytest.approx(fit.slope, abs=1e-9)
    turned = fit_logistic(feature, position, ~accepted, 3)
    np.testing.assert_allclose(coefficients(turned), -coefficients(fit), atol=1e-9)


def test_a_warm_start_changes_nothing_but_the_iterations() -> None:
    rows = random_rows()
    cold = fit_logistic(*rows, 4)
    warm = fit_logistic(*rows, 4, start=cold)
    np.testing.assert_allclose(coefficients(warm), coefficients(cold), rtol=0, atol=ROUNDING)
    assert warm.iterations < cold.iterations


def test_hard_features_still_converge() -> None:
    # heavy left tail like log qmax, and rows at both clamps
    rng = np.random.default_rng(3)
    log_odds = np.clip(rng.normal(4, 12, 20_000), -40, 40)
    feature = -np.logaddexp(0, -log_odds)
    position = rng.integers(0, 5, 20_000)
    accepted = rng.random(20_000) < expit(0.5 * log_odds)
    fit = fit_logistic(feature, position, accepted, 5)
    assert fit.status == "converged"
    residual = accepted - expit(fit.log_odds(feature, position))
    assert abs(residual @ feature) < 1e-6


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((np.zeros(2), np.zeros(3, dtype=int), np.zeros(2, dtype=bool)), "one shape"),
        ((np.zeros(0), np.zeros(0, dtype=int), np.zeros(0, dtype=bool)), "without rows"),
        ((np.array([1.0, np.nan]), np.zeros(2, dtype=int), np.array([True, False])), "finite"),
        ((np.zeros(2), np.array([0, 3]), np.array([True, False])), r"\[0, 2\)"),
    ],
)
def test_bad_input_is_refused(rows: Rows, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_logistic(*rows, 2)


def test_own_slopes_do_not_depend_on_the_start() -> None:
    feature, position, accepted = random_rows(n=6000, K=3)
    cold = fit_own_slopes(feature, position, accepted, 5)
    half = fit_own_slopes(feature[:3000], position[:3000], accepted[:3000], 5)
    warm = fit_own_slopes(feature, position, accepted, 5, start=half)
    np.testing.assert_allclose(warm.slopes, cold.slopes, atol=1e-8)
    np.testing.assert_allclose(warm.intercepts, cold.intercepts, atol=1e-8)
    assert np.isnan(warm.slopes[3:]).all()
    assert warm.iterations < cold.iterations
    only = fit_logistic(feature[position == 2], 0 * position[position == 2],
                        accepted[position == 2], 1)  # fmt: skip
    assert cold.alone(2).slope == only.slope
