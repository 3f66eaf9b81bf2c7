"""What a log says about the model itself: workloads, pairs, slopes, transfer, learning, drift.

The questions of the published tables T4 and T5 and of vLLM issue #52053, answered for the adopted
feature: how coefficients move with the workload, over time and between pairs, what a shared slope
costs, what a foreign fit costs, how many labels are enough, and how good a predictor could be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.grading.cells import Cell, acceptance_table, name_cell, read_cells
from draftlab.grading.differences import difference_table
from draftlab.grading.grade import Grade, grade
from draftlab.grading.prepare import NUM_FOLDS, Prepared, prepare, refuse_trimmed
from draftlab.grading.refit import refit
from draftlab.log.reader import open_any
from draftlab.log.summary import proposals
from draftlab.metrics import NUM_BINS, correlation, divide
from draftlab.metrics.intervals import mean_interval
from draftlab.parallel import run_threads
from draftlab.plugins import Plugin, as_plugin
from draftlab.predictors.baselines import ADOPTED, PREDICTORS
from draftlab.predictors.logistic import Fit, fit_logistic
from draftlab.predictors.several import SeveralFit, fit_several
from draftlab.predictors.uncertainty import coefficient_intervals, standard_errors
from draftlab.results import Note, Result, study, tidy, unreadable_notes
from draftlab.studies.evaluate import Evaluation, evaluate
from draftlab.studies.stability.stationarity import change_table
from draftlab.studies.stability.transfer import learning_table, transfer_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.log.reader import DraftLog

NUM_BLOCKS = 10
SETS: dict[str, tuple[str, ...]] = {
    "logit_qmax": ("logit_qmax",),
    "logit_qmax + top2_margin": ("logit_qmax", "top2_margin"),
    "logit_qmax + entropy": ("logit_qmax", "entropy"),
    "all before the draw": ("logit_qmax", "top2_margin", "entropy", "log_qmax"),
    "all and the draw": ("logit_qmax", "top2_margin", "entropy", "log_qmax", "logit_q_sampled"),
}
"""Features that are fitted together, by name."""
TABLES = (
    *("workloads", "workload_correlations", "refit_spread", "slopes", "transfer", "learning"),
    *("feature_sets", "ceiling_share", "acceptance_lengths", "second_rank", "change"),
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Stability(Result):
    """Tables of `stability`. All carry run, pair and drafting; a null dataset or position is all.

    Undefined numbers are NaN beside their counts.
    """

    command = "stability"

    workloads: pl.DataFrame = tidy(
        """T4, `logit_qmax` fitted on each dataset alone: dataset, n, n_prompts, acceptance,
        mean_entropy (nats, of graded rows), slope, intercept_0 (both with _low and _high, 95 % by
        group), intercept_mean (over positions with rows), status."""
    )
    workload_correlations: pl.DataFrame = tidy(
        """coefficient (acceptance, slope, intercept_0, intercept_mean), r (Pearson, with the mean
        entropy of the datasets; NaN under three), n_datasets."""
    )
    refit_spread: pl.DataFrame = tidy(
        """T5: num_positions, n, refits (blocks of steps, each fitted alone), slope (of all rows),
        slope_mean, slope_sd, slope_se (what sampling alone gives a block: root mean square of the
        blocks' standard errors by group), intercept_0 with the same, intercept_mean, its _mean and
        _sd, refit_kind."""
    )
    slopes: pl.DataFrame = tidy(
        """Shared slope against one per position, cross-fitted: scope, position, metric, shared,
        own, cost (own is better by so much: positive is worse for shared), cost_low, cost_high,
        distinguishable."""
    )
    transfer: pl.DataFrame = tidy("""See `transfer.transfer_table`.""")
    learning: pl.DataFrame = tidy("""See `transfer.learning_table`.""")
    feature_sets: pl.DataFrame = tidy(
        """Several features at once, cross-fitted: features, lossless, n, auc, log_loss, brier,
        ece, and auc_gain, log_loss_gain (over `logit_qmax` alone, positive is better) with _low,
        _high."""
    )
    ceiling_share: pl.DataFrame = tidy(
        """predictor, lossless, scope, position, n, auc, log_loss, share_of_auc: (AUC - 1/2) over
        that of `overlap`, and share_of_log_loss: the way from the constant floor to `overlap` that
        the predictor goes. Predictors that see the draw may exceed 1. Empty without `overlap`."""
    )
    acceptance_lengths: pl.DataFrame = tidy(
        """dataset, num_positions, n_proposals, n_requests, requests_without_verdicts,
        acceptance_length (tokens per verification, each counting once),
        acceptance_length_by_request (mean of requests' own means), accepted_per_verified,
        accepted_per_proposed, rate_compares_across_k (False: both rates fall as K rises with the
        same drafter)."""
    )
    second_rank: pl.DataFrame = tidy(
        """Of the rejected rows, how often the target's top token is the drafter's second: dataset,
        position, n_rejected, n_prompts, second_rate, second_rate_low, second_rate_high. Empty
        without `target_rank_in_q`."""
    )
    change: pl.DataFrame = tidy(
        """Later against earlier half of the steps at equal features: see `change_table`."""
    )


@study
def stability(
    log: DraftLog | str | Path | Sequence[str | Path],
    *,
    evaluation: Evaluation | None = None,
    ceiling_share: bool = True,
    folds: int = NUM_FOLDS,
    blocks: int = NUM_BLOCKS,
    seed: int = 0,
    allow_trimmed: bool = False,
    pool: bool = False,
    plugin: Plugin | str | Path | Sequence[str | Path] | None = None,
    where: str | None = None,
    out: str | Path | None = None,
) -> Stability:
    """Answer what a log says about workloads, pairs, slopes, transfer, learning and drift.

    Parameters
    ----------
    log : path, paths or DraftLog
    evaluation : Evaluation, optional
        Evaluation of the same log, for ``ceiling_share``; made here if it is missing.
    ceiling_share : bool
        False leaves that table empty and needs no evaluation.
    folds : int
        Folds by group of everything that is cross-fitted.
    blocks : int
        Blocks of steps whose refits give the spread in ``refit_spread``.
    seed : int
        Order of prompts in the learning curve.
    allow_trimmed, pool, plugin
        As in `evaluate`; each feature of a plugin is fitted together with `logit_qmax`.
    where : str, optional
        Part of the log, as in `DraftLog.narrow`: ``"temperature = 0 and prompt_tokens > 100"``.
    out : path, optional
        Write the result there.

    Raises
    ------
    InputError
        As in `evaluate`; ``blocks`` under 2.

    Examples
    --------
    >>> import tempfile
    >>> from draftlab.synth import synth_log
    >>> run = synth_log(tempfile.mkdtemp(), num_requests=60)
    >>> stability(run).refit_spread["slope"].round(1).to_list()
    [0.5]
    """
    if blocks < 2:
        raise InputError(f"blocks must be at least 2, got {blocks}")
    opened = open_any(log, where)
    added = as_plugin(plugin)
    plugin_sets = {f"{ADOPTED} + {name}": (ADOPTED, name) for name in added.features}
    sets = SETS | plugin_sets
    names = sorted({name for names in sets.values() for name in names} | {"overlap"})
    chosen = added.choose_predictors(names)
    columns = {column for predictor in chosen for column in predictor.columns}
    cells = read_cells(opened, sorted(columns | {"target_rank_in_q"}), pool=pool)
    refuse_trimmed(cells, chosen, allow_trimmed)
    of_proposals = proposals(opened).collect()
    tables_of_cells = []
    notes = []
    for cell in cells:
        try:
            ready = prepare(cell, chosen, folds=folds)
        except InputError as error:
            notes.append(Note("not_fitted", f"left out: {error}"))
            continue
        tables = _tables(cell, ready, sets, blocks=blocks, seed=seed)
        tables["acceptance_lengths"] = _acceptance_lengths(cell, opened, of_proposals)
        tables_of_cells.append((cell, tables))
    if not tables_of_cells:
        raise InputError("no cell of the log can be fitted: " + "; ".join(map(str, notes)))
    stacked = {name: _stack(tables_of_cells, name) for name in TABLES if name != "ceiling_share"}
    if evaluation is None and ceiling_share:
        evaluation = evaluate(
            opened, folds=folds, allow_trimmed=allow_trimmed, pool=pool, plugin=added
        )
    return Stability(
        **stacked,
        ceiling_share=pl.DataFrame()
        if evaluation is None
        else ceiling_share_table(evaluation.metrics),
        notes=[*unreadable_notes(opened), *notes],
        settings={"folds": folds, "blocks": blocks, "seed": seed, "feature": ADOPTED},
        provenance={"seed": seed},
    )


def ceiling_share_table(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return which share of what `overlap` reaches each predictor reaches; see `Stability`.

    Parameters
    ----------
    metrics : polars.DataFrame
        Of an `Evaluation`.
    """
    keys = ["run", "pair", "drafting", "scope", "dataset", "position"]
    scoped = metrics.filter(pl.col("scope").is_in(["overall", "without_first", "position"]))

    def of(name: str) -> pl.DataFrame:
        return scoped.filter(predictor=name).select(
            *keys, pl.col("auc").alias(f"{name}_auc"), pl.col("log_loss").alias(f"{name}_loss")
        )

    joined = scoped
    for name in ("overlap", "constant"):
        joined = joined.join(of(name), on=keys, how="inner", nulls_equal=True)
    above, below = pl.col("auc") - 0.5, pl.col("overlap_auc") - 0.5
    floor = pl.col("constant_loss")
    return joined.select(
        *("run", "pair", "drafting", "predictor", "lossless", "scope", "position", "n"),
        *("auc", "log_loss"),
        share_of_auc=above / below,
        share_of_log_loss=(floor - pl.col("log_loss")) / (floor - pl.col("overlap_loss")),
    )


def _tables(
    cell: Cell, ready: Prepared, sets: Mapping[str, tuple[str, ...]], *, blocks: int, seed: int
) -> dict[str, pl.DataFrame]:
    rows, feature = ready.rows, ready.features[ADOPTED]
    full = fit_logistic(feature, rows.position, rows.accepted, rows.num_positions)
    order = _time_order(ready.frame)
    workloads = _workloads(ready, full)
    grades = _slope_grades(ready)
    return {
        "workloads": workloads,
        "workload_correlations": _correlations(workloads),
        "refit_spread": _pairs(ready, full, order, blocks),
        "slopes": _slopes(ready, grades),
        "transfer": transfer_table(rows, feature, full),
        "learning": learning_table(rows, feature, full, seed=seed),
        "feature_sets": _feature_sets(cell, ready, sets, grades["shared"]),
        "second_rank": _second_rank(ready),
        "change": change_table(
            feature, rows.position, rows.accepted, order >= 0.5, rows.group, full
        ),
    }


def _time_order(frame: pl.DataFrame) -> FloatArray:
    """Return the place of each row in its run, in [0, 1) by step."""
    place = (pl.col("step").rank("dense").over("run") - 1) / pl.col("step").n_unique().over("run")
    return frame.select(place.cast(pl.Float64)).to_series().to_numpy()


def _workloads(ready: Prepared, full: Fit) -> pl.DataFrame:
    rows, feature = ready.rows, ready.features[ADOPTED]
    entropy = ready.frame["entropy"] if "entropy" in ready.frame.columns else None
    tables = []
    for code, name in enumerate(rows.datasets):
        here = np.flatnonzero(rows.dataset == code)
        if len(here) == 0:
            continue
        data = feature[here], rows.position[here], rows.accepted[here]
        fit = fit_logistic(*data, rows.num_positions, start=full)
        of_slopes, of_intercepts = coefficient_intervals(fit, *data, rows.group[here])
        mean = None if entropy is None else entropy[here].mean()
        tables.append(
            {
                "dataset": name,
                "n": len(here),
                "n_prompts": len(np.unique(rows.group[here])),
                "acceptance": float(rows.accepted[here].mean()),
                "mean_entropy": float("nan") if mean is None else float(str(mean)),
                **_with_ends("slope", fit.slope, of_slopes[0]),
                **_with_ends("intercept_0", fit.intercepts[0], of_intercepts[0]),
                "intercept_mean": float(np.nanmean(fit.intercepts)),
                "status": fit.status,
            }
        )
    return pl.DataFrame(tables)


def _with_ends(name: str, value: float, half: float) -> dict[str, float]:
    return {
        name: float(value),
        f"{name}_low": float(value - half),
        f"{name}_high": float(value + half),
    }


def _correlations(workloads: pl.DataFrame) -> pl.DataFrame:
    known = workloads.filter(pl.col("mean_entropy").is_finite())
    enough = len(known) >= 3
    names = ("acceptance", "slope", "intercept_0", "intercept_mean")
    return pl.DataFrame(
        {
            "coefficient": names,
            "r": [
                correlation(known["mean_entropy"], known[name]) if enough else float("nan")
                for name in names
            ],
            "n_datasets": [len(known)] * len(names),
        }
    )


def _pairs(ready: Prepared, full: Fit, order: FloatArray, blocks: int) -> pl.DataFrame:
    fits, errors = _block_fits(ready, full, (order * blocks).astype(np.int64), blocks)
    proper = [fit for fit in fits if fit.status == "converged"]
    spread = {
        "slope": np.array([fit.slope for fit in proper]),
        "intercept_0": np.array([fit.intercepts[0] for fit in proper]),
        "intercept_mean": np.array([np.nanmean(fit.intercepts) for fit in proper]),
    }
    whole = (full.slope, float(full.intercepts[0]), float(np.nanmean(full.intercepts)))
    row: dict[str, Any] = {
        "num_positions": full.counts.size,
        "n": full.n,
        "refits": len(proper),
        "refits_separable": len(fits) - len(proper),
    }
    for (name, values), value in zip(spread.items(), whole, strict=True):
        row[name] = value
        row[f"{name}_mean"] = float(values.mean()) if len(values) else float("nan")
        row[f"{name}_sd"] = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
        if name in errors:
            row[f"{name}_se"] = errors[name]
    row["refit_kind"] = f"{blocks} blocks of steps, each fitted alone"
    return pl.DataFrame([row])


def _block_fits(
    ready: Prepared, full: Fit, block: IntArray, blocks: int
) -> tuple[list[Fit], dict[str, float]]:
    """Return the fit of each block of steps, and the root mean square of their standard errors."""
    rows, feature = ready.rows, ready.features[ADOPTED]
    fits, errors = [], []
    for code in range(blocks):
        here = np.flatnonzero(block == code)
        if len(here) == 0:
            continue
        data = feature[here], rows.position[here], rows.accepted[here]
        fits.append(fit_logistic(*data, rows.num_positions, start=full))
        if fits[-1].status == "converged":
            errors.append(standard_errors(fits[-1], *data, rows.group[here]))
    squares = np.square(errors).mean(axis=0) if errors else np.full(2, np.nan)
    return fits, dict(zip(("slope", "intercept_0"), np.sqrt(squares).tolist(), strict=True))


def _slope_grades(ready: Prepared) -> dict[str, Grade]:
    rows, feature = ready.rows, ready.features[ADOPTED]

    def work(per_position: bool) -> Grade:
        slopes, intercepts, _ = refit(
            PREDICTORS[ADOPTED], rows, feature, slope_per_position=per_position
        )
        return grade(rows, feature, slopes, intercepts, NUM_BINS)

    return dict(zip(("shared", "own"), run_threads(work, (False, True)), strict=True))


def _slopes(ready: Prepared, grades: dict[str, Grade]) -> pl.DataFrame:
    table = difference_table(ready.rows, grades).filter(pl.col("metric") != "ece")
    values = {name: graded.table for name, graded in grades.items()}
    sign = pl.when(pl.col("metric") == "auc").then(-1.0).otherwise(1.0)
    rows = []
    for row in table.select("scope", "position", "metric").rows():
        scores = {}
        for name, graded in values.items():
            of_scope = graded.filter(
                pl.col("scope") == row[0], pl.col("position").eq_missing(pl.lit(row[1]))
            )
            scores[name] = of_scope[row[2]].item()
        rows.append(scores)
    both = pl.DataFrame(rows)
    return table.with_columns(both).select(
        "scope",
        "position",
        "metric",
        "shared",
        "own",
        cost=sign * pl.col("difference"),
        cost_low=pl.min_horizontal(sign * pl.col("low"), sign * pl.col("high")),
        cost_high=pl.max_horizontal(sign * pl.col("low"), sign * pl.col("high")),
        distinguishable=pl.col("distinguishable"),
    )


def _feature_sets(
    cell: Cell, ready: Prepared, all_sets: Mapping[str, tuple[str, ...]], alone: Grade
) -> pl.DataFrame:
    known = {predictor.name: predictor for predictor in ready.predictors}
    grades = {ADOPTED: alone}
    sets = {
        k: names for k, names in all_sets.items() if len(names) > 1 and set(names) <= set(known)
    }
    graded_sets = run_threads(lambda names: _grade_several(ready, names), list(sets.values()))
    grades |= dict(zip(sets, graded_sets, strict=True))
    table = difference_table(ready.rows, grades).filter(scope="overall")
    tables = []
    for label, graded in grades.items():
        names = all_sets[label]
        row = graded.table.row(0, named=True)
        gains: dict[str, float] = {}
        for metric, sign in (("auc", -1.0), ("log_loss", 1.0)):
            difference = table.filter(predictor_b=label, metric=metric)
            low, value, high = (
                (difference["low"][0], difference["difference"][0], difference["high"][0])
                if len(difference)
                else (0.0, 0.0, 0.0)
            )
            ends = sorted((sign * low, sign * high))
            gains |= {
                f"{metric}_gain": sign * value,
                f"{metric}_gain_low": ends[0],
                f"{metric}_gain_high": ends[1],
            }
        tables.append(
            {
                "features": label,
                "names": ", ".join(names),
                "lossless": all(known[name].lossless(cell.strictest) for name in names),
                "n": row["n"],
                **{metric: row[metric] for metric in ("auc", "log_loss", "brier", "ece")},
                **gains,
            }
        )
    return pl.DataFrame(tables)


def _grade_several(ready: Prepared, names: Sequence[str]) -> Grade:
    rows = ready.rows
    features = np.stack([ready.features[name] for name in names], axis=1)
    logit = np.empty(len(rows.fold))
    fit: SeveralFit | None = None
    for fold, held_out in enumerate(rows.fold_slices):
        train: Any = rows.fold != fold if rows.num_folds > 1 else slice(None)
        fit = fit_several(
            features[train],
            rows.position[train],
            rows.accepted[train],
            rows.num_positions,
            start=fit,
        )
        logit[held_out] = fit.log_odds(features[held_out], rows.position[held_out])
    ones = np.ones((rows.num_folds, rows.num_positions))
    return grade(rows, logit, ones, 0 * ones, NUM_BINS)


def _second_rank(ready: Prepared) -> pl.DataFrame:
    schema: dict[str, Any] = {
        "dataset": pl.String,
        "position": pl.Int16,
        "n_rejected": pl.Int64,
        "n_prompts": pl.Int64,
        "second_rate": pl.Float64,
        "second_rate_low": pl.Float64,
        "second_rate_high": pl.Float64,
    }
    rank, rows = ready.frame["target_rank_in_q"], ready.rows
    known = ~rows.accepted & rank.is_not_null().to_numpy()
    if not known.any():
        return pl.DataFrame(schema=schema)
    second = rank.fill_null(-1).to_numpy() == 1
    parts: list[tuple[str | None, int | None, BoolArray]] = [(None, None, known)]
    parts += [(None, k, known & (rows.position == k)) for k in range(rows.num_positions)]
    parts += [(d, None, known & (rows.dataset == i)) for i, d in enumerate(rows.datasets)]
    tables = []
    for dataset, position, part in parts:
        tables.append(
            {"dataset": dataset, "position": position} | _rate(second[part], rows.group[part])
        )
    return pl.DataFrame(tables, schema=schema)


def _rate(second: BoolArray, group: IntArray) -> dict[str, float | int]:
    if len(second) == 0:
        undefined = dict.fromkeys(
            ("second_rate", "second_rate_low", "second_rate_high"), float("nan")
        )
        return {"n_rejected": 0, "n_prompts": 0, **undefined}
    rate, low, high = mean_interval(second, group)
    return {
        "n_rejected": len(second),
        "n_prompts": len(np.unique(group)),
        "second_rate": rate,
        "second_rate_low": max(low, 0.0),
        "second_rate_high": min(high, 1.0),
    }


def _acceptance_lengths(cell: Cell, log: DraftLog, of_proposals: pl.DataFrame) -> pl.DataFrame:
    requests = log.requests.select("run", "request", "dataset").collect()
    requests = requests.filter(pl.col("run").is_in(cell.runs))
    # sorted: a mean of floats depends on their order in the last bit
    lengths = of_proposals.join(requests, on=["run", "request"]).sort("run", "step", "slot")
    sums = (
        acceptance_table(cell)
        .group_by("dataset")
        .agg(
            proposed=pl.col("n_proposed").sum(),
            admitted=pl.col("n_admitted").sum(),
            accepted=pl.col("n_accepted").sum(),
        )
    )
    tables = []
    for dataset in [None, *(cell.datasets[code] for code in cell.present)]:
        everywhere = dataset is None
        here = lengths if everywhere else lengths.filter(dataset=dataset)
        by_request = here.group_by("run", "request", maintain_order=True).agg(
            pl.col("acceptance_length").mean()
        )
        all_requests = requests if everywhere else requests.filter(dataset=dataset)
        counts = sums.filter(pl.col("dataset").eq_missing(pl.lit(dataset))).row(0, named=True)
        tables.append(
            {
                "dataset": dataset,
                "num_positions": cell.num_positions,
                "n_proposals": len(here),
                "n_requests": len(by_request),
                "requests_without_verdicts": len(all_requests) - len(by_request),
                "acceptance_length": _mean(here["acceptance_length"]),
                "acceptance_length_by_request": _mean(by_request["acceptance_length"]),
                "accepted_per_verified": float(divide(counts["accepted"], counts["admitted"])),
                "accepted_per_proposed": float(divide(counts["accepted"], counts["proposed"])),
                "rate_compares_across_k": False,
            }
        )
    return pl.DataFrame(tables, schema_overrides={"dataset": pl.String})


def _mean(values: pl.Series) -> float:
    return float(values.to_numpy().mean()) if len(values) else float("nan")


def _stack(tables_of_cells: list[tuple[Cell, dict[str, pl.DataFrame]]], name: str) -> pl.DataFrame:
    return pl.concat([name_cell(cell, tables[name]) for cell, tables in tables_of_cells])
