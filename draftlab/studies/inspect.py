"""What is in a log: its runs, workloads and sampling, and what its checks found."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab.errors import InputError
from draftlab.log.checks import run_checks
from draftlab.log.files import from_here, shown_path
from draftlab.log.reader import DraftLog, open_any
from draftlab.log.summary import workloads
from draftlab.results import Result, study, tidy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab.log.reader import Run

_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
_FINDINGS = dict.fromkeys(("code", "severity", "title", "message"), pl.String)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Inspection(Result):
    """Tidy result of `inspect`."""

    command = "inspect"
    verdicts = ("passed",)

    workloads: pl.DataFrame = tidy(
        """One row per run and workload: run, dataset, requests, prompts, proposals, labelled,
        acceptance (conditional rate of eligible rows), acceptance_length (tokens per verification,
        each verification counting once) and acceptance_length_by_request (mean over requests of
        their own mean)."""
    )
    sampling: pl.DataFrame = tidy(
        """How requests were sampled, one row per combination: temperature, top_p, top_k, min_p."""
    )
    findings: pl.DataFrame = tidy(
        """What the checks have to say: code, severity (loss: rows are missing; error: rows
        contradict one another; note), title, message. Empty where all pass."""
    )
    request: pl.DataFrame = tidy(
        """The request that was asked for: run and the columns of requests; empty unless one was."""
    )
    rows: pl.DataFrame = tidy(
        """Its drafts, one row each, by step and position: run and the columns of drafts; empty
        unless one was asked for."""
    )
    runs: list[dict[str, Any]]
    """Of each run: run, path, pair, unfinished (files), rows (by table), metadata (run.json)."""
    problems: list[dict[str, str]]
    """Files that could not be read: path, message."""
    typed: list[str]
    """The log as one would type it, from the folder in which it was inspected."""

    @property
    def passed(self) -> bool:
        """Whether no check found a loss or an error."""
        return bool((self.findings["severity"] == "note").all())


@study
def inspect(
    log: DraftLog | str | Path | Sequence[str | Path],
    *,
    request: int | str | None = None,
    step: int | None = None,
    out: str | Path | None = None,
) -> Inspection:
    """Return what is in a log, and run its checks.

    Parameters
    ----------
    log : path, paths or DraftLog
        Of a part of a log (`DraftLog.narrow`) the whole is inspected.
    request : int or str, optional
        Fill ``request`` and ``rows`` with this one: its id, or ``RUN:ID`` where several runs have
        the id.
    step : int, optional
        Only its rows of this engine step.
    out : path, optional
        Write the result there.

    Raises
    ------
    InputError
        The log cannot be opened; no run, or more than one, has the request; the request has no
        draft of the step.

    Examples
    --------
    >>> import tempfile
    >>> from draftlab.synth import synth_log
    >>> run = synth_log(tempfile.mkdtemp(), num_requests=20)
    >>> inspect(run).workloads["requests"].sum()
    20
    >>> inspect(run, request=3, step=0).rows["position"].to_list()
    [0, 1, 2, 3, 4]
    """
    opened = open_any(log).whole
    sampling = opened.requests.select(_SAMPLING).unique().sort(_SAMPLING).collect()
    shown = _read_request(opened, request, step)
    findings = [asdict(finding) for finding in run_checks(opened)]
    return Inspection(
        workloads=workloads(opened),
        sampling=sampling,
        findings=pl.DataFrame(findings, schema=_FINDINGS),
        request=shown[0],
        rows=shown[1],
        runs=[_describe(run) for run in opened.runs],
        problems=[asdict(problem) for problem in opened.problems],
        typed=_typed(opened),
        notes=[],
        settings={} if request is None else {"request": str(request), "step": step},
        provenance={},
    )


def _read_request(
    log: DraftLog, request: int | str | None, step: int | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a request and its drafts; no rows for None."""
    if request is None:
        if step is not None:
            raise InputError("--step says nothing without --request")
        return log.requests.limit(0).collect(), log.drafts.limit(0).collect()
    name, colon, text = str(request).rpartition(":")
    if not text.isdecimal():
        raise InputError(f"--request {request}: wanted the id of a request, or RUN:ID")
    if colon and name not in {run.name for run in log.runs}:
        known = ", ".join(run.name for run in log.runs)
        raise InputError(f"--request {request}: no run {name!r}; known: {known}")
    mine = [pl.col("request") == int(text), *([pl.col("run") == name] if colon else [])]
    facts, rows = (log.scan(t).filter(mine).collect() for t in ("requests", "drafts"))
    runs = list(dict.fromkeys([*facts["run"], *rows["run"]]))
    if not runs:
        raise InputError(f"--request {request}: no run of the log has it")
    if len(runs) > 1:
        ways = ", ".join(f"{run}:{text}" for run in runs)
        raise InputError(f"--request {request}: {len(runs)} runs have it; name one: {ways}")
    if step is not None:
        rows = rows.filter(step=step)
        if rows.is_empty():
            raise InputError(f"--step {step}: request {text} has no draft of it")
    return facts, rows.sort("step", "position", maintain_order=True)


def _describe(run: Run) -> dict[str, Any]:
    return {
        "run": run.name,
        "path": run.path,
        "pair": run.pair,
        "unfinished": list(run.unfinished),
        "rows": run.rows,
        "metadata": run.metadata,
    }


def _typed(log: DraftLog) -> list[str]:
    """Return a log as typed from the working folder, elsewhere as LOG; by run if not of all runs.

    A new collection gives its run another name, so the folder repeats the commands, the run not.
    """
    by_folder: dict[str, list[Run]] = {}
    for run in log.runs:
        by_folder.setdefault(os.path.dirname(run.path.rstrip("/")), []).append(run)  # noqa: PTH120 - or a URI
    shown = []
    for folder, runs in by_folder.items():
        every = {path.parent.name for path in Path(folder).glob("*/run.json")}
        if every == {Path(run.path).name for run in runs}:
            shown.append(from_here(folder) or "LOG")
        else:
            shown += [shown_path(run.path) for run in runs]
    return list(dict.fromkeys(shown))
