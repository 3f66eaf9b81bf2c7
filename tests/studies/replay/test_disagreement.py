"""Sibling runs of a deployment: copies agree to the last bit, replicas part and say by how much."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from draftlab.log.reader import open_any
from draftlab.online.vllm import Constants
from draftlab.studies.replay.replay import Replay, ReplaySettings, replay_runs
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = ReplaySettings(
    ("vllm", "step-limited"), constants=Constants(refit_interval=20), window=20
)


def deploy(run: Path, deployment: str | None, name: str | None = None) -> None:
    """Say in run.json what a run belongs to."""
    path = run / "run.json"
    content = json.loads(path.read_text()) | {"deployment": deployment}
    path.write_text(json.dumps(content | ({"run": name} if name else {})))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold two replicas, a copy of the first, and a run of something else."""
    folder = tmp_path_factory.mktemp("log")
    for seed, deployment in ((0, "A"), (1, "A"), (2, None)):
        deploy(synth_log(folder, num_requests=60, seed=seed), deployment)
    shutil.copytree(folder / "synthetic-0", folder / "synthetic-0-rank-1")
    deploy(folder / "synthetic-0-rank-1", "A", "synthetic-0-rank-1")
    return folder


@pytest.fixture(scope="module")
def replayed(log: Path) -> Replay:
    return replay_runs(open_any(log), SETTINGS)


def test_a_copy_agrees_to_the_last_bit(replayed: Replay) -> None:
    copies = replayed.disagreement.filter(run_a="synthetic-0", run_b="synthetic-0-rank-1")
    assert copies["estimator"].to_list() == ["vllm", "step-limited"]
    assert copies["identical"].all()
    assert copies["same_counts"].all()
    assert copies["parted_refit"].null_count() == 2
    assert copies["max_logit_difference"].to_list() == [0, 0]
    assert any("ranks agree to the last bit" in note for note in map(str, replayed.notes))


def test_replicas_part_by_what_their_coefficients_say(replayed: Replay, log: Path) -> None:
    row = replayed.disagreement.filter(
        run_a="synthetic-0", run_b="synthetic-1", estimator="vllm"
    ).row(0, named=True)
    assert not row["identical"]
    assert not row["same_counts"]
    assert (row["parted_refit"], row["parted_step"]) == (1, 19)
    drafts = pl.read_parquet(log / "synthetic-0" / "drafts" / "*.parquet")
    labelled = drafts.filter(pl.col("accepted").is_not_null())["logit_qmax"]
    grid = np.quantile(labelled.cast(pl.Float64).clip(-40, 40), np.arange(1, 10) / 10)
    own, other = (
        replayed.coefficients.filter(run=run, estimator="vllm").sort("refit", "position")
        for run in ("synthetic-0", "synthetic-1")
    )
    logits = [t["slope"].to_numpy()[:, None] * grid + t["intercept"].to_numpy()[:, None]
              for t in (own, other)]  # fmt: skip
    apart = np.abs(logits[0] - logits[1])
    prob = [1 / (1 + np.exp(-z)) for z in logits]
    assert row["n_refits"] == own["refit"].max()
    assert row["max_logit_difference"] == pytest.approx(apart.max())
    assert row["mean_logit_difference"] == pytest.approx(apart.mean())
    assert row["max_probability_difference"] == pytest.approx(np.abs(prob[0] - prob[1]).max())
    assert any("replicas of different traffic" in note for note in map(str, replayed.notes))


def test_only_runs_of_one_deployment_are_compared(replayed: Replay, small_run: Path) -> None:
    pairs = set(replayed.disagreement.select("run_a", "run_b").rows())
    assert len(pairs) == 3
    assert not any("synthetic-2" in pair for pair in pairs)
    single = replay_runs(open_any(small_run), SETTINGS)
    assert len(single.disagreement) == 0


def test_ranks_that_part_are_named_with_the_step(log: Path, tmp_path: Path) -> None:
    """One label of the copy is another: as many labels in each round, other coefficients."""
    shutil.copytree(log / "synthetic-0", tmp_path / "a")
    shutil.copytree(log / "synthetic-0", tmp_path / "b")
    deploy(tmp_path / "b", "A", "rank-1")
    [part] = (tmp_path / "b" / "drafts").glob("*.parquet")
    drafts = pl.read_parquet(part)
    one = (pl.col("step") == 45) & (pl.col("slot") == 3) & (pl.col("position") == 0)
    feature = pl.when(one).then(pl.col("logit_qmax") + 1).otherwise("logit_qmax")
    drafts.with_columns(logit_qmax=feature.cast(pl.Float32)).write_parquet(part)
    result = replay_runs(open_any([tmp_path / "a", tmp_path / "b"]), SETTINGS)
    row = result.disagreement.row(0, named=True)
    assert row["same_counts"]
    assert not row["identical"]
    assert (row["parted_refit"], row["parted_step"]) == (3, 59)
    assert any(
        "they learn from as many labels, as ranks do, but differ from refit 3 at step 59 on" in note
        for note in map(str, result.notes)
    )
