"""The predictors that are graded: fitted features, raw probabilities, floors and ceilings.

Every predictor is log-odds w_k x + b_k. A raw probability has w = 1 and b = 0 with x its
log-odds; a floor has w = 0. One form, one code path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl

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
    from draftlab.metrics import BoolArray, FloatArray


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


def compute_features(
    predictors: list[Predictor], frame: pl.DataFrame
) -> tuple[dict[str, FloatArray], dict[str, BoolArray]]:
    """Return each predictor's feature (zeros for a floor) and where it was clamped."""
    read = {p.name: p.feature for p in predictors if p.feature is not None}
    values = frame.with_columns(**{name: feature.expr for name, feature in read.items()})
    beyond = frame.with_columns(**{name: feature.clamped for name, feature in read.items()})
    features: dict[str, FloatArray] = {}
    clamped: dict[str, BoolArray] = {}
    for predictor in predictors:
        name = predictor.name
        if name in read:
            features[name] = values[name].cast(pl.Float64).to_numpy()
            clamped[name] = beyond[name].to_numpy()
        else:
            features[name] = np.zeros(len(frame))
            clamped[name] = np.zeros(len(frame), dtype=np.bool_)
        num_bad = int(np.count_nonzero(~np.isfinite(features[name])))
        if num_bad:
            raise InputError(f"feature of {name} is not finite on {num_bad} of {len(frame)} rows")
    return features, clamped
