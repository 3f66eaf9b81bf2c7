"""Paired differences between predictors that were graded on the same rows."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from draftlab.grading.grade import SCORES, Grade, strata_of
from draftlab.metrics.intervals import half_width
from draftlab.predictors.baselines import ADOPTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab._types import BoolArray, FloatArray
    from draftlab.grading.rows import GradedRows

Compare = Literal["adopted", "all"]

_SCOPES = ("overall", "without_first", "position")
_METRICS = ("auc", "log_loss", "brier", "ece")
_SCHEMA = {
    "scope": pl.String,
    "position": pl.Int16,
    "predictor_a": pl.String,
    "predictor_b": pl.String,
    "metric": pl.String,
    "difference": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "distinguishable": pl.Boolean,
}


def difference_table(
    rows: GradedRows, grades: dict[str, Grade], compare: Compare = "adopted"
) -> pl.DataFrame:
    """Return a - b of every metric with its 95 % interval by group.

    Both predictors meet the same rows, so that what makes a prompt hard for both falls out.

    Parameters
    ----------
    rows : GradedRows
    grades : dict of Grade
        By predictor.
    compare : {"adopted", "all"}
        `ADOPTED` (or the first predictor, if it is absent) against every other, or all pairs.

    Returns
    -------
    polars.DataFrame
        scope (overall, without_first, position), position, predictor_a, predictor_b, metric
        (auc, log_loss, brier, ece), difference, low, high, distinguishable: whether the
        interval leaves 0 out. ECE has no valid interval near 0: NaN and null there. Intervals
        are not corrected for multiple comparisons: about 1 in 20 equal pairs will look different.
    """
    for name, of_predictor in grades.items():
        if of_predictor.view != rows.view:
            raise ValueError(f"{name} was graded on the {of_predictor.view} view: views never mix")
    tables = [pl.DataFrame(schema=_SCHEMA)]
    tables += [
        _compare(rows, a, grades[a], b, grades[b], scope)
        for a, b in _pairs(list(grades), compare)
        for scope in _SCOPES
    ]
    return pl.concat(tables)


def _pairs(names: Sequence[str], compare: Compare) -> list[tuple[str, str]]:
    if compare == "all":
        return list(combinations(names, 2))
    if not names:
        return []
    reference = ADOPTED if ADOPTED in names else names[0]
    return [(reference, name) for name in names if name != reference]


def _compare(
    rows: GradedRows, a: str, grade_a: Grade, b: str, grade_b: Grade, scope: str
) -> pl.DataFrame:
    first, second = (grade.table.filter(scope=scope) for grade in (grade_a, grade_b))
    influence = grade_a.influence[scope] - grade_b.influence[scope]
    clusters = rows.clusters[scope]
    tables = []
    for metric in _METRICS:
        gap: FloatArray = first[metric].to_numpy() - second[metric].to_numpy()
        half = np.full(len(gap), np.nan)
        if metric in SCORES:
            group_influence = influence[SCORES.index(metric)]
            half = half_width(
                group_influence, clusters.entry, len(gap), strata_of(metric, clusters)
            )
        low, high = gap - half, gap + half
        tables.append(
            first.select(
                "scope",
                "position",
                predictor_a=pl.lit(a),
                predictor_b=pl.lit(b),
                metric=pl.lit(metric),
                difference=pl.Series(gap),
                low=pl.Series(low),
                high=pl.Series(high),
                distinguishable=_decide(low, high),
            )
        )
    return pl.concat(tables)


def _decide(low: FloatArray, high: FloatArray) -> pl.Series:
    known = np.isfinite(low) & np.isfinite(high)
    clear: BoolArray = (low > 0) | (high < 0)
    decided = [bool(c) if k else None for c, k in zip(clear, known, strict=True)]
    return pl.Series(decided, dtype=pl.Boolean)
