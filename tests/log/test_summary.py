"""Means over proposals, on failures of people who do this job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from draftlab.log.checks import run_checks
from draftlab.log.reader import open_log
from draftlab.log.summary import proposals, workloads
from draftlab.schema import Excluded
from tests.logs import proposal, until_rejection, write_log

if TYPE_CHECKING:
    from pathlib import Path


def test_dummy_requests_are_no_traffic(tmp_path: Path) -> None:
    """TensorRT-LLM recorder: request 0 pads idle ranks and accepts everything."""
    dummy = np.full(5, int(Excluded.WARMUP), dtype=np.uint16)
    rows = [proposal(i, [True] * 5, excluded=dummy) for i in range(2)]
    rows += [proposal(2, until_rejection(1, 5), request=7)]
    log = open_log(write_log(tmp_path, rows, num_speculative_tokens=5))
    assert proposals(log).collect()["acceptance_length"].to_list() == [2]
    everything = proposals(log, warmup=True).collect()["acceptance_length"]
    assert sorted(everything.to_list()) == [2, 6, 6]
    [counted] = [f.message for f in run_checks(log) if f.code == "DL011"]
    assert counted == "10 warmup"


@pytest.mark.slow
def test_the_first_draft_slot_counts_towards_the_length(tmp_path: Path) -> None:
    """Speculators #805: acceptance 0.9, 0.8, 0.7 of a block of three is 3.124 tokens."""
    ends = [0] * 100 + [1] * 180 + [2] * 216 + [3] * 504
    rows = [proposal(i, until_rejection(end, 3)) for i, end in enumerate(ends)]
    log = open_log(write_log(tmp_path, rows, num_speculative_tokens=3))
    [length] = workloads(log)["acceptance_length"]
    assert length == pytest.approx(3.124, abs=1e-12)
