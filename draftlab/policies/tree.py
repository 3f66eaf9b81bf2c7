"""EAGLE-2's dynamic draft trees (Li et al., arXiv 2406.16858): growth, re-ranking, acceptance.

A node is worth the product of q along its path, an estimate of the chance that the target
accepts everything up to it. Trees are flat arrays over nodes, parents before children, -1 for
what follows the last emitted token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab._types import BoolArray, FloatArray, IntArray


TOP = 8
"""Nodes expanded at each level, and children of each (EAGLE-2's code)."""
DEPTH = 5
NUM_NODES = 63
"""Nodes kept, the root (last emitted token) included."""


class Tree(NamedTuple):
    """Nodes of a draft tree, (n,) each."""

    parent: IntArray
    rank: IntArray
    """Rank in the parent's q, from 0."""
    depth: IntArray
    """0 for what follows the last emitted token."""
    score: FloatArray
    """Log of the product of q along the path; falls along it."""


def grow(expand: Callable[[IntArray], FloatArray], *, depth: int = DEPTH, top: int = TOP) -> Tree:
    """Grow a tree: at each level the best nodes of the level before get children.

    Parameters
    ----------
    expand : callable
        Takes node numbers (m,), -1 for the last emitted token, and returns log q of their most
        likely next tokens, (m, width), falling along the row.
    depth : int
        Levels.
    top : int
        Nodes expanded at a level, those of the largest score; the first of equal ones.

    Returns
    -------
    Tree
        Every child that was looked at, level by level.

    Examples
    --------
    >>> tree = grow(lambda nodes: np.log([[0.75, 0.25]] * len(nodes)), depth=2, top=1)
    >>> tree.parent.tolist(), np.exp(tree.score).tolist()
    ([-1, -1, 0, 0], [0.75, 0.25, 0.5625, 0.1875])
    """
    levels: list[Tree] = []
    nodes, scores, made = np.array([-1]), np.zeros(1), 0
    for level in range(depth):
        log_q = np.asarray(expand(nodes), dtype=np.float64)
        width = log_q.shape[1]
        score = (scores[:, None] + log_q).ravel()
        levels.append(
            Tree(
                np.repeat(nodes, width),
                np.tile(np.arange(width), len(nodes)),
                np.full(len(score), level),
                score,
            )
        )
        best = np.sort(np.argsort(-score, kind="stable")[:top])
        nodes, scores = made + best, score[best]
        made += len(score)
    return Tree(*(np.concatenate(part) for part in zip(*levels, strict=True)))


def rerank(score: FloatArray, depth: IntArray, num_nodes: int) -> BoolArray:
    """Return which nodes are sent to the target: the best, the shallower of equal ones.

    They are connected, because a score falls along its path. No other connected choice of so
    many nodes has a larger expected accepted length (`expected_length`).

    Parameters
    ----------
    score : (..., n) float
        Log of the product of q along the path; -inf: no node.
    depth : (n,) or (..., n) int
    num_nodes : int
        Without the root.

    Examples
    --------
    >>> rerank(np.log([0.5, 0.25, 0.5, 0.25]), np.array([0, 0, 1, 1]), 3).tolist()
    [True, True, True, False]
    """
    score, depth = np.broadcast_arrays(score, depth)
    order = np.lexsort((depth, -score), axis=-1)[..., :num_nodes]
    kept = np.zeros(score.shape, dtype=np.bool_)
    np.put_along_axis(kept, order, values=True, axis=-1)
    return kept & (score > -np.inf)


def expected_length(score: FloatArray, kept: BoolArray) -> FloatArray:
    """Return the expected accepted drafts (...,) if q is the target's distribution.

    Siblings exclude one another, so that the depth reached is the sum over the kept nodes of the
    chance that the target's tokens are those of their path.
    """
    return np.asarray(np.where(kept, np.exp(score), 0.0).sum(axis=-1))


class Combs(NamedTuple):
    """Logged proposals as trees: the drafted chain, with alternatives at each of its positions."""

    log_q: FloatArray
    """(P, K, W): of the alternatives, nats."""
    rank: IntArray
    """(P, K, W): rank in q."""
    parent: IntArray
    """(P, K): which alternative of the position before was drawn; -1 at position 0."""


def comb_scores(combs: Combs) -> FloatArray:
    """Return the scores (P, K, W) of the logged nodes."""
    P, K, _ = combs.log_q.shape
    before = np.take_along_axis(combs.log_q[:, :-1], combs.parent[:, 1:, None], axis=2)[..., 0]
    chain = np.concatenate([np.zeros((P, 1)), np.cumsum(before, axis=1)], axis=1)
    return np.asarray(combs.log_q + chain.reshape(P, K, 1))


def comb_accepted(combs: Combs, kept: BoolArray, accepted: IntArray, choice: IntArray) -> IntArray:
    """Return how many drafts of each tree the target accepts.

    Exact where the target is greedy: its choice is known at every position that the chain's
    accepted drafts lead to, and nothing was logged behind an alternative.

    Parameters
    ----------
    combs : Combs
    kept : (P, K, W) bool
        Nodes sent to the target.
    accepted : (P,) int
        Drafts of the whole chain that the target accepts.
    choice : (P, K) int
        Rank in q of the target's choice; read up to the first rejection only.

    Returns
    -------
    (P,) int64
    """
    K = combs.rank.shape[1]
    position = np.arange(K)
    known = position <= accepted[:, None]
    hit = (kept & (combs.rank == choice[:, :, None])).any(axis=2) & known
    return np.asarray(np.cumprod(hit, axis=1, dtype=np.int64).sum(axis=1))
