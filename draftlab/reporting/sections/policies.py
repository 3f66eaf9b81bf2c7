"""Sections about what predictions are for: budgets, losslessness, online estimators, drift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab.published import PUBLISHED
from draftlab.reporting.figures.replay import DRIFT_DRAWINGS, REPLAY_DRAWINGS
from draftlab.reporting.figures.simulate import FRONTIER, GAINS, of_place, policy_name
from draftlab.reporting.replay_tables import (
    SUMMARY,
    describe_drift,
    describe_replay,
    explain_recovery,
    mild_switches,
    recovery_table,
)
from draftlab.reporting.sections import blocks
from draftlab.reporting.sections.blocks import Block, Column
from draftlab.studies.simulate.trimming_check import TOLERANCE

if TYPE_CHECKING:
    from draftlab.reporting.labels import CellKey
    from draftlab.studies.audit.audit import Audit
    from draftlab.studies.replay.drift import Drift
    from draftlab.studies.replay.replay import Replay
    from draftlab.studies.simulate.simulate import Simulation
    from draftlab.studies.simulate.trimming_check import TrimmingCheck

_TOTAL_VARIATION = 6
"""Decimals: a lossless policy shows 0 up to rounding of floats."""


def budgets(simulation: Simulation, cell: CellKey, name: str) -> Block:
    """Return frontier and gains of a cell, on every cost table of the simulation."""
    costs = of_cell_costs(simulation, cell)
    parts: list[Block] = [
        blocks.text(
            "Adaptive verification (AV) sends only the drafts that are likely enough to be "
            "accepted. The log shows exactly how many drafts any trimming would have accepted; the "
            "time per step comes from a cost table."
        )
    ]
    for i, (cost, source) in enumerate(costs):
        parts += _of_cost(simulation, cell, cost, source, f"{name}-{i}")
    parts += blocks.table(
        f"{name}-published",
        _published_gains(),
        f"Published gains (T6), percent. {PUBLISHED['T6'].source}.",
        [
            Column("workload", "pair and workload", quiet=True),
            Column("tokens_per_second_gain", "gain, %", digits=1, quiet=True),
            Column("acceptance_length_off", "length, AV off", digits=2, quiet=True),
            Column("acceptance_length_on", "length, AV on", digits=2, quiet=True),
        ],
    )
    about = [note.text for note in simulation.notes if note.run in ("", cell.run)]
    parts += blocks.items(about)
    return blocks.section(name, "Verification budgets", parts)


def of_cell_costs(simulation: Simulation, cell: CellKey) -> list[tuple[str, str]]:
    """Return name and source of the cost tables that a cell was simulated with."""
    rows = simulation.frontier.filter(run=cell.run, pair=cell.pair, drafting=cell.drafting)
    return rows.select("cost", "cost_source").unique(maintain_order=True).rows()


def _of_cost(
    simulation: Simulation, cell: CellKey, cost: str, source: str, name: str
) -> list[Block]:
    kind = "a model, not a measurement" if source == "model" else source
    shown_cost = cost.removesuffix(" (model)")
    gains = of_place(simulation.gains, cell, cost).filter(policy="av")
    names = [policy_name("av", predictor, None) for predictor in gains["predictor"]]
    gains = gains.with_columns(
        name=pl.Series(names, dtype=pl.String), dataset=pl.col("dataset").fill_null("all mixed")
    ).rename({"predictor": "of"})  # nothing to mark: every second row would be
    at = int(_published_concurrency(gains["concurrency"]))
    shown = gains.filter(concurrency=at)
    pooled = gains.filter(dataset="all mixed")
    return [
        blocks.text(f"Cost table: {shown_cost} ({kind})."),
        *_no_gain(pooled),
        *blocks.draw(FRONTIER, name, simulation, cell, cost),
        *blocks.draw(GAINS, name, simulation, cell, cost),
        *blocks.table(
            f"{name}-workloads",
            shown,
            f"Gain over verifying every draft with {at} requests at once, by workload (as in T6), "
            "with 95 % by prompt. The last columns compare with the best fixed length.",
            _GAIN_COLUMNS,
        ),
        *blocks.table(
            f"{name}-concurrencies", pooled,
            "Gain over verifying every draft by concurrency, all workloads mixed.",
            [Column("concurrency", "requests"), *_GAIN_COLUMNS[1:]], folded=True,
        ),
    ]  # fmt: skip


def _no_gain(pooled: pl.DataFrame) -> list[Block]:
    """Say so where nothing gains anything."""
    if pooled.is_empty() or (pooled["gain_low"].fill_nan(-1.0) > 0).any():
        return []
    reasons = pooled["reason_text"].drop_nulls().unique(maintain_order=True).to_list()
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return [blocks.text(f"No policy gains anything on this cost table{why}.")]


_GAIN_COLUMNS = [
    Column("dataset", "workload"),
    Column("name", "policy"),
    Column("off_tokens_per_second", "tokens/s, off", digits=0),
    Column("tokens_per_second", "tokens/s, on", digits=0),
    Column("gain", "gain, %", 1, "gain_low", "gain_high", signed=True, percent=True),
    Column("off_acceptance_length", "length, off", digits=2),
    Column("acceptance_length", "length, on", digits=2),
    Column("best_fixed_length", "best fixed"),
    Column("gain_over_best_fixed", "gain over it, %", digits=1, signed=True, percent=True),
]


def _published_concurrency(found: pl.Series) -> Any:
    """Return the concurrency of the published table, or the largest."""
    return 64 if 64 in found.to_list() else found.max()


def _published_gains() -> pl.DataFrame:
    theirs = PUBLISHED["T6"]
    return pl.DataFrame(theirs.rows, schema=theirs.columns, orient="row")


def simulated_against_live(check: TrimmingCheck) -> Block:
    """Return how far the simulation was from a run that was trimmed."""
    verdict = "agrees" if check.agrees else "DISAGREES"
    names = pl.col("measure").replace(_MEASURES)
    table = check.measures.with_columns(measure=names, status=_agreement("agrees")).with_columns(
        # the step time is only shown: the cost table knows tokens, not the engine's padding
        status=pl.when(pl.col("measure") == _MEASURES["step_ms"])
        .then(pl.lit("–"))
        .otherwise("status")
    )
    parts: list[Block] = [
        blocks.text(
            f"The simulation {verdict} with a live run of {check.num_requests:,} requests that was "
            f"trimmed by {check.policy}, {check.concurrency} requests at once; "
            f"{check.num_prompts:,} prompts are in both logs.",
            "plain" if check.agrees else "warning",
        ),
        *blocks.table(
            "live-table",
            table,
            "What was simulated on this log and measured on the trimmed one. Two numbers agree if "
            f"they differ by at most {100 * TOLERANCE:g} % or two standard errors.",
            _LIVE_COLUMNS,
        ),
        *blocks.items(map(str, check.notes)),
    ]
    return blocks.section("live", "Simulated against live", parts)


_MEASURES = {
    "acceptance_length": "acceptance length",
    "verified_per_step": "drafts sent per request and step",
    "step_ms": "time per step, ms",
}
_LIVE_COLUMNS = [
    Column("measure", "measure"),
    Column("simulated", "simulated", digits=3),
    Column("measured", "measured", digits=3),
    Column("difference", "difference", digits=3, signed=True),
    Column("standard_error", "standard error", digits=3),
    Column("relative", "difference, %", digits=1, signed=True, percent=True),
    Column("status", "status"),
]


def _agreement(column: str) -> pl.Expr:
    """Return a column of booleans in words."""
    return (
        pl.when(pl.col(column).is_null())
        .then(pl.lit("–"))
        .when(column)
        .then(pl.lit("agrees"))
        .otherwise(pl.lit("does not agree"))
    )


def losslessness(audit: Audit) -> Block:
    """Return what keeps the target's distribution: proved, derived and measured."""
    failed = (~audit.checks["passed"].fill_null(value=True)).sum()
    verdict = (
        f"All {len(audit.checks)} checks came out as theory predicts, including those that are "
        "meant to change the output."
        if audit.passed
        else f"{failed} of {len(audit.checks)} checks CONTRADICT the theory."
    )
    checks = audit.checks.with_columns(status=_agreement("passed"))
    kinds = (
        ("proof", "Two-token examples from the literature, computed in exact arithmetic."),
        ("joint", "Policies, checked on every outcome of a small joint distribution."),
        ("engine", "Samples of an engine, compared with exact probabilities."),
        (
            "measured",
            "How far trimming moves the output on the (p, q) rows that the log kept: mean and "
            "largest total variation.",
        ),
        ("derived", "Whether each predictor reads anything that was drawn at the position."),
    )
    parts: list[Block] = [blocks.text(verdict, "plain" if audit.passed else "warning")]
    for kind, caption in kinds:
        rows = checks.filter(kind=kind)
        columns = [c for c in _AUDIT_COLUMNS if _holds_anything(rows, c.key)]
        parts += blocks.table(f"audit-{kind}", rows, caption, columns, folded=kind == "derived")
    parts += blocks.items(map(str, audit.notes))
    return blocks.section("audit", "Losslessness", parts)


_AUDIT_COLUMNS = [
    Column("name", "check"),
    Column("drafting", "drafting"),
    Column("threshold", "threshold", digits=1),
    Column("lossless", "lossless"),
    Column("total_variation", "total variation", digits=_TOTAL_VARIATION),
    Column("total_variation_max", "largest", digits=_TOTAL_VARIATION),
    Column("trimmed_share", "trimmed"),
    Column("n", "n"),
    Column("status", "status"),
    Column("reason", "why"),
]


def _holds_anything(rows: pl.DataFrame, column: str) -> bool:
    return rows[column].null_count() < len(rows)


def online(replay: Replay) -> Block:
    """Return the grades and trajectories of the online estimators."""
    several = replay.summary["run"].n_unique() > 1
    summary = replay.summary.select(("run", *SUMMARY) if several else SUMMARY)
    description = describe_replay(replay)
    parts: list[Block] = [
        blocks.text(f"{description[0].upper()}{description[1:]}."),
        *blocks.table(
            "replay-summary",
            summary,
            "Grades of vLLM's online estimator and its rivals, each draft predicted before its "
            "label was learnt. The offline fit has seen the whole log.",
        ),
        *blocks.items(map(str, replay.notes)),
    ]
    for drawing in REPLAY_DRAWINGS:
        parts += blocks.draw(drawing, "replay", replay)
    return blocks.section("replay", "Replay of online estimators", parts)


def abrupt_drift(drift: Drift) -> Block:
    """Return what an abrupt change of traffic does to the online estimators."""
    description = describe_drift(drift)
    parts: list[Block] = [
        blocks.text(f"Scenario: {description}."),
        *blocks.items(explain_recovery(drift)),
        *blocks.table(
            "drift-recovery",
            recovery_table(drift),
            "How long each estimator needed to recover from each switch of traffic, and what that "
            "cost.",
        ),
        *blocks.items(mild_switches(drift)),
    ]
    for drawing in DRIFT_DRAWINGS:
        parts += blocks.draw(drawing, "drift", drift)
    return blocks.section("drift", "When the traffic changes", parts)
