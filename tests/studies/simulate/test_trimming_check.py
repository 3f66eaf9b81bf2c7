"""Simulated against live adaptive verification, on a tiny checkpoint with the same prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from draftlab import evaluate, open_log
from draftlab.engine.collect import CollectSettings, collect
from draftlab.errors import InputError
from draftlab.grading.cells import read_cells
from draftlab.policies.adaptive import AdaptiveVerification, coefficients_of, make_admission
from draftlab.policies.cost import CostTable, Curve
from draftlab.studies.simulate.proposals import read_proposals
from draftlab.studies.simulate.rehearsal import Drafts, Requests, rehearse
from draftlab.studies.simulate.trimming_check import TOLERANCE, rehearse_trimming, trimming_check
from tests.engine.test_collect import make_checkpoint
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

K = 3
COST = CostTable("toy", "model", verify=Curve((0, 1000), (20.0, 620.0)))
REQUESTS = 256
PAIRS = 4


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> CollectSettings:
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    prompts = tmp_path_factory.mktemp("prompts") / "letters.jsonl"
    lines = ("".join(rng.choice(letters, 12)) for _ in range(REQUESTS))
    prompts.write_text("\n".join(f'{{"id": "{i}", "prompt": "{t}"}}' for i, t in enumerate(lines)))
    return CollectSettings(
        target=make_checkpoint(tmp_path_factory.mktemp("target"), layers=3),
        prompts=(str(prompts),), temperature=1.0, top_p=0.95, concurrency=16, max_new_tokens=40,
        num_speculative_tokens=K, skip_layers=(1,), dtype="float32", head="none",
    )  # fmt: skip


@pytest.fixture(scope="module")
def pairs_off(settings: CollectSettings, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("off")
    return [collect(folder, replace(settings, seed=seed)) for seed in range(PAIRS)]


@pytest.fixture(scope="module")
def off(pairs_off: list[Path]) -> Path:
    return pairs_off[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logit_qmax", "online-vllm"])
def test_simulation_and_engine_agree(
    name: str, settings: CollectSettings, pairs_off: list[Path], tmp_path: Path
) -> None:
    """Within 3 % on average over pairs of logs, whose own chance is about 2 % each."""
    known = coefficients_of(evaluate(pairs_off[0], predictors=["logit_qmax"]).coefficients)

    def make() -> AdaptiveVerification:
        return make_admission(name, COST, K, coefficients=known)

    tables = []
    for seed, log in enumerate(pairs_off, start=PAIRS):
        live = collect(tmp_path, replace(settings, seed=seed), admission=make())
        found = rehearse_trimming(log, live, make())
        assert (found.policy, found.concurrency) == (f"av/{name}", 16)
        assert found.num_requests == REQUESTS
        assert 200 < found.num_prompts <= REQUESTS  # some end with their first token
        if log == pairs_off[0]:  # the log that the predictor was fitted on
            assert trimming_check(log, live, cost=COST).measures.equals(found.measures)
        tables.append(found.measures)
    for measure in ("acceptance_length", "verified_per_step"):
        rows = pl.concat(tables).filter(measure=measure)
        assert abs(rows["relative"].to_numpy().mean()) < TOLERANCE, rows
        assert ((rows["difference"] / rows["standard_error"]).abs() < 4).all(), rows
        assert (rows["standard_error"] < 0.1).all(), rows
        if measure == "verified_per_step":
            assert rows["simulated"].is_between(0.2, K - 0.2).all(), rows  # it does trim


@pytest.mark.slow
def test_a_rehearsal_on_the_live_proposals_is_the_live_run(
    settings: CollectSettings, off: Path, tmp_path: Path
) -> None:
    """Slots, queue, prompts, budgets and the drain at the end: every step, to the draft."""
    known = coefficients_of(evaluate(off, predictors=["logit_qmax"]).coefficients)

    def make() -> AdaptiveVerification:
        return make_admission("logit_qmax", COST, K, coefficients=known)

    live = open_log(collect(tmp_path, settings, admission=make()))
    graded = live.drafts.filter(pl.col("verify_step").is_not_null())
    proposals = (
        graded.sort("request", "step", "position")
        .group_by("request", "step", maintain_order=True)
        .agg("logit_qmax", "verify_step", "admitted", "accepted")
        .collect()
    )
    requests = live.requests.sort("request").collect()
    of = proposals["request"].to_numpy()
    accepted = proposals["accepted"].list.sum().to_numpy().astype(np.int64)
    found = rehearse(
        Requests(
            np.searchsorted(of, requests["request"].to_numpy()),
            np.bincount(of, minlength=len(requests)),
            requests["prompt_tokens"].to_numpy().astype(np.int64),
            requests["output_tokens"].to_numpy().astype(np.int64),
        ),
        Drafts(
            {"logit_qmax": np.array(proposals["logit_qmax"].to_list(), dtype=np.float64)},
            accepted,
            np.ones_like(accepted),
            np.minimum(accepted + 1, K),
        ),
        make(),
        slots=settings.concurrency,
    )
    steps = live.steps.filter(pl.col("num_requests") > 0).collect()
    assert len(found.step_ms) == len(steps)
    order = np.lexsort((np.arange(len(found.request)), found.request))
    sent = proposals["admitted"].list.sum().to_numpy()
    np.testing.assert_array_equal(found.request[order], of)
    np.testing.assert_array_equal(found.verified[order], sent)


def test_a_verdict_is_not_cut_at_the_end_of_its_request(tmp_path: Path) -> None:
    """All three were accepted, the request ended behind the first: rehearsed it goes on."""
    stop = np.array([0, 0, 64], dtype=np.uint16)
    log = write_log(tmp_path, [proposal(0, [True] * K, excluded=stop)], num_speculative_tokens=K)
    [cell] = read_cells(open_log(log), ["logit_qmax"])
    proposals = read_proposals(cell, ["logit_qmax"], num_folds=2)
    assert (proposals.accepted.tolist(), proposals.bonus.tolist()) == ([2], [0])
    assert proposals.num_survived.tolist() == [3]


@pytest.mark.slow
def test_logs_that_do_not_belong_together_are_refused(off: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="off in the first log and by qmax in the second"):
        rehearse_trimming(off, off, make_admission("qmax", COST, K))
    other = write_log(tmp_path, [proposal(0, [True, False])], adaptive_verification="qmax")
    with pytest.raises(InputError, match="not of one pair"):
        rehearse_trimming(off, other, make_admission("qmax", COST, K))
    write_log(tmp_path, [proposal(0, [True, False])])
    with pytest.raises(InputError, match="wanted one run"):
        rehearse_trimming(off, tmp_path, make_admission("qmax", COST, K))
