"""The scikit-learn classifier: the project's checks, and the fit that it wraps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from draftlab.predictors.logistic import fit_logistic, fit_own_slopes
from draftlab.regression import AcceptanceRegression


@parametrize_with_checks([AcceptanceRegression()])  # type: ignore[untyped-decorator]
def test_it_passes_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def rows(n: int = 4000) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    feature, position = rng.normal(size=n), rng.integers(0, 3, n)
    accepted = rng.random(n) < expit(0.8 * feature - 0.5 * position)
    return np.column_stack([position, feature]), accepted


def test_it_is_the_shared_slope_fit() -> None:
    X, y = rows()
    model = AcceptanceRegression(position_column=0).fit(X, y)
    fit = fit_logistic(X[:, 1].copy(), X[:, 0].astype(int), y, 3)
    assert model.coef_[0, 0] == fit.slope
    np.testing.assert_array_equal(model.intercept_, fit.intercepts)
    assert model.status_ == "converged"
    log_odds = fit.log_odds(X[:, 1], X[:, 0].astype(int))
    np.testing.assert_allclose(model.decision_function(X), log_odds)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], expit(log_odds))
    own = AcceptanceRegression(position_column=0, slope_per_position=True).fit(X, y)
    other = fit_own_slopes(X[:, 1].copy(), X[:, 0].astype(int), y, 3)
    np.testing.assert_allclose(own.coef_[:, 0], other.slopes)
    np.testing.assert_allclose(
        own.decision_function(X), other.log_odds(X[:, 1], X[:, 0].astype(int))
    )


def test_several_features_and_labels_of_any_kind() -> None:
    X, y = rows()
    wide = np.column_stack([X, X[:, 1] ** 2])
    model = AcceptanceRegression(position_column=0).fit(wide, np.where(y, "yes", "no"))
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(wide)) == {"no", "yes"}
    assert model.coef_.shape == (1, 2)


def test_it_goes_into_a_pipeline_with_groups() -> None:
    X, y = rows()
    pipeline = make_pipeline(FunctionTransformer(), AcceptanceRegression(position_column=0))
    scores = cross_val_score(
        pipeline, X, y, groups=np.arange(len(y)) // 20, cv=GroupKFold(5), scoring="roc_auc"
    )
    assert scores.min() > 0.65


def test_bad_input_is_refused() -> None:
    X, y = rows(50)
    model = AcceptanceRegression(position_column=0).fit(X, y)
    with pytest.raises(ValueError, match="position 7 was not in the training rows"):
        model.predict(np.array([[7.0, 0.0]]))
    with pytest.raises(ValueError, match="whole numbers"):
        AcceptanceRegression(position_column=1).fit(X, y)
    with pytest.raises(ValueError, match="single feature"):
        AcceptanceRegression(slope_per_position=True).fit(X, y)
