"""Checks of a draft log's content, by stable code.

A check answers one question about the log and returns a sentence when something is wrong, or
None. ``loss`` means that rows are missing, ``error`` that rows contradict one another, ``note``
that a reader should know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from draftlab import schema
from draftlab.log.files import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab.log.reader import DraftLog

Severity = Literal["loss", "error", "note"]

_KEY = ("run", "step", "slot", "position")
_NEAR_TIE = 0.001
_MAX_Z = 5.0


@dataclass(frozen=True)
class Check:
    """One entry of `CHECKS`."""

    code: str
    title: str
    severity: Severity
    find: Callable[[DraftLog], str | None]


@dataclass(frozen=True)
class Finding:
    """What a check has to say."""

    code: str
    title: str
    severity: Severity
    message: str


def run_checks(log: DraftLog) -> list[Finding]:
    """Run every check on the whole log, and return what was found in the order of the codes.

    The counts of run.json are those of whole runs, also where a log is narrowed to some rows.
    """
    findings = []
    for check in CHECKS:
        message = check.find(log.whole)
        if message is not None:
            findings.append(Finding(check.code, check.title, check.severity, message))
    return findings


def _not_closed(log: DraftLog) -> str | None:
    messages = []
    for run in log.runs:
        if run.metadata.get("closed"):
            continue
        last = run.scan("steps").select(pl.col("step").max()).collect().item()
        open_part = [_short(path) for path in run.unfinished]
        messages.append(
            f"run {run.name} was not closed: "
            + ("no step is on disk" if last is None else f"rows end with step {last}")
            + ", later ones are lost"
            + (f" (left behind: {', '.join(open_part)})" if open_part else "")
        )
    return _join(messages)


def _unreadable(log: DraftLog) -> str | None:
    return _join([f"{_short(p.path)}: {p.message}" for p in log.problems])


def _missing_part(log: DraftLog) -> str | None:
    messages = []
    for run in log.runs:
        files = [*run.parts["drafts"], *run.parts["steps"], *run.unfinished]
        files += [p.path for p in log.problems if p.path.startswith(run.path)]
        # A part number is shared by both tables; either may have nothing to write.
        numbers = {_part_number(path) for path in files if "/requests/" not in path}
        absent = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
        if absent:
            messages.append(f"run {run.name}: no part numbered {', '.join(map(str, absent))}")
    return _join(messages)


def _row_counts(log: DraftLog) -> str | None:
    messages = []
    for run in log.runs:
        wanted = run.metadata.get("rows")
        if isinstance(wanted, dict):
            messages += [
                f"run {run.name}: {table} has {run.rows[table]} rows, the writer wrote {count}"
                for table, count in wanted.items()
                if count != run.rows.get(table)
            ]
    return _join(messages)


def _dropped(log: DraftLog) -> str | None:
    dropped = log.steps.select(pl.col("num_dropped").sum()).collect().item()
    if not dropped:
        return None
    return f"{dropped} proposals were dropped while the disk was too slow"


def _orphans(log: DraftLog) -> str | None:
    requests = log.requests.select("run", "request")
    count = log.drafts.join(requests, on=["run", "request"], how="anti").select(pl.len())
    return _count(count, "draft rows name a request that the requests table lacks")


def _duplicates(log: DraftLog) -> str | None:
    keys = log.drafts.group_by(_KEY).len().filter(pl.col("len") > 1).select(pl.len())
    return _count(keys, f"keys ({', '.join(_KEY)}) occur more than once")


def _prefix_rule(log: DraftLog) -> str | None:
    before = pl.col("accepted").shift(1).over("run", "step", "slot", order_by="position")
    wrong = (
        log.drafts.filter(pl.col("accepted").is_not_null())
        .join(
            log.drafts.select("run", "step", "slot", "position", before=before),
            on=list(_KEY),
        )
        .filter(
            ~pl.col("admitted")
            | pl.col("verify_step").is_null()
            | ((pl.col("position") > 0) & ~pl.col("before").fill_null(value=False))
        )
        .select(pl.len())
    )
    return _count(
        wrong, "labelled rows are not admitted, have no verdict, or stand behind a rejection"
    )


def _out_of_range(log: DraftLog) -> str | None:
    c = pl.col
    rules = {
        "logit_qmax": c("logit_qmax").is_nan(),
        "top2_margin": c("top2_margin").is_nan() | (c("top2_margin") < 0),
        "entropy": c("entropy").is_nan() | (c("entropy") < 0),
        "logit_q_sampled": c("logit_q_sampled").is_nan()
        | (c("logit_q_sampled") > c("logit_qmax") + 1e-4),
        "overlap": ~c("overlap").is_between(0, 1 + 1e-5),
        "accept_prob": ~c("accept_prob").is_between(0, 1),
        "live_prediction": ~c("live_prediction").is_between(0, 1),
        "position": c("position") < 0,
    }
    counts = log.drafts.select(**{name: rule.sum() for name, rule in rules.items()}).collect()
    wrong = {name: n for name, n in counts.row(0, named=True).items() if n}
    return _join([f"{name} is out of its range in {n} rows" for name, n in wrong.items()])


def _labels_against_overlap(log: DraftLog) -> str | None:
    """Overlap is the exact acceptance probability: labels must agree with it in the mean."""
    p = pl.col("overlap").cast(pl.Float64).clip(0, 1)
    observed = log.drafts.filter(pl.col("accepted").is_not_null() & pl.col("overlap").is_not_null())
    n, excess, variance = (
        observed.select(
            pl.len(), (pl.col("accepted") - p).sum().alias("excess"), (p * (1 - p)).sum().alias("v")
        )
        .collect()
        .row(0)
    )
    if not n or variance == 0:
        return None
    z = excess / variance**0.5
    if abs(z) <= _MAX_Z:
        return None
    return f"labels depart from overlap by {excess / n:+.4f} in the mean of {n} rows (z = {z:.1f})"


def _excluded(log: DraftLog) -> str | None:
    counts = log.drafts.select(
        **{
            flag.name.lower(): ((pl.col("excluded") & int(flag)) != 0).sum()
            for flag in schema.Excluded
            if flag.name
        }
    ).collect()
    found = {name: n for name, n in counts.row(0, named=True).items() if n}
    text = ", ".join(f"{n} {name}" for name, n in found.items())
    return text or None


def _near_ties(log: DraftLog) -> str | None:
    """Batched and single passes round differently, so a greedy label at a near tie is noisy."""
    greedy = log.requests.filter(pl.col("temperature") == 0).select("run", "request")
    rows = log.drafts.filter(
        pl.col("accepted").is_not_null() & pl.col("target_entropy").is_not_null()
    ).join(greedy, on=["run", "request"], how="semi")
    ties = rows.filter(pl.col("target_margin") < _NEAR_TIE).select(pl.len())
    return _count(
        ties, f"greedy rows have a target margin below {_NEAR_TIE}: their labels are noisy"
    )


def _selected(log: DraftLog) -> str | None:
    names = [r.name for r in log.runs if r.metadata["adaptive_verification"] != "off"]
    if not names:
        return None
    hidden = log.drafts.filter(pl.col("run").is_in(names)).select((~pl.col("admitted")).mean())
    return (
        f"adaptive verification trimmed {', '.join(names)}: {hidden.collect().item():.1%} of its "
        "rows are hidden, selected by the live prediction"
    )


def _beyond_declared_length(log: DraftLog) -> str | None:
    """Compare lengths: a profile cut at the declared K tells another one than the run had."""
    declared = {r.name: int(r.metadata["num_speculative_tokens"]) for r in log.runs}
    K = pl.col("run").replace_strict(declared, return_dtype=pl.Int64)
    kept = pl.col("accepted").fill_null(value=False)
    verified = pl.col("verify_step").is_not_null() & (pl.col("position") == 0)
    rows = (
        log.drafts.group_by("run")
        .agg(
            longest=pl.col("position").max() + 1,
            within=(kept & (pl.col("position") < K)).sum(),
            all=kept.sum(),
            verified=verified.sum(),
        )
        .filter(pl.col("longest") > K)
        .sort("run")
        .collect()
    )
    return _join(
        [
            f"run {row['run']} declares K = {declared[row['run']]}, its proposals have up to "
            f"{row['longest']} tokens: acceptance length "
            f"{1 + row['within'] / max(row['verified'], 1):.4g} within the declared K, "
            f"{1 + row['all'] / max(row['verified'], 1):.4g} measured"
            for row in rows.iter_rows(named=True)
        ]
    )


CHECKS: tuple[Check, ...] = (
    Check("DL001", "run not closed", "loss", _not_closed),
    Check("DL002", "unreadable part", "loss", _unreadable),
    Check("DL003", "missing part", "loss", _missing_part),
    Check("DL004", "row counts differ from run.json", "loss", _row_counts),
    Check("DL005", "proposals dropped", "loss", _dropped),
    Check("DL006", "drafts without a request", "error", _orphans),
    Check("DL007", "duplicate keys", "error", _duplicates),
    Check("DL008", "labels break the prefix rule", "error", _prefix_rule),
    Check("DL009", "values out of range", "error", _out_of_range),
    Check("DL010", "labels disagree with overlap", "error", _labels_against_overlap),
    Check("DL011", "rows not eligible", "note", _excluded),
    Check("DL012", "near ties", "note", _near_ties),
    Check("DL013", "selected rows", "note", _selected),
    Check("DL014", "proposals longer than declared", "error", _beyond_declared_length),
)


def _count(frame: pl.LazyFrame, what: str) -> str | None:
    n = frame.collect().item()
    return f"{n} {what}" if n else None


def _join(messages: list[str]) -> str | None:
    return "; ".join(messages) or None


def _short(path: str) -> str:
    return "/".join(path.split("/")[-3:])


def _part_number(path: str) -> int:
    return int(path.rsplit("part-", 1)[1].removesuffix(TEMPORARY).removesuffix(".parquet"))
