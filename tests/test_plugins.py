"""Plugins: the documented example works as written, and bad files are named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from draftlab.errors import InputError
from draftlab.log.files import shown_path
from draftlab.plugins import Plugin, load_plugins
from draftlab.predictors.baselines import PREDICTORS
from draftlab.results import key_of
from draftlab.studies.calibrate import calibrate
from draftlab.studies.compare import compare
from draftlab.studies.evaluate import evaluate
from draftlab.studies.replay.drift import drift
from draftlab.studies.replay.replay import replay
from draftlab.studies.replay.sweep import sweep
from draftlab.studies.simulate.simulate import simulate
from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs" / "plugins.md"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path_factory.mktemp("plugin") / "my_ideas.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_the_documented_example_is_graded(example: Path, small_run: Path) -> None:
    before = dict(PREDICTORS)
    plugin = load_plugins(example)
    result = evaluate(small_run, plugin=plugin, keep_predictions=True)
    assert before == PREDICTORS  # nothing global changed
    assert result.predictions is not None
    row = result.metrics.filter(scope="overall", predictor="margin_per_nat").row(0, named=True)
    assert row["fitted"]
    assert row["lossless"]
    assert row["auc"] > 0.6
    raw = result.metrics.filter(scope="overall", predictor="raw_margin").row(0, named=True)
    assert not raw["fitted"]
    assert "margin_per_nat" in result.coefficients["predictor"].to_list()
    assert "raw_margin" in result.differences["predictor_b"].to_list()
    table = result.plugin_metrics.filter(scope="overall", predictor="logit_qmax")
    y, logit = (result.predictions[c].to_numpy() for c in ("accepted", "logit_qmax"))
    half = np.argsort(logit, kind="stable")[len(logit) // 2 :]
    assert table["metric"].to_list() == ["surest_half"]
    assert table["value"].item() == pytest.approx(y[half].mean(), abs=2e-3)  # ties
    assert set(result.plugin_metrics["scope"]) == {
        "overall",
        "without_first",
        "position",
        "dataset",
    }


def test_a_plugins_predictor_can_be_named(example: Path, small_run: Path) -> None:
    plugin = load_plugins(example)
    result = evaluate(small_run, plugin=plugin, predictors=["raw_margin", "constant"])
    assert result.metrics["predictor"].unique(maintain_order=True).to_list() == [
        "raw_margin", "constant",
    ]  # fmt: skip
    assert set(result.survival["predictor"]) == {"raw_margin", "constant"}
    with pytest.raises(InputError, match="unknown predictor 'raw_margin'"):
        evaluate(small_run, predictors=["raw_margin"])


def test_without_a_plugin_its_table_is_empty(small_run: Path) -> None:
    result = evaluate(small_run, predictors=["constant"])
    assert result.plugin_metrics.is_empty()
    assert result.plugin_metrics.columns[-2:] == ["n", "value"]


HEADER = "import polars as pl\nfrom draftlab.features import Feature\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "defines none of FEATURES, PREDICTORS, METRICS"),
        ("FEATURES = [1]", "FEATURES must be a dict, got list"),
        ("METRICS = {'a': 3}", "'a' must be a function, got int"),
        ("FEATURES = {'a': 3}", "'a' must be a Feature, got int"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (HEADER + "FEATURES = {'entropy': Feature('entropy', pl.col('entropy'), '')}", "is taken"),
        (HEADER + "FEATURES = {'a': Feature('b', pl.col('entropy'), '')}", "of another name"),
        (HEADER + "FEATURES = {'a': Feature('a', pl.col('accepted'), '')}", "hold the outcome"),
        (HEADER + "FEATURES = {'a': Feature('a', pl.col('entropy').shift(1), '')}", "other rows"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, code: str, message: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(code)
    with pytest.raises(InputError, match=rf"bad\.py: .*{message}"):
        load_plugins(path)


def test_two_files_may_not_share_a_name(example: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'margin_per_nat' is taken"):
        load_plugins(example, example)
    with pytest.raises(InputError, match="no such plugin file"):
        load_plugins(tmp_path / "absent.py")
    assert load_plugins() == Plugin()


def test_a_metric_that_fails_is_named(small_run: Path) -> None:
    def broken(_y: Any, _logit: Any) -> float:
        raise ZeroDivisionError("no rows")

    with pytest.raises(InputError, match="metric broken of the plugin: ZeroDivisionError: no rows"):
        evaluate(small_run, plugin=Plugin(metrics={"broken": broken}))


# --- in every study: a feature that is a built-in one under another name has its numbers


SAME = """
import polars as pl
from draftlab.features import Feature, clamp
from draftlab.predictors.baselines import PREDICTORS as known, Predictor

same = Feature("same", clamp("logit_qmax"), "log-odds of max q")
raw = Feature("raw", clamp("logit_qmax"), "the same, not fitted")
FEATURES = {"same": same, "drawn": Feature("drawn", clamp("logit_q_sampled"), "reads the draw")}
PREDICTORS = {"raw": Predictor("raw", "max q, not fitted", raw, None)}
"""


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plugin") / "same.py"
    path.write_text(SAME, encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_plugins_feature_drives_a_policy(same: Path, small_run: Path) -> None:
    names = ["same", "logit_qmax", "raw", "qmax", "drawn"]
    found = simulate(
        small_run, "L4/llama-8b", predictors=names, concurrencies=[8], regret=False, plugin=same
    )
    of = {name: found.frontier.filter(predictor=name) for name in names}
    for mine, theirs in (("same", "logit_qmax"), ("raw", "qmax")):
        assert_frame_equal(of[mine].drop("predictor"), of[theirs].drop("predictor"))
    assert of["same"]["lossless"].all()
    assert not of["drawn"]["lossless"].any()  # derived, as for the built-in ones
    assert found.settings["plugins"] == [shown_path(str(same))]
    # unnamed, its predictors join the default ones
    every = simulate(small_run, "L4/llama-8b", concurrencies=[8], regret=False, plugin=same)
    assert {"same", "raw", "drawn", "hybrid"} <= set(every.frontier["predictor"])


@pytest.mark.slow
def test_estimators_read_a_plugins_feature(same: Path, small_run: Path) -> None:
    options: dict[str, Any] = {"refit_interval": 5, "window": 10}
    mine = replay(small_run, feature="same", plugin=same, **options)
    theirs = replay(small_run, **options)
    for name, table in theirs.tables.items():
        assert_frame_equal(
            mine.tables[name].drop("feature", strict=False), table.drop("feature", strict=False)
        )
    grid = "damping=0,50"
    swept = sweep(small_run, grid, feature="same", plugin=same, refit_interval=5)
    assert_frame_equal(swept.combinations, sweep(small_run, grid, refit_interval=5).combinations)


def test_drift_follows_a_plugins_feature(same: Path, synthetic_run: Path) -> None:
    options: dict[str, Any] = {"refit_interval": 10, "scenario": "easy@30 > hard@30"}
    mine = drift(synthetic_run, feature="same", plugin=same, **options)
    assert_frame_equal(mine.recovery, drift(synthetic_run, **options).recovery)


@pytest.mark.slow
def test_a_plugins_unfitted_predictor_is_calibrated(same: Path, small_run: Path) -> None:
    found = calibrate(small_run, methods="platt", plugin=same)
    assert set(found.metrics["source"]) == {"qmax", "raw"}
    mine, theirs = (found.metrics.filter(source=name).drop("source") for name in ("raw", "qmax"))
    assert_frame_equal(mine, theirs)
    alone = calibrate(small_run, sources="raw", methods="platt", plugin=same)
    assert_frame_equal(alone.metrics.drop("source"), theirs)


@pytest.mark.slow
def test_a_plugins_predictors_are_compared(same: Path, small_run: Path) -> None:
    found = compare(small_run, small_run, plugin=same)
    assert {"same", "raw"} <= set(found.predictors["predictor"])


def test_what_a_study_cannot_take_of_a_plugin_is_said(
    same: Path, small_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"estimators read one feature, logit_qmax; name one of"):
        replay(small_run, plugin=same)
    endless = tmp_path / "endless.py"
    endless.write_text(SAME.replace('"logit_qmax")', '"logit_qmax") / 0.0'), encoding="utf-8")
    with pytest.raises(InputError, match="feature same is null or not finite on"):
        replay(small_run, feature="same", plugin=endless)
    with pytest.raises(InputError, match=r"unknown feature 'mine'; known: .*same, drawn"):
        replay(small_run, feature="mine", plugin=same)
    with pytest.raises(InputError, match=r"unknown predictor 'mine' of policy av; known: .*same"):
        simulate(small_run, "L4/llama-8b", predictors="mine", plugin=same)
    fitted = tmp_path / "fitted.py"
    fitted.write_text(SAME.replace("PREDICTORS = ", "_ = "), encoding="utf-8")
    with pytest.raises(InputError, match="adds no predictor that is not fitted"):
        calibrate(small_run, plugin=fitted)
    taken = tmp_path / "taken.py"
    taken.write_text(SAME.replace('"same"', '"live_feature"'), encoding="utf-8")
    with pytest.raises(InputError, match="'live_feature' is a column that estimators may read"):
        replay(small_run, feature="live_feature", plugin=taken)


def test_a_key_follows_the_plugin_of_a_sweep(same: Path, small_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SAME, encoding="utf-8")
    options: dict[str, Any] = {"feature": "same", "plugin": str(path)}
    before = key_of(sweep, small_run, "damping=0", **options)
    assert (
        key_of(sweep, small_run, "damping=0", **options | {"plugin": load_plugins(path)}) == before
    )
    path.write_text(SAME + "\n# another", encoding="utf-8")
    assert key_of(sweep, small_run, "damping=0", **options) != before
