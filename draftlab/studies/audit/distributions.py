"""Exact output of kept (p, q) rows under a trimming rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray, IntArray

EXACT = 1e-12
"""Total variation of float64 sums that is rounding."""
TAIL = -1
"""Token that stands for all that were not kept."""


@dataclass(frozen=True)
class Distributions:
    """(p, q) of draft positions, flat over (row, token)."""

    position: IntArray
    """(rows,)."""
    starts: IntArray
    """(rows,): first entry of each row."""
    tail: BoolArray
    """(entries,): stands for all tokens that were not kept."""
    p: FloatArray
    """(entries,): sums to 1 in each row; 0 off the target's support."""
    q: FloatArray
    """(entries,): what the draft was drawn from, sums to 1 in each row."""

    def __len__(self) -> int:
        return len(self.starts)

    def total(self, values: FloatArray) -> FloatArray:
        """Sum (entries,) values over each row."""
        return np.add.reduceat(values, self.starts)

    def spread(self, values: FloatArray) -> FloatArray:
        """Repeat (rows,) values over the entries of each row."""
        return np.repeat(values, np.diff(self.starts, append=len(self.p)))


def output_error(rows: Distributions, admitted: BoolArray) -> FloatArray:
    """Return the total variation of each row's output from p under a trimming rule.

    Parameters
    ----------
    rows : Distributions
    admitted : (entries,) bool
        Whether the draft is verified if this token was drawn.

    Returns
    -------
    (rows,) float64
        Up to rounding 0 where the rule does not read the drawn token.
    """
    p, q = rows.p, rows.q
    both = np.minimum(p, q)
    excess = p - both
    left = rows.total(excess)
    # where p and q are equal nothing is rejected but by rounding; then it is p
    norm = rows.spread(np.where(left > EXACT, left, 1.0))
    residual = np.where(rows.spread(left) > EXACT, excess / norm, p)
    rejected = rows.total(np.where(admitted, q - both, 0.0))
    dropped = rows.total(np.where(admitted, 0.0, q))
    out = np.where(admitted, both, 0.0)
    out += rows.spread(rejected) * residual + rows.spread(dropped) * p
    return rows.total(np.abs(out - p)) / 2


def candidate_columns(rows: Distributions) -> dict[str, FloatArray]:
    """Return the log's raw columns for every token that might have been drawn, (entries,)."""
    q = rows.q
    top = np.maximum.reduceat(q, rows.starts)
    is_top = q == rows.spread(top)
    first = np.zeros(len(q), dtype=np.bool_)
    order = np.flatnonzero(is_top)
    row_of = np.repeat(np.arange(len(rows)), np.diff(rows.starts, append=len(q)))
    _, leads = np.unique(row_of[order], return_index=True)
    first[order[leads]] = True
    others = np.where(first, 0.0, q)
    second = np.maximum.reduceat(np.where(rows.tail, 0.0, others), rows.starts)
    # a token of the tail has at most the chance of the least token that was kept
    least = np.minimum.reduceat(np.where(rows.tail | (q <= 0), np.inf, q), rows.starts)
    drawn = np.where(rows.tail, np.minimum(q, rows.spread(least)), q)
    with np.errstate(divide="ignore", invalid="ignore"):
        logit_qmax = np.log(top) - np.log(rows.total(others))
        entropy = -rows.total(np.where(q > 0, q * np.log(np.where(q > 0, q, 1.0)), 0.0))
        logit_drawn = np.log(drawn) - np.log1p(-drawn)
        accept = np.where(q > 0, np.minimum(1.0, rows.p / np.where(q > 0, q, 1.0)), 0.0)
        margin = np.log(top) - np.log(second)
    return {
        "logit_qmax": rows.spread(logit_qmax),
        "top2_margin": rows.spread(margin),
        "entropy": rows.spread(entropy),
        "logit_q_sampled": np.where(first, rows.spread(logit_qmax), logit_drawn),
        "overlap": rows.spread(rows.total(np.minimum(rows.p, q))),
        "accept_prob": accept,
    }
