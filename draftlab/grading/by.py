"""One more way to cut graded rows: by a column of requests, of steps or of the run.

Numbers of many values are cut into ranges, so that every value has rows to be graded on. What a
draft is, or how it ended, is no such column, for the reason that `draftlab.log.where` gives.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.grading.grade import grade
from draftlab.grading.rows import arrange
from draftlab.log.where import TIME, facts_of, name_columns

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.grading.cells import Cell
    from draftlab.grading.prepare import Prepared
    from draftlab.grading.rows import GradedRows
    from draftlab.log.reader import DraftLog

MOST = 20
"""Values of a column that each stand alone."""
_QUINTILES = (0.2, 0.4, 0.6, 0.8)
UNKNOWN = "(unknown)"
"""Label of rows whose request or step does not say, or is not there."""
_EXACT = 1e6
"""Below it six digits tell whole numbers apart."""


@dataclass(frozen=True)
class Grouping:
    """Values of a column, in rising order, and which rows have each."""

    column: str
    labels: tuple[str, ...]
    """`UNKNOWN` is the last."""
    key: str | None
    """``request`` or ``step``, by which a row is looked up; None: the run alone says it."""
    codes: pl.DataFrame
    """Code of each label: run, the key, by (int64)."""

    @property
    def unknown(self) -> int:
        """Code of rows that have no value."""
        return len(self.labels) - 1

    def of_run(self, run: str) -> pl.DataFrame:
        """Return the codes of a run: the key and by."""
        return self.codes.filter(run=run).drop("run")

    def code(self, frame: pl.DataFrame) -> IntArray:
        """Return the code of each row of a frame with run (by name) and the key."""
        keys = ["run"] if self.key is None else ["run", self.key]
        rows = frame.select(keys).cast({} if self.key is None else {self.key: pl.Int64})
        found = rows.join(self.codes, on=keys, how="left", maintain_order="left")["by"]
        return found.fill_null(self.unknown).to_numpy()

    def name(self, code: IntArray) -> pl.Series:
        """Return the labels of codes, as texts that sort as the values do."""
        return pl.Series(self.labels)[code].cast(pl.Enum(self.labels))

    def code_cell(self, cell: Cell, frame: pl.DataFrame) -> IntArray:
        """Return the code of each row of a frame whose run is a code of the cell's."""
        names = pl.Series(cell.runs, dtype=pl.String)[frame["run"]]
        return self.code(frame.with_columns(run=names))


def make_grouping(text: str, *logs: DraftLog) -> list[Grouping]:
    """Return how each log is cut by a column; the values are those of all logs together.

    Parameters
    ----------
    text : str
        A column of requests, steps (``time`` too) or the run, or ``COLUMN:EDGE,EDGE``. Up to
        `MOST` values each stand alone; more numbers or times are cut at quintiles of the
        requests, or steps, unless edges say where.
    *logs : DraftLog

    Raises
    ------
    InputError
        An unknown column, more than `MOST` texts, or edges that do not rise or are of text.

    Examples
    --------
    >>> from draftlab.log.reader import open_log
    >>> [grouping] = make_grouping("prompt_tokens:50,100", open_log("data/sample"))
    >>> grouping.labels
    ('< 50', '[50, 100)', '>= 100', '(unknown)')
    """
    column, colon, stated = text.partition(":")
    runs = [run for log in logs for run in log.runs]
    places = name_columns([column], runs, f"--by {text}")
    place = next(name for name, found in places.items() if found)
    tables = [_read(log, place, column) for log in logs]
    values = pl.concat([table["value"] for table in tables]).drop_nulls()
    cut = _cut(text, column, values, stated if colon else None)
    key = None if place == "run" else place.removesuffix("s")
    labels = (*cut.labels, UNKNOWN)
    return [Grouping(column, labels, key, _code(table, cut)) for table in tables]


class _Cut(NamedTuple):
    """Groups of rising values."""

    starts: list[Any]
    """Least value of each group but the first."""
    labels: list[str]


def _cut(text: str, column: str, values: pl.Series, stated: str | None) -> _Cut:
    is_text = not values.dtype.is_numeric()
    if stated is not None:
        if is_text:
            raise InputError(f"--by {text}: {column} is text, and edges cut numbers and times only")
        edges = _parse_edges(text, column, stated)
        inner = [f"[{a}, {b})" for a, b in pairwise(_show(column, edge) for edge in edges)]
        first, last = _show(column, edges[0]), _show(column, edges[-1])
        return _Cut(edges, [f"< {first}", *inner, f">= {last}"])
    distinct = values.unique().sort().to_list()
    if len(distinct) <= MOST:
        names = [_show(column, value) for value in distinct]
        alike = len(set(names)) < len(names)
        return _Cut(distinct[1:], [str(value) for value in distinct] if alike else names)
    if is_text:
        raise InputError(
            f"--by {text}: {column} has {len(distinct)} values, and at most {MOST} texts stand "
            "beside one another"
        )
    inner_edges = np.quantile(values.to_numpy(), _QUINTILES, method="lower")
    starts = sorted({edge for edge in inner_edges.tolist() if edge > distinct[0]})
    shown = [_show(column, value) for value in (distinct[0], *starts, distinct[-1])]
    ranges = [f"[{a}, {b})" for a, b in pairwise(shown[:-1])]
    return _Cut(starts, [*ranges, f"[{shown[-2]}, {shown[-1]}]"])


def _show(column: str, value: Any) -> str:
    if column == TIME:
        return dt.datetime.fromtimestamp(value, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < _EXACT else f"{value:.0f}"
    return str(value)


def _parse_edges(text: str, column: str, stated: str) -> list[float]:
    try:
        edges = [_parse(column, edge.strip()) for edge in stated.split(",")]
    except ValueError:
        raise InputError(f"--by {text}: wanted COLUMN:EDGE,EDGE, got {stated!r}") from None
    if any(b <= a for a, b in pairwise(edges)):
        raise InputError(f"--by {text}: edges must rise")
    return edges


def _parse(column: str, edge: str) -> float:
    if column == TIME:
        return dt.datetime.fromisoformat(edge).replace(tzinfo=dt.UTC).timestamp()
    return float(edge)


def _read(log: DraftLog, place: str, column: str) -> pl.DataFrame:
    """Return run, the key and the value of each request or step, or of each run.

    Numbers stay numbers, a time is in seconds, everything else is text.
    """
    if place == "run":
        facts = [facts_of(run).get(column) for run in log.runs]
        values = pl.Series(facts, strict=False)
        if not values.dtype.is_numeric():
            values = pl.Series([None if v is None else str(v) for v in facts], dtype=pl.String)
        return pl.DataFrame({"run": [run.name for run in log.runs], "value": values})
    key = place.removesuffix("s")
    value = pl.col("unix_ms") // 1000 if column == TIME else pl.col(column)
    rows = log.scan(place).select("run", key, value=value).collect()
    return rows.unique(["run", key], keep="first", maintain_order=True)


def _code(table: pl.DataFrame, cut: _Cut) -> pl.DataFrame:
    """Return the table with the code of each value, in the place of the value."""
    known = table.drop_nulls("value")
    code = np.searchsorted(np.asarray(cut.starts), known["value"].to_numpy(), side="right")
    return known.drop("value").with_columns(by=pl.Series(code, dtype=pl.Int64))


class GroupedRows(NamedTuple):
    """Graded rows of a cell in another order, the groups in the place of the datasets."""

    rows: GradedRows
    order: IntArray
    """Where each of them stands among the graded rows."""
    excluded: IntArray
    """(groups,): labelled rows of the cell that are not graded."""

    def grade(
        self,
        feature: FloatArray,
        slopes: FloatArray,
        intercepts: FloatArray,
        n_bins: int,
        clamped: BoolArray,
    ) -> pl.DataFrame:
        """Return a graded table of scope ``by``, with n_excluded and n_clamped.

        Parameters are those of `grade`, over the graded rows in their own order; ``clamped``
        marks the rows whose feature is clamped.
        """
        found = grade(
            self.rows, feature[self.order], slopes, intercepts, n_bins, scopes=("dataset",)
        )
        groups = self.rows.dataset[clamped[self.order]]
        return found.table.with_columns(
            scope=pl.lit("by"),
            by=pl.col("dataset"),
            dataset=pl.lit(None, dtype=pl.String),
            n_excluded=pl.Series(self.excluded),
            n_clamped=pl.Series(np.bincount(groups, minlength=len(self.rows.datasets))),
        )


def group_rows(cell: Cell, ready: Prepared, grouping: Grouping) -> GroupedRows:
    """Arrange the graded rows of a cell by group: same rows, same folds, other neighbours."""
    every = grouping.code_cell(cell, ready.frame)
    present, code = np.unique(every, return_inverse=True)
    rows = ready.rows
    grouped, order = arrange(
        accepted=rows.accepted,
        position=rows.position,
        dataset=code,
        fold=rows.fold,
        group=rows.group,
        datasets=tuple(grouping.labels[c] for c in present),
        num_positions=rows.num_positions,
        num_folds=rows.num_folds,
    )
    keys = ["run"] if grouping.key is None else ["run", grouping.key]
    labelled = cell.frame.filter(pl.col("accepted").is_not_null()).select(keys).collect()
    total = np.bincount(grouping.code_cell(cell, labelled), minlength=len(grouping.labels))
    return GroupedRows(grouped, order, total[present] - np.bincount(code))
