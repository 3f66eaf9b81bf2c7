"""The draft log, version 1, as data: every table's columns, dtypes, units and nulls.

Readers, writers, checks, the documentation and the derivation of losslessness all read
these tables, so a column is described once. pyarrow is imported only when an Arrow
schema is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1

Reveals = Literal["q", "draw", "p", "outcome"]
"""What a column of `drafts` tells beyond the prefix of its position.

``q`` the drafter's distribution at this position, ``draw`` the drawn token x_k, ``p`` the
target's distribution, ``outcome`` what happened after the draw (admission, label).
"""


class Excluded(IntFlag):
    """Bits of `drafts.excluded`: why a row is not eligible. 0 means eligible."""

    WARMUP = 1
    TARGET_ONLY_TRANSFORM = 2
    GRAMMAR = 4
    PLACEHOLDER = 8
    NONFINITE = 16
    FOREIGN_METHOD = 32
    AFTER_STOP = 64


EXCLUDED: dict[Excluded, str] = {
    Excluded.WARMUP: "of the engine's own warm-up requests",
    Excluded.TARGET_ONLY_TRANSFORM: "of a request whose logits are changed on the target side "
    "alone: penalties, bad words, logit bias and the like",
    Excluded.GRAMMAR: "of a request with structured output, whose refusals look like rejections",
    Excluded.PLACEHOLDER: "drafted in the middle of a prompt, never verified",
    Excluded.NONFINITE: "with NaN or infinite logits",
    Excluded.FOREIGN_METHOD: "of a run whose verification method is not `standard`",
    Excluded.AFTER_STOP: "behind the token that ended the request, or drafted after it",
}
"""What a row is that carries the bit."""


@dataclass(frozen=True)
class Column:
    """One column of a log table."""

    name: str
    dtype: str
    """Arrow type name; ``dictionary`` is a string that repeats, ``list<T>`` a list of T."""
    doc: str
    """Meaning, with unit and range."""
    null: str | None = None
    """What a null means; None where no null may stand."""
    required: bool = True
    """False: a file may lack the column, which then reads as null."""
    reveals: frozenset[Reveals] = frozenset()


def _reveals(*what: Reveals) -> frozenset[Reveals]:
    return frozenset(what)


_NONFINITE = "nonfinite logits"

DRAFTS: tuple[Column, ...] = (
    Column("request", "int64", "key into requests"),
    Column("step", "int64", "engine step of the proposal; every verdict call counts, warm-up too"),
    Column(
        "verify_step",
        "int64",
        "step whose verdict covers the row",
        null="never graded",
        reveals=_reveals("outcome"),
    ),
    Column("slot", "int32", "request-state slot"),
    Column("position", "int16", "draft position k, from 0"),
    Column(
        "output_index",
        "int32",
        "tokens the request had emitted before this proposal",
        null="unknown",
        required=False,
    ),
    Column("admitted", "bool", "sent to the target", reveals=_reveals("outcome")),
    Column(
        "accepted",
        "bool",
        "the label: accepted, given that all before it were",
        null="unobserved: not admitted, behind the first rejection, or never graded",
        reveals=_reveals("outcome"),
    ),
    Column("excluded", "uint16", "bit set of Excluded, 0 = eligible", reveals=_reveals("outcome")),
    Column(
        "logit_qmax",
        "float32",
        "log-odds of the drafter's top token, nats; +inf if one-hot",
        null=_NONFINITE,
        reveals=_reveals("q"),
    ),
    Column(
        "top2_margin",
        "float32",
        "log q1 - log q2 of the two top tokens, nats, >= 0",
        null=_NONFINITE,
        required=False,
        reveals=_reveals("q"),
    ),
    Column(
        "entropy", "float32", "H(q), nats", null=_NONFINITE, required=False, reveals=_reveals("q")
    ),
    Column(
        "logit_q_sampled",
        "float32",
        "log-odds of the drawn token under q, nats",
        null="unknown",
        required=False,
        reveals=_reveals("q", "draw"),
    ),
    Column(
        "live_feature",
        "float32",
        "feature stored by the engine's own estimator",
        null="not offered",
        required=False,
        reveals=_reveals("q"),
    ),
    Column(
        "live_prediction",
        "float32",
        "acceptance probability predicted live, in [0, 1]",
        null="not offered",
        required=False,
        reveals=_reveals("q"),
    ),
    Column(
        "confidence",
        "float32",
        "trained head's output, as a logit",
        null="no head",
        required=False,
        reveals=_reveals("q"),
    ),
    Column(
        "overlap",
        "float32",
        "sum over x of min(p, q): exact conditional acceptance",
        null="not recorded",
        required=False,
        reveals=_reveals("q", "p"),
    ),
    Column(
        "accept_prob",
        "float32",
        "min(1, p(x)/q(x)) of the drawn token",
        null="not recorded",
        required=False,
        reveals=_reveals("q", "p", "draw"),
    ),
    Column(
        "target_entropy",
        "float32",
        "H(p), nats",
        null="not recorded",
        required=False,
        reveals=_reveals("p"),
    ),
    Column(
        "target_margin",
        "float32",
        "log p1 - log p2 of p, nats; +inf if one-hot",
        null="not recorded",
        required=False,
        reveals=_reveals("p"),
    ),
    Column(
        "target_rank_in_q",
        "int32",
        "rank in q, from 0, of the target's top token",
        null="not recorded",
        required=False,
        reveals=_reveals("q", "p"),
    ),
    Column(
        "token",
        "int32",
        "drawn token id",
        null="off by default, for privacy",
        required=False,
        reveals=_reveals("draw"),
    ),
)

REQUESTS: tuple[Column, ...] = (
    Column("request", "int64", "key, unique in the run"),
    Column(
        "external_id",
        "string",
        "salted hash of the caller's id, or the id itself",
        null="unknown",
        required=False,
    ),
    Column("group", "string", "the prompt: unit of folds and of clustered intervals"),
    Column("dataset", "string", "workload"),
    Column("temperature", "float32", "0 makes a greedy row whatever the run says"),
    Column("top_p", "float32", "target side, in (0, 1]", null="off", required=False),
    Column("top_k", "int32", "target side", null="off", required=False),
    Column("min_p", "float32", "target side, in [0, 1]", null="off", required=False),
    Column("seed", "int64", "the request's own seed", null="none given", required=False),
    Column(
        "transforms",
        "string",
        "target-only transforms, comma-separated",
        null="none",
        required=False,
    ),
    Column("prompt_tokens", "int32", "tokens of the prompt", null="unknown", required=False),
    Column("output_tokens", "int32", "tokens emitted", null="not finished", required=False),
    Column("finish_reason", "string", "stop, length or abort", null="not finished", required=False),
)

_UNKNOWN = "unknown"

STEPS: tuple[Column, ...] = (
    Column("step", "int64", "engine step, unique in the run; also steps that graded nothing"),
    Column(
        "unix_ms",
        "int64",
        "wall clock at the verdict, ms since 1970",
        null=_UNKNOWN,
        required=False,
    ),
    Column(
        "num_requests", "int32", "requests in the target's batch", null=_UNKNOWN, required=False
    ),
    Column(
        "num_sampling_requests",
        "int32",
        "requests that sampled a token",
        null=_UNKNOWN,
        required=False,
    ),
    Column(
        "num_non_draft_tokens",
        "int32",
        "prompt and last-emitted tokens in the target's batch",
        null=_UNKNOWN,
        required=False,
    ),
    Column(
        "num_proposed", "int32", "draft tokens proposed in this step", null=_UNKNOWN, required=False
    ),
    Column(
        "num_admitted", "int32", "draft tokens verified in this step", null=_UNKNOWN, required=False
    ),
    Column(
        "num_accepted", "int32", "draft tokens accepted in this step", null=_UNKNOWN, required=False
    ),
    Column("num_emitted", "int32", "tokens emitted in this step", null=_UNKNOWN, required=False),
    Column("num_dropped", "int32", "proposals not logged because the disk was too slow"),
    Column(
        "offered_k",
        "int32",
        "draft tokens asked of the drafter per request",
        null=_UNKNOWN,
        required=False,
    ),
    Column(
        "budget",
        "int32",
        "draft tokens admitted at most",
        null="no adaptive verification",
        required=False,
    ),
    Column("padded_tokens", "int32", "token batch after padding", null=_UNKNOWN, required=False),
    Column(
        "budget_reason",
        "dictionary",
        "why the budget was what it was",
        null="no adaptive verification",
        required=False,
    ),
    Column(
        "mean_context_tokens",
        "float32",
        "mean context length of the batch, tokens",
        null=_UNKNOWN,
        required=False,
    ),
    Column("draft_ms", "float32", "time of drafting, ms", null=_UNKNOWN, required=False),
    Column(
        "verify_ms",
        "float32",
        "time of the target's passes and the verdict, ms",
        null=_UNKNOWN,
        required=False,
    ),
)

TREES: tuple[Column, ...] = (
    Column("request", "int64", "key into requests"),
    Column("step", "int64", "engine step of the proposal, as in drafts"),
    Column("node", "int32", "number of the token in its proposal, from 0; parents come first"),
    Column("parent", "int32", "node that it follows; -1: the last emitted token"),
    Column("rank", "int32", "rank in q, from 0"),
    Column("token_logprob", "float32", "log q of the token, nats"),
)
"""The drafted chain with its alternatives, of runs that were collected with --log-tree."""

DISTRIBUTIONS: tuple[Column, ...] = (
    Column("request", "int64", "key into requests"),
    Column("step", "int64", "engine step of the proposal, as in drafts"),
    Column("slot", "int32", "request-state slot"),
    Column("position", "int16", "draft position k, from 0"),
    Column("tokens", "list<int32>", "token ids that are kept; -1 means all the others"),
    Column("p", "list<float32>", "target's probabilities of these, sum 1"),
    Column("q", "list<float32>", "drafter's probabilities of these, sum 1"),
)
"""A sample of observed positions, of runs that were collected with --log-distributions. It is
written when the run ends, and is no table of `TABLES`."""

TABLES: dict[str, tuple[Column, ...]] = {
    "requests": REQUESTS,
    "drafts": DRAFTS,
    "trees": TREES,
    "steps": STEPS,
}
"""Tables of a run in the order in which they reach the disk: a draft never precedes its request."""

RUN: tuple[Column, ...] = (
    Column("schema_version", "int", "version of the log format"),
    Column("run", "string", "name of the run, also its folder"),
    Column("deployment", "string", "what the run belongs to; replicas share it", null=_UNKNOWN),
    Column("draftlab", "string", "version of the writer"),
    Column("engine", "string", "engine that ran, with its version"),
    Column("target", "string", "target model"),
    Column("drafter", "string", "drafter, with its settings"),
    Column("method", "string", "draft method: layer_skip, draft_model, eagle, ..."),
    Column("drafting", "string", "greedy or probabilistic"),
    Column("verification", "string", "verification method; standard is exact rejection sampling"),
    Column("num_speculative_tokens", "int", "K, the draft tokens per proposal"),
    Column("feature_source", "string", "distribution the features describe: head, selector, ..."),
    Column("adaptive_verification", "string", "off, or the policy that trimmed"),
    Column(
        "estimator_start",
        "object",
        "start state of the engine's own estimator",
        null="no estimator",
    ),
    Column("vocab_size", "int", "entries of q"),
    Column("device", "string", "what it ran on"),
    Column("started", "string", "UTC, ISO 8601"),
    Column("finished", "string", "UTC, ISO 8601", null="not closed"),
    Column("closed", "bool", "False: the writer did not reach its end"),
    Column("rows", "object", "rows written per table", null="not closed"),
    Column(
        "dropped_proposals",
        "int",
        "proposals dropped because the disk was too slow",
        null="not closed",
    ),
    Column("provenance", "object", "versions, command, seed, input hash"),
)
"""Keys of run.json; unknown further keys are kept."""

_DRAFT_REVEALS = {column.name: column.reveals for column in DRAFTS}


def reveals(columns: list[str]) -> frozenset[Reveals]:
    """Return what the named columns of `drafts` together tell beyond the prefix.

    Columns of other tables (a request's temperature, the step's batch) belong to the
    prefix and reveal nothing.
    """
    return frozenset().union(*(_DRAFT_REVEALS.get(name, frozenset()) for name in columns))


def arrow_schema(table: str, columns: list[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of a log table, or of the chosen columns in table order."""
    import pyarrow as pa

    def arrow_type(dtype: str) -> pa.DataType:
        if dtype.startswith("list<"):
            return pa.list_(arrow_type(dtype[5:-1]))
        return pa.string() if dtype == "dictionary" else pa.type_for_alias(dtype)

    return pa.schema(
        [
            pa.field(column.name, arrow_type(column.dtype), nullable=column.null is not None)
            for column in (TABLES | {"distributions": DISTRIBUTIONS})[table]
            if columns is None or column.name in columns
        ]
    )


def required_columns(table: str) -> list[str]:
    """Return the columns that every file of the table must hold."""
    return [column.name for column in TABLES[table] if column.required]
