"""Synthetic logs: consistent with themselves, with their truth, and with the log format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy.special import expit

from draftlab.errors import InputError
from draftlab.log.reader import open_log
from draftlab.log.summary import proposals
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from pathlib import Path

FLOAT32 = 2e-6  # relative rounding of the stored columns


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    return open_log(synth_log(tmp_path_factory.mktemp("log"), num_requests=300)).drafts.collect()


def test_labels_end_at_the_first_rejection(drafts: pl.DataFrame) -> None:
    labels = drafts["accepted"].to_list()
    for start in range(0, len(labels), 5):
        proposal = labels[start : start + 5]
        accepted = proposal.index(False) if False in proposal else 5
        assert proposal == ([True] * accepted + [False] + [None] * 5)[:5]


def test_rows_are_in_log_order_and_whole(drafts: pl.DataFrame) -> None:
    keys = drafts.select("step", "slot", "position")
    assert_frame_equal(keys, keys.sort("step", "slot", "position"))
    assert len(drafts) == 300 * 20 * 5
    assert keys.is_duplicated().sum() == 0


def test_features_agree_with_one_another(drafts: pl.DataFrame) -> None:
    top, margin, entropy, sampled = (
        drafts[name].to_numpy().astype(np.float64)
        for name in ("logit_qmax", "top2_margin", "entropy", "logit_q_sampled")
    )
    slack = 1e-5 * np.maximum(1, np.abs(top))
    assert (sampled <= top + slack).all()
    assert (top <= margin + slack).all()  # equal with two tokens, less with more
    assert (margin >= 0).all()
    assert (entropy >= -FLOAT32).all()
    assert (entropy <= np.log(16) + FLOAT32).all()
    assert (entropy >= -np.log(expit(top)) - 1e-5).all()  # entropy is at least -log max q
    # the top token is drawn as often as q says
    share, expected = (sampled == top).mean(), expit(top).mean()
    assert share == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(len(drafts)))


def test_overlap_is_the_true_probability(drafts: pl.DataFrame) -> None:
    logit, position = drafts["logit_qmax"].to_numpy().astype(float), drafts["position"].to_numpy()
    truth = expit(0.5 * logit + 0.5 - 0.25 * position)
    np.testing.assert_allclose(drafts["overlap"].to_numpy(), truth, rtol=FLOAT32)
    # the chance of the drawn token has it as its mean
    gap = drafts["accept_prob"].to_numpy().astype(float) - truth
    assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(len(gap))
    assert drafts["accept_prob"].is_between(0, 1).all()


@pytest.mark.parametrize("column", ["overlap", "accept_prob"])
def test_labels_follow_the_logged_probability(drafts: pl.DataFrame, column: str) -> None:
    rows = drafts.drop_nulls("accepted")
    y, prob = rows["accepted"].to_numpy(), rows[column].to_numpy().astype(float)
    z = (y - prob).sum() / np.sqrt((prob * (1 - prob)).sum())
    assert abs(z) < 4


def test_greedy_drafts_are_the_top_token(tmp_path: Path) -> None:
    rows = open_log(synth_log(tmp_path, drafting="greedy")).drafts.collect()
    assert (rows["logit_q_sampled"] == rows["logit_qmax"]).all()
    assert (rows["accept_prob"] == rows["overlap"]).all()


def test_the_log_is_labelled_and_tells_its_truth(tmp_path: Path) -> None:
    folder = synth_log(
        tmp_path, num_requests=5, num_positions=2, slope=0.7, intercepts=[1.0, 0.0],
        datasets={"a": 0.5, "b": 0.0}, request_effect_sd=0.3, seed=9,
    )  # fmt: skip
    run = json.loads((folder / "run.json").read_text())
    assert run["engine"].startswith("synthetic")
    assert run["target"].startswith("synthetic")
    assert run["closed"]
    assert run["rows"] == {"requests": 5, "drafts": 200, "steps": 20}
    assert run["provenance"]["seed"] == 9
    assert run["provenance"]["truth"] == {
        "slope": 0.7, "intercepts": [1.0, 0.0], "datasets": {"a": 0.5, "b": 0.0},
        "request_effect_sd": 0.3,
    }  # fmt: skip


def test_counts_of_steps_and_requests_agree_with_the_rows(tmp_path: Path) -> None:
    log = open_log(synth_log(tmp_path, num_requests=20, concurrency=16))
    drafts, steps, requests = (log.scan(name).collect() for name in ("drafts", "steps", "requests"))
    accepted = drafts.group_by("step").agg(pl.col("accepted").sum().cast(pl.Int32)).sort("step")
    assert steps["num_accepted"].to_list() == accepted["accepted"].to_list()
    assert steps["num_dropped"].sum() == 0
    assert steps["num_emitted"].sum() == requests["output_tokens"].sum()
    last = drafts.filter(pl.col("output_index") == pl.col("output_index").max().over("request"))
    tail = last.group_by("request").agg(
        pl.col("output_index").first() + pl.col("accepted").sum().cast(pl.Int32) + 1
    )
    assert tail.sort("request")["output_index"].to_list() == requests["output_tokens"].to_list()


def test_the_seed_decides(tmp_path: Path) -> None:
    first, again, other = (
        open_log(synth_log(tmp_path / str(i), num_requests=8, seed=seed, run="r")).drafts.collect()
        for i, seed in enumerate((1, 1, 2))
    )
    assert_frame_equal(first, again, check_exact=True)
    assert first["logit_qmax"].to_list() != other["logit_qmax"].to_list()


def test_request_effects_make_rows_of_a_request_alike(tmp_path: Path) -> None:
    def spread(sd: float) -> float:
        rows = open_log(
            synth_log(tmp_path, run=f"sd{sd}", slope=0.0, request_effect_sd=sd)
        ).drafts.collect()
        means = rows.filter(position=0).group_by("request").agg(pl.col("accepted").mean())
        return float(means["accepted"].std())  # type: ignore[arg-type]

    assert spread(2.0) > 2 * spread(0.0)


def test_bad_input_is_refused(tmp_path: Path) -> None:
    synth_log(tmp_path, num_requests=1)
    with pytest.raises(InputError, match="exists"):
        synth_log(tmp_path, num_requests=1)
    with pytest.raises(InputError, match="wanted 5 intercepts"):
        synth_log(tmp_path, intercepts=[1.0], run="other")


@pytest.mark.slow
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


@pytest.mark.slow
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
