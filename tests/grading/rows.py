"""Labelled rows drawn at random, as arrays and arranged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from draftlab.grading.folds import assign_folds
from draftlab.grading.rows import GradedRows, arrange

if TYPE_CHECKING:
    from draftlab._types import FloatArray

NUM_POSITIONS = 3
DATASETS = ("chat", "code")


def make_rows(
    n: int = 600, *, num_folds: int = 4, seed: int = 0, slope: float = 0.8
) -> tuple[GradedRows, FloatArray]:
    """Return rows of 30 prompts in two datasets, and a feature that orders them, with ties."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 30, n)
    position = rng.integers(0, NUM_POSITIONS, n)
    feature = np.round(rng.normal(size=n), 1)
    fold = assign_folds(group % 2, group, num_folds) if num_folds > 1 else np.zeros(n, dtype=int)
    keys: dict[str, Any] = {
        "accepted": rng.random(n) < expit(slope * feature + 0.6 - 0.4 * position),
        "position": position,
        "dataset": group % 2,
        "fold": fold,
        "group": group,
        "datasets": DATASETS,
        "num_positions": NUM_POSITIONS,
        "num_folds": num_folds,
    }
    rows, order = arrange(**keys)
    return rows, feature[order]
