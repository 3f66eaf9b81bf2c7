"""Batches of logged proposals, and adaptive verification against a loop over steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from draftlab.online.estimator import Labels
from draftlab.online.vllm import Constants, VllmEstimator
from draftlab.policies.budget import allocate, choose_budget
from draftlab.studies.simulate import batches
from draftlab.studies.simulate.batches import Rule, Stream, admit_adaptively, admit_online, compose

K, P = 3, 400


def requests(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    lengths = rng.multinomial(P, np.full(20, 0.05))
    lengths = lengths[lengths > 0]
    starts = np.cumsum(lengths) - lengths
    age = np.concatenate([np.arange(n) for n in lengths])
    return starts, lengths, age


def test_every_request_runs_once_in_its_own_order() -> None:
    rng = np.random.default_rng(0)
    starts, lengths, age = requests(rng)
    rows = compose(starts, lengths, 4, rng, least_steps=10)
    assert rows.shape == (P // 4, 4)
    assert sorted(rows.ravel().tolist()) == list(range(P))
    for slot in rows.T:
        follows = np.diff(slot) == 1
        assert (follows | (age[slot[1:]] == 0)).all()


def test_requests_are_drawn_again_where_there_are_too_few() -> None:
    rng = np.random.default_rng(0)
    starts, lengths, age = requests(rng)
    rows = compose(starts, lengths, 64, rng, least_steps=50)
    assert rows.shape == (50, 64)
    assert (age[rows[1:]][np.diff(rows, axis=0) != 1] == 0).all()


def test_the_same_seed_deals_the_same_batches() -> None:
    starts, lengths, _ = requests(np.random.default_rng(0))
    one, two = (compose(starts, lengths, 8, np.random.default_rng(5)) for _ in range(2))
    assert (one == two).all()


def slow_run(survivals: Any, age: Any, rows: Any, step_ms: Any, rule: Rule) -> Any:
    """Run step by step with the public functions."""
    admitted = []
    for step in rows:
        live = survivals[:, step].T
        stale = np.array(
            [survivals[:, r - rule.lag] if age[r] >= rule.lag else np.ones(K) for r in step]
        )
        budget = choose_budget(
            stale.ravel(),
            step_ms,
            num_sampling_requests=len(step),
            cap=rule.cap,
            min_gain=rule.min_gain,
            early_stop=rule.early_stop,
        )
        admitted.append(allocate(live, budget).tolist())
    return admitted


@pytest.mark.parametrize(
    "rule", [Rule(), Rule(lag=0, early_stop=True), Rule(lag=2), Rule(cap=5), Rule(min_gain=0.04)]
)
@pytest.mark.parametrize("digits", [1, 9])
def test_adaptive_verification_is_the_loop_over_steps(
    rule: Rule, digits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_DRAFTS_AT_ONCE", 100)  # several passes
    rng = np.random.default_rng(3)
    starts, lengths, age = requests(rng)
    survivals = rng.random((K, P)).cumprod(axis=0).round(digits)
    rows = compose(starts, lengths, 5, rng, least_steps=20)
    step_ms = 10.0 + np.cumsum(rng.random(5 * K + 1))
    found = admit_adaptively(survivals, age, rows, step_ms, rule)
    assert found.tolist() == slow_run(survivals, age, rows, step_ms, rule)
    assert len(np.unique(found)) > 1


def test_an_online_estimator_learns_from_what_it_admitted() -> None:
    """Against a loop over steps that predicts, admits, learns and refits one step at a time."""
    rng = np.random.default_rng(4)
    starts, lengths, age = requests(rng)
    feature = rng.normal(1.0, 2.0, (K, P))
    accepted = (rng.random((K, P)) < expit(feature)).cumprod(axis=0).sum(axis=0)
    labelled = np.minimum(accepted + 1, K)
    stream = Stream(feature, accepted, labelled, age)
    rows = compose(starts, lengths, 4, rng, least_steps=20)
    step_ms = 10.0 + 0.8 * np.arange(4 * K + 1)
    constants = Constants(refit_interval=15, damping=5.0)
    estimator = VllmEstimator(K, constants)
    found = admit_online(estimator, stream, rows, step_ms, Rule())

    slow = VllmEstimator(K, constants)
    stored: dict[int, Any] = {}
    for t, step in enumerate(rows):
        logit = slow.slope * feature[:, step].T + slow.intercepts
        live = expit(logit).cumprod(axis=1)
        stale = np.array(
            [stored[r - 1] if age[r] else np.ones(K) for r in step.tolist()]
            if t
            else [
                expit(slow.slope * feature[:, r - 1] + slow.intercepts).cumprod()
                if age[r]
                else np.ones(K)
                for r in step.tolist()
            ]
        )
        stored |= dict(zip(step.tolist(), live, strict=True))
        budget = choose_budget(stale.ravel(), step_ms, num_sampling_requests=4)
        admitted = allocate(live, budget)
        assert found[t].tolist() == admitted.tolist()
        for slot, r in enumerate(step.tolist()):
            n = min(admitted[slot], labelled[r])
            slow.learn(
                Labels(
                    feature[:n, r], np.arange(n), logit[slot, :n], np.arange(n) < accepted[r],
                    np.full(n, t + 1),
                )
            )  # fmt: skip
        if (t + 1) % 15 == 0 or t + 1 == len(rows):
            slow.refit()
    assert slow.slope == pytest.approx(estimator.slope, rel=1e-12)
    assert estimator.slope > 0.6
