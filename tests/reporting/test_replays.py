"""The replay's figures draw what the replay holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from draftlab.log.reader import open_any
from draftlab.online.vllm import Constants
from draftlab.reporting.console.replay import print_drift, print_replay
from draftlab.reporting.figures.replay import (
    DRIFT_DRAWINGS,
    REPLAY_DRAWINGS,
    plot_drift_ece,
    plot_drift_loss,
    plot_drift_trajectory,
    plot_rolling,
    plot_trajectory,
)
from draftlab.reporting.figures.style import to_svg
from draftlab.reporting.replay_tables import recovery_table
from draftlab.studies.replay.drift import Drift, drift
from draftlab.studies.replay.replay import Replay, ReplaySettings, replay_runs
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def replayed(small_run: Path) -> Replay:
    settings = ReplaySettings(
        ("vllm", "running-rate"), constants=Constants(refit_interval=10), window=10
    )
    return replay_runs(open_any(small_run), settings)


def test_the_trajectory_is_the_table_of_coefficients(replayed: Replay) -> None:
    _, table = plot_trajectory(replayed)
    wanted = replayed.coefficients.filter(estimator="vllm")
    assert table["slope"].equals(wanted["slope"])
    assert table["intercept"].equals(wanted["intercept"])


def test_the_rolling_figure_holds_every_window(replayed: Replay) -> None:
    _, table = plot_rolling(replayed)
    wanted = replayed.metrics.filter(pl.col("window").is_not_null())
    assert table.height == wanted.height
    assert table["regret"].equals(wanted["regret"])


def test_without_the_offline_fit_the_loss_itself_is_drawn(small_run: Path) -> None:
    alone = replay_runs(open_any(small_run), ReplaySettings(("vllm",), offline=False))
    figure, _ = plot_rolling(alone)
    assert figure.axes[0].get_ylabel() == "log-loss, nats"


def test_figures_are_deterministic_svg_with_text(replayed: Replay) -> None:
    for drawing in REPLAY_DRAWINGS:
        texts = []
        for _ in range(2):
            figure, table = drawing.plot(replayed)
            texts.append(to_svg(figure, drawing.name, drawing.title, drawing.alt(table)))
        assert texts[0] == texts[1]
        assert "mathdefault" not in texts[0]
        assert drawing.caption(table)


def test_printing_names_what_is_not_the_default(
    replayed: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    print_replay(replayed, Console(width=120))
    out = capsys.readouterr().out
    assert "not vLLM's default of 100" in " ".join(out.split())
    assert "running-rate" in out


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory) -> Drift:
    """Nearly everything is accepted, then hardly anything: the shipped rule leaves the data."""
    folder = tmp_path_factory.mktemp("drift")
    run = synth_log(folder, num_requests=80, datasets={"easy": 8.0, "hard": -1.0})
    names = ("vllm", "step-limited")
    return drift(run, estimators=names, refit_interval=20, proposals_per_step=16)


def test_drift_figures_mark_the_switches(drifted: Drift) -> None:
    for plot in (plot_drift_trajectory, plot_drift_loss, plot_drift_ece):
        figure, _ = plot(drifted)
        for axes in figure.axes:
            drawn = [np.asarray(line.get_xdata()) for line in axes.lines]
            assert {100, 200} <= {x[0] for x in drawn if len(x) == 2}
        assert [text.get_text() for text in figure.axes[0].texts] == ["easy", "hard", "easy"]


def test_drift_figures_hold_the_windows_of_the_scenario(drifted: Drift) -> None:
    for plot in (plot_drift_loss, plot_drift_ece):
        _, table = plot(drifted)
        assert table["first_step"].max() == 290
        assert set(table["estimator"]) == {"vllm", "step-limited", "offline"}
    _, table = plot_drift_trajectory(drifted)
    wanted = drifted.coefficients.filter(estimator="vllm")
    assert table["intercept"].equals(wanted["intercept"])
    assert table["overshoot"].any()


@pytest.mark.slow
def test_drift_figures_are_deterministic_and_described(drifted: Drift) -> None:
    for drawing in DRIFT_DRAWINGS:
        texts = []
        for _ in range(2):
            figure, table = drawing.plot(drifted)
            texts.append(to_svg(figure, drawing.name, drawing.title, drawing.alt(table)))
            assert drawing.caption(table)
        assert texts[0] == texts[1]


def test_the_recovery_table_says_what_did_not_recover(
    drifted: Drift, capsys: pytest.CaptureFixture[str]
) -> None:
    table = recovery_table(drifted)
    assert table.select("switch_step", "change", "estimator").rows() == [
        (100, "easy > hard", "vllm"), (100, "easy > hard", "step-limited"),
        (200, "hard > easy", "vllm"), (200, "hard > easy", "step-limited"),
    ]  # fmt: skip
    row = table.row(0, named=True)
    assert row["recovery_steps"] == "not before the next"
    assert row["overshoots"] > 0
    assert row["excess"] > 1
    print_drift(drifted, Console(width=120))
    out = " ".join(capsys.readouterr().out.split())
    assert "easy@100 > hard@100 > easy@100, 16 proposals per step" in out
    assert "never moved: the excess of a model that keeps its old coefficients" in out
    assert "moved a coefficient by more than" in out
