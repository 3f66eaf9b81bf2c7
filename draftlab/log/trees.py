"""Rows of `trees` from the alternatives to the drafts of a proposal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

TREE_COLUMNS = ("tree_rank", "tree_log_prob", "tree_drawn")
"""What an engine puts beside the columns of `drafts`: (n, W), (n, W) and (n,)."""


def tree_rows(drafts: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of `trees`: every alternative follows the token drawn before it.

    Parameters
    ----------
    drafts : mapping
        Whole proposals, position by position, with `TREE_COLUMNS`.

    Returns
    -------
    dict of str to (n * W,) array

    Examples
    --------
    >>> rows = tree_rows({
    ...     "request": np.array([7, 7]), "step": np.array([0, 0]), "position": np.array([0, 1]),
    ...     "tree_rank": np.array([[0, 1], [0, 1]]), "tree_drawn": np.array([1, 0]),
    ...     "tree_log_prob": np.log([[0.6, 0.4], [0.9, 0.1]]),
    ... })
    >>> rows["node"].tolist(), rows["parent"].tolist()
    ([0, 1, 2, 3], [-1, -1, 1, 1])
    """
    rank = drafts["tree_rank"]
    width = rank.shape[1]
    position = np.asarray(drafts["position"], dtype=np.int64)
    first = position * width
    before = np.append(-1, first[:-1] + drafts["tree_drawn"][:-1])
    parent = np.where(position == 0, -1, before)
    return {
        "request": np.repeat(drafts["request"], width),
        "step": np.repeat(drafts["step"], width),
        "node": (first[:, None] + np.arange(width)).ravel(),
        "parent": np.repeat(parent, width),
        "rank": rank.ravel(),
        "token_logprob": np.asarray(drafts["tree_log_prob"]).ravel(),
    }
