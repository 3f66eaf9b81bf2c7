"""What must hold on the sample logs that come with the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from draftlab import evaluate, open_log
from draftlab.engine.prompts import SUITES
from draftlab.features import FEATURES
from draftlab.log.checks import run_checks
from draftlab.log.summary import proposals
from tests.paths import SAMPLE, SAMPLE_T1

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab.studies.evaluate import Evaluation

pytestmark = pytest.mark.slow  # evaluates the 62,000 rows of the sample twice

MONOTONE = ("log_qmax", "loglog_qmax", "logit_qmax")


@pytest.fixture(scope="module")
def in_sample() -> Evaluation:
    return evaluate(SAMPLE, in_sample=True, keep_predictions=True)


@pytest.fixture(scope="module")
def cross_fitted() -> Evaluation:
    return evaluate(SAMPLE)


def test_the_sample_is_large_enough_and_small_on_disk() -> None:
    log = open_log(SAMPLE)
    assert [f for f in run_checks(log) if f.severity != "note"] == []
    assert log.steps.select(pl.len()).collect().item() >= 1000
    eligible = log.drafts.filter(pl.col("accepted").is_not_null() & (pl.col("excluded") == 0))
    assert eligible.select(pl.len()).collect().item() >= 60_000
    assert set(log.requests.collect()["dataset"]) == set(SUITES)
    assert sum(p.stat().st_size for p in SAMPLE.rglob("*") if p.is_file()) < 10e6
    meta = log.runs[0].metadata
    assert (meta["num_speculative_tokens"], meta["drafting"]) == (5, "probabilistic")
    assert meta["provenance"]["settings"]["concurrency"] == 64


def test_the_second_pair_is_at_temperature_one() -> None:
    log = open_log(SAMPLE_T1)
    assert [f for f in run_checks(log) if f.severity != "note"] == []
    assert log.requests.collect()["temperature"].unique().to_list() == [1.0]
    assert log.runs[0].metadata["drafter"] == "skip {13,25}"


@pytest.mark.parametrize("sample", [SAMPLE, SAMPLE_T1])
def test_acceptance_lengths_add_up_to_the_tokens_that_were_emitted(sample: Path) -> None:
    log = open_log(sample)
    of_drafts = proposals(log).select(pl.col("acceptance_length").sum()).collect().item()
    first = log.requests.select(pl.len()).collect().item()  # each has one before its first draft
    assert of_drafts + first == log.steps.select(pl.col("num_emitted").sum()).collect().item()


def test_in_sample_metrics_equal_scikit_learns(in_sample: Evaluation) -> None:
    predictions = in_sample.predictions
    assert predictions is not None
    y = predictions["accepted"].to_numpy()
    rows = in_sample.metrics.filter(scope="overall", view="conditional")
    for row in rows.to_dicts():
        logit = predictions[row["predictor"]].to_numpy()
        assert row["auc"] == pytest.approx(roc_auc_score(y, logit), abs=1e-12)
        if row["fitted"]:
            assert row["log_loss"] == pytest.approx(log_loss(y, expit(logit)), abs=1e-12)


def test_coefficients_equal_an_unpenalised_fit_with_one_hot_positions(
    in_sample: Evaluation,
) -> None:
    log = open_log(SAMPLE)
    drafts = log.drafts.filter(pl.col("accepted").is_not_null() & (pl.col("excluded") == 0))
    rows = drafts.select(
        "position", "accepted", *(f.expr.alias(name) for name, f in FEATURES.items())
    ).collect()
    hot = np.eye(5)[rows["position"].to_numpy()]
    whole = pl.col("fold").is_null() & pl.col("dataset").is_null()
    for name in ("logit_qmax", "entropy"):
        model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-12, max_iter=10_000)
        model.fit(np.hstack([rows[name].to_numpy()[:, None], hot]), rows["accepted"].to_numpy())
        ours = in_sample.coefficients.filter(whole, predictor=name).sort("position")
        assert ours["slope"].to_numpy() == pytest.approx(model.coef_[0, 0], abs=1e-6)
        assert ours["intercept"].to_numpy() == pytest.approx(model.coef_[0, 1:], abs=1e-6)


@pytest.mark.parametrize("style", ["in_sample", "cross_fitted"])
def test_monotone_features_agree_by_position_and_not_overall(
    style: str, request: pytest.FixtureRequest
) -> None:
    metrics = request.getfixturevalue(style).metrics.filter(
        pl.col("predictor").is_in(MONOTONE), view="conditional"
    )
    for _, rows in metrics.filter(scope="position").group_by("position"):
        assert rows["auc"].n_unique() == 1
    assert metrics.filter(scope="overall")["auc"].n_unique() == 3


def test_the_constant_floor_is_exactly_a_half(cross_fitted: Evaluation) -> None:
    rows = cross_fitted.metrics.filter(
        pl.col("scope").is_in(["overall", "without_first", "position"]),
        predictor="constant",
        view="conditional",
    )
    assert rows["auc"].unique().to_list() == [0.5]


def test_the_ceiling_is_calibrated_and_no_lossless_predictor_lies_above_it(
    cross_fitted: Evaluation,
) -> None:
    rows = cross_fitted.metrics.filter(scope="overall", view="conditional")
    overlap = rows.filter(predictor="overlap").row(0, named=True)
    assert overlap["ece"] < 0.01
    others = rows.filter(pl.col("lossless") & (pl.col("predictor") != "overlap"))
    assert (others["auc"] < overlap["auc"]).all()
    assert (others["log_loss"] > overlap["log_loss"]).all()
    assert rows.filter(predictor="accept_prob")["auc"].item() > overlap["auc"]
