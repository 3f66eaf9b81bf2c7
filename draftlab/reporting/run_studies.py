"""Run every study of a log that a report shows; what cannot be run is said, not raised.

A result that lies below ``out`` already is read instead, if it is of the same call: the same log,
options, plugin and code (`results.key_of`).
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from draftlab.errors import InputError
from draftlab.grading.prepare import NUM_FOLDS
from draftlab.metrics import NUM_BINS
from draftlab.parallel import stream_process
from draftlab.results import Result, find_result, key_of, left_out, stored_key, write_left_out
from draftlab.studies import RESULTS, result_class
from draftlab.studies.audit.audit import audit
from draftlab.studies.evaluate import Evaluation, evaluate
from draftlab.studies.inspect import Inspection, inspect
from draftlab.studies.replay.drift import drift
from draftlab.studies.replay.replay import replay
from draftlab.studies.simulate.simulate import simulate
from draftlab.studies.simulate.trimming_check import trimming_check
from draftlab.studies.stability.stability import Stability, ceiling_share_table, stability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from draftlab.log.reader import DraftLog
    from draftlab.plugins import Plugin
    from draftlab.studies.simulate.costs import Cost

REPORT_CONCURRENCIES = (8, 64, 256)
"""Low, published and high load: a page shows no more."""
POLICIES = ("fixed", "av/logit_qmax", "av/confidence", "av/oracle")
NEEDED = ("inspect", "evaluate", "replay", "trimming-check")
"""A log that these cannot be run on has no report; the last is run only if it is asked for."""


@dataclass(frozen=True)
class Studies:
    """Results that a report is made from, by command, and why others are left out."""

    results: dict[str, Result]
    left_out: dict[str, str] = field(default_factory=dict)
    reused: tuple[str, ...] = ()
    """Commands whose results were read instead of made."""

    @property
    def inspection(self) -> Inspection:
        """What is in the log."""
        found = self.results["inspect"]
        assert isinstance(found, Inspection)
        return found

    @property
    def evaluation(self) -> Evaluation:
        """How predictors are graded."""
        found = self.results["evaluate"]
        assert isinstance(found, Evaluation)
        return found


class EvaluateOptions(NamedTuple):
    """How the log is evaluated; see `evaluate`."""

    predictors: str | Sequence[str] | None = None
    in_sample: bool = False
    folds: int = NUM_FOLDS
    n_bins: int = NUM_BINS
    slope_per_position: bool = False
    allow_trimmed: bool = False
    plugin: Plugin | str | Path | None = None
    by: str | None = None


class Call(NamedTuple):
    """A study of the log, with its options."""

    study: Callable[..., Result]
    options: dict[str, Any]


def plan(
    options: EvaluateOptions, cost: Cost | None = None, trimmed: str | Path | None = None
) -> dict[str, Call]:
    """Return what a report runs, by command; those first that take long to run or to draw."""
    calls = {
        "evaluate": Call(evaluate, options._asdict()),
        "stability": Call(stability, {"allow_trimmed": options.allow_trimmed}),
        "simulate": Call(
            simulate,
            {
                "cost": cost,
                "policies": POLICIES,
                "concurrencies": REPORT_CONCURRENCIES,
                "regret": False,
            },
        ),
        "drift": Call(drift, {}),
        "replay": Call(replay, {}),
        "audit": Call(audit, {}),
        "inspect": Call(inspect, {}),
    }
    if trimmed is not None:
        calls["trimming-check"] = Call(
            trimming_check, {"trimmed": trimmed, "cost": "log" if cost is None else cost}
        )
    return calls


def run_missing_studies(
    log: DraftLog,
    calls: Mapping[str, Call],
    *,
    given: Sequence[Result] = (),
    out: Path | None = None,
    fresh: bool = False,
    on_study: Callable[[str, Result], None] = lambda *_: None,
) -> Studies:
    """Return the given results, those that lie below ``out``, and the rest, made and written.

    ``on_study`` is called with the command and the result of each study as soon as it is there,
    the evaluation first, while others still run.

    Raises
    ------
    InputError
        The log cannot be evaluated or replayed; every other study is left out with a reason.
    """
    known = {result.command: result for result in given}
    reused: dict[str, Result] = {}
    absent: dict[str, str] = {}
    if out is not None and not fresh:
        wanted = {name: call for name, call in calls.items() if name not in known}
        reused, absent = _read_places(_find_same(log, wanted, out))
    known = reused | known
    missing = {n: call for n, call in calls.items() if n not in known and n not in absent}
    with _run_others(log, {n: c for n, c in missing.items() if n != "evaluate"}) as others:
        if "evaluate" in missing:
            call = missing["evaluate"]
            known["evaluate"] = call.study(log, **call.options, out=out)
        first = known["evaluate"]
        assert isinstance(first, Evaluation)
        for name in ("evaluate", *(name for name in known if name != "evaluate")):
            on_study(name, known[name])
        for name, made in others:
            whole = _complete(made, first, log, calls) if isinstance(made, Stability) else made
            if isinstance(whole, str):
                absent[name] = whole
            else:
                known[name] = whole
                on_study(name, whole)
            if out is not None:
                _keep(out, log, calls[name], name, whole)
    return Studies(known, absent, tuple(reused))


def read_studies(folder: Path) -> Studies:
    """Return every result below a folder.

    Raises
    ------
    InputError
        No evaluation is there, or no inspection of its log.
    """
    results, absent = _read_places(_find_places(folder, RESULTS))
    for name in ("evaluate", "inspect"):
        if name not in results:
            raise InputError(
                f"{folder}: a report needs {folder / name}; make it where the log is: "
                f"draftlab {name} LOG --out {folder}"
            )
    return Studies(results, absent)


def _find_same(log: DraftLog, calls: Mapping[str, Call], out: Path) -> dict[str, Path]:
    """Return where results of these very calls lie below a folder, by command."""
    return {
        name: place
        for name, place in _find_places(out, calls).items()
        if stored_key(place) == key_of(calls[name].study, log, **calls[name].options)
    }


def _find_places(folder: Path, commands: Iterable[str]) -> dict[str, Path]:
    """Return where results of commands lie below a folder, by command."""
    named = {name: folder / name for name in commands if (folder / name).is_dir()}
    found = {name: find_result(place, name) for name, place in named.items()}
    return {name: place for name, place in found.items() if place is not None}


def _read_places(places: Mapping[str, Path]) -> tuple[dict[str, Result], dict[str, str]]:
    """Return the results that lie at places, and the reasons that stand where there is none."""
    kept = {name: left_out(place) for name, place in places.items()}
    reasons = {name: reason for name, reason in kept.items() if reason is not None}
    results = {n: result_class(n).read(p) for n, p in places.items() if n not in reasons}
    return results, reasons


def holds_results(path: str | Path) -> bool:
    """Whether a path is a folder of results and not a log."""
    folder = Path(path)
    return any((folder / name / "result.json").is_file() for name in RESULTS)


def _complete(
    made: Stability, evaluation: Evaluation, log: DraftLog, calls: Mapping[str, Call]
) -> Stability:
    """Add the table for which `stability` would evaluate the log once more."""
    key = key_of(stability, log, **calls["stability"].options)
    return replace(
        made,
        ceiling_share=ceiling_share_table(evaluation.metrics),
        provenance=made.provenance | {"key": key},
    )


def _keep(out: Path, log: DraftLog, call: Call, name: str, made: Result | str) -> None:
    if isinstance(made, Result):
        made.write(out)
    else:
        write_left_out(out, name, made, key_of(call.study, log, **call.options))


Made = tuple[str, "Result | str"]
"""Command of a study, and its result or why it cannot be run on the log."""


def _run_others(log: DraftLog, calls: Mapping[str, Call]) -> AbstractContextManager[Iterator[Made]]:
    """Run studies one after the other; those of a large log in a process of their own."""
    rows = sum(run.rows["drafts"] for run in log.runs)
    if not calls or rows < _WORTH_A_PROCESS or (os.cpu_count() or 1) < 2:
        return nullcontext(run_calls(log, dict(calls)))
    return stream_process(run_calls, log, dict(calls))


def run_calls(log: DraftLog, calls: dict[str, Call]) -> Iterator[Made]:
    """Yield each study as it ends."""
    for name, call in calls.items():
        more = {"ceiling_share": False} if name == "stability" else {}
        try:
            made: Result | str = call.study(log, **call.options, **more)
        except InputError as error:
            if name in NEEDED:
                raise
            made = str(error)
        yield name, made


_WORTH_A_PROCESS = 100_000
"""Drafts whose study takes longer than the start of a process."""
