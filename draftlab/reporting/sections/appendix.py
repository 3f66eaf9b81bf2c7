"""The end of a report: notes and checks, definitions, runs, and the commands that repeat it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab.grading.prepare import NUM_FOLDS
from draftlab.log.checks import CHECKS
from draftlab.metrics import NUM_BINS
from draftlab.predictors.baselines import PREDICTORS
from draftlab.reporting.labels import format_number
from draftlab.reporting.sections import blocks
from draftlab.reporting.tables import fit_style
from draftlab.studies.simulate.costs import OWN_STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab.reporting.run_studies import Studies
    from draftlab.reporting.sections.blocks import Block
    from draftlab.results import Result
    from draftlab.studies.evaluate import Evaluation
    from draftlab.studies.inspect import Inspection

RUN_FACTS = (
    "run", "target", "drafter", "method", "drafting", "num_speculative_tokens", "verification",
    "adaptive_verification", "feature_source", "engine", "draftlab", "device", "vocab_size",
    "started", "finished", "closed", "dropped_proposals",
)  # fmt: skip


def notes(studies: Studies) -> Block:
    """Return what a reader must know: notes, failed checks of the log, studies left out."""
    inspection = studies.inspection
    simulation = studies.results.get("simulate")
    more = [n.text for n in simulation.notes if n.code == OWN_STEPS] if simulation else []
    more += [f"{name} was left out: {reason}" for name, reason in studies.left_out.items()]
    checks = [
        f"{row['code']} {row['severity']}: {row['message']}"
        for row in inspection.findings.iter_rows(named=True)
    ]
    entries = [
        *(
            _shorten_paths(note, inspection)
            for note in (*map(str, studies.evaluation.notes), *sorted(more))
        ),
        *(checks or [f"The log passes all {len(CHECKS)} checks."]),
        *(f"{tail(problem['path'])}: {problem['message']}" for problem in inspection.problems),
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
        "Cell": "The rows of one pair of target and drafter, one drafting method and one K. Cells "
        "are never pooled.",
        "Conditional acceptance at position k": "The chance that the draft token at k is accepted, "
        "given that all before it were. It is graded on the drafts that reached k: a token after "
        "the first rejection has no label and does not count.",
        "Survival of position k": "The chance that the draft at k and all before it are accepted, "
        "over all drafts that were sent at k.",
        "Acceptance length": "Emitted tokens per verification: 1 + accepted drafts. Tokens after "
        "a stop token do not count.",
        "q, p, qmax, q2nd, q_sampled, H(q)": "The drafter's distribution after temperature; the "
        "target's distribution; the largest and second largest entry of q; q of the drawn token; "
        "the entropy of q in nats. logit(x) = log(x / (1 - x)).",
        "Fitted predictor": "The logit of the prediction is slope × feature + b_k, with one slope "
        "and one intercept per position, fitted by maximum likelihood. Here: "
        f"{fit_style(evaluation)}.{own} Unfitted predictors are used as they are.",
        "Lossless": "A policy may use the predictor to decide whether to verify the token at k, "
        "and the output keeps exactly the target's distribution, because the predictor reads "
        "nothing that depends on that token. This is derived from the columns that it reads and "
        "from the drafting method.",
        "AUC": "The chance that an accepted row scores above a rejected one, ties counting half. "
        "Cross-fitted, it is the mean of the AUCs within the folds, weighted by their pairs.",
        "Log-loss, Brier": "Log-loss is the mean negative log-likelihood, unclipped, in nats "
        "(natural logarithm; 1 nat = 1.44 bits). Brier is the mean squared difference of "
        "prediction and label. Lower is better for both.",
        "ECE": f"{evaluation.settings['ece']}: the mean over rows of |observed rate - mean "
        "prediction| of their bin. Even a perfect predictor shows an ECE above zero: about the "
        "expected value in the next column if rows are independent, more where the rows of a "
        "prompt resemble one another. Smooth ECE (Blasiok and Nakkiran, 2024) has no bins.",
        "95 % by prompt": "Intervals treat prompts, not rows, as independent, because the rows of "
        "a prompt resemble one another. Differences are paired on the same rows.",
        "Floors and ceilings": "Floors know no feature: they predict one rate for all rows, or one "
        "per position. Ceilings know the target: overlap = Σ min(p, q) is the best that any "
        "predictor can do before the token is drawn, and accept_prob = min(1, p/q) of the drawn "
        "token is the chance that the verifier itself uses.",
        "Hybrid, lossless oracle": "Two survival predictors. The hybrid reads q of the drawn "
        "tokens before k and qmax at k. The oracle knows the target: it multiplies accept_prob "
        "before k with the overlap at k.",
        "Adaptive verification (AV)": "Each step sends the drafts with the highest survivals, as "
        "many as give the most tokens per second according to the cost table.",
        "Regret": "Log-loss above that of one fit to all rows, graded on the same rows.",
    }
    return blocks.section("definitions", "Definitions", [blocks.definitions(entries)])


def runs(inspection: Inspection) -> Block:
    """Return what recorded the log, and acceptance length per run and workload."""
    facts = [_facts(run) for run in inspection.runs]
    table = pl.DataFrame(
        {"key": [key.replace("_", " ") for key in facts[0]]}
        | {
            run["run"]: [format_number(value) for value in of_run.values()]
            for run, of_run in zip(inspection.runs, facts, strict=True)
        }
    )
    parts = [
        *blocks.table("runs-facts", table, "How the log was recorded, from run.json."),
        *blocks.table(
            "runs-workloads",
            inspection.workloads,
            "Acceptance length (tokens per verification) by run and workload, over all "
            "verifications and as the mean over requests. All requests of a run count together.",
        ),
    ]
    return blocks.section("runs", "Runs", parts)


def origin(result: Result) -> dict[str, Any]:
    """Return what a page says of where its numbers come from; places on a disk are not said."""
    made = result.provenance
    return {name: made[name] for name in ("python", "platform", "versions")} | {
        "fingerprint": ", ".join(made["fingerprint"])
    }


def reproduce(commands: Sequence[str], provenance: dict[str, Any]) -> Block:
    """Return the commands, and the versions and the input that the numbers come from."""
    versions = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    ending = f" Fingerprint of the log: {provenance['fingerprint']}."
    return blocks.section(
        "reproduce",
        "Reproduce",
        [
            blocks.text(
                "A new collection gives other drafts, because live sampling depends on the "
                "machine's arithmetic. The same log always gives the same page."
            ),
            blocks.code(commands),
            blocks.text(
                f"Python {provenance['python']}, {provenance['platform']}; {versions}.{ending} "
                "report.json holds all tables and the data of all figures.",
                "small",
            ),
        ],
    )


def list_commands(studies: Studies) -> list[str]:
    """Return what to type for this report: the collection of each run, then the report."""
    inspection = studies.inspection
    words = [*inspection.typed, *where_words(studies.evaluation), *_changed(studies.evaluation)]
    if check := studies.results.get("trimming-check"):
        words += ["--trimmed", check.settings["trimmed"]]
    if simulation := studies.results.get("simulate"):
        words += [word for cost in simulation.settings["cost"] or () for word in ("--cost", cost)]
    return [*collected(inspection), f"draftlab report {shlex.join([*words, '--out', 'report'])}"]


def where_words(result: Result) -> list[str]:
    """Return the option that chose the part of a log which a result is of, as it is typed."""
    where = result.settings.get("where")
    return ["--where", where] if isinstance(where, str) else []


def where_fact(result: Result) -> list[list[str]]:
    """Return the part of the log which a result is of, as key and value; nothing of a whole log."""
    where = result.settings.get("where")
    if where is None:
        return []
    parts = {"": where} if isinstance(where, str) else where
    return [[f"Part of the log {name}".rstrip(), text or "all"] for name, text in parts.items()]


def collected(inspection: Inspection) -> list[str]:
    """Return the commands that collected the runs of a log, as far as they are known."""
    made = [(run["metadata"].get("provenance") or {}).get("command") for run in inspection.runs]
    return list(dict.fromkeys(command for command in made if command))


def tail(path: str) -> str:
    """Return run, table and part of a file: where the log lay is nobody's business."""
    return "/".join(path.split("/")[-3:])


def _facts(run: dict[str, Any]) -> dict[str, Any]:
    facts = {name: run["metadata"].get(name) for name in RUN_FACTS if name != "run"}
    rows = {f"rows of {table}": count for table, count in run["rows"].items()}
    return facts | {"unfinished files": len(run["unfinished"])} | rows


def _shorten_paths(note: str, inspection: Inspection) -> str:
    for problem in inspection.problems:
        note = note.replace(problem["path"], tail(problem["path"]))
    for run in inspection.runs:
        note = note.replace(run["path"], run["run"])
    return note


def _changed(evaluation: Evaluation) -> list[str]:
    """Return the options of `evaluate` that were not left as they are, as they are typed."""
    settings = evaluation.settings
    changed = ["--by", settings["by"]] if settings.get("by") else []
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
    return changed + [word for path in settings["plugins"] for word in ("--plugin", path)]
