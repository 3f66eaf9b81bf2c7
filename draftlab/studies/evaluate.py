"""Refit and grade every predictor of conditional acceptance on a draft log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.features import LOG_ODDS_LIMIT
from draftlab.grading.by import Grouping, group_rows, make_grouping
from draftlab.grading.cells import Cell, acceptance_table, name_cell, read_cells
from draftlab.grading.differences import Compare, difference_table
from draftlab.grading.grade import Grade, Orders, grade
from draftlab.grading.prepare import NUM_FOLDS, Prepared, prepare, refuse_trimmed
from draftlab.grading.refit import fit_notes, no_coefficients, refit
from draftlab.grading.survival import PRODUCTS, Coefficients, SurvivalTables, grade_survival
from draftlab.log.files import shown_path
from draftlab.log.reader import DraftLog, open_any
from draftlab.metrics import NUM_BINS
from draftlab.parallel import run_threads
from draftlab.plugins import Plugin, as_plugin
from draftlab.predictors.baselines import PREDICTORS, Predictor
from draftlab.predictors.survival import SURVIVAL
from draftlab.results import Note, Result, as_names, study, tidy, unreadable_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.grading.rows import GradedRows

_METRICS = (
    *("predictor", "lossless", "fitted", "trimmed", "view", "scope", "dataset", "position", "by"),
    *("n", "n_accepted", "n_prompts", "n_excluded", "n_clamped"),
    *("mean_prediction", "mean_prediction_low", "mean_prediction_high"),
    *("auc", "auc_low", "auc_high", "log_loss", "log_loss_low", "log_loss_high"),
    *("ece", "ece_bins", "ece_debiased", "ece_null", "ece_null_high"),
    *("brier", "brier_low", "brier_high"),
    *("brier_reliability", "brier_resolution", "brier_uncertainty", "brier_within"),
)
_TRIMMED = (
    "adaptive verification chose the observed rows: grades do not compare predictors; "
    "hidden_share in acceptance says how many rows it hid"
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Evaluation(Result):
    """Tidy results of `evaluate`. Every table carries run, pair and drafting.

    Undefined numbers are NaN beside their counts. A null in ``dataset``, ``position`` or
    ``fold`` means all of them.
    """

    command = "evaluate"

    metrics: pl.DataFrame = tidy(
        """One row per predictor, scope, dataset and position: run, pair, drafting, predictor,
        lossless, fitted, selected, view, scope, dataset, position, by (the value, in scope ``by``,
        which is there if asked for), n, n_accepted, n_prompts,
        n_excluded (labelled, not graded), n_clamped, mean_prediction, auc, log_loss, ece, ece_bins,
        ece_debiased, ece_null, ece_null_high, brier. Mean prediction, AUC, log-loss and Brier with
        _low and _high, 95 % by group; NaN with fewer than two groups. brier = brier_reliability -
        brier_resolution + brier_uncertainty + brier_within, over the bins of ECE."""
    )
    differences: pl.DataFrame = tidy(
        """One row per pair of predictors, metric, scope and position, graded on the same rows: run,
        pair, drafting, scope, position, predictor_a, predictor_b, metric, difference (a - b), low,
        high (95 % by group, paired), distinguishable (the interval leaves 0 out; null: no
        interval)."""
    )
    coefficients: pl.DataFrame = tidy(
        """One row per fit and position: run, pair, drafting, predictor, dataset, fold (null: fit on
        all rows; otherwise without the rows of that fold), position, slope, intercept, both with
        _low and _high (95 % by group, of fits to all rows or all of a dataset), n (training rows at
        the position), status, ridge, iterations, log_likelihood (of the whole fit)."""
    )
    acceptance: pl.DataFrame = tidy(
        """One row per dataset (null: all) and position, eligible rows: run, pair, drafting,
        dataset, position, n_proposed, n_admitted (sent and graded), n_observed, n_accepted,
        conditional_rate, survival_rate, hidden_share (proposed, not sent), mean_entropy."""
    )
    reliability: pl.DataFrame = tidy(
        """One row per predictor and bin over all rows: run, pair, drafting, predictor, bin, low,
        high, n, n_accepted, mean_prediction, rate."""
    )
    exclusions: pl.DataFrame = tidy(
        """Rows that were not graded: run, pair, drafting, reason, rows, labelled (those of them
        with a label). A row with two reasons counts under each, under ``total`` once."""
    )
    survival: pl.DataFrame = tidy(
        """The other view, never mixed with ``metrics``: whether everything up to a position was
        accepted, on admitted rows. Columns of ``metrics`` without by, n_excluded and
        n_clamped; view is ``survival``, n counts admitted rows and n_accepted those that
        survived."""
    )
    lengths: pl.DataFrame = tidy(
        """Expected against observed accepted draft tokens of a proposal, by survival predictor and
        dataset (null: all): run, pair, drafting, predictor, lossless, dataset, n_proposals,
        n_prompts, expected_accepted, observed_accepted, bias, bias_low, bias_high, correlation."""
    )
    length_calibration: pl.DataFrame = tidy(
        """The same in ten bins of equal mass by expected length: run, pair, drafting, predictor,
        bin, low, high, n_proposals, n_prompts, expected_accepted, observed_accepted,
        observed_accepted_low, observed_accepted_high."""
    )
    ece_conventions: pl.DataFrame = tidy(
        """How ECE over all rows depends on its convention: run, pair, drafting, predictor, view,
        bins (width, mass or smooth), n_bins, value (mean or centre of the bin), ece, ece_null
        (expected of perfect calibration)."""
    )
    plugin_metrics: pl.DataFrame = tidy(
        """Metrics of a plugin on pooled held-out log-odds: run, pair, drafting, predictor, metric,
        scope (overall, without_first, position, dataset), dataset, position, n, value."""
    )
    smooth_curves: pl.DataFrame = tidy(
        """Observed rate without bins, all rows: run, pair, drafting, predictor, bandwidth (the
        smooth ECE, at least 0.02), prob (256 points), rate (NaN where no row is near), density
        (rows per unit of prediction, integral 1).""",
        bulky=True,
    )
    scores: pl.DataFrame = tidy(
        """Rows by predicted log-odds and label: run, pair, drafting, predictor, low, high (the
        outermost bins hold all beyond), n_accepted, n_rejected."""
    )
    predictions: pl.DataFrame | None = tidy(
        """With ``keep_predictions``, one row per graded row: run, step, slot, position, dataset,
        group, drafting, fold (0 in sample), accepted, and the log-odds of each predictor.""",
        bulky=True,
    )


class _Options(NamedTuple):
    in_sample: bool
    folds: int
    n_bins: int
    slope_per_position: bool
    chosen: bool
    """The user named the predictors, so they decide on the rows."""
    keep_predictions: bool
    compare: Compare
    plugin: Plugin
    grouping: Grouping | None


class _Graded(NamedTuple):
    """One cell: its tables, without the columns that name the cell."""

    tables: dict[str, pl.DataFrame]
    """By the names of `Evaluation`."""
    predictions: pl.DataFrame | None
    notes: list[Note]


@study
def evaluate(
    log: DraftLog | str | Path | Sequence[str | Path],
    *,
    predictors: str | Sequence[str] | None = None,
    in_sample: bool = False,
    folds: int = NUM_FOLDS,
    n_bins: int = NUM_BINS,
    slope_per_position: bool = False,
    allow_trimmed: bool = False,
    pool: bool = False,
    keep_predictions: bool = False,
    compare: Compare = "adopted",
    plugin: Plugin | str | Path | Sequence[str | Path] | None = None,
    by: str | None = None,
    where: str | None = None,
    out: str | Path | None = None,
) -> Evaluation:
    """Refit every predictor of conditional acceptance and grade it on held-out rows.

    A row is graded if its label was observed, no bit of ``excluded`` is set and its features
    are there. All predictors of a cell (pair, drafting by row, K) are graded on the same rows:
    one whose column is null on some of them is left out with a note, unless ``predictors``
    names it; the named ones then decide on the rows.

    Parameters
    ----------
    log : path, paths or DraftLog
        Runs of one cell are pooled, cells are not.
    predictors : str or sequence of str, optional
        Names in `PREDICTORS`; all that the log allows unless told.
    in_sample : bool
        Fit and grade on the same rows, as published tables do, instead of cross-fitting.
    folds : int
        Folds by group: rows of one prompt are never in two, also across runs. Stratified over
        datasets, balanced in rows, deterministic.
    n_bins : int
        Equal-width bins of ECE and of the reliability table.
    slope_per_position : bool
        Ablation: one slope per position in the fitted features.
    allow_trimmed : bool
        Grade a log collected under adaptive verification. The live prediction chose its hidden
        rows, so its numbers cannot rank predictors. Without this option only the predictor that
        trimmed may be refitted, if ``predictors`` names it alone.
    pool : bool
        Pool all runs into one cell, even if pair, K or drafting differ.
    keep_predictions : bool
        Fill ``predictions``.
    compare : {"adopted", "all"}
        Which pairs of predictors ``differences`` holds: `logit_qmax` against every other, or
        every pair.
    plugin : Plugin, path or paths, optional
        A user's features, predictors and metrics: Python files, or what `load_plugins` gives.
    by : str, optional
        One more way to cut the rows: a column of requests, steps (``time`` too) or the run;
        ``"prompt_tokens:100,500"`` states edges.
    where : str, optional
        Part of the log, as in `DraftLog.narrow`: ``"temperature = 0 and prompt_tokens > 100"``.
    out : path, optional
        Write the result there.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        An unknown predictor; a log without labels, with one class, with one group (and not
        ``in_sample``), or under adaptive verification; NaN in a column.

    Examples
    --------
    >>> import tempfile
    >>> from draftlab.synth import synth_log
    >>> run = synth_log(tempfile.mkdtemp(), num_requests=50)
    >>> result = evaluate(run, predictors=["logit_qmax", "constant"])
    >>> overall = result.metrics.filter(scope="overall")
    >>> overall["predictor"].to_list(), overall["auc"].round(2).to_list()
    (['logit_qmax', 'constant'], [0.7, 0.5])
    """
    added = as_plugin(plugin)
    asked = added.choose_predictors(as_names(predictors))
    opened = open_any(log, where)
    options = _Options(
        in_sample=in_sample,
        folds=folds,
        n_bins=n_bins,
        slope_per_position=slope_per_position,
        chosen=predictors is not None,
        keep_predictions=keep_predictions,
        compare=compare,
        plugin=added,
        grouping=None if by is None else make_grouping(by, opened)[0],
    )
    _check(options, len(asked))
    columns = sorted({column for predictor in asked for column in predictor.columns})
    cells = read_cells(opened, columns, pool=pool)
    refuse_trimmed(cells, asked, allow_trimmed)
    graded, failures = _grade_cells(cells, asked, options)
    return Evaluation(
        **_stack(graded),
        predictions=_stack_predictions(graded) if keep_predictions else None,
        notes=_notes(opened, graded, failures),
        settings=_settings(options, asked, graded) | {"by": by},
        provenance={},
    )


def _check(options: _Options, num_predictors: int) -> None:
    if options.in_sample and options.folds != NUM_FOLDS:
        raise InputError("--folds says nothing in sample: leave out --folds or --in-sample")
    if options.compare == "all" and num_predictors == 1:
        raise InputError("--compare-all needs two predictors, and one is named")
    if options.folds < 2 and not options.in_sample:
        raise InputError(f"folds must be at least 2, got {options.folds} (or use --in-sample)")
    if options.compare not in get_args(Compare):
        known = ", ".join(get_args(Compare))
        raise InputError(f"unknown compare {options.compare!r}; known: {known}")
    if options.n_bins < 1:
        raise InputError(f"n_bins must be at least 1, got {options.n_bins}")


def _grade_cells(
    cells: list[Cell], predictors: list[Predictor], options: _Options
) -> tuple[list[tuple[Cell, _Graded]], list[InputError]]:
    """Grade what can be graded; the first failure is raised if nothing can."""
    graded, failures = [], []
    for cell in cells:
        try:
            graded.append((cell, _grade_cell(cell, predictors, options)))
        except InputError as error:
            failures.append(error)
    if not graded:
        raise (
            failures[0]
            if failures
            else InputError("the log holds no draft rows; draftlab inspect names what is missing")
        )
    return graded, failures


class _Conditional(NamedTuple):
    """What the conditional view leaves behind for the survival view and the result."""

    tables: dict[str, pl.DataFrame]
    predictions: pl.DataFrame | None
    predictors: list[Predictor]
    used: dict[str, Coefficients]
    """By predictor: what predicted the rows of each fold."""
    fold_of_prompt: IntArray
    dropped: dict[str, int]
    notes: list[Note]


class _Work(NamedTuple):
    """What is done for one predictor."""

    grade: Grade
    by: pl.DataFrame | None
    """Rows of scope ``by``."""
    used: Coefficients
    fits: list[pl.DataFrame]


def _grade_cell(cell: Cell, predictors: list[Predictor], options: _Options) -> _Graded:
    # one after the other, so that the rows of one view are gone before the other's are read
    one = _conditional(cell, predictors, options)
    other = _survival(cell, one, options)
    tables = one.tables | {
        "acceptance": acceptance_table(cell),
        "exclusions": _exclusions(cell, one.dropped),
        "survival": other.metrics,
        "lengths": other.lengths,
        "length_calibration": other.length_calibration,
    }
    return _Graded(tables, one.predictions, one.notes + other.notes)


def _conditional(cell: Cell, predictors: list[Predictor], options: _Options) -> _Conditional:
    folds = None if options.in_sample else options.folds
    ready = prepare(cell, predictors, folds=folds, chosen=options.chosen)
    rows, orders = ready.rows, Orders(ready.rows)
    keep_logits = options.keep_predictions or bool(options.plugin.metrics)
    grouped = None if options.grouping is None else group_rows(cell, ready, options.grouping)

    def work(predictor: Predictor) -> _Work:
        feature = ready.features[predictor.name]
        slopes, intercepts, fits = refit(
            predictor, rows, feature, slope_per_position=options.slope_per_position
        )
        graded = grade(rows, feature, slopes, intercepts, options.n_bins, orders=orders)
        if not keep_logits:
            graded = graded._replace(logit=np.empty(0))
        by = None
        if grouped is not None:
            marked = ready.features.clamped(predictor.name)
            by = grouped.grade(feature, slopes, intercepts, options.n_bins, marked)
        return _Work(graded, by, Coefficients(slopes, intercepts), fits)

    kept = ready.predictors
    done = dict(zip([p.name for p in kept], run_threads(work, kept), strict=True))
    grades = {name: one.grade for name, one in done.items()}
    coefficients = pl.concat([no_coefficients(), *(t for one in done.values() for t in one.fits)])
    predictions = None
    if options.keep_predictions:
        logits = {name: graded.logit for name, graded in grades.items()}
        predictions = _predictions(cell, ready.frame, rows, logits)[ready.log_order]
    return _Conditional(
        tables={
            "metrics": _metrics(cell, ready, done, options),
            "differences": difference_table(rows, grades, options.compare),
            "coefficients": coefficients,
            "reliability": _by_predictor({name: one.reliability for name, one in grades.items()}),
            **{
                name: _by_predictor({p: made.calibration[name] for p, made in grades.items()})
                for name in ("ece_conventions", "smooth_curves", "scores")
            },
            "plugin_metrics": _plugin_metrics(rows, grades, options.plugin),
        },
        predictions=predictions,
        predictors=kept,
        used={name: one.used for name, one in done.items()},
        fold_of_prompt=ready.fold_of_prompt,
        dropped=ready.dropped,
        notes=ready.notes + fit_notes(coefficients),
    )


def _survival(cell: Cell, one: _Conditional, options: _Options) -> SurvivalTables:
    """Grade the survival view with the same fits, in the same folds."""
    needed = {name for both in SURVIVAL.values() for name in (both.drawn, both.at_draw)}
    chosen = [p for p in one.predictors if options.chosen or p.name in needed.union(PRODUCTS)]
    used = {predictor.name: one.used[predictor.name] for predictor in chosen}
    alone = None if options.chosen else PRODUCTS
    return grade_survival(cell, chosen, used, one.fold_of_prompt, options.n_bins, alone)


def _by_predictor(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(
        table.select(pl.lit(name).alias("predictor"), pl.all()) for name, table in tables.items()
    )


_PLUGIN_METRICS = {
    "predictor": pl.String,
    "metric": pl.String,
    "scope": pl.String,
    "dataset": pl.String,
    "position": pl.Int16,
    "n": pl.Int64,
    "value": pl.Float64,
}
_PLUGIN_SCOPES = ("overall", "without_first", "position", "dataset")


def _plugin_metrics(rows: GradedRows, grades: dict[str, Grade], plugin: Plugin) -> pl.DataFrame:
    found = []
    scopes = [scope for scope in rows.scopes if scope.name in _PLUGIN_SCOPES]
    for scope in scopes if plugin.metrics else []:
        entry = scope.entry_of_cell[rows.cell]
        for code, (dataset, position) in enumerate(
            zip(scope.datasets, scope.positions, strict=True)
        ):
            here = np.flatnonzero(entry == code)
            for name, graded in grades.items():
                for metric, function in plugin.metrics.items():
                    try:
                        value = float(function(rows.accepted[here], graded.logit[here]))
                    except Exception as error:
                        raise InputError(
                            f"metric {metric} of the plugin: {type(error).__name__}: {error}"
                        ) from error
                    found.append((name, metric, scope.name, dataset, position, len(here), value))
    return pl.DataFrame(found, schema=_PLUGIN_METRICS, orient="row")


def _metrics(
    cell: Cell, ready: Prepared, done: dict[str, _Work], options: _Options
) -> pl.DataFrame:
    num_excluded = _count_excluded(cell, ready.rows)
    tables = {
        name: one.grade.table.with_columns(
            by=pl.lit(None, dtype=pl.String),
            n_excluded=num_excluded,
            n_clamped=_count(ready.rows, ready.features.clamped(name)),
        )
        for name, one in done.items()
    }
    for name, one in done.items():
        if one.by is not None:
            tables[name] = pl.concat([tables[name], one.by.select(tables[name].columns)])
    return pl.concat(
        tables[predictor.name]
        .with_columns(
            predictor=pl.lit(predictor.name),
            lossless=pl.lit(predictor.lossless(cell.strictest)),
            fitted=pl.lit(predictor.fitted),
            trimmed=pl.lit(cell.trimmed),
            view=pl.lit("conditional"),
            ece_bins=pl.lit(options.n_bins, dtype=pl.Int32),
        )
        .select(_METRICS)
        for predictor in ready.predictors
    )


def _count(rows: GradedRows, marked: BoolArray) -> IntArray:
    """Count marked rows in every entry of every scope, in the order of the graded table."""
    by_cell = np.bincount(rows.cell[marked], minlength=rows.num_cells)
    return np.concatenate([scope.total(by_cell) for scope in rows.scopes])


def _count_excluded(cell: Cell, rows: GradedRows) -> IntArray:
    """Count labelled rows that are not graded, as `_count` does."""
    by_cell = -rows.counts.sum(axis=(1, 2))
    unknown = np.zeros_like(by_cell)  # rows without a request, hence without a dataset
    index = {code: d for d, code in enumerate(cell.present)}
    for dataset, position, count in cell.counts.select(
        "dataset", "position", "labelled"
    ).iter_rows():
        if dataset is None:
            unknown[position] += count
        else:
            by_cell[index[dataset] * rows.num_positions + position] += count
    return np.concatenate(
        [
            scope.total(by_cell + unknown if scope.datasets[0] is None else by_cell)
            for scope in rows.scopes
        ]
    )


def _exclusions(cell: Cell, dropped: dict[str, int]) -> pl.DataFrame:
    more = {reason: count for reason, count in dropped.items() if count}
    further = pl.DataFrame(
        {"reason": list(more), "rows": list(more.values()), "labelled": list(more.values())},
        schema=cell.exclusions.schema,
    )
    is_total = pl.col("reason") == "total"
    total = cell.exclusions.filter(is_total).with_columns(
        pl.col("rows", "labelled") + sum(more.values())
    )
    return pl.concat([cell.exclusions.filter(~is_total), further, total])


def _predictions(
    cell: Cell, frame: pl.DataFrame, rows: GradedRows, logits: dict[str, FloatArray]
) -> pl.DataFrame:
    runs, datasets, prompts = (
        pl.Series(names, dtype=pl.String)[frame[code]]
        for names, code in (
            (cell.runs, "run"),
            (cell.datasets, "dataset"),
            (cell.prompts, "prompt"),
        )
    )
    return frame.select(
        runs.alias("run"),
        "step",
        "slot",
        "position",
        datasets.alias("dataset"),
        prompts.alias("group"),
        pl.lit(cell.drafting).alias("drafting"),
        pl.Series("fold", rows.fold, dtype=pl.Int16),
        "accepted",
        *(pl.Series(name, logit) for name, logit in logits.items()),
    )


def _stack_predictions(graded: list[tuple[Cell, _Graded]]) -> pl.DataFrame:
    # cells may lack different predictors: their log-odds are null there
    found = [tables.predictions for _, tables in graded if tables.predictions is not None]
    return pl.concat(found, how="diagonal")


def _stack(graded: list[tuple[Cell, _Graded]]) -> dict[str, pl.DataFrame]:
    """Stack each table of all cells, each row with the names of its cell."""
    return {
        name: pl.concat([name_cell(cell, made.tables[name]) for cell, made in graded])
        for name in graded[0][1].tables
    }


def _notes(
    log: DraftLog, graded: list[tuple[Cell, _Graded]], failures: list[InputError]
) -> list[Note]:
    notes = unreadable_notes(log)
    notes += [Note("not_graded", f"not graded: {error}") for error in failures]
    for cell, made in graded:
        of_cell = [*_cell_notes(cell), *made.notes]
        where = f"{cell.run} ({cell.drafting})" if len(graded) > 1 else ""
        notes += [replace(note, run=where) for note in of_cell]
    return notes + _length_notes([cell for cell, _ in graded])


def _cell_notes(cell: Cell) -> Iterator[Note]:
    if mixed := _mixture(cell):
        yield Note("pooled", f"pooled on request: {mixed} differ between the rows")
    if len(cell.runs) > 1:
        yield Note("several_runs", f"rows of {len(cell.runs)} runs are pooled")
    if cell.trimmed:
        yield Note("trimmed", _TRIMMED)
        yield from _range_notes(cell)


def _mixture(cell: Cell) -> str:
    mixed = list(cell.metadata["mixed"])
    mixed += ["drafting"] * (cell.drafting == "mixed") + ["pair"] * (" | " in cell.pair)
    return ", ".join(mixed)


def _range_notes(cell: Cell) -> Iterator[Note]:
    """Say where a fit on selected rows holds: trimming hid one end of the feature's range."""
    predictor = PREDICTORS.get(str(cell.trimmed_by))
    if predictor is None or predictor.feature is None:
        return
    if not set(predictor.columns) <= set(cell.rows.columns):
        return
    ranges = (
        cell.rows.drop_nulls(predictor.columns)
        .group_by("position")
        .agg(low=predictor.feature.expr.min(), high=predictor.feature.expr.max())
        .sort("position")
    )
    text = ", ".join(f"{k}: {low:.2f} to {high:.2f}" for k, low, high in ranges.iter_rows())
    yield Note(
        "trimmed_range",
        f"{predictor.name} trimmed the log: by position its verified rows range over {text}; "
        "beyond that its fit is extrapolated",
    )


def _length_notes(cells: list[Cell]) -> list[Note]:
    """Say that acceptance rates of different K do not compare: the rate falls as K rises."""
    lengths = sorted({cell.num_positions for cell in cells})
    if len(lengths) < 2:
        return []
    named = ", ".join(map(str, lengths))
    return [
        Note(
            "different_k",
            f"K differs ({named}): accepted / drafted falls as K rises even with the same "
            "drafter, so it ranks nothing here; compare conditional rates by position, or "
            "acceptance length",
        )
    ]


def _settings(
    options: _Options, predictors: list[Predictor], graded: list[tuple[Cell, _Graded]]
) -> dict[str, Any]:
    return {
        "in_sample": options.in_sample,
        "folds": None if options.in_sample else options.folds,
        "n_bins": options.n_bins,
        "ece": f"{options.n_bins} equal-width bins, mean prediction of the bin, closed left, "
        "the last one closed on both sides",
        "slope_per_position": options.slope_per_position,
        "log_odds_limit": LOG_ODDS_LIMIT,
        "predictors": {predictor.name: predictor.doc for predictor in predictors},
        "plugins": [shown_path(path) for path in options.plugin.paths],
        "cells": [
            {
                "run": cell.run,
                "runs": list(cell.runs),
                "pair": cell.pair,
                "drafting": cell.drafting,
                **cell.metadata,
            }
            for cell, _ in graded
        ],
    }
