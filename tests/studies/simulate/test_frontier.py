"""Figures of merit from what was admitted: by hand, by loops, and by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from draftlab.studies.simulate.frontier import (
    Batch,
    Sums,
    add_up,
    emitted_tokens,
    gain_over,
    measures,
    pareto,
)


def test_emitted_tokens_are_min_of_admitted_and_accepted_and_one_more() -> None:
    admitted, accepted = np.arange(6), np.full(6, 3)
    assert emitted_tokens(admitted, accepted, np.ones(6, int)).tolist() == [1, 2, 3, 4, 4, 4]
    # the request ends inside the drafts: nothing follows them
    assert emitted_tokens(admitted, accepted, np.zeros(6, int)).tolist() == [1, 2, 3, 3, 3, 3]


def test_sums_and_figures_by_hand() -> None:
    """Two steps of two requests: 3, 1 and 2, 2 accepted; 2, 2 and 1, 3 sent; 10 and 20 ms."""
    accepted = np.array([[3, 1], [2, 2]])
    batch = Batch(np.zeros((2, 2), int), accepted, np.ones((2, 2), int), np.array([0, 1, 0, 1]))
    sums = add_up(batch, np.array([[2, 2], [1, 3]]), np.array([10.0, 20.0]))
    assert sums.emitted.tolist() == [5.0, 5.0]  # 3 + 2 and 2 + 3
    assert sums.time_ms.tolist() == [15.0, 15.0]
    row = measures(sums, 2)
    assert row["tokens_per_second"] == pytest.approx(1e3 * 10 / 30)
    assert row["tokens_per_second_per_request"] == pytest.approx(1e3 * 10 / 60)
    assert row["acceptance_length"] == pytest.approx(10 / 4)
    assert row["verified_per_step"] == pytest.approx(8 / 4)
    assert row["wasted"] == pytest.approx((8 - 6) / 4)  # kept: 2, 1, 1, 2
    assert row["lost"] == pytest.approx((8 - 6) / 4)


def test_gains_are_paired() -> None:
    """Both policies slow on the same groups: their ratio is known far better than either."""
    rng = np.random.default_rng(0)
    size = rng.gamma(2.0, 5.0, 60)
    zero = np.zeros(60)
    base = Sums(size, size**2, zero, zero, zero, zero + 1)
    faster = base._replace(emitted=1.1 * size)
    found = gain_over(faster, base)
    assert found == pytest.approx((0.1, 0.1, 0.1), abs=1e-9)
    other = gain_over(base._replace(emitted=size * rng.uniform(0.9, 1.3, 60)), base)
    assert other.low < other.gain < other.high


def random_batch(seed: int = 0) -> tuple[Batch, np.ndarray, np.ndarray]:
    """Return 50 steps of four requests of twelve prompts, what was sent, and the steps' times."""
    rng = np.random.default_rng(seed)
    accepted = rng.integers(0, 5, (50, 4))
    group = rng.permutation(np.resize(np.arange(12), 200))
    batch = Batch(np.zeros_like(accepted), accepted, rng.integers(0, 2, (50, 4)), group)
    return batch, rng.integers(0, 6, (50, 4)), rng.gamma(5.0, 2.0, 50)


def test_sums_are_those_of_a_loop_over_proposals() -> None:
    batch, admitted, step_ms = random_batch()
    wanted = np.zeros((6, 12))
    for step in range(50):
        for slot in range(4):
            sent, good = admitted[step, slot], batch.accepted[step, slot]
            kept = min(sent, good)
            emitted = kept + 1 if sent < good else kept + batch.bonus[step, slot]
            values = (emitted, step_ms[step] / 4, sent, kept, good, 1)
            wanted[:, batch.group[step * 4 + slot]] += values
    np.testing.assert_allclose(add_up(batch, admitted, step_ms), wanted)
    assert (batch.concurrency, batch.num_prompts) == (4, 12)


def test_intervals_of_ratios_are_those_of_their_linearised_sums() -> None:
    batch, admitted, step_ms = random_batch()
    sums = add_up(batch, admitted, step_ms)
    row = measures(sums, 4)
    for name, above, below in (
        ("tokens_per_second", 1e3 * sums.emitted, sums.time_ms),
        ("acceptance_length", sums.emitted, sums.proposals),
        ("wasted", sums.verified - sums.kept, sums.proposals),
    ):
        ratio = above.sum() / below.sum()
        residual = (above - ratio * below) / below.sum()
        half = t.ppf(0.975, 11) * np.sqrt(12 / 11 * (residual**2).sum())
        assert row[name] == pytest.approx(ratio)
        assert row[f"{name}_low"] == pytest.approx(ratio - half)
        assert row[f"{name}_high"] == pytest.approx(ratio + half)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=25))
def test_the_frontier_is_what_no_other_point_beats(points: list[tuple[int, int]]) -> None:
    whole, user = np.array(points, dtype=np.float64).T
    wanted = [not any(a >= c and b >= d and (a, b) != (c, d) for a, b in points) for c, d in points]
    assert pareto(whole, user).tolist() == wanted
