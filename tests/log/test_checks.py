"""Each check is silent on a good log and names the fault in a bad one."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from draftlab import open_log
from draftlab.log.checks import CHECKS, run_checks
from draftlab.log.summary import proposals, workloads
from draftlab.log.writer import LogWriter
from draftlab.schema import Excluded
from draftlab.studies.inspect import inspect
from tests.logs import METADATA, proposal, until_rejection, write_log

if TYPE_CHECKING:
    from pathlib import Path


def found(folder: Path) -> dict[str, str]:
    return {finding.code: finding.message for finding in run_checks(open_log(folder))}


def test_a_good_log_has_no_findings(tmp_path: Path) -> None:
    write_log(tmp_path, [proposal(s, [True, False], request=s % 3) for s in range(6)])
    assert found(tmp_path) == {}


def test_codes_are_unique_and_sorted() -> None:
    codes = [check.code for check in CHECKS]
    assert codes == sorted(set(codes))


@pytest.mark.parametrize(
    ("rows", "code", "message"),
    [
        ([proposal(0, [True, True]), proposal(0, [True, True])], "DL007", "occur more than once"),
        ([proposal(0, [False, True])], "DL008", "1 labelled rows"),
        ([proposal(0, [None, True])], "DL008", "1 labelled rows"),
        ([proposal(0, [True, True], admitted=[True, False])], "DL008", "1 labelled rows"),
        ([proposal(0, [True, True], entropy=[-0.1, 1.0])], "DL009", "entropy is out of its range"),
        ([proposal(0, [True], overlap=[1.2])], "DL009", "overlap is out of its range in 1 rows"),
        (
            [proposal(0, [True], logit_q_sampled=[5.0], logit_qmax=[1.0])],
            "DL009",
            "logit_q_sampled is out",
        ),
        (
            [proposal(s, [True], overlap=[0.3]) for s in range(40)],
            "DL010",
            r"labels depart from overlap by \+0.7000 in the mean of 40 rows",
        ),
        (
            [proposal(0, [True, True], excluded=np.array([0, Excluded.AFTER_STOP]))],
            "DL011",
            "1 after_stop",
        ),
    ],
)
def test_a_fault_is_named(tmp_path: Path, rows: list[Any], code: str, message: str) -> None:
    write_log(tmp_path, rows)
    findings = found(tmp_path)
    assert set(findings) == {code}
    assert re.search(message, findings[code])


def test_drafts_of_no_request_are_found(tmp_path: Path) -> None:
    with LogWriter(tmp_path, METADATA) as log:
        log.step({"step": 0}, proposal(0, [True, False]))
    assert set(found(tmp_path)) == {"DL006"}


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    with LogWriter(tmp_path, METADATA, rows_per_part=1, seconds_per_part=60) as log:
        log.request(0, group="g", dataset="d", temperature=1.0)
        for step in range(4):
            log.step({"step": step}, proposal(step, [True]))
            time.sleep(0.05)
    for table in ("drafts", "steps"):
        (log.folder / table / "part-00001.parquet").unlink()
    findings = found(tmp_path)
    assert "no part numbered 1" in findings["DL003"]
    assert "the writer wrote 4" in findings["DL004"]


def test_near_ties_are_counted_in_greedy_rows(tmp_path: Path) -> None:
    ties: dict[str, Any] = {"target_margin": [0.0005, 0.5], "target_entropy": [1.0, 1.0]}
    with LogWriter(tmp_path, METADATA) as log:
        for request, temperature in ((0, 0.0), (1, 1.0)):
            log.request(request, group="g", dataset="d", temperature=temperature)
            log.step({"step": request}, proposal(request, [True, True], request=request, **ties))
    assert found(tmp_path)["DL012"].startswith("1 greedy rows")


def test_a_trimmed_log_is_marked(tmp_path: Path) -> None:
    rows = proposal(0, [True, None], admitted=[True, False])
    write_log(tmp_path, [rows], adaptive_verification="online")
    assert "50.0% of its rows are hidden" in found(tmp_path)["DL013"]


def lengths(folder: Path) -> list[int]:
    table = proposals(open_log(folder)).sort("run", "step").collect()
    return table["acceptance_length"].to_list()


def test_acceptance_length_counts_the_bonus_and_not_what_lies_behind_a_stop(
    tmp_path: Path,
) -> None:
    """[1,0,1,0] gives AL 2; [a,b,STOP,d,e] all accepted gives 3, no bonus."""
    stop = np.array([0, 0, 0, Excluded.AFTER_STOP, Excluded.AFTER_STOP])
    write_log(
        tmp_path,
        [
            proposal(0, [True, False, None, None]),
            proposal(1, [True] * 5, excluded=stop),
            proposal(2, [True, True]),
            proposal(3, [False, None]),
        ],
    )
    assert lengths(tmp_path) == [2, 3, 3, 1]


def test_no_bonus_where_the_last_draft_ends_the_request(tmp_path: Path) -> None:
    """Each request of `write_log` has five tokens; the index says how many stood before."""
    write_log(
        tmp_path,
        [
            proposal(0, [True, True], output_index=np.array([2, 2])),  # three are left
            proposal(1, [True, True], output_index=np.array([3, 3])),  # the second ends it
            proposal(2, [True, False], output_index=np.array([3, 3])),
            proposal(3, [True, True]),  # unknown
        ],
    )
    assert lengths(tmp_path) == [3, 2, 2, 3]


def test_workloads_weigh_by_verification_and_by_request(tmp_path: Path) -> None:
    write_log(
        tmp_path,
        [
            proposal(0, [True, True]),
            proposal(1, [True, True]),
            proposal(2, [True, True]),
            proposal(3, [False, None], request=2),
            proposal(4, [True, False], request=1),
        ],
    )
    table = workloads(open_log(tmp_path))
    assert table["dataset"].to_list() == ["even", "odd"]
    assert table["acceptance_length"].to_list() == [10 / 4, 2.0]
    assert table["acceptance_length_by_request"].to_list() == [2.0, 2.0]
    assert table["labelled"].to_list() == [7, 2]
    assert table["acceptance"].to_list() == [6 / 7, 0.5]


def test_a_request_without_a_draft_is_counted_and_left_out_of_means(tmp_path: Path) -> None:
    """One request ends at its first token."""
    with LogWriter(tmp_path, METADATA) as log:
        for request in (0, 1):
            log.request(request, group=f"g{request}", dataset="d", temperature=1.0)
        log.step({"step": 0}, proposal(0, [True, True]))
    row = workloads(open_log(tmp_path)).row(0, named=True)
    assert row["requests"] == 2
    assert row["acceptance_length"] == row["acceptance_length_by_request"] == 3.0


def test_inspection_is_strict_json(tmp_path: Path) -> None:
    write_log(tmp_path, [proposal(0, [None, None], verify_step=np.ma.masked_all(2, dtype=int))])
    content = json.loads(json.dumps(inspect(tmp_path).to_dict(), allow_nan=False))
    assert content["runs"][0]["rows"]["drafts"] == 2
    [row] = content["workloads"]
    assert row["acceptance_length"] is None


def test_a_declared_k_below_that_of_the_drafts_is_an_error(tmp_path: Path) -> None:
    """Model-Optimizer #2247: lengths 1 to 5, ten of each, under a declared K of 2."""
    ends = [end for end in range(5) for _ in range(10)]
    rows = [proposal(i, until_rejection(end, 4)) for i, end in enumerate(ends)]
    log = open_log(write_log(tmp_path, rows, num_speculative_tokens=2))
    [finding] = [f for f in run_checks(log) if f.code == "DL014"]
    assert finding.severity == "error"
    assert "2.4 within the declared K, 3 measured" in finding.message
    honest = open_log(write_log(tmp_path, rows, num_speculative_tokens=4, run="honest"))
    assert not [f for f in run_checks(honest) if f.code == "DL014"]
