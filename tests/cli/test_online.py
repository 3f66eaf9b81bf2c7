"""`replay`, `sweep` and `drift` as a user meets them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.command import Outcome


def test_replay_prints_its_estimators(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("replay", log, "--refit-interval", 10, "--window", 10, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    for name in ("vllm", "step-limited", "running-rate", "offline"):
        assert name in found.out
    written = pl.read_parquet(tmp_path / "out" / "replay" / "coefficients.parquet")
    assert {"estimator", "refit", "slope", "intercept", "overshoot"} <= set(written.columns)
    summary = json.loads(call("replay", log, "--json", "--estimator", "vllm").out)["summary"]
    assert [row["estimator"] for row in summary] == ["vllm", "offline"]


def test_drift_runs_a_scenario(call: Callable[..., Outcome], log: Path) -> None:
    scenario = ("--scenario", "even@40 > odd@40", "--proposals-per-step", 8)
    found = call("drift", log, *scenario, "--refit-interval", 5)
    assert found.code == 0, found.err
    assert "recovery" in found.out
    assert call("drift", log, "--scenario", "even").code == 2
    assert call("replay", log, "--estimator", "vlm").code == 2


def test_drift_runs_the_default_scenario(call: Callable[..., Outcome], log: Path) -> None:
    found = call("drift", log, "--refit-interval", 5)
    assert found.code == 0, found.err
    assert found.out.count("even") >= 2
    content = json.loads(call("drift", log, "--scenario", "even@9 > odd@9", "--json").out)
    assert content["settings"]["scenario"] == "even@9 > odd@9"


def test_sweep_replays_every_combination(call: Callable[..., Outcome], log: Path) -> None:
    grid = ("--grid", "refit-interval=5,20", "--grid", "damping=0,50", "--processes", 1)
    rows = json.loads(call("sweep", log, *grid, "--json").out)["combinations"]
    assert [(r["refit_interval"], r["damping"]) for r in rows] == [
        (5, 0), (5, 50), (20, 0), (20, 50),
    ]  # fmt: skip
    assert call("sweep", log, "--grid", "speed=3").code == 2


@pytest.mark.slow
def test_sweep_takes_words_after_one_option_and_draws_them(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("sweep", log, "--grid", "refit-interval=5", "decay=0.5,1", "--out", tmp_path)
    assert found.code == 0, found.err
    assert "exp-decay, by the constants swept" in found.out
    assert (tmp_path / "sweep" / "sweep.svg").read_text().startswith("<svg xmlns=")
    assert pl.read_parquet(tmp_path / "sweep" / "combinations.parquet").height == 2
