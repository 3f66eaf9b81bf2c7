"""The replay's figures draw what the replay holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from rich.console import Console

from draftlab.online.vllm import Constants
from draftlab.replaying import Replay, Settings, replay
from draftlab.reporting.replays import (
    REPLAY_DRAWINGS,
    plot_rolling,
    plot_trajectory,
    print_replay,
)
from draftlab.reporting.style import to_svg
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    run = synth_log(tmp_path_factory.mktemp("log"), num_requests=80)
    settings = Settings(("vllm", "running-rate"), constants=Constants(refit_interval=10), window=10)
    return replay(run, settings=settings)


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


def test_without_the_offline_fit_the_loss_itself_is_drawn(replayed: Replay, tmp_path: Path) -> None:
    run = synth_log(tmp_path, num_requests=40)
    alone = replay(run, settings=Settings(("vllm",), offline=False))
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
