"""`inspect`, `evaluate`, `stability`, `calibrate` and `audit` as a user meets them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.command import Outcome


def test_inspect_writes_what_it_prints(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    outcome = call("inspect", str(log), "--out", str(tmp_path), "--json")
    written = json.loads((tmp_path / "inspect" / "result.json").read_text())
    assert written == json.loads(outcome.out)


def test_inspect_prints_workloads_and_findings(call: Callable[..., Outcome], log: Path) -> None:
    found = call("inspect", log)
    assert found.code == 0
    assert "all checks passed" in found.out
    summary = json.loads(call("inspect", log, "--json").out)
    assert [row["dataset"] for row in summary["runs"][0]["workloads"]] == ["even", "odd"]


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


def test_audit_needs_no_log(call: Callable[..., Outcome]) -> None:
    found = call("audit", "--json")
    assert found.code == 0
    checks = json.loads(found.out)["checks"]
    assert {"proof", "joint", "derived"} <= {check["kind"] for check in checks}
