"""Failures of people who do this job, as small inputs with the right result.

The other cases stand beside the code that they are about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.errors import InputError
from draftlab.log.checks import run_checks
from draftlab.log.reader import open_log
from draftlab.log.summary import proposals, workloads
from draftlab.schema import Excluded
from draftlab.synth import synth_log
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path


def until_rejection(num_accepted: int, K: int) -> list[Any]:
    """Return the labels of a proposal: accepted, then one rejection, then unobserved."""
    return ([True] * num_accepted + [False] + [None] * K)[:K]


def test_c06_dummy_requests_are_no_traffic(tmp_path: Path) -> None:
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


def test_c11_the_first_slot_counts(tmp_path: Path) -> None:
    """Speculators #805: acceptance 0.9, 0.8, 0.7 of a block of three is 3.124 tokens."""
    ends = [0] * 100 + [1] * 180 + [2] * 216 + [3] * 504
    rows = [proposal(i, until_rejection(end, 3)) for i, end in enumerate(ends)]
    log = open_log(write_log(tmp_path, rows, num_speculative_tokens=3))
    [length] = workloads(log)["acceptance_length"]
    assert length == pytest.approx(3.124, abs=1e-12)


def test_c15_a_declared_k_below_the_runs_is_an_error(tmp_path: Path) -> None:
    """Model-Optimizer #2247: lengths 1 to 5, ten of each, under a declared K of 2."""
    ends = [end for end in range(5) for _ in range(10)]
    rows = [proposal(i, until_rejection(end, 4)) for i, end in enumerate(ends)]
    log = open_log(write_log(tmp_path, rows, num_speculative_tokens=2))
    [finding] = [f for f in run_checks(log) if f.code == "DL014"]
    assert finding.severity == "error"
    assert "2.4 within the declared K, 3 measured" in finding.message
    honest = open_log(write_log(tmp_path, rows, num_speculative_tokens=4, run="honest"))
    assert not [f for f in run_checks(honest) if f.code == "DL014"]


def test_c23_a_fractional_length_is_met_by_varying_lengths(tmp_path: Path) -> None:
    """SGLang #33463: a target of 4.7 froze at an integer."""
    run = synth_log(tmp_path, num_requests=500, num_positions=7, acceptance_length=4.7)
    lengths = proposals(open_log(run)).collect()["acceptance_length"]
    assert len(lengths) == 10_000
    assert lengths.to_numpy().mean() == pytest.approx(4.7, abs=0.03)
    assert lengths.n_unique() >= 2


@pytest.mark.parametrize("length", [1.0, 8.0, float("nan")])
def test_an_acceptance_length_that_no_k_allows_is_refused(tmp_path: Path, length: float) -> None:
    with pytest.raises(InputError, match="between 1 and K \\+ 1 = 8"):
        synth_log(tmp_path, num_positions=7, acceptance_length=length)


@pytest.mark.parametrize("effect", [0.0, 1.0])
def test_the_shift_meets_the_length_under_request_effects_too(
    tmp_path: Path, effect: float
) -> None:
    run = synth_log(
        tmp_path, num_requests=800, acceptance_length=2.5, request_effect_sd=effect, seed=3
    )
    log = open_log(run)
    chance = pl.col("accept_prob").cum_prod().over("step", "slot", order_by="position")
    expected = log.drafts.select(1 + chance.sum() / (pl.col("position") == 0).sum()).collect()
    assert expected.item() == pytest.approx(2.5, abs=0.02)
