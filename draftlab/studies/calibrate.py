"""Recalibrate what a drafter says of itself: fitted on some prompts, graded on the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from draftlab import metrics
from draftlab.errors import InputError
from draftlab.grading.by import Grouping, make_grouping
from draftlab.grading.cells import Cell, read_admitted, read_cells
from draftlab.grading.grid import ProposalGrid, make_grid
from draftlab.grading.prepare import Prepared, prepare, refuse_trimmed
from draftlab.log.files import shown_path, write_json
from draftlab.log.reader import open_any
from draftlab.metrics import NUM_BINS
from draftlab.metrics.intervals import mean_interval
from draftlab.plugins import Plugin, as_plugin
from draftlab.predictors.baselines import PREDICTORS, Predictor, compute_feature
from draftlab.predictors.calibration import (
    CALIBRATORS,
    STS_BINS,
    STS_GRID,
    Calibrator,
    Sts,
    fit_calibrator,
    fit_sts,
    parameters_of,
    survival_ece,
)
from draftlab.predictors.survival import log_odds_of_log, product
from draftlab.results import Note, Result, as_names, study, tidy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.log.reader import DraftLog

SOURCES = ("confidence", "qmax")
"""What can be recalibrated: the trained head and the raw draft probability."""
TABLES = ("metrics", "calibrators", "temperatures")
_FIT, _GRADED = 0, 1


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Calibration(Result):
    """Result of `calibrate`. Tables carry run, pair and drafting."""

    command = "calibrate"

    metrics: pl.DataFrame = tidy(
        """On prompts that no calibrator saw: source, view, method (``none``: as it is),
        per_position, position (null: all), by (null: all; otherwise a value of the column asked
        for, over all positions), n, n_prompts, auc, log_loss, log_loss_gain (over ``none``,
        positive is better) with _low and _high (95 % by group), brier, ece, ece_bins,
        ece_debiased, ece_null, smooth_ece. Conditional methods meet conditional labels, ``sts``
        survival labels; its ece has 20 bins, as DeepSpec's."""
    )
    calibrators: pl.DataFrame = tidy(
        """One row per fitted parameter: source, method, per_position, position, parameter, value,
        n, note (null parameter: the identity, the note says why)."""
    )
    temperatures: pl.DataFrame = tidy(
        """STS: source, position, temperature, n (proposals that reach it), ece_before, ece_after
        (cumulative, on the rows it was fitted to), at_edge (of the grid), thin (few rows)."""
    )
    calibration: dict[str, dict[str, Any]]
    """Content of calibration.json, by source."""

    def write_more(self, folder: Path) -> None:
        """Write calibration.json, and calibration-SOURCE.json of the sources behind the first."""
        for index, (source, content) in enumerate(self.calibration.items()):
            name = "calibration" if index == 0 else f"calibration-{source}"
            write_json(folder / f"{name}.json", content)


class _Options(NamedTuple):
    methods: Sequence[str]
    n_bins: int
    grouping: Grouping | None


class _Made(NamedTuple):
    metrics: list[dict[str, Any]]
    calibrators: list[dict[str, Any]]
    temperatures: list[dict[str, Any]]
    file: dict[str, Any]
    notes: list[Note]


@study
def calibrate(
    log: DraftLog | str | Path | Sequence[str | Path],
    *,
    sources: str | Sequence[str] | None = None,
    methods: str | Sequence[str] | None = None,
    n_bins: int = NUM_BINS,
    allow_trimmed: bool = False,
    plugin: Plugin | str | Path | Sequence[str | Path] | None = None,
    by: str | None = None,
    where: str | None = None,
    out: str | Path | None = None,
) -> Calibration:
    """Fit calibrators of a drafter's own probabilities on half the prompts, grade on the others.

    Every method is fitted for all positions at once and for each position, besides sequential
    temperature scaling, which is per position by construction.

    Parameters
    ----------
    log : path, paths or DraftLog
        It must hold one pair, K and drafting, because a calibration belongs to one.
    sources : str or sequence of str, optional
        Names in `SOURCES`, or predictors of a plugin that are not fitted; by default those that
        the log has.
    methods : str or sequence of str, optional
        Names in `CALIBRATORS`; all by default.
    n_bins : int
        Equal-width bins of the conditional ECE.
    allow_trimmed : bool
        Fit on a log that was trimmed live. The result is biased, because the probabilities that
        are calibrated chose its rows.
    plugin : Plugin, path or paths, optional
        A user's predictors, as in `evaluate`: those that are not fitted can be calibrated.
    by : str, optional
        One more way to cut the rows of the conditional view, as in `evaluate`.
    where : str, optional
        Part of the log, as in `DraftLog.narrow`: ``"temperature = 0 and prompt_tokens > 100"``.
    out : path, optional
        Write the result there.

    Raises
    ------
    InputError
        A log under adaptive verification, of several cells, or without the source; an unknown
        source or method; fewer than two prompts.

    Examples
    --------
    >>> import tempfile
    >>> from draftlab.synth import synth_log
    >>> run = synth_log(tempfile.mkdtemp(), num_requests=100, slope=0.5)
    >>> found = calibrate(run, methods="platt")
    >>> found.calibrators.filter(parameter="slope", per_position=False)["value"].round(1).to_list()
    [0.5]
    """
    sources, methods = as_names(sources), as_names(methods) or list(CALIBRATORS)
    added = as_plugin(plugin)
    known = _known_sources(added)
    _check(sources, methods, n_bins, tuple(known))
    opened = open_any(log, where)
    cells = read_cells(opened, sorted({c for s in known.values() for c in s.columns}))
    if len(cells) != 1:
        found = "; ".join(f"{cell.run} ({cell.pair}, {cell.drafting})" for cell in cells)
        raise InputError(
            f"a calibration belongs to one pair, K and drafting, got {found or 'none'}"
        )
    (cell,) = cells
    refuse_trimmed(cells, list(known.values()), allow_trimmed)
    chosen = _present(cell, sources, known)
    origin = {
        "dataset": ", ".join(cell.datasets[code] for code in cell.present),
        "sources": list(cell.runs),
        "pair": cell.pair,
        "drafting": cell.drafting,
        "sampling": _sampling(opened, cell),
        "data_hash": opened.fingerprint,
    }
    grouping = None if by is None else make_grouping(by, opened)[0]
    options = _Options(methods, n_bins, grouping)
    calibrated = [_calibrate(cell, known[source], options, origin) for source in chosen]
    return Calibration(
        metrics=_frame(cell, [row for made in calibrated for row in made.metrics]).cast(
            {"by": pl.String}
        ),
        calibrators=_frame(cell, [row for made in calibrated for row in made.calibrators]),
        temperatures=_frame(cell, [row for made in calibrated for row in made.temperatures]),
        calibration={s: made.file for s, made in zip(chosen, calibrated, strict=True)},
        notes=[note for made in calibrated for note in made.notes],
        settings={
            "sources": chosen,
            "plugins": [shown_path(path) for path in added.paths],
            "methods": list(methods),
            "n_bins": n_bins,
            "by": by,
            "sts_bins": STS_BINS,
            "sts_grid": list(STS_GRID),
            "split": "prompts dealt into two halves; fitted on the first, graded on the second",
        },
        provenance={},
    )


def _known_sources(plugin: Plugin) -> dict[str, Predictor]:
    """Return what can be calibrated: what is taken as log-odds and reads a feature."""
    own = [p for p in plugin.own_predictors() if not p.fitted and p.feature is not None]
    if plugin.paths and not own:
        raise InputError(
            f"{', '.join(plugin.paths)}: adds no predictor that is not fitted, and only such can "
            "be calibrated"
        )
    return {name: PREDICTORS[name] for name in SOURCES} | {p.name: p for p in own}


def _check(
    sources: Sequence[str] | None, methods: Sequence[str], n_bins: int, known_sources: Sequence[str]
) -> None:
    for kind, names, known in (
        ("source", sources or (), known_sources),
        ("method", methods, tuple(CALIBRATORS)),
    ):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InputError(f"unknown {kind} {unknown[0]!r}; known: {', '.join(known)}")
    if n_bins < 1:
        raise InputError(f"n_bins must be at least 1, got {n_bins}")


def _present(
    cell: Cell, sources: Sequence[str] | None, known: Mapping[str, Predictor]
) -> list[str]:
    def lacks(source: str) -> bool:
        return any(
            cell.rows[column].null_count() == len(cell.rows) for column in known[source].columns
        )

    if sources is None:
        return [source for source in known if not lacks(source)]
    missing = [source for source in sources if lacks(source)]
    if missing:
        raise InputError(f"run {cell.run}: the log holds no {missing[0]}")
    return list(dict.fromkeys(sources))


def _sampling(log: DraftLog, cell: Cell) -> dict[str, Any]:
    """Return the settings that all requests share; a list where they differ."""
    names = ("temperature", "top_p", "top_k", "min_p")
    requests = log.requests.filter(pl.col("run").is_in(cell.runs)).select(names).unique().collect()
    values = {name: requests[name].unique().sort().to_list() for name in names}
    return {
        name: distinct[0] if len(distinct) == 1 else distinct for name, distinct in values.items()
    }


def _frame(cell: Cell, rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None).select(
        pl.lit(cell.run).alias("run"),
        pl.lit(cell.pair).alias("pair"),
        pl.lit(cell.drafting).alias("drafting"),
        pl.all(),
    )


def _calibrate(
    cell: Cell, predictor: Predictor, options: _Options, origin: dict[str, Any]
) -> _Made:
    source = predictor.name
    ready = prepare(cell, [predictor], folds=2, chosen=True)
    fitted = _fit_all(ready, source, options.methods)
    groups = None
    if options.grouping is not None:
        code = options.grouping.code_cell(cell, ready.frame)
        groups = options.grouping.name(code)
    rows = _grade_conditional(ready, source, fitted, options.n_bins, groups)
    grid, log_odds = _read_grid(cell, predictor, ready.fold_of_prompt)
    part = grid.fold == _FIT
    sts = fit_sts(log_odds[part], grid.survived[part])
    rows += _grade_survival(source, grid, log_odds, sts)
    calibrators = [
        {"source": source, "method": calibrator.method, "per_position": calibrator.per_position}
        | parameter
        for calibrator in fitted
        for parameter in _parameter_rows(calibrator)
    ]
    return _Made(
        metrics=rows,
        calibrators=calibrators,
        temperatures=_temperature_rows(source, sts),
        file=_file(source, grid, log_odds, sts, fitted, origin),
        notes=ready.notes + _notes(source, fitted, sts),
    )


def _fit_all(ready: Prepared, source: str, methods: Sequence[str]) -> list[Calibrator]:
    rows, log_odds = ready.rows, ready.features[source]
    part = rows.fold_slices[_FIT]
    return [
        fit_calibrator(
            method,
            log_odds[part],
            rows.position[part],
            rows.accepted[part],
            rows.num_positions,
            per_position=per_position,
        )
        for method in methods
        for per_position in (False, True)
    ]


def _grade_conditional(
    ready: Prepared,
    source: str,
    fitted: list[Calibrator],
    n_bins: int,
    groups: pl.Series | None = None,
) -> list[dict[str, Any]]:
    """Grade every calibrator on the other half; ``groups`` name the group of each row."""
    rows = ready.rows
    part = rows.fold_slices[_GRADED]
    raw = ready.features[source][part]
    y, position, group = rows.accepted[part], rows.position[part], rows.group[part]
    graded = [("none", False, raw)]
    graded += [
        (calibrator.method, calibrator.per_position, calibrator.log_odds(raw, position))
        for calibrator in fitted
    ]
    out = []
    for method, per_position, logit in graded:
        label = {"source": source, "view": "conditional", "method": method}
        for k in [None, *range(rows.num_positions)]:
            here = np.ones_like(y) if k is None else position == k
            scored = _scores(y[here], logit[here], raw[here], group[here], n_bins)
            out.append({**label, "per_position": per_position, "position": k, "by": None, **scored})
        for value, here in _masks(groups, part):
            scored = _scores(y[here], logit[here], raw[here], group[here], n_bins)
            place = {"per_position": per_position, "position": None, "by": value}
            out.append({**label, **place, **scored})
    return out


def _masks(groups: pl.Series | None, part: slice) -> Iterator[tuple[str, BoolArray]]:
    """Yield each group of a part of the rows, and which rows are in it."""
    if groups is not None:
        for value in groups[part].unique().sort():
            yield value, (groups[part] == value).to_numpy()


def _scores(
    y: BoolArray, logit: FloatArray, raw: FloatArray, group: IntArray, n_bins: int
) -> dict[str, Any]:
    prob = metrics.probability(logit)
    gain = metrics.row_log_loss(y, raw) - metrics.row_log_loss(y, logit)
    finite = bool(np.isfinite(gain).all()) and len(gain) > 0
    mean, low, high = mean_interval(gain, group) if finite else (math.nan, math.nan, math.nan)
    plain, null = metrics.ece_and_null(y, prob, n_bins=n_bins)
    return {
        "n": len(y),
        "n_prompts": len(np.unique(group)),
        "auc": metrics.auc(y, logit),
        "log_loss": metrics.log_loss(y, logit),
        "log_loss_gain": mean,
        "log_loss_gain_low": low,
        "log_loss_gain_high": high,
        "brier": metrics.brier(y, prob),
        "ece": plain,
        "ece_bins": n_bins,
        "ece_debiased": metrics.ece_debiased(y, prob, n_bins=n_bins),
        "ece_null": null,
        "smooth_ece": metrics.smooth_ece(y, prob),
    }


def _read_grid(
    cell: Cell, predictor: Predictor, fold_of_prompt: IntArray
) -> tuple[ProposalGrid, FloatArray]:
    """Return the admitted proposals, and the log-odds that the source gives them, (P, K)."""
    frame = read_admitted(cell, predictor.columns)
    gaps = [c for c in predictor.columns if frame[c].null_count()]
    if gaps:
        raise InputError(
            f"run {cell.run}: {gaps[0]} is null on {frame[gaps[0]].null_count()} admitted rows: "
            "survival needs it behind rejections too"
        )
    grid = make_grid(cell, frame, fold_of_prompt)
    return grid, grid.spread(compute_feature(predictor, grid.rows))


def _grade_survival(
    source: str, grid: ProposalGrid, log_odds: FloatArray, sts: Sts
) -> list[dict[str, Any]]:
    part = grid.fold == _GRADED
    z, survived, group = log_odds[part], grid.survived[part], grid.group[part]
    known = np.isfinite(z)
    raw = log_odds_of_log(product(z))
    out = []
    for method, temperatures in (("none", np.ones(z.shape[1])), ("sts", sts.temperatures)):
        logit = log_odds_of_log(product(z / temperatures))
        label = {"source": source, "view": "survival", "method": method}
        for k in [None, *range(z.shape[1])]:
            here = known.copy()
            if k is not None:
                here[:, [j for j in range(z.shape[1]) if j != k]] = False
            owner = np.broadcast_to(group[:, None], z.shape)[here]
            scored = _scores(survived[here], logit[here], raw[here], owner, STS_BINS)
            place = {"per_position": method == "sts", "position": k, "by": None}
            out.append({**label, **place, **scored})
    return out


def _parameter_rows(calibrator: Calibrator) -> list[dict[str, Any]]:
    rows = []
    for fitted in parameters_of(calibrator):
        parameters = fitted["parameters"] or {None: None}
        rows += [
            {
                "position": fitted["position"],
                "parameter": name,
                "value": value,
                "n": fitted["n"],
                "note": fitted["note"],
            }
            for name, value in parameters.items()
        ]
    return rows


def _temperature_rows(source: str, sts: Sts) -> list[dict[str, Any]]:
    return [
        {
            "source": source,
            "position": k,
            "temperature": float(sts.temperatures[k]),
            "n": int(sts.counts[k]),
            "ece_before": float(sts.ece_before[k]),
            "ece_after": float(sts.ece_after[k]),
            "at_edge": bool(sts.at_edge[k]),
            "thin": bool(sts.thin[k]),
        }
        for k in range(len(sts.temperatures))
    ]


def _file(
    source: str,
    grid: ProposalGrid,
    log_odds: FloatArray,
    sts: Sts,
    fitted: list[Calibrator],
    origin: dict[str, Any],
) -> dict[str, Any]:
    """Return calibration.json: keys of DeepSpec, SGLang and TensorRT-LLM, then our own."""
    held_out = grid.fold == _GRADED
    graded = log_odds[held_out], grid.survived[held_out]
    before, mean_before = survival_ece(*graded, np.ones(grid.num_positions))
    after, mean_after = survival_ece(*graded, sts.temperatures)
    low, high, size = STS_GRID
    temperatures = sts.temperatures.tolist()
    num_records = int((grid.fold == _FIT).sum())
    return {
        "temperatures": temperatures,
        "sts_temperatures": temperatures,
        "block_size": grid.num_positions,
        "num_speculative_tokens": grid.num_positions,
        "num_bins": STS_BINS,
        "grid": {"min": low, "max": high, "size": size, "also": 1.0},
        "num_records": num_records,
        "num_samples": num_records,
        "source": source,
        **origin,
        "ece_before": _null(mean_before),
        "ece_after": _null(mean_after),
        "cumulative_ece_before": [_null(value) for value in before.tolist()],
        "cumulative_ece_after": [_null(value) for value in after.tolist()],
        "graded_on": "the half of the prompts that it was not fitted to",
        "num_records_graded": int(held_out.sum()),
        "at_grid_edge": np.flatnonzero(sts.at_edge).tolist(),
        "thin_positions": np.flatnonzero(sts.thin).tolist(),
        "conditional": [
            {"method": each.method, "per_position": each.per_position, "maps": parameters_of(each)}
            for each in fitted
            if each.method != "isotonic"
        ],
    }


def _null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _notes(source: str, fitted: list[Calibrator], sts: Sts) -> list[Note]:
    notes = [
        Note(
            "calibrator",
            f"{source}, {each.method}"
            + (f", position {row['position']}" if each.per_position else "")
            + f": {row['note']}",
        )
        for each in fitted
        for row in parameters_of(each)
        if row["note"]
    ]
    for code, marked, text in (
        ("grid_edge", sts.at_edge, "the best temperature lies at the edge of the grid"),
        ("thin_data", sts.thin & (sts.counts > 0), "thin data"),
        ("unreached", sts.counts == 0, "no row reaches it, its temperature stays 1"),
    ):
        positions = np.flatnonzero(marked).tolist()
        if positions:
            notes.append(Note(code, f"{source}, sts, positions {positions}: {text}"))
    return notes
