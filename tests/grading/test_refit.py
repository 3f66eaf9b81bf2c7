"""Every fit that an evaluation makes, against statsmodels on the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm

from draftlab.grading.refit import fit_notes, no_coefficients, refit
from draftlab.predictors.baselines import PREDICTORS
from tests.grading.rows import NUM_POSITIONS, make_rows

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray
    from draftlab.grading.rows import GradedRows

CLOSE = 1e-6  # two optimisers, each at its own tolerance


def logit_by_position(rows: GradedRows, feature: FloatArray, chosen: BoolArray) -> FloatArray:
    """Return slope and intercepts by statsmodels, one indicator a position."""
    indicators = rows.position[chosen, None] == np.arange(NUM_POSITIONS)
    design = np.column_stack([feature[chosen], indicators]).astype(float)
    model = sm.Logit(rows.accepted[chosen].astype(float), design)
    return np.asarray(model.fit(disp=False, tol=1e-12).params)


def coefficients(table: pl.DataFrame) -> FloatArray:
    return np.array([table["slope"][0], *table["intercept"]])


def test_all_rows_each_dataset_and_each_fold_equal_statsmodels() -> None:
    rows, feature = make_rows()
    slopes, intercepts, tables = refit(PREDICTORS["logit_qmax"], rows, feature)
    assert len(tables) == 1 + 2 + 4
    for table in tables:
        dataset, fold = table["dataset"][0], table["fold"][0]
        chosen = np.ones(len(rows.fold), dtype=bool)
        if dataset is not None:
            chosen = rows.dataset == rows.datasets.index(dataset)
        if fold is not None:
            chosen = rows.fold != fold
            np.testing.assert_array_equal(slopes[fold], table["slope"])
            np.testing.assert_array_equal(intercepts[fold], table["intercept"])
        wanted = logit_by_position(rows, feature, chosen)
        np.testing.assert_allclose(coefficients(table), wanted, atol=CLOSE)
        counts = np.bincount(rows.position[chosen], minlength=NUM_POSITIONS)
        assert table["n"].to_list() == counts.tolist()
        assert table["status"].unique().to_list() == ["converged"]


def test_one_slope_for_each_position_is_a_fit_of_each_position() -> None:
    rows, feature = make_rows()
    slopes, intercepts, tables = refit(
        PREDICTORS["logit_qmax"], rows, feature, slope_per_position=True
    )
    for k in range(NUM_POSITIONS):
        for fold in range(4):
            chosen = (rows.position == k) & (rows.fold != fold)
            design = sm.add_constant(feature[chosen])
            model = sm.Logit(rows.accepted[chosen].astype(float), design)
            wanted = model.fit(disp=False, tol=1e-12).params
            np.testing.assert_allclose([intercepts[fold, k], slopes[fold, k]], wanted, atol=CLOSE)
    assert tables[0]["slope"].n_unique() == NUM_POSITIONS


def test_intervals_by_group_are_statsmodels_clustered_ones() -> None:
    rows, feature = make_rows()
    _, _, [table, *others] = refit(PREDICTORS["logit_qmax"], rows, feature)
    design = np.column_stack([feature, rows.position[:, None] == np.arange(NUM_POSITIONS)])
    model = sm.GLM(rows.accepted.astype(float), design.astype(float), sm.families.Binomial())
    robust = model.fit(cov_type="cluster", cov_kwds={"groups": rows.group, "use_correction": False})
    half = ((table["slope_high"] - table["slope_low"]) / 2).to_list()[0]
    # a t quantile and G / (G - 1) instead of a normal quantile: both widen a little
    assert 1.96 < half / robust.bse[0] < 2.2
    ratio = ((table["intercept_high"] - table["intercept_low"]) / 2).to_numpy() / robust.bse[1:]
    np.testing.assert_allclose(ratio, half / robust.bse[0], rtol=1e-6)
    of_folds = pl.concat(others).drop_nulls("fold")
    assert of_folds["slope_low"].is_nan().all()  # nothing repeats a fit without a fold


def test_floors_are_rates_of_the_training_rows() -> None:
    rows, feature = make_rows()
    for name in ("constant", "per_position"):
        slopes, intercepts, tables = refit(PREDICTORS[name], rows, np.zeros_like(feature))
        assert (slopes == 0).all()
        for fold in range(4):
            for k in range(NUM_POSITIONS):
                chosen = rows.fold != fold
                if name == "per_position":
                    chosen &= rows.position == k
                rate = rows.accepted[chosen].mean()
                assert 1 / (1 + np.exp(-intercepts[fold, k])) == pytest.approx(rate, abs=1e-9)
        assert tables[0]["slope_low"].is_nan().all()


def test_a_raw_probability_is_taken_as_it_is() -> None:
    rows, feature = make_rows()
    slopes, intercepts, tables = refit(PREDICTORS["qmax"], rows, feature)
    assert (slopes == 1).all()
    assert (intercepts == 0).all()
    assert slopes.shape == (4, NUM_POSITIONS)
    assert tables == []


def test_in_sample_there_is_one_fit_and_it_is_that_of_all_rows() -> None:
    rows, feature = make_rows(num_folds=1)
    slopes, intercepts, tables = refit(PREDICTORS["logit_qmax"], rows, feature)
    assert [table["fold"][0] for table in tables] == [None] * 3
    wanted = logit_by_position(rows, feature, np.ones(len(feature), dtype=bool))
    np.testing.assert_allclose([slopes[0, 0], *intercepts[0]], wanted, atol=CLOSE)


def test_fits_that_did_not_converge_are_counted_once_each() -> None:
    fits = [("a", "x", "separable"), ("a", "y", "converged"), ("a", "z", "not_converged"),
            ("b", "x", "converged")]  # fmt: skip
    rows = [
        {"predictor": name, "dataset": dataset, "position": k, "status": status}
        for name, dataset, status in fits
        for k in range(2)
    ]
    fits_of_two = pl.DataFrame(rows, schema_overrides={"position": pl.Int16})
    table = pl.concat([no_coefficients(), fits_of_two], how="diagonal")
    assert [str(note) for note in fit_notes(table)] == [
        "a: 1 of 3 fits separable, held by a ridge of 0.001",
        "a: 1 of 3 fits not converged",
    ]
    assert fit_notes(no_coefficients()) == []
