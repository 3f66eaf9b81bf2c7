"""The writer: what it writes, how it survives a kill, and that it never blocks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from draftlab import open_log
from draftlab.log import writer
from draftlab.log.checks import run_checks
from draftlab.log.writer import LogWriter, LogWriteWarning
from tests.logs import METADATA, proposal, write_log
from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_round_trip_keeps_values_and_turns_mask_and_nan_into_null(tmp_path: Path) -> None:
    rows = proposal(0, [True, False, None], logit_qmax=[np.inf, np.nan, -1.5])
    write_log(tmp_path, [rows])
    drafts = open_log(tmp_path).drafts.collect()
    assert drafts["accepted"].to_list() == [True, False, None]
    assert drafts["logit_qmax"].to_list() == [np.inf, None, -1.5]
    assert drafts["position"].to_list() == [0, 1, 2]
    assert drafts["overlap"].null_count() == 3
    assert drafts.schema["position"] == pl.Int16
    assert drafts.schema["excluded"] == pl.UInt16


def test_run_json_is_complete_and_closed(tmp_path: Path) -> None:
    folder = write_log(tmp_path, [proposal(0, [True, True])])
    content = json.loads((folder / "run.json").read_text())
    assert content["closed"] is True
    assert content["rows"] == {"requests": 1, "drafts": 2, "steps": 1}
    assert content["schema_version"] == 1
    assert content["run"] == folder.name


def test_metadata_must_be_complete(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lacks \\['target'\\]"):
        LogWriter(tmp_path, {k: v for k, v in METADATA.items() if k != "target"})


def test_a_request_is_one_row_however_often_it_is_updated(tmp_path: Path) -> None:
    with LogWriter(tmp_path, METADATA, seconds_per_part=0.01) as log:
        log.request(0, group="g", dataset="d", temperature=1.0)
        log.request(writer.REQUESTS_PER_PART, group="h", dataset="d", temperature=0.0)
        time.sleep(0.1)
        log.request(0, finish_reason="stop", output_tokens=7)
    requests = open_log(tmp_path).requests.collect().sort("request")
    assert requests["request"].to_list() == [0, writer.REQUESTS_PER_PART]
    assert requests["finish_reason"].to_list() == ["stop", None]
    assert requests["group"].to_list() == ["g", "h"]


def test_parts_rotate_by_rows_and_stay_in_order(tmp_path: Path) -> None:
    with LogWriter(tmp_path, METADATA, rows_per_part=4) as log:
        log.request(0, group="g", dataset="d", temperature=1.0)
        for step in range(10):
            log.step({"step": step}, proposal(step, [True, True]))
            time.sleep(0.02)
    parts = sorted((log.folder / "drafts").iterdir())
    assert len(parts) > 2
    steps = open_log(tmp_path).drafts.select("step", "position").collect()
    assert steps["step"].to_list() == [s for s in range(10) for _ in range(2)]


def test_a_slow_disk_drops_whole_proposals_and_never_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write = writer._write_parquet

    def slow(content: Any, path: Path) -> None:
        gate.wait()
        write(content, path)

    monkeypatch.setattr(writer, "_write_parquet", slow)
    log = LogWriter(tmp_path, METADATA, rows_per_part=2, max_pending_rows=6)
    log.request(0, group="g", dataset="d", temperature=1.0)
    for step in range(50):  # a step that waited for the disk would never return
        log.step({"step": step}, proposal(step, [True, False]))
        time.sleep(0.002)
    assert not gate.is_set()
    gate.set()
    with pytest.warns(LogWriteWarning, match="proposals dropped"):
        log.close()
    read = open_log(tmp_path)
    steps, drafts = read.steps.collect(), read.drafts.collect()
    assert steps["step"].to_list() == list(range(50))  # every step has its row
    assert steps["num_dropped"].sum() == log.dropped_proposals > 0
    assert drafts.height == 2 * (50 - log.dropped_proposals)
    assert drafts.group_by("step").len()["len"].unique().to_list() == [2]
    assert {f.code for f in run_checks(read)} == {"DL005"}


def test_a_failing_disk_never_reaches_the_engine_before_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(content: Any, path: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(writer, "_write_parquet", fail)
    log = LogWriter(tmp_path, METADATA, rows_per_part=2)
    for step in range(20):
        log.step({"step": step}, proposal(step, [True, False]))
        time.sleep(0.005)
    with pytest.warns(LogWriteWarning, match="no space left"):
        log.close()
    assert json.loads((log.folder / "run.json").read_text())["closed"] is False


ENDLESS = """
import sys, time
sys.path.insert(0, {root!r})
from tests.logs import METADATA, proposal
from draftlab.log.writer import LogWriter
log = LogWriter({folder!r}, METADATA, rows_per_part=64, seconds_per_part=0.05)
print(log.run, flush=True)
log.request(0, group="g", dataset="d", temperature=1.0)
step = 0
while True:
    log.step({{"step": step}}, proposal(step, [True, False]))
    step += 1
    time.sleep(0.0005)
"""


@pytest.mark.slow
def test_kill_at_any_instant_loses_at_most_the_open_part(tmp_path: Path) -> None:
    root = str(ROOT)
    generator = np.random.default_rng(5)
    for trial in range(10):
        folder = tmp_path / str(trial)
        code = ENDLESS.format(root=root, folder=str(folder))
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()  # the run exists
            time.sleep(generator.uniform(0.0, 0.5))
            os.kill(process.pid, signal.SIGKILL)
        log = open_log(folder)
        assert not log.problems
        drafts = log.drafts.select("step").collect()["step"].to_list()
        assert drafts == sorted([*range(len(drafts) // 2)] * 2)
        requests = log.requests.collect()
        assert requests.height == (1 if drafts else requests.height)
        [closed] = [f for f in run_checks(log) if f.code == "DL001"]
        assert "was not closed" in closed.message
        for path in (folder / log.runs[0].name).rglob("*.parquet"):
            pq.ParquetFile(path).read()


def test_alternatives_become_a_table_of_their_own(tmp_path: Path) -> None:
    """Two drafts of three alternatives; the second most likely one was drawn first."""
    beside: dict[str, Any] = {
        "tree_rank": np.array([[0, 1, 2], [0, 1, 7]]),
        "tree_log_prob": np.log([[0.5, 0.3, 0.1], [0.6, 0.2, 0.01]]),
        "tree_drawn": np.array([1, 2]),
    }
    folder = write_log(tmp_path, [proposal(4, [True, True], request=9, **beside)])
    log = open_log(folder)
    trees = log.scan("trees").collect()
    assert trees["node"].to_list() == [0, 1, 2, 3, 4, 5]
    assert trees["parent"].to_list() == [-1, -1, -1, 1, 1, 1]
    assert trees["rank"].to_list() == [0, 1, 2, 0, 1, 7]
    assert set(zip(trees["request"], trees["step"], strict=True)) == {(9, 4)}
    np.testing.assert_allclose(
        trees["token_logprob"].exp(), [0.5, 0.3, 0.1, 0.6, 0.2, 0.01], rtol=1e-6
    )
    assert log.runs[0].rows == {"requests": 1, "drafts": 2, "trees": 6, "steps": 1}
    assert "tree_rank" not in log.drafts.collect_schema()
