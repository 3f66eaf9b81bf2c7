"""Adaptive verification inside the decoder: what is sent, what is logged, and what comes out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from draftlab.engine.decode import Request, SpeculativeDecoder
from draftlab.engine.drafters import LayerSkipDrafter
from draftlab.policies.adaptive import AdaptiveVerification, make_admission
from draftlab.policies.cost import CostTable, Curve
from draftlab.studies.audit.conformity import audit_engine
from tests.engine.models import continuation_probabilities, run, tiny_model, truncation
from tests.engine.test_decode import graded, greedy_requests

if TYPE_CHECKING:
    from collections.abc import Callable

K = 3
COST = CostTable("toy", "model", verify=Curve((0, 1000), (20.0, 420.0)))
COEFFICIENTS = {
    "logit_qmax": (np.full(K, 1.5), np.zeros(K)),
    "logit_q_sampled": (np.full(K, 1.5), np.zeros(K)),
}


class Fixed(NamedTuple):
    lengths: Any
    budget: int
    reason: str = "test"


class SameLength:
    """Admits so many drafts of everyone, or each its own from a list."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths
        self.learned: list[Any] = []

    def admit(self, columns: dict[str, Any], **sizes: int) -> Fixed:
        rows = len(columns["request"]) // K
        chosen = np.resize(self.lengths, rows)
        return Fixed(chosen, int(chosen.sum()))

    def learn(self, columns: dict[str, Any] | None) -> None:
        self.learned.append(columns)

    def predict(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {"live_prediction": np.full(len(columns["request"]), 0.5)}


def decoder(
    admission: Any, *, slots: int = 5, seed: int = 0, context: int = 48
) -> SpeculativeDecoder:
    target = tiny_model(3)
    cache = target.new_cache(slots, context)
    return SpeculativeDecoder(
        target,
        cache,
        LayerSkipDrafter(target, cache, (1,)),
        num_speculative_tokens=K,
        seed=seed,
        admission=admission,
    )


def sampled(count: int, length: int = 12) -> list[Request]:
    return [replace(r, temperature=1.0) for r in greedy_requests(count, length)]


def test_what_is_not_admitted_has_no_label() -> None:
    admission = SameLength(0, 1, 2, 3, 1)
    outputs, results = run(decoder(admission), sampled(12))
    columns = graded(results)
    admitted = columns["admitted"].reshape(-1, K)
    labels = columns["accepted"].reshape(-1, K)
    assert set(admitted.sum(axis=1).tolist()) == {0, 1, 2, 3}
    assert (np.diff(admitted.astype(int), axis=1) <= 0).all()  # prefixes
    assert labels.mask[~admitted].all()
    for row, sent in zip(labels, admitted.sum(axis=1), strict=True):
        seen = row.compressed()
        assert seen[:-1].all()
        assert len(seen) == sent or not seen[-1]
    for name in ("overlap", "accept_prob", "target_entropy"):
        assert (np.ma.getmaskarray(columns[name]) == ~columns["admitted"]).all(), name
    steps = [r.row for r in results]
    assert sum(s["num_admitted"] for s in steps) == int(admitted.sum())
    assert sum(s["num_emitted"] for s in steps) == sum(map(len, outputs.values()))
    kept = labels.filled(False) & (columns["excluded"].reshape(-1, K) == 0)
    assert sum(s["num_accepted"] for s in steps) == int(kept.sum())
    first = next(s for s in steps if "budget" in s)
    assert (first["budget"], first["budget_reason"]) == (7, "test")
    assert first["padded_tokens"] == 5 * (K + 1)
    assert len(admission.learned) == len(results)


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_greedy_output_does_not_depend_on_what_is_admitted(length: int) -> None:
    plain, _ = run(decoder(SameLength(K)), greedy_requests(8))
    trimmed, results = run(decoder(SameLength(length)), greedy_requests(8))
    assert trimmed == plain
    assert all(r.row["num_admitted"] == length * r.row["num_requests"] for r in results[1:-1]
               if r.row["num_non_draft_tokens"] == r.row["num_requests"])  # fmt: skip


def test_admitting_everything_is_no_adaptive_verification() -> None:
    without, _ = run(decoder(None), sampled(10))
    everything, _ = run(decoder(SameLength(K)), sampled(10))
    assert everything == without


def make(name: str) -> AdaptiveVerification:
    return make_admission(name, COST, K, coefficients=COEFFICIENTS)


LENGTH = 4


def sampler(admission: Any) -> Callable[[int], list[tuple[int, ...]]]:
    engine = decoder(admission, slots=64, seed=5, context=16)
    made = 0

    def sample(n: int) -> list[tuple[int, ...]]:
        nonlocal made
        requests = [Request(made + i, (1, 4, 2), 1.0, max_new_tokens=LENGTH) for i in range(n)]
        made += n
        return list(run(engine, requests)[0].values())

    return sample


@pytest.fixture(scope="module")
def exact() -> dict[tuple[int, ...], float]:
    """Return the exact probability of every output."""
    return continuation_probabilities(tiny_model(3), (1, 4, 2), LENGTH, truncation(1.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lossless"),
    [("logit_qmax", True), ("hybrid", True), ("online-vllm", True), ("logit_q_sampled", False)],
)
def test_losslessness_end_to_end(name: str, lossless: bool, exact: Any) -> None:
    """The audit passes what is derived to be lossless and catches what reads the drawn token."""
    found = audit_engine(sampler(make(name)), exact, tv=0.08, alpha=1e-4)
    assert found.passed is lossless, found


@pytest.mark.slow
def test_trimming_is_real() -> None:
    """The engines audited above do trim, each by its own predictions."""
    for name in ("logit_qmax", "hybrid", "online-vllm", "logit_q_sampled"):
        columns = graded(run(decoder(make(name), slots=16), sampled(32))[1])
        sent = columns["admitted"].reshape(-1, K).sum(axis=1)
        assert len(np.unique(sent)) > 2, name
        assert ((columns["live_prediction"] >= 0) & (columns["live_prediction"] <= 1)).all()
