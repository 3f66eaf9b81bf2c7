"""Grades by a column: against scikit-learn on rows that are joined by hand, and their labels."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal
from sklearn.metrics import log_loss, roc_auc_score

from draftlab.errors import InputError
from draftlab.grading.by import make_grouping
from draftlab.log.reader import open_log
from draftlab.studies.calibrate import calibrate
from draftlab.studies.compare import compare
from draftlab.studies.evaluate import Evaluation, evaluate
from draftlab.studies.replay.replay import replay
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from pathlib import Path

START = 1_795_975_200_000  # 2026-11-29T18:00:00Z
EXACT = 1e-12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose requests and steps differ."""
    folder = synth_log(
        tmp_path_factory.mktemp("by"), num_requests=90, datasets={"easy": 1.0, "hard": -0.5}
    )
    rng = np.random.default_rng(5)
    for path in (folder / "requests").glob("*.parquet"):
        rows = pl.read_parquet(path)
        tokens = rng.integers(1, 600, len(rows)).tolist()
        changed = rows.with_columns(
            temperature=pl.Series(rng.choice([0.6, 1.0], len(rows)), dtype=pl.Float32),
            prompt_tokens=pl.Series([None, *tokens[1:]], dtype=pl.Int32),
        )
        pq.write_table(changed.to_arrow(), path)
    for path in (folder / "steps").glob("*.parquet"):
        rows = pl.read_parquet(path).with_columns(unix_ms=START + 60_000 * pl.col("step"))
        pq.write_table(rows.to_arrow(), path)
    return folder


@pytest.fixture(scope="module")
def evaluation(run: Path) -> Evaluation:
    names = ["logit_qmax", "entropy"]
    return evaluate(run, predictors=names, keep_predictions=True, by="prompt_tokens:100,500")


def joined(run: Path, evaluation: Evaluation) -> pl.DataFrame:
    """Return the held-out predictions with the prompt tokens and the temperature, by hand."""
    drafts = pl.read_parquet(run / "drafts" / "*.parquet").select(
        "step", "slot", "position", "request", "admitted"
    )
    requests = pl.read_parquet(run / "requests" / "*.parquet").select(
        "request", "prompt_tokens", "temperature"
    )
    assert evaluation.predictions is not None
    rows = evaluation.predictions.join(drafts, on=["step", "slot", "position"], how="left")
    return rows.join(requests, on="request", how="left")


def auc_within_folds(rows: pl.DataFrame, name: str) -> float:
    """Return the mean of the AUCs within folds, weighted by their pairs."""
    found = []
    for _, part in rows.group_by("fold"):
        y = part["accepted"].to_numpy()
        if 0 < y.sum() < len(y):
            found.append((roc_auc_score(y, part[name].to_numpy()), y.sum() * (~y).sum()))
    values, weights = zip(*found, strict=True)
    return float(np.average(values, weights=weights))


def test_grades_by_value_are_those_of_the_rows_joined_by_hand(
    run: Path, evaluation: Evaluation
) -> None:
    rows = joined(run, evaluation)
    tokens = pl.col("prompt_tokens")
    groups = {
        "< 100": tokens < 100,
        "[100, 500)": (tokens >= 100) & (tokens < 500),
        ">= 500": tokens >= 500,
        "(unknown)": tokens.is_null(),
    }
    table = evaluation.metrics.filter(scope="by")
    assert table.filter(predictor="entropy")["by"].to_list() == list(groups)  # rising
    assert evaluation.metrics.filter(pl.col("scope") != "by")["by"].null_count() == len(
        evaluation.metrics
    ) - len(table)
    assert table["dataset"].null_count() == table["position"].null_count() == len(table)
    for name in ("logit_qmax", "entropy"):
        for value, where in groups.items():
            part = rows.filter(where)
            [row] = table.filter(predictor=name, by=value).to_dicts()
            y, logit = part["accepted"].to_numpy(), part[name].to_numpy()
            prob = 1 / (1 + np.exp(-logit))
            assert (row["n"], row["n_accepted"]) == (len(y), y.sum())
            assert row["n_prompts"] == part["group"].n_unique()
            assert row["log_loss"] == pytest.approx(log_loss(y, prob), abs=EXACT)
            assert row["mean_prediction"] == pytest.approx(prob.mean(), abs=EXACT)
            assert row["brier"] == pytest.approx(((prob - y) ** 2).mean(), abs=EXACT)
            assert row["auc"] == pytest.approx(auc_within_folds(part, name), abs=EXACT)
            if row["n_prompts"] > 2:
                assert row["auc_low"] < row["auc"] < row["auc_high"]
            bins = np.minimum((prob * 15).astype(int), 14)
            gaps = [abs((y - prob)[bins == b].sum()) for b in range(15)]
            assert row["ece"] == pytest.approx(sum(gaps) / len(y), abs=1e-9)


def test_by_dataset_is_the_scope_dataset(run: Path) -> None:
    metrics = evaluate(run, predictors=["logit_qmax"], by="dataset").metrics
    by = metrics.filter(scope="by").drop("scope", "dataset").rename({"by": "dataset"})
    dataset = metrics.filter(scope="dataset").drop("scope", "by")
    assert_frame_equal(by.select(dataset.columns), dataset, check_exact=True)


def test_nothing_else_moves(run: Path, evaluation: Evaluation) -> None:
    plain = evaluate(run, predictors=["logit_qmax", "entropy"], keep_predictions=True)
    assert plain.metrics["by"].null_count() == len(plain.metrics)
    for name, table in plain.tables.items():
        found = evaluation.tables[name]
        found = found.filter(pl.col("scope") != "by") if name == "metrics" else found
        assert_frame_equal(found, table, check_exact=True)


@pytest.mark.parametrize(
    ("by", "labels"),
    [
        ("temperature", ["0.6", "1"]),
        ("dataset", ["easy", "hard"]),
        ("prompt_tokens:100", ["< 100", ">= 100"]),
        ("num_speculative_tokens", ["5"]),
        ("closed", ["True"]),
        ("time:2026-11-29T18:30", ["< 2026-11-29T18:30:00", ">= 2026-11-29T18:30:00"]),
        (
            "time:2026-11-29T19,2026-11-29T20",
            [
                "< 2026-11-29T19:00:00",
                "[2026-11-29T19:00:00, 2026-11-29T20:00:00)",
                ">= 2026-11-29T20:00:00",
            ],
        ),
    ],
)
def test_labels_rise(by: str, labels: list[str], run: Path) -> None:
    [grouping] = make_grouping(by, open_log(run))
    assert list(grouping.labels) == [*labels, "(unknown)"]


def test_many_numbers_are_cut_at_quintiles_of_the_requests(run: Path) -> None:
    log = open_log(run)
    [grouping] = make_grouping("prompt_tokens", log)
    tokens = sorted(log.requests.collect()["prompt_tokens"].drop_nulls().to_list())
    starts = [tokens[math.floor((len(tokens) - 1) * q)] for q in (0.2, 0.4, 0.6, 0.8)]
    shown = [tokens[0], *starts]
    wanted = [f"[{a}, {b})" for a, b in itertools.pairwise(shown)]
    assert list(grouping.labels) == [*wanted, f"[{starts[-1]}, {tokens[-1]}]", "(unknown)"]
    rows = log.requests.select("run", "request", "prompt_tokens").collect()
    code = grouping.code(rows)
    for value, found in zip(rows["prompt_tokens"], code, strict=True):
        wanted_code = 5 if value is None else sum(value >= start for start in starts)
        assert found == wanted_code
    [of_steps] = make_grouping("time", log)
    assert len(of_steps.labels) == 6
    assert of_steps.labels[0].startswith("[2026-11-29T18:00:00, 2026-")


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("group", "group has 90 values, and at most 20 texts stand beside one another"),
        ("datset", r"--by datset: unknown column 'datset'; known: requests: request"),
        ("position", "position is a column of drafts"),
        ("dataset:3", "dataset is text, and edges cut numbers and times only"),
        ("prompt_tokens:5,x", "wanted COLUMN:EDGE,EDGE, got '5,x'"),
        ("prompt_tokens:", "wanted COLUMN:EDGE,EDGE, got ''"),
        ("prompt_tokens:5,5", "edges must rise"),
    ],
)
def test_what_cannot_be_grouped_by_is_refused(by: str, message: str, run: Path) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(run, predictors="constant", by=by)


def test_calibrators_are_graded_by_value(run: Path) -> None:
    found = calibrate(run, sources="qmax", methods="platt", by="dataset").metrics
    plain = calibrate(run, sources="qmax", methods="platt").metrics
    assert_frame_equal(found.filter(pl.col("by").is_null()), plain)
    rows = found.filter(pl.col("by").is_not_null(), method="platt", per_position=False)
    assert rows["by"].to_list() == ["easy", "hard"]
    whole = plain.filter(
        pl.col("position").is_null(), method="platt", per_position=False, view="conditional"
    )
    assert rows["n"].sum() == whole["n"].item()
    weighted = np.average(rows["log_loss"].to_numpy(), weights=rows["n"].to_numpy())
    assert weighted == pytest.approx(whole["log_loss"].item(), abs=EXACT)


def test_estimators_are_graded_by_value(run: Path) -> None:
    options: dict[str, Any] = {"refit_interval": 5, "window": 10, "estimators": "vllm"}
    found = replay(run, by="temperature", **options)
    plain = replay(run, **options)
    assert len(plain.groups) == 0
    for name, table in plain.tables.items():
        if name != "groups":
            assert_frame_equal(found.tables[name], table, check_exact=True)
    for estimator in ("vllm", "offline"):
        rows = found.groups.filter(estimator=estimator)
        assert rows["by"].to_list() == ["0.6", "1"]
        whole = plain.summary.filter(estimator=estimator)
        assert rows["n"].sum() == whole["n"].item()
        weighted = np.average(rows["log_loss"].to_numpy(), weights=rows["n"].to_numpy())
        assert weighted == pytest.approx(whole["log_loss"].item(), abs=EXACT)
    # one value for all rows: the numbers of the whole run
    same = replay(run, by="engine", **options)
    columns = ["estimator", "n", "log_loss", "brier", "ece", "auc"]
    assert_frame_equal(same.groups.select(columns), plain.summary.select(columns))
    steps = replay(run, by="time:2026-11-29T18:30", **options)
    early = pl.read_parquet(run / "drafts" / "*.parquet").filter(
        pl.col("accepted").is_not_null(), pl.col("step") < 30, pl.col("excluded") == 0
    )
    assert steps.groups.filter(estimator="vllm")["n"][0] == len(early)


@pytest.mark.slow
def test_differences_are_taken_by_value(run: Path, tmp_path: Path) -> None:
    other = synth_log(tmp_path, num_requests=60, datasets={"easy": 0.5, "hard": 0.0}, seed=3)
    found = compare(run, other, by="dataset").predictors
    plain = compare(run, other).predictors
    assert_frame_equal(found.filter(pl.col("by").is_null()), plain)
    rows = found.filter(predictor="logit_qmax", metric="log_loss").drop_nulls("by")
    assert rows["by"].to_list() == ["easy", "hard"]
    # by hand: the held-out predictions of both logs on the prompts that both have
    evaluations = [evaluate(log, keep_predictions=True) for log in (run, other)]
    held_out = [evaluation.tables["predictions"] for evaluation in evaluations]
    keys = ["dataset", "group"]
    for row in rows.to_dicts():
        for side, mine, theirs in zip("ab", held_out, held_out[::-1], strict=True):
            part = mine.filter(dataset=row["by"]).join(theirs.select(keys), on=keys, how="semi")
            y, logit = part["accepted"].to_numpy(), part["logit_qmax"].to_numpy()
            assert row[f"n_{side}"] == len(part)
            assert row[side] == pytest.approx(log_loss(y, 1 / (1 + np.exp(-logit))), abs=EXACT)
        assert row["difference"] == pytest.approx(row["a"] - row["b"])
        assert row["low"] < row["difference"] < row["high"]
