"""Transfer and learning against scikit-learn: fits without the held-out fold, graded on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from draftlab.metrics.intervals import mean_interval
from draftlab.predictors.logistic import fit_logistic
from draftlab.studies.stability.transfer import learning_table, transfer_table
from tests.grading.rows import NUM_POSITIONS, make_rows

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray
    from draftlab.grading.rows import GradedRows

CLOSE = 1e-5  # two optimisers, each at its own tolerance


def predict(rows: GradedRows, feature: FloatArray, train: BoolArray, test: BoolArray) -> FloatArray:
    """Return scikit-learn's log-odds of some rows by a fit on others."""
    design = np.column_stack([feature, rows.position[:, None] == np.arange(NUM_POSITIONS)])
    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(design[train], rows.accepted[train])
    return np.asarray(model.decision_function(design[test]))


def held_out(rows: GradedRows, feature: FloatArray, trained: int, graded: int) -> FloatArray:
    """Return log-odds of a dataset's rows by cross-fits on another one, NaN elsewhere."""
    logit = np.full(len(feature), np.nan)
    for fold in range(rows.num_folds):
        test = (rows.dataset == graded) & (rows.fold == fold)
        train = (rows.dataset == trained) & (rows.fold != fold)
        logit[test] = predict(rows, feature, train, test)
    return logit


def loss_of_rows(accepted: BoolArray, logit: FloatArray) -> FloatArray:
    return np.asarray(np.logaddexp(0, np.where(accepted, -logit, logit)))


def test_every_pair_of_datasets_is_cross_fitted_as_by_scikit_learn() -> None:
    rows, feature = make_rows()
    full = fit_logistic(feature, rows.position, rows.accepted, NUM_POSITIONS)
    table = transfer_table(rows, feature, full)
    assert table.select("trained_on", "graded_on").rows() == [
        ("chat", "chat"), ("chat", "code"), ("code", "chat"), ("code", "code"),
    ]  # fmt: skip
    for row in table.rows(named=True):
        trained, graded = (rows.datasets.index(row[n]) for n in ("trained_on", "graded_on"))
        here = rows.dataset == graded
        y, group = rows.accepted[here], rows.group[here]
        foreign, own = (held_out(rows, feature, d, graded)[here] for d in (trained, graded))
        assert (row["n"], row["n_prompts"]) == (here.sum(), 15)
        assert row["rate"] == pytest.approx(y.mean())
        assert row["mean_prediction"] == pytest.approx(
            (1 / (1 + np.exp(-foreign))).mean(), abs=CLOSE
        )
        loss = log_loss(y, 1 / (1 + np.exp(-foreign)))
        assert row["log_loss"] == pytest.approx(loss, abs=CLOSE)
        cost = mean_interval(loss_of_rows(y, foreign) - loss_of_rows(y, own), group)
        found = [row["log_loss_cost"], row["log_loss_cost_low"], row["log_loss_cost_high"]]
        assert found == pytest.approx(list(cost), abs=CLOSE)
        total = weight = 0.0
        for fold in range(4):
            part = rows.fold[here] == fold
            pairs = y[part].sum() * (~y[part]).sum()
            total += pairs * roc_auc_score(y[part], foreign[part])
            weight += pairs
        assert row["auc"] == pytest.approx(total / weight, abs=1e-3)  # ties of rounded features


def test_with_every_row_a_learning_curve_ends_at_the_cross_fit() -> None:
    rows, feature = make_rows()
    full = fit_logistic(feature, rows.position, rows.accepted, NUM_POSITIONS)
    table = learning_table(rows, feature, full)
    assert table["rows_per_position"].to_list() == [10, 25, 50, 100, 150]
    losses, aucs = [], []
    for fold in range(4):
        test = rows.fold == fold
        logit = predict(rows, feature, ~test, test)
        losses.append(log_loss(rows.accepted[test], 1 / (1 + np.exp(-logit))))
        aucs.append(roc_auc_score(rows.accepted[test], logit))
    last = table.row(-1, named=True)
    assert last["repeats"] == 4
    assert last["n_train"] == pytest.approx(len(feature) * 3 / 4)
    assert last["n_groups_train"] == pytest.approx(30 * 3 / 4)
    assert last["log_loss"] == pytest.approx(np.mean(losses), abs=CLOSE)
    assert last["log_loss_sd"] == pytest.approx(np.std(losses, ddof=1), abs=CLOSE)
    assert last["auc"] == pytest.approx(np.mean(aucs), abs=1e-3)


def test_whole_prompts_are_taken_until_there_are_enough_rows() -> None:
    rows, feature = make_rows()
    full = fit_logistic(feature, rows.position, rows.accepted, NUM_POSITIONS)
    table = learning_table(rows, feature, full, seed=1)
    largest = int(np.bincount(rows.group).max())
    for row in table.rows(named=True)[:-1]:
        wanted = row["rows_per_position"] * NUM_POSITIONS
        assert wanted <= row["n_train"] <= wanted + largest
    assert table["n_groups_train"].is_sorted()
    again = learning_table(rows, feature, full, seed=1)
    assert again.equals(table)
