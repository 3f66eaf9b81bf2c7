"""Stability tables: by hand, against independent fits, and against known truth."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy.special import expit
from sklearn.metrics import log_loss

from draftlab.errors import InputError
from draftlab.predictors.logistic import fit_logistic
from draftlab.studies.stability.stability import TABLES, Stability, stability
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab.studies.evaluate import Evaluation


@pytest.fixture(scope="module")
def run(synthetic_run: Path) -> Path:
    return synthetic_run


@pytest.fixture(scope="module")
def evaluation(synthetic_evaluation: Evaluation) -> Evaluation:
    return synthetic_evaluation


@pytest.fixture(scope="module")
def found(run: Path, evaluation: Evaluation) -> Stability:
    return stability(run, evaluation=evaluation)


# --- workloads and pairs


def test_workloads_are_the_fits_on_each_dataset(found: Stability, evaluation: Evaluation) -> None:
    alone = evaluation.coefficients.filter(
        pl.col("dataset").is_not_null(), predictor="logit_qmax", position=0
    )
    assert found.workloads["dataset"].to_list() == alone["dataset"].to_list()
    np.testing.assert_allclose(found.workloads["slope"], alone["slope"], atol=1e-7)
    np.testing.assert_allclose(found.workloads["intercept_0"], alone["intercept"], atol=1e-7)
    entropy, intercept = found.workloads["mean_entropy", "intercept_0"].to_numpy().T
    r = found.workload_correlations.filter(coefficient="intercept_0")["r"].item()
    assert r == pytest.approx(np.corrcoef(entropy, intercept)[0, 1], abs=1e-12)
    easy, hard, _ = found.workloads["intercept_0"]
    assert easy - hard == pytest.approx(1.6, abs=0.3)


def test_the_spread_of_pairs_is_over_blocks_of_steps(run: Path, found: Stability) -> None:
    drafts = pl.read_parquet(run / "drafts" / "*.parquet").drop_nulls("accepted")
    steps = drafts["step"].rank("dense") - 1
    block = (steps * 10 // drafts["step"].n_unique()).cast(pl.Int64).to_numpy()
    slopes = []
    for code in range(10):
        rows = drafts.filter(block == code)
        feature, position, accepted = (
            rows[c].to_numpy() for c in ("logit_qmax", "position", "accepted")
        )
        fit = fit_logistic(feature.astype(float), position.astype(int), accepted, 5)
        slopes.append(fit.slope)
    row = found.refit_spread.row(0, named=True)
    assert (row["num_positions"], row["refits"]) == (5, 10)
    assert row["slope_mean"] == pytest.approx(np.mean(slopes), abs=1e-6)
    assert row["slope_sd"] == pytest.approx(np.std(slopes, ddof=1), abs=1e-6)
    assert row["slope"] == pytest.approx(0.5, abs=0.1)
    # the log is stationary: what spreads is sampling alone
    assert row["slope_sd"] == pytest.approx(row["slope_se"], rel=0.7)
    assert row["intercept_0_sd"] == pytest.approx(row["intercept_0_se"], rel=0.7)


def test_a_shared_slope_costs_nothing_where_it_is_true(found: Stability) -> None:
    row = found.slopes.filter(scope="overall", metric="log_loss").row(0, named=True)
    assert abs(row["cost"]) < 2e-3
    assert row["cost"] == pytest.approx(row["shared"] - row["own"], abs=1e-12)
    auc = found.slopes.filter(scope="overall", metric="auc").row(0, named=True)
    assert auc["cost"] == pytest.approx(auc["own"] - auc["shared"], abs=1e-12)
    assert auc["cost_low"] <= auc["cost"] <= auc["cost_high"]


# --- transfer and learning


def test_a_foreign_fit_costs_and_its_own_does_not(found: Stability, evaluation: Evaluation) -> None:
    own = found.transfer.filter(pl.col("trained_on") == pl.col("graded_on"))
    assert own["log_loss_cost"].to_list() == [0.0] * 3
    foreign = found.transfer.filter(pl.col("trained_on") != pl.col("graded_on"))
    assert (foreign["log_loss_cost_low"] > 0).all()
    far, near = (
        foreign.filter(trained_on=a, graded_on="hard")["log_loss_cost"].item()
        for a in ("easy", "plain")
    )
    assert far > near
    # independently: fit on easy rows outside a fold, grade the hard rows inside it
    assert evaluation.predictions is not None
    rows = evaluation.predictions
    losses = []
    for code in range(5):
        train = rows.filter(pl.col("fold") != code, dataset="easy")
        test = rows.filter(pl.col("fold") == code, dataset="hard")
        fit = fit_logistic(
            train["qmax"].to_numpy(),
            train["position"].to_numpy().astype(int),
            train["accepted"].to_numpy(),
            5,
        )
        logit = fit.log_odds(test["qmax"].to_numpy(), test["position"].to_numpy())
        losses.append(log_loss(test["accepted"], expit(logit)) * len(test))
    mine = found.transfer.filter(trained_on="easy", graded_on="hard").row(0, named=True)
    assert mine["log_loss"] == pytest.approx(sum(losses) / mine["n"], abs=1e-8)


def test_more_labels_help_until_they_do_not(found: Stability, evaluation: Evaluation) -> None:
    table = found.learning
    assert table["rows_per_position"].is_sorted()
    assert table["log_loss"][0] > table["log_loss"][-1] + 0.005
    assert abs(table["log_loss"][-2] - table["log_loss"][-1]) < 0.003
    overall = evaluation.metrics.filter(scope="overall", predictor="logit_qmax")
    assert table["auc"][-1] == pytest.approx(overall["auc"].item(), abs=2e-3)


# --- several features


def test_what_says_nothing_new_gains_nothing(found: Stability) -> None:
    gains = dict(found.feature_sets.select("features", "log_loss_gain").rows())
    assert gains["logit_qmax"] == 0.0
    assert abs(gains["all before the draw"]) < 2e-3  # the truth is a function of logit_qmax
    drawn = found.feature_sets.filter(features="all and the draw").row(0, named=True)
    assert drawn["log_loss_gain_low"] > 0
    assert not drawn["lossless"]


def test_shares_of_the_achievable(found: Stability) -> None:
    shares = found.ceiling_share.filter(scope="overall")
    of = {row["predictor"]: row for row in shares.rows(named=True)}
    assert of["overlap"]["share_of_auc"] == 1.0
    assert of["overlap"]["share_of_log_loss"] == 1.0
    assert of["constant"]["share_of_auc"] == 0.0
    assert of["constant"]["share_of_log_loss"] == 0.0
    assert 0.4 < of["log_qmax"]["share_of_log_loss"] < of["logit_qmax"]["share_of_log_loss"] < 1.05
    assert of["accept_prob"]["share_of_log_loss"] > 1  # it sees the draw


# --- acceptance length and the second rank


@pytest.mark.slow
def test_the_acceptance_rate_falls_with_k_and_the_length_does_not(
    tmp_path: Path,
) -> None:
    for K in (4, 8):
        labels: list[Any] = [True, True, False] + [None] * (K - 3)
        others: list[Any] = [True] * 2 + [False] + [None] * (K - 3)
        rows = [proposal(i, labels if i % 2 else others, request=i % 4) for i in range(8)]
        write_log(tmp_path, rows, run=f"k{K}", num_speculative_tokens=K)
    found = stability(tmp_path, folds=2, blocks=2).acceptance_lengths
    overall = found.filter(pl.col("dataset").is_null()).sort("num_positions")
    assert overall["acceptance_length"].to_list() == [3.0, 3.0]
    assert overall["accepted_per_verified"].to_list() == [0.5, 0.25]
    assert overall["rate_compares_across_k"].to_list() == [False, False]


@pytest.mark.slow
def test_discarded_drafts_and_requests_without_drafts_are_counted_apart(tmp_path: Path) -> None:
    # 3 drafted and thrown away; 8 verified of which 6 accepted; a third request has no drafts
    thrown = proposal(0, [None] * 8, request=0, admitted=[False] * 8,
                      verify_step=np.ma.array(np.zeros(8, dtype=int), mask=[True] * 8))  # fmt: skip
    thrown = {name: column[:3] for name, column in thrown.items()}
    rows = [thrown] + [proposal(1 + i, [True] * 6 + [False, None], request=i % 2) for i in range(6)]
    run = write_log(tmp_path, rows, num_speculative_tokens=8)
    (part,) = (run / "requests").glob("part-*.parquet")
    requests = pl.read_parquet(part)
    requests = pl.concat([requests, requests.head(1).with_columns(request=pl.lit(9, pl.Int64))])
    requests.write_parquet(part)
    row = (
        stability(run, folds=2, blocks=2)
        .acceptance_lengths.filter(pl.col("dataset").is_null())
        .row(0, named=True)
    )
    assert row["accepted_per_verified"] == 36 / 48
    assert row["accepted_per_proposed"] == 36 / 51
    assert (row["n_requests"], row["requests_without_verdicts"]) == (2, 1)
    assert row["acceptance_length"] == row["acceptance_length_by_request"] == 7.0


@pytest.mark.slow
def test_the_second_rank_after_a_rejection(tmp_path: Path) -> None:
    ranks = [1, 1, 3, 2, 1, 1, 0, 1]
    rows = [proposal(i, [True, False], request=i % 4, target_rank_in_q=[0, rank])
            for i, rank in enumerate(ranks)]  # fmt: skip
    rows += [proposal(9, [False, None], request=1, target_rank_in_q=[2, 1])]
    table = stability(write_log(tmp_path, rows), folds=2, blocks=2).second_rank
    overall = table.filter(pl.col("dataset").is_null(), pl.col("position").is_null())
    assert overall.row(0)[5:8] == (9, 4, 5 / 9)  # run, pair, drafting, dataset, position first
    assert overall["second_rate_low"].item() < 5 / 9 < overall["second_rate_high"].item()
    by_position = table.filter(pl.col("position") == 1)
    assert by_position["second_rate"].item() == 5 / 8


def test_no_rank_no_table(found: Stability) -> None:
    assert found.second_rank.is_empty()


# --- drift


def test_synthetic_logs_do_not_drift(found: Stability) -> None:
    assert found.change["position"].to_list() == [None, 0, 1, 2, 3, 4]
    assert not found.change["changed"].any()


# --- the whole


@pytest.mark.slow
def test_it_writes_strict_json_and_is_deterministic(
    run: Path, found: Stability, evaluation: Evaluation, tmp_path: Path
) -> None:
    again = stability(run, evaluation=evaluation, out=tmp_path)
    for name in TABLES:
        assert_frame_equal(getattr(again, name), getattr(found, name), check_exact=True)
        assert (tmp_path / "stability" / f"{name}.parquet").exists()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    content = json.loads(
        (tmp_path / "stability" / "result.json").read_text(), parse_constant=refuse
    )
    assert content["command"] == "stability"


def test_bad_options_are_refused(run: Path) -> None:
    with pytest.raises(InputError, match="blocks must be at least 2"):
        stability(run, blocks=1)
