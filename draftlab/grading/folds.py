"""Folds for cross-fitting: whole prompts, stratified over datasets, deterministic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from draftlab._types import IntArray


def assign_folds(dataset: IntArray, prompt: IntArray, num_folds: int) -> IntArray:
    """Return the fold of each row; rows of one prompt share it, whatever run they are from.

    Prompts are dealt out to and fro (0 1 2 2 1 0 0 ...), dataset by dataset and longest first,
    so that every fold gets its share of every dataset and about the same number of rows. The
    order of the rows does not matter.

    Parameters
    ----------
    dataset, prompt : (n,) int
        Codes. A prompt that stands in several datasets is dealt with the first.
    num_folds : int

    Returns
    -------
    (n,) int64
        In [0, num_folds).

    Examples
    --------
    >>> assign_folds(np.zeros(5, dtype=int), np.array([7, 7, 8, 9, 7]), 2).tolist()
    [0, 0, 1, 1, 0]
    """
    rows = pl.DataFrame({"dataset": dataset, "prompt": prompt})
    prompts = rows.group_by("prompt").agg(pl.col("dataset").min(), pl.len().alias("size"))
    turn = pl.int_range(pl.len(), dtype=pl.Int64)
    place = turn % num_folds
    by_size = prompts.sort("dataset", "size", "prompt", descending=[False, True, False])
    dealt = by_size.select(
        "prompt",
        pl.when(turn // num_folds % 2 == 0).then(place).otherwise(num_folds - 1 - place)
        .alias("fold"),
    )  # fmt: skip
    return rows.join(dealt, on="prompt", how="left", maintain_order="left")["fold"].to_numpy()


def fold_by_prompt(prompt: IntArray, fold: IntArray, num_prompts: int) -> IntArray:
    """Return the fold of each prompt code, (num_prompts,), from rows; -1 where it has none.

    Examples
    --------
    >>> fold_by_prompt(np.array([3, 0, 3]), np.array([1, 0, 1]), 4).tolist()
    [0, -1, -1, 1]
    """
    folds = np.full(num_prompts, -1)
    folds[prompt] = fold
    return folds
