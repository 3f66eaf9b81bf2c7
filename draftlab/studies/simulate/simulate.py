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
from draftlab.grading.prepare import NUM_FOLDS
from draftlab.log.files import shown_path
from draftlab.log.reader import DraftLog, open_any
from draftlab.parallel import run_threads
from draftlab.plugins import Plugin, as_plugin
from draftlab.policies.cost import CostTable
from draftlab.results import Note, Result, as_names, study, tidy
from draftlab.studies.simulate.batches import compose
from draftlab.studies.simulate.costs import Cost, as_cost, default_costs
from draftlab.studies.simulate.frontier import (
    MEASURES,
    Batch,
    Ran,
    Row,
    Sums,
    add_up,
    frontier_rows,
    measures,
    pareto,
)
from draftlab.studies.simulate.gains import explain_no_gain, gain_rows, plain_wins, regret_rows
from draftlab.studies.simulate.logged_trees import has_trees, read_trees
from draftlab.studies.simulate.policies import Job, make_jobs
from draftlab.studies.simulate.proposals import CompleteProposals, Predictions, read_proposals
from draftlab.studies.simulate.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from draftlab.predictors.baselines import Predictor

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Requests in a batch unless told."""
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
        and reason_text (a code of `gains.REASONS` and a sentence, where there is no gain)."""
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


class _Simulated(NamedTuple):
    """Rows of the tables that one cell gave."""

    frontier: list[Row]
    gains: list[Row]
    regret: list[Row]
    notes: list[Note]


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
    plugin: Plugin | str | Path | Sequence[str | Path] | None = None,
    where: str | None = None,
    out: str | Path | None = None,
) -> Simulation:
    """Run budget policies over logged proposals with a cost table.

    Parameters
    ----------
    log : path, paths or DraftLog
        Of runs with adaptive verification off: what was not verified has no label.
    cost : CostTable, str or path, or a sequence of them, optional
        ``log`` (what its own steps measured), a model such as ``H100/llama-8b``, a file of
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
    plugin : Plugin, path or paths, optional
        A user's features and predictors, as in `evaluate`: ``av/NAME`` and the like. Without
        ``policies`` and ``predictors`` each is added under adaptive verification.
    where : str, optional
        Part of the log, as in `DraftLog.narrow`: ``"temperature = 0 and prompt_tokens > 100"``.
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
    >>> result = simulate(run, "H100/llama-8b", predictors=["oracle"], concurrencies=[1, 256])
    >>> best = result.gains.filter(concurrency=256, predictor="oracle")
    >>> bool(best["gain"][0] > 0.02)
    True
    """
    opened = open_any(log, where)
    if cost is None:
        costs, of_costs = default_costs(opened, concurrencies)
    else:
        asked = [cost] if isinstance(cost, Cost) else cost
        costs, of_costs = [as_cost(each, opened) for each in asked], []
    options = _check(costs, concurrencies, cap, seed, by_dataset)._replace(regret=regret)
    added = as_plugin(plugin)
    known = added.known_predictors()
    specs = _specs(as_names(policies), as_names(predictors))
    if policies is predictors is None:
        specs = (*specs, *(f"av/{predictor.name}" for predictor in added.own_predictors()))
        specs = (*specs, "eagle2") if has_trees(opened) else specs
    jobs_of = {K: make_jobs(specs, K, known) for K in _lengths(opened)}
    if cap is not None and not any(job.policy.rule for jobs in jobs_of.values() for job in jobs):
        raise InputError("--cap bounds a shared budget, and no policy here has one: leave it out")
    columns = sorted({c for jobs in jobs_of.values() for c in _columns(jobs, known)})
    cells = read_cells(opened, columns)
    for cell in cells:
        _refuse_trimmed(cell)
    named = policies is not None or predictors is not None
    simulated = [
        _simulate_cell(
            opened, cell, jobs_of[cell.num_positions], columns, options, known, named=named
        )
        for cell in cells
    ]
    return Simulation(
        frontier=_frontier_table([row for part in simulated for row in part.frontier]),
        gains=pl.DataFrame([row for part in simulated for row in part.gains], schema=_GAINS),
        regret=pl.DataFrame([row for part in simulated for row in part.regret], schema=_REGRET),
        notes=[*of_costs, _ASSUMED, *(note for part in simulated for note in part.notes)],
        settings={
            "policies": list(specs),
            "plugins": [shown_path(path) for path in added.paths],
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
        # gains are over the full fixed length: it is there whether or not it was named
        return tuple(policies) if "fixed" in policies else ("fixed", *policies)
    if predictors is not None:
        return ("fixed", *(f"av/{name}" for name in predictors))
    return POLICIES_BY_DEFAULT


def _lengths(log: DraftLog) -> set[int]:
    return {int(run.metadata["num_speculative_tokens"]) for run in log.runs}


def _columns(jobs: Sequence[Job], known: Mapping[str, Predictor]) -> set[str]:
    read = {c for job in jobs for name in job.parts for c in known[name].columns}
    return read.union(*(job.policy.columns for job in jobs))


_ASSUMED = Note(
    "counterfactual",
    "assumption: sending n drafts accepts min(n, accepted), which is exact per proposal. Batches "
    "are resampled from the log and contain decode steps only (no prefill)",
)


def _refuse_trimmed(cell: Cell) -> None:
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
    known: Mapping[str, Predictor],
    *,
    named: bool,
) -> _Simulated:
    """Run the jobs of a cell; what is missing is noted if the user ``named`` the jobs."""
    proposals = read_proposals(cell, columns, num_folds=NUM_FOLDS)
    names = {name for job in jobs for name in job.parts}
    predictions = Predictions(proposals, [known[name] for name in sorted(names)])
    runner = Runner(proposals, predictions, lambda: read_trees(log, cell, proposals))
    missing = {job: runner.prepare(job) for job in jobs}
    usable = [job for job, reason in missing.items() if reason is None]
    frontier: list[Row] = []
    gains: list[Row] = []
    regret: list[Row] = []
    for dataset, batch in _batches(cell, proposals, options):
        for cost in options.costs:
            ran = _run_batch(cell, dataset, cost, runner, usable, batch, options.cap)
            frontier += frontier_rows(ran)
            gains += gain_rows(ran)
            if options.regret and batch.concurrency == _regret_at(options):
                regret += regret_rows(ran, runner)
    left_out = dict.fromkeys(reason for reason in missing.values() if reason and named)
    notes = [
        *(Note("policy_left_out", reason, cell.run) for reason in left_out),
        *_proposal_notes(cell, proposals),
        *(Note("plain_decoding_wins", f"{cost}: {_PLAIN_WINS}", cell.run)
          for cost in plain_wins(frontier)),
        *(Note(reason.code, reason.text, cell.run) for reason in explain_no_gain(gains)),
    ]  # fmt: skip
    return _Simulated(frontier, gains, regret, notes)


_PLAIN_WINS = (
    "plain decoding beats every policy at every concurrency, so the gain of adaptive verification "
    "cannot be tested with this cost table"
)


def _proposal_notes(cell: Cell, proposals: CompleteProposals) -> Iterator[Note]:
    if proposals.num_dropped:
        yield Note(
            "incomplete_proposals",
            f"{proposals.num_dropped} proposals are left out, because they were not graded, not "
            "sent whole, or hold a row that is excluded for another reason than a stop",
            cell.run,
        )
    follows = np.flatnonzero(proposals.age > 0)
    full = proposals.accepted[follows - 1] == proposals.num_positions
    first = proposals.accepted[follows] > 0
    if full.any() and not full.all():
        yield Note(
            "step_states",
            "caveat: the first draft is accepted with a different rate after a full acceptance "
            f"({first[full].mean():.3f}) and after a rejection ({first[~full].mean():.3f}). "
            "Trimming changes that mix; the simulation ignores it",
            cell.run,
        )


def _batches(
    cell: Cell, proposals: CompleteProposals, options: _Options
) -> Iterator[tuple[str | None, Batch]]:
    dataset_of_request = proposals.dataset[proposals.starts]
    present = np.unique(dataset_of_request).tolist()
    parts: list[tuple[str | None, Any]] = [(None, np.arange(len(proposals.starts)))]
    if options.by_dataset and len(present) > 1:
        parts += [(cell.datasets[d], np.flatnonzero(dataset_of_request == d)) for d in present]
    for dataset, requests in parts:
        for concurrency in options.concurrencies:
            rng = np.random.default_rng([options.seed, concurrency])
            rows = compose(
                proposals.starts[requests], proposals.lengths[requests], concurrency, rng
            )
            _, group = np.unique(proposals.group[rows.ravel()], return_inverse=True)
            yield dataset, Batch(rows, proposals.accepted[rows], proposals.bonus[rows], group)


def _run_batch(
    cell: Cell,
    dataset: str | None,
    cost: CostTable,
    runner: Runner,
    jobs: Sequence[Job],
    batch: Batch,
    cap: int | None,
) -> Ran:
    def work(job: Job) -> Sums:
        admitted, step_ms = runner.run(job, batch, cost, cap)
        return add_up(runner.outcome(job, batch), admitted, step_ms)

    sums = dict(zip(jobs, run_threads(work, jobs), strict=True))
    figures = {job: measures(each, batch.concurrency) for job, each in sums.items()}
    return Ran(cell, dataset, cost, batch, sums, figures)


def _regret_at(options: _Options) -> int:
    at_most = [c for c in options.concurrencies if c <= _REGRET_AT]
    return max(at_most) if at_most else min(options.concurrencies)


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
       "captured": pl.Float64, "reason": pl.String, "reason_text": pl.String}
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
