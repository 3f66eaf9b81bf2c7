"""`simulate`, `trimming-check` and `audit` as a user meets them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from draftlab.synth import synth_log
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.command import Outcome


def test_simulate_marks_a_model_and_names_its_tables(
    call: Callable[..., Outcome], tmp_path: Path
) -> None:
    run = synth_log(tmp_path / "log", num_requests=40)
    arguments = ("--cost", "H100/llama-8b", "--predictor", "logit_qmax", "--concurrency", 64)
    found = call("simulate", run, *arguments, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    assert "a model, not a measurement" in found.out
    assert (tmp_path / "out" / "simulate" / "frontier.parquet").is_file()
    wrong = call("simulate", run, "--cost", "X100/llama-8b")
    assert wrong.code == 2
    assert "no such file, and no model" in wrong.err


@pytest.mark.slow
def test_trimming_check_compares_with_a_live_log(
    call: Callable[..., Outcome], tmp_path: Path
) -> None:
    """The live one trimmed nothing, as its cost tells: the rehearsal does the same."""
    cost = tmp_path / "cost.json"
    flat = {"sample_batch_tokens": [1, 1000], "sample_steps_per_sec": [10.0, 10.0]}
    cost.write_text(json.dumps(flat | {"max_batch_tokens": 1000}))
    rows = [proposal(s, [True, s % 3 > 0], request=s % 7) for s in range(70)]
    off = write_log(tmp_path / "off", rows)
    live = write_log(tmp_path / "live", rows, adaptive_verification="qmax")
    for run in (off, live):
        [path] = run.glob("steps/*.parquet")
        pl.read_parquet(path).with_columns(num_requests=pl.lit(4, pl.Int32)).write_parquet(path)
    found = call("trimming-check", off, live, "--cost", cost, "--out", tmp_path / "out")
    assert found.err == ""
    assert "The simulation " in found.out
    assert "with the trimmed run:" in found.out
    content = json.loads(call("trimming-check", off, live, "--cost", cost, "--json").out)
    assert (content["policy"], content["concurrency"]) == ("av/qmax", 4)
    sent = next(row for row in content["measures"] if row["measure"] == "verified_per_step")
    assert sent["simulated"] == sent["measured"] == 2
    written = pl.read_parquet(tmp_path / "out" / "trimming-check" / "measures.parquet")
    assert written.filter(measure="verified_per_step")["simulated"].item() == 2
    wrong = call("trimming-check", off, off, "--cost", cost)
    assert wrong.code == 2
    assert "was not trimmed" in wrong.err


def test_audit_needs_no_log(call: Callable[..., Outcome]) -> None:
    found = call("audit", "--json")
    assert found.code == 0
    checks = json.loads(found.out)["checks"]
    assert {"proof", "joint", "derived"} <= {check["kind"] for check in checks}
