"""Stopping rules by hand, and Draft & Verify against a loop written as its repository has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftlab.policies.stopping import (
    AdaptiveThreshold,
    draft_and_verify,
    fixed,
    rejection_threshold,
    static_threshold,
)


def slow_draft_and_verify(q: Any, accepted: Any, age: Any, constants: AdaptiveThreshold) -> Any:
    lengths = []
    threshold, rate = constants.start, None
    for row, hits, turn in zip(q, accepted, age, strict=True):
        if turn == 0:
            threshold, rate = constants.start, None
        length = 0
        for value in row:
            length += 1
            if value < threshold:
                break
        lengths.append(length)
        match = min(hits, length) / length
        rate = match if rate is None else rate
        rate = constants.rate_memory * rate + (1 - constants.rate_memory) * match
        moved = threshold + (constants.step if rate <= constants.aim else -constants.step)
        memory = constants.threshold_memory
        threshold = memory * threshold + (1 - memory) * moved
    return lengths


@pytest.mark.parametrize("start", [0.5, 0.8])
def test_draft_and_verify_is_the_loop_of_its_repository(start: float) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, 40)
    age = np.concatenate([np.arange(n) for n in lengths])
    q = rng.random((len(age), 5)) ** 0.2
    accepted = rng.integers(0, 6, len(age))
    constants = AdaptiveThreshold(start=start, step=0.3)
    found = draft_and_verify(q, accepted, age, constants)
    assert found.admitted.tolist() == slow_draft_and_verify(q, accepted, age, constants)
    assert len(set(found.admitted.tolist())) > 2


def test_draft_and_verify_verifies_the_token_that_stops() -> None:
    found = draft_and_verify([[0.9, 0.1, 0.9]], [3], [0])
    assert found.admitted.tolist() == [2]
    assert draft_and_verify(np.zeros((0, 3)), [], []).admitted.tolist() == []


def test_static_threshold_ends_before_the_position_under_it() -> None:
    found = static_threshold([[0.5, 0.49, 1.0], [0.1, 1.0, 1.0], [1.0, 1.0, 1.0]], threshold=0.5)
    assert found.admitted.tolist() == [1, 0, 3]
    assert found.passes.tolist() == [2, 1, 3]


def test_specdec_stops_on_the_chance_of_any_rejection() -> None:
    # 1 - 0.8 = 0.2, 1 - 0.64 = 0.36 > 0.3: two tokens, the second one included
    prob = np.full((1, 5), 0.8)
    assert rejection_threshold(prob).admitted.tolist() == [2]
    assert rejection_threshold(prob, threshold=0.1).admitted.tolist() == [2]
    assert rejection_threshold(prob, threshold=0.1, least=1).admitted.tolist() == [1]
    assert rejection_threshold(prob, threshold=1.0).admitted.tolist() == [5]
    assert rejection_threshold(np.full((1, 1), 0.1)).admitted.tolist() == [1]


def test_fixed_drafts_no_more_than_it_verifies() -> None:
    found = fixed(3, 2)
    assert found.admitted.tolist() == found.passes.tolist() == [3, 3]
