"""`replay` as a user meets it: estimators, scenarios, sweeps."""

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


def test_replay_runs_a_scenario(call: Callable[..., Outcome], log: Path) -> None:
    scenario = ("--scenario", "even@40 > odd@40", "--proposals-per-step", 8)
    found = call("replay", log, *scenario, "--refit-interval", 5)
    assert found.code == 0, found.err
    assert "recovery" in found.out
    assert call("replay", log, "--scenario", "even").code == 2
    assert call("replay", log, "--estimator", "vlm").code == 2


@pytest.mark.slow
def test_replay_sweeps(call: Callable[..., Outcome], log: Path) -> None:
    sweep = ("--sweep", "refit-interval=5,20", "--sweep", "damping=0,50")
    rows = json.loads(call("replay", log, *sweep, "--json").out)["sweep"]
    assert [(r["refit_interval"], r["damping"]) for r in rows] == [
        (5, 0), (5, 50), (20, 0), (20, 50),
    ]  # fmt: skip
    assert call("replay", log, "--sweep", "speed=3").code == 2


@pytest.mark.slow
def test_replay_sweeps_words_after_one_option_and_draws_them(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("replay", log, "--sweep", "refit-interval=5", "decay=0.5,1", "--out", tmp_path)
    assert found.code == 0, found.err
    assert "exp-decay, by the constants swept" in found.out
    assert (tmp_path / "replay" / "sweep.svg").read_text().startswith("<svg xmlns=")
    assert pl.read_parquet(tmp_path / "replay" / "sweep.parquet").height == 2


def test_replay_runs_the_default_scenario(call: Callable[..., Outcome], log: Path) -> None:
    found = call("replay", log, "--scenario", "default", "--refit-interval", 5)
    assert found.code == 0, found.err
    assert found.out.count("even") >= 2
    content = json.loads(call("replay", log, "--scenario", "even@9 > odd@9", "--json").out)
    assert content["settings"]["scenario"] == "even@9 > odd@9"
