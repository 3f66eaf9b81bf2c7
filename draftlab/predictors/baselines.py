"""The predictors that are graded: fitted features, raw probabilities, floors and ceilings.

Every predictor is log-odds w_k x + b_k. A raw probability has w = 1 and b = 0 with x its
log-odds; a floor has w = 0. One form, one code path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl

from draftlab._types import FloatArray
from draftlab.errors import InputError
from draftlab.features import FEATURES, LOG_ODDS_LIMIT, Drafting, Feature, beyond, clamp
from draftlab.predictors.logistic import (
    Fit,
    Positions,
    fit_constant,
    fit_logistic,
    fit_rates,
)

if TYPE_CHECKING:
    from draftlab._types import BoolArray

ADOPTED = "logit_qmax"
"""The predictor that vLLM adopted: the others are compared with it."""


class Fitter(Protocol):
    """Learns slopes and intercepts from training rows."""

    def __call__(
        self,
        feature: FloatArray,
        position: Positions,
        accepted: BoolArray,
        num_positions: int,
        /,
    ) -> Fit:
        """Fit (n,) rows; K intercepts."""
        ...


@dataclass(frozen=True)
class Predictor:
    """A probability of conditional acceptance, as log-odds.

    Examples
    --------
    >>> PREDICTORS["accept_prob"].fitted, PREDICTORS["accept_prob"].lossless("probabilistic")
    (False, False)
    """

    name: str
    doc: str
    feature: Feature | None
    """What it reads of a row besides the position; None for the floors."""
    fit: Fitter | None
    """None: the feature is taken as log-odds of acceptance, as it is."""

    @property
    def fitted(self) -> bool:
        """Whether it learns anything from labels."""
        return self.fit is not None

    @property
    def columns(self) -> list[str]:
        """Raw columns of `drafts` that it reads."""
        return [] if self.feature is None else self.feature.columns

    def lossless(self, drafting: Drafting) -> bool:
        """Whether deciding on it keeps the target's distribution, derived from its columns."""
        return self.feature is None or self.feature.lossless(drafting)


def _log_odds_of(column: str) -> Feature:
    """Return a column of probabilities as log-odds; 0, 1 and float32 excess are clamped."""
    prob = pl.col(column).cast(pl.Float64).clip(0.0, 1.0)
    log_odds = prob.log() - (-prob).log1p()
    return Feature(
        column,
        log_odds.clip(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT),
        f"log-odds of {column}, nats, in [-40, 40]",
        log_odds.abs() > LOG_ODDS_LIMIT,
    )


PREDICTORS: dict[str, Predictor] = {
    predictor.name: predictor
    for predictor in (
        *(Predictor(f.name, f.doc, f, fit_logistic) for f in FEATURES.values()),
        Predictor("qmax", "max q itself, not fitted", FEATURES["logit_qmax"], None),
        Predictor(
            "confidence",
            "the drafter's trained head, as it is",
            Feature("confidence", clamp("confidence"), "logit, in [-40, 40]", beyond("confidence")),
            None,
        ),
        Predictor("constant", "floor: one rate for all", None, fit_constant),
        Predictor("per_position", "floor: one rate per position", None, fit_rates),
        Predictor(
            "overlap",
            "ceiling: sum of min(p, q), best of all that see only the prefix",
            _log_odds_of("overlap"),
            None,
        ),
        Predictor(
            "accept_prob",
            "ceiling: min(1, p/q) of the drawn token, best of all that see the draw",
            _log_odds_of("accept_prob"),
            None,
        ),
    )
}
"""Every predictor by name: those of the published table in its order, then floors and ceilings."""


def compute_feature(predictor: Predictor, frame: pl.DataFrame) -> FloatArray:
    """Return a predictor's feature of each row, (n,) float64; zeros for a floor.

    Raises
    ------
    InputError
        A value is not finite.
    """
    if predictor.feature is None:
        return np.zeros(len(frame))
    column = frame.select(predictor.feature.expr.cast(pl.Float64)).to_series()
    values = np.asarray(column.to_numpy(), dtype=np.float64)
    num_bad = int(np.count_nonzero(~np.isfinite(values)))
    if num_bad:
        raise InputError(
            f"feature of {predictor.name} is not finite on {num_bad} of {len(frame)} rows"
        )
    return values


class Features(Mapping[str, FloatArray]):
    """Features by predictor, computed when they are asked for: logs have millions of rows."""

    def __init__(self, predictors: Sequence[Predictor], frame: pl.DataFrame) -> None:
        self._predictors = {predictor.name: predictor for predictor in predictors}
        self._frame = frame

    def __getitem__(self, name: str) -> FloatArray:
        return compute_feature(self._predictors[name], self._frame)

    def __iter__(self) -> Iterator[str]:
        return iter(self._predictors)

    def __len__(self) -> int:
        return len(self._predictors)

    def clamped(self, name: str) -> BoolArray:
        """Return on which rows the feature's raw value lies beyond the clamp."""
        feature = self._predictors[name].feature
        if feature is None:
            return np.zeros(len(self._frame), dtype=np.bool_)
        marked = self._frame.select(pl.repeat(value=False, n=pl.len()) | feature.clamped)
        return np.asarray(marked.to_series().to_numpy())
