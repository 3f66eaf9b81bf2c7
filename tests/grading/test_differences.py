"""Paired differences against sums over prompts, written out with numpy."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from scipy.special import expit
from scipy.stats import t
from sklearn.metrics import roc_auc_score

from draftlab.grading.differences import difference_table
from draftlab.grading.grade import grade
from tests.grading.rows import NUM_POSITIONS, make_rows

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.grading.grade import Grade
    from draftlab.grading.rows import GradedRows

EXACT = 1e-12


def graded() -> tuple[GradedRows, dict[str, Grade], dict[str, FloatArray]]:
    rows, feature = make_rows(num_folds=1)
    rng = np.random.default_rng(9)
    features = {"noisy": feature + rng.normal(size=len(feature)), "logit_qmax": feature,
                "same": feature.copy()}  # fmt: skip
    one = np.ones((1, NUM_POSITIONS))
    grades = {name: grade(rows, f, one, 0 * one, 15) for name, f in features.items()}
    return rows, grades, features


def half_width(values: FloatArray, group: IntArray) -> float:
    """Return the half width of a 95 % interval of a mean whose rows come in groups."""
    centred = values - values.mean()
    sums = np.array([centred[group == g].sum() for g in np.unique(group)]) / len(values)
    G = len(sums)
    return float(t.ppf(0.975, G - 1) * np.sqrt(G / (G - 1) * (sums**2).sum()))


def test_a_difference_of_losses_is_that_of_the_rows_with_its_interval() -> None:
    rows, grades, features = graded()
    table = difference_table(rows, grades)
    y = rows.accepted
    for scope, chosen in (("overall", y | True), ("without_first", rows.position > 0)):
        loss = {name: np.logaddexp(0, np.where(y, -f, f))[chosen] for name, f in features.items()}
        brier = {name: ((expit(f) - y) ** 2)[chosen] for name, f in features.items()}
        for metric, of_rows in (("log_loss", loss), ("brier", brier)):
            row = table.filter(scope=scope, metric=metric, predictor_b="noisy").row(0, named=True)
            gap = of_rows["logit_qmax"] - of_rows["noisy"]
            half = half_width(gap, rows.group[chosen])
            assert row["difference"] == pytest.approx(gap.mean(), abs=EXACT)
            assert row["low"] == pytest.approx(gap.mean() - half, abs=EXACT)
            assert row["high"] == pytest.approx(gap.mean() + half, abs=EXACT)
            assert row["distinguishable"] is bool(abs(gap.mean()) > half)


def test_a_difference_of_auc_is_scikit_learns_and_its_interval_holds_a_jackknife() -> None:
    rows, grades, features = graded()
    row = difference_table(rows, grades).filter(
        scope="overall", metric="auc", predictor_b="noisy"
    ).row(0, named=True)  # fmt: skip

    def gap(kept: BoolArray) -> float:
        y = rows.accepted[kept]
        first, second = (roc_auc_score(y, features[n][kept]) for n in ("logit_qmax", "noisy"))
        return float(first - second)

    assert row["difference"] == pytest.approx(gap(np.ones(len(rows.fold), dtype=bool)), abs=EXACT)
    without = np.array([gap(rows.group != g) for g in np.unique(rows.group)])
    G = len(without)
    error = np.sqrt((G - 1) / G * ((without - without.mean()) ** 2).sum())
    half = (row["high"] - row["low"]) / 2
    assert half == pytest.approx(t.ppf(0.975, G - 1) * error, rel=0.05)


def test_equal_predictors_differ_in_nothing_and_ece_has_no_interval() -> None:
    rows, grades, _ = graded()
    table = difference_table(rows, grades)
    alike = table.filter(pl.col("metric") != "ece", predictor_b="same")
    assert alike.select("difference", "low", "high").unique().rows() == [(0.0, 0.0, 0.0)]
    assert alike["distinguishable"].to_list() == [False] * len(alike)
    ece = table.filter(metric="ece")
    assert ece["low"].is_nan().all()
    assert ece["distinguishable"].null_count() == len(ece)


def test_the_adopted_feature_is_compared_with_every_other_and_pairs_on_request() -> None:
    rows, grades, _ = graded()

    def pairs(compare: str, chosen: dict[str, Grade]) -> list[tuple[str, str]]:
        table = difference_table(rows, chosen, compare)  # type: ignore[arg-type]
        return table.select("predictor_a", "predictor_b").unique(maintain_order=True).rows()

    assert pairs("adopted", grades) == [("logit_qmax", "noisy"), ("logit_qmax", "same")]
    assert pairs("all", grades) == list(combinations(grades, 2))
    others = {name: g for name, g in grades.items() if name != "logit_qmax"}
    assert pairs("adopted", others) == [("noisy", "same")]
    assert pairs("adopted", {}) == []
    forth = difference_table(rows, {name: grades[name] for name in ("noisy", "same")}, "all")
    back = difference_table(rows, {name: grades[name] for name in ("same", "noisy")}, "all")
    np.testing.assert_allclose(forth["difference"], -back["difference"], atol=EXACT)
    np.testing.assert_allclose(forth["low"], -back["high"], atol=EXACT)
