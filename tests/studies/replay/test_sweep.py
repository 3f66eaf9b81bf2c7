"""A sweep is a replay for each combination of constants, in this process or in others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from draftlab.errors import InputError
from draftlab.log.reader import open_any
from draftlab.studies.replay.replay import ReplaySettings, replay, replay_runs
from draftlab.studies.replay.sweep import parse_grid, sweep
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    datasets = {"easy": 3.0, "hard": -1.5}
    return synth_log(tmp_path_factory.mktemp("log"), num_requests=60, datasets=datasets)


def test_a_grid_is_read_from_texts() -> None:
    assert parse_grid(["refit-interval=25,50 damping=0", "decay=0.5"]) == {
        "refit_interval": (25.0, 50.0), "damping": (0.0,), "decay": (0.5,),
    }  # fmt: skip


def test_each_row_is_a_replay_with_its_constants(run: Path) -> None:
    grid = {"damping": (0.0, 30.0), "start_slope": (0.2, 0.9)}
    table = sweep(run, grid, refit_interval=9, ridge=0.01, window=20, processes=1).combinations
    assert table.columns[:6] == ["run", "pair", "drafting", "estimator", "damping", "start_slope"]
    combinations = [(d, s) for d in grid["damping"] for s in grid["start_slope"]]
    assert table.select("damping", "start_slope").rows() == combinations
    for row in table.rows(named=True):
        own = {name: row[name] for name in grid}
        alone = replay(run, estimators="vllm", refit_interval=9, ridge=0.01, window=20, **own)
        wanted = alone.summary.filter(estimator="vllm").row(0, named=True)
        for name in ("n", "log_loss", "ece", "auc", "regret", "refits", "refused", "overshoots"):
            assert row[name] == wanted[name], name
    assert table["log_loss"].n_unique() == 4


def test_progress_is_told_and_bad_constants_end_before_any_work(run: Path) -> None:
    seen: list[tuple[int, int]] = []
    grid = "refit-interval=5,40"
    sweep(run, grid, processes=1, on_done=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    with pytest.raises(InputError, match="damping must be >= 0"):
        sweep(run, {"damping": (1.0, -1.0)}, on_done=lambda *_: pytest.fail("it worked"))
    with pytest.raises(InputError, match="no such file or folder"):
        sweep(run / "nowhere", grid)


def test_a_rivals_own_constant_is_swept(run: Path) -> None:
    table = sweep(run, "decay=0,0.9 damping=0,50", processes=1).combinations
    assert table["estimator"].unique().to_list() == ["exp-decay"]
    assert table.select("decay", "damping").rows() == [(0, 0), (0, 50), (0.9, 0), (0.9, 50)]
    # Without memory the decayed rule is the shipped one.
    settings = ReplaySettings(("vllm",), all_rows=False)
    vllm = replay_runs(open_any(run), settings).summary.filter(estimator="vllm")
    assert table["log_loss"][1] == pytest.approx(vllm["log_loss"].item(), abs=1e-12)
    with pytest.raises(InputError, match="vllm has no constant max_step: only step-limited has it"):
        sweep(run, "max-step=1,2", estimator="vllm")


@pytest.mark.slow
def test_a_sweep_replays_every_combination_in_processes(run: Path) -> None:
    seen: list[tuple[int, int]] = []
    table = sweep(
        run,
        ["refit-interval=5,40", "damping=0,50"],
        on_done=lambda done, total: seen.append((done, total)),
    ).combinations
    combinations = table.select("refit_interval", "damping").rows()
    assert combinations == [(5.0, 0.0), (5.0, 50.0), (40.0, 0.0), (40.0, 50.0)]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert table["refits"][0] > table["refits"][2]
    assert (table["regret"] > 0).all()


@pytest.mark.parametrize("text", ["damping", "speed=3", "ridge=a,b"])
def test_a_bad_grid_is_named(text: str) -> None:
    with pytest.raises(InputError, match="sweep"):
        parse_grid([text])
