"""Simulate verification budgets on a log: what a policy gains, and where predictors lose it.

The accepted length of a logged proposal under any trimming of its prefix is min(admitted,
accepted): exact for each step. Assumed are the mix of step-start states (trimming ends more
steps without a rejection) and the composition of batches, which is drawn from the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.grading.cells import Cell, read_cells
from draftlab.log.files import shown_path
from draftlab.log.reader import DraftLog, open_any
from draftlab.parallel import run_threads
from draftlab.policies.cost import CostTable, check_table
from draftlab.predictors.baselines import PREDICTORS
from draftlab.results import Note, Result, as_names, study, tidy
from draftlab.studies.simulate.batches import Rule, compose
from draftlab.studies.simulate.costs import Cost, as_cost, default_costs
from draftlab.studies.simulate.frontier import (
    MEASURES,
    Batch,
    Sums,
    add_up,
    gain_over,
    measures,
    pareto,
)
from draftlab.studies.simulate.logged_trees import COLUMNS as TREE_COLUMNS
from draftlab.studies.simulate.logged_trees import has_trees, read_trees
from draftlab.studies.simulate.proposals import (
    Predictions,
    Proposals,
    calibrated,
    read_proposals,
    reordered,
)
from draftlab.studies.simulate.runner import ONLINE, Job, Runner, base_predictors, make_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from draftlab.features import Drafting

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NUM_FOLDS = 5
PREDICTORS_BY_DEFAULT = (
    *(
        "logit_qmax",
        "confidence",
        "confidence-sts",
        "qmax",
        "constant",
        "per_position",
        "online-vllm",
    ),
    *("hybrid", "oracle"),
)
"""Under adaptive verification, where the log has their columns."""
POLICIES_BY_DEFAULT = (
    *("fixed", *(f"av/{name}" for name in PREDICTORS_BY_DEFAULT)),
    *("dspark/logit_qmax", "threshold/logit_qmax", "specdec/logit_qmax"),
    *("draft-verify", "clairvoyant"),
)
TABLES = ("frontier", "gains", "regret")
_SMALL_GAIN = 0.005
_NEARLY_ALL = 0.98
_REGRET_AT = 64
_WITH_INTERVAL = [name + end for name in MEASURES for end in ("", "_low", "_high")]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Simulation(Result):
    """Tidy results of `simulate`. Every table carries run, pair, drafting and cost.

    ``dataset`` null is a mix of all. Intervals (_low, _high) are 95 % by group.
    """

    command = "simulate"

    frontier: pl.DataFrame = tidy(
        """One row per cost, policy, dataset and concurrency: cost, cost_source, policy, predictor,
        lossless, dataset, concurrency, verify_length (of fixed), tokens_per_second,
        tokens_per_second_per_request, acceptance_length, verified_per_step, wasted, lost (the last
        four per request and step; of eagle2 the nodes sent at most, and nothing is called lost),
        each with _low and _high; on_frontier (no policy or concurrency is better in both speeds),
        n_proposals, n_prompts, n_steps."""
    )
    gains: pl.DataFrame = tidy(
        """One row per cost, adaptive policy, dataset and concurrency, against the full fixed length
        (AV off): policy, predictor, lossless, verify_length (nodes of eagle2),
        off_tokens_per_second, tokens_per_second, gain, gain_low, gain_high (relative, paired),
        off_acceptance_length, acceptance_length, best_fixed_length, gain_over_best_fixed (against
        the best fixed length at this concurrency), captured (share of the oracle's gain), reason
        (where there is no gain)."""
    )
    regret: pl.DataFrame = tidy(
        """One row per cost, predictor and dataset, at one concurrency: tokens_per_second,
        oracle_tokens_per_second, regret (1 - ratio), ranking (what is lost with the own order but
        calibrated survivals), calibration (with the oracle's order but the own survivals); the two
        need not add up."""
    )


class _Options(NamedTuple):
    costs: tuple[CostTable, ...]
    concurrencies: tuple[int, ...]
    cap: int | None
    seed: int
    by_dataset: bool
    regret: bool = True


class _Tables(NamedTuple):
    frontier: list[dict[str, Any]]
    gains: list[dict[str, Any]]
    regret: list[dict[str, Any]]
    notes: list[str]


@study
def simulate(
    log: DraftLog | str | Path | Sequence[str | Path],
    cost: Cost | Sequence[Cost] | None = None,
    *,
    policies: Sequence[str] | None = None,
    predictors: Sequence[str] | None = None,
    concurrencies: Sequence[int] = CONCURRENCIES,
    cap: int | None = None,
    by_dataset: bool = True,
    regret: bool = True,
    seed: int = 0,
    out: str | Path | None = None,
) -> Simulation:
    """Run budget policies over logged proposals with a cost table.

    Parameters
    ----------
    log : path, paths or DraftLog
        Of runs with adaptive verification off: what was not verified has no label.
    cost : CostTable, str or path, or a sequence of them, optional
        ``log`` (what its own steps measured), a model such as ``L4/llama-8b``, a file of
        `profile`, or a table. Each is simulated by itself. Unless told, a model, and the log's
        own steps where they show that a draft costs something.
    policies : sequence of str, optional
        ``fixed`` (all lengths 0..K), ``draft-verify``, ``eagle2`` (several sizes; needs logged
        trees), ``clairvoyant``, or POLICY/PREDICTOR as in ``av/logit_qmax``; a default set
        unless told.
    predictors : sequence of str, optional
        Instead of ``policies``: adaptive verification by each of these, and the fixed lengths.
    concurrencies : sequence of int
        Requests in a batch.
    cap : int, optional
        Largest budget of a step.
    by_dataset : bool
        Also run each dataset alone.
    regret : bool
        Also split what is lost to the oracle into ranking and calibration; about half the time.
    seed : int
        Of the batches. All policies meet the same ones.
    out : path, optional
        Write the result there.

    Returns
    -------
    Simulation

    Raises
    ------
    InputError
        An unknown policy or predictor, a concurrency below 1, a log without complete proposals
        or collected under adaptive verification.

    Examples
    --------
    >>> import tempfile
    >>> from draftlab.synth import synth_log
    >>> run = synth_log(tempfile.mkdtemp(), num_requests=60)
    >>> result = simulate(run, "L4/llama-8b", predictors=["oracle"], concurrencies=[1, 256])
    >>> best = result.gains.filter(concurrency=256, predictor="oracle")
    >>> bool(best["gain"][0] > 0.02)
    True
    """
    opened = open_any(log)
    if cost is None:
        costs, of_costs = default_costs(opened, concurrencies)
    else:
        asked = [cost] if isinstance(cost, Cost) else cost
        costs, of_costs = [as_cost(each, opened) for each in asked], []
    options = _check(costs, concurrencies, cap, seed, by_dataset)._replace(regret=regret)
    specs = _specs(as_names(policies), as_names(predictors))
    if policies is predictors is None and has_trees(opened):
        specs = (*specs, "eagle2")
    jobs_of = {K: make_jobs(specs, K) for K in _lengths(opened)}
    columns = sorted({c for jobs in jobs_of.values() for c in _columns(jobs)})
    tables = _Tables([], [], [], _assumptions())
    cells = read_cells(opened, columns)
    for cell in cells:
        _refuse_selected(cell)
        jobs = jobs_of[cell.num_positions]
        default = policies is predictors is None
        _simulate_cell(opened, cell, jobs, columns, options, tables, default=default)
    return Simulation(
        frontier=_frontier_table(tables.frontier),
        gains=pl.DataFrame(tables.gains, schema=_GAINS),
        regret=pl.DataFrame(tables.regret, schema=_REGRET),
        notes=[*of_costs, *(Note("simulation", text) for text in tables.notes)],
        settings={
            "policies": list(specs),
            "concurrencies": list(options.concurrencies),
            "cap": cap,
            "seed": seed,
            "cost": None if cost is None else [_name_of(each) for each in asked],
            "costs": [table.to_dict() for table in options.costs],
        },
        provenance={"seed": seed},
    )


def _check(
    costs: Sequence[CostTable],
    concurrencies: Sequence[int],
    cap: int | None,
    seed: int,
    by_dataset: bool,
) -> _Options:
    if not costs:
        raise InputError("no cost table given: measure one with `draftlab profile`")
    wrong = [c for c in concurrencies if c < 1]
    if wrong or not concurrencies:
        raise InputError(f"concurrencies must be at least 1, got {list(concurrencies)}")
    if cap is not None and cap < 0:
        raise InputError(f"cap must be at least 0, got {cap}")
    return _Options(tuple(costs), tuple(sorted(set(concurrencies))), cap, seed, by_dataset)


def _name_of(cost: Cost) -> str:
    """Return what one would type for a cost table."""
    if isinstance(cost, CostTable):
        return cost.name
    return shown_path(str(cost)) if Path(cost).is_file() else str(cost)


def _specs(policies: Sequence[str] | None, predictors: Sequence[str] | None) -> tuple[str, ...]:
    if policies is not None:
        if predictors is not None:
            raise InputError("name policies or predictors, not both")
        return tuple(policies)
    if predictors is not None:
        return ("fixed", *(f"av/{name}" for name in predictors))
    return POLICIES_BY_DEFAULT


def _lengths(log: DraftLog) -> set[int]:
    return {int(run.metadata["num_speculative_tokens"]) for run in log.runs}


def _columns(jobs: Sequence[Job]) -> set[str]:
    read = {c for job in jobs for name in base_predictors(job) for c in PREDICTORS[name].columns}
    return read.union(*(TREE_COLUMNS for job in jobs if job.policy.reads == "tree"))


def _assumptions() -> list[str]:
    return [
        "counterfactual: with n drafts sent, min(n, accepted) are accepted; exact for each logged "
        "proposal. Batches are drawn from the log, decode steps only: no prompt is read in them"
    ]


def _refuse_selected(cell: Cell) -> None:
    if cell.trimmed:
        raise InputError(
            f"run {cell.run}: adaptive verification ({cell.metadata['adaptive_verification']}) "
            "left drafts unverified, so that other policies cannot be simulated on it; log with "
            "it off"
        )


def _simulate_cell(
    log: DraftLog,
    cell: Cell,
    jobs: Sequence[Job],
    columns: Sequence[str],
    options: _Options,
    tables: _Tables,
    *,
    default: bool,
) -> None:
    proposals = read_proposals(cell, columns, num_folds=NUM_FOLDS)
    names = {name for job in jobs for name in base_predictors(job)}
    predictions = Predictions(proposals, [PREDICTORS[name] for name in sorted(names)])
    runner = Runner(proposals, predictions)
    if any(job.policy.reads == "tree" for job in jobs):
        runner.trees = read_trees(log, cell, proposals)
    reasons = [runner.missing(job) for job in jobs]
    if not default:  # nobody asked for what the log lacks
        missing = dict.fromkeys(reason for reason in reasons if reason)
        tables.notes.extend(f"{cell.run}: {reason}" for reason in missing)
    tables.notes.extend(_cell_notes(cell, proposals))
    usable = [job for job, reason in zip(jobs, reasons, strict=True) if reason is None]
    for job in usable:
        runner.prepare(job)
    start = len(tables.gains), len(tables.frontier)
    for dataset, batch in _batches(cell, proposals, options):
        for table in options.costs:
            place = _Place(cell, dataset, table)
            _run_batch(place, runner, usable, batch, options, tables)
    tables.notes.extend(_plain_wins(cell, tables.frontier[start[1] :]))
    tables.notes.extend(_why_no_gain(cell, tables.gains[start[0] :]))


def _cell_notes(cell: Cell, proposals: Proposals) -> Iterator[str]:
    if proposals.num_dropped:
        yield (
            f"{cell.run}: {proposals.num_dropped} proposals are left out: not graded, not sent "
            "whole, or with a row excluded for another reason than a stop"
        )
    follows = np.flatnonzero(proposals.age > 0)
    full = proposals.accepted[follows - 1] == proposals.num_positions
    first = proposals.accepted[follows] > 0
    if full.any() and not full.all():
        yield (
            f"{cell.run}: position 0 is accepted with {first[full].mean():.3f} after a full "
            f"acceptance and {first[~full].mean():.3f} after a rejection; trimming moves steps "
            "from one state to the other, which is not simulated"
        )


def _batches(
    cell: Cell, proposals: Proposals, options: _Options
) -> Iterator[tuple[str | None, Batch]]:
    present = np.unique(proposals.dataset).tolist()
    parts: list[tuple[str | None, Any]] = [(None, np.arange(len(proposals.starts)))]
    if options.by_dataset and len(present) > 1:
        parts += [(cell.datasets[d], np.flatnonzero(proposals.dataset == d)) for d in present]
    for dataset, requests in parts:
        for concurrency in options.concurrencies:
            rng = np.random.default_rng([options.seed, concurrency])
            rows = compose(
                proposals.starts[requests], proposals.lengths[requests], concurrency, rng
            )
            _, group = np.unique(proposals.group[rows.ravel()], return_inverse=True)
            yield (
                dataset,
                Batch(rows, proposals.accepted[rows], proposals.bonus[rows], group),
            )


class _Place(NamedTuple):
    """Where a row of a table belongs."""

    cell: Cell
    dataset: str | None
    cost: CostTable

    def columns(self, concurrency: int) -> dict[str, Any]:
        return {
            "run": self.cell.run,
            "pair": self.cell.pair,
            "drafting": self.cell.drafting,
            "cost": self.cost.name,
            "cost_source": self.cost.source,
            "dataset": self.dataset,
            "concurrency": concurrency,
        }

    @property
    def drafting(self) -> Drafting:
        return self.cell.strictest


def _run_batch(
    place: _Place,
    runner: Runner,
    jobs: Sequence[Job],
    batch: Batch,
    options: _Options,
    tables: _Tables,
) -> None:
    def work(job: Job) -> Sums:
        admitted, step_ms = runner.run(job, batch, place.cost, options.cap)
        return add_up(runner.outcome(job, batch), admitted, step_ms)

    found = dict(zip(jobs, run_threads(work, jobs), strict=True))
    figures = {job: measures(sums, batch.concurrency) for job, sums in found.items()}
    for job in jobs:
        tables.frontier.append(
            place.columns(batch.concurrency)
            | _job_columns(job, place)
            | {"verify_length": job.length}
            | figures[job]
            | {
                "n_proposals": batch.rows.size,
                "n_prompts": batch.num_prompts,
                "n_steps": len(batch.rows),
            }
        )
    tables.gains.extend(_gains(place, batch, found, figures))
    if options.regret and batch.concurrency == _regret_at(options):
        tables.regret.extend(_regret(place, runner, batch, found))


def _job_columns(job: Job, place: _Place) -> dict[str, Any]:
    return {
        "policy": job.policy.name,
        "predictor": job.predictor,
        "lossless": job.lossless(place.drafting),
    }


def _regret_at(options: _Options) -> int:
    at_most = [c for c in options.concurrencies if c <= _REGRET_AT]
    return max(at_most) if at_most else min(options.concurrencies)


def _gains(
    place: _Place, batch: Batch, found: dict[Job, Sums], figures: dict[Job, dict[str, float]]
) -> Iterator[dict[str, Any]]:
    fixed = {job.length: job for job in found if job.policy.name == "fixed"}
    if not fixed:
        return
    K = max(length for length in fixed if length is not None)
    off = fixed[K]
    speed = {job: row["tokens_per_second"] for job, row in figures.items()}
    best = max(fixed.values(), key=lambda job: speed[job])
    ceiling = next((j for j in found if j.name == "av/oracle"), None)
    for job, sums in found.items():
        if job.policy.name == "fixed":
            continue
        change = gain_over(sums, found[off])
        captured = None
        if ceiling is not None and speed[ceiling] > speed[off] * (1 + _SMALL_GAIN):
            captured = (speed[job] - speed[off]) / (speed[ceiling] - speed[off])
        reason = None
        if change.low <= 0:
            reason = _reason(place.cost, batch.concurrency, K, job, figures, ceiling, off)
        yield (
            place.columns(batch.concurrency)
            | _job_columns(job, place)
            | {
                "verify_length": job.length,
                "off_tokens_per_second": speed[off],
                "tokens_per_second": speed[job],
                "gain": change.gain,
                "gain_low": change.low,
                "gain_high": change.high,
                "off_acceptance_length": figures[off]["acceptance_length"],
                "acceptance_length": figures[job]["acceptance_length"],
                "best_fixed_length": best.length,
                "gain_over_best_fixed": speed[job] / speed[best] - 1,
                "captured": captured,
                "reason": reason,
            }
        )


def _reason(
    cost: CostTable,
    concurrency: int,
    K: int,
    job: Job,
    figures: dict[Job, dict[str, float]],
    ceiling: Job | None,
    off: Job,
) -> str:
    """Say why a policy gains nothing over the full length here."""
    row = figures[job]
    unusable = check_table(cost, requests=concurrency, num_speculative_tokens=K)
    everything = row["verified_per_step"] >= _NEARLY_ALL * K
    if unusable is not None:
        if not job.policy.rule:  # it looks at no cost
            return "trims although the cost does not reward it"
        return unusable if everything else f"{unusable.partition(', so ')[0]}; {_STALE_TIES}"
    if everything:
        return "low load: nearly every draft pays, so nothing is trimmed"
    rate = "tokens_per_second"
    if ceiling is not None and figures[ceiling][rate] <= figures[off][rate] * (1 + _SMALL_GAIN):
        return f"even the oracle gains no more than {_SMALL_GAIN:.1%}"
    if row["lost"] > row["wasted"]:
        return "trims too much: more acceptable drafts are lost than rejected ones are sent"
    return "its survivals do not tell the drafts that pay from those that do not"


_STALE_TIES = (
    "of budgets that are worth the same the rule takes the smallest, by survivals one step old"
)


def _regret(
    place: _Place, runner: Runner, batch: Batch, found: dict[Job, Sums]
) -> Iterator[dict[str, Any]]:
    """Split what adaptive verification loses to the oracle into ranking and calibration."""
    jobs = [
        job
        for job in found
        if job.policy.name == "av" and job.predictor and not job.predictor.startswith(ONLINE)
    ]
    ceiling = next((j for j in jobs if j.predictor == "oracle"), None)
    if ceiling is None:
        return
    oracle, truth = runner.survival("oracle"), runner.truth()

    def speed(sums: Sums) -> float:
        return float(1e3 * sums.emitted.sum() / sums.time_ms.sum())

    def rerun(survivals: Any) -> float:
        return speed(add_up(batch, *runner.run_survivals(survivals, batch, place.cost, Rule())))

    best = speed(found[ceiling])
    for job in jobs:
        if job is ceiling:
            continue
        own = runner.survival(str(job.predictor))
        columns = place.columns(batch.concurrency) | {"predictor": job.predictor}
        yield columns | {
            "tokens_per_second": speed(found[job]),
            "oracle_tokens_per_second": best,
            "regret": 1 - speed(found[job]) / best,
            "ranking": 1 - rerun(calibrated(own, truth, runner.fold)) / best,
            "calibration": 1 - rerun(reordered(own, oracle)) / best,
        }


def _plain_wins(cell: Cell, frontier: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each table on which nothing beats plain decoding at any concurrency."""
    speeds: dict[str, dict[int, dict[bool, float]]] = {}
    for row in frontier:
        if row["dataset"] is None and row["policy"] != "clairvoyant":
            by_plain = speeds.setdefault(row["cost"], {}).setdefault(row["concurrency"], {})
            plain = row["verify_length"] == 0
            by_plain[plain] = max(by_plain.get(plain, 0.0), row["tokens_per_second"])
    for cost, by_concurrency in speeds.items():
        if all(s.get(True, 0.0) > s.get(False, 0.0) > 0 for s in by_concurrency.values()):
            yield (
                f"{cell.run}, {cost}: plain decoding beats every policy at every concurrency, so "
                "the gain of adaptive verification cannot be tested here; see another table"
            )


def _why_no_gain(cell: Cell, gains: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for the policies that gain nothing somewhere, over all datasets mixed."""
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for row in gains:
        if row["reason"] is None or row["dataset"] is not None:
            continue
        name = row["policy"] + (f"/{row['predictor']}" if row["predictor"] else "")
        if row["verify_length"] is not None:
            name += f" of {row['verify_length']} nodes"
        kind = row["reason"].split(":")[0] if "table" in row["reason"] else row["reason"]
        kind += f"; {_STALE_TIES}" if row["reason"].endswith(_STALE_TIES) else ""
        grouped.setdefault((row["cost"], name, kind), []).append(row["concurrency"])
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (cost, name, kind), where in grouped.items():
        alike.setdefault((cost, ", ".join(map(str, where)), kind), []).append(name)
    for (cost, places, kind), names in alike.items():
        verb = "gains" if len(names) == 1 else "gain"
        yield (
            f"{cell.run}, {cost}: {', '.join(names)} {verb} nothing at concurrency {places}: {kind}"
        )


_PLACE_COLUMNS: dict[str, Any] = {
    "run": pl.String, "pair": pl.String, "drafting": pl.String, "cost": pl.String,
    "cost_source": pl.String, "dataset": pl.String, "concurrency": pl.Int32,
}  # fmt: skip
_JOB_COLUMNS: dict[str, Any] = {
    "policy": pl.String, "predictor": pl.String, "lossless": pl.Boolean,
}  # fmt: skip
_FRONTIER = (
    _PLACE_COLUMNS
    | _JOB_COLUMNS
    | {"verify_length": pl.Int32}
    | dict.fromkeys(_WITH_INTERVAL, pl.Float64)
    | {"n_proposals": pl.Int64, "n_prompts": pl.Int64, "n_steps": pl.Int64}
)
_GAINS = (
    _PLACE_COLUMNS
    | _JOB_COLUMNS
    | {"verify_length": pl.Int32}
    | dict.fromkeys(
        ("off_tokens_per_second", "tokens_per_second", "gain", "gain_low", "gain_high",
         "off_acceptance_length", "acceptance_length"), pl.Float64)
    | {"best_fixed_length": pl.Int32, "gain_over_best_fixed": pl.Float64,
       "captured": pl.Float64, "reason": pl.String}
)  # fmt: skip
_REGRET = (
    _PLACE_COLUMNS
    | {"predictor": pl.String}
    | dict.fromkeys(
        ("tokens_per_second", "oracle_tokens_per_second", "regret", "ranking", "calibration"),
        pl.Float64,
    )
)


def _frontier_table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    table = pl.DataFrame(rows, schema=_FRONTIER)
    keys = ["run", "drafting", "cost", "dataset"]
    speeds = ("tokens_per_second", "tokens_per_second_per_request")
    on = np.zeros(len(table), dtype=np.bool_)
    indexed = table.with_row_index("at")
    for _, part in indexed.group_by(keys, maintain_order=True):
        on[part["at"].to_numpy()] = pareto(*(part[name].to_numpy() for name in speeds))
    return table.with_columns(on_frontier=pl.Series(on, dtype=pl.Boolean))
