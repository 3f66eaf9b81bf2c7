"""Draft rows as a grid of proposals and positions: what a survival is a product along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl

    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.grading.cells import Cell


@dataclass(frozen=True, kw_only=True)
class ProposalGrid:
    """n rows of a cell as P proposals of up to K positions, each from position 0 on."""

    rows: pl.DataFrame
    """(n,): proposal by proposal; codes of run, dataset and prompt, position, raw columns."""
    place: IntArray
    """(n,): where each row lies in the flattened (P, K) grid."""
    survived: BoolArray
    """(P, K): everything up to the position was accepted; False where no row lies."""
    dataset: IntArray
    """(P,): codes of the cell's names."""
    group: IntArray
    """(P,): codes of (run, prompt)."""
    fold: IntArray
    """(P,): -1 where the prompt is in none."""

    def __len__(self) -> int:
        """Return P."""
        return len(self.group)

    @property
    def num_positions(self) -> int:
        """K."""
        return int(self.survived.shape[1])

    @property
    def num_survived(self) -> IntArray:
        """(P,): accepted drafts of each proposal."""
        return np.asarray(self.survived.sum(axis=1))

    def spread(self, values: FloatArray) -> FloatArray:
        """Return values of the rows, (n,), as (P, K); NaN where no row lies."""
        grid = np.full(self.survived.size, np.nan)
        grid[self.place] = values
        return grid.reshape(self.survived.shape)


def make_grid(cell: Cell, frame: pl.DataFrame, fold_of_prompt: IntArray) -> ProposalGrid:
    """Arrange rows of a cell by proposal and position.

    Parameters
    ----------
    cell : Cell
    frame : (n,) polars.DataFrame
        run, dataset, prompt (codes), position, survived and raw columns; a proposal's rows follow
        one another, from position 0 on.
    fold_of_prompt : (prompts,) int64
        As from `fold_by_prompt`.

    Returns
    -------
    ProposalGrid

    Examples
    --------
    >>> import tempfile
    >>> from draftlab.grading.cells import read_admitted, read_cells
    >>> from draftlab.log.reader import open_log
    >>> from draftlab.synth import synth_log
    >>> [cell] = read_cells(open_log(synth_log(tempfile.mkdtemp(), num_requests=9)), ["entropy"])
    >>> frame = read_admitted(cell, ["entropy"])
    >>> grid = make_grid(cell, frame, np.zeros(len(cell.prompts), dtype=np.int64))
    >>> grid.spread(frame["entropy"].to_numpy()).shape == (len(grid), grid.num_positions)
    True
    """
    position = frame["position"].to_numpy().astype(np.int64)
    first = np.flatnonzero(position == 0)
    place = (np.cumsum(position == 0) - 1) * cell.num_positions + position
    survived = np.zeros(len(first) * cell.num_positions, dtype=np.bool_)
    survived[place] = frame["survived"].to_numpy()
    heads = frame[first]
    return ProposalGrid(
        rows=frame,
        place=place,
        survived=survived.reshape(-1, cell.num_positions),
        dataset=heads["dataset"].to_numpy().astype(np.int64),
        group=cell.group_codes(heads),
        fold=fold_of_prompt[heads["prompt"].to_numpy()],
    )
