"""`evaluate`, `stability`, `calibrate` and `compare` as a user meets them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.command import Outcome


@pytest.mark.slow
def test_evaluate_prints_a_table_and_writes_results(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("evaluate", log, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    assert "logit(qmax)" in found.out
    metrics = pl.read_parquet(tmp_path / "out" / "evaluate" / "metrics.parquet")
    assert {"predictor", "auc", "log_loss", "ece"} <= set(metrics.columns)
    result = json.loads(call("evaluate", log, "--json").out)
    assert len(result["metrics"]) == metrics.height


@pytest.mark.slow
def test_stability_prints_and_writes(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("stability", log, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    for name in ("workloads", "refit spread", "transfer", "acceptance lengths"):
        assert name in found.out
    assert (tmp_path / "out" / "stability" / "result.json").is_file()


def test_calibrate_writes_a_calibration(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("calibrate", log, "--source", "qmax", "--out", tmp_path / "out")
    assert found.code == 0, found.err
    assert "temperatures" in found.out
    content = json.loads((tmp_path / "out" / "calibrate" / "calibration.json").read_text())
    assert content["temperatures"] == content["sts_temperatures"]


@pytest.mark.slow
def test_compare_prints_and_writes_differences(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("compare", log, log, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    written = pl.read_parquet(tmp_path / "out" / "compare" / "predictors.parquet")
    assert written["difference"].drop_nans().drop_nulls().abs().max() == 0


@pytest.mark.slow
def test_a_part_is_named_and_values_have_a_table(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    where = "dataset = 'even' or request = 1"
    found = call("evaluate", log, "--where", where, "--by", "dataset", "--out", tmp_path / "out")
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert lines[0] == f"part of the log: {where}"
    first = lines.index("logit(qmax) by dataset")
    assert lines[first + 2].startswith("even")
    assert lines[first + 3].startswith("odd")
    for command in ("calibrate", "replay"):
        found = call(command, log, "--by", "dataset", "--where", where)
        assert found.code == 0, found.err
        assert "even" in found.out
    found = call("compare", log, log, "--by", "dataset", "--where", where)
    assert found.code == 0, found.err
    assert "even" in found.out
    bad = call("evaluate", log, "--where", "dataset = even")
    assert bad.code == 2
    assert bad.err.startswith("draftlab: --where dataset = even: unknown column 'even'")
