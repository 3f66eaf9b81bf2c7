"""How predictors, cells and numbers are called in print."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from draftlab.studies.evaluate import Evaluation


UNDEFINED = "–"
"""How an undefined number is printed."""

METRICS = ("auc", "log_loss", "ece")
"""The metrics of the published table."""

BY_POSITION = ("logit_qmax", "top2_margin", "entropy", "logit_q_sampled", "confidence", "overlap")
"""Predictors that are shown by position; monotone functions of `logit_qmax` rank rows alike."""

MAX_OWN = 3
"""Predictors of a plugin that are drawn; tables hold all of them."""

_CELL = ("run", "pair", "drafting")


class CellKey(NamedTuple):
    """Names one cell of an evaluation."""

    run: str
    pair: str
    drafting: str
    num_speculative_tokens: int
    """K, the draft positions."""


class Label(NamedTuple):
    """How a predictor is called in print."""

    name: str
    remark: str
    """Printed in brackets after the name; may be empty."""
    section: str
    """``published``, ``floor``, ``ceiling`` or ``other``."""


SECTIONS = {"published": 0, "other": 1, "floor": 2, "ceiling": 3}
"""Sections of the headline table, in its order; ``other`` predictors come from a plugin."""

PUBLISHED_LABELS = {
    "log_qmax": ("log(qmax)", ""),
    "top2_margin": ("log(qmax) - log(q2nd)", ""),
    "entropy": ("H(q)", ""),
    "loglog_qmax": ("-log(-log(qmax))", ""),
    "logit_qmax": ("logit(qmax)", "adopted by vLLM"),
    "logit_q_sampled": ("logit(q_sampled)", ""),
    "loglog_q_sampled": ("-log(-log(q_sampled))", ""),
    "qmax": ("qmax, unfitted", ""),
    "confidence": ("trained head", "as it is"),
}
_LABELS = {
    **{name: Label(*label, "published") for name, label in PUBLISHED_LABELS.items()},
    "constant": Label("constant rate", "floor", "floor"),
    "per_position": Label("per-position rate", "floor", "floor"),
    "overlap": Label("overlap", "ceiling: knows the prefix and p", "ceiling"),
    "accept_prob": Label("accept_prob", "ceiling: knows the drawn token and p", "ceiling"),
}


def label(predictor: str) -> Label:
    """Return the printed name of a predictor; one that is not ours keeps its own.

    Examples
    --------
    >>> label("logit_qmax").name, label("mine").section
    ('logit(qmax)', 'other')
    """
    return _LABELS.get(predictor, Label(predictor, "", "other"))


def own_predictors(evaluation: Evaluation) -> list[str]:
    """Return the predictors that are not ours, from a plugin, in the order of its tables."""
    names: list[str] = evaluation.metrics["predictor"].unique(maintain_order=True).to_list()
    return [name for name in names if name not in _LABELS]


def format_number(value: object, digits: int = 4) -> str:
    """Print a table entry: floats with a fixed number of decimals, counts with commas.

    Examples
    --------
    >>> format_number(0.83361), format_number(1234567), format_number(float("nan"))
    ('0.8336', '1,234,567', '–')
    >>> format_number(True), format_number(None), format_number("text")
    ('yes', '–', 'text')
    """
    if value is None:
        return UNDEFINED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if math.isnan(value):
            return UNDEFINED
        return f"{value + 0.0:.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"
    return str(value)


def cells(evaluation: Evaluation) -> list[CellKey]:
    """Return the cells of an evaluation, in its order."""
    acceptance = evaluation.acceptance
    grouped = acceptance.group_by(_CELL, maintain_order=True)
    # the table has a row for each of the K positions, whether any draft reached it or not
    counted = grouped.agg(pl.col("position").cast(pl.Int64).max() + 1)
    return [CellKey(*row) for row in counted.rows()]


def of_cell(frame: pl.DataFrame, cell: CellKey) -> pl.DataFrame:
    """Return the rows of one cell, without the columns that name it."""
    mine = frame.filter(run=cell.run, pair=cell.pair, drafting=cell.drafting)
    return mine.drop(_CELL)
