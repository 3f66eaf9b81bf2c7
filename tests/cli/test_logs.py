"""`inspect` as a user meets it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from tests.logs import proposal, write_log

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


def test_inspect_shows_one_request(call: Callable[..., Outcome], log: Path, tmp_path: Path) -> None:
    found = call("inspect", log, "--request", 3, "--out", tmp_path)
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert "request        3" in lines
    assert "dataset        odd" in lines
    drafts = pl.read_parquet(log / "*" / "drafts" / "*.parquet").filter(request=3)
    written = pl.read_parquet(tmp_path / "inspect" / "rows.parquet")
    by_place = ["step", "position"]
    assert written.select(drafts.columns).equals(drafts.sort(by_place))
    assert len([line for line in lines if line.split()[:1] in [["3"], ["94"]]]) == 4
    one = json.loads(call("inspect", log, "--request", 3, "--step", 94, "--json").out)
    assert [(row["step"], row["position"], row["accepted"]) for row in one["rows"]] == [
        (94, 0, False),
        (94, 1, None),
    ]
    assert [row["group"] for row in one["request"]] == ["g3"]
    plain = json.loads(call("inspect", log, "--json").out)
    assert plain["rows"] == plain["request"] == []


@pytest.mark.slow
def test_inspect_names_the_runs_that_have_a_request(
    call: Callable[..., Outcome], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        write_log(tmp_path / "log", [proposal(0, [True, False], request=5)], run=name)
    write_log(tmp_path / "log", [proposal(0, [True, False], request=6)], run="c")
    log = tmp_path / "log"
    assert "2 runs have it; name one: a:5, b:5" in call("inspect", log, "--request", 5).err
    assert call("inspect", log, "--request", "b:5").out.startswith("run            b\n")
    assert call("inspect", log, "--request", 6).out.startswith("run            c\n")
    for request, message in (
        ("9", "no run of the log has it"),
        ("x:5", "no run 'x'; known: a, b, c"),
        ("a:x", "wanted the id of a request"),
    ):
        found = call("inspect", log, "--request", request)
        assert found.code == 2
        assert message in found.err
    assert "--step says nothing without --request" in call("inspect", log, "--step", 1).err
    assert "has no draft of it" in call("inspect", log, "--request", 6, "--step", 7).err
