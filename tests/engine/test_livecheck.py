"""Simulated against live adaptive verification, on a tiny checkpoint with the same prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from draftlab import evaluate
from draftlab.engine.collect import Settings, collect
from draftlab.errors import InputError
from draftlab.livecheck import compare_live
from draftlab.policies.cost import CostTable, Curve
from draftlab.policies.live import AdaptiveVerification, make_admission
from tests.engine.test_collect import make_checkpoint
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

K = 3
COST = CostTable("toy", "model", verify=Curve((0, 1000), (20.0, 620.0)))
REQUESTS = 256
SCHEDULE = 0.07


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    prompts = tmp_path_factory.mktemp("prompts") / "letters.jsonl"
    lines = ("".join(rng.choice(letters, 12)) for _ in range(REQUESTS))
    prompts.write_text("\n".join(f'{{"id": "{i}", "prompt": "{t}"}}' for i, t in enumerate(lines)))
    return Settings(
        target=make_checkpoint(tmp_path_factory.mktemp("target"), layers=3),
        prompts=(str(prompts),), temperature=1.0, top_p=0.95, concurrency=16, max_new_tokens=40,
        num_speculative_tokens=K, skip_layers=(1,), dtype="float32", head="none",
    )  # fmt: skip


@pytest.fixture(scope="module")
def off(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect(tmp_path_factory.mktemp("off"), settings)


@pytest.mark.parametrize("name", ["logit_qmax", "online-vllm"])
def test_simulation_and_engine_agree(
    name: str, settings: Settings, off: Path, tmp_path: Path
) -> None:
    table = evaluate(off, predictors=["logit_qmax"]).coefficients
    whole = table.filter(table["dataset"].is_null() & table["fold"].is_null()).sort("position")
    known = {"logit_qmax": (whole["slope"].to_numpy(), whole["intercept"].to_numpy())}

    def make() -> AdaptiveVerification:
        return make_admission(name, COST, K, coefficients=known)

    live = collect(tmp_path, replace(settings, seed=1), admission=make())
    found = compare_live(off, live, make())
    rows = {row["measure"]: row for row in found.table.iter_rows(named=True)}
    assert rows["acceptance_length"]["agrees"], found.table
    # short requests: how the few last steps drain moves the mean by some percent either way
    assert abs(rows["verified_per_step"]["relative"]) < SCHEDULE, found.table
    assert (found.policy, found.concurrency) == (f"av/{name}", 16)
    assert found.num_requests == REQUESTS
    assert 200 < found.num_groups <= REQUESTS  # some end with their first token
    assert 0.2 < rows["verified_per_step"]["simulated"] < K - 0.2  # it does trim
    assert rows["verified_per_step"]["standard_error"] < 0.1


def test_logs_that_do_not_belong_together_are_refused(off: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="off in the first log and by qmax in the second"):
        compare_live(off, off, make_admission("qmax", COST, K))
    other = write_log(tmp_path, [proposal(0, [True, False])], adaptive_verification="qmax")
    with pytest.raises(InputError, match="not of one pair"):
        compare_live(off, other, make_admission("qmax", COST, K))
    write_log(tmp_path, [proposal(0, [True, False])])
    with pytest.raises(InputError, match="wanted one run"):
        compare_live(off, tmp_path, make_admission("qmax", COST, K))
