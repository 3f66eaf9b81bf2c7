"""Run every study of a log that a report shows; what cannot be run is said, not raised."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from draftlab.auditing import audit as run_audit
from draftlab.drifting import drift as run_drift
from draftlab.errors import InputError
from draftlab.evaluation import NUM_FOLDS, evaluate
from draftlab.metrics import NUM_BINS
from draftlab.policies.cost import check_table, find_cost
from draftlab.processes import run_process
from draftlab.replaying import replay as run_replay
from draftlab.simulation import cost_of_log, simulate
from draftlab.structuring import achievable_table
from draftlab.structuring import structure as run_structure
from draftlab.threads import run_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab.auditing import Audit
    from draftlab.drifting import Drift
    from draftlab.evaluation import Evaluation
    from draftlab.livecheck import LiveCheck
    from draftlab.log.reader import DraftLog
    from draftlab.policies.cost import CostTable
    from draftlab.replaying import Replay
    from draftlab.simulation import Simulation
    from draftlab.structuring import Structure

MODEL_COST = "H100/llama-8b"
"""Cost model that every log is simulated with; on it trimming can pay at 64 requests."""
CONCURRENCIES = (8, 64, 256)
POLICIES = ("fixed", "av/logit_qmax", "av/confidence", "av/oracle")


class Studies(NamedTuple):
    """Results that a report is made from; None was not to be had, and ``notes`` say why."""

    evaluation: Evaluation
    replay: Replay
    structure: Structure | None = None
    simulation: Simulation | None = None
    audit: Audit | None = None
    drift: Drift | None = None
    live: LiveCheck | None = None
    """Only if it is given: it needs a second log."""
    notes: tuple[str, ...] = ()


class Options(NamedTuple):
    """How the log is evaluated where no result is given; see `evaluate`."""

    in_sample: bool = False
    folds: int = NUM_FOLDS
    n_bins: int = NUM_BINS
    allow_selected: bool = False


def gather(
    log: DraftLog,
    options: Options,
    *,
    evaluation: Evaluation | None = None,
    replay: Replay | None = None,
    structure: Structure | None = None,
    simulation: Simulation | None = None,
    audit: Audit | None = None,
    drift: Drift | None = None,
    live: LiveCheck | None = None,
) -> Studies:
    """Return the given results and those that were missing.

    Raises
    ------
    InputError
        The log cannot be evaluated or replayed; every other study is left out with a note.
    """
    given = {
        "evaluation": evaluation,
        "structure": structure,
        "replay": replay,
        "simulation": simulation,
        "audit": audit,
        "drift": drift,
    }
    notes: list[str] = []
    runs: dict[str, Callable[[], Any]] = {
        "evaluation": lambda: evaluate(log, keep_predictions=True, **options._asdict()),
        "structure": lambda: _structure(log, options.allow_selected or _is_selected(evaluation)),
        "simulation": lambda: _simulate(log, notes),
        "replay": lambda: run_replay(log),
        "drift": lambda: run_drift(log),
        "audit": lambda: run_audit(log),
    }

    def attempt(name: str) -> Any:
        try:
            return given[name] or runs[name]()
        except InputError as error:
            if name in _NEEDED:
                raise
            notes.append(f"{name} left out: {error}")
            return None

    # side by side: most of their time is arithmetic without Python's lock
    found = dict(zip(runs, run_threads(attempt, list(runs)), strict=True))
    if structure is None and found["structure"] is not None:
        reached = achievable_table(found["evaluation"].metrics)
        found["structure"] = replace(found["structure"], achievable=reached)
    return Studies(**found, live=live, notes=tuple(sorted(notes)))


_NEEDED = ("evaluation", "replay")


def _is_selected(evaluation: Evaluation | None) -> bool:
    return evaluation is not None and bool(evaluation.metrics["selected"].any())


def _structure(log: DraftLog, selected: bool) -> Structure:
    """Return the structure without ``achievable``; of a large log from a process of its own."""
    rows = sum(run.rows["drafts"] for run in log.runs)
    if rows < _WORTH_A_PROCESS or (os.cpu_count() or 1) < 2:
        return run_structure(log, achievable=False, allow_selected=selected)
    paths = [run.path for run in log.runs]
    return run_process(run_structure, paths, achievable=False, allow_selected=selected)


_WORTH_A_PROCESS = 100_000
"""Drafts whose study takes longer than the start of a process."""


def _simulate(log: DraftLog, notes: list[str]) -> Simulation:
    costs = [find_cost(MODEL_COST)]
    try:
        own = cost_of_log(log)
    except InputError as error:
        notes.append(f"the log's own steps make no cost table: {error}")
    else:
        K = int(log.runs[0].metadata["num_speculative_tokens"])
        costs += [own] if _says_something(own, K) else []
        notes.append(_describe(own, K))
    return simulate(log, costs, policies=POLICIES, concurrencies=CONCURRENCIES, regret=False)


def _flat(cost: CostTable, K: int) -> list[str | None]:
    return [check_table(cost, requests=c, num_speculative_tokens=K) for c in CONCURRENCIES]


def _says_something(cost: CostTable, K: int) -> bool:
    return None in _flat(cost, K)


def _describe(cost: CostTable, K: int) -> str:
    """Say in words what the log's own steps say about trimming."""
    if _says_something(cost, K):
        return f"the log's own steps make a cost table ({cost.note}); it is simulated too"
    return (
        f"cost flat, nothing to gain on the log's own steps ({cost.note}): {_flat(cost, K)[-1]}; "
        f"{MODEL_COST} is simulated instead, a model"
    )
