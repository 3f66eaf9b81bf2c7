"""vLLM's estimator against what vLLM's own kernels recorded, and by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest

from draftlab.online.estimator import Labels
from draftlab.online.vllm import (
    EARLY,
    Constants,
    MarginEstimator,
    VllmEstimator,
    from_snapshot,
    stored_feature,
)
from tests.paths import GOLDEN

SCENARIOS: dict[str, Any] = json.loads((GOLDEN / "constants.json").read_text())
# The recorded state is float32: the bounds are those that the recording's README measured.
COEFFICIENTS = {"h_separable": 1e-4}
PREDICTIONS = 1e-6


def labels(feature: Any, position: Any, logit: Any, accepted: Any, step: Any = None) -> Labels:
    n = len(feature)
    return Labels(
        np.asarray(feature, dtype=np.float64),
        np.asarray(position, dtype=np.int64),
        np.asarray(logit, dtype=np.float64),
        np.asarray(accepted, dtype=bool),
        np.zeros(n, dtype=np.int64) if step is None else np.asarray(step),
    )


def step_by_step(name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Drive the estimator as the engine does: fold, refit, predict, one step after the other."""
    settings = SCENARIOS[name]
    drafts = pl.read_parquet(GOLDEN / f"{name}.drafts.parquet").with_row_index()
    constants = Constants(settings["refit_interval"], settings["damping"], settings["ridge"])
    estimator = VllmEstimator(settings["num_positions"], constants)
    logit = np.full(drafts.height, np.nan)
    feature = drafts["feature"].to_numpy().astype(np.float64)
    rows = []
    for step in range(settings["num_steps"]):
        graded = drafts.filter((pl.col("verify_step") == step) & pl.col("labelled"))
        index = graded["index"].to_numpy()
        position = graded["position"].to_numpy()
        accepted = graded["accepted"].to_numpy()
        estimator.learn(labels(feature[index], position, logit[index], accepted))
        if (step + 1) % estimator.refit_interval == 0:
            refit = estimator.refit()
            rows.append([step, estimator.slope, *estimator.intercepts, *refit.counts])
        made = drafts.filter(pl.col("step") == step)
        index = made["index"].to_numpy()
        k = made["position"].to_numpy()
        logit[index] = estimator.slopes[k] * feature[index] + estimator.intercepts[k]
    K = settings["num_positions"]
    names = ["step", "slope", *(f"intercept_{k}" for k in range(K))]
    names += [f"count_{k}" for k in range(K)]
    coefficients = pl.DataFrame(rows, schema=names, orient="row")
    return coefficients, drafts.with_columns(pl.Series("logit", logit))


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_golden_scenario(name: str) -> None:
    ours, drafts = step_by_step(name)
    theirs = pl.read_parquet(GOLDEN / f"{name}.coefs.parquet").filter(pl.col("refit") > 0)
    assert ours["step"].to_list() == theirs["step"].to_list()
    for column in ours.columns[1:]:
        bound = 0 if column.startswith("count") else COEFFICIENTS.get(name, 1e-5)
        difference = np.abs(ours[column].to_numpy() - theirs[column].to_numpy())
        assert difference.max() <= bound, column
    predicted = 1 / (1 + np.exp(-drafts["logit"].to_numpy()))
    recorded = drafts["prediction"].to_numpy()
    # h_separable drifts by the bound on its coefficients times features of up to ten
    bound = 1e-5 if name in COEFFICIENTS else 5e-6 if name == "f_extremes" else PREDICTIONS
    assert np.abs(predicted - recorded).max() <= bound


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_golden_predictions_from_the_recorded_coefficients(name: str) -> None:
    drafts = pl.read_parquet(GOLDEN / f"{name}.drafts.parquet")
    coefs = pl.read_parquet(GOLDEN / f"{name}.coefs.parquet")
    epoch = np.searchsorted(coefs["step"].to_numpy(), drafts["step"].to_numpy(), "right") - 1
    K = SCENARIOS[name]["num_positions"]
    table = coefs.select(f"intercept_{k}" for k in range(K)).to_numpy().astype(np.float64)
    logit = coefs["slope"].to_numpy().astype(np.float64)[epoch] * drafts["feature"].to_numpy()
    logit += table[epoch, drafts["position"].to_numpy()]
    assert np.abs(1 / (1 + np.exp(-logit)) - drafts["prediction"].to_numpy()).max() <= PREDICTIONS


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_golden_features_from_exact_log_odds(name: str) -> None:
    """The float32 sum is off by up to 8 units in the last place: |df| < 1e-6 (1 + e^f)."""
    drafts = pl.read_parquet(GOLDEN / f"{name}.drafts.parquet").filter(pl.col("qmax") < 1 - 1e-6)
    qmax = drafts["qmax"].to_numpy()
    exact = np.log(qmax) - np.log1p(-qmax)
    recorded = drafts["feature"].to_numpy()
    for float32 in (False, True):
        ours = stored_feature(exact, float32=float32)
        assert (np.abs(ours - recorded) <= 1e-6 * (1 + np.exp(exact)) + 1e-5).all()


def test_one_round_by_hand() -> None:
    estimator = VllmEstimator(2, Constants(start_slope=0.0, start_intercept=1.5))
    estimator.learn(labels([2.0, 1.0, 0.5], [0, 1, 0], [1.5] * 3, [True, False, False]))
    estimator.refit()
    assert estimator.slope == pytest.approx(0.2450938, abs=5e-8)
    assert estimator.intercepts == pytest.approx([1.4066343, 1.3884580], abs=5e-8)


def test_a_step_to_a_negative_slope_is_refused_and_intercepts_still_move() -> None:
    estimator = VllmEstimator(1, EARLY)
    estimator.learn(labels([3.0, 1.0], [0, 0], [1.5, 1.5], [False, True]))
    refit = estimator.refit()
    assert refit.refused == "negative"
    assert estimator.slope == 0
    assert estimator.intercepts[0] == pytest.approx(1.4184, abs=5e-5)


def test_a_round_without_labels_changes_nothing() -> None:
    estimator = VllmEstimator(3)
    before = estimator.intercepts.copy()
    refit = estimator.refit()
    assert estimator.slope == 0.5
    assert (estimator.intercepts == before).all()
    assert refit.counts.sum() == 0
    assert not refit.overshoot


def test_labels_count_with_the_prediction_of_draft_time() -> None:
    """The same label, predicted before a refit, moves the estimator otherwise than after it."""
    outcomes = []
    for logit in (0.0, 3.0):
        estimator = VllmEstimator(1)
        estimator.learn(labels([1.0] * 200, [0] * 200, [logit] * 200, [True, False] * 100))
        estimator.refit()
        outcomes.append(float(estimator.intercepts[0]))
    assert outcomes[0] > outcomes[1]


@pytest.mark.parametrize(("log_odds", "stored"), [(15.942, 15.942385), (17.0, 40.0), (20.0, 40.0)])
def test_float32_features_jump_to_the_limit(log_odds: float, stored: float) -> None:
    found = stored_feature(np.array([log_odds]), float32=True)[0]
    assert found == pytest.approx(stored, abs=1e-5)
    assert stored_feature(np.array([log_odds]))[0] == log_odds


def test_stored_features_are_clipped_and_null_counts_as_the_limit() -> None:
    raw = np.array([np.inf, -np.inf, 55.0, np.nan])
    assert stored_feature(raw).tolist() == [40, -40, 40, 40]


def test_a_snapshot_continues_where_it_was_taken() -> None:
    generator = np.random.default_rng(0)
    whole, first = VllmEstimator(2), VllmEstimator(2)
    batches = [
        labels(
            generator.normal(size=60),
            generator.integers(0, 2, 60),
            generator.normal(size=60),
            generator.random(60) < 0.6,
        )
        for _ in range(2)
    ]
    for batch in batches:
        whole.learn(batch)
    first.learn(batches[0])
    snapshot = {
        "slope": first.slope,
        "intercepts": first.intercepts.tolist(),
        "info": first.statistics.information.T.tolist(),
        "grad": first.statistics.gradient.T.tolist(),
        "counts": first.statistics.counts.tolist(),
        "steps_since_refit": 1,
    }
    second, steps = from_snapshot(json.loads(json.dumps(snapshot)), 2)
    second.learn(batches[1])
    whole.refit()
    second.refit()
    assert steps == 1
    assert second.slope == pytest.approx(whole.slope, abs=1e-15)
    assert second.intercepts == pytest.approx(whole.intercepts, abs=1e-15)
    with pytest.raises(ValueError, match="2 intercepts, the run 3"):
        from_snapshot(snapshot, 3)


def test_the_margin_variant_skips_thin_positions() -> None:
    generator = np.random.default_rng(1)
    estimator = MarginEstimator(2)
    feature = generator.gamma(2.0, size=400)
    truth = 1 / (1 + np.exp(-(1.2 * feature - 0.5)))
    accepted = generator.random(400) < truth
    for _ in range(30):
        logit = estimator.slopes[0] * feature + estimator.intercepts[0]
        estimator.learn(labels(feature, [0] * 400, logit, accepted))
        estimator.learn(labels([1.0] * 49, [1] * 49, [1.5] * 49, [False] * 49))
        estimator.refit()
    assert estimator.slopes[1] == 0
    assert estimator.intercepts[1] == 1.5
    prob = 1 / (1 + np.exp(-(estimator.slopes[0] * feature + estimator.intercepts[0])))
    # At the optimum the score equations hold.
    assert abs((accepted - prob).sum()) < 1e-2
    assert abs(((accepted - prob) * feature).sum()) < 1e-2
