"""Which of the published orders hold in this run: computed from both tables, never typed."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from draftlab.published import PUBLISHED
from draftlab.reporting.labels import label, of_cell
from draftlab.reporting.tables import workload_table

if TYPE_CHECKING:
    from draftlab.reporting.labels import CellKey
    from draftlab.studies.evaluate import Evaluation

_DIGITS = 4
"""Numbers that print alike count as equal."""
_MIN_WORKLOADS = 4
"""Fewer points make a correlation of any size by chance."""
_BETTER = {"auc": "higher", "log_loss": "lower", "ece": "lower"}
_PRINTED = {"auc": "AUC", "log_loss": "log-loss", "ece": "ECE"}


class _Comparison(NamedTuple):
    table: str
    scope: str
    metric: str
    first: str
    second: str


_COMPARISONS = (
    *(_Comparison("T1", "overall", "log_loss", "logit_qmax", other)
      for other in ("log_qmax", "top2_margin", "entropy", "loglog_qmax", "qmax")),
    *(_Comparison("T1", "overall", "auc", "logit_qmax", other)
      for other in ("log_qmax", "top2_margin", "entropy", "qmax")),
    *(_Comparison("T1", "overall", "ece", "logit_qmax", other)
      for other in ("log_qmax", "entropy", "qmax")),
    *(_Comparison("T1", "overall", metric, "logit_q_sampled", "logit_qmax")
      for metric in ("auc", "log_loss", "ece")),
    *(_Comparison(table, scope, metric, "logit_qmax", "confidence")
      for table, scope in (("T2", "overall"), ("T3", "without_first"))
      for metric in ("auc", "log_loss", "ece")),
)  # fmt: skip
"""Pairs whose published order is compared with ours."""


def findings(evaluation: Evaluation, cell: CellKey) -> pl.DataFrame:
    """Compare the published orders with this run; what was not graded here is left out.

    Returns
    -------
    DataFrame
        claim (the published order in words), table, metric, scope, better and worse (predictors
        in the published order), here_better, here_worse, published_better, published_worse,
        status: ``holds``, ``does not hold``, ``equal`` when both print alike, or ``undecided``:
        where the paired 95 % interval by prompt covers 0, ECEs differ by less than what both
        would show if they were calibrated, or so few workloads tell nothing of a correlation.
    """
    metrics = of_cell(evaluation.metrics, cell).filter(view="conditional")
    graded = set(metrics["predictor"])
    rows = [
        _compare(comparison, metrics)
        for comparison in _COMPARISONS
        if {comparison.first, comparison.second} <= graded
    ]
    if "qmax" in graded:
        rows.append(_raw_bias(metrics))
    rows.append(_intercept_follows_entropy(evaluation, cell))
    table = pl.DataFrame([row for row in rows if row is not None], schema=_SCHEMA, orient="row")
    unsure = _alike(of_cell(evaluation.differences, cell)) | _within_bands(metrics)
    marked = [
        "undecided"
        if row["status"] != "equal"
        and (row["scope"], row["metric"], frozenset((row["better"], row["worse"]))) in unsure
        else row["status"]
        for row in table.iter_rows(named=True)
    ]
    return table.with_columns(pl.Series("status", marked, dtype=pl.String))


_Pair = tuple[str, str, frozenset[str]]
"""Scope, metric and the two predictors."""


def _alike(differences: pl.DataFrame) -> set[_Pair]:
    """Return what paired differences cannot tell apart."""
    unsure = differences.filter(~pl.col("distinguishable"), pl.col("position").is_null())
    return {
        (row["scope"], row["metric"], frozenset((row["predictor_a"], row["predictor_b"])))
        for row in unsure.iter_rows(named=True)
    }


def _within_bands(metrics: pl.DataFrame) -> set[_Pair]:
    """Return pairs whose ECEs differ by less than both null bands: no interval near 0 is valid."""
    found = set()
    for scope in ("overall", "without_first"):
        rows = metrics.filter(scope=scope).select("predictor", "ece", "ece_null_high").rows()
        for (a, ece_a, band_a), (b, ece_b, band_b) in itertools.combinations(rows, 2):
            if abs(ece_a - ece_b) <= band_a + band_b:
                found.add((scope, "ece", frozenset((a, b))))
    return found


_SCHEMA = {
    "claim": pl.String,
    "table": pl.String,
    "metric": pl.String,
    "scope": pl.String,
    "better": pl.String,
    "worse": pl.String,
    "here_better": pl.Float64,
    "here_worse": pl.Float64,
    "published_better": pl.Float64,
    "published_worse": pl.Float64,
    "status": pl.String,
}

_Row = tuple[str, str, str, str, str, str, float, float, float, float, str]


def _compare(comparison: _Comparison, metrics: pl.DataFrame) -> _Row | None:
    table, scope, metric, first, second = comparison
    records = PUBLISHED[table].records()
    theirs = {name: float(records[name][metric] or math.nan) for name in (first, second)}
    sign = 1 if _BETTER[metric] == "higher" else -1
    better, worse = sorted((first, second), key=lambda name: -sign * theirs[name])
    ours = {name: _value(metrics, scope, name, metric) for name in (better, worse)}
    if any(math.isnan(value) for value in ours.values()):
        return None
    where = " without position 0" if scope == "without_first" else ""
    claim = (
        f"{label(better).name} has {_BETTER[metric]} {_PRINTED[metric]} than "
        f"{label(worse).name}{where}"
    )
    return (
        claim, table, metric, scope, better, worse, ours[better], ours[worse], theirs[better],
        theirs[worse], _status(sign * (_rounded(ours[better]) - _rounded(ours[worse]))),
    )  # fmt: skip


def _raw_bias(metrics: pl.DataFrame) -> _Row | None:
    theirs = PUBLISHED["T1_mean"].records()["qmax"]
    predicted, rate = float(theirs["mean_prediction"] or 0), float(theirs["rate"] or 0)
    row = metrics.filter(predictor="qmax", scope="overall").row(0, named=True)
    if row["n"] == 0:
        return None
    here, here_rate = row["mean_prediction"], row["n_accepted"] / row["n"]
    sign = math.copysign(1, predicted - rate)
    claim = f"qmax, unfitted, predicts {'more' if sign > 0 else 'less'} than is accepted"
    return (
        claim, "T1", "mean_prediction", "overall", "qmax", "observed rate", here, here_rate,
        predicted, rate, _status(sign * (_rounded(here) - _rounded(here_rate))),
    )  # fmt: skip


def _intercept_follows_entropy(evaluation: Evaluation, cell: CellKey) -> _Row | None:
    """Over workloads, the intercept moves with the draft entropy more than the slope does."""
    columns = ("mean_entropy", "slope", "intercept_0")
    table = workload_table(evaluation, cell).select(columns).drop_nulls().drop_nans()
    if len(table) < _MIN_WORKLOADS:
        return None
    theirs = {k: float(v["r"] or 0) for k, v in PUBLISHED["T4_correlation"].records().items()}
    names = ("intercept_0", "slope")
    ours = {name: float(table.select(pl.corr(name, "mean_entropy")).item() or 0) for name in names}
    claim = (
        f"over {len(table)} workloads, the intercept of position 0 "
        f"{'falls' if theirs['intercept_0'] < 0 else 'rises'} with mean draft entropy (r), "
        "and correlates with it more than the slope does"
    )
    here = math.copysign(1, theirs["intercept_0"]) * ours["intercept_0"]
    return (
        claim, "T4", "correlation", "dataset", *names, ours["intercept_0"], ours["slope"],
        theirs["intercept_0"], theirs["slope"],
        _status_of_correlations(here, abs(ours["slope"]), len(table)),
    )  # fmt: skip


def _status_of_correlations(here: float, other: float, n: int) -> str:
    """Judge r > 0 and r > the other r by Fisher's z, as if the two were independent."""
    z, z_other = (math.atanh(min(max(r, -_ALMOST_ONE), _ALMOST_ONE)) for r in (here, other))
    alone = _QUANTILE / math.sqrt(n - 3)
    margins = ((z, alone), (z - z_other, math.sqrt(2) * alone))
    if all(margin > width for margin, width in margins):
        return "holds"
    return "does not hold" if any(margin < -width for margin, width in margins) else "undecided"


_QUANTILE = 1.959964
"""97.5 % of the standard normal distribution."""
_ALMOST_ONE = 1 - 1e-12


def _value(metrics: pl.DataFrame, scope: str, predictor: str, metric: str) -> float:
    rows = metrics.filter(scope=scope, predictor=predictor)
    return float(rows[metric][0]) if len(rows) else math.nan


def _rounded(value: float) -> float:
    return round(value, _DIGITS)


def _status(margin: float) -> str:
    if margin == 0:
        return "equal"
    return "holds" if margin > 0 else "does not hold"
