"""Folds: whole prompts, dealt to and fro, against the rule written out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftlab.grading.folds import assign_folds


def deal(dataset: list[int], prompt: list[int], num_folds: int) -> list[int]:
    """Deal the prompts by hand: 0 1 2 2 1 0 0 ..., by dataset, longest first, then by code."""
    first = {p: min(d for d, q in zip(dataset, prompt, strict=True) if q == p) for p in prompt}
    order = sorted(set(prompt), key=lambda p: (first[p], -prompt.count(p), p))
    to_and_fro = [*range(num_folds), *reversed(range(num_folds))]
    fold = {p: to_and_fro[turn % (2 * num_folds)] for turn, p in enumerate(order)}
    return [fold[p] for p in prompt]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), min_size=1, max_size=60),
    st.integers(2, 5),
)
def test_prompts_are_dealt_as_the_rule_says(rows: list[tuple[int, int]], num_folds: int) -> None:
    dataset, prompt = (list(column) for column in zip(*rows, strict=True))
    found = assign_folds(np.array(dataset), np.array(prompt), num_folds)
    assert found.tolist() == deal(dataset, prompt, num_folds)


def test_every_fold_gets_its_share_of_every_dataset() -> None:
    """30 prompts a dataset of equal length over 5 folds: 6 each."""
    prompt = np.repeat(np.arange(90), 7)
    dataset = prompt // 30
    fold = assign_folds(dataset, prompt, 5)
    counts = np.zeros((3, 5), dtype=np.int64)
    np.add.at(counts, (dataset, fold), 1)
    assert (counts == 6 * 7).all()


def test_folds_ignore_the_order_of_rows() -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 30, 500)
    dataset = prompt % 3
    order = rng.permutation(500)
    fold = assign_folds(dataset, prompt, 5)
    np.testing.assert_array_equal(assign_folds(dataset[order], prompt[order], 5), fold[order])
