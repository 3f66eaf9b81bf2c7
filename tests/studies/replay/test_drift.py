"""Scenarios are built from whole proposals, and their recovery is measured."""

from __future__ import annotations

import itertools
import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from draftlab.errors import InputError
from draftlab.log.reader import open_log
from draftlab.online.smoothing import SMOOTHED, Smoother
from draftlab.reporting.replay_tables import mild_switches
from draftlab.studies.replay.drift import (
    Segment,
    build_scenario,
    default_scenario,
    drift,
    parse_scenario,
)
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab.log.reader import DraftLog


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    datasets = {"easy": 3.0, "hard": -1.5}
    folder = tmp_path_factory.mktemp("log")
    return synth_log(folder, num_requests=80, datasets=datasets, steps_per_request=30)


def test_a_scenario_is_parsed() -> None:
    parsed = parse_scenario("a@300 > b=3+c=1@20", repeat=2)
    assert (
        parsed
        == (
            Segment((("a", 1.0),), 300),
            Segment((("b", 3.0), ("c", 1.0)), 20),
        )
        * 2
    )
    assert [s.name for s in parsed[:2]] == ["a", "b=3+c"]


@pytest.mark.parametrize("text", ["", "a", "a@", "a@x", "a@0", "a@5 >", "a=x@5", "=2@5", "a=-1@5"])
def test_a_bad_scenario_is_named(text: str) -> None:
    with pytest.raises(InputError, match="scenario"):
        parse_scenario(text)


def test_a_scenario_takes_whole_proposals_in_the_logs_order(run: Path) -> None:
    log = open_log(run)
    scenario = parse_scenario("easy@7 > easy=3+hard=1@5")
    frame, _ = build_scenario(log.runs[0], scenario, ["logit_qmax"], 8)
    per_step = frame.filter(pl.col("position") == 0).group_by("step").len().sort("step")
    assert per_step["step"].to_list() == list(range(12))
    assert per_step["len"].unique().to_list() == [8]
    assert (frame["verify_step"] == frame["step"] + 1).all()
    # The first proposals of the scenario are the first of the log's easy requests.
    easy = log.requests.filter(pl.col("dataset") == "easy").select("request")
    first = (
        log.drafts.filter(pl.col("accepted").is_not_null())
        .join(easy, on="request", how="semi")
        .sort("step", "slot", "position")
        .select("logit_qmax")
        .head(5)
        .collect()
    )
    same = frame.filter(pl.col("step") == 0)["logit_qmax"].to_list()
    assert set(first["logit_qmax"].to_list()) <= set(same)


def test_a_workload_that_runs_out_begins_again(run: Path) -> None:
    log = open_log(run)
    frame, _ = build_scenario(log.runs[0], parse_scenario("easy@100"), ["logit_qmax"], 64)
    counts = frame.group_by("logit_qmax", "position", "accepted").len()["len"]
    assert counts.max() is not None
    assert frame.filter(pl.col("position") == 0).height == 6400


def test_an_unknown_workload_lists_the_known(run: Path) -> None:
    with pytest.raises(InputError, match="no workload 'medium'; known: easy, hard"):
        drift(run, parse_scenario("medium@10"))


def test_recovery_after_an_abrupt_switch(run: Path, tmp_path: Path) -> None:
    result = drift(
        run,
        "easy@200 > hard@200",
        estimators=("vllm", "step-limited", "running-rate"),
        refit_interval=20,
        proposals_per_step=16,
        out=tmp_path,
    )
    rows = {row["estimator"]: row for row in result.recovery.to_dicts()}
    assert set(rows) == {"vllm", "step-limited", "running-rate"}
    for row in rows.values():
        assert row["stale_log_loss"] > row["offline_log_loss"] + 0.3
        assert (row["switch_step"], row["before"], row["after"]) == (200, "easy", "hard")
        assert row["log_loss"] >= row["offline_log_loss"]
        assert 0 < row["offline_ece"] < rows["running-rate"]["ece"]
    # A floor that averages over all the past never comes near the new traffic's own fit.
    assert rows["running-rate"]["recovery_steps"] is None
    assert rows["step-limited"]["recovery_steps"] is not None
    assert rows["step-limited"]["recovery_steps"] >= 20
    assert rows["step-limited"]["cost_nats"] > 0
    written = pl.read_parquet(tmp_path / "drift" / "recovery.parquet")
    assert written.equals(result.recovery)
    assert json.loads((tmp_path / "drift" / "result.json").read_text())["settings"]


def foreign_cost(log: DraftLog, before: str, after: str) -> float:
    """Return what scikit-learn's fit to one workload costs on the other, in nats."""
    rows = (
        log.drafts.filter(pl.col("accepted").is_not_null())
        .join(log.requests.select("request", "dataset"), on="request")
        .select("dataset", "accepted", "position", pl.col("logit_qmax").cast(pl.Float64))
        .collect()
    )
    one_hot = [rows["position"] == k for k in range(5)]
    design = np.column_stack([rows["logit_qmax"], *one_hot]).astype(np.float64)
    y, dataset = rows["accepted"].to_numpy(), rows["dataset"].to_numpy()
    losses = []
    for name in (before, after):
        model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-8, max_iter=1000)
        model.fit(design[dataset == name], y[dataset == name])
        graded = dataset == after
        losses.append(log_loss(y[graded], model.predict_proba(design[graded])[:, 1]))
    return float(losses[0] - losses[1])


@pytest.mark.slow
def test_the_default_scenario_is_the_change_that_costs_most_and_back(tmp_path: Path) -> None:
    datasets = {"easy": 1.0, "plain": 0.2, "hard": -0.4}
    run = synth_log(tmp_path, num_requests=600, datasets=datasets)
    log = open_log(run)
    names = [segment.name for segment in default_scenario(run, steps=30)]
    costs = {pair: foreign_cost(log, *pair) for pair in itertools.permutations(datasets, 2)}
    before, after = max(costs, key=lambda pair: costs[pair])
    assert names == [before, after, before]
    result = drift(run, estimators="vllm", refit_interval=10, proposals_per_step=64)
    assert [segment.steps for segment in result.scenario] == [50, 50, 50]
    assert result.segments() == [(0, before), (50, after), (100, before)]
    assert result.recovery["switch_step"].to_list() == [50, 100]
    # the second segment's own fit and the fit to the first, graded there
    stale = result.recovery["stale_log_loss"][0] - result.recovery["offline_log_loss"][0]
    assert stale == pytest.approx(costs[before, after], rel=0.3)
    proposals = log.drafts.filter(pl.col("position") == 0, pl.col("accepted").is_not_null())
    each = proposals.select(pl.len()).collect().item() / 3
    assert result.settings["passes"] == pytest.approx({before: 6400 / each, after: 3200 / each})


def test_a_change_that_costs_nothing_is_called_mild(tmp_path: Path) -> None:
    alike = synth_log(tmp_path, num_requests=300, datasets={"a": 0.0, "b": 0.0})
    result = drift(
        alike, "a@180 > b@180", estimators="vllm", refit_interval=10, proposals_per_step=16
    )
    [sentence] = mild_switches(result)
    assert sentence.startswith("step 180, a > b: there is nothing to recover from")


def test_one_workload_is_no_scenario(small_run: Path) -> None:
    with pytest.raises(InputError, match="needs two workloads with labels, found 1"):
        default_scenario(small_run)


def test_a_scenario_keeps_the_smoothing_of_the_log(run: Path, tmp_path: Path) -> None:
    """Proposals are cut apart and mixed; each keeps the smoothed confidence that it had live."""
    shutil.copytree(run, tmp_path / "log")
    for part in (tmp_path / "log" / "drafts").glob("*.parquet"):
        drafts = pl.read_parquet(part)
        drafts.with_columns(confidence=pl.col("logit_qmax").clip(-9, 9)).write_parquet(part)
    [opened] = open_log(tmp_path / "log").runs
    features = ["confidence", SMOOTHED]
    frame, _ = build_scenario(opened, parse_scenario("easy@9 > hard@9"), features, 8)
    rows = opened.scan("drafts").sort("step", "slot", "position").collect()
    wanted = set(Smoother().add(rows).select("confidence", SMOOTHED).rows())
    assert set(frame.select("confidence", SMOOTHED).rows()) <= wanted
