"""Features: values by hand, stable tails, and what they reveal."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from draftlab import schema
from draftlab.errors import InputError
from draftlab.features import FEATURES, Feature, known, lossless
from draftlab.predictors.baselines import PREDICTORS

ROUNDING = 1e-14


def value(name: str, **columns: float) -> float:
    frame = pl.DataFrame({key: pl.Series([number], dtype=pl.Float32)
                          for key, number in columns.items()})  # fmt: skip
    return float(frame.select(FEATURES[name].expr).item())


def test_table_has_the_published_order() -> None:
    assert list(FEATURES) == [
        "log_qmax",
        "top2_margin",
        "entropy",
        "loglog_qmax",
        "logit_qmax",
        "logit_q_sampled",
        "loglog_q_sampled",
    ]
    assert list(PREDICTORS) == [
        *FEATURES, "qmax", "confidence", "constant", "per_position", "overlap", "accept_prob",
    ]  # fmt: skip


def test_values_by_hand() -> None:
    # qmax = 0.75: log-odds log 3
    log_odds = math.log(3)
    assert value("logit_qmax", logit_qmax=log_odds) == np.float32(log_odds)
    assert value("log_qmax", logit_qmax=log_odds) == pytest.approx(math.log(0.75), abs=1e-7)
    assert value("loglog_qmax", logit_qmax=log_odds) == pytest.approx(
        -math.log(-math.log(0.75)), abs=1e-7
    )
    assert value("entropy", entropy=0.5) == 0.5
    assert value("top2_margin", top2_margin=1.5) == 1.5


@pytest.mark.parametrize("limit", [40.0, 41.0, math.inf])
def test_tails_are_clamped_and_counted(limit: float) -> None:
    assert value("logit_qmax", logit_qmax=limit) == 40.0
    assert value("logit_q_sampled", logit_q_sampled=-limit) == -40.0
    assert value("log_qmax", logit_qmax=limit) == pytest.approx(-math.exp(-40), rel=ROUNDING)
    assert value("loglog_qmax", logit_qmax=limit) == pytest.approx(40.0, rel=ROUNDING)
    assert value("log_qmax", logit_qmax=-limit) == pytest.approx(-40.0, rel=ROUNDING)
    frame = pl.DataFrame({"logit_qmax": pl.Series([limit, -limit, 3.0], dtype=pl.Float32)})
    clamped = frame.select(FEATURES["logit_qmax"].clamped).to_series()
    assert int(clamped.sum()) == (0 if limit == 40.0 else 2)


@pytest.mark.parametrize("name", ["log_qmax", "loglog_qmax", "logit_qmax"])
def test_distinct_log_odds_stay_distinct_and_in_order(name: str) -> None:
    # neighbouring float32 numbers near the ends, zero and between
    starts = np.array([-40, -39.9, -17, -3, -0.1, 1e-6, 0.1, 3, 16.6, 30, 39.9], dtype=np.float32)
    runs = [starts]
    for _ in range(30):
        runs.append(np.nextafter(runs[-1], np.float32(50)))
    log_odds = np.sort(np.concatenate(runs))
    image = (
        pl.DataFrame({"logit_qmax": log_odds}).select(FEATURES[name].expr).to_series().to_numpy()
    )
    assert (np.diff(image) > 0).all()


def test_null_stays_null() -> None:
    frame = pl.DataFrame({c.name: pl.Series([None], dtype=pl.Float32) for c in schema.DRAFTS})
    for feature in FEATURES.values():
        assert frame.select(feature.expr).item() is None


@pytest.mark.parametrize(
    ("name", "when", "probabilistic", "greedy"),
    [
        ("logit_qmax", "before_draw", True, True),
        ("entropy", "before_draw", True, True),
        ("logit_q_sampled", "after_draw", False, True),
        ("loglog_q_sampled", "after_draw", False, True),
    ],
)
def test_losslessness_is_derived(name: str, when: str, probabilistic: bool, greedy: bool) -> None:
    feature = FEATURES[name]
    assert feature.known == when
    assert feature.lossless("probabilistic") is probabilistic
    assert feature.lossless("greedy") is greedy


def test_which_ceilings_and_floors_are_lossless() -> None:
    assert known(["overlap"]) == known(["accept_prob"]) == "verify"
    assert PREDICTORS["overlap"].lossless("probabilistic")
    assert not PREDICTORS["accept_prob"].lossless("probabilistic")
    assert PREDICTORS["accept_prob"].lossless("greedy")
    assert PREDICTORS["constant"].lossless("probabilistic")
    assert not lossless(["logit_qmax", "token"], "probabilistic")


@pytest.mark.parametrize("column", ["accepted", "admitted", "verify_step", "excluded"])
def test_the_outcome_is_refused(column: str) -> None:
    with pytest.raises(InputError, match="hold the outcome"):
        Feature("peek", pl.col(column).cast(pl.Float64), "peeks")


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(InputError, match=r"reads \['qmax'\], but drafts holds"):
        Feature("typo", pl.col("qmax"), "typo")


@pytest.mark.parametrize(
    "expr",
    [
        pl.col("logit_qmax").shift(-1),
        pl.col("logit_qmax") - pl.col("logit_qmax").mean(),
        pl.col("entropy").mean().over("step", "slot"),
        pl.col("entropy").rolling_mean(2),
        pl.col("entropy").fill_null(strategy="backward"),
    ],
)
def test_other_rows_are_refused(expr: pl.Expr) -> None:
    # a shift would read what is drawn later, though it reads only a column of q
    with pytest.raises(InputError, match="other rows"):
        Feature("neighbour", expr, "reads the next row")


def test_raw_probabilities_become_log_odds() -> None:
    feature = PREDICTORS["overlap"].feature
    assert feature is not None
    frame = pl.DataFrame({"overlap": pl.Series([0.75, 0.0, 1.0, 1.0000001], dtype=pl.Float32)})
    assert frame.select(feature.expr).to_series().to_list() == [
        pytest.approx(math.log(3)), -40.0, 40.0, 40.0,
    ]  # fmt: skip
    assert frame.select(feature.clamped).to_series().to_list() == [False, True, True, True]
