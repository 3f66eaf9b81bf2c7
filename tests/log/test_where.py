"""A part of a log: what an expression keeps, and that every study sees that part and no more."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

import draftlab
from draftlab.errors import InputError
from draftlab.log.reader import open_log
from draftlab.results import key_of
from draftlab.studies.evaluate import evaluate
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from draftlab.results import Result

Row = dict[str, Any]
STUDIES: dict[str, Callable[..., Result]] = {
    "evaluate": lambda log, **more: draftlab.evaluate(log, keep_predictions=True, **more),
    "stability": draftlab.stability,
    "calibrate": lambda log, **more: draftlab.calibrate(log, methods="platt", **more),
    "compare": lambda log, **more: draftlab.compare(log, log, **more),
    "replay": lambda log, **more: draftlab.replay(log, refit_interval=5, window=7, **more),
    "sweep": lambda log, **more: draftlab.sweep(
        log, "damping=0,50", processes=2, refit_interval=5, **more
    ),
    "drift": lambda log, **more: draftlab.drift(
        log, "easy@30 > hard@30", refit_interval=10, **more
    ),
    "simulate": lambda log, **more: draftlab.simulate(
        log, "L4/llama-8b", predictors="logit_qmax", concurrencies=[4], **more
    ),
}
PARTS: dict[str, tuple[str, Callable[[Row, Row], bool]]] = {
    "requests": (
        "temperature = 0.6 and prompt_tokens between 20 and 80",
        lambda request, _: (
            abs(request["temperature"] - 0.6) < 1e-6 and 20 <= request["prompt_tokens"] <= 80
        ),
    ),
    "steps": (
        "num_requests > 7 and time >= '2026-11-29T18:00:10'",
        lambda _, step: (
            step["num_requests"] > 7
            and dt.datetime.fromtimestamp(step["unix_ms"] // 1000, dt.UTC)
            >= dt.datetime(2026, 11, 29, 18, 0, 10, tzinfo=dt.UTC)
        ),
    ),
    "both": (
        "run = 'long' and (\"group\" like 'prompt-1%' or step % 3 = 0)",
        lambda request, step: request["group"].startswith("prompt-1") or step["step"] % 3 == 0,
    ),
}
"""Expressions, and the same by hand on a row of requests and one of steps."""
START = 1_795_975_200_000  # 2026-11-29T18:00:00Z


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of one run in several parts, whose requests and steps differ."""
    folder = tmp_path_factory.mktemp("where")
    run = synth_log(folder, num_requests=120, datasets={"easy": 1.0, "hard": -0.5}, run="long")
    rng = np.random.default_rng(5)
    for path in (run / "requests").glob("*.parquet"):
        rows = pl.read_parquet(path)
        changed = rows.with_columns(
            temperature=pl.Series(rng.choice([0.6, 1.0], len(rows)), dtype=pl.Float32),
            prompt_tokens=pl.Series(rng.integers(1, 100, len(rows)), dtype=pl.Int32),
        )
        pq.write_table(changed.to_arrow(), path)
    for path in (run / "steps").glob("*.parquet"):
        rows = pl.read_parquet(path)
        changed = rows.with_columns(
            unix_ms=START + 100 * pl.col("step"),
            num_requests=pl.Series(rng.integers(4, 12, len(rows)), dtype=pl.Int32),
        )
        pq.write_table(changed.to_arrow(), path)
    _split(run / "drafts", 4)
    return folder


def _split(folder: Path, count: int) -> None:
    """Write the rows of a folder again as so many parts."""
    rows = pq.read_table(folder)
    for path in folder.glob("*.parquet"):
        path.unlink()
    edges = np.linspace(0, len(rows), count + 1).astype(int)
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        pq.write_table(rows.slice(low, high - low), folder / f"part-{number:05}.parquet")


def copy_part(log: Path, to: Path, wanted: Callable[[Row, Row], bool], kind: str) -> Path:
    """Write by hand, row by row, the part of a log of one run that a predicate chooses."""
    copy = shutil.copytree(log / "long", to / "log" / "long").parent
    run = copy / "long"
    requests = {row["request"]: row for row in pq.read_table(run / "requests").to_pylist()}
    steps = {row["step"]: row for row in pq.read_table(run / "steps").to_pylist()}

    def rewrite(path: Path, keep: Callable[[Row], bool]) -> list[Row]:
        table = pq.read_table(path)
        kept = [row for row in table.to_pylist() if keep(row)]
        pq.write_table(pa.Table.from_pylist(kept, schema=table.schema), path)
        return kept

    left = set()
    for path in sorted((run / "drafts").glob("*.parquet")):
        rows = rewrite(path, lambda row: wanted(requests[row["request"]], steps[row["step"]]))
        left |= {row["request"] for row in rows}
    for path in (run / "requests").glob("*.parquet"):
        rewrite(
            path,
            (lambda r: wanted(r, {})) if kind == "requests" else lambda r: r["request"] in left,
        )
    if kind == "steps":
        for path in (run / "steps").glob("*.parquet"):
            rewrite(path, lambda row: wanted({}, row))
    return copy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "study"),
    [("both", study) for study in STUDIES]
    + [(kind, study) for kind in ("requests", "steps") for study in ("evaluate", "replay")],
)
def test_a_part_gives_the_numbers_of_a_copy_filtered_by_hand(
    kind: str, study: str, log: Path, tmp_path: Path
) -> None:
    where, wanted = PARTS[kind]
    by_hand = STUDIES[study](copy_part(log, tmp_path, wanted, kind))
    found = STUDIES[study](log, where=where)
    assert found.settings["where"] == where
    for name, table in by_hand.tables.items():
        assert_frame_equal(found.tables[name], table, check_exact=True)
    assert [(n.code, n.run) for n in found.notes] == [(n.code, n.run) for n in by_hand.notes]


def test_a_whole_log_says_nothing_of_a_part(log: Path) -> None:
    assert "where" not in evaluate(log, predictors="constant").settings


def test_tables_hold_what_is_promised(log: Path) -> None:
    whole = open_log(log)
    of_requests = whole.narrow("dataset = 'easy'")
    drafts, requests, steps = (
        of_requests.scan(n).collect() for n in ("drafts", "requests", "steps")
    )
    assert set(requests["dataset"]) == {"easy"}
    assert len(requests) == 60
    assert set(drafts["request"]) <= set(requests["request"])
    assert_frame_equal(steps, whole.steps.collect())
    of_steps = whole.narrow("step < 10")
    assert of_steps.steps.collect()["step"].to_list() == list(range(10))
    assert set(of_steps.drafts.collect()["step"]) == set(range(10))
    assert set(of_steps.requests.collect()["request"]) == set(of_steps.drafts.collect()["request"])
    assert of_steps.runs[0].rows["drafts"] == len(of_steps.drafts.collect())
    # two expressions, one after the other
    both = of_steps.narrow("dataset = 'easy'")
    assert both.drafts.collect().equals(
        whole.narrow("step < 10 and dataset = 'easy'").drafts.collect()
    )
    assert both.whole is whole
    assert "where (step < 10) and (dataset = 'easy')" in repr(both)


def test_runs_that_hold_no_row_leave_the_log(tmp_path: Path) -> None:
    synth_log(tmp_path, num_requests=20, run="a", datasets={"x": 0.0})
    synth_log(tmp_path, num_requests=20, run="b", datasets={"y": 0.0}, num_positions=3)
    log = open_log(tmp_path)
    for where in (
        "run = 'b'",
        "num_speculative_tokens == 3",
        "dataset = 'y'",
        "pair like '%' and run <> 'a'",
    ):
        assert [run.name for run in log.narrow(where).runs] == ["b"], where
    assert log.narrow("run = 'b'").runs[0].where is None  # nothing is asked of its rows
    assert [run.name for run in log.narrow("target is not null").runs] == ["a", "b"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("dataset = ", "does not parse as SQL"),
        ("", "does not parse as SQL"),
        (
            "dataset = easy",
            r"unknown column 'easy' \(text stands in single quotes\); known: requests",
        ),
        ("datset = 'easy'", "unknown column 'datset'"),
        ("position = 1", "position is a column of drafts, and rows chosen by it would be a biased"),
        ("accepted", "accepted is a column of drafts"),
        ("prompt_tokens", "is Int32, wanted a comparison that is true or false"),
        ("dataset = 3", "cannot compare string with numeric"),
        ("prompt_tokens > avg(prompt_tokens)", "unknown function 'avg'; known: abs, ceil"),
        ("request in (select 1)", "a query inside it is not known here"),
        ("1 = 1", "reads no column of requests, steps or the run"),
        ("dataset = 'none'", "keeps none of 12000 drafts"),
        ("run = 'none'", "keeps none of 1 runs"),
    ],
)
def test_what_is_no_expression_is_refused_in_one_sentence(
    where: str, message: str, log: Path
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        open_log(log, where=where)
    assert "\n" not in str(caught.value)


def test_words_that_sql_keeps_for_itself_are_columns(log: Path) -> None:
    whole = open_log(log)
    for where in (
        "group = 'prompt-7'",
        "\"group\" = 'prompt-7'",
        "\"group\" in ('prompt-7', 'group')",
    ):
        assert whole.narrow(where).requests.collect()["request"].to_list() == [7]


def test_fingerprint_and_key_cover_the_expression(log: Path, tmp_path: Path) -> None:
    whole = open_log(log)
    part = whole.narrow("dataset = 'easy'")
    marks = {whole.fingerprint, part.fingerprint, whole.narrow("dataset = 'hard'").fingerprint}
    assert len(marks) == 3
    assert open_log(log, where="dataset = 'easy'").fingerprint == part.fingerprint
    key = key_of(evaluate, log, where="dataset = 'easy'")
    assert key == key_of(evaluate, part) != key_of(evaluate, log)
    made = evaluate(log, predictors="constant", where="dataset = 'easy'", out=tmp_path)
    assert made.provenance["fingerprint"] == [part.fingerprint]
    assert made.provenance["key"] == key_of(evaluate, part, predictors="constant")
    assert draftlab.read_result(tmp_path).settings["where"] == "dataset = 'easy'"


def test_inspection_is_of_the_whole_log(log: Path) -> None:
    part = open_log(log, where="dataset = 'easy'")
    found, whole = draftlab.inspect(part), draftlab.inspect(log)
    assert_frame_equal(found.workloads, whole.workloads)
    assert found.passed
    assert found.runs[0]["rows"] == whole.runs[0]["rows"]


@pytest.mark.slow
def test_a_report_of_a_part_says_so_and_is_reused_in_a_second_process(
    log: Path, tmp_path: Path
) -> None:
    where = "dataset in ('easy', 'hard') and prompt_tokens > 20"
    lines: list[str] = []
    draftlab.report(
        log, tmp_path / "a", where=where, by="temperature", pdf=False, on_line=lines.append
    )
    assert not lines
    content = json.loads((tmp_path / "a" / "report.json").read_text())
    assert ["Part of the log", where] in content["facts"]
    assert shlex.join(["--where", where, "--by", "temperature"]) in content["commands"][-1]
    assert (
        "By temperature: logit(qmax), 95 % by prompt."
        in (tmp_path / "a" / "index.html").read_text()
    )
    options = ["--out", str(tmp_path / "a"), "--no-pdf", "--by", "temperature", "--where"]
    command = [sys.executable, "-m", "draftlab", "report", str(log), *options]
    again = subprocess.run([*command, where], capture_output=True, text=True, check=True)
    assert "reused" in again.stdout
    assert "evaluate" in again.stdout
    other = subprocess.run(
        [*command, "dataset = 'easy' or dataset = 'hard'"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "evaluate" not in other.stdout


def test_a_rehearsal_of_a_part_is_refused(log: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--trimmed rehearses whole batches"):
        draftlab.report(log, tmp_path, where="dataset = 'easy'", trimmed=log)
