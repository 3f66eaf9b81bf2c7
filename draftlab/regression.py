"""The acceptance model as a scikit-learn classifier, for pipelines and searches of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from draftlab.predictors.logistic import fit_logistic, fit_own_slopes
from draftlab.predictors.several import fit_several

if TYPE_CHECKING:
    import numpy.typing as npt

    from draftlab._types import FloatArray, IntArray


class AcceptanceRegression(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression with one intercept per draft position and slopes that positions share.

    logit p = w . x + b_k, by maximum likelihood, without regularisation: the fit of `evaluate`.
    Grade it with `sklearn.model_selection.GroupKFold` over prompts, as rows of one prompt are not
    independent.

    Parameters
    ----------
    position_column : int, str or None
        Index of the column of X that holds the position k (whole numbers), or its name in a data
        frame; None: one intercept.
    slope_per_position : bool
        One slope per position instead of a shared one; needs a single feature.

    Attributes
    ----------
    classes_ : (2,) ndarray
        The second one is acceptance.
    coef_ : (1, d) ndarray
        Slopes of the features, in the order of the columns without ``position_column``; (K, 1)
        with ``slope_per_position``.
    intercept_ : (K,) ndarray
        By entry of ``positions_``.
    positions_ : (K,) ndarray
        Positions that were seen, sorted.
    status_ : str
        converged, separable (no finite maximum: a small ridge holds the fit) or not_converged.
    n_iter_ : int
    n_features_in_ : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> feature, position = rng.normal(size=5000), rng.integers(0, 3, 5000)
    >>> accepted = rng.random(5000) < 1 / (1 + np.exp(-feature + position))
    >>> model = AcceptanceRegression(position_column=1)
    >>> model = model.fit(np.column_stack([feature, position]), accepted)
    >>> model.coef_.round(1).tolist(), np.round(model.intercept_ + 5, 0).tolist()
    ([[1.0]], [5.0, 4.0, 3.0])
    """

    def __init__(
        self, position_column: int | str | None = None, slope_per_position: bool = False
    ) -> None:
        self.position_column = position_column
        self.slope_per_position = slope_per_position

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit to (n, d) features and n labels of two classes."""
        matrix, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, label = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(
                "Only binary classification is supported: wanted labels of 2 classes, got "
                f"{len(self.classes_)} class{'es' if len(self.classes_) > 1 else ''}"
            )
        features, position = self._split(matrix)
        self.positions_, code = np.unique(position, return_inverse=True)
        accepted, K = label.astype(np.bool_), len(self.positions_)
        if self.slope_per_position and features.shape[1] != 1:
            raise ValueError(f"slope_per_position needs a single feature, got {features.shape[1]}")
        if features.shape[1] == 1:
            fitter = fit_own_slopes if self.slope_per_position else fit_logistic
            fit = fitter(np.ascontiguousarray(features[:, 0]), code, accepted, K)
            self.coef_ = fit.slopes[:, None] if self.slope_per_position else fit.slopes[None, :1]
            self.intercept_, self.status_, self.n_iter_ = (
                fit.intercepts, fit.status, fit.iterations,
            )  # fmt: skip
        else:
            several = fit_several(features, code, accepted, K)
            self.coef_ = several.weights[None, :]
            self.intercept_, self.status_, self.n_iter_ = (
                several.intercepts, several.status, several.iterations,
            )  # fmt: skip
        return self

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Return log-odds of acceptance, (n,).

        Raises
        ------
        ValueError
            A position that the training rows did not have.
        """
        check_is_fitted(self)
        matrix = validate_data(self, X, dtype=np.float64, reset=False)
        features, position = self._split(matrix)
        code = np.searchsorted(self.positions_, position)
        known = code < len(self.positions_)
        known[known] = self.positions_[code[known]] == position[known]
        if not known.all():
            raise ValueError(
                f"position {position[~known][0]} was not in the training rows; known: "
                f"{self.positions_.tolist()}"
            )
        slopes = self.coef_[code] if self.slope_per_position else self.coef_
        return np.asarray((features * slopes).sum(axis=1) + self.intercept_[code])

    def predict_proba(self, X: npt.ArrayLike) -> FloatArray:
        """Return the probabilities of rejection and acceptance, (n, 2)."""
        log_odds = self.decision_function(X)
        accepted = 1 / (1 + np.exp(-np.clip(log_odds, -700, 700)))
        return np.stack([1 - accepted, accepted], axis=1)

    def predict(self, X: npt.ArrayLike) -> np.ndarray[Any, Any]:
        """Return the likelier class of each row."""
        index = (self.decision_function(X) > 0).astype(np.int64)
        return np.asarray(self.classes_[index])

    def _split(self, X: FloatArray) -> tuple[FloatArray, IntArray]:
        if self.position_column is None:
            return X, np.zeros(len(X), dtype=np.int64)
        index = self._position_index()
        column = X[:, index]
        position = column.astype(np.int64)
        if not np.array_equal(position, column):
            raise ValueError(
                f"column {self.position_column} must hold whole numbers, the positions; scale the "
                "features alone: ColumnTransformer(..., remainder='passthrough')"
            )
        return np.delete(X, index, axis=1), position

    def _position_index(self) -> int:
        """Return which column of X holds the positions."""
        if isinstance(self.position_column, str):
            names = list(getattr(self, "feature_names_in_", ()))
            if self.position_column not in names:
                found = f"its columns are {names}" if names else "it has no column names"
                raise ValueError(f"X has no column {self.position_column!r}: {found}")
            return names.index(self.position_column)
        index = int(self.position_column or 0)
        if not -self.n_features_in_ <= index < self.n_features_in_:
            raise ValueError(
                f"position_column {index} lies outside X, which has {self.n_features_in_} columns"
            )
        return index
