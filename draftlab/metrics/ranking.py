"""Ranking: exact AUC with half credit for ties, from pair counts that add up."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from draftlab.metrics.arrays import check_rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from draftlab._types import BoolArray, FloatArray, IntArray


def auc(y: npt.ArrayLike, score: npt.ArrayLike, fold: npt.ArrayLike | None = None) -> float:
    """Area under the ROC curve: P(score of an accepted row > score of a rejected one).

    Ties count one half. Exact: pairs are counted in integers after one sort, O(n log n).
    Within folds it is the mean over folds, weighted by their pairs: scores of different fits have
    no common order.

    Parameters
    ----------
    y : (n,) bool
        Accepted or not.
    score : (n,) float64
        Anything that orders the rows; infinite values are allowed.
    fold : (n,) int, optional
        Only pairs of one fold count.

    Returns
    -------
    float
        NaN when one class is missing, in every fold.

    Raises
    ------
    ValueError
        Shapes differ, a label is not 0 or 1, or a score is NaN.

    Examples
    --------
    >>> auc([True, False, True, False], [3.0, 1.0, 2.0, 2.0])
    0.875
    >>> auc([True, False, True, False], [0.1, 0.2, 0.9, 0.8], [0, 0, 1, 1])
    0.5
    """
    label, values = check_rows(y, score, "score")
    order, first = _rank(values, fold)
    ranked = label[order]
    wins = row_wins(ranked, values[order], first)[ranked]
    counts = np.add.reduceat(np.stack([ranked, ~ranked]), np.flatnonzero(first), axis=1, dtype=int)
    pairs = int(counts.prod(axis=0).sum()) if len(label) else 0
    return int(wins.sum()) / (2 * pairs) if pairs else float("nan")


def row_pairs(
    label: BoolArray, values: FloatArray, fold: npt.ArrayLike | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return, for each row, twice the pairs that it wins and twice the pairs it is in.

    Parameters
    ----------
    label : (n,) bool
    values : (n,) float64
        Scores.
    fold : (n,) int, optional
        Only pairs of one fold count.

    Returns
    -------
    wins, chances : (n,) float64
        Their sums have the AUC as ratio; see `auc_influence`.

    Examples
    --------
    >>> row_pairs(np.array([True, False, True]), np.array([0.2, 0.1, 0.1]))
    (array([2., 3., 1.]), array([2., 4., 2.]))
    """
    order, first = _rank(values, fold)
    ranked, chances, wins = label[order], np.empty(len(label)), np.empty(len(label))
    wins[order] = row_wins(ranked, values[order], first)
    piece, starts = np.cumsum(first) - 1, np.flatnonzero(first)
    size = np.diff(starts, append=len(label))
    accepted = np.bincount(piece, ranked, len(starts))
    chances[order] = 2.0 * np.where(ranked, (size - accepted)[piece], accepted[piece])
    return wins, chances


def _rank(score: FloatArray, fold: npt.ArrayLike | None) -> tuple[IntArray, BoolArray]:
    """Return the order that sorts rows by fold and score, and where a fold starts in it."""
    first = np.zeros(len(score), dtype=np.bool_)
    first[:1] = True
    if fold is None:
        return np.argsort(score), first
    codes = np.asarray(fold)
    order = np.lexsort((score, codes))
    first[1:] = np.diff(codes[order]) != 0
    return order, first


def row_wins(y: BoolArray, score: FloatArray, first: BoolArray) -> IntArray:
    """Count, for each row, twice the pairs with the other class that it is ordered rightly in.

    An accepted row wins over the rejected rows below it, a rejected one over the accepted rows
    above. Twice, so that the half credit of a tie stays an integer: wins of rows, folds and
    shards add up exactly. The accepted rows of a group alone count each of its pairs once.

    Parameters
    ----------
    y : (n,) bool
    score : (n,) float64
        Not falling within a group.
    first : (n,) bool
        Where a group starts; True at 0. Pairs are counted within groups.

    Returns
    -------
    (n,) int64

    Examples
    --------
    >>> y = np.array([False, True, True, False])
    >>> first = np.array([True, False, True, False])
    >>> row_wins(y, np.array([0.0, 1.0, 5.0, 5.0]), first).tolist()
    [2, 2, 1, 1]
    """
    n = len(y)
    below: IntArray = np.cumsum(~y, dtype=np.int64)  # rejected rows up to the row, then before it
    above = np.arange(1, n + 1) - below  # accepted rows up to the row
    below = below - ~y
    bounds = [*np.flatnonzero(first).tolist(), n]
    for start, stop in pairwise(bounds):
        below[start:stop] -= int(below[start])
        # accepted rows behind the row, within its group
        np.subtract(above[stop - 1], above[start:stop], out=above[start:stop])
    wins = np.where(y, below, above)
    wins *= 2
    tied = np.zeros(n + 1, dtype=np.bool_)
    tied[1:n] = (score[1:] == score[:-1]) & ~first[1:]
    if tied.any():
        _halve_ties(wins, y, tied, below, above)
    return wins


def _halve_ties(
    wins: IntArray, y: BoolArray, tied: BoolArray, below: IntArray, above: IntArray
) -> None:
    """Correct the wins of tied rows in place; ``tied`` says that a row equals the one before."""
    start = np.flatnonzero(tied[1:] & ~tied[:-1])  # first row of each tie
    stop = np.flatnonzero(tied[:-1] & ~tied[1:]) + 1
    rows = np.flatnonzero(tied[:-1] | tied[1:])
    size = stop - start
    place = np.cumsum(size) - size
    accepted = np.add.reduceat(y[rows], place, dtype=np.int64)
    of_accepted = 2 * below[start] + size - accepted
    of_rejected = 2 * above[stop - 1] + accepted
    wins[rows] = np.where(y[rows], np.repeat(of_accepted, size), np.repeat(of_rejected, size))
