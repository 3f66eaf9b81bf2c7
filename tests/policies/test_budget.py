"""The budget rule against a brute force over all prefixes, and what must hold of it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlab.policies.budget import Plan, allocate, choose_budget, plan_budget, top

SLACK = 1e-12
"""Two ways to add the same few numbers may differ by rounding."""

# Few distinct values, so that ties are common, and conditionals of exactly 0 and 1.
CONDITIONAL = (0.0, 0.2, 0.5, 0.5, 0.9, 1.0)
GROWTH = (0.0, 0.0, 0.1, 0.5, 1.0)


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return survivals [R, K] and step costs [R K + 1]: rising, flat or stairs.

    Drawn by numpy from a seed: ten times cheaper than lists, so that there can be many.
    """
    R, K = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    conditional = rng.choice(CONDITIONAL, (R, K))
    steps = rng.choice(GROWTH, R * K)
    return conditional.cumprod(axis=1), 1.0 + np.cumsum([0.0, *steps])


def brute_force(survivals: Any, costs: Any, base: int) -> float:
    """Return the best expected rate over every way to admit a prefix of every proposal."""
    K = survivals.shape[1]
    rates = []
    for lengths in itertools.product(range(K + 1), repeat=len(survivals)):
        kept = sum(survivals[r, :n].sum() for r, n in enumerate(lengths))
        rates.append((base + kept) / costs[sum(lengths)])
    return float(max(rates))


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(batches())
def test_the_rule_is_the_best_of_all_prefixes(batch: Any) -> None:
    survivals, costs = batch
    base = len(survivals)
    budget = int(choose_budget(survivals.ravel(), costs, num_sampling_requests=base))
    lengths = allocate(survivals, budget)
    assert lengths.sum() == budget
    kept = sum(survivals[r, :n].sum() for r, n in enumerate(lengths))
    reached = (base + kept) / costs[budget]
    assert reached == pytest.approx(brute_force(survivals, costs, base), rel=SLACK)


def slow_allocate(survivals: Any, budget: int) -> list[int]:
    """Take drafts one by one in the stable order (survival, position, slot)."""
    R, K = survivals.shape
    keys = sorted((-survivals[r, k], k, r) for r in range(R) for k in range(K))
    lengths = [0] * R
    for _, _, r in keys[:budget]:
        lengths[r] += 1
    return lengths


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(batches(), st.integers(0, 12))
def test_allocation_is_the_stable_order(batch: Any, budget: int) -> None:
    survivals, _ = batch
    lengths = allocate(survivals, budget)
    assert lengths.tolist() == slow_allocate(survivals, budget)
    assert lengths.sum() == min(budget, survivals.size)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(batches(), st.integers(0, 8))
def test_more_budget_never_admits_less(batch: Any, budget: int) -> None:
    survivals, _ = batch
    assert (allocate(survivals, budget + 1) >= allocate(survivals, budget)).all()


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(batches(), st.integers(0, 5))
def test_a_cap_holds_and_min_gain_keeps_everything(batch: Any, cap: int) -> None:
    survivals, costs = batch
    base = len(survivals)
    flat = survivals.ravel()
    assert choose_budget(flat, costs, num_sampling_requests=base, cap=cap) <= cap
    kept = choose_budget(flat, costs, num_sampling_requests=base, min_gain=1e9)
    assert kept == flat.size


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(batches())
def test_early_stop_is_the_first_local_best(batch: Any) -> None:
    survivals, costs = batch
    ordered = np.sort(survivals.ravel())[::-1]
    rate = (len(survivals) + np.concatenate([[0], ordered.cumsum()])) / costs
    budget = 0
    while budget < len(ordered) and rate[budget + 1] >= rate[budget]:
        budget += 1
    found = choose_budget(ordered, costs, num_sampling_requests=len(survivals), early_stop=True)
    assert found == budget


def test_stacks_of_steps_are_the_steps_one_by_one() -> None:
    rng = np.random.default_rng(0)
    survivals = rng.random((50, 4, 3)).cumprod(axis=-1).round(1)
    costs = 1.0 + np.cumsum(rng.random(13))
    budgets = choose_budget(survivals.reshape(50, 12), costs, num_sampling_requests=4)
    lengths = allocate(survivals, budgets)
    for i in range(50):
        alone = choose_budget(survivals[i].ravel(), costs, num_sampling_requests=4)
        assert budgets[i] == alone
        assert lengths[i].tolist() == slow_allocate(survivals[i], int(alone))
    assert choose_budget(
        survivals.reshape(50, 12).astype(np.float32), costs, num_sampling_requests=4
    ).tolist() == [int(b) for b in budgets]


def test_budget_zero_is_plain_decoding() -> None:
    assert allocate([[0.9, 0.8], [0.7, 0.1]], 0).tolist() == [0, 0]
    plan = plan_budget([0.5, 0.4], [1.0, 9.0, 18.0], num_sampling_requests=1)
    assert plan == Plan(0, "none", 1.0)


def test_plans_by_hand() -> None:
    # (1 + 0.9) / 1.2 = 1.583 beats 1 / 1 and (1 + 0.9 + 0.1) / 1.4 = 1.429
    plan = plan_budget([0.1, 0.9], [1.0, 1.2, 1.4], num_sampling_requests=1)
    assert (plan.budget, plan.reason) == (1, "search")
    assert plan.tokens_per_ms == pytest.approx(1.9 / 1.2)
    # a step that the padding gives away is taken: 2.1 / 1.2 at B = 2
    assert plan_budget([0.9, 0.2], [1.0, 1.2, 1.2], num_sampling_requests=1).reason == "all"
    capped = plan_budget([0.9, 0.9, 0.9], [1.0, 1.1, 1.2, 1.3], num_sampling_requests=1, cap=2)
    assert (capped.budget, capped.reason) == (2, "cap")
    assert plan_budget([], [1.0], num_sampling_requests=3).reason == "no drafts"


def test_a_flat_table_verifies_everything_and_says_so() -> None:
    """Cost 1 for all sizes, survivals [0.9, 0.1], one request."""
    plan = plan_budget([0.9, 0.1], [1.0, 1.0, 1.0], num_sampling_requests=1)
    assert (plan.budget, plan.reason) == (2, "flat table")


def test_drafts_that_are_not_scheduled_are_not_chosen() -> None:
    survivals = [[0.9, np.nan], [0.5, 0.4]]
    assert allocate(survivals, 9).tolist() == [1, 2]
    flat = np.ravel(survivals)
    assert choose_budget(flat, [1.0] * 5, num_sampling_requests=2) == 3
    assert plan_budget([np.nan], [1.0, 1.0], num_sampling_requests=1).reason == "no drafts"


def test_rising_survivals_are_refused() -> None:
    with pytest.raises(ValueError, match="running minimum"):
        allocate([[0.5, 0.6]], 1)
    with pytest.raises(ValueError, match="running minimum"):
        allocate([[np.nan, 0.6]], 1)


def test_top_takes_the_first_of_equals_and_never_minus_infinity() -> None:
    values = np.array([[0.5, 0.5, -np.inf], [0.1, 0.9, 0.5]])
    assert top(values, [1, 3]).tolist() == [[True, False, False], [True, True, True]]
    assert top(values, [3, 0]).tolist() == [[True, True, False], [False, False, False]]
    assert top(np.zeros((2, 0)), 3).shape == (2, 0)
