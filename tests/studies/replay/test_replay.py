"""Replaying a log gives what the engine's own estimator did, and shows where it fails."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from draftlab.errors import InputError
from draftlab.log.reader import open_any, open_log
from draftlab.log.writer import LogWriter
from draftlab.online.vllm import Constants
from draftlab.studies.replay.replay import OFFLINE, ReplaySettings, replay, replay_runs
from tests.logs import METADATA, proposal, write_log
from tests.paths import GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

SCENARIOS: dict[str, Any] = json.loads((GOLDEN / "constants.json").read_text())


def golden_log(name: str, folder: Path, **writer: Any) -> Path:
    """Write a recorded scenario as a draft log with the stored features."""
    settings = SCENARIOS[name]
    drafts = pl.read_parquet(GOLDEN / f"{name}.drafts.parquet").sort("step", "slot", "position")
    metadata = METADATA | {"num_speculative_tokens": settings["num_positions"], "run": name}
    with LogWriter(folder, metadata, **writer) as log:
        for request in drafts["req"].unique().sort():
            log.request(request, group=f"g{request}", dataset="golden", temperature=1.0)
        for step in range(settings["num_steps"]):
            final = drafts.filter(pl.col("verify_step") == step)
            log.step({"step": step}, columns(final) if final.height else None)
    return log.folder


def columns(rows: pl.DataFrame) -> dict[str, Any]:
    return {
        "request": rows["req"].to_numpy(),
        "step": rows["step"].to_numpy(),
        "verify_step": rows["verify_step"].to_numpy(),
        "slot": rows["slot"].to_numpy(),
        "position": rows["position"].to_numpy(),
        "admitted": rows["admitted"].to_numpy(),
        "accepted": np.ma.array(rows["accepted"].to_numpy(), mask=~rows["labelled"].to_numpy()),
        "excluded": np.zeros(rows.height, dtype=np.uint16),
        "logit_qmax": rows["feature"].to_numpy(),
        "live_feature": rows["feature"].to_numpy(),
        "live_prediction": rows["prediction"].to_numpy(),
    }


def constants(name: str) -> Constants:
    s = SCENARIOS[name]
    return Constants(s["refit_interval"], s["damping"], s["ridge"])


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_golden_scenarios_from_their_log(name: str, tmp_path: Path) -> None:
    folder = golden_log(name, tmp_path)
    settings = ReplaySettings(
        ("vllm",), feature="live_feature", constants=constants(name), window=7
    )
    result = replay_runs(open_any(folder), settings)
    ours = result.coefficients.filter(pl.col("refit") > 0)
    theirs = pl.read_parquet(GOLDEN / f"{name}.coefs.parquet").filter(pl.col("refit") > 0)
    bound = 1e-4 if name == "h_separable" else 1e-5
    for k in range(SCENARIOS[name]["num_positions"]):
        at_k = ours.filter(pl.col("position") == k)
        assert at_k["step"].to_list() == theirs["step"].to_list()
        assert at_k["count"].to_list() == theirs[f"count_{k}"].to_list()
        assert np.abs(at_k["slope"].to_numpy() - theirs["slope"].to_numpy()).max() <= bound
        difference = at_k["intercept"].to_numpy() - theirs[f"intercept_{k}"].to_numpy()
        assert np.abs(difference).max() <= bound
    assert result.summary.filter(estimator="vllm")["live_error"].item() < 5e-6


def test_parts_and_windows_do_not_change_the_result(tmp_path: Path) -> None:
    whole = golden_log("b_drift", tmp_path / "a")
    single = pl.read_parquet(next(whole.glob("drafts/*.parquet")))
    many = golden_log("b_drift", tmp_path / "b")
    [only] = many.glob("drafts/*.parquet")
    only.unlink()
    # Uneven parts, cut in the middle of steps, rows of neighbouring parts exchanged.
    cuts = [0, 101, 1003, 2000, 2001, 4500, single.height]
    for number, (low, high) in enumerate(itertools.pairwise(cuts)):
        rows = single[low:high].sample(fraction=1.0, shuffle=True, seed=number)
        rows.write_parquet(many / "drafts" / f"part-{number:05d}.parquet")
    frames = []
    for folder, window in ((whole, 10), (many, 10), (many, 240)):
        settings = ReplaySettings(
            ("vllm", "step-limited"), constants=constants("b_drift"), window=window
        )
        frames.append(replay_runs(open_any(folder), settings))
    for other in frames[1:]:
        np.testing.assert_allclose(
            other.coefficients["intercept"], frames[0].coefficients["intercept"], atol=1e-12
        )
        assert other.summary["log_loss"].to_list() == pytest.approx(
            frames[0].summary["log_loss"].to_list(), abs=1e-12
        )
    assert frames[0].metrics["auc"].to_list() == pytest.approx(
        frames[1].metrics["auc"].to_list(), abs=1e-12
    )


def test_a_late_label_counts_with_the_prediction_of_its_draft_time(tmp_path: Path) -> None:
    """Drafted at step 0, graded at step 5, over a refit at step 2: it keeps the start values."""
    early = proposal(0, [True], logit_qmax=[2.0], verify_step=[5])
    rows = [proposal(s, [False], logit_qmax=[1.0], slot=1) for s in range(4)]
    with LogWriter(tmp_path, METADATA | {"num_speculative_tokens": 1}) as log:
        log.request(0, group="g", dataset="d", temperature=1.0)
        for step in range(7):
            final = [p for p in (early, *rows) if p["verify_step"][0] == step]
            log.step({"step": step}, final[0] if final else None)
            for more in final[1:]:
                log.step(None, more)
    settings = ReplaySettings(
        ("vllm",), constants=Constants(refit_interval=3, damping=0.0), window=1
    )
    result = replay_runs(open_any(tmp_path), settings)
    window = result.metrics.filter(estimator="vllm", window=5)
    assert window["mean_prediction"].item() == pytest.approx(1 / (1 + np.exp(-(0.5 * 2 - 0.2))))
    moved = result.coefficients.filter(refit=1)
    assert moved["intercept"].item() < -0.2


def test_parts_without_statistics_in_their_footers_wait_for_one_another(tmp_path: Path) -> None:
    whole = golden_log("b_drift", tmp_path / "a")
    bare = golden_log("b_drift", tmp_path / "b")
    [only] = bare.glob("drafts/*.parquet")
    rows = pl.read_parquet(only)
    only.unlink()
    for number, (low, high) in enumerate(itertools.pairwise([0, 700, 3001, rows.height])):
        part = bare / "drafts" / f"part-{number:05d}.parquet"
        rows[low:high].write_parquet(part, statistics=False)
    settings = ReplaySettings(("vllm",), constants=constants("b_drift"), window=10)
    ours, theirs = replay_runs(open_any(bare), settings), replay_runs(open_any(whole), settings)
    assert_frame_equal(ours.coefficients, theirs.coefficients, abs_tol=1e-12)
    assert_frame_equal(ours.metrics, theirs.metrics, abs_tol=1e-12)


def test_pieces_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken in pieces that fit a cache; with the label's window cut at the same places."""
    folder = golden_log("b_drift", tmp_path)
    settings = ReplaySettings(("vllm", "running-rate"), constants=constants("b_drift"), window=10)
    whole = replay_runs(open_any(folder), settings)
    monkeypatch.setattr("draftlab.studies.replay.rows._PIECE", 37)
    pieces = replay_runs(open_any(folder), settings)
    for name in ("coefficients", "metrics"):
        ours, theirs = getattr(pieces, name), getattr(whole, name)
        assert_frame_equal(ours, theirs, abs_tol=1e-12)


def test_window_figures_are_those_of_the_rows(tmp_path: Path) -> None:
    """The windows of the first round are graded as sklearn grades the start values' predictions."""
    from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

    folder = golden_log("b_drift", tmp_path)
    settings = ReplaySettings(("vllm",), constants=constants("b_drift"), window=10, offline=False)
    metrics = replay_runs(open_any(folder), settings).metrics
    drafts = pl.read_parquet(GOLDEN / "b_drift.drafts.parquet").filter(pl.col("labelled"))
    for window in (0, 1):
        rows = drafts.filter(pl.col("verify_step") // 10 == window)
        z = 0.5 * rows["feature"].to_numpy().astype(np.float64) - 0.2
        y, p = rows["accepted"].to_numpy(), 1 / (1 + np.exp(-z))
        row = metrics.filter(window=window).row(0, named=True)
        assert (row["n"], row["n_accepted"]) == (len(y), y.sum())
        assert row["log_loss"] == pytest.approx(log_loss(y, p), abs=1e-12)
        assert row["brier"] == pytest.approx(brier_score_loss(y, p), abs=1e-12)
        assert row["auc"] == pytest.approx(roc_auc_score(y, z), abs=1e-12)
        assert row["mean_prediction"] == pytest.approx(p.mean(), abs=1e-12)


def test_a_part_without_live_predictions_follows_one_with_them(tmp_path: Path) -> None:
    live = proposal(0, [True, False], live_prediction=[0.6, 0.5])
    rows = [live, *(proposal(s, [True, False]) for s in range(1, 30))]
    folder = write_log(tmp_path, rows)
    [only] = folder.glob("drafts/*.parquet")
    table = pl.read_parquet(only)
    only.unlink()
    for number, (low, high) in enumerate(((0, 20), (20, 60))):
        table[low:high].write_parquet(folder / "drafts" / f"part-{number:05d}.parquet")
    result = replay_runs(open_any(folder), ReplaySettings(("vllm",), window=7))
    assert result.summary["n"].to_list() == [60, 60]
    assert result.summary["live_error"][0] == pytest.approx(abs(0.6 - 1 / (1 + np.exp(0.7))))


def drifting_log(folder: Path, rates: list[tuple[int, float]], *, per_step: int = 40) -> Path:
    """Write K = 1 traffic whose acceptance rate changes abruptly, whatever the feature."""
    generator = np.random.default_rng(7)
    step = 0
    with LogWriter(folder, METADATA | {"num_speculative_tokens": 1}) as log:
        log.request(0, group="g", dataset="d", temperature=1.0)
        for steps, rate in rates:
            for _ in range(steps):
                rows = proposal(
                    step,
                    (generator.random(per_step) < rate).tolist(),
                    logit_qmax=generator.normal(3.0 if rate > 0.9 else 1.0, 1.0, per_step),
                )
                rows |= {
                    "slot": np.arange(per_step),
                    "position": np.zeros(per_step, dtype=np.int64),
                }
                log.step({"step": step}, rows)
                step += 1
    return log.folder


def test_an_abrupt_switch_overshoots_and_the_limited_rule_recovers(tmp_path: Path) -> None:
    """From nearly all accepted to 0.66: vLLM's unlimited step leaves the data and stays away."""
    folder = drifting_log(tmp_path, [(300, 0.999), (600, 0.66)])
    result = replay_runs(open_any(folder), ReplaySettings(("vllm", "step-limited")))
    summary = {row["estimator"]: row for row in result.summary.to_dicts()}
    assert summary["vllm"]["overshoots"] > 0
    assert summary["vllm"]["diverged"]
    assert not summary["step-limited"]["diverged"]
    last = result.metrics.filter(window=8)
    losses = dict(zip(last["estimator"], last["log_loss"], strict=True))
    best = -(0.66 * np.log(0.66) + 0.34 * np.log(0.34))
    assert losses["step-limited"] < best + 0.05
    assert losses["vllm"] > best + 1
    assert any("vllm moved a coefficient by more than" in note for note in map(str, result.notes))


def test_a_mild_shift_settles(tmp_path: Path) -> None:
    folder = drifting_log(tmp_path, [(300, 0.81), (300, 0.66)])
    summary = replay_runs(open_any(folder), ReplaySettings(("vllm",))).summary
    assert not summary.filter(estimator="vllm")["diverged"].item()
    assert summary.filter(estimator="vllm")["overshoots"].item() == 0


def test_excluded_rows_train_vllm_and_are_not_graded(tmp_path: Path) -> None:
    rows = [proposal(s, [True, False], excluded=[0, 1]) for s in range(40)]
    write_log(tmp_path, rows)
    settings = ReplaySettings(("vllm", "step-limited"), constants=Constants(refit_interval=10))
    result = replay_runs(open_any(tmp_path), settings)
    counts = result.coefficients.filter(refit=1)
    by_name = {n: g["count"].to_list() for (n,), g in counts.group_by("estimator")}
    assert by_name["vllm"] == [9, 9]  # the first step's verdict grades nothing
    assert by_name["step-limited"] == [9, 0]
    assert result.summary["n"].unique().to_list() == [40]
    settings = ReplaySettings(("vllm",), constants=Constants(refit_interval=10), all_rows=False)
    without = replay_runs(open_any(tmp_path), settings).coefficients.filter(refit=1)
    assert without["count"].to_list() == [9, 0]


def test_a_snapshot_in_run_json_is_the_start(tmp_path: Path) -> None:
    start = {"slope": 0.9, "intercepts": [0.3, 0.4], "steps_since_refit": 6}
    write_log(tmp_path, [proposal(s, [True, False]) for s in range(30)], estimator_start=start)
    settings = ReplaySettings(("vllm",), constants=Constants(refit_interval=10))
    result = replay_runs(open_any(tmp_path), settings).coefficients
    assert result.filter(refit=0)["slope"].to_list() == [0.9, 0.9]
    assert result.filter(refit=0)["intercept"].to_list() == [0.3, 0.4]
    assert result.filter(refit=1)["step"].to_list() == [3, 3]
    fresh = replay(tmp_path, estimators="vllm", refit_interval=10, snapshot=False)
    assert fresh.coefficients.filter(refit=0)["slope"].to_list() == [0.5, 0.5]


def test_every_estimator_runs_and_is_prequential(tmp_path: Path) -> None:
    """The first window is predicted before anything was learnt: all start values show in it."""
    folder = golden_log("a_stationary", tmp_path)
    names = (
        "vllm",
        "step-limited",
        "exp-decay",
        "newton-until-converged",
        "early-start",
        "running-rate",
    )
    result = replay_runs(open_any(folder), ReplaySettings(names))
    assert result.summary["estimator"].to_list() == [*names, OFFLINE]
    first = result.metrics.filter(window=0, estimator="early-start")
    # Slope 0 and intercept 1.5 for the whole first round.
    assert first["mean_prediction"].item() == pytest.approx(1 / (1 + np.exp(-1.5)))
    loss = dict(zip(result.summary["estimator"], result.summary["log_loss"], strict=True))
    assert loss[OFFLINE] == min(loss.values())
    assert loss["newton-until-converged"] < loss["early-start"]
    assert result.summary.filter(estimator=OFFLINE)["regret"].item() == 0


def test_the_offline_fit_is_the_evaluations(small_run: Path) -> None:
    from draftlab import evaluate

    graded = evaluate(small_run, predictors=["logit_qmax"], in_sample=True).metrics
    offline = replay_runs(open_any(small_run), ReplaySettings(("vllm",))).summary.filter(
        estimator=OFFLINE
    )
    wanted = graded.filter(scope="overall")
    assert offline["n"].item() == wanted["n"].item()
    assert offline["log_loss"].item() == pytest.approx(wanted["log_loss"].item(), abs=1e-9)


def test_results_are_written_as_tidy_tables(tmp_path: Path) -> None:
    folder = golden_log("c_sparse_deep", tmp_path / "log")
    result = replay(folder, estimators="vllm", out=tmp_path / "out")
    for name in ("coefficients", "metrics", "summary", "disagreement"):
        table = pl.read_parquet(tmp_path / "out" / "replay" / f"{name}.parquet")
        assert {"pair", "drafting"} <= set(table.columns)
        assert table.equals(getattr(result, name))
    content = json.loads((tmp_path / "out" / "replay" / "result.json").read_text())
    assert content["command"] == "replay"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ReplaySettings(("vlm",)), "unknown estimator 'vlm'; known: vllm"),
        (ReplaySettings(feature="qmax"), "unknown feature 'qmax'; known: logit_qmax"),
        (ReplaySettings(constants=Constants(refit_interval=0)), "refit_interval must be >= 1"),
        (ReplaySettings(constants=Constants(damping=-1.0)), "damping must be >= 0"),
        (ReplaySettings(window=0), "window must be >= 1"),
        (ReplaySettings(own={"decay": 1.5}), "decay must lie in"),
        (ReplaySettings(("step-limited",), own={"max_step": 0.0}), "max_step must be > 0"),
        (
            ReplaySettings(("vllm",), own={"decay": 0.5}),
            "vllm has no constant decay: only exp-decay has",
        ),
        (ReplaySettings(own={"speed": 1.0}), "no estimator has it"),
        (ReplaySettings(("ema-head",)), "column confidence is null on"),
        (ReplaySettings(("online-sts",)), "column confidence is null on"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, settings: ReplaySettings, message: str) -> None:
    folder = write_log(tmp_path, [proposal(s, [True, False]) for s in range(5)])
    with pytest.raises(InputError, match=message):
        replay_runs(open_log(folder), settings)


def test_a_log_without_labels_is_refused(tmp_path: Path) -> None:
    folder = write_log(tmp_path, [proposal(0, [None, None])])
    with pytest.raises(InputError, match="no labelled drafts"):
        replay(folder)
