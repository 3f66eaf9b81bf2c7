"""How far the estimators of one deployment's runs part: tensor-parallel ranks, or replicas.

Tensor-parallel ranks see the same drafts and verdicts, so their estimators must agree to the last
bit; where they part, the ranks would trim differently and the engine could hang. Data-parallel
replicas see different traffic: how far they part says what one estimator of all would change.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from draftlab.online.estimator import probability
from draftlab.online.vllm import FEATURE_LIMIT
from draftlab.results import Note
from draftlab.studies.replay.rows import column_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from draftlab._types import FloatArray
    from draftlab.features import Feature
    from draftlab.log.reader import DraftLog, Run

_ROWS = 100_000
"""Labelled rows that the deciles of a feature are taken from."""
_SCHEMA = {
    "pair": pl.String, "drafting": pl.String, "deployment": pl.String, "run_a": pl.String,
    "run_b": pl.String, "estimator": pl.String, "n_refits": pl.Int64, "same_counts": pl.Boolean,
    "identical": pl.Boolean, "parted_refit": pl.Int64, "parted_step": pl.Int64,
    "max_logit_difference": pl.Float64, "mean_logit_difference": pl.Float64,
    "max_probability_difference": pl.Float64,
}  # fmt: skip


def compare(
    log: DraftLog,
    coefficients: pl.DataFrame,
    features: Mapping[str, str],
    derived: Mapping[str, Feature] | None = None,
) -> pl.DataFrame:
    """Compare every two runs of a deployment, estimator by estimator, at equal refits.

    Parameters
    ----------
    log : DraftLog
        Runs belong together where run.json names one ``deployment``, with pair, drafting and K.
    coefficients : DataFrame
        Of `draftlab.studies.replay.replay.Replay`.
    features : mapping of estimator to the feature that it reads
    derived : mapping of name to Feature, optional
        Features that the log has no column of.

    Returns
    -------
    DataFrame
        pair, drafting, deployment, run_a, run_b, estimator, n_refits (both have them),
        same_counts (each refit learnt from as many labels; null where they are not counted),
        identical (coefficients equal to the last bit, as many refits), parted_refit and
        parted_step (the first that differ), and over the positions and the nine deciles of
        run_a's feature, after each refit: largest and mean difference of the predicted log-odds
        (nats), largest one of the probability.
    """
    rows = []
    computed = derived or {}
    for a, b in _siblings(log):
        for estimator, feature in features.items():
            track_a, track_b = (_track(coefficients, run, estimator) for run in (a, b))
            names = {
                "pair": a.pair,
                "drafting": a.metadata["drafting"],
                "deployment": a.metadata["deployment"],
                "run_a": a.name,
                "run_b": b.name,
                "estimator": estimator,
            }
            value = computed[feature].expr if feature in computed else pl.col(column_of(feature))
            rows.append(names | _difference(track_a, track_b, _deciles(a, value)))
    return pl.DataFrame(rows, schema=_SCHEMA)


def describe(table: pl.DataFrame) -> list[Note]:
    """Return what the comparison found, a note for every two runs; of the first estimator."""
    rows = table.unique(["run_a", "run_b"], keep="first", maintain_order=True).to_dicts()
    return [_describe_pair(row) for row in rows]


def _describe_pair(row: dict[str, Any]) -> Note:
    parted = (
        f"from refit {row['parted_refit']} at step {row['parted_step']} on, by up to "
        f"{row['max_probability_difference']:.4f} of the acceptance probability"
    )
    if not row["n_refits"]:
        code, text = "no_common_refit", "they share no refit, so there is nothing to compare"
    elif row["identical"]:
        code, text = "ranks_agree", f"ranks agree to the last bit over {row['n_refits']} refits"
    elif row["parted_refit"] is None:
        code, text = "ranks_alike", f"they agree over the {row['n_refits']} refits that both have"
    elif row["same_counts"]:
        code, text = (
            "ranks_part",
            f"they learn from as many labels, as ranks do, but differ {parted}",
        )
    else:
        code, text = "replicas_part", f"they are replicas of different traffic and differ {parted}"
    return Note(code, f"{row['run_a']} and {row['run_b']}, {row['estimator']}: {text}")


def _siblings(log: DraftLog) -> list[tuple[Run, Run]]:
    keys = ("deployment", "drafting", "num_speculative_tokens")
    return [
        (a, b)
        for a, b in itertools.combinations(log.runs, 2)
        if a.metadata.get("deployment") is not None
        and a.pair == b.pair
        and all(a.metadata.get(key) == b.metadata.get(key) for key in keys)
    ]


def _track(coefficients: pl.DataFrame, run: Run, estimator: str) -> dict[str, Any]:
    """Return slopes, intercepts and counts, [refits + 1, K], with the refits and their steps."""
    rows = coefficients.filter(run=run.name, estimator=estimator).sort("refit", "position")
    K = rows["position"].n_unique()
    track: dict[str, Any] = {
        name: rows[name].to_numpy().reshape(-1, K) for name in ("slope", "intercept", "count")
    }
    first = rows.filter(position=0)
    return track | {"refit": first["refit"].to_list(), "step": first["step"].to_list()}


def _difference(a: dict[str, Any], b: dict[str, Any], grid: FloatArray) -> dict[str, Any]:
    n = min(len(a["refit"]), len(b["refit"]))
    equal = np.ones(n, dtype=bool)
    for name in ("slope", "intercept"):
        x, y = a[name][:n], b[name][:n]
        equal &= ((x == y) | (np.isnan(x) & np.isnan(y))).all(axis=1)
    counts = a["count"][:n], b["count"][:n]
    parted = int(np.argmin(equal)) if not equal.all() else None
    logits = [t["slope"][:n, :, None] * grid + t["intercept"][:n, :, None] for t in (a, b)]
    apart = np.abs(logits[0] - logits[1])
    apart_prob = np.abs(probability(logits[0]) - probability(logits[1]))
    return {
        "n_refits": a["refit"][n - 1],
        "same_counts": bool((counts[0] == counts[1]).all()) if counts[0].any() else None,
        "identical": parted is None and len(a["refit"]) == len(b["refit"]),
        "parted_refit": None if parted is None else a["refit"][parted],
        "parted_step": None if parted is None else a["step"][parted],
        "max_logit_difference": float(apart.max()),
        "mean_logit_difference": float(apart.mean()),
        "max_probability_difference": float(apart_prob.max()),
    }


def _deciles(run: Run, feature: pl.Expr) -> FloatArray:
    """Return the deciles of a feature over the first labelled rows, clipped as stored."""
    values = (
        run.scan("drafts")
        .filter(pl.col("accepted").is_not_null(), feature.is_not_null())
        .select(feature=feature.cast(pl.Float64).clip(-FEATURE_LIMIT, FEATURE_LIMIT))
        .head(_ROWS)
        .collect()["feature"]
        .to_numpy()
    )
    return np.asarray(np.quantile(values, np.arange(1, 10) / 10))
