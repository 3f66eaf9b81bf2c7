"""From a log to cells: rows that one model may describe, and a count of those left out.

A cell is one pair, drafting method, K and feature source under greedy or under probabilistic
drafting (by row: a temperature-0 request is greedy whatever its run says). Rows of different
cells are pooled only on request; rows of several runs of one cell are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from draftlab import schema
from draftlab.errors import InputError
from draftlab.metrics import divide
from draftlab.predictors.baselines import PREDICTORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab._types import BoolArray, FloatArray, IntArray
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

_FINGERPRINT = ("step", "slot", "position", "accepted", "logit_qmax")
_FINGERPRINT_ROWS = 1000
_ENOUGH_ROWS = 20
"""Fewer rows may be equal by chance."""

_LABELLED = pl.col("accepted").is_not_null()
_ELIGIBLE = pl.col("excluded") == 0
ADMITTED = pl.col("admitted") & pl.col("verify_step").is_not_null()
"""Rows of drafts that were sent to the target, and that a verdict covers."""
PLACED = pl.col("dataset").is_not_null() & pl.col("prompt").is_not_null()
"""Rows whose request is known, with its workload and prompt."""


@dataclass(frozen=True)
class Cell:
    """Rows of one cell, and what was counted on the way to them."""

    run: str
    """Name of the run, or of the runs that are pooled."""
    pair: str
    drafting: str
    """greedy, probabilistic or, if rows were pooled on request, mixed."""
    metadata: dict[str, Any]
    """Keys of run.json that cells differ in; pooled on request, the largest K, and ``mixed`` for
    what differs."""
    runs: tuple[str, ...]
    """Names, by their code in ``rows``."""
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
    trimmed_by: str | None
    """Name of the predictor by which adaptive verification chose the observed rows."""
    frame: pl.LazyFrame
    """Every draft row of the cell, with run, dataset and prompt as codes."""

    @property
    def num_positions(self) -> int:
        """Draft positions K."""
        return int(self.metadata["num_speculative_tokens"])

    @property
    def present(self) -> list[int]:
        """Codes of the datasets that the cell has rows of, graded or not."""
        return self.counts["dataset"].drop_nulls().unique().sort().to_list()

    def group_codes(self, frame: pl.DataFrame) -> IntArray:
        """Return the code of (run, prompt) of each row: the unit of intervals."""
        run, prompt = (frame[name].to_numpy().astype(np.int64) for name in ("run", "prompt"))
        return np.asarray(run * len(self.prompts) + prompt)

    @property
    def trimmed(self) -> bool:
        """Whether adaptive verification chose which positions were observed."""
        return bool(self.metadata["adaptive_verification"] != "off")

    @property
    def strictest(self) -> Drafting:
        """The drafting under which losslessness is derived: mixed rows must hold under both."""
        return "greedy" if self.drafting == "greedy" else "probabilistic"


def read_cells(log: DraftLog, columns: Sequence[str], *, pool: bool = False) -> list[Cell]:
    """Read the rows of a log that can be graded, cell by cell.

    Parameters
    ----------
    log : DraftLog
    columns : sequence of str
        Raw columns of `drafts` that the features need.
    pool : bool
        Make one cell of everything, whatever the pair, the drafting and K.

    Returns
    -------
    list of Cell
        In the order in which the runs are given, probabilistic before greedy.

    Raises
    ------
    InputError
        A float column holds NaN where the schema wants null, a position lies outside [0, K),
        a request has two rows, or two runs hold the same rows (copies of tensor-parallel ranks).
    """
    _refuse_copies(log)
    requests = log.requests.select(
        "run", "request", "dataset", "group", "temperature", "output_tokens"
    ).collect()
    _refuse_repeated(requests)
    names = {c: requests[c].drop_nulls().unique().sort().to_list() for c in ("dataset", "group")}
    coded = requests.select(
        "run",
        "request",
        "output_tokens",
        (pl.col("temperature") == 0).alias("greedy"),
        *(
            pl.col(old).rank("dense").cast(pl.Int32).sub(1).alias(new)
            for old, new in (("dataset", "dataset"), ("group", "prompt"))
        ),
    )
    pooled: dict[tuple[Any, ...], list[Run]] = {}
    for run in log.runs:
        key = () if pool else (run.pair, *(run.metadata[name] for name in _SAME))
        pooled.setdefault(key, []).append(run)
    cells = []
    for runs in pooled.values():
        cells += _read_pool(runs, coded, columns, names["dataset"], names["group"], pool)
    return cells


def name_cell(cell: Cell, table: pl.DataFrame) -> pl.DataFrame:
    """Return a table of a cell with the columns that name it in front: run, pair, drafting."""
    names = {"run": cell.run, "pair": cell.pair, "drafting": cell.drafting}
    return table.select(*(pl.lit(value).alias(name) for name, value in names.items()), pl.all())


def _refuse_copies(log: DraftLog) -> None:
    """Refuse runs that hold the same rows: ranks of one engine log copies, replicas do not."""
    seen: dict[bytes, str] = {}
    if len(log.runs) < 2:
        return
    for run in log.runs:
        rows = run.scan("drafts").select(*_FINGERPRINT).head(_FINGERPRINT_ROWS).collect()
        if len(rows) < _ENOUGH_ROWS:
            continue
        mark = rows.hash_rows().to_numpy().tobytes()
        if mark in seen:
            raise InputError(
                f"runs {seen[mark]} and {run.name} hold the same rows, as tensor-parallel ranks "
                "log them: name one of the two, or every draft counts twice"
            )
        seen[mark] = run.name


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
    pool: bool,
) -> list[Cell]:
    frame = pl.concat([_scan(run, code, requests) for code, run in enumerate(runs)])
    by_place = frame.group_by("greedy", "dataset", "position").agg(
        *_count_exprs(), *_exclusion_exprs(), *_nan_exprs(columns)
    )
    wanted = ["run", "dataset", "prompt", *_KEYS, *columns]
    eligible = frame.filter(_LABELLED & _ELIGIBLE & PLACED).select("greedy", *wanted)
    counts, rows = pl.collect_all([by_place.sort("dataset", "position"), eligible])
    metadata = _common_metadata(runs)
    _refuse_bad(counts, columns, runs, metadata["num_speculative_tokens"])
    kinds = counts["greedy"].unique().sort().to_list()
    groups = [kinds] if pool else [[greedy] for greedy in kinds]
    cells = []
    for group in groups:
        part = counts.filter(pl.col("greedy").is_in(group))
        cells.append(
            Cell(
                run=_pooled_name(runs),
                pair=" | ".join(dict.fromkeys(run.pair for run in runs)),
                drafting="mixed" if len(group) > 1 else _DRAFTING[group[0]],
                metadata=metadata,
                runs=tuple(run.name for run in runs),
                datasets=tuple(datasets),
                prompts=tuple(prompts),
                rows=rows.filter(pl.col("greedy").is_in(group)).drop("greedy"),
                counts=part.drop("greedy")
                .group_by("dataset", "position", maintain_order=True)
                .agg(pl.col(*_COUNTS).sum()),
                exclusions=_exclusions(part),
                trimmed_by=_trimmer(runs),
                frame=frame.filter(pl.col("greedy").is_in(group)),
            )
        )
    return cells


_DRAFTING = {True: "greedy", False: "probabilistic"}


def _common_metadata(runs: list[Run]) -> dict[str, Any]:
    values = {name: {run.metadata[name] for run in runs} for name in _SAME}
    K = max(int(run.metadata["num_speculative_tokens"]) for run in runs)
    differ = [name for name, distinct in values.items() if len(distinct) > 1]
    common = {
        name: "mixed" if name in differ else distinct.pop() for name, distinct in values.items()
    }
    return common | {"num_speculative_tokens": K, "mixed": differ}


def _trimmer(runs: list[Run]) -> str | None:
    """Return the predictor whose live output trimmed the log; None if several or nothing did."""
    trimmers = {_trimmer_of(run) for run in runs if run.metadata["adaptive_verification"] != "off"}
    return trimmers.pop() if len(trimmers) == 1 else None


def _trimmer_of(run: Run) -> str:
    # The reference engine names its predictor; vLLM has its estimator or the trained head.
    policy: str = run.metadata["adaptive_verification"]
    if policy in PREDICTORS:
        return policy
    estimator = policy.startswith(("estimator", "online-")) or policy == "hybrid"
    if estimator or run.metadata.get("estimator_start") is not None:
        return "logit_qmax"
    return "confidence"


def _pooled_name(runs: list[Run]) -> str:
    if len(runs) <= 3:
        return "+".join(run.name for run in runs)
    return f"{runs[0].name}+{len(runs) - 1} more"


def _scan(run: Run, code: int, requests: pl.DataFrame) -> pl.LazyFrame:
    known = requests.lazy().filter(pl.col("run") == run.name).drop("run")
    always = pl.lit(run.metadata["drafting"] == "greedy")
    return (
        run.scan("drafts")
        .drop("run")
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
    "admitted": (_ELIGIBLE & ADMITTED).sum(),
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
    "no_request": ~PLACED,
    # every row once, however many reasons it has
    "total": reduce(or_, (~_LABELLED, ~_ELIGIBLE, ~PLACED)),
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


def read_admitted(cell: Cell, columns: Sequence[str]) -> pl.DataFrame:
    """Read the rows on which survival is known: sent to the target, and graded.

    A row counts if no row of its proposal up to it is excluded or trimmed: its survival, and
    every prediction of it, depends on all of them.

    Returns
    -------
    polars.DataFrame
        In log order, a proposal's rows from position 0 on: run, dataset, prompt (codes), position,
        survived (everything up to the row was accepted) and the columns.
    """
    good = ADMITTED & _ELIGIBLE & PLACED
    keys = pl.col("run", "step", "slot")
    rows = cell.frame.select(
        "run",
        "dataset",
        "prompt",
        "position",
        *columns,
        good=good.fill_null(value=False),
        accepted=pl.col("accepted").fill_null(value=False),
        start=pl.any_horizontal(keys != keys.shift(1)).fill_null(value=True),
    ).collect()
    kept, survived = _follow(rows)
    return (
        rows.select("run", "dataset", "prompt", "position", *columns)
        .with_columns(survived=pl.Series(survived))
        .filter(kept)
    )


def _follow(rows: pl.DataFrame) -> tuple[BoolArray, BoolArray]:
    """Return which rows follow good rows only, and whether they survived."""
    good, accepted, start, position = (
        rows[name].to_numpy() for name in ("good", "accepted", "start", "position")
    )
    if len(rows) == 0:
        return start, start
    starts = np.flatnonzero(start)
    size = np.diff(starts, append=len(rows))
    place = np.arange(len(rows)) - np.repeat(starts, size)

    def before_first(stop: BoolArray) -> BoolArray:
        first = np.minimum.reduceat(np.where(stop, place, len(rows)), starts)
        return np.asarray(place < np.repeat(first, size))

    kept = before_first(~good | (position != place))
    return kept, before_first(~accepted)


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
