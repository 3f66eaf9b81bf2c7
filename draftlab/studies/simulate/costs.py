"""Which cost table a study means: of the log's own steps, of a file, or a model by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.log.reader import DraftLog, open_any
from draftlab.policies.cost import (
    DEFAULT_MODEL,
    CostTable,
    StepSizes,
    check_table,
    find_cost,
    table_from_steps,
)
from draftlab.results import Note

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_STEPS = "own_steps"
"""Code of the note on what a log's own steps tell."""
OF_LOG = "log"
"""Name of the table that the log's own steps give."""
Cost = CostTable | str | Path
"""A table, or what names one: ``log``, HARDWARE/MODEL, or a file."""


def as_cost(cost: Cost, log: DraftLog) -> CostTable:
    """Return the cost table that is meant.

    Raises
    ------
    InputError
        No table is known by the name, the file is none, or the log's steps give none.
    """
    if isinstance(cost, CostTable):
        return cost
    return cost_of_log(log) if cost == OF_LOG else find_cost(str(cost))


def default_costs(
    log: DraftLog, concurrencies: Sequence[int]
) -> tuple[list[CostTable], list[Note]]:
    """Return the cost model, and the log's own steps where they show that a draft costs something.

    The note says what the log's own steps tell.
    """
    model = find_cost(DEFAULT_MODEL)
    try:
        own = cost_of_log(log)
    except InputError as error:
        text = f"the log's own steps give no cost table: {error}"
        return [model], [Note(OWN_STEPS, text)]
    K = int(log.runs[0].metadata["num_speculative_tokens"])
    useless = [check_table(own, requests=c, num_speculative_tokens=K) for c in concurrencies]
    if None in useless:
        text = f"the log's own steps give a cost table too ({own.note}), so both are simulated"
        return [model, own], [Note(OWN_STEPS, text)]
    instead = f"the data-sheet model {DEFAULT_MODEL} is used; for your machine use --cost"
    if len(own.verify.sizes) == 1:
        text = f"the log's own steps cannot show what a draft costs ({own.note}); {instead}"
    else:
        text = (
            f"nothing can be gained at the cost of the log's own steps ({own.note}): "
            f"{useless[-1]}; {instead}"
        )
    return [model], [Note(OWN_STEPS, text)]


def cost_of_log(log: DraftLog | str | Path | Sequence[str | Path]) -> CostTable:
    """Return the cost table that a log's own steps measured.

    Steps that read a prompt are left out. A log at one concurrency and full length holds few
    batch sizes; collect under several, or measure with `draftlab profile`.

    Raises
    ------
    InputError
        Several K, or no batch size was measured often enough.
    """
    opened = open_any(log)
    lengths = {int(run.metadata["num_speculative_tokens"]) for run in opened.runs}
    if len(lengths) > 1:
        raise InputError(f"a cost table needs runs of one K, got {sorted(lengths)}")
    names = ("num_requests", "num_non_draft_tokens", "num_admitted", "padded_tokens")
    steps = (
        opened.steps.filter(
            pl.col("num_requests") > 0, pl.col("num_non_draft_tokens") == pl.col("num_requests")
        )
        .select(*names, "verify_ms", "draft_ms")
        .collect()
    )
    tokens = steps.select(
        pl.coalesce("padded_tokens", pl.col("num_non_draft_tokens") + pl.col("num_admitted"))
    ).to_series()
    known = steps.filter(tokens.is_not_null())
    sizes = StepSizes(
        requests=known["num_requests"].to_numpy().astype(np.int64),
        tokens=tokens.drop_nulls().to_numpy().astype(np.int64),
        verify_ms=known["verify_ms"].cast(pl.Float64).fill_null(np.nan).to_numpy(),
        draft_ms=known["draft_ms"].cast(pl.Float64).fill_null(np.nan).to_numpy(),
    )
    name = "+".join(run.name for run in opened.runs)
    return table_from_steps(sizes, num_speculative_tokens=lengths.pop(), name=f"{name} steps")
