"""Failures of people who do this job, as small inputs with the right result.

The other cases stand beside the code that they are about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.errors import InputError
from draftlab.hooks.plan import Facts
from draftlab.log.checks import run_checks
from draftlab.log.convert import convert
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


def test_the_first_draft_slot_counts_towards_the_length(tmp_path: Path) -> None:
    """Speculators #805: acceptance 0.9, 0.8, 0.7 of a block of three is 3.124 tokens."""
    ends = [0] * 100 + [1] * 180 + [2] * 216 + [3] * 504
    rows = [proposal(i, until_rejection(end, 3)) for i, end in enumerate(ends)]
    log = open_log(write_log(tmp_path, rows, num_speculative_tokens=3))
    [length] = workloads(log)["acceptance_length"]
    assert length == pytest.approx(3.124, abs=1e-12)


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


def test_a_fractional_length_is_met_by_varying_lengths(tmp_path: Path) -> None:
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


def specspecs_files(folder: Path, acceptances: list[list[int]]) -> None:
    """Write one sequence with these proposals, as the recorder does."""
    pl.DataFrame(
        {"run_id": ["r"], "sequence_id": [4], "prompt_token_ids": [[1, 2, 3]], "prompt_len": [3]}
    ).write_parquet(folder / "sequences-0.parquet")
    n = len(acceptances)
    pl.DataFrame(
        {
            "run_id": ["r"] * n,
            "sequence_id": [4] * n,
            "step": range(n),
            "draft_tokens": [[9] * len(flags) for flags in acceptances],
            "acceptances": acceptances,
            "k": [len(flags) for flags in acceptances],
        }
    ).write_parquet(folder / "drafts-0.parquet")


def test_the_repeated_token_of_specspecs_is_no_draft(tmp_path: Path) -> None:
    """Specspecs: from the second step on, the first logged draft repeats the last token."""
    specspecs_files(tmp_path, [[1, 1, 0, 0], [1, 1, 1, 0]])
    [run] = convert(tmp_path, tmp_path / "log", "specspecs", drafting="greedy", temperature=0.0)
    log = open_log(run)
    rows = log.drafts.sort("step", "position").collect()
    assert rows["accepted"].to_list() == [True, True, False, None, True, True, False]
    assert proposals(log).sort("step").collect()["num_accepted"].to_list() == [2, 2]
    assert run_checks(log) == []


def test_foreign_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no sequences-"):
        convert(tmp_path, tmp_path / "log", "specspecs", drafting="greedy", temperature=0.0)
    with pytest.raises(InputError, match="unknown format"):
        convert(tmp_path, tmp_path / "log", "nothing", drafting="greedy", temperature=0.0)


def test_the_drawn_tokens_chance_is_looked_up_in_the_targets_vocabulary() -> None:
    """Drafter ids 0, 1, 2 are target tokens 0, 5, 7; vLLM scatters the logits before sampling."""
    torch = pytest.importorskip("torch")
    logits = torch.full((1, 1, 8), -torch.inf)
    logits[0, 0, [0, 5, 7]] = torch.tensor([0.2, 0.5, 0.3]).log()
    assert hook_features(logits, token=5)["logit_q_sampled"] == pytest.approx(0.0, abs=1e-6)
    assert hook_features(logits, token=7)["logit_q_sampled"] == pytest.approx(np.log(0.3 / 0.7))
    assert hook_features(logits, token=1)["logit_q_sampled"] == -np.inf


def test_features_are_of_the_distribution_that_chose_the_token() -> None:
    """TorchSpec #177: the unary head gave A 0.6, the selector chose B with 0.7."""
    torch = pytest.importorskip("torch")
    selector = torch.tensor([0.3, 0.7]).log()[None, None]
    found = hook_features(selector, token=1)
    assert found["logit_qmax"] == found["logit_q_sampled"] == pytest.approx(np.log(0.7 / 0.3))
    assert Facts("DFlash2Speculator", "probabilistic").source == "candidates"
    assert Facts("EagleSpeculator", "probabilistic").source == "head"


def hook_features(logits: Any, *, token: int) -> dict[str, float]:
    """Return the features of one row as the vLLM hook computes them."""
    import torch

    from draftlab.hooks.draft_columns import FEATURES, draft_features

    out = torch.empty(1, 1, len(FEATURES))
    draft_features(logits, torch.tensor([0]), torch.ones(1), torch.tensor([[token]]), out)
    return dict(zip(FEATURES, out.flatten().tolist(), strict=True))
