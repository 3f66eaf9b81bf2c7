"""One sort per window gives the exact AUC, ties and infinities included."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftlab.studies.replay.ranking import count_wins

SCORES = st.sampled_from([-np.inf, -40.0, -1.5, -0.0, 0.0, 1e-300, 0.25, 1.0, 40.0, np.inf])

WINDOW = st.lists(st.tuples(st.booleans(), SCORES), min_size=1, max_size=12)


def brute(y: np.ndarray, score: np.ndarray) -> int:
    """Compare every accepted row with every rejected one."""
    accepted, rejected = score[y][:, None], score[~y][None, :]
    return int(2 * (accepted > rejected).sum() + (accepted == rejected).sum())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(st.lists(WINDOW, min_size=1, max_size=4))
def test_wins_are_those_of_all_pairs(windows: list[list[tuple[bool, float]]]) -> None:
    rows = [row for window in windows for row in window]
    y, score = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    starts = np.cumsum([0, *(len(window) for window in windows)])
    wanted = [brute(y[a:b], score[a:b]) for a, b in pairwise(starts)]
    before = score.copy()
    assert count_wins(y, score, starts[:-1]).tolist() == wanted
    np.testing.assert_array_equal(score, before)


def test_continuous_scores_with_ties_at_the_clamp() -> None:
    from sklearn.metrics import roc_auc_score

    generator = np.random.default_rng(3)
    score = np.clip(generator.normal(scale=30, size=5000), -40, 40)
    y = generator.random(5000) < 1 / (1 + np.exp(-score / 20))
    [wins] = count_wins(y, score, np.array([0]))
    auc = wins / (2 * y.sum() * (~y).sum())
    assert auc == pytest.approx(roc_auc_score(y, score), abs=1e-14)
