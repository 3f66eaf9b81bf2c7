"""Survival: its arithmetic, its rows, its labels, and that it never meets conditional ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from scipy.special import expit, logit
from sklearn.metrics import log_loss, roc_auc_score

from draftlab import metrics
from draftlab.grading.differences import difference_table
from draftlab.grading.grade import grade
from draftlab.grading.rows import arrange
from draftlab.predictors.survival import (
    hybrid,
    last_factor,
    log_chance,
    log_odds_of_log,
    product,
)
from draftlab.studies.evaluate import Evaluation, evaluate
from draftlab.synth import synth_log
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

EXACT = 1e-12
FLOAT32 = 1e-5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth_log(
        tmp_path_factory.mktemp("log"), num_requests=400, datasets={"a": 0.3, "b": -0.3}
    )


@pytest.fixture(scope="module")
def result(run: Path) -> Evaluation:
    return evaluate(run)


def only(result: Evaluation, predictor: str, scope: str = "overall", **where: Any) -> Any:
    return result.survival.filter(predictor=predictor, scope=scope, **where).row(0, named=True)


# --- arithmetic


def test_products_by_hand() -> None:
    conditional = logit(np.array([[0.5, 0.8, 0.5], [0.9, 0.1, np.nan]]))
    survival = np.exp(product(conditional))
    np.testing.assert_allclose(survival, [[0.5, 0.4, 0.2], [0.9, 0.09, np.nan]], rtol=EXACT)
    drawn, at_draw = logit(np.array([[0.5, 0.2, 0.7]])), logit(np.array([[0.9, 0.6, 0.4]]))
    found = np.exp(last_factor(drawn, at_draw))
    np.testing.assert_allclose(found, [[0.9, 0.5 * 0.6, 0.5 * 0.2 * 0.4]], rtol=EXACT)
    # 0.9 was spoilt by the first draw: what follows may not rise above what was said before
    rising = np.exp(hybrid(logit(np.array([[0.99, 0.5]])), logit(np.array([[0.3, 0.8]]))))
    np.testing.assert_allclose(rising, [[0.3, 0.3]], rtol=EXACT)


def test_logarithms_keep_deep_and_sure_products_apart() -> None:
    assert log_chance(np.array([-800.0]))[0] == -800.0
    sure = product(np.full((1, 7), 39.0))
    log_odds = log_odds_of_log(sure)[0]
    assert (np.diff(log_odds) < 0).all()
    assert np.isfinite(log_odds).all()
    np.testing.assert_allclose(log_odds, 39.0 - np.log(np.arange(1, 8)), rtol=1e-9)


# --- rows and labels


def test_rows_behind_a_rejection_count_and_trimmed_rows_do_not(tmp_path: Path) -> None:
    def verified(step: int, labels: list[bool | None], sent: int, request: int) -> dict[str, Any]:
        admitted = np.arange(len(labels)) < sent
        verify = np.ma.array(np.full(len(labels), step), mask=~admitted)
        return proposal(step, labels, request=request, admitted=admitted, verify_step=verify)

    rows = [
        verified(0, [True, False, None], 3, 0),
        verified(1, [True, True, None], 2, 0),
        verified(2, [False, None, None], 3, 1),
        verified(3, [True, True, False], 3, 1),
        verified(4, [True, True, True], 3, 1),
    ]
    log = write_log(tmp_path, rows, num_speculative_tokens=3)
    found = evaluate(log, in_sample=True, predictors=["constant"])
    by_position = found.survival.filter(predictor="constant", scope="position")
    assert by_position["n"].to_list() == [5, 5, 4]
    assert by_position["n_accepted"].to_list() == [4, 3, 1]
    length = found.lengths.filter(pl.col("dataset").is_null()).row(0, named=True)
    assert (length["n_proposals"], length["n_prompts"]) == (5, 2)
    assert length["observed_accepted"] == (1 + 2 + 0 + 2 + 3) / 5
    rate = 8 / 11  # of the observed rows
    expected = (4 * (rate + rate**2 + rate**3) + (rate + rate**2)) / 5
    assert length["expected_accepted"] == pytest.approx(expected, abs=1e-9)


def test_an_excluded_row_ends_its_proposal(tmp_path: Path) -> None:
    flag = np.array([0, 4], dtype=np.uint16)
    rows = [proposal(i, [i % 3 > 0, None if i % 3 == 0 else i % 2 == 0], request=i % 4,
                     excluded=flag if i < 6 else np.zeros(2, dtype=np.uint16))
            for i in range(24)]  # fmt: skip
    found = evaluate(write_log(tmp_path, rows), in_sample=True, predictors=["constant"])
    by_position = found.survival.filter(predictor="constant", scope="position")
    assert by_position["n"].to_list() == [24, 18]


# --- the numbers


def slow(run: Path, coefficients: pl.DataFrame) -> pl.DataFrame:
    """Products, hybrid and oracle, proposal by proposal, with the in-sample coefficients."""
    drafts = pl.read_parquet(run / "drafts" / "*.parquet")
    whole = coefficients.filter(pl.col("fold").is_null() & pl.col("dataset").is_null())
    fits = {name: whole.filter(predictor=name) for name in ("logit_qmax", "logit_q_sampled")}
    out = []
    for rows in drafts.partition_by("step", "slot"):
        c = {
            name: expit(
                fit["slope"].to_numpy() * rows[name].to_numpy() + fit["intercept"].to_numpy()
            )
            for name, fit in fits.items()
        }
        overlap, drawn = rows["overlap"].to_numpy(), rows["accept_prob"].to_numpy()
        alive, low = True, 1.0
        for k in range(len(rows)):
            alive = alive and bool(rows["accepted"][k])
            low = min(low, np.prod(c["logit_q_sampled"][:k]) * c["logit_qmax"][k])
            out.append(
                {
                    "position": k,
                    "survived": alive,
                    "logit_qmax": np.prod(c["logit_qmax"][: k + 1]),
                    "hybrid": low,
                    "oracle": np.prod(drawn[:k].astype(float)) * float(overlap[k]),
                }
            )
    return pl.DataFrame(out)


@pytest.mark.slow
def test_the_fast_version_equals_the_slow_one(tmp_path: Path) -> None:
    run = synth_log(tmp_path, num_requests=20)
    found = evaluate(run, in_sample=True)
    rows = slow(run, found.coefficients)
    for name in ("logit_qmax", "hybrid", "oracle"):
        for scope, k in (("overall", None), ("position", 2)):
            part = rows if k is None else rows.filter(position=k)
            y, prob = part["survived"].to_numpy(), part[name].to_numpy()
            row = only(found, name, scope, **({} if k is None else {"position": k}))
            assert row["n"] == len(part)
            assert row["mean_prediction"] == pytest.approx(prob.mean(), abs=FLOAT32)
            assert row["auc"] == pytest.approx(roc_auc_score(y, prob), abs=1e-4)
            assert row["log_loss"] == pytest.approx(log_loss(y, prob), abs=FLOAT32)
            assert row["brier"] == pytest.approx(((prob - y) ** 2).mean(), abs=FLOAT32)
        length = found.lengths.filter(pl.col("dataset").is_null(), predictor=name).row(
            0, named=True
        )
        assert length["expected_accepted"] == pytest.approx(rows[name].sum() / 400, abs=1e-4)
        assert length["observed_accepted"] == rows["survived"].sum() / 400


def test_the_oracle_is_best_and_the_hybrid_beats_the_adopted(run: Path, result: Evaluation) -> None:
    loss = {name: only(result, name)["log_loss"]
            for name in ("oracle", "hybrid", "logit_qmax", "per_position")}  # fmt: skip
    assert loss["oracle"] < loss["hybrid"] < loss["logit_qmax"] < loss["per_position"]
    assert only(result, "hybrid")["auc"] > only(result, "logit_qmax")["auc"]
    lossless = dict(result.survival.select("predictor", "lossless").iter_rows())
    assert lossless["hybrid"]
    assert lossless["oracle"]
    assert lossless["logit_qmax"]
    lossy = evaluate(run, predictors=["logit_q_sampled"]).survival["lossless"]
    assert not lossy.any()  # its last factor reads x_k
    assert result.survival["view"].unique().to_list() == ["survival"]
    assert result.metrics["view"].unique().to_list() == ["conditional"]


def test_the_expected_length_of_the_oracle_is_right(result: Evaluation) -> None:
    rows = result.lengths.filter(predictor="oracle")
    assert rows["dataset"].to_list() == [None, "a", "b"]
    for row in rows.rows(named=True):
        assert row["bias_low"] < 0 < row["bias_high"]
    bins = result.length_calibration.filter(predictor="oracle")
    assert bins["n_proposals"].to_list() == [800] * 10
    # its terms are made at different times, so the sum is right in the mean, and nearly by bin
    gaps = (bins["expected_accepted"] - bins["observed_accepted"]).to_numpy()
    assert np.abs(gaps).max() < 0.25
    assert bins["observed_accepted"].is_sorted()
    better, worse = (
        result.lengths.filter(pl.col("dataset").is_null(), predictor=name)["correlation"].item()
        for name in ("oracle", "per_position")
    )
    assert better > worse + 0.1


# --- never mixed


def test_mixing_views_is_refused() -> None:
    rng = np.random.default_rng(0)
    n = 60
    keys: dict[str, Any] = {
        "accepted": rng.random(n) < 0.6,
        "position": np.arange(n) % 2,
        "dataset": np.zeros(n, dtype=np.int64),
        "fold": np.zeros(n, dtype=np.int64),
        "group": np.arange(n) // 6,
        "datasets": ("a",),
        "num_positions": 2,
        "num_folds": 1,
    }
    one, zero = np.ones((1, 2)), np.zeros((1, 2))
    conditional, _ = arrange(**keys)
    survival, _ = arrange(**keys, view="survival")
    score = rng.normal(size=n)
    with pytest.raises(ValueError, match="survival predictions do not meet conditional labels"):
        grade(conditional, score, one, zero, 15, view="survival")
    with pytest.raises(ValueError, match="conditional predictions do not meet survival labels"):
        grade(survival, score, one, zero, 15)
    graded = grade(survival, score, one, zero, 15, view="survival")
    with pytest.raises(ValueError, match="views never mix"):
        difference_table(conditional, {"a": graded, "b": graded})
    assert graded.table["auc"][0] == metrics.auc(survival.accepted, score)
