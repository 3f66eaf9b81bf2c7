"""Sweep the constants of the online estimator over a log, in parallel processes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import polars as pl

from draftlab.errors import InputError
from draftlab.log.reader import DraftLog, open_any
from draftlab.online.rivals import ESTIMATORS, OWN_CONSTANTS
from draftlab.parallel import stream_process
from draftlab.results import Result, as_names, study, tidy, unreadable_notes
from draftlab.studies.replay.replay import (
    OFFLINE,
    ReplayOptions,
    ReplaySettings,
    check_settings,
    describe_settings,
    make_settings,
    replay_runs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

SHIPPED = ("refit_interval", "damping", "ridge", "start_slope", "start_intercept")
SWEEPABLE = (*SHIPPED, *OWN_CONSTANTS)
"""Constants that a sweep may vary; the last ones belong to one rival each."""


def parse_grid(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Read ``refit-interval=25,50,100`` and its like, one or several in a text.

    Raises
    ------
    InputError
        A constant is unknown or a value is no number.
    """
    grid: dict[str, tuple[float, ...]] = {}
    for text in " ".join(texts).split():
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in SWEEPABLE:
            raise InputError(
                f"sweep {text!r}: wanted NAME=VALUE,VALUE with NAME one of {', '.join(SWEEPABLE)}"
            )
        try:
            grid[name] = tuple(float(value) for value in values.split(","))
        except ValueError:
            raise InputError(f"sweep {text!r}: {values!r} are not numbers") from None
    return grid


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Sweep(Result):
    """Tidy result of `sweep`."""

    command = "sweep"

    combinations: pl.DataFrame = tidy(
        """One row per run and combination of constants, in the order of the grid: run, pair,
        drafting, estimator, the swept constants, n, log_loss, ece, auc, regret (log-loss above the
        offline fit, nats), refits, refused, overshoots, diverged."""
    )


@study
def sweep(
    log: DraftLog | str | Path | Sequence[str | Path],
    grid: str | Sequence[str] | Mapping[str, Sequence[float]],
    *,
    estimator: str | None = None,
    processes: int = 2,
    on_done: Callable[[int, int], None] | None = None,
    where: str | None = None,
    out: str | Path | None = None,
    **options: Unpack[ReplayOptions],
) -> Sweep:
    """Replay one estimator for every combination of constants.

    Parameters
    ----------
    log : path, paths or DraftLog
    grid : str, sequence of str, or mapping of constant to values
        ``"refit-interval=25,50 damping=0,50"``; constants of `SWEEPABLE`.
    estimator : str, optional
        Name in the table of estimators; the rival whose constant is swept, else ``vllm``.
    processes : int
        Each reads the log for itself.
    on_done
        Called with (combinations done, all).
    where : str, optional
        Part of the log, as in `DraftLog.narrow`: ``"temperature = 0 and prompt_tokens > 100"``.
    out : path, optional
        Write the result there.
    **options
        Keywords of `replay`: everything that is not swept.

    Raises
    ------
    InputError
        A constant is unknown or out of range, or the errors of `replay`.
    """
    if processes < 1:
        raise InputError(f"processes must be at least 1, got {processes}")
    values = grid if isinstance(grid, Mapping) else parse_grid(as_names(grid) or [])
    name = estimator or _owner(values)
    if twice := [n for n in values if n in options]:
        raise InputError(f"{twice[0]} is swept, so it has no one value: leave out one of the two")
    if "estimators" in options:
        raise InputError("a sweep is of one estimator: name it as estimator")
    options = {**options, "estimators": name}
    base = make_settings(**options)
    jobs = [_job(base, combination) for combination in _combinations(values)]
    for job in jobs:
        check_settings(job)
    opened = open_any(log, where)
    tables = _run_all(opened, jobs, processes, on_done)
    named = [
        found.with_columns(**{name: pl.lit(value) for name, value in combination.items()})
        for found, combination in zip(tables, _combinations(values), strict=True)
    ]
    first = ["run", "pair", "drafting", "estimator", *values]
    return Sweep(
        combinations=pl.concat(named).select(*first, pl.exclude(first)),
        notes=unreadable_notes(opened),
        settings=describe_settings(base) | {"grid": {n: list(v) for n, v in values.items()}},
        provenance={},
    )


def _run_all(
    log: DraftLog,
    jobs: list[ReplaySettings],
    processes: int,
    on_done: Callable[[int, int], None] | None,
) -> list[pl.DataFrame]:
    """Replay every job; the jobs are dealt to the processes like cards."""
    results: dict[int, pl.DataFrame] = {}
    numbered = list(enumerate(jobs))
    hands = [hand for start in range(processes) if (hand := numbered[start::processes])]

    def take(found: Iterator[tuple[int, pl.DataFrame]]) -> None:
        for index, table in found:
            results[index] = table
            if on_done is not None:
                on_done(len(results), len(jobs))

    def work(hand: list[tuple[int, ReplaySettings]]) -> None:
        with stream_process(_run_jobs, log, hand) as found:
            take(found)

    if len(hands) == 1:
        take(_run_jobs(log, numbered))
    else:
        with ThreadPoolExecutor(len(hands)) as pool:
            list(pool.map(work, hands))
    return [results[index] for index in range(len(jobs))]


def _run_jobs(
    log: DraftLog, jobs: list[tuple[int, ReplaySettings]]
) -> Iterator[tuple[int, pl.DataFrame]]:
    for index, settings in jobs:
        yield index, _run(log, settings)


def _owner(names: Iterable[str]) -> str:
    """Return the first estimator that alone has one of the constants; vLLM's rule otherwise."""
    owners = (name for name, entry in ESTIMATORS.items() if set(entry.own) & set(names))
    return next(owners, "vllm")


def _combinations(grid: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _job(base: ReplaySettings, combination: dict[str, Any]) -> ReplaySettings:
    shipped = {name: combination[name] for name in SHIPPED if name in combination}
    if "refit_interval" in shipped:
        shipped["refit_interval"] = int(shipped["refit_interval"])
    own = {name: value for name, value in combination.items() if name not in SHIPPED}
    return replace(base, constants=replace(base.constants, **shipped), own={**base.own, **own})


def _run(log: DraftLog, settings: ReplaySettings) -> pl.DataFrame:
    summary = replay_runs(log, settings).summary.filter(pl.col("estimator") != OFFLINE)
    return summary.select(
        "run", "pair", "drafting", "estimator", "n", "log_loss", "ece", "auc", "regret",
        "refits", "refused", "overshoots", "diverged",
    )  # fmt: skip
