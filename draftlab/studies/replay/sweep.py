"""Sweep the constants of the online estimator over a log, in parallel processes."""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab.errors import InputError
from draftlab.log.reader import open_log
from draftlab.online.rivals import ESTIMATORS, OWN_CONSTANTS
from draftlab.studies.replay.replay import OFFLINE, ReplaySettings, check_settings, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
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


def sweep(
    paths: Sequence[str | Path],
    grid: Mapping[str, Sequence[float]],
    *,
    estimator: str | None = None,
    settings: ReplaySettings | None = None,
    processes: int = 2,
    on_done: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """Replay one estimator for every combination of constants.

    Parameters
    ----------
    paths : sequence of paths
        Logs or runs.
    grid : mapping of constant to values
        Of `SWEEPABLE`.
    estimator : str, optional
        Name in the table of estimators; the rival whose constant is swept, else ``vllm``.
    settings : ReplaySettings, optional
        Everything that is not swept.
    processes : int
        Each opens the log for itself.
    on_done
        Called with (combinations done, all).

    Returns
    -------
    DataFrame
        One row per run and combination, in the order of the grid: run, pair, drafting, estimator,
        the swept constants, n, log_loss, ece, auc, regret (log-loss above the offline fit, nats),
        refits, refused, overshoots, diverged.
    """
    base = replace(settings or ReplaySettings(), estimators=(estimator or _owner(grid),))
    jobs = [_job(base, combination) for combination in _combinations(grid)]
    for job in jobs:
        check_settings(job)
    open_log(*paths)  # bad input ends here, once
    results: list[pl.DataFrame | None] = [None] * len(jobs)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = {
            pool.submit(_run, [str(path) for path in paths], job): index
            for index, job in enumerate(jobs)
        }
        for done, future in enumerate(as_completed(futures), start=1):
            results[futures[future]] = future.result()
            if on_done is not None:
                on_done(done, len(jobs))
    named = [
        table.with_columns(**{name: pl.lit(value) for name, value in combination.items()})
        for table, combination in zip(results, _combinations(grid), strict=True)
        if table is not None
    ]
    first = ["run", "pair", "drafting", "estimator", *grid]
    return pl.concat(named).select(*first, pl.exclude(first))


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


def _run(paths: list[str], settings: ReplaySettings) -> pl.DataFrame:
    summary = replay(paths, settings=settings).summary.filter(pl.col("estimator") != OFFLINE)
    return summary.select(
        "run", "pair", "drafting", "estimator", "n", "log_loss", "ece", "auc", "regret",
        "refits", "refused", "overshoots", "diverged",
    )  # fmt: skip
