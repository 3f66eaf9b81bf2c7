"""Does a predictor or policy keep the target's distribution? Proved, derived and measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from draftlab import schema
from draftlab.errors import InputError
from draftlab.log.reader import DraftLog, Run, find_parts, open_any
from draftlab.plugins import Plugin, as_plugin
from draftlab.policies.adaptive import coefficients_of
from draftlab.predictors.baselines import PREDICTORS, Predictor
from draftlab.predictors.survival import SURVIVAL
from draftlab.results import Note, Result, as_names, study, tidy
from draftlab.studies.audit.conformity import (
    SamplingTest,
    audit_engine,
    check_samples,
    compare_samples,
    sample_size,
)
from draftlab.studies.audit.distributions import (
    EXACT,
    TAIL,
    Distributions,
    candidate_columns,
    output_error,
)
from draftlab.studies.audit.proofs import enumerate_policies, prove
from draftlab.studies.evaluate import evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from draftlab._types import FloatArray
    from draftlab.features import Drafting


THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
"""Predicted acceptance under which a draft is trimmed, in the measured part."""
DISTRIBUTIONS = "distributions"
"""Folder of a run with the (p, q) rows that the reference engine kept."""
_COLUMNS: dict[str, Any] = {
    "kind": pl.String,
    "name": pl.String,
    "run": pl.String,
    "pair": pl.String,
    "drafting": pl.String,
    "threshold": pl.Float64,
    "lossless": pl.Boolean,
    "total_variation": pl.Float64,
    "total_variation_max": pl.Float64,
    "trimmed_share": pl.Float64,
    "n": pl.Int64,
    "passed": pl.Boolean,
    "reason": pl.String,
}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Audit(Result):
    """Tidy result of `audit`."""

    command = "audit"
    verdicts = ("passed",)

    checks: pl.DataFrame = tidy(
        """One row per check: kind (``proof``: the two-token examples; ``joint``: policies by exact
        enumeration; ``derived``: predictors, from what they read; ``measured``: on kept (p, q)
        rows; ``engine``: samples against exact probabilities), name, run, pair, drafting,
        threshold, lossless (what theory says), total_variation (exact, or the mean over rows),
        total_variation_max, trimmed_share (drafts under the threshold), n (rows or samples), passed
        (theory and number agree; null: undecided or nothing to compare), reason."""
    )

    @property
    def passed(self) -> bool:
        """Whether no check contradicts what theory says, and no engine failed."""
        return bool((self.checks["passed"].fill_null(value=True)).all())


@study
def audit(
    log: DraftLog | str | Path | Sequence[str | Path] | None = None,
    *,
    predictors: str | Sequence[str] | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    plugin: Plugin | str | Path | Sequence[str | Path] | None = None,
    engine: dict[str, SamplingTest] | None = None,
    out: str | Path | None = None,
) -> Audit:
    """Audit losslessness: of the theory, of predictors, and on a log's own distributions.

    Parameters
    ----------
    log : path, paths or DraftLog, optional
        Without one the proofs and what is derived come alone. Runs that were collected with
        ``--log-distributions`` are measured.
    predictors : str or sequence of str, optional
        Names in `PREDICTORS`, or of the plugin; all unless told.
    thresholds : sequence of float
        The measured rule verifies a draft if its predicted acceptance is at least this.
    plugin : Plugin, path or paths, optional
        A user's features and predictors, as in `evaluate`.
    engine : dict of name to SamplingTest, optional
        Verdicts of `audit_engine` or `compare_samples`, to stand in the table.
    out : path, optional
        Write the result there.

    Returns
    -------
    Audit

    Raises
    ------
    InputError
        An unknown predictor, a threshold outside [0, 1], an unreadable log.

    Examples
    --------
    >>> result = audit(predictors=["logit_qmax", "logit_q_sampled"])
    >>> derived = result.checks.filter(kind="derived", drafting="probabilistic")
    >>> dict(zip(derived["name"], derived["lossless"]))
    {'logit_qmax': True, 'logit_q_sampled': False, 'hybrid': True, 'oracle': True}
    >>> result.passed
    True
    """
    added = as_plugin(plugin)
    asked = added.choose_predictors(as_names(predictors))
    for threshold in thresholds:
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold must lie in [0, 1], got {threshold}")
    if log is None and tuple(thresholds) != THRESHOLDS:
        raise InputError("--threshold says nothing without a log: the rule is measured on one")
    opened = None if log is None else open_any(log)
    rows = [*_proof_rows(), *_engine_rows(engine or {})]
    notes: list[Note] = []
    draftings: list[Drafting] = ["probabilistic", "greedy"]
    if opened is not None:
        draftings = list(dict.fromkeys(run.metadata["drafting"] for run in opened.runs))
    for drafting in draftings:
        rows += derive(asked, drafting)
    for run in () if opened is None else opened.runs:
        rows += _measure_run(run, asked, thresholds, added, notes)
    return Audit(
        checks=pl.DataFrame(rows, schema=_COLUMNS),
        notes=notes,
        settings={
            "predictors": [p.name for p in asked],
            "thresholds": list(thresholds),
            "runs": [] if opened is None else [run.name for run in opened.runs],
        },
        provenance={},
    )


def _proof_rows() -> list[dict[str, Any]]:
    return [
        _row(kind, p.name, p.lossless, p.total_variation, p.passed, p.reason)
        for kind, proofs in (("proof", prove()), ("joint", enumerate_policies()))
        for p in proofs
    ]


def _row(
    kind: str, name: str, lossless: bool, error: Any, passed: bool | None, reason: str, **more: Any
) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "lossless": lossless,
        "total_variation": None if error is None else float(error),
        "passed": passed,
        "reason": reason,
        **more,
    }


def derive(predictors: Sequence[Predictor], drafting: Drafting) -> list[dict[str, Any]]:
    """Return whether deciding on each predictor is lossless, with the reason.

    Survivals are products of conditionals: the factors before k may read their tokens, which
    are the prefix of k, so that the factor at k decides alone. `SURVIVAL` follows.
    """
    rows = []
    for predictor in predictors:
        lossless, reason = _reason(predictor, drafting)
        rows.append(
            _row("derived", predictor.name, lossless, None, None, reason, drafting=drafting)
        )
    for name, survival in SURVIVAL.items():
        lossless, reason = _reason(PREDICTORS[survival.at_draw], drafting)
        reason = f"the factor at k is {survival.at_draw}: {reason}; before k it reads the prefix"
        rows.append(_row("derived", name, lossless, None, None, reason, drafting=drafting))
    return rows


def _reason(predictor: Predictor, drafting: Drafting) -> tuple[bool, str]:
    lossless = predictor.lossless(drafting)
    if predictor.feature is None:
        return lossless, "reads the position only"
    reads = ", ".join(predictor.columns)
    known = predictor.feature.known
    if not lossless:
        return lossless, f"reads {reads}, a function of the drawn token x_k"
    if drafting == "greedy" and "draw" in _reveals(predictor):
        return lossless, f"reads {reads}; greedy drafts make x_k a function of the prefix"
    if known == "verify":
        return lossless, f"reads {reads}: functions of p and q; known too late to decide on"
    return lossless, f"reads {reads}: functions of q_k, known before x_k is drawn"


def _reveals(predictor: Predictor) -> frozenset[Any]:
    return schema.reveals(predictor.columns)


def read_distributions(folder: str | Path) -> Distributions | None:
    """Read the (p, q) rows of a run's folder; None where it has none.

    Stored are tokens (list of int32, -1 for the rest of the vocabulary), p and q (lists of
    float32) per position; here they sum to 1 in float64.
    """
    parts = find_parts(folder, DISTRIBUTIONS)
    if not parts:
        return None
    table = pl.read_parquet(parts, columns=["position", "tokens", "p", "q"])
    if table.is_empty():
        return None
    sizes = table["tokens"].list.len().to_numpy().astype(np.int64)
    flat = table.select(pl.col("tokens", "p", "q").explode())
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = Distributions(
        position=table["position"].to_numpy().astype(np.int64),
        starts=starts,
        tail=flat["tokens"].to_numpy() == TAIL,
        p=flat["p"].to_numpy().astype(np.float64),
        q=flat["q"].to_numpy().astype(np.float64),
    )
    p, q = (x / rows.spread(rows.total(x)) for x in (rows.p, rows.q))
    return Distributions(rows.position, starts, rows.tail, p, q)


def measure(
    rows: Distributions,
    predictors: Sequence[Predictor],
    coefficients: dict[str, tuple[FloatArray, FloatArray]],
    thresholds: Sequence[float],
    drafting: Drafting,
) -> list[dict[str, Any]]:
    """Return the exact error of trimming by each predictor at each threshold.

    Parameters
    ----------
    rows : Distributions
    predictors : sequence of Predictor
        Those that read a column the rows do not tell (a trained head) are left out.
    coefficients : dict of name to (slopes, intercepts), K each
        What turns features into log-odds; slope 1 and intercept 0 unless given.
    thresholds : sequence of float
    drafting : {"greedy", "probabilistic"}

    Returns
    -------
    list of dict
        Columns as in `Audit.checks`.
    """
    frame = pl.DataFrame(candidate_columns(rows))
    position = rows.spread(rows.position.astype(np.float64)).astype(np.int64)
    found = []
    for predictor in predictors:
        if not set(predictor.columns) <= set(frame.columns):
            continue
        feature = np.zeros(len(position))
        if predictor.feature is not None:
            feature = frame.select(predictor.feature.expr).to_series().to_numpy()
        slopes, intercepts = coefficients.get(predictor.name, (np.ones(1), np.zeros(1)))
        k = position if len(slopes) > 1 else np.zeros_like(position)
        log_odds = slopes[k] * feature + intercepts[k]
        lossless = predictor.lossless(drafting)
        for threshold in thresholds:
            admitted = log_odds >= _logit(threshold)
            error = output_error(rows, admitted)
            found.append(
                _row(
                    "measured",
                    predictor.name,
                    lossless,
                    error.mean(),
                    # a rule that trims nothing is exact whatever it reads
                    bool(error.max() <= EXACT) if lossless else None,
                    "exact output of each kept (p, q) row, averaged over rows",
                    drafting=drafting,
                    threshold=threshold,
                    total_variation_max=float(error.max()),
                    trimmed_share=float(rows.total(np.where(admitted, 0.0, rows.q)).mean()),
                    n=len(rows),
                )
            )
    return found


def _logit(probability: float) -> float:
    if probability in (0.0, 1.0):
        return float("-inf") if probability == 0 else float("inf")
    return float(np.log(probability) - np.log1p(-probability))


def _measure_run(
    run: Run,
    predictors: Sequence[Predictor],
    thresholds: Sequence[float],
    plugin: Plugin,
    notes: list[Note],
) -> list[dict[str, Any]]:
    rows = read_distributions(run.path)
    if rows is None:
        text = "the run keeps no distributions, so nothing is measured on it (collect with "
        notes.append(Note("no_distributions", f"{text}--log-distributions)", run.name))
        return []
    drafting: Drafting = run.metadata["drafting"]
    fitted = [p.name for p in predictors if p.fitted]
    coefficients = {}
    if fitted:
        try:
            fits = evaluate(run.path, predictors=fitted, in_sample=True, plugin=plugin).coefficients
        except InputError as error:
            text = f"predictors could not be fitted, so only raw ones are measured: {error}"
            notes.append(Note("not_fitted", text, run.name))
            predictors = [p for p in predictors if not p.fitted]
        else:
            coefficients = coefficients_of(fits)
    found = measure(rows, predictors, coefficients, thresholds, drafting)
    return [row | {"run": run.name, "pair": run.pair} for row in found]


def _engine_rows(tests: dict[str, SamplingTest]) -> list[dict[str, Any]]:
    return [
        _row(
            "engine",
            name,
            True,
            test.total_variation,
            test.passed,
            test.sentence,
            n=test.n,
        )
        for name, test in tests.items()
    ]


__all__ = [
    "Audit",
    "SamplingTest",
    "audit",
    "audit_engine",
    "check_samples",
    "compare_samples",
    "sample_size",
]
