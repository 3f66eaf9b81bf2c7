"""`inspect` as a user meets it."""

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
    printed = json.loads(outcome.out)
    assert {name: printed[name] for name in ("runs", "command", "notes")} == {
        name: written[name] for name in ("runs", "command", "notes")
    }
    workloads = pl.read_parquet(tmp_path / "inspect" / "workloads.parquet")
    assert [row["dataset"] for row in printed["workloads"]] == workloads["dataset"].to_list()


def test_inspect_prints_workloads_and_findings(call: Callable[..., Outcome], log: Path) -> None:
    found = call("inspect", log)
    assert found.code == 0
    assert "all checks passed" in found.out
    summary = json.loads(call("inspect", log, "--json").out)
    assert [row["dataset"] for row in summary["workloads"]] == ["even", "odd"]
