"""Simulation: closed forms, accounting by hand, known truth, and what must be refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.errors import InputError
from draftlab.grading.cells import read_cells
from draftlab.log.reader import open_log
from draftlab.log.writer import LogWriter
from draftlab.policies.cost import CostTable, Curve
from draftlab.predictors.baselines import PREDICTORS
from draftlab.studies.simulate.batches import Rule, admit_adaptively
from draftlab.studies.simulate.costs import cost_of_log
from draftlab.studies.simulate.gains import REASONS, explain_no_gain
from draftlab.studies.simulate.policies import POLICIES, Job, Policy, Sent, make_jobs
from draftlab.studies.simulate.proposals import Predictions, calibrated, read_proposals, reordered
from draftlab.studies.simulate.simulate import (
    POLICIES_BY_DEFAULT,
    Simulation,
    simulate,
)
from draftlab.synth import synth_log
from tests.logs import METADATA, proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

# Two ways to add the same numbers may differ by rounding.
CLOSE = 1e-9
LOADED = CostTable(
    "loaded", "model", verify=Curve((0, 1000), (5.0, 205.0)), draft=Curve((1,), (2.0,))
)
"""A draft costs 0.2 ms, so that at 32 requests trimming pays."""
LOW_LOAD = "at low load nearly every draft pays, so nothing is trimmed"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth_log(
        tmp_path_factory.mktemp("log"),
        num_requests=400,
        datasets={"easy": 0.5, "hard": -0.7},
        request_effect_sd=0.3,
    )


@pytest.fixture(scope="module")
def result(run: Path) -> Simulation:
    return simulate(run, LOADED, concurrencies=[1, 32])


def pick(table: pl.DataFrame, **equal: Any) -> dict[str, Any]:
    rows = table.filter(
        *(pl.col(k).is_null() if v is None else pl.col(k) == v for k, v in equal.items())
    )
    assert rows.height == 1, rows
    return rows.row(0, named=True)


def test_fixed_lengths_are_their_closed_form(run: Path, result: Simulation) -> None:
    """At concurrency 1 every proposal runs once: a mean of emitted tokens over one step time."""
    [cell] = read_cells(open_log(run), [])
    accepted = read_proposals(cell, [], num_folds=5).accepted
    for length in range(6):
        row = pick(result.frontier, policy="fixed", dataset=None, concurrency=1,
                   verify_length=length)  # fmt: skip
        emitted = 1 + np.minimum(accepted, length).mean()
        step_ms = LOADED.step_ms(1, 1 + length, min(length, 1))
        assert row["acceptance_length"] == pytest.approx(emitted, rel=CLOSE)
        assert row["tokens_per_second"] == pytest.approx(1e3 * emitted / step_ms, rel=CLOSE)
        assert row["verified_per_step"] == length
        lost = np.maximum(accepted - length, 0).mean()
        assert row["lost"] == pytest.approx(lost, abs=CLOSE)


def test_length_zero_is_plain_decoding(result: Simulation) -> None:
    for row in result.frontier.filter(verify_length=0).iter_rows(named=True):
        c = row["concurrency"]
        step_ms = LOADED.step_ms(c, c, 0)  # a token a request and no drafting
        assert row["tokens_per_second"] == pytest.approx(1e3 * c / step_ms, rel=CLOSE)
        assert (row["acceptance_length"], row["wasted"]) == (1.0, 0.0)


def test_a_cap_holds_and_a_cap_of_zero_verifies_nothing(run: Path) -> None:
    for cap in (0, 40):
        found = simulate(
            run, LOADED, predictors=["logit_qmax"], concurrencies=[32], cap=cap, by_dataset=False
        )
        row = pick(found.frontier, policy="av")
        assert row["verified_per_step"] <= cap / 32 + CLOSE
        if cap == 0:
            assert row["acceptance_length"] == 1.0


def test_more_budget_never_hurts_the_oracle(run: Path) -> None:
    """Step by step: the rate that a clairvoyant expects is the one it gets."""
    [cell] = read_cells(open_log(run), [])
    proposals = read_proposals(cell, [], num_folds=5)
    truth = Predictions(proposals, []).labels()
    rows = np.arange(len(proposals) // 8 * 8).reshape(-1, 8)
    step_ms = 5.0 + 0.4 * np.arange(8 * 5 + 1)
    before = np.zeros(len(rows))
    for cap in range(0, 41, 5):
        admitted = admit_adaptively(truth, proposals.age, rows, step_ms, Rule(lag=0, cap=cap))
        assert (admitted.sum(axis=1) <= cap).all()
        emitted = (1 + np.minimum(admitted, proposals.accepted[rows])).sum(axis=1)
        rate = emitted / step_ms[admitted.sum(axis=1)]
        assert (rate >= before - CLOSE).all()
        before = rate


def test_a_clairvoyant_wastes_nothing(result: Simulation) -> None:
    row = pick(result.frontier, policy="clairvoyant", dataset=None, concurrency=32)
    assert row["wasted"] == 0.0
    best = result.frontier.filter(pl.col("dataset").is_null(), concurrency=32)
    assert row["tokens_per_second"] == best["tokens_per_second"].max()


def test_known_truth_orders_the_predictors(result: Simulation) -> None:
    """The synthetic log follows logit_qmax up to request effects; the oracle knows those too."""
    gains = result.gains.filter(pl.col("dataset").is_null(), concurrency=32, policy="av")
    gain = dict(zip(gains["predictor"], gains["gain"], strict=True))
    assert gain["oracle"] >= gain["hybrid"] - 0.005
    assert gain["oracle"] > gain["logit_qmax"] > max(gain["per_position"], gain["constant"])
    assert gain["logit_qmax"] > 0.05
    captured = dict(zip(gains["predictor"], gains["captured"], strict=True))
    assert captured["oracle"] == 1.0
    assert 0.3 < captured["logit_qmax"] < 1.0
    assert gain["online-vllm"] == pytest.approx(gain["logit_qmax"], abs=0.04)


def test_at_low_load_there_is_no_gain_and_a_reason(run: Path, result: Simulation) -> None:
    """At concurrency 1 a draft is cheap next to the step: hardly one is trimmed."""
    cheap = CostTable("cheap", "model", verify=Curve((0, 1000), (5.0, 10.0)))
    found = simulate(run, cheap, predictors=["logit_qmax", "oracle"], concurrencies=[1])
    row = pick(found.gains, predictor="logit_qmax", dataset="easy")
    assert row["gain"] == pytest.approx(0.0, abs=0.005)
    assert row["reason"] in {"low_load", "no_oracle_gain"}
    assert row["reason_text"].startswith("at low load") or "oracle gains" in row["reason_text"]
    loaded = result.gains.filter(policy="av", concurrency=32)
    assert loaded["reason"].null_count() == loaded.height


def test_a_flat_table_gains_nothing_and_says_why(run: Path) -> None:
    flat = CostTable("flat", "measured", verify=Curve((1, 9999), (5.0, 5.0)))
    found = simulate(run, flat, predictors=["logit_qmax"], concurrencies=[8], by_dataset=False)
    row = pick(found.gains, policy="av")
    assert row["gain"] == 0.0
    assert row["reason"] == "flat_table"
    assert row["reason_text"].startswith(
        "the cost table is flat: a step costs the same with 0 and with 40"
    )
    assert any(
        note.endswith("av/logit_qmax gains nothing at concurrency 8: the cost table is flat")
        for note in map(str, found.notes)
    )


def test_policies_that_gain_nothing_alike_share_a_line(run: Path) -> None:
    flat = CostTable("flat", "measured", verify=Curve((1, 9999), (5.0, 5.0)))
    predictors = ["logit_qmax", "entropy"]
    found = simulate(run, flat, predictors=predictors, concurrencies=[8, 32], by_dataset=False)
    [line] = [note for note in map(str, found.notes) if "nothing at concurrency" in note]
    assert line.endswith(
        "av/logit_qmax, av/entropy gain nothing at concurrency 8, 32: the cost table is flat"
    )


def test_a_table_of_one_size_is_told_whole(run: Path) -> None:
    single = CostTable("single", "measured", verify=Curve((16,), (5.0,)))
    found = simulate(run, single, predictors=["logit_qmax"], concurrencies=[8], by_dataset=False)
    assert found.gains["reason"].to_list() == ["one_size_table"]
    [line] = [note for note in map(str, found.notes) if "nothing at concurrency" in note]
    assert line.endswith("concurrency 8: the cost table is flat (only one batch size was measured)")


def test_reasons_are_grouped_by_code_whatever_their_text() -> None:
    """A text that holds a colon, a bracket or the word table groups like any other."""
    common: dict[str, Any] = {
        "cost": "c",
        "dataset": None,
        "predictor": "qmax",
        "verify_length": None,
    }
    rows = [
        common | {"policy": policy, "concurrency": c, "reason": code, "reason_text": f"{c}: (table"}
        for policy, code in (("av", "low_load"), ("dspark", "low_load"), ("threshold", None))
        for c in (1, 2)
    ]
    rows.append(rows[0] | {"dataset": "x"})
    [found] = explain_no_gain(rows)
    assert found.code == "low_load"
    assert found.text == f"c: av/qmax, dspark/qmax gain nothing at concurrency 1, 2: {LOW_LOAD}"


def test_every_reason_is_known(result: Simulation) -> None:
    told = result.gains.filter(pl.col("reason").is_not_null())
    assert set(told["reason"]) <= set(REASONS)
    assert told["reason_text"].null_count() == 0
    assert result.gains["reason_text"].null_count() == result.gains.height - told.height


def test_a_drafter_that_never_pays_cannot_be_tested(run: Path) -> None:
    dear = CostTable(
        "here", "measured", verify=Curve((1, 1000), (5.0, 50.0)), draft=Curve((1,), (90.0,))
    )
    found = simulate(run, [dear, LOADED], predictors=["logit_qmax"], concurrencies=[8, 32])
    told = [note for note in map(str, found.notes) if "plain decoding beats every policy" in note]
    assert len(told) == 1
    assert "here" in told[0]
    assert set(found.frontier["cost_source"]) == {"measured", "model"}


def test_stopping_rules_save_draft_time(run: Path) -> None:
    slow = CostTable(
        "slow drafter", "model", verify=Curve((1, 9999), (5.0, 5.0)),
        draft=Curve((1,), (50.0,)), draft_passes=5,
    )  # fmt: skip
    specs = ["fixed", "threshold/logit_qmax", "specdec/logit_qmax", "draft-verify"]
    found = simulate(run, slow, policies=specs, concurrencies=[1], by_dataset=False)
    speed = {
        (row["policy"], row["verify_length"]): row["tokens_per_second"]
        for row in found.frontier.iter_rows(named=True)
    }
    full = speed["fixed", 5]
    assert all(speed[name, None] > 1.2 * full for name in ("threshold", "specdec", "draft-verify"))


def test_losslessness_is_derived(result: Simulation) -> None:
    def lossless(spec: str, drafting: Any = "probabilistic") -> bool:
        [job] = make_jobs([spec], 5)
        return job.lossless(drafting)

    assert lossless("av/logit_qmax")
    assert lossless("av/hybrid")
    assert lossless("av/online-vllm")
    assert not lossless("av/logit_q_sampled")
    assert lossless("av/logit_q_sampled", "greedy")
    assert not lossless("av/online-early-drawn")
    assert not lossless("threshold/logit_q_sampled")
    assert lossless("specdec/logit_q_sampled")  # it stops behind the token
    assert lossless("draft-verify")
    assert not lossless("clairvoyant")
    assert result.frontier.filter(policy="av")["lossless"].all()


def test_every_default_is_there(result: Simulation) -> None:
    jobs = [j for j in make_jobs(POLICIES_BY_DEFAULT, 5) if "confidence" not in (j.predictor or "")]
    rows = result.frontier.filter(pl.col("dataset").is_null(), concurrency=1)
    assert rows.height == len(jobs)
    assert set(result.frontier["dataset"]) == {None, "easy", "hard"}
    assert result.frontier["on_frontier"].any()
    assert not any("confidence" in note for note in map(str, result.notes))
    names = {"low": result.frontier["tokens_per_second_low"], "high": result.frontier["lost_high"]}
    assert all(values.is_not_null().all() for values in names.values())


def test_policies_meet_the_same_batches(run: Path, result: Simulation) -> None:
    """Common random numbers: a policy alone gets the figures it gets among others."""
    alone = simulate(run, LOADED, policies=["av/logit_qmax"], concurrencies=[32])
    for dataset in (None, "hard"):
        where = {"policy": "av", "predictor": "logit_qmax", "dataset": dataset, "concurrency": 32}
        one, other = pick(alone.frontier, **where), pick(result.frontier, **where)
        assert one["tokens_per_second"] == other["tokens_per_second"]
        # the fixed lengths that a gain is measured against are there without being named
        assert pick(alone.gains, **where)["gain"] == pick(result.gains, **where)["gain"]


def test_concurrency_above_the_number_of_requests(run: Path) -> None:
    found = simulate(run, LOADED, predictors=["logit_qmax"], concurrencies=[1000], by_dataset=False)
    row = pick(found.frontier, policy="av")
    assert row["n_steps"] == 200
    assert row["n_prompts"] <= 400


def test_regret_is_split(result: Simulation) -> None:
    rows = result.regret.filter(pl.col("dataset").is_null())
    assert rows["concurrency"].unique().to_list() == [32]
    by_name = {row["predictor"]: row for row in rows.iter_rows(named=True)}
    constant, qmax = by_name["constant"], by_name["qmax"]
    # a constant has no order to keep: calibrating it per position is not enough
    assert constant["ranking"] > 0.03
    assert constant["regret"] >= constant["ranking"] - 0.01
    # raw q is out of scale on this log: in the oracle's order it still loses
    assert qmax["calibration"] > by_name["logit_qmax"]["calibration"]
    assert by_name["hybrid"]["regret"] < constant["regret"]


def test_calibration_and_reordering_of_survivals() -> None:
    rng = np.random.default_rng(0)
    prob = rng.random((2, 4000)).cumprod(axis=0)
    truth = (rng.random(4000) < prob).astype(np.float32)
    own = prob**3  # the right order on a wrong scale
    fold = np.arange(4000) % 5
    assert np.abs(calibrated(own, truth, fold) - prob).mean() < 0.06
    back = reordered(own, prob)
    np.testing.assert_allclose(back, np.minimum.accumulate(own, axis=0), rtol=1e-6)


def test_requests_that_stop_inside_their_drafts(tmp_path: Path) -> None:
    """The stop token is the second of three accepted drafts: two are emitted, no bonus."""
    stop = proposal(1, [True, True, True], excluded=[0, 0, 64])
    log = write_log(tmp_path, [proposal(0, [True, False, None]), stop], num_speculative_tokens=3)
    [cell] = read_cells(open_log(log), [])
    found = read_proposals(cell, [], num_folds=5)
    assert found.accepted.tolist() == [1, 2]
    assert found.bonus.tolist() == [1, 0]
    assert found.labelled.tolist() == [2, 2]
    assert found.age.tolist() == [0, 1]


def test_requests_that_end_with_their_last_draft(tmp_path: Path) -> None:
    """Of five tokens three stood before: two accepted drafts leave no room for a bonus."""
    rows = [
        proposal(0, [True, True], output_index=np.array([1, 1])),
        proposal(1, [True, True], output_index=np.array([3, 3])),
    ]
    [cell] = read_cells(open_log(write_log(tmp_path, rows)), [])
    found = read_proposals(cell, [], num_folds=5)
    assert found.accepted.tolist() == [2, 2]
    assert found.bonus.tolist() == [1, 0]


def test_incomplete_proposals_are_left_out(tmp_path: Path) -> None:
    rows = [
        proposal(0, [True, True]),
        proposal(1, [True]),
        proposal(2, [True, None], excluded=[0, 4]),
        proposal(3, [None, None], admitted=[False, False]),
        proposal(4, [False, None]),
    ]
    [cell] = read_cells(open_log(write_log(tmp_path, rows)), [])
    found = read_proposals(cell, [], num_folds=5)
    assert found.accepted.tolist() == [2, 0]
    assert found.num_dropped == 3
    with pytest.raises(InputError, match="no proposal has all 2 drafts"):
        simulate(write_log(tmp_path / "b", rows[1:3]), LOADED, policies=["fixed"])


def test_what_the_log_lacks_is_left_out_and_said(tmp_path: Path) -> None:
    log = write_log(tmp_path, [proposal(t, [True, t % 2 == 0], request=t) for t in range(8)])
    found = simulate(log, LOADED, predictors=["oracle", "constant"], concurrencies=[1])
    assert found.frontier["predictor"].drop_nulls().unique().to_list() == ["constant"]
    assert any("av/oracle is left out" in note for note in map(str, found.notes))
    assert found.regret.is_empty()


def test_predictions_are_cross_fitted(run: Path) -> None:
    [cell] = read_cells(open_log(run), ["logit_qmax"])
    proposals = read_proposals(cell, ["logit_qmax"], num_folds=5)
    predictions = Predictions(proposals, [PREDICTORS["logit_qmax"]])
    log_odds, feature = predictions.log_odds("logit_qmax"), predictions.feature("logit_qmax")
    for fold in range(5):
        inside = proposals.fold == fold
        slopes = np.ptp(log_odds[inside, 0]) / np.ptp(feature[inside, 0])
        assert slopes == pytest.approx(0.47, abs=0.05)  # request effects flatten it
    survival = predictions.survival("logit_qmax")
    assert survival.shape == (5, len(proposals))
    assert (np.diff(survival, axis=0) <= 0).all()


def test_a_log_under_adaptive_verification_is_refused(tmp_path: Path) -> None:
    rows = [proposal(t, [True, t % 2 == 0]) for t in range(4)]
    log = write_log(tmp_path, rows, adaptive_verification="logit_qmax")
    with pytest.raises(InputError, match="left drafts unverified"):
        simulate(log, LOADED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ["magic"]}, "unknown policy 'magic'; known: fixed"),
        ({"policies": ["av"]}, "wanted av/PREDICTOR"),
        ({"policies": ["fixed/qmax"]}, "wanted fixed"),
        ({"policies": ["av/magic"]}, "unknown predictor 'magic' of policy av"),
        ({"policies": ["threshold/hybrid"]}, "unknown predictor 'hybrid'"),
        ({"policies": ["fixed"], "predictors": ["qmax"]}, "not both"),
        ({"concurrencies": [0]}, "at least 1"),
        ({"concurrencies": []}, "at least 1"),
        ({"cap": -1}, "cap must be"),
    ],
)
def test_bad_input_is_refused(run: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(run, LOADED, **options)
    with pytest.raises(InputError, match="no cost table"):
        simulate(run, [])


def test_results_are_written(result: Simulation, tmp_path: Path) -> None:
    folder = result.write(tmp_path)
    content = json.loads((folder / "result.json").read_text())
    assert content["command"] == "simulate"
    assert list(content["tables"]) == ["frontier", "gains", "regret"]
    for name in ("frontier", "gains", "regret"):
        assert pl.read_parquet(folder / f"{name}.parquet").equals(getattr(result, name))


def test_a_cost_table_from_the_steps_of_a_log(tmp_path: Path) -> None:
    with LogWriter(tmp_path, METADATA) as log:
        for step in range(12):
            n = 2 + step % 2
            log.step(
                {
                    "step": step, "num_requests": n, "num_non_draft_tokens": n,
                    "num_admitted": 2 * n, "verify_ms": 10.0 * n, "draft_ms": 3.0,
                },
                proposal(step, [True, False]),
            )  # fmt: skip
        prompt = {"num_requests": 1, "num_non_draft_tokens": 900, "verify_ms": 1e6}
        log.step({"step": 12, **prompt}, None)
        log.request(0, group="g", dataset="d", temperature=1.0)
    table = cost_of_log(log.folder)
    assert (table.verify.sizes, table.verify.ms) == ((6, 9), (20.0, 30.0))
    assert table.source == "measured"
    assert table.draft.at(2) == 3.0


def test_a_policy_has_a_rule_or_a_stop() -> None:
    assert all((policy.rule is None) != (policy.stop is None) for policy in POLICIES.values())


def test_a_stopping_rule_is_one_entry(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that always sends two drafts does what the fixed length of two does."""
    always_two = Policy(
        "always-two", "two drafts", "conditional",
        stop=lambda runner, _: Sent(*(np.full(len(runner.proposals), 2) for _ in range(2))),
    )  # fmt: skip
    monkeypatch.setitem(POLICIES, always_two.name, always_two)
    found = simulate(run, LOADED, policies=["fixed", "always-two/qmax"], concurrencies=[4])
    for dataset in (None, "hard"):
        row = pick(found.frontier, policy="always-two", dataset=dataset)
        equal = pick(found.frontier, policy="fixed", dataset=dataset, verify_length=2)
        assert row["tokens_per_second"] == equal["tokens_per_second"]
        assert row["acceptance_length"] == equal["acceptance_length"]
        assert (row["predictor"], row["lossless"]) == ("qmax", True)


def test_policies_are_documented() -> None:
    assert all(policy.doc and policy.name == name for name, policy in POLICIES.items())
    assert Job(POLICIES["av"], "qmax", None, ("logit_qmax",)).name == "av/qmax"


@pytest.mark.slow
def test_sts_heals_an_overconfident_head_and_never_sees_its_own_fold(tmp_path: Path) -> None:
    """A head three times too sure: the temperatures found are 3, and other folds' labels alone."""
    rng = np.random.default_rng(3)
    with LogWriter(tmp_path, METADATA | {"num_speculative_tokens": 3}) as log:
        for request in range(500):
            log.request(request, group=f"g{request}", dataset="x", temperature=1.0)
            for step in range(4):
                true = rng.normal(0.5, 1.0, 3)
                alive = np.cumprod(rng.random(3) < 1 / (1 + np.exp(-true))).astype(bool)
                seen = np.append(True, alive[:-1])
                labels = [bool(a) if s else None for a, s in zip(alive, seen, strict=True)]
                rows = proposal(4 * request + step, labels, request=request, confidence=3 * true)
                log.step({"step": 4 * request + step}, rows)
    [cell] = read_cells(open_log(log.folder), ["confidence"])
    proposals = read_proposals(cell, ["confidence"], num_folds=5)
    found = Predictions(proposals, [PREDICTORS["confidence"]])
    raw, scaled = found.log_odds("confidence"), found.log_odds("confidence-sts")
    inside = proposals.fold == 0
    assert (raw / scaled).mean() == pytest.approx(3.0, rel=0.15)
    flipped = replace(proposals, accepted=np.where(inside, 0, proposals.accepted))
    other = Predictions(flipped, [PREDICTORS["confidence"]]).log_odds("confidence-sts")
    np.testing.assert_array_equal(other[inside], scaled[inside])
    assert not np.array_equal(other[~inside], scaled[~inside])
    gains = simulate(log.folder, LOADED, predictors=["confidence", "confidence-sts"],
                     concurrencies=[32]).gains  # fmt: skip
    speed = dict(zip(gains["predictor"], gains["tokens_per_second"], strict=True))
    assert speed["confidence-sts"] > speed["confidence"]


def write_trees(folder: Path, **changes: Any) -> Path:
    """Write 240 greedy proposals of three drafts with two alternatives each, log q 0.7 and 0.2.

    The target takes the drafter's second token where it rejects an even proposal, and a token
    outside the alternatives where it rejects an odd one.
    """
    rng = np.random.default_rng(1)
    K, width = 3, 2
    with LogWriter(folder, METADATA | {"num_speculative_tokens": K, "drafting": "greedy"}) as log:
        for request in range(240):
            log.request(request, group=f"g{request}", dataset="x", temperature=0.0)
            accepted = int(rng.integers(0, K + 1))
            labels = [k < accepted if k <= accepted else None for k in range(K)]
            other = 1 if request % 2 == 0 else 5
            columns: dict[str, Any] = {
                "target_rank_in_q": np.where(np.arange(K) < accepted, 0, other),
                "target_entropy": np.zeros(K),
                "tree_rank": np.tile(np.arange(width), (K, 1)),
                "tree_log_prob": np.log(np.tile([0.7, 0.2], (K, 1))),
                "tree_drawn": np.zeros(K, dtype=np.int64),
            }
            known = {n: v for n, v in (columns | changes).items() if v is not None}
            log.step({"step": request}, proposal(request, labels, request=request, **known))
    return log.folder


def test_eagle2_on_logged_trees_by_hand(tmp_path: Path) -> None:
    """Worth by node: chain 0.7, 0.49, 0.343; alternatives 0.2, 0.14, 0.098."""
    run = write_trees(tmp_path)
    result = simulate(run, LOADED, policies=["fixed", "eagle2"], concurrencies=[1])
    [cell] = read_cells(open_log(run), [])
    proposals = read_proposals(cell, [], num_folds=2)
    accepted = proposals.accepted
    even = proposals.keys["request"].to_numpy() % 2 == 0
    rescued = even & (accepted < 3)
    for nodes, worth in ((3, accepted), (6, accepted + rescued)):
        row = pick(result.frontier, policy="eagle2", verify_length=nodes)
        assert row["acceptance_length"] == pytest.approx(1 + worth.mean(), rel=CLOSE)
        assert row["verified_per_step"] == nodes
        emitted, step_ms = 1 + worth.mean(), LOADED.step_ms(1, 1 + nodes)
        assert row["tokens_per_second"] == pytest.approx(1e3 * emitted / step_ms, rel=CLOSE)
        assert row["lossless"] is True
    # more nodes than there are: all are sent
    wide = pick(result.frontier, policy="eagle2", verify_length=62)
    assert wide["verified_per_step"] == 6
    assert result.gains["verify_length"].to_list() == [3, 6, 12, 62]


def test_eagle2_says_why_it_cannot_be_simulated(run: Path, tmp_path: Path) -> None:
    def why(log: Path) -> str:
        notes = [
            str(note)
            for note in simulate(log, LOADED, policies=["fixed", "eagle2"], concurrencies=[1]).notes
        ]
        [note] = [note for note in notes if "eagle2" in note]
        return note

    assert "no trees: collect with --log-tree" in why(run)
    sampled = write_trees(tmp_path / "sampled", target_entropy=np.full(3, 0.5))
    assert "known only where the target is greedy" in why(sampled)
    unknown = write_trees(tmp_path / "unknown", target_entropy=None)
    assert "known only where the target is greedy" in why(unknown)
