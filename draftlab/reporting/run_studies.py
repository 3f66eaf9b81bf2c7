"""Run every study of a log that a report shows; what cannot be run is said, not raised."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from draftlab.errors import InputError
from draftlab.grading.prepare import NUM_FOLDS
from draftlab.log.checks import run_checks
from draftlab.log.reader import DraftLog, open_any
from draftlab.metrics import NUM_BINS
from draftlab.parallel import stream_process
from draftlab.policies.cost import check_table, find_cost
from draftlab.studies.audit.audit import audit as run_audit
from draftlab.studies.evaluate import evaluate
from draftlab.studies.replay.drift import drift as run_drift
from draftlab.studies.replay.replay import replay as run_replay
from draftlab.studies.simulate.simulate import cost_of_log, simulate
from draftlab.studies.stability.stability import ceiling_share_table
from draftlab.studies.stability.stability import stability as run_stability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from draftlab.log.checks import Finding
    from draftlab.plugins import Plugin
    from draftlab.policies.cost import CostTable
    from draftlab.studies.audit.audit import Audit
    from draftlab.studies.evaluate import Evaluation
    from draftlab.studies.replay.drift import Drift
    from draftlab.studies.replay.replay import Replay
    from draftlab.studies.simulate.simulate import Simulation
    from draftlab.studies.simulate.trimming_check import LiveCheck
    from draftlab.studies.stability.stability import Stability

MODEL_COST = "H100/llama-8b"
"""Cost model that every log is simulated with; on it trimming can pay at 64 requests."""
CONCURRENCIES = (8, 64, 256)
POLICIES = ("fixed", "av/logit_qmax", "av/confidence", "av/oracle")


class Studies(NamedTuple):
    """Results that a report is made from; None was not to be had, and ``notes`` say why."""

    evaluation: Evaluation
    replay: Replay
    stability: Stability | None = None
    simulation: Simulation | None = None
    audit: Audit | None = None
    drift: Drift | None = None
    checks: list[Finding] | None = None
    """What `run_checks` finds."""
    live: LiveCheck | None = None
    """Only if it is given: it needs a second log."""
    notes: tuple[str, ...] = ()


class EvaluateOptions(NamedTuple):
    """How the log is evaluated where no result is given; see `evaluate`."""

    predictors: Sequence[str] | None = None
    in_sample: bool = False
    folds: int = NUM_FOLDS
    n_bins: int = NUM_BINS
    slope_per_position: bool = False
    allow_trimmed: bool = False
    plugin: Plugin | None = None


def gather(
    log: DraftLog,
    options: EvaluateOptions,
    *,
    cost: CostTable | None = None,
    on_study: Callable[[str, Any], None] = lambda *_: None,
    **given: Any,
) -> Studies:
    """Return the given results and those that were missing.

    ``cost`` is what policies are simulated with, `MODEL_COST` unless told. ``on_study`` is called
    with the name and the result of each study as soon as it is there, the evaluation first, while
    others still run; ``given`` are results by the names of `Studies`.

    Raises
    ------
    InputError
        The log cannot be evaluated or replayed; every other study is left out with a note.
    """
    known = {name: study for name, study in given.items() if study is not None}
    missing = tuple(name for name in _OTHERS if name not in known)
    selected = options.allow_trimmed or _is_trimmed(known.get("evaluation"))
    with _run_others(log, missing, selected, cost) as others:
        if "evaluation" not in known:
            known["evaluation"] = evaluate(log, keep_predictions=True, **options._asdict())
        evaluation = known["evaluation"]
        for name in ("evaluation", *(name for name in known if name != "evaluation")):
            on_study(name, known[name])
        notes = []
        for name, study, more in others:
            notes += more
            if study is None:
                continue
            known[name] = _complete(study, evaluation) if name == "stability" else study
            on_study(name, known[name])
    return Studies(**known, notes=tuple(sorted(notes)))


_OTHERS = ("stability", "simulation", "drift", "replay", "audit", "checks")
"""Those first that take long to run or to draw."""
_NEEDED = ("replay",)


def _is_trimmed(evaluation: Evaluation | None) -> bool:
    return evaluation is not None and bool(evaluation.metrics["trimmed"].any())


def _complete(stability: Stability, evaluation: Evaluation) -> Stability:
    """Add the table for which `stability` would evaluate the log once more."""
    return replace(stability, ceiling_share=ceiling_share_table(evaluation.metrics))


Found = tuple[str, Any, list[str]]
"""Name of a study, its result (None: it cannot be run on the log) and notes."""


def _run_others(
    log: DraftLog, names: tuple[str, ...], selected: bool, cost: CostTable | None
) -> AbstractContextManager[Iterator[Found]]:
    """Run studies one after the other; those of a large log in a process of their own."""
    rows = sum(run.rows["drafts"] for run in log.runs)
    if not names or rows < _WORTH_A_PROCESS or (os.cpu_count() or 1) < 2:
        return nullcontext(run_studies(log, names, selected, cost))
    return stream_process(run_studies, [run.path for run in log.runs], names, selected, cost)


def run_studies(
    log: DraftLog | list[str],
    names: tuple[str, ...],
    selected: bool = False,
    cost: CostTable | None = None,
) -> Iterator[Found]:
    """Yield each of the named studies as it ends."""
    opened = open_any(log)
    notes: list[str] = []
    runs: dict[str, Callable[[], Any]] = {
        "stability": lambda: run_stability(opened, ceiling_share=False, allow_trimmed=selected),
        "simulation": lambda: _simulate(opened, cost, notes),
        "replay": lambda: run_replay(opened),
        "drift": lambda: run_drift(opened),
        "audit": lambda: run_audit(opened),
        "checks": lambda: run_checks(opened),
    }
    for name in names:
        found = None
        try:
            found = runs[name]()
        except InputError as error:
            if name in _NEEDED:
                raise
            notes.append(f"{name} left out: {error}")
        yield name, found, notes.copy()
        notes.clear()


_WORTH_A_PROCESS = 100_000
"""Drafts whose study takes longer than the start of a process."""


def _simulate(log: DraftLog, cost: CostTable | None, notes: list[str]) -> Simulation:
    if cost is not None:
        return _run_policies(log, [cost])
    costs = [find_cost(MODEL_COST)]
    try:
        own = cost_of_log(log)
    except InputError as error:
        notes.append(f"the log's own steps make no cost table: {error}")
    else:
        K = int(log.runs[0].metadata["num_speculative_tokens"])
        useless = [check_table(own, requests=c, num_speculative_tokens=K) for c in CONCURRENCIES]
        costs += [own] if None in useless else []
        notes.append(_describe(own, useless))
    return _run_policies(log, costs)


def _run_policies(log: DraftLog, costs: list[CostTable]) -> Simulation:
    return simulate(log, costs, policies=POLICIES, concurrencies=CONCURRENCIES, regret=False)


def _describe(cost: CostTable, useless: Sequence[str | None]) -> str:
    """Say in words what the log's own steps say about trimming; ``useless`` by concurrency."""
    if None in useless:
        return f"the log's own steps make a cost table ({cost.note}); it is simulated too"
    if len(cost.verify.sizes) == 1:
        return (
            f"the log's own steps do not tell what a draft costs ({cost.note}); {MODEL_COST} is "
            "simulated instead, a model"
        )
    return (
        f"cost flat, nothing to gain on the log's own steps ({cost.note}): {useless[-1]}; "
        f"{MODEL_COST} is simulated instead, a model"
    )
