"""Grades of every scope against scikit-learn on the rows themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from scipy.special import expit
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from draftlab.grading.grade import SCORES, Orders, grade, strata_of
from draftlab.metrics.intervals import auc_interval, half_width, mean_interval
from tests.grading.rows import NUM_POSITIONS, make_rows

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.grading.grade import Grade
    from draftlab.grading.rows import GradedRows

EXACT = 1e-12  # sums of some hundred float64 numbers in another order
SLOPES = [[0.7, 0.5, 0.9], [1.2, 0.8, 0.3], [0.6, 1.0, 0.4], [0.9, 0.7, 1.1]]
INTERCEPTS = np.array([[0.5, 0.1, -0.4]] * 4) + 0.1 * np.arange(4)[:, None]


def graded(rows: GradedRows, feature: FloatArray) -> Grade:
    return grade(rows, feature, np.array(SLOPES), INTERCEPTS, 15)


def inside(rows: GradedRows, entry: dict[str, object]) -> BoolArray:
    """Return the rows of an entry, chosen by what its line of the table says."""
    chosen = np.ones(len(rows.fold), dtype=bool)
    if entry["scope"] == "without_first":
        chosen &= rows.position > 0
    if entry["position"] is not None:
        chosen &= rows.position == entry["position"]
    if entry["dataset"] is not None:
        chosen &= rows.dataset == rows.datasets.index(str(entry["dataset"]))
    return chosen


def within_folds(y: BoolArray, score: FloatArray, fold: IntArray) -> float:
    total = weight = 0.0
    for code in np.unique(fold):
        part = fold == code
        pairs = y[part].sum() * (~y[part]).sum()
        if pairs:
            total += pairs * roc_auc_score(y[part], score[part])
            weight += pairs
    return total / weight


def test_every_entry_of_every_scope_is_scikit_learns() -> None:
    rows, feature = make_rows()
    found = graded(rows, feature)
    slope, intercept = np.array(SLOPES), INTERCEPTS
    logit = slope[rows.fold, rows.position] * feature + intercept[rows.fold, rows.position]
    np.testing.assert_allclose(found.logit, logit, atol=EXACT)
    assert len(found.table) == 1 + 1 + 3 + 2 + 6
    for entry in found.table.rows(named=True):
        here = inside(rows, entry)
        y, z = rows.accepted[here], logit[here]
        assert (entry["n"], entry["n_accepted"]) == (here.sum(), y.sum())
        assert entry["n_prompts"] == np.unique(rows.group[here]).size
        assert entry["log_loss"] == pytest.approx(log_loss(y, expit(z)), abs=EXACT)
        assert entry["brier"] == pytest.approx(brier_score_loss(y, expit(z)), abs=EXACT)
        assert entry["mean_prediction"] == pytest.approx(expit(z).mean(), abs=EXACT)
        auc = within_folds(y, z, rows.fold[here])
        assert entry["auc"] == pytest.approx(auc, abs=EXACT)
        parts = [entry[f"brier_{name}"] for name in ("reliability", "uncertainty", "within")]
        brier = sum(parts) - entry["brier_resolution"]
        assert entry["brier"] == pytest.approx(brier, abs=1e-9)


def test_a_negative_slope_turns_the_ranking_and_a_slope_of_zero_ties_it() -> None:
    rows, feature = make_rows(num_folds=1)
    one, zero = np.ones((1, NUM_POSITIONS)), np.zeros((1, NUM_POSITIONS))
    up, down, flat = (grade(rows, feature, w, zero, 15).table["auc"] for w in (one, -one, zero))
    np.testing.assert_allclose(up + down, 1.0, atol=EXACT)
    by_position = pl.Series(flat).to_numpy()
    np.testing.assert_allclose(by_position, 0.5, atol=EXACT)


def test_intervals_in_sample_are_those_of_the_plain_functions() -> None:
    rows, feature = make_rows(num_folds=1)
    one = np.ones((1, NUM_POSITIONS))
    found = grade(rows, feature, one, np.zeros_like(one), 15)
    for entry in found.table.rows(named=True):
        here = inside(rows, entry)
        y, z, group = rows.accepted[here], feature[here], rows.group[here]
        loss = np.logaddexp(0, np.where(y, -z, z))
        for name, wanted in (
            ("auc", auc_interval(y, z, group)),
            ("log_loss", mean_interval(loss, group)),
            ("mean_prediction", mean_interval(expit(z), group)),
        ):
            interval = [entry[name], entry[f"{name}_low"], entry[f"{name}_high"]]
            # those of the table are cut to what the metric can be
            top = np.inf if name == "log_loss" else 1.0
            assert interval == pytest.approx(np.clip(wanted, 0, top), abs=EXACT), entry


def test_influences_sum_to_nothing_and_make_the_interval() -> None:
    rows, feature = make_rows()
    found = graded(rows, feature)
    for scope in rows.scopes:
        clusters = rows.clusters[scope.name]
        table = found.table.filter(scope=scope.name)
        for number, name in enumerate(SCORES):
            influence = found.influence[scope.name][number]
            total = np.bincount(clusters.entry, influence, len(scope))
            np.testing.assert_allclose(total, 0.0, atol=1e-12)
            half = half_width(influence, clusters.entry, len(scope), strata_of(name, clusters))
            low = np.clip(table[name].to_numpy() - half, 0, None)
            np.testing.assert_allclose(table[f"{name}_low"].to_numpy(), low, atol=EXACT)


def test_sorts_that_are_shared_change_nothing() -> None:
    rows, feature = make_rows()
    orders = Orders(rows)
    alone = graded(rows, feature)
    for values in (feature, 3 * feature - 1, -feature, np.zeros_like(feature)):
        shared = grade(rows, values, np.array(SLOPES), INTERCEPTS, 15, orders=orders)
        own = grade(rows, values, np.array(SLOPES), INTERCEPTS, 15)
        assert shared.table.equals(own.table)
    assert graded(rows, feature).table.equals(alone.table)


def test_bins_of_the_reliability_diagram_by_numpy() -> None:
    rows, feature = make_rows()
    found = graded(rows, feature)
    prob = expit(found.logit)
    n, edges = np.histogram(prob, 15, (0, 1))
    accepted, _ = np.histogram(prob[rows.accepted], edges)
    total, _ = np.histogram(prob, edges, weights=prob)
    assert found.reliability["n"].to_list() == n.tolist()
    assert found.reliability["n_accepted"].to_list() == accepted.tolist()
    seen = found.reliability.filter(pl.col("n") > 0)
    np.testing.assert_allclose(seen["mean_prediction"], total[n > 0] / n[n > 0], atol=EXACT)
    gap = np.abs(total - accepted).sum() / n.sum()
    overall = found.table.row(0, named=True)
    assert overall["ece"] == pytest.approx(gap, abs=EXACT)


def test_only_the_scopes_that_are_wanted_are_graded() -> None:
    rows, feature = make_rows()
    some = grade(rows, feature, np.array(SLOPES), INTERCEPTS, 15, scopes=["position"])
    assert some.table.equals(graded(rows, feature).table.filter(scope="position"))
