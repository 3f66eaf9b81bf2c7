"""Whether acceptance at equal feature values changed over the log: a score test by position.

The mix of prompts may move the feature over time; that is no drift of the model. Held fixed here
are the feature and its fit: the test asks whether later rows are accepted more or less often than
the one fit on all rows says, by position and at all positions alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.special import expit, ndtr

from draftlab.metrics import divide, half_width, sum_by

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.predictors.logistic import Fit

ALPHA = 0.05
_SCHEMA = {
    "position": pl.Int16,
    "n_early": pl.Int64,
    "n_late": pl.Int64,
    "n_prompts": pl.Int64,
    "rate_early": pl.Float64,
    "rate_late": pl.Float64,
    "shift": pl.Float64,
    "shift_low": pl.Float64,
    "shift_high": pl.Float64,
    "z": pl.Float64,
    "p_value": pl.Float64,
    "changed": pl.Boolean,
}


def change_table(
    feature: FloatArray,
    position: IntArray,
    accepted: BoolArray,
    late: BoolArray,
    group: IntArray,
    fit: Fit,
) -> pl.DataFrame:
    """Test, for each position, whether the later rows depart from one fit on all rows.

    Score test of a shift of the intercept in the later rows, with slope and intercepts as
    nuisance (their part of the score is projected out), and the score summed over the rows of a
    group: rows of one prompt do not count as many witnesses.

    Parameters
    ----------
    feature : (n,) float64
    position : (n,) int64
    accepted : (n,) bool
    late : (n,) bool
        The later part of the log.
    group : (n,) int64
        Codes of (run, group).
    fit : Fit
        With a shared slope, of the same rows.

    Returns
    -------
    polars.DataFrame
        One row for all positions at once (null) and one per position: position, n_early, n_late,
        n_prompts, rate_early, rate_late, shift (log-odds, later less earlier, one Newton step),
        shift_low, shift_high (95 %), z, p_value (two-sided), changed (Holm over the positions at
        5 %; the first row by itself; null: no test).
    """
    num_positions = len(fit.intercepts)
    prob = expit(fit.log_odds(feature, position))
    residual, weight = accepted - prob, prob * (1 - prob)
    nuisance = np.zeros((len(feature), num_positions + 1))
    nuisance[:, 0] = feature
    nuisance[np.arange(len(feature)), 1 + position] = 1.0
    information = np.linalg.pinv(nuisance.T @ (nuisance * weight[:, None]))
    _, codes = np.unique(group, return_inverse=True)
    tables = []
    for k in [None, *range(num_positions)]:
        here = np.ones_like(late) if k is None else position == k
        direction = (late & here).astype(np.float64)
        # what slope and intercepts would take up of the shift
        direction -= nuisance @ (information @ (nuisance.T @ (weight * direction)))
        tables.append(
            {
                **_row(k, here, late, accepted, codes),
                **_score(direction * residual, float(direction**2 @ weight), codes),
            }
        )
    table = pl.DataFrame(tables, schema={n: t for n, t in _SCHEMA.items() if n != "changed"})
    p_values = table["p_value"].to_numpy()
    verdicts = [_verdict(p_values[0], p_values[0] <= ALPHA)]
    verdicts += [
        _verdict(p, c) for p, c in zip(p_values[1:], holm(p_values[1:], ALPHA), strict=True)
    ]
    return table.with_columns(changed=pl.Series(verdicts, dtype=pl.Boolean))


def holm(p_values: FloatArray, alpha: float) -> BoolArray:
    """Return which hypotheses Holm's step-down rejects; NaN is never rejected nor counted.

    Examples
    --------
    >>> holm(np.array([0.01, 0.04, 0.03, np.nan]), 0.05).tolist()
    [True, False, False, False]
    """
    known = int(np.isfinite(p_values).sum())
    rejected = np.zeros(len(p_values), dtype=np.bool_)
    for rank, index in enumerate(np.argsort(p_values)[:known].tolist()):
        if p_values[index] > alpha / (known - rank):
            break
        rejected[index] = True
    return rejected


def _row(
    k: int | None, here: BoolArray, late: BoolArray, accepted: BoolArray, codes: IntArray
) -> dict[str, float | int | None]:
    early_rows, late_rows = here & ~late, here & late
    n_early, n_late = int(early_rows.sum()), int(late_rows.sum())
    return {
        "position": k,
        "n_early": n_early,
        "n_late": n_late,
        "n_prompts": len(np.unique(codes[here])),
        "rate_early": float(divide(accepted[early_rows].sum(), n_early)),
        "rate_late": float(divide(accepted[late_rows].sum(), n_late)),
    }


def _score(scores: FloatArray, information: float, codes: IntArray) -> dict[str, float]:
    by_group = sum_by(codes, scores, int(codes.max(initial=-1)) + 1)
    active = int(np.count_nonzero(by_group))
    if active < 2 or information <= 1e-9:
        return dict.fromkeys(("shift", "shift_low", "shift_high", "z", "p_value"), float("nan"))
    deviation = float(np.sqrt((by_group**2).sum() * active / (active - 1)))
    total = float(by_group.sum())
    z = total / deviation
    shift = total / information
    entry = np.zeros(active, dtype=np.int64)
    [half] = half_width(by_group[by_group != 0] / information, entry, 1).tolist()
    return {
        "shift": shift,
        "shift_low": shift - half,
        "shift_high": shift + half,
        "z": z,
        "p_value": float(2 * ndtr(-abs(z))),
    }


def _verdict(p_value: float, changed: bool) -> bool | None:
    return bool(changed) if np.isfinite(p_value) else None
