"""Trees that a log holds: what EAGLE-2 would send of them, and gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from draftlab.policies.tree import Combs, comb_accepted, comb_scores, rerank

if TYPE_CHECKING:
    from draftlab._types import IntArray
    from draftlab.grading.cells import Cell
    from draftlab.log.reader import DraftLog
    from draftlab.studies.simulate.proposals import CompleteProposals


COLUMNS = ("target_rank_in_q", "target_entropy")
"""Columns of drafts from which the target's own choice is known, where it is greedy."""


@dataclass(frozen=True)
class LoggedTrees:
    """Logged alternatives of the proposals of a cell."""

    combs: Combs
    choice: IntArray
    """(P, K): rank in q of the target's choice."""
    accepted: IntArray
    """(P,): drafts of the chain that are emitted if all are sent."""
    bonus: IntArray
    """(P,): 1, or 0 where the request ends inside the drafts."""

    def send(self, num_nodes: int) -> tuple[IntArray, IntArray]:
        """Return the nodes that EAGLE-2 sends of each proposal, and how many are accepted, (P,)."""
        score = comb_scores(self.combs)
        P, K, W = score.shape
        depth = np.repeat(np.arange(K), W)
        kept = rerank(score.reshape(P, K * W), depth, num_nodes).reshape(P, K, W)
        found = comb_accepted(self.combs, kept, self.accepted, self.choice)
        # a request that ended inside the drafts emits no alternative behind its end
        found = np.where(self.bonus == 0, np.minimum(found, self.accepted), found)
        return kept.sum(axis=(1, 2)), found


def has_trees(log: DraftLog) -> bool:
    """Return whether some run was collected with --log-tree."""
    return any(run.rows["trees"] for run in log.runs)


def read_trees(log: DraftLog, cell: Cell, proposals: CompleteProposals) -> LoggedTrees | str:
    """Read the trees of a cell's proposals; a sentence where they are of no use.

    A tree's accepted length is known exactly where the target is greedy: every target
    distribution up to the first rejection must be one-hot.
    """
    K, P = proposals.num_positions, len(proposals)
    nodes = _nodes(log, cell, proposals.keys)
    if len(nodes) == 0:
        return "the log has no trees: collect with --log-tree"
    width = len(nodes) // (P * K)
    if len(nodes) != P * K * width or not (nodes["node"] == _numbers(P, K * width)).all():
        return "the trees of the log are not complete, or not of one width"
    entropy = proposals.rows["target_entropy"].to_numpy().reshape(P, K)
    known = np.arange(K) <= proposals.accepted[:, None]
    if np.any(entropy[known] != 0):  # NaN: not recorded
        return "what a tree accepts is known only where the target is greedy (temperature 0)"
    parent = nodes["parent"].to_numpy().reshape(P, K, width)[:, :, 0].astype(np.int64)
    return LoggedTrees(
        Combs(
            nodes["token_logprob"].to_numpy().astype(np.float64).reshape(P, K, width),
            nodes["rank"].to_numpy().astype(np.int64).reshape(P, K, width),
            np.where(parent < 0, -1, parent % width),
        ),
        proposals.rows["target_rank_in_q"].fill_null(-1).to_numpy().astype(np.int64).reshape(P, K),
        proposals.accepted,
        proposals.bonus,
    )


def _nodes(log: DraftLog, cell: Cell, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the logged nodes of the proposals, in their order."""
    codes = pl.DataFrame({"run_name": cell.runs, "run": range(len(cell.runs))}).cast(
        {"run": keys.schema["run"]}
    )
    return (
        log.scan("trees")
        .rename({"run": "run_name"})
        .join(codes.lazy(), on="run_name")
        .join(keys.lazy(), on=["run", "request", "step"], how="semi")
        .sort("run", "request", "step", "node")
        .collect()
    )


def _numbers(num_proposals: int, size: int) -> pl.Series:
    return pl.Series(np.tile(np.arange(size, dtype=np.int32), num_proposals))
