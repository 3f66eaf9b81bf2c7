"""Features of a draft token: columns derived from the log, and what each may be used for.

A feature is a row-wise polars expression over columns of `drafts`. When it is known, and
whether a decision that reads it keeps speculative decoding lossless, is derived from the
columns it reads (`schema.reveals`), never declared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import polars as pl

from draftlab import schema
from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

Known = Literal["before_draw", "after_draw", "verify"]
"""When a value is there: before x_k is drawn, after it is drawn, or after the target's pass."""
Drafting = Literal["greedy", "probabilistic"]

LOG_ODDS_LIMIT = 40.0
"""Log-odds and margins are clamped at +-40 nats; vLLM's estimator has the same limit."""

_COLUMNS = {column.name for column in schema.DRAFTS}


@dataclass(frozen=True)
class Feature:
    """A column derived from the raw columns of one draft row.

    Examples
    --------
    >>> import polars as pl
    >>> margin = Feature("half_margin", pl.col("top2_margin") / 2, "half the margin, nats")
    >>> margin.known, margin.lossless("probabilistic")
    ('before_draw', True)
    >>> Feature("drawn", pl.col("logit_q_sampled"), "nats").lossless("probabilistic")
    False

    Raises
    ------
    InputError
        The expression reads the outcome, a column that `drafts` lacks, or other rows.
    """

    name: str
    expr: pl.Expr
    """Float64, finite wherever the columns are not null."""
    doc: str
    """One line with unit and range."""
    clamped: pl.Expr = field(default_factory=lambda: pl.lit(value=False))
    """True on rows whose raw value lies beyond the limit at which ``expr`` clamps it."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.columns) - _COLUMNS)
        if unknown:
            raise InputError(
                f"feature {self.name!r} reads {unknown}, but drafts holds {sorted(_COLUMNS)}"
            )
        if "outcome" in schema.reveals(self.columns):
            raise InputError(
                f"feature {self.name!r} reads {self.columns}, which hold the outcome that it "
                "should predict"
            )
        if not _is_row_wise(self.expr):
            raise InputError(
                f"feature {self.name!r} reads other rows than its own, so what it reveals "
                "cannot be derived"
            )

    @property
    def columns(self) -> list[str]:
        """Raw columns that the expression reads."""
        return sorted(set(self.expr.meta.root_names()))

    @property
    def known(self) -> Known:
        """When the feature is there, derived from its columns."""
        return known(self.columns)

    def lossless(self, drafting: Drafting) -> bool:
        """Whether deciding on it keeps the target's distribution, derived from its columns."""
        return lossless(self.columns, drafting)


# Distinct measurements, one of them null, under keys that repeat: a shift, a sum over rows, a
# rolling mean or a filled null shows on them.
_PROBE = pl.DataFrame(
    {
        column.name: pl.Series([0, 3, None, 6, 1, 4, 2, 5], dtype=pl.Float32)
        if column.dtype == "float32"
        else pl.Series([0, 0, 0, 1, 1, 1, 1, 0], dtype=pl.Int32)
        for column in schema.DRAFTS
    }
)


def _is_row_wise(expr: pl.Expr) -> bool:
    """Whether each value depends on its own row alone, tried on a few rows."""
    rows = [_PROBE[i : i + 1] for i in range(len(_PROBE))]
    alone = pl.concat([row.with_columns(value=expr) for row in rows])
    return _PROBE.with_columns(value=expr).equals(alone)


def known(columns: Iterable[str]) -> Known:
    """Return when a function of these columns of `drafts` is known.

    Examples
    --------
    >>> known(["logit_qmax"]), known(["logit_q_sampled"]), known(["overlap"])
    ('before_draw', 'after_draw', 'verify')
    """
    revealed = schema.reveals(list(columns))
    if "p" in revealed:
        return "verify"
    return "after_draw" if "draw" in revealed else "before_draw"


def lossless(columns: Iterable[str], drafting: Drafting) -> bool:
    """Return whether a decision about x_k that reads these columns may not depend on x_k.

    Under greedy drafting x_k is itself a function of the prefix. A function of p and q alone
    (`overlap`) is lossless too, though nobody has it in time: a ceiling, not a method.

    Examples
    --------
    >>> lossless(["accept_prob"], "probabilistic"), lossless(["accept_prob"], "greedy")
    (False, True)
    """
    return drafting == "greedy" or "draw" not in schema.reveals(list(columns))


def clamp(column: str) -> pl.Expr:
    """Return a column of log-odds or margins as float64 within +-`LOG_ODDS_LIMIT`."""
    return pl.col(column).cast(pl.Float64).clip(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)


def beyond(column: str) -> pl.Expr:
    """Return where `clamp` changes a column."""
    return pl.col(column).abs() > LOG_ODDS_LIMIT


def _neg_log(log_odds: pl.Expr) -> pl.Expr:
    """-log sigmoid(l) = softplus(-l), without overflow and without losing the tail."""
    return pl.max_horizontal(-log_odds, 0.0) + (-log_odds.abs()).exp().log1p()


FEATURES: dict[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature("log_qmax", -_neg_log(clamp("logit_qmax")), "log max q, nats, <= 0",
                beyond("logit_qmax")),
        Feature("top2_margin", clamp("top2_margin"), "log q1 - log q2, nats, in [0, 40]",
                beyond("top2_margin")),
        Feature("entropy", pl.col("entropy").cast(pl.Float64), "H(q), nats, >= 0"),
        Feature("loglog_qmax", -_neg_log(clamp("logit_qmax")).log(),
                "-log(-log max q), in [-3.7, 40]", beyond("logit_qmax")),
        Feature("logit_qmax", clamp("logit_qmax"),
                "log-odds of max q, nats, in [-40, 40]; adopted by vLLM", beyond("logit_qmax")),
        Feature("logit_q_sampled", clamp("logit_q_sampled"),
                "log-odds of q(x_k), nats, in [-40, 40]", beyond("logit_q_sampled")),
        Feature("loglog_q_sampled", -_neg_log(clamp("logit_q_sampled")).log(),
                "-log(-log q(x_k)), in [-3.7, 40]", beyond("logit_q_sampled")),
    )
}  # fmt: skip
"""The fitted features, in the order of the published table."""
