"""Whether acceptance changed over a log: the score test against statsmodels and plain algebra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import norm
from scipy.stats import t as student
from statsmodels.stats.multitest import multipletests

from draftlab.predictors.logistic import fit_logistic
from draftlab.studies.stability.stationarity import change_table, holm

if TYPE_CHECKING:
    import polars as pl


def drifting(rng: np.random.Generator, shift: float) -> pl.DataFrame:
    """Test one log of 60 requests with effects of their own; position 1 shifts halfway."""
    n = 60 * 40
    group, position = np.repeat(np.arange(60), 40), np.tile(np.arange(2), n // 2)
    late = group >= 30
    # the feature itself drifts too: held fixed, that is no drift of acceptance
    feature = rng.normal(0.5, 1.5, n) + 0.7 * late
    effect = 0.5 * rng.normal(size=60)[group]
    accepted = rng.random(n) < expit(0.6 * feature + effect + shift * late * (position == 1))
    fit = fit_logistic(feature, position, accepted, 2)
    return change_table(feature, position, accepted, late, group, fit)


def test_a_shift_is_found_where_it_is() -> None:
    table = drifting(np.random.default_rng(0), 1.0)
    assert table["position"].to_list() == [None, 0, 1]
    assert table["changed"].to_list() == [True, False, True]
    assert table["shift_low"][2] < 1.0 < table["shift_high"][2]
    assert table["n_early"].to_list() == [1200, 600, 600]


@pytest.mark.slow
def test_without_a_shift_little_is_found() -> None:
    rng = np.random.default_rng(1)
    p_values = np.array([drifting(rng, 0.0)["p_value"].to_numpy() for _ in range(300)])
    share = (p_values < 0.05).mean(axis=0)
    assert (share < 0.09).all()
    assert (share > 0.02).all()


def test_holm_by_hand() -> None:
    assert holm(np.array([0.04, 0.001, 0.02]), 0.05).tolist() == [True, True, True]
    assert holm(np.array([0.06, 0.001, 0.03]), 0.05).tolist() == [False, True, False]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_its_adjusted_p_values_do(p_values: list[float]) -> None:
    """Adjusted: the largest so far of (m - rank) p, by rising p."""
    p = np.array(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    found = holm(p, 0.05)
    sure = np.abs(adjusted - 0.05) > 1e-12  # where rounding does not decide
    np.testing.assert_array_equal(found[sure], (adjusted <= 0.05)[sure])


@pytest.mark.parametrize("seed", range(4))
def test_holm_is_statsmodels(seed: int) -> None:
    p_values = np.random.default_rng(seed).beta(0.2, 2.0, 10)
    wanted, *_ = multipletests(p_values, alpha=0.05, method="holm")
    assert holm(p_values, 0.05).tolist() == wanted.tolist()
    assert 0 < wanted.sum() < 10


def test_the_score_is_what_a_projection_leaves_of_it() -> None:
    """Residuals times what slope and intercepts do not explain of the shift."""
    rng = np.random.default_rng(5)
    n = 1200
    feature, position = rng.normal(size=n), np.tile(np.arange(3), n // 3)
    group = np.repeat(np.arange(n // 12), 12)
    late = group >= 40
    accepted = rng.random(n) < expit(0.7 * feature + 0.4 * late * (position == 2))
    fit = fit_logistic(feature, position, accepted, 3)
    table = change_table(feature, position, accepted, late, group, fit)
    prob = expit(fit.slope * feature + fit.intercepts[position])
    root = np.sqrt(prob * (1 - prob))
    design = np.column_stack([feature, position[:, None] == np.arange(3)]).astype(float)
    for row in table.rows(named=True):
        here = late if row["position"] is None else late & (position == row["position"])
        explained, *_ = np.linalg.lstsq(design * root[:, None], here * root, rcond=None)
        left = here - design @ explained
        sums = np.array([((accepted - prob) * left)[group == g].sum() for g in np.unique(group)])
        active = np.count_nonzero(sums)
        deviation = np.sqrt((sums**2).sum() * active / (active - 1))
        assert row["z"] == pytest.approx(sums.sum() / deviation, rel=1e-9)
        information = ((left * root) ** 2).sum()
        assert row["shift"] == pytest.approx(sums.sum() / information, rel=1e-9)
        assert row["p_value"] == pytest.approx(2 * norm.sf(abs(row["z"])), rel=1e-9)
        half = student.ppf(0.975, active - 1) * deviation / information
        assert row["shift_high"] - row["shift"] == pytest.approx(half)
        chosen = position >= 0 if row["position"] is None else position == row["position"]
        assert row["rate_late"] == pytest.approx(accepted[chosen & late].mean())
        assert row["rate_early"] == pytest.approx(accepted[chosen & ~late].mean())


def test_a_small_shift_is_that_of_a_fit_with_it() -> None:
    """One Newton step from the fit without a shift; statsmodels goes all the way."""
    rng = np.random.default_rng(6)
    n = 40_000
    feature, position, late = rng.normal(size=n), np.zeros(n, dtype=np.int64), np.arange(n) > n / 2
    accepted = rng.random(n) < expit(0.5 * feature + 0.1 * late)
    fit = fit_logistic(feature, position, accepted, 1)
    row = change_table(feature, position, accepted, late, np.arange(n), fit).row(0, named=True)
    design = np.column_stack([feature, np.ones(n), late])
    wanted = sm.Logit(accepted.astype(float), design).fit(disp=False, tol=1e-12)
    assert row["shift"] == pytest.approx(wanted.params[2], rel=0.01)
    half = 1.96 * wanted.bse[2]
    assert row["shift_high"] - row["shift"] == pytest.approx(half, rel=0.01)


def test_without_later_rows_there_is_no_test() -> None:
    feature, position = np.array([0.1, 0.7, -0.3, 0.2]), np.zeros(4, dtype=np.int64)
    accepted = np.array([True, False, True, False])
    fit = fit_logistic(feature, position, accepted, 1)
    never = np.zeros(4, dtype=bool)
    table = change_table(feature, position, accepted, never, np.arange(4), fit)
    assert table["z"].is_nan().all()
    assert table["changed"].to_list() == [None, None]
    assert table["n_late"].to_list() == [0, 0]
