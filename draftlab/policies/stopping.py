"""Rules that end a proposal on their own, whatever else is in the batch.

Each returns how many drafts are verified and how many draft passes were made, by proposal:
a rule that acts while drafting saves draft time too. Arrays are (P, K): proposals, positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from draftlab._types import IntArray


STATIC_THRESHOLD = 0.5
REJECTION_THRESHOLD = 0.3
"""SpecDec++: chance of any rejection at which drafting stops."""
LEAST_DRAFTS = 2
"""SpecDec++ drafts at least so many."""


class Lengths(NamedTuple):
    """Lengths by proposal, (P,) int64 each."""

    admitted: IntArray
    """Drafts sent to the target."""
    passes: IntArray
    """Draft passes made."""


def fixed(length: int, num_proposals: int) -> Lengths:
    """Verify the same number of drafts of every proposal, and draft no more than that.

    Examples
    --------
    >>> fixed(2, 3).admitted.tolist()
    [2, 2, 2]
    """
    lengths = np.full(num_proposals, length, dtype=np.int64)
    return Lengths(lengths, lengths)


def static_threshold(prob: npt.ArrayLike, *, threshold: float = STATIC_THRESHOLD) -> Lengths:
    """End at the first position whose prediction is under the threshold; it is not verified.

    DeepSpec, vLLM #35301 and #43522. The position must be drafted for its prediction to be known.

    Examples
    --------
    >>> static_threshold([[0.9, 0.4, 0.9], [0.9, 0.8, 0.7]])
    Lengths(admitted=array([1, 3]), passes=array([2, 3]))
    """
    values = np.asarray(prob)
    admitted = np.cumprod(values >= threshold, axis=1, dtype=np.int64).sum(axis=1)
    return Lengths(admitted, np.minimum(admitted + 1, values.shape[1]))


def rejection_threshold(
    prob: npt.ArrayLike,
    *,
    threshold: float = REJECTION_THRESHOLD,
    least: int = LEAST_DRAFTS,
) -> Lengths:
    """Stop once 1 - product of predicted acceptances exceeds the threshold (SpecDec++).

    The token that crosses it is verified: the decision is about the next one, so that it may
    read what was drawn and stays lossless. At least ``least`` tokens are drafted.

    Examples
    --------
    >>> rejection_threshold([[0.9, 0.9, 0.8, 0.9], [0.1, 0.9, 0.9, 0.9]]).admitted.tolist()
    [3, 2]
    """
    values = np.asarray(prob)
    K = values.shape[1]
    crossed = 1 - np.cumprod(values, axis=1) > threshold
    length = np.where(crossed.any(axis=1), crossed.argmax(axis=1) + 1, K)
    admitted = np.clip(length, min(least, K), K).astype(np.int64)
    return Lengths(admitted, admitted)


class AdaptiveThreshold(NamedTuple):
    """Constants of Draft & Verify's adaptive exit (dilab-zju/self-speculative-decoding)."""

    start: float = 0.8
    """Threshold of a new request; 0.5 in the sampling form."""
    rate_memory: float = 0.5
    """Weight of the past in the average match rate."""
    aim: float = 0.9
    """Match rate aimed at."""
    step: float = 0.01
    """Change of the threshold, before smoothing."""
    threshold_memory: float = 0.9
    """Weight of the past in the threshold."""


def draft_and_verify(
    prob_drawn: npt.ArrayLike,
    accepted: npt.ArrayLike,
    age: npt.ArrayLike,
    constants: AdaptiveThreshold | None = None,
) -> Lengths:
    """Stop behind the first token whose own draft probability is under an adaptive threshold.

    The token that stops is verified; the decision is about the next one. After each step the
    threshold rises where fewer drafts than ``aim`` match and falls where more do.

    Parameters
    ----------
    prob_drawn : (P, K) float
        q of the drawn token.
    accepted : (P,) int
        Drafts that the target accepts if all are sent.
    age : (P,) int
        0 for the first proposal of a request; the rows of a request follow one another.

    Returns
    -------
    Lengths
    """
    c = constants or AdaptiveThreshold()
    q, hits, turn = np.asarray(prob_drawn), np.asarray(accepted), np.asarray(age)
    K = q.shape[1]
    admitted = np.zeros(len(q), dtype=np.int64)
    first = np.flatnonzero(turn == 0)
    longest = np.diff(first, append=len(q))
    threshold, rate = np.full(len(first), c.start), np.full(len(first), np.nan)
    for t in range(int(longest.max(initial=0))):
        live = np.flatnonzero(longest > t)  # requests that still run
        rows = first[live] + t
        under = q[rows] < threshold[live, None]
        length = np.where(under.any(axis=1), under.argmax(axis=1) + 1, K)
        admitted[rows] = length
        match = np.minimum(hits[rows], length) / length
        past = np.where(np.isnan(rate[live]), match, rate[live])
        rate[live] = c.rate_memory * past + (1 - c.rate_memory) * match
        moved = threshold[live] + np.where(rate[live] <= c.aim, c.step, -c.step)
        threshold[live] = c.threshold_memory * threshold[live] + (1 - c.threshold_memory) * moved
    return Lengths(admitted, admitted)
