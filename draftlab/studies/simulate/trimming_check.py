"""Was the simulation right? Adaptive verification simulated on one log, measured on another."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.grading.cells import read_cells
from draftlab.log.files import shown_path
from draftlab.log.reader import DraftLog, open_log
from draftlab.metrics.intervals import ratio_influence
from draftlab.policies.adaptive import COLUMN_OF, UNFITTED, coefficients_of, make_admission
from draftlab.results import Note, Result, study, tidy
from draftlab.schema import Excluded
from draftlab.studies.evaluate import evaluate
from draftlab.studies.simulate.costs import as_cost
from draftlab.studies.simulate.proposals import read_proposals
from draftlab.studies.simulate.rehearsal import Drafts, Requests, rehearse

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab._types import FloatArray
    from draftlab.policies.adaptive import AdaptiveVerification
    from draftlab.policies.cost import CostTable


TOLERANCE = 0.03
"""Relative error that counts as agreement, whatever the standard error."""
ORDERS = 16
"""Other orders of the same requests that are rehearsed: how batches form and drain is chance too,
and all requests of a step share it."""
_FEATURES = ("logit_qmax", "top2_margin", "entropy", "logit_q_sampled", "confidence")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TrimmingCheck(Result):
    """Simulated against measured adaptive verification."""

    command = "trimming-check"
    verdicts = ("agrees",)

    measures: pl.DataFrame = tidy(
        """One row per measure (acceptance_length; verified_per_step, drafts sent per request;
        step_ms): measure, simulated, measured, difference (measured - simulated), standard_error
        (paired by group, and what another order of the requests would change on either side; of
        step_ms by steps), relative, agrees (within 3 % or two standard errors; null: step_ms of a
        cost model)."""
    )
    policy: str
    concurrency: int
    num_requests: int
    """Of the live log."""
    num_prompts: int
    """In both logs."""

    @property
    def agrees(self) -> bool:
        """Whether acceptance length and verified drafts agree; step time is only shown."""
        rows = self.measures.filter(pl.col("measure") != "step_ms")
        return bool(rows["agrees"].all())


class _PerGroup(NamedTuple):
    """Sums over the proposals of each group."""

    emitted: dict[str, float]
    verified: dict[str, float]
    proposals: dict[str, float]


@study
def trimming_check(
    log: DraftLog | str | Path,
    trimmed: DraftLog | str | Path,
    *,
    cost: CostTable | str | Path = "log",
    out: str | Path | None = None,
) -> TrimmingCheck:
    """Check a simulation against a run that was trimmed live.

    Parameters
    ----------
    log : path or DraftLog
        One run with adaptive verification off. A fitted predictor is fitted on it.
    trimmed : path or DraftLog
        One run of the same pair, settings and prompts under adaptive verification; its run.json
        names the predictor.
    cost : CostTable, str or path
        What the trimmed run was given, as in `simulate`.
    out : path, optional
        Write the result there.

    Raises
    ------
    InputError
        As in `rehearse_trimming`.
    """
    one, other = _single(log, "log"), _single(trimmed, "trimmed")
    name = str(other.runs[0].metadata["adaptive_verification"])
    if name == "off":
        raise InputError(
            f"run {other.runs[0].name} was not trimmed: give the log of a collection with "
            "--adaptive-verification"
        )
    K = int(other.runs[0].metadata["num_speculative_tokens"])
    fitted = ["logit_qmax", "logit_q_sampled"] if name == "hybrid" else [name]
    known = None
    if name == "hybrid" or (name in COLUMN_OF and name not in UNFITTED):
        known = coefficients_of(evaluate(one, predictors=fitted).coefficients)
    return rehearse_trimming(
        one, other, make_admission(name, as_cost(cost, one), K, coefficients=known)
    )


def rehearse_trimming(
    log: DraftLog | str | Path, trimmed: DraftLog | str | Path, admission: AdaptiveVerification
) -> TrimmingCheck:
    """Rehearse on a log without adaptive verification what another log did with it.

    Parameters
    ----------
    log : path or DraftLog
        One run with adaptive verification off.
    trimmed : path or DraftLog
        One run of the same pair, settings and prompts under adaptive verification.
    admission : AdaptiveVerification
        Made as for the live run, fresh.

    Returns
    -------
    TrimmingCheck

    Raises
    ------
    InputError
        Not one run each, not of one pair and K, ``trimmed`` was trimmed by something else, or the
        first log lacks what the predictor reads.
    """
    one, other = _single(log, "log"), _single(trimmed, "trimmed")
    _check_pair(one, other, admission)
    slots = int(other.steps.select(pl.col("num_requests").max()).collect().item())
    logged = _read(one)
    others = _other_orders(logged, admission, slots)
    simulated, times = _rehearse(logged, admission, slots)
    measured = _measure(other)
    rows = [
        _compare("acceptance_length", simulated, measured, others, "emitted"),
        _compare("verified_per_step", simulated, measured, others, "verified"),
        _compare_times(times, other, modelled=admission.cost.source == "model"),
    ]
    shared = simulated.proposals.keys() & measured.proposals.keys()
    return TrimmingCheck(
        measures=pl.DataFrame(rows),
        policy=f"av/{admission.name}",
        concurrency=slots,
        num_requests=other.requests.select(pl.len()).collect().item(),
        num_prompts=len(shared),
        notes=[Note(code, text) for code, text in _ASSUMED.items()],
        settings={
            "trimmed": shown_path(other.runs[0].path),
            "cost": admission.cost.name,
            "cost_source": admission.cost.source,
        },
        provenance={},
    )


_ASSUMED = {
    "step_states": "rehearsed steps start in the states of the log, but live trimming ends more of "
    "them without a rejection",
    "step_time": "step_ms comes from the cost table, which counts tokens but not the engine's "
    "padding to the longest proposal",
}


def _single(log: DraftLog | str | Path, name: str) -> DraftLog:
    opened = log if isinstance(log, DraftLog) else open_log(log)
    if len(opened.runs) != 1:
        raise InputError(f"{name}: wanted one run, got {[run.name for run in opened.runs]}")
    return opened


def _check_pair(off: DraftLog, live: DraftLog, admission: AdaptiveVerification) -> None:
    before, after = off.runs[0].metadata, live.runs[0].metadata
    for key in ("target", "drafter", "method", "drafting", "num_speculative_tokens"):
        if before[key] != after[key]:
            raise InputError(
                f"the logs are not of one pair and setting: {key} is {before[key]!r} and "
                f"{after[key]!r}"
            )
    found = before["adaptive_verification"], after["adaptive_verification"]
    if found != ("off", admission.name):
        raise InputError(
            f"wanted adaptive verification off in the first log and by {admission.name} in the "
            f"second, got {found[0]!r} and {found[1]!r}"
        )


class _Logged(NamedTuple):
    """What a rehearsal runs on."""

    groups: pl.Series
    requests: Requests
    drafts: Drafts


def _read(off: DraftLog) -> _Logged:
    [cell, *others] = read_cells(off, list(_FEATURES))
    if others:
        raise InputError(f"run {cell.run}: mixes greedy and sampled requests")
    proposals = read_proposals(cell, _FEATURES, num_folds=2)
    K = proposals.num_positions
    known = pl.DataFrame(
        {
            "request": proposals.requests,
            "starts": proposals.starts,
            "lengths": proposals.lengths,
        }
    )
    # requests that ended with their first token were read in all the same
    every = (
        off.requests.filter(pl.col("output_tokens") > 0)
        .sort("request")
        .collect()
        .join(known, on="request", how="left", maintain_order="left")
    )
    if every.is_empty():
        raise InputError(f"run {cell.run}: no request has output_tokens")
    requests = Requests(
        *(
            every[name].fill_null(0).to_numpy().astype(np.int64)
            for name in ("starts", "lengths", "prompt_tokens", "output_tokens")
        )
    )
    columns = {
        name: proposals.rows[name].cast(pl.Float64).to_numpy().reshape(-1, K)
        for name in _FEATURES
        if proposals.rows[name].null_count() < len(proposals.rows)
    }
    # The verdict as it was, not cut at the end of the request: rehearsed requests end elsewhere.
    passed = proposals.num_survived
    drafts = Drafts(columns, passed, np.ones_like(passed), np.minimum(passed + 1, K))
    return _Logged(every["group"], requests, drafts)


def _rehearse(
    logged: _Logged, admission: AdaptiveVerification, slots: int
) -> tuple[_PerGroup, FloatArray]:
    found = rehearse(logged.requests, logged.drafts, admission, slots=slots)
    rows = pl.DataFrame(
        {
            "group": logged.groups.gather(found.request),
            "verified": found.verified,
            "emitted": found.emitted,
        }
    )
    return _by_group(rows), found.step_ms


def _other_orders(logged: _Logged, admission: AdaptiveVerification, slots: int) -> list[_PerGroup]:
    """Rehearse the same requests in other orders, from the same state of the predictor."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(ORDERS):
        order = rng.permutation(len(logged.groups))
        requests = Requests(*(getattr(logged.requests, f.name)[order] for f in fields(Requests)))
        shuffled = logged._replace(groups=logged.groups.gather(order), requests=requests)
        found.append(_rehearse(shuffled, deepcopy(admission), slots)[0])
    return found


def _measure(live: DraftLog) -> _PerGroup:
    stop = (pl.col("excluded") & int(Excluded.AFTER_STOP)) != 0
    kept = pl.col("accepted").fill_null(value=False) & ~stop
    proposals = (
        live.drafts.filter(pl.col("verify_step").is_not_null())
        .join(live.requests.select("request", "group"), on="request")
        .group_by("group", "request", "step")
        .agg(
            verified=pl.col("admitted").sum(),
            # a request that ended inside its drafts has no token behind them
            emitted=kept.sum() + (~stop.any()).cast(pl.Int64),
        )
        .collect()
    )
    return _by_group(proposals)


def _by_group(proposals: pl.DataFrame) -> _PerGroup:
    sums = proposals.group_by("group").agg(pl.col("verified", "emitted").sum(), proposals=pl.len())
    columns = (
        dict(zip(sums["group"], sums[name].cast(pl.Float64), strict=True))
        for name in ("emitted", "verified", "proposals")
    )
    return _PerGroup(*columns)


def _compare(
    measure: str,
    simulated: _PerGroup,
    measured: _PerGroup,
    others: list[_PerGroup],
    above: str,
) -> dict[str, Any]:
    """Compare two ratios of sums over the same groups; the pairs share what a prompt does."""
    names = sorted(simulated.proposals.keys() | measured.proposals.keys())
    ratios, influences = [], []
    for side in (simulated, measured):
        values = getattr(side, above)
        ratio, influence = ratio_influence(
            np.array([values.get(name, 0.0) for name in names]),
            np.array([side.proposals.get(name, 0.0) for name in names]),
            np.zeros(len(names), dtype=np.int64),
            1,
        )
        ratios.append(float(ratio[0]))
        influences.append(influence)
    G = len(names)
    spread = np.sum((influences[1] - influences[0]) ** 2) * G / max(G - 1, 1)
    orders = [sum(getattr(o, above).values()) / sum(o.proposals.values()) for o in others]
    spread += 2 * np.var(orders, ddof=1)
    return _row(measure, ratios[0], ratios[1], float(np.sqrt(spread)))


def _compare_times(simulated: FloatArray, live: DraftLog, *, modelled: bool) -> dict[str, Any]:
    steps = live.steps.filter(pl.col("num_requests") > 0).select(
        (pl.col("verify_ms") + pl.col("draft_ms")).cast(pl.Float64)
    )
    measured = steps.collect().to_series().drop_nulls().to_numpy()
    if len(measured) < 2:
        return _row("step_ms", float(simulated.mean()), float("nan"), float("nan"))
    spread = (values.var(ddof=1) / len(values) for values in (measured, simulated))
    error = float(np.sqrt(sum(spread)))
    row = _row("step_ms", float(simulated.mean()), float(measured.mean()), error)
    return row | ({"agrees": None} if modelled else {})  # a model's time is of other hardware


def _row(measure: str, simulated: float, measured: float, error: float) -> dict[str, Any]:
    difference = measured - simulated
    relative = difference / simulated
    return {
        "measure": measure,
        "simulated": simulated,
        "measured": measured,
        "difference": difference,
        "standard_error": error,
        "relative": relative,
        "agrees": bool(abs(relative) <= TOLERANCE or abs(difference) <= 2 * error),
    }
