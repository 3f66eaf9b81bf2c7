"""The reader: what it accepts, and what it says of what it does not."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import polars as pl
import pytest

from draftlab import evaluate, open_log, replay
from draftlab.errors import InputError
from draftlab.log import reader
from draftlab.log.checks import run_checks
from draftlab.log.reader import find_parts
from draftlab.reporting import run_studies
from draftlab.synth import synth_log
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log", [proposal(s, [True, False]) for s in range(5)])


def part(run: Path) -> Path:
    return run / "drafts" / "part-00000.parquet"


def test_a_log_and_a_single_run_read_alike(run: Path) -> None:
    whole, single = open_log(run.parent), open_log(run)
    assert whole.drafts.collect().equals(single.drafts.collect())
    assert whole.runs[0].pair == "T + D"


def test_sibling_runs_read_together(run: Path) -> None:
    write_log(run.parent, [proposal(0, [True, None], request=1)])
    assert open_log(run.parent).drafts.collect()["run"].n_unique() == 2


def test_a_run_given_twice_is_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / run.name
    shutil.copytree(run, copy)
    with pytest.raises(InputError, match="given twice"):
        open_log(run, copy)
    assert open_log(run, run.parent).runs[0].name == run.name  # the same folder is one run


def _remove(run: Path) -> None:
    shutil.rmtree(run.parent)


def _empty(run: Path) -> None:
    shutil.rmtree(run)


def _csv(run: Path) -> None:
    part(run).write_text("request,step\n1,2\n")


def _drop_column(run: Path) -> None:
    pl.read_parquet(part(run)).drop("logit_qmax").write_parquet(part(run))


def _wrong_type(run: Path) -> None:
    pl.read_parquet(part(run)).cast({"entropy": pl.String}).write_parquet(part(run))


def _not_json(run: Path) -> None:
    (run / "run.json").write_text("{")


def _lacks_key(run: Path) -> None:
    content = json.loads((run / "run.json").read_text())
    del content["target"]
    (run / "run.json").write_text(json.dumps(content))


def _newer(run: Path) -> None:
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(content | {"schema_version": 2}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_remove, "no such file or folder"),
        (_empty, "holds no draft log"),
        (_csv, "not a readable Parquet file"),
        (_drop_column, "lacks column logit_qmax of drafts"),
        (_wrong_type, "column entropy has type .*, wanted float32"),
        (_not_json, "is not JSON"),
        (_lacks_key, "lacks target"),
        (_newer, "has log version 2, this draftlab reads version 1"),
    ],
)
def test_bad_input_is_named_in_one_sentence(
    run: Path, harm: Callable[[Path], None], message: str
) -> None:
    harm(run)
    with pytest.raises(InputError, match=message) as caught:
        open_log(run.parent)
    assert "\n" not in str(caught.value)


def test_logs_one_level_below_are_named(run: Path) -> None:
    """The folder above a log is no log, but says which logs it holds: "data" names data/sample."""
    log = run.parent
    above = log.parent
    (above / "empty").mkdir()
    shutil.copytree(log, above / "other")
    with pytest.raises(InputError) as caught:
        open_log(above)
    names = str(caught.value).rpartition("name one: ")[2].split(", ")
    assert names == sorted([str(log), str(above / "other")])
    shutil.rmtree(above / "other")
    for i in range(7):
        shutil.copytree(log, above / f"z{i}")
    with pytest.raises(InputError, match=r"z3 and 3 more$"):
        open_log(above)


def test_a_file_is_not_a_log(run: Path) -> None:
    with pytest.raises(InputError, match="a draft log is a folder of runs"):
        open_log(part(run))


def test_to_open_no_log_is_an_error() -> None:
    with pytest.raises(InputError, match="no log given"):
        open_log()


def test_an_optional_column_may_be_absent_and_others_are_dropped(run: Path) -> None:
    frame = pl.read_parquet(part(run)).drop("entropy", "overlap").with_columns(extra=1)
    frame.cast({"logit_qmax": pl.Float64, "step": pl.Int32}).write_parquet(part(run))
    drafts = open_log(run).drafts.collect()
    assert drafts["entropy"].null_count() == drafts.height
    assert "extra" not in drafts.columns
    assert drafts.schema["logit_qmax"] == pl.Float32
    assert drafts.schema["step"] == pl.Int64


def test_a_cut_part_is_named_and_the_rest_returned(run: Path) -> None:
    """Parts 0, 1 good, part 2 cut by 100 bytes."""
    for number in (1, 2):
        shutil.copy(part(run), run / "drafts" / f"part-{number:05d}.parquet")
        moved = pl.read_parquet(part(run)).with_columns(pl.col("step") + 100 * number)
        moved.write_parquet(run / "drafts" / f"part-{number:05d}.parquet")
    broken = run / "drafts" / "part-00002.parquet"
    broken.write_bytes(broken.read_bytes()[:-100])
    log = open_log(run)
    assert [p.path for p in log.problems] == [str(broken)]
    assert log.drafts.collect().height == 20
    assert "DL002" in {f.code for f in run_checks(log)}
    with pytest.raises(InputError, match="part-00002.parquet"):
        open_log(run, strict=True)


def test_a_run_is_opened_again_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a remote store, which `file://` stands for: a study may open it in a process."""
    run = synth_log(tmp_path, num_requests=20)
    local = open_log(tmp_path)
    monkeypatch.setattr(reader, "_uri", lambda path, _: f"file://{path}")
    [remote] = open_log(f"file://{tmp_path}").runs
    assert remote.path == f"file://{run}"
    [again] = open_log(remote.path).runs
    assert again == remote
    assert again.rows == local.runs[0].rows
    assert again.scan("drafts").collect().equals(local.runs[0].scan("drafts").collect())
    assert find_parts(remote.path, "steps") == list(remote.parts["steps"])
    assert find_parts(remote.path, "nothing") == []


@pytest.mark.slow
def test_studies_of_a_remote_log_open_it_in_both_processes(
    small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_uri", lambda path, _: f"file://{path}")
    monkeypatch.setattr(run_studies, "_WORTH_A_PROCESS", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    log = open_log(f"file://{small_run}")
    calls = run_studies.plan(run_studies.EvaluateOptions())
    studies = run_studies.run_missing_studies(log, calls)
    assert studies.evaluation.metrics.equals(evaluate(small_run).metrics)
    there, here = studies.results["replay"].tables["summary"], replay(small_run).summary
    assert there.drop("run").equals(here.drop("run"))
    assert {"audit", "stability", "simulate", "inspect"} <= set(studies.results)
