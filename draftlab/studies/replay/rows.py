"""Read labelled rows of a run in the order of their verdicts, whole windows at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from draftlab.errors import InputError
from draftlab.online.smoothing import INPUTS, SMOOTHED, Smoother
from draftlab.online.vllm import stored_feature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from draftlab._types import FloatArray, IntArray
    from draftlab.features import Feature
    from draftlab.grading.by import Grouping
    from draftlab.log.reader import Run


_PIECE = 30_000


@dataclass(frozen=True)
class VerdictRows:
    """Labelled rows in order of their verdicts; arrays over rows, of whole windows."""

    step: np.ndarray[Any, Any]
    verify_step: np.ndarray[Any, Any]
    position: np.ndarray[Any, Any]
    accepted: np.ndarray[Any, Any]
    eligible: np.ndarray[Any, Any]
    window: np.ndarray[Any, Any]
    features: dict[str, FloatArray]
    live: FloatArray | None
    by: IntArray | None = None
    """Code of what the row is also graded by."""

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Source:
    """A run as the replay reads it: which columns, over which engine steps."""

    run: Run
    features: tuple[str, ...]
    first_step: int
    last_step: int
    window: int
    """Engine steps of a window."""
    float32: bool
    """Quantise the feature as the engine stores it."""
    frame: pl.DataFrame | None = None
    """Rows to replay in the place of the run's own, in order of the verdict (a scenario)."""
    derived: Mapping[str, Feature] = field(default_factory=dict)
    """Features that are computed from columns of the log, not read."""
    grouping: Grouping | None = None
    """What rows are also graded by."""

    @property
    def num_positions(self) -> int:
        """Return K."""
        return int(self.run.metadata["num_speculative_tokens"])


def open_source(
    run: Run,
    features: Sequence[str],
    *,
    window: int,
    float32: bool,
    derived: Mapping[str, Feature] | None = None,
    grouping: Grouping | None = None,
) -> Source:
    """Look up which steps a run has.

    Raises
    ------
    InputError
        The run has no verdict.
    """
    first, last = _bounds(run, "steps", "step")
    first_draft, _ = _bounds(run, "drafts", "step")
    _, last_verdict = _bounds(run, "drafts", "verify_step")
    if last_verdict is None:
        raise InputError(f"{run.path}: no labelled drafts to replay")
    assert first_draft is not None
    # A run that was killed may lack the rows of its last steps.
    first = first_draft if first is None else min(first, first_draft)
    last = last_verdict if last is None else max(last, last_verdict)
    return Source(
        run,
        tuple(features),
        first,
        last,
        window,
        float32,
        derived=derived or {},
        grouping=grouping,
    )


def _bounds(run: Run, table: str, column: str) -> tuple[int | None, int | None]:
    """Return the least and the largest value of a column, from the footers where they say."""
    parts = [_footer(path, column) for path in run.parts[table]]
    if run.where is not None or any(part is None for part in parts):
        low, high = pl.col(column).min().alias("low"), pl.col(column).max().alias("high")
        found: tuple[int | None, int | None] = run.scan(table).select(low, high).collect().row(0)
        return found
    filled = [part for part in parts if part]
    if not filled:
        return None, None
    return min(low for low, _ in filled), max(high for _, high in filled)


def _footer(path: str, column: str) -> tuple[int, int] | tuple[()] | None:
    """Return the least and largest value of a part's column; () if all null, None if unknown."""
    if "://" in path:
        return None
    footer = pq.read_metadata(path)
    names = footer.schema.to_arrow_schema().names
    if column not in names:
        return ()
    found: list[int] = []
    for group in map(footer.row_group, range(footer.num_row_groups)):
        statistics = group.column(names.index(column)).statistics
        if statistics is not None and statistics.has_min_max:
            found += [statistics.min, statistics.max]
        elif statistics is None or statistics.null_count != group.num_rows:
            return None
    return (min(found), max(found)) if found else ()


def read_batches(source: Source) -> Iterator[tuple[VerdictRows, int]]:
    """Yield labelled rows in order of the verdict, whole windows at a time, and their end.

    A part is read once. Rows whose window may go on in a later part wait for it: the footers
    say which verdict each part begins with.
    """
    if source.frame is not None:
        yield from _pieces(source.frame, source, source.last_step + 1)
        return
    paths = source.run.parts["drafts"]
    begins = [*(_first_verdict(path) for path in paths), np.inf]
    later = np.minimum.accumulate(begins[::-1])[::-1]
    waiting: pl.DataFrame | None = None
    smoother = Smoother() if SMOOTHED in source.features else None
    for path, limit in zip(paths, later[1:], strict=True):
        frame = _read_part(path, source)
        if waiting is not None:
            frame = pl.concat([waiting, frame], how="diagonal")  # one may lack live_prediction
        if not frame["verify_step"].is_sorted():
            frame = frame.sort("verify_step", maintain_order=True)
        end = source.last_step + 1
        if limit < np.inf:
            known = int(max(limit, source.first_step))  # -inf: everything waits
            windows = (known - source.first_step) // source.window
            end = source.first_step + windows * source.window
        cut = int(frame["verify_step"].search_sorted(end, side="left"))
        ready, waiting = frame[:cut], frame[cut:]
        if smoother is not None:
            ready = smoother.add(ready).filter(pl.col("accepted").is_not_null())
        yield from _pieces(ready, source, end)


def _pieces(frame: pl.DataFrame, source: Source, end: int) -> Iterator[tuple[VerdictRows, int]]:
    """Cut rows between windows into pieces whose arrays fit a processor's cache."""
    steps = frame["verify_step"].to_numpy()
    low = 0
    while len(steps) - low > _PIECE:
        windows = (int(steps[low + _PIECE]) - source.first_step) // source.window + 1
        piece_end = source.first_step + windows * source.window
        high = int(np.searchsorted(steps, piece_end))
        yield _to_rows(frame[low:high], source), min(piece_end, end)
        low = high
    yield _to_rows(frame[low:], source), end


def _first_verdict(path: str) -> float:
    if "://" in path:
        value = pl.scan_parquet(path).select(pl.col("verify_step").min()).collect().item()
        return np.inf if value is None else float(value)
    bounds = _footer(path, "verify_step")
    if bounds is None:
        return -np.inf  # a writer without statistics
    return float(bounds[0]) if bounds else np.inf


def _read_part(path: str, source: Source) -> pl.DataFrame:
    scan = source.run.scan_part(path)
    present = scan.collect_schema().names()
    columns = ["step", "verify_step", "position", "accepted", "excluded"]
    columns += raw_columns(source.features, source.derived)
    if source.grouping is not None and source.grouping.key == "request":
        columns.append("request")
    if SMOOTHED in source.features:
        columns += INPUTS
    columns = list(dict.fromkeys(columns))
    absent = [name for name in columns if name not in present]
    if absent:
        raise InputError(f"{path}: lacks the column {absent[0]} that the replay reads")
    if "live_prediction" in present and _footer(path, "live_prediction") != ():
        columns.append("live_prediction")
    if SMOOTHED in source.features:
        # Every draft has a confidence; one that is never graded has its turn with the next step.
        due = pl.coalesce("verify_step", pl.col("step") + 1)
        return _derive(scan.select(columns).with_columns(verify_step=due).collect(), source)
    labelled = pl.col("accepted").is_not_null() & pl.col("verify_step").is_not_null()
    if "://" in path or source.run.where is not None:
        return _derive(scan.filter(labelled).select(columns).collect(), source)
    # Twice as fast as polars on one core, where it decodes before it filters.
    table = pq.ParquetFile(path).read(columns, use_threads=False)
    frame = pl.from_arrow(table.select(columns))
    assert isinstance(frame, pl.DataFrame)
    return _derive(frame.filter(labelled), source)


def _derive(frame: pl.DataFrame, source: Source) -> pl.DataFrame:
    """Add the features that the log has no column of, and what rows are also graded by."""
    if source.grouping is not None:
        named = frame.with_columns(run=pl.lit(source.run.name))
        frame = frame.with_columns(by=pl.Series(source.grouping.code(named)))
    return frame.with_columns(derive(source.features, source.derived))


def derive(features: Iterable[str], derived: Mapping[str, Feature]) -> list[pl.Expr]:
    """Return the expressions of those features that are computed from columns of the log."""
    return [derived[name].expr.alias(name) for name in features if name in derived]


def raw_columns(features: Iterable[str], derived: Mapping[str, Feature]) -> list[str]:
    """Return the columns of the log that features are read or computed from."""
    return [
        column
        for name in features
        if name != SMOOTHED
        for column in (derived[name].columns if name in derived else [name])
    ]


def _to_rows(frame: pl.DataFrame, source: Source) -> VerdictRows:
    features = {name: _feature(frame, name, source) for name in source.features}
    verify_step = frame["verify_step"].to_numpy()
    live = None
    if "live_prediction" in frame.columns and frame["live_prediction"].null_count() < len(frame):
        live = frame["live_prediction"].cast(pl.Float64).to_numpy()
    return VerdictRows(
        step=frame["step"].to_numpy(),
        verify_step=verify_step,
        position=frame["position"].to_numpy().astype(np.int64),
        accepted=frame["accepted"].to_numpy(),
        eligible=frame["excluded"].to_numpy() == 0,
        window=(verify_step - source.first_step) // source.window,
        features=features,
        live=live,
        by=None if source.grouping is None else frame["by"].to_numpy(),
    )


def _feature(frame: pl.DataFrame, name: str, source: Source) -> FloatArray:
    column = frame[name]
    # A row of nonfinite logits counts as 40 in vLLM; any other null is a column not recorded.
    missing = column.filter(frame["excluded"] == 0).null_count()
    if name in source.derived and not missing:
        missing = int((~column.is_finite()).sum())
    if missing:
        raise InputError(
            f"{source.run.path}: {_name_of(name, source)} on {missing} labelled rows, so no "
            "estimator can learn from it"
        )
    raw = column.cast(pl.Float64).to_numpy()
    quantise = source.float32 and name == "logit_qmax"
    return stored_feature(raw, float32=quantise)


def _name_of(feature: str, source: Source) -> str:
    if feature in source.derived:
        return f"feature {feature} is null or not finite"
    return f"column {column_of(feature)} is null"


def column_of(feature: str) -> str:
    """Return the column of the log that a feature is made of."""
    return "confidence" if feature == SMOOTHED else feature


def no_rows(source: Source) -> VerdictRows:
    """Return no rows, to drive an estimator over steps that graded nothing."""
    empty = np.zeros(0, dtype=np.int64)
    features = {name: np.zeros(0) for name in source.features}
    return VerdictRows(empty, empty, empty, empty > 0, empty > 0, empty, features, None)
