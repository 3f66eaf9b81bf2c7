"""The end of a report: notes and checks, definitions, runs, and the commands that repeat it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab.grading.prepare import NUM_FOLDS
from draftlab.log.checks import CHECKS
from draftlab.log.summary import workloads
from draftlab.metrics import NUM_BINS
from draftlab.predictors.baselines import PREDICTORS
from draftlab.reporting.sections import blocks
from draftlab.reporting.tables import fit_style, format_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab.log.checks import Finding
    from draftlab.log.reader import DraftLog, Run
    from draftlab.reporting.sections.blocks import Block
    from draftlab.studies.evaluate import Evaluation

RUN_FACTS = (
    "run", "target", "drafter", "method", "drafting", "num_speculative_tokens", "verification",
    "adaptive_verification", "feature_source", "engine", "draftlab", "device", "vocab_size",
    "started", "finished", "closed", "dropped_proposals",
)  # fmt: skip


def notes(
    log: DraftLog, evaluation: Evaluation, found: Sequence[Finding], more: Sequence[str]
) -> Block:
    """Return what a reader must know: notes, failed checks of the log, studies left out."""
    checks = [f"{f.code} {f.severity}: {f.message}" for f in found]
    entries = [
        *(_shorten_paths(note, log) for note in (*evaluation.notes, *more)),
        *(checks or [f"All {len(CHECKS)} checks of the log pass."]),
        *(f"{tail(problem.path)}: {problem.message}" for problem in log.problems),
    ]
    return blocks.section("notes", "Notes and checks", blocks.items(entries))


def meanings(evaluation: Evaluation) -> Block:
    """Return the definitions of every word and number."""
    own = (
        " This report uses one slope per position."
        if evaluation.settings["slope_per_position"]
        else ""
    )
    entries = {
        "Cell": "One pair of target and drafter, one way of drafting, one K. Cells are never "
        "pooled.",
        "Conditional acceptance at position k": "The draft token at k is accepted, given that all "
        "before it were. Graded on the drafts that reached k; a token behind the first rejection "
        "has no label and counts for nothing.",
        "Survival of position k": "Everything up to k is accepted, out of all drafts that were "
        "sent at k.",
        "Acceptance length": "Emitted tokens per verification, 1 + accepted; behind a stop token "
        "nothing counts.",
        "q, p, qmax, q2nd, q_sampled, H(q)": "The drafter's distribution after temperature; the "
        "target's distribution; the largest and second largest entry of q; q of the drawn token; "
        "the entropy of q in nats. logit(x) = log(x / (1 - x)).",
        "Fitted predictor": "logit of the prediction = slope × feature + b_k: one slope, one "
        f"intercept per position, by maximum likelihood. Here: {fit_style(evaluation)}.{own} "
        "Unfitted predictors are taken as they are.",
        "Lossless": "Deciding on the predictor whether to verify the token at k leaves the "
        "target's distribution exactly as it is, because nothing that it reads depends on that "
        "token. Derived from the columns that it reads and the way of drafting.",
        "AUC": "The chance that an accepted row scores above a rejected one, ties counting half. "
        "Cross-fitted, it is the mean of the AUCs within the folds, weighted by their pairs.",
        "Log-loss, Brier": "Mean negative log-likelihood in nats, unclipped; mean squared "
        "difference of prediction and label. Lower is better for both.",
        "ECE": f"{evaluation.settings['ece']}: the mean over rows of |observed rate - mean "
        "prediction| of their bin. It is above zero even for a perfect predictor, by about the "
        "expected value that stands beside it if rows are independent, by more where those of a "
        "prompt resemble one another. Smooth ECE (Blasiok and Nakkiran, 2024) has no "
        "bins.",
        "95 % by prompt": "Intervals count prompts, not rows, as what repeats: rows of a prompt "
        "resemble one another. Differences are paired on the same rows.",
        "Floors and ceilings": "Floors know no feature: one rate for all, or one per position. "
        "Ceilings know the target's answer: overlap = Σ min(p, q) is the best of all that see "
        "only the prefix, accept_prob = min(1, p/q) of the drawn token is the chance that the "
        "verifier itself uses.",
        "Hybrid, lossless oracle": "Survival predictors. The hybrid reads q of the drawn tokens "
        "before k and qmax at k; the oracle multiplies accept_prob before k with the overlap at k.",
        "Adaptive verification (AV)": "Each step sends the drafts with the highest survivals, as "
        "many as make the most tokens per second by the cost table.",
        "Regret": "Log-loss above that of the one fit to all rows, in sample.",
    }
    return blocks.section("definitions", "Definitions", [blocks.definitions(entries)])


def runs(log: DraftLog) -> Block:
    """Return what recorded the log, and acceptance length per run and workload."""
    facts = [_facts(run) for run in log.runs]
    table = pl.DataFrame(
        {"key": [key.replace("_", " ") for key in facts[0]]}
        | {
            run.name: [format_number(value) for value in of_run.values()]
            for run, of_run in zip(log.runs, facts, strict=True)
        }
    )
    parts = [
        *blocks.table("runs-facts", table, "What recorded the log, from run.json."),
        *blocks.table(
            "runs-workloads",
            workloads(log),
            "Acceptance length per run and workload: tokens per verification, each verification "
            "counting once, and as the mean over requests. All requests of a run together.",
        ),
    ]
    return blocks.section("runs", "Runs", parts)


def reproduce(commands: Sequence[str], provenance: dict[str, Any]) -> Block:
    """Return the commands, and the versions and the input that the numbers come from."""
    versions = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    of_input = provenance.get("input_hash")
    ending = f" SHA-256 of the log's parts: {of_input}." if of_input else ""
    return blocks.section(
        "reproduce",
        "Reproduce",
        [
            blocks.text(
                "Live sampling depends on the machine's arithmetic, so a new collection gives "
                "other drafts; the report of the same log gives the same page."
            ),
            blocks.code(commands),
            blocks.text(
                f"Python {provenance['python']}, {provenance['platform']}; {versions}.{ending} All "
                "tables and what the figures draw stand in report.json.",
                "small",
            ),
        ],
    )


def list_commands(log: DraftLog, evaluation: Evaluation, typed: Sequence[str] = ()) -> list[str]:
    """Return what to type for this report: the collection of each run, then the report."""
    named = [_printed_path(word) if Path(word).exists() else word for word in typed]
    words = [*printed_paths(log), *_changed(evaluation), *named, "--out", "report"]
    return [
        *collected(log),
        f"draftlab report {shlex.join(words)}",
    ]


def collected(log: DraftLog) -> list[str]:
    """Return the commands that collected the runs of a log, as far as they are known."""
    commands = [(run.metadata.get("provenance") or {}).get("command") for run in log.runs]
    return list(dict.fromkeys(command for command in commands if command))


def printed_paths(log: DraftLog) -> list[str]:
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
            shown.append(_relative(folder) or "LOG")
        else:
            shown += [_printed_path(run.path) for run in runs]
    return list(dict.fromkeys(shown))


def tail(path: str) -> str:
    """Return run, table and part of a file: where the log lay is nobody's business."""
    return "/".join(path.split("/")[-3:])


def _facts(run: Run) -> dict[str, Any]:
    facts = {name: run.metadata.get(name) for name in RUN_FACTS if name != "run"}
    rows = {f"rows of {table}": count for table, count in run.rows.items()}
    return facts | {"unfinished files": len(run.unfinished)} | rows


def _shorten_paths(note: str, log: DraftLog) -> str:
    for problem in log.problems:
        note = note.replace(problem.path, tail(problem.path))
    for run in log.runs:
        note = note.replace(run.path, run.name)
    return note


def _changed(evaluation: Evaluation) -> list[str]:
    """Return the options of `evaluate` that were not left as they are, as they are typed."""
    settings = evaluation.settings
    changed = []
    asked, known = list(settings["predictors"]), list(PREDICTORS)
    # a plugin adds its own to the known ones
    left = asked[: len(known)] if settings["plugins"] else asked
    if left != known:
        changed += [word for name in asked for word in ("--predictor", name)]
    if settings["in_sample"]:
        changed.append("--in-sample")
    elif settings["folds"] != NUM_FOLDS:
        changed += ["--folds", str(settings["folds"])]
    if settings["n_bins"] != NUM_BINS:
        changed += ["--n-bins", str(settings["n_bins"])]
    if settings["slope_per_position"]:
        changed.append("--slope-per-position")
    if evaluation.metrics["trimmed"].any():
        changed.append("--allow-trimmed")
    paths = [_printed_path(path) for path in settings["plugins"]]
    return changed + [word for path in paths for word in ("--plugin", path)]


def _printed_path(path: str) -> str:
    if "://" in path:
        return path
    elsewhere = Path(path).name if Path(path).is_file() else f"LOG/{Path(path).name}"
    return _relative(path) or elsewhere


def _relative(path: str) -> str | None:
    try:
        return str(Path(path).absolute().relative_to(Path.cwd()))
    except ValueError:
        return None
