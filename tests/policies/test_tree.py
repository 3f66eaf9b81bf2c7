"""EAGLE-2's trees against enumeration of all trees, and against the target's own choices."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftlab.policies.tree import (
    Combs,
    Tree,
    comb_accepted,
    comb_scores,
    expected_length,
    grow,
    rerank,
)

VOCAB = 3


def random_q(seed: int) -> dict[tuple[int, ...], Any]:
    """Return a conditional distribution for every path of up to three tokens."""
    rng = np.random.default_rng(seed)
    paths = [path for n in range(3) for path in product(range(VOCAB), repeat=n)]
    return {path: rng.dirichlet(np.full(VOCAB, 0.7)) for path in paths}


def grown(q: dict[tuple[int, ...], Any], *, depth: int, top: int) -> tuple[Tree, list[Any]]:
    """Grow a tree over q; return it with the path of every node."""
    paths: list[tuple[int, ...]] = []

    def expand(nodes: Any) -> Any:
        rows = []
        for node in nodes.tolist():
            path = () if node < 0 else paths[node]
            order = np.argsort(-q[path], kind="stable")
            new = [(*path, int(token)) for token in order]
            rows.append((np.log(q[path][order]), new))
        paths.extend(path for _, new in rows for path in new)
        return np.stack([row for row, _ in rows])

    return grow(expand, depth=depth, top=top), paths


def chance(q: dict[tuple[int, ...], Any], path: tuple[int, ...]) -> float:
    return float(np.prod([q[path[:i]][token] for i, token in enumerate(path)]))


def connected(parents: list[int], chosen: tuple[int, ...]) -> bool:
    return all(parents[node] < 0 or parents[node] in chosen for node in chosen)


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3))
def test_growth_expands_the_best_of_each_level(seed: int, depth: int, top: int) -> None:
    q = random_q(seed)
    tree, paths = grown(q, depth=depth, top=top)
    np.testing.assert_allclose(np.exp(tree.score), [chance(q, path) for path in paths])
    assert tree.depth.tolist() == [len(path) - 1 for path in paths]
    for node, parent in enumerate(tree.parent.tolist()):
        assert paths[node][:-1] == (() if parent < 0 else paths[parent])
    for level in range(1, depth):
        above = [n for n in range(len(paths)) if tree.depth[n] == level - 1]
        expanded = sorted(set(tree.parent[tree.depth == level].tolist()))
        assert len(expanded) == min(top, len(above))
        left = [tree.score[n] for n in above if n not in expanded]
        assert min(tree.score[expanded]) >= max(left, default=-np.inf)


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(0, 6))
def test_no_connected_choice_of_nodes_is_expected_to_be_longer(
    seed: int, top: int, num_nodes: int
) -> None:
    tree, paths = grown(random_q(seed), depth=2, top=top)
    kept = rerank(tree.score, tree.depth, num_nodes)
    parents = tree.parent.tolist()
    chosen = tuple(np.flatnonzero(kept).tolist())
    assert len(chosen) == min(num_nodes, len(paths))
    assert connected(parents, chosen)
    best = max(
        sum(float(np.exp(tree.score[n])) for n in nodes)
        for nodes in combinations(range(len(paths)), len(chosen))
        if connected(parents, nodes)
    )
    assert expected_length(tree.score, kept) == pytest.approx(best)


@given(st.integers(0, 10_000), st.integers(0, 12))
def test_the_expected_length_is_that_of_sampled_texts(seed: int, num_nodes: int) -> None:
    """Enumerate every text of the target; it accepts a node if the text starts with its path."""
    q = random_q(seed)
    tree, paths = grown(q, depth=3, top=2)
    kept = rerank(tree.score, tree.depth, num_nodes)
    sent = {path for path, keep in zip(paths, kept.tolist(), strict=True) if keep}
    mean = sum(
        chance(q, text) * next((n for n in range(3) if text[: n + 1] not in sent), 3)
        for text in product(range(VOCAB), repeat=3)
    )
    assert expected_length(tree.score, kept) == pytest.approx(mean)


def test_certain_tokens_tie_with_their_parents_and_the_shallower_go_first() -> None:
    """Every node of the chain is worth 1/2: only its head can be sent alone."""
    tree = grow(lambda nodes: np.log([[1.0]] * len(nodes)), depth=4, top=1)
    for n in range(5):
        assert rerank(tree.score, tree.depth, n).tolist() == [i < n for i in range(4)]
    stacked = rerank(np.stack([tree.score, tree.score]), tree.depth, 2)
    assert stacked.tolist() == [[True, True, False, False]] * 2
    assert not rerank(np.full(3, -np.inf), np.arange(3), 3).any()


def random_combs(rng: Any, P: int, K: int, W: int) -> Combs:
    log_q = np.sort(np.log(rng.dirichlet(np.ones(W + 1), (P, K))[..., :W]), axis=2)[..., ::-1]
    drawn = rng.integers(0, W, (P, K))
    parent = np.concatenate([np.full((P, 1), -1), drawn[:, :-1]], axis=1)
    return Combs(log_q, np.broadcast_to(np.arange(W), (P, K, W)), parent)


def walk(combs: Combs, kept: Any, text: list[Any], p: int) -> int:
    """Follow the target's choices down a logged tree, node by node."""
    K = int(combs.rank.shape[1])
    drawn = [*combs.parent[p, 1:].tolist(), None]
    for k in range(K):
        if text[k] >= combs.rank.shape[2] or not kept[p, k, text[k]]:
            return k
        if text[k] != drawn[k] and k + 1 < K:
            return k + 1  # an alternative has no children in the log
    return K


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(0, 9))
def test_logged_trees_accept_what_the_target_chooses(seed: int, num_nodes: int) -> None:
    rng = np.random.default_rng(seed)
    P, K, W = 20, 3, 3
    combs = random_combs(rng, P, K, W)
    score = comb_scores(combs)
    depth = np.repeat(np.arange(K), W)
    kept = rerank(score.reshape(P, -1), depth, num_nodes).reshape(P, K, W)
    for p in range(P):
        reached = 0.0
        for k in range(K):
            np.testing.assert_allclose(score[p, k], reached + combs.log_q[p, k])
            if k + 1 < K:
                drawn = combs.parent[p, k + 1]
                assert kept[p, k, drawn] or not kept[p, k + 1].any()  # connected
                reached += combs.log_q[p, k, drawn]
    choice = rng.integers(0, W + 1, (P, K))
    last = rng.integers(0, W, P)
    drawn = np.concatenate([combs.parent[:, 1:], last[:, None]], axis=1)
    accepted = np.cumprod(choice == drawn, axis=1).sum(axis=1)
    # behind a rejection the log knows nothing: whatever stands there is not read
    hidden = np.where(np.arange(K) > accepted[:, None], 0, choice)
    found = comb_accepted(combs, kept, accepted, hidden)
    assert found.tolist() == [walk(combs, kept, choice[p].tolist(), p) for p in range(P)]
