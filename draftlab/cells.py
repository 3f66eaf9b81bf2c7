"""From a log to cells: rows that one model may describe, and a count of those left out.

A cell is one pair, drafting method, K and feature source under greedy or under probabilistic
drafting (by row: a temperature-0 request is greedy whatever its run says). Rows of different
cells are never pooled; rows of several runs of one cell are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab import schema
from draftlab.errors import InputError
from draftlab.metrics import FloatArray, divide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab.features import Drafting
    from draftlab.log.reader import DraftLog, Run

_SAME = (
    "method",
    "num_speculative_tokens",
    "feature_source",
    "verification",
    "adaptive_verification",
)
"""Keys of run.json, besides the pair, in which runs of one cell agree."""
_KEYS = ("request", "step", "slot", "position", "accepted")

_LABELLED = pl.col("accepted").is_not_null()
_ELIGIBLE = pl.col("excluded") == 0
_PLACED = pl.col("dataset").is_not_null() & pl.col("prompt").is_not_null()


@dataclass(frozen=True)
class Cell:
    """Rows of one cell, and what was counted on the way to them."""

    run: str
    """Name of the run, or of the runs that are pooled."""
    pair: str
    drafting: Drafting
    metadata: dict[str, Any]
    """Those keys of run.json that are equal in all runs."""
    runs: tuple[str, ...]
    """Names, by the code that stands in ``rows``."""
    datasets: tuple[str, ...]
    prompts: tuple[str, ...]
    rows: pl.DataFrame
    """Labelled rows without a bit in ``excluded``, in log order: run, dataset and prompt (int32
    codes of the names above), request, step, slot, position, accepted and the asked columns."""
    counts: pl.DataFrame
    """Per dataset code (null: no request) and position: ``proposed``, ``admitted``, ``observed``,
    ``accepted_rows``, ``hidden``, ``entropy_sum`` and ``entropy_rows`` of eligible rows,
    ``labelled`` rows whether eligible or not."""
    exclusions: pl.DataFrame
    """Columns reason, rows, labelled."""

    @property
    def num_positions(self) -> int:
        """Draft positions K."""
        return int(self.metadata["num_speculative_tokens"])

    @property
    def present(self) -> list[int]:
        """Codes of the datasets that the cell has rows of, graded or not."""
        return self.counts["dataset"].drop_nulls().unique().sort().to_list()

    @property
    def selected(self) -> bool:
        """Whether adaptive verification chose which positions were observed."""
        return bool(self.metadata["adaptive_verification"] != "off")


def read_cells(log: DraftLog, columns: Sequence[str]) -> list[Cell]:
    """Read the rows of a log that can be graded, cell by cell.

    Parameters
    ----------
    log : DraftLog
    columns : sequence of str
        Raw columns of `drafts` that the features need.

    Returns
    -------
    list of Cell
        In the order in which the runs are given, probabilistic before greedy.

    Raises
    ------
    InputError
        A float column holds NaN where the schema wants null, a position lies outside [0, K),
        or a request has two rows.
    """
    requests = log.requests.select("run", "request", "dataset", "group", "temperature").collect()
    _refuse_repeated(requests)
    names = {c: requests[c].drop_nulls().unique().sort().to_list() for c in ("dataset", "group")}
    coded = requests.select(
        "run",
        "request",
        (pl.col("temperature") == 0).alias("greedy"),
        *(
            pl.col(old).rank("dense").cast(pl.Int32).sub(1).alias(new)
            for old, new in (("dataset", "dataset"), ("group", "prompt"))
        ),
    )
    pooled: dict[tuple[Any, ...], list[Run]] = {}
    for run in log.runs:
        key = (run.pair, *(run.metadata[name] for name in _SAME))
        pooled.setdefault(key, []).append(run)
    cells = []
    for runs in pooled.values():
        cells += _read_pool(runs, coded, columns, names["dataset"], names["group"])
    return cells


def _refuse_repeated(requests: pl.DataFrame) -> None:
    keys = requests.select("run", "request")
    repeated = requests.filter(keys.is_duplicated())
    if len(repeated):
        run, request = repeated.row(0)[:2]
        raise InputError(f"run {run}: request {request} has several rows in requests")


def _read_pool(
    runs: list[Run],
    requests: pl.DataFrame,
    columns: Sequence[str],
    datasets: list[str],
    prompts: list[str],
) -> list[Cell]:
    frame = pl.concat([_scan(run, code, requests, columns) for code, run in enumerate(runs)])
    by_place = frame.group_by("greedy", "dataset", "position").agg(
        *_count_exprs(), *_exclusion_exprs(), *_nan_exprs(columns)
    )
    wanted = ["run", "dataset", "prompt", *_KEYS, *columns]
    eligible = frame.filter(_LABELLED & _ELIGIBLE & _PLACED).select("greedy", *wanted)
    counts, rows = pl.collect_all([by_place.sort("dataset", "position"), eligible])
    num_positions = int(runs[0].metadata["num_speculative_tokens"])
    _refuse_bad(counts, columns, runs, num_positions)
    cells = []
    for greedy in counts["greedy"].unique().sort().to_list():
        part = counts.filter(greedy=greedy)
        cells.append(
            Cell(
                run=_pooled_name(runs),
                pair=runs[0].pair,
                drafting="greedy" if greedy else "probabilistic",
                metadata={name: runs[0].metadata[name] for name in _SAME},
                runs=tuple(run.name for run in runs),
                datasets=tuple(datasets),
                prompts=tuple(prompts),
                rows=rows.filter(greedy=greedy).drop("greedy"),
                counts=part.select("dataset", "position", *_COUNTS),
                exclusions=_exclusions(part),
            )
        )
    return cells


def _pooled_name(runs: list[Run]) -> str:
    if len(runs) <= 3:
        return "+".join(run.name for run in runs)
    return f"{runs[0].name}+{len(runs) - 1} more"


def _scan(run: Run, code: int, requests: pl.DataFrame, columns: Sequence[str]) -> pl.LazyFrame:
    raw = dict.fromkeys((*_KEYS, "verify_step", "admitted", "excluded", "entropy", *columns))
    known = requests.lazy().filter(pl.col("run") == run.name).drop("run")
    always = pl.lit(run.metadata["drafting"] == "greedy")
    return (
        run.scan("drafts")
        .select(*raw)
        .join(known, on="request", how="left", maintain_order="left")
        .with_columns(
            run=pl.lit(code, dtype=pl.Int32),
            greedy=always | pl.col("greedy").fill_null(value=False),
        )
    )


_HAS_ENTROPY = _ELIGIBLE & _LABELLED & pl.col("entropy").is_not_null()
_COUNTS: dict[str, pl.Expr] = {
    "proposed": _ELIGIBLE.sum(),
    # a verdict covers it; behind a rejection it then counts as not surviving
    "admitted": (_ELIGIBLE & pl.col("admitted") & pl.col("verify_step").is_not_null()).sum(),
    "observed": (_ELIGIBLE & _LABELLED).sum(),
    "accepted_rows": (_ELIGIBLE & pl.col("accepted")).sum(),
    "hidden": (_ELIGIBLE & ~pl.col("admitted")).sum(),
    "labelled": _LABELLED.sum(),
    "entropy_sum": pl.col("entropy").cast(pl.Float64).filter(_HAS_ENTROPY).sum(),
    "entropy_rows": _HAS_ENTROPY.sum(),
}
_REASONS: dict[str, pl.Expr] = {
    "unobserved": ~_LABELLED,
    **{str(bit.name).lower(): (pl.col("excluded") & bit.value) != 0 for bit in schema.Excluded},
    "no_request": ~_PLACED,
    # every row once, however many reasons it has
    "total": reduce(or_, (~_LABELLED, ~_ELIGIBLE, ~_PLACED)),
}


def _count_exprs() -> list[pl.Expr]:
    return [expr.cast(pl.Float64 if name == "entropy_sum" else pl.Int64).alias(name)
            for name, expr in _COUNTS.items()]  # fmt: skip


def _exclusion_exprs() -> list[pl.Expr]:
    return [
        reason.sum().cast(pl.Int64).alias(f"{name}:rows") for name, reason in _REASONS.items()
    ] + [
        (reason & _LABELLED).sum().cast(pl.Int64).alias(f"{name}:labelled")
        for name, reason in _REASONS.items()
    ]


def _exclusions(counts: pl.DataFrame) -> pl.DataFrame:
    table = pl.DataFrame(
        {
            "reason": list(_REASONS),
            "rows": [int(counts[f"{name}:rows"].sum()) for name in _REASONS],
            "labelled": [int(counts[f"{name}:labelled"].sum()) for name in _REASONS],
        },
        schema={"reason": pl.String, "rows": pl.Int64, "labelled": pl.Int64},
    )
    return table.filter((pl.col("rows") > 0) | (pl.col("reason") == "total"))


def _nan_exprs(columns: Sequence[str]) -> list[pl.Expr]:
    floats = {column.name for column in schema.DRAFTS if column.dtype == "float32"}
    return [pl.col(name).is_nan().sum().alias(f"{name}:nan") for name in columns if name in floats]


def _refuse_bad(
    counts: pl.DataFrame, columns: Sequence[str], runs: list[Run], num_positions: int
) -> None:
    where = f"run {_pooled_name(runs)}"
    for name in columns:
        num_nan = int(counts[f"{name}:nan"].sum()) if f"{name}:nan" in counts.columns else 0
        if num_nan:
            raise InputError(
                f"{where}: column {name} of drafts holds {num_nan} NaN; log version "
                f"{schema.VERSION} wants null there"
            )
    outside = counts.filter(~pl.col("position").is_between(0, num_positions - 1))
    if len(outside):
        raise InputError(
            f"{where}: drafts hold position {outside['position'][0]}, but run.json says "
            f"num_speculative_tokens {num_positions}"
        )


def acceptance_table(cell: Cell) -> pl.DataFrame:
    """Return counts and rates of eligible rows by dataset (null: all) and position.

    Columns: dataset, position, n_proposed, n_admitted (sent, and covered by a verdict),
    n_observed, n_accepted, conditional_rate (accepted / observed), survival_rate (accepted /
    admitted), hidden_share (proposed but not sent), mean_entropy of observed rows, nats. Every
    position up to K has its row; a rate over nothing is NaN.
    """
    tables = [_rates(cell, cell.counts, None)]
    tables += [
        _rates(cell, cell.counts.filter(dataset=code), cell.datasets[code]) for code in cell.present
    ]
    return pl.concat(tables)


def _rates(cell: Cell, counts: pl.DataFrame, dataset: str | None) -> pl.DataFrame:
    positions = pl.DataFrame({"position": pl.Series(range(cell.num_positions), dtype=pl.Int16)})
    sums = counts.drop("dataset").group_by("position").sum()
    table = positions.join(sums, on="position", how="left", maintain_order="left").fill_null(0)

    def ratio(above: str, below: str) -> FloatArray:
        return divide(table[above].to_numpy(), table[below].to_numpy())

    return table.select(
        pl.lit(dataset, dtype=pl.String).alias("dataset"),
        "position",
        pl.col("proposed").alias("n_proposed"),
        pl.col("admitted").alias("n_admitted"),
        pl.col("observed").alias("n_observed"),
        pl.col("accepted_rows").alias("n_accepted"),
        pl.Series("conditional_rate", ratio("accepted_rows", "observed")),
        pl.Series("survival_rate", ratio("accepted_rows", "admitted")),
        pl.Series("hidden_share", ratio("hidden", "proposed")),
        pl.Series("mean_entropy", ratio("entropy_sum", "entropy_rows")),
    )
