"""Plugins: the documented example works as written, and bad files are named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from draftlab.errors import InputError
from draftlab.plugins import Plugin, load_plugins
from draftlab.predictors.baselines import PREDICTORS
from draftlab.studies.evaluate import evaluate
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
