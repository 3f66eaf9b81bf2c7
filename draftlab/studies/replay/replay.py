"""Replay online estimators over a log, draft by draft, as the engine would have run them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.grading.by import Grouping, make_grouping
from draftlab.log.files import shown_path
from draftlab.log.reader import DraftLog, Run, open_any
from draftlab.online.estimator import OVERSHOOT
from draftlab.online.rivals import DEFAULT_ESTIMATORS, ESTIMATORS, NEVER, OWN_CONSTANTS
from draftlab.online.smoothing import SMOOTHED
from draftlab.online.vllm import Constants, from_snapshot
from draftlab.plugins import Plugin, as_plugin
from draftlab.results import Note, Result, as_names, study, tidy, unreadable_notes
from draftlab.schema import DRAFTS
from draftlab.studies.replay.disagreement import compare, describe
from draftlab.studies.replay.prequential import COEFFICIENTS, Driver, GroupSums, KeptRows
from draftlab.studies.replay.rows import Source, no_rows, open_source, read_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from draftlab.features import Feature

SHIPPED = Constants()
"""What vLLM ships."""
WINDOW = 100
"""Engine steps in a window of the prequential metrics."""
OFFLINE = "offline"
"""Name of the ceiling: the shared-slope fit on all rows, in sample."""
REPLAYABLE = (
    "logit_qmax", "live_feature", "top2_margin", "logit_q_sampled", "entropy", "confidence",
)  # fmt: skip
"""Columns that an estimator can read."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Replay(Result):
    """Tidy results of `replay`. Every table carries run, pair and drafting."""

    command = "replay"

    coefficients: pl.DataFrame = tidy(
        """One row per estimator, refit and position: estimator, refit (0: the start), step,
        position, slope, intercept, count (labels of the round), slope_step, intercept_step, refused
        (nan, negative or null), limited, overshoot (a coefficient moved by more than `OVERSHOOT`
        nats)."""
    )
    metrics: pl.DataFrame = tidy(
        """Prequential: each row predicted before its label was learnt. One row per estimator and
        window, and one with window null for the whole run: estimator, window, first_step, n,
        n_accepted, mean_prediction, log_loss, brier, ece, ece_null, auc (within windows: scores of
        different coefficients have no common order), regret (log-loss above the offline fit)."""
    )
    summary: pl.DataFrame = tidy(
        """One row per estimator: estimator, doc, feature, n, log_loss, ece, auc, regret, refits,
        refused, overshoots, diverged (still beyond the data at the end), cold_start_labels
        (labelled drafts until a window stays within 0.01 nats of the offline fit), slope (last),
        live_error (largest difference from the engine's own predictions, where logged)."""
    )
    disagreement: pl.DataFrame = tidy(
        """Runs of one deployment beside one another: see `disagreement.compare`. Empty where no two
        runs share one."""
    )

    groups: pl.DataFrame = tidy(
        """With ``by``, the prequential metrics of the whole run by its values: estimator, by, n,
        n_accepted, mean_prediction, log_loss, brier, ece, ece_null, auc (within windows). Empty
        without."""
    )


_COLD = 0.01


@dataclass(frozen=True)
class ReplaySettings:
    """How to replay; `replay` makes it from its keywords."""

    estimators: tuple[str, ...] = DEFAULT_ESTIMATORS
    feature: str = "logit_qmax"
    constants: Constants = field(default_factory=Constants)
    float32: bool = False
    all_rows: bool | None = None
    offline: bool = True
    snapshot: bool = True
    window: int = WINDOW
    own: Mapping[str, float] = field(default_factory=dict)
    """Constants that only some rivals have: decay, max_step."""
    derived: Mapping[str, Feature] = field(default_factory=dict)
    """Features of a plugin, which the log has no column of."""
    plugins: tuple[str, ...] = ()
    """Files that they come from."""


class ReplayOptions(TypedDict, total=False):
    """Keywords of `replay` that other studies of estimators hand on."""

    estimators: str | Sequence[str] | None
    feature: str
    refit_interval: int
    damping: float
    ridge: float
    start_slope: float
    start_intercept: float
    decay: float | None
    max_step: float | None
    float32: bool
    all_rows: bool | None
    window: int
    offline: bool
    snapshot: bool
    plugin: Plugin | str | Path | Sequence[str | Path] | None


@study
def replay(
    log: DraftLog | str | Path | Sequence[str | Path],
    *,
    estimators: str | Sequence[str] | None = None,
    feature: str = "logit_qmax",
    refit_interval: int = SHIPPED.refit_interval,
    damping: float = SHIPPED.damping,
    ridge: float = SHIPPED.ridge,
    start_slope: float = SHIPPED.start_slope,
    start_intercept: float = SHIPPED.start_intercept,
    decay: float | None = None,
    max_step: float | None = None,
    float32: bool = False,
    all_rows: bool | None = None,
    window: int = WINDOW,
    offline: bool = True,
    snapshot: bool = True,
    plugin: Plugin | str | Path | Sequence[str | Path] | None = None,
    by: str | None = None,
    where: str | None = None,
    out: str | Path | None = None,
) -> Replay:
    """Run online estimators over a log, in order of the verdicts, one of each per run.

    Parameters
    ----------
    log : path, paths or DraftLog
        Runs are replayed one by one: each had its own estimator.
    estimators : str or sequence of str, optional
        Names in `ESTIMATORS`; vLLM's rule and its common rivals unless told.
    feature : str
        Column that the estimators read, one of `REPLAYABLE`, or a feature of a plugin.
    refit_interval : int
        Engine steps between refits.
    damping : float
        Shrinks each refit step by n / (n + damping), n its labels.
    ridge : float
        Added to the Hessian only.
    start_slope, start_intercept : float
        Coefficients to begin with.
    decay : float, optional
        Of `exp-decay`: what a refit leaves of the older sums, in [0, 1].
    max_step : float, optional
        Of `step-limited`: most that a refit moves a coefficient, nats.
    float32 : bool
        Quantise and clip the feature as vLLM stores it.
    all_rows : bool, optional
        Learn from rows that grading leaves out (warm-up, grammar, ...): True, False, or None for
        each estimator's own way; vLLM's rule does.
    window : int
        Engine steps in a window of the metrics.
    offline : bool
        Add the offline fit; it keeps six bytes a labelled row, the rest needs bounded memory.
    snapshot : bool
        Begin from the start state in run.json, where there is one.
    plugin : Plugin, path or paths, optional
        A user's features, as in `evaluate`.
    by : str, optional
        One more way to grade the rows, as in `evaluate`: ``"prompt_tokens:100,500"``.
    where : str, optional
        Part of the log, as in `DraftLog.narrow`: ``"temperature = 0 and prompt_tokens > 100"``.
    out : path, optional
        Write the result there.

    Returns
    -------
    Replay

    Raises
    ------
    InputError
        An unknown estimator or feature; a log without labels; a feature that is null or NaN on
        labelled rows (a null of logit_qmax counts as 40, as in vLLM).

    Examples
    --------
    >>> import tempfile
    >>> from draftlab.synth import synth_log
    >>> run = synth_log(tempfile.mkdtemp(), num_requests=60)
    >>> result = replay(run, estimators="vllm", refit_interval=25)
    >>> result.summary["estimator"].to_list()
    ['vllm', 'offline']
    """
    settings = make_settings(
        estimators=estimators,
        feature=feature,
        refit_interval=refit_interval,
        damping=damping,
        ridge=ridge,
        start_slope=start_slope,
        start_intercept=start_intercept,
        decay=decay,
        max_step=max_step,
        float32=float32,
        all_rows=all_rows,
        window=window,
        offline=offline,
        snapshot=snapshot,
        plugin=plugin,
    )
    opened = open_any(log, where)
    made = replay_runs(opened, settings, None if by is None else make_grouping(by, opened)[0])
    return dataclasses.replace(made, settings=made.settings | {"by": by})


def make_settings(**options: Unpack[ReplayOptions]) -> ReplaySettings:
    """Return the settings that keywords of `replay` mean; raise InputError for one out of range."""
    given: dict[str, Any] = dict(options)
    names = [constant.name for constant in fields(Constants)]
    constants = {name: given.pop(name) for name in names if name in given}
    own = {name: given.pop(name, None) for name in OWN_CONSTANTS}
    estimators = as_names(given.pop("estimators", None)) or DEFAULT_ESTIMATORS
    added = as_plugin(given.pop("plugin", None))
    settings = ReplaySettings(
        estimators=tuple(estimators),
        constants=Constants(**constants),
        own={name: value for name, value in own.items() if value is not None},
        derived=added.features,
        plugins=added.paths,
        **given,
    )
    check_settings(settings)
    return settings


def replay_runs(
    log: DraftLog, settings: ReplaySettings, grouping: Grouping | None = None
) -> Replay:
    """Replay every run of a log; `replay` without reading and writing."""
    check_settings(settings)
    columns = features_of(settings)
    parts = [
        replay_source(
            open_source(
                run,
                columns,
                window=settings.window,
                float32=settings.float32,
                derived=settings.derived,
                grouping=grouping,
            ),
            settings,
        )
        for run in log.runs
    ]
    coefficients = pl.concat([part.coefficients for part in parts])
    features = {name: feature_of(name, settings) for name in settings.estimators}
    disagreement = compare(log, coefficients, features, settings.derived)
    return Replay(
        coefficients=coefficients,
        metrics=pl.concat([part.metrics for part in parts]),
        summary=pl.concat([part.summary for part in parts]),
        disagreement=disagreement,
        groups=pl.concat([part.groups for part in parts]),
        notes=[
            *unreadable_notes(log),
            *(note for part in parts for note in part.notes),
            *describe(disagreement),
        ],
        settings=describe_settings(settings),
        provenance={},
    )


def check_settings(settings: ReplaySettings) -> None:
    """Raise InputError for a setting out of its range."""
    for name in settings.estimators:
        if name not in ESTIMATORS:
            raise InputError(f"unknown estimator {name!r}; known: {', '.join(ESTIMATORS)}")
    _check_feature(settings)
    if settings.float32 and "logit_qmax" not in features_of(settings):
        raise InputError(
            "--float32 quantises logit_qmax as vLLM stores it, and no estimator reads that: leave "
            "it out"
        )
    if settings.constants.refit_interval < 1:
        raise InputError(f"refit_interval must be >= 1, got {settings.constants.refit_interval}")
    if settings.window < 1:
        raise InputError(f"window must be >= 1, got {settings.window}")
    for name in ("damping", "ridge"):
        if getattr(settings.constants, name) < 0:
            raise InputError(f"{name} must be >= 0, got {getattr(settings.constants, name)}")
    for name, value in settings.own.items():
        _check_own(name, value, settings.estimators)


def _check_feature(settings: ReplaySettings) -> None:
    """Raise InputError for a feature that the log has no column of, nor a plugin."""
    columns = {column.name for column in DRAFTS} | {SMOOTHED}
    if taken := sorted(columns & set(settings.derived)):
        raise InputError(
            f"{', '.join(settings.plugins)}: {taken[0]!r} is a column that estimators may read "
            "already; choose another name"
        )
    known = (*REPLAYABLE, *settings.derived)
    if settings.feature not in known:
        raise InputError(f"unknown feature {settings.feature!r}; known: {', '.join(known)}")
    if settings.plugins and settings.feature not in settings.derived:
        listed = ", ".join(settings.derived) or "none"
        raise InputError(
            f"{', '.join(settings.plugins)}: estimators read one feature, {settings.feature}; name "
            f"one of the plugin's (--feature): {listed}"
        )


def _check_own(name: str, value: float, estimators: Sequence[str]) -> None:
    """Raise InputError for a rival's constant that is out of range, or that no rival here has."""
    owners = [estimator for estimator, entry in ESTIMATORS.items() if name in entry.own]
    if not set(owners) & set(estimators):
        has = f"only {', '.join(owners)} has it" if owners else "no estimator has it"
        raise InputError(f"{', '.join(estimators)} has no constant {name}: {has}")
    if name == "decay" and not 0 <= value <= 1:
        raise InputError(f"decay must lie in [0, 1], got {value:g}")
    if name == "max_step" and not value > 0:
        raise InputError(f"max_step must be > 0, got {value:g}")


@dataclass(frozen=True)
class RunReplay:
    """Replay of one run."""

    coefficients: pl.DataFrame
    metrics: pl.DataFrame
    summary: pl.DataFrame
    groups: pl.DataFrame
    notes: list[Note]


def replay_source(source: Source, settings: ReplaySettings) -> RunReplay:
    """Replay the rows of one run, or of a scenario made from it."""
    drivers = [_make_driver(name, source, settings) for name in settings.estimators]
    keep = KeptRows(settings.feature) if settings.offline else None
    labelled = 0
    for rows, end in read_batches(source):
        labelled += len(rows)
        for driver in drivers:
            driver.feed(rows, end)
        if keep is not None:
            keep.add(rows)
    if not labelled:
        raise InputError(f"{source.run.path}: no labelled drafts to replay")
    for driver in drivers:
        driver.feed(no_rows(source), source.last_step + 1)
    offline = None if keep is None else keep.grade(source)
    graded = {driver.name: driver.sums for driver in drivers}
    grouped = {driver.name: driver.groups for driver in drivers}
    if offline is not None:
        graded[OFFLINE], grouped[OFFLINE] = offline
    windows = {name: sums.table(source) for name, sums in graded.items()}
    run = source.run
    return RunReplay(
        coefficients=_named(
            run,
            pl.concat([pl.DataFrame(schema=COEFFICIENTS), *(d.coefficients() for d in drivers)]),
        ),
        metrics=_named(run, _metrics(windows)),
        summary=_named(run, _summary(drivers, windows, settings)),
        groups=_named(run, _groups(grouped, source)),
        notes=_notes(run, drivers, source),
    )


_GROUPS = {
    "estimator": pl.String, "by": pl.String, "n": pl.Int64, "n_accepted": pl.Int64,
    "mean_prediction": pl.Float64, "log_loss": pl.Float64, "brier": pl.Float64,
    "ece": pl.Float64, "ece_null": pl.Float64, "auc": pl.Float64,
}  # fmt: skip


def _groups(grouped: dict[str, GroupSums], source: Source) -> pl.DataFrame:
    """Return a row per estimator and group; none where rows have no group."""
    tables = [pl.DataFrame(schema=_GROUPS)]
    if source.grouping is not None:
        tables += [
            sums.table(source).select(pl.lit(name).alias("estimator"), pl.all())
            for name, sums in grouped.items()
        ]
    return pl.concat(tables)


def features_of(settings: ReplaySettings) -> list[str]:
    """Return the columns that the estimators of the settings read, sorted."""
    features = {settings.feature} if settings.offline else set()
    features |= {feature_of(name, settings) for name in settings.estimators}
    return sorted(features)


def feature_of(estimator: str, settings: ReplaySettings) -> str:
    """Return the feature that an estimator reads: its own, or the chosen one."""
    return ESTIMATORS[estimator].feature or settings.feature


def _make_driver(name: str, source: Source, settings: ReplaySettings) -> Driver:
    entry = ESTIMATORS[name]
    own = {key: value for key, value in settings.own.items() if key in entry.own}
    estimator, since = entry.make(source.num_positions, settings.constants, **own), 0
    snapshot = source.run.metadata.get("estimator_start")
    if settings.snapshot and snapshot and name == "vllm":
        estimator, since = from_snapshot(snapshot, source.num_positions, settings.constants)
    return Driver(
        name=name,
        estimator=estimator,
        feature=feature_of(name, settings),
        every_label=entry.every_label if settings.all_rows is None else settings.all_rows,
        next_refit=source.first_step + estimator.refit_interval - 1 - since,
        stride=settings.window if estimator.refit_interval == 1 else 1,
        slopes=[estimator.slopes],
        intercepts=[estimator.intercepts],
    )


def _metrics(windows: dict[str, pl.DataFrame]) -> pl.DataFrame:
    tables = []
    reference = windows.get(OFFLINE)
    for name, table in windows.items():
        regret = pl.lit(None, dtype=pl.Float64)
        if reference is not None:
            offline = reference.select("window", offline="log_loss")
            table = table.join(
                offline, on="window", how="left", nulls_equal=True, maintain_order="left"
            )
            regret = pl.col("log_loss") - pl.col("offline")
        tables.append(
            table.select(
                pl.lit(name).alias("estimator"),
                pl.exclude("offline"),
                regret.alias("regret"),
            )
        )
    return pl.concat(tables)


def _summary(
    drivers: list[Driver], windows: dict[str, pl.DataFrame], settings: ReplaySettings
) -> pl.DataFrame:
    graded = _metrics(windows)
    by_name = {driver.name: driver for driver in drivers}
    rows = []
    for name in windows:
        own = graded.filter(pl.col("estimator") == name)
        whole = own.filter(pl.col("window").is_null()).row(0, named=True)
        row = {
            "estimator": name,
            "doc": "ceiling: shared-slope fit on all rows, in sample",
            "feature": settings.feature,
            **{key: whole[key] for key in ("n", "log_loss", "brier", "ece", "ece_null", "auc")},
            "regret": whole["regret"],
            "cold_start_labels": _cold_start(own),
        }
        rows.append(row | (_driven(by_name[name]) if name in by_name else {}))
    return pl.DataFrame(rows, schema=_SUMMARY)


_SUMMARY = {
    "estimator": pl.String, "doc": pl.String, "feature": pl.String, "n": pl.Int64,
    "log_loss": pl.Float64, "brier": pl.Float64, "ece": pl.Float64, "ece_null": pl.Float64,
    "auc": pl.Float64, "regret": pl.Float64, "cold_start_labels": pl.Int64, "refits": pl.Int64,
    "refused": pl.Int64, "overshoots": pl.Int64, "diverged": pl.Boolean, "slope": pl.Float64,
    "live_error": pl.Float64,
}  # fmt: skip


def _driven(driver: Driver) -> dict[str, Any]:
    last = driver.intercepts[-1]
    return {
        "doc": ESTIMATORS[driver.name].doc,
        "feature": driver.feature,
        "refits": len(driver.refits),
        "refused": sum(r.refused is not None for _, r in driver.refits),
        "overshoots": sum(r.overshoot for _, r in driver.refits),
        # Clamped log-odds reach 40: an intercept beyond half of that rules every prediction.
        "diverged": bool(~(np.abs(last).max() <= 20)),
        "slope": float(driver.slopes[-1].mean()),
        "live_error": driver.live_error,
    }


def _cold_start(own: pl.DataFrame) -> int | None:
    """Return the labels learnt before the first window that is within 0.01 nats of offline."""
    windows = own.filter(pl.col("window").is_not_null())
    near = windows["regret"].is_not_null() & (windows["regret"] <= _COLD)
    if not near.any():
        return None
    return int(windows["n"][: int(near.arg_max() or 0)].sum())


def _notes(run: Run, drivers: list[Driver], source: Source) -> list[Note]:
    notes = []
    for driver in drivers:
        steps = [step for step, refit in driver.refits if refit.overshoot]
        if steps:
            text = (
                f"{driver.name} moved a coefficient by more than {OVERSHOOT} nats in "
                f"{len(steps)} refits, first at step {steps[0]}"
            )
            notes.append(Note("overshoot", text, run.name))
        if not driver.refits and driver.estimator.refit_interval != NEVER:
            text = (
                f"{driver.name} never refitted: {source.last_step + 1} steps are fewer than its "
                f"interval of {driver.estimator.refit_interval}"
            )
            notes.append(Note("no_refit", text, run.name))
    return notes


def _named(run: Run, table: pl.DataFrame) -> pl.DataFrame:
    names = {"run": run.name, "pair": run.pair, "drafting": run.metadata["drafting"]}
    return table.select(*(pl.lit(v).alias(k) for k, v in names.items()), pl.all())


def describe_settings(settings: ReplaySettings) -> dict[str, Any]:
    """Return settings as they stand in a result."""
    c = settings.constants
    return {
        "estimators": list(settings.estimators),
        "feature": settings.feature,
        "float32": settings.float32,
        "refit_interval": c.refit_interval,
        "damping": c.damping,
        "ridge": c.ridge,
        "start_slope": c.start_slope,
        "start_intercept": c.start_intercept,
        "all_rows": settings.all_rows,
        "window": settings.window,
        "snapshot": settings.snapshot,
        "plugins": [shown_path(path) for path in settings.plugins],
        **settings.own,
    }
