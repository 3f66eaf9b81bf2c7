"""Kept (p, q) rows agree with the log and stay bounded; live trimming is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab import open_log
from draftlab.engine.collect import CollectSettings, collect
from draftlab.engine.distributions import TAIL, DistributionSample
from draftlab.errors import InputError
from draftlab.log.checks import run_checks
from draftlab.policies.adaptive import make_admission
from draftlab.policies.cost import CostTable, Curve
from draftlab.studies.audit.audit import audit, read_distributions
from draftlab.studies.simulate.simulate import simulate
from tests.engine.models import make_decoder, run, tiny_model
from tests.engine.test_adaptive import sampled
from tests.engine.test_collect import make_checkpoint
from tests.engine.test_decode import graded

if TYPE_CHECKING:
    from pathlib import Path

COST = CostTable("toy", "model", verify=Curve((0, 1000), (20.0, 420.0)))


def kept(num_rows: int, *, vocab: int = 6) -> tuple[DistributionSample, dict[str, Any]]:
    decoder = make_decoder(tiny_model(3, vocab=vocab), slots=4, num_speculative_tokens=3)
    decoder.distributions = DistributionSample(num_rows)
    return decoder.distributions, graded(run(decoder, sampled(8))[1])


def test_every_observed_row_is_kept_while_there_is_room() -> None:
    sample, columns = kept(10_000)
    observed = ~columns["accepted"].mask & (columns["excluded"] == 0)
    assert len(sample.rows) == observed.sum()
    logged = {
        key: (overlap, accept)
        for *key_parts, overlap, accept in zip(
            *(columns[n][observed].tolist() for n in ("step", "slot", "position")),
            columns["overlap"][observed].tolist(),
            columns["accept_prob"][observed].tolist(),
            strict=True,
        )
        for key in [tuple(key_parts)]
    }
    for row in sample.rows:
        overlap, _ = logged[row["step"], row["slot"], row["position"]]
        assert np.minimum(row["p"], row["q"]).sum() == pytest.approx(overlap, abs=1e-12)
        assert (row["p"].sum(), row["q"].sum()) == pytest.approx((1.0, 1.0))


def test_the_sample_is_bounded_and_even() -> None:
    """Over 200 seeds each of 40 offered rows is kept 10 / 40 of the time."""
    import torch

    from draftlab.engine.sampling import Support

    keys = {name: np.arange(40) for name in ("request", "step", "slot", "position")}
    p = torch.full((40, 2), 0.5, dtype=torch.float64)
    support = Support(p, torch.arange(2).expand(40, 2), dense=True)
    counts = np.zeros(40)
    for seed in range(200):
        sample = DistributionSample(10, seed)
        sample.add(keys, np.ones(40, dtype=bool), support, p)
        assert len(sample.rows) == 10
        for row in sample.rows:
            counts[row["step"]] += 1
    # sd of a count is sqrt(200 * 0.25 * 0.75) = 6.1
    assert abs(counts - 50).max() < 25
    assert counts.sum() == 2000


def test_what_is_not_kept_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftlab.engine.distributions.TOP_TOKENS", 4)
    sample, _ = kept(50, vocab=40)
    for row in sample.rows:
        assert row["tokens"][-1] == TAIL
        assert 5 <= len(row["tokens"]) <= 9
        assert row["q"].sum() == pytest.approx(1.0)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> CollectSettings:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("target"))
    prompts = tmp_path_factory.mktemp("prompts") / "letters.jsonl"
    words = ["abc", "hello", "some words", "the cat", "zebra", "quick fox", "lazy dog", "a b c d"]
    prompts.write_text(
        "\n".join(f'{{"id": "{i}", "prompt": "{word}"}}' for i, word in enumerate(words))
    )
    return CollectSettings(
        target=checkpoint, prompts=(str(prompts),), temperature=1.0, top_p=0.9, concurrency=4,
        max_new_tokens=40, num_speculative_tokens=3, skip_layers=(1,), dtype="float32",
        log_distributions=64, seed=3,
    )  # fmt: skip


@pytest.mark.slow
def test_a_collected_log_is_audited(settings: CollectSettings, tmp_path: Path) -> None:
    folder = collect(tmp_path, settings)
    rows = read_distributions(folder)
    assert rows is not None
    assert 32 <= len(rows) <= 64
    result = audit(folder, thresholds=(0.5, 0.7, 0.8, 0.9))
    measured = result.checks.filter(kind="measured")
    exact = measured.filter(pl.col("lossless"))
    assert exact["total_variation_max"].max() <= 1e-12  # type: ignore[operator]
    lossy = measured.filter(~pl.col("lossless"))
    assert lossy["total_variation"].max() > 1e-3  # type: ignore[operator]
    assert result.passed


def test_trimming_is_written_down(settings: CollectSettings, tmp_path: Path) -> None:
    admission = make_admission("online-vllm", COST, 3)
    folder = collect(tmp_path, settings, admission=admission)
    log = open_log(folder)
    [metadata] = [r.metadata for r in log.runs]
    assert metadata["adaptive_verification"] == "online-vllm"
    assert metadata["estimator_start"]["slope"] == 0.5
    drafts = log.drafts.collect()
    assert 0 < drafts["admitted"].mean() < 1  # type: ignore[operator]
    assert drafts.filter(~pl.col("admitted"))["accepted"].null_count() == (
        drafts.height - drafts["admitted"].sum()
    )
    assert drafts["live_prediction"].null_count() == 0
    steps = log.steps.filter(pl.col("budget").is_not_null()).collect()
    assert (steps["num_admitted"] == steps["budget"]).all()
    assert set(steps["budget_reason"]) <= {"search", "all", "none", "flat table"}
    errors = [f for f in run_checks(log) if f.severity == "error"]
    assert not errors, errors
    with pytest.raises(InputError, match="left drafts unverified"):
        simulate(folder, COST)
