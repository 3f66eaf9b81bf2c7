"""Logged proposals dealt into batches, and adaptive verification run over all of them at once.

Arrays over proposals: survivals are (K, P), one contiguous row per position, so that a step's
drafts are gathered position by position: (steps, K, slots), the stable order of the budget rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit

from draftlab._types import IntArray, RealArray
from draftlab.online.estimator import Labels
from draftlab.policies.budget import best_prefix, top

if TYPE_CHECKING:
    from draftlab.online.estimator import Estimator

Survivals = RealArray

LEAST_STEPS = 200
"""Steps that a concurrency is run for at least, requests being drawn again where needed."""
_DRAFTS_AT_ONCE = 400_000
"""Drafts whose arrays stay in the processor's cache."""


@dataclass(frozen=True)
class Rule:
    """How a step's budget is found."""

    lag: int = 1
    """Steps by which the confidences are old that size the budget; vLLM 1, DSpark deployed 2,
    same-step search 0. Drafts of a request that has none so old count as certain."""
    cap: int | None = None
    min_gain: float = 0.0
    early_stop: bool = False


def compose(
    starts: IntArray,
    lengths: IntArray,
    concurrency: int,
    rng: np.random.Generator,
    *,
    least_steps: int = LEAST_STEPS,
) -> IntArray:
    """Return which proposal stands in which slot at which step.

    Whole requests, in random order, are laid end to end and the line is cut into as many pieces
    as there are slots: a slot runs its requests one after the other, each in its own order.
    Every request comes once; if that gives fewer than ``least_steps`` steps, or there are fewer
    requests than slots, further requests are drawn with replacement.

    Parameters
    ----------
    starts, lengths : (requests,) int
        First proposal and number of proposals of each request.
    concurrency : int
        Slots.
    rng : Generator

    Returns
    -------
    (steps, slots) int64

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> compose(np.array([0, 3]), np.array([3, 3]), 2, rng, least_steps=1).T.tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    order = rng.permutation(len(starts))
    total = int(lengths.sum())
    wanted = concurrency * max(least_steps, total // concurrency)
    if concurrency > len(starts):
        order = rng.integers(0, len(starts), len(starts))
    while int(lengths[order].sum()) < wanted:
        order = np.concatenate([order, rng.integers(0, len(starts), len(starts))])
    size = lengths[order]
    ends = np.cumsum(size)
    line = np.repeat(starts[order] - (ends - size), size) + np.arange(ends[-1])
    steps = max(1, wanted // concurrency)
    return np.ascontiguousarray(line[: steps * concurrency].reshape(concurrency, steps).T)


def admit_adaptively(
    survivals: RealArray, age: IntArray, rows: IntArray, step_ms: RealArray, rule: Rule
) -> IntArray:
    """Return how many drafts are admitted, by step and slot, under adaptive verification.

    Parameters
    ----------
    survivals : (K, P) float
        Not rising along K.
    age : (P,) int
        Proposals of the same request before this one.
    rows : (steps, slots) int
        As from `compose`.
    step_ms : (slots * K + 1,) float
        Time of a step that verifies 0.. drafts.
    rule : Rule

    Returns
    -------
    (steps, slots) int64
    """
    admitted = np.empty(rows.shape, dtype=np.int64)
    at_once = max(1, _DRAFTS_AT_ONCE // (rows.shape[1] * len(survivals)))
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        live = _gather(survivals, rows[part])
        sizing = live
        if rule.lag:
            sizing = _stale(survivals, age, rows[part], rule.lag)
        admitted[part] = _admit(live, sizing, step_ms, rule)
    return admitted


def _gather(survivals: RealArray, rows: IntArray) -> RealArray:
    out = np.empty((len(rows), len(survivals), rows.shape[1]), dtype=survivals.dtype)
    for k, values in enumerate(survivals):
        out[:, k] = values.take(rows)
    return out


def _stale(survivals: RealArray, age: IntArray, rows: IntArray, lag: int) -> RealArray:
    out = _gather(survivals, rows - lag)  # an index below 0 is overwritten
    np.copyto(out, 1.0, where=(age[rows] < lag)[:, None])
    return out


def _admit(live: RealArray, sizing: RealArray, step_ms: RealArray, rule: Rule) -> IntArray:
    """Return admitted drafts (steps, slots) from survivals (steps, K, slots)."""
    steps, K, slots = live.shape
    ordered = np.sort(sizing.reshape(steps, K * slots), axis=-1)[:, ::-1]
    budget = best_prefix(
        ordered,
        step_ms,
        num_sampling_requests=slots,
        cap=rule.cap,
        min_gain=rule.min_gain,
        early_stop=rule.early_stop,
    )
    chosen = top(live.reshape(steps, K * slots), budget).reshape(live.shape)
    # narrow sums are several times faster; positions fit into int16, as in the log
    narrow = np.add.reduce(chosen.view(np.uint8), axis=1, dtype=np.int16)
    return np.asarray(narrow, dtype=np.int64)


@dataclass(frozen=True)
class Stream:
    """What an online estimator sees of the proposals."""

    feature: RealArray
    """(K, P)."""
    accepted: IntArray
    """(P,): drafts that the target accepts if all are sent."""
    labelled: IntArray
    """(P,): positions whose label exists if all are sent."""
    age: IntArray
    """(P,)."""


def admit_online(
    estimator: Estimator, stream: Stream, rows: IntArray, step_ms: RealArray, rule: Rule
) -> IntArray:
    """Return the drafts admitted by an estimator that learns from what it admitted itself.

    Its labels are censored by its own trimming, as live: a draft that was not admitted never
    gets one. Between two refits all steps are one vectorised pass; the prediction that sizes a
    budget is the one made a step ago, also across a refit.

    Parameters
    ----------
    estimator : Estimator
        Fresh; it is changed.
    stream, rows, step_ms, rule
        As in `admit_adaptively`.

    Returns
    -------
    (steps, slots) int64
    """
    admitted = np.empty(rows.shape, dtype=np.int64)
    before = estimator.slopes.copy(), estimator.intercepts.copy()
    for start in range(0, len(rows), estimator.refit_interval):
        part = slice(start, start + estimator.refit_interval)
        now = estimator.slopes.copy(), estimator.intercepts.copy()
        feature = _gather(stream.feature, rows[part])
        logit = now[0][:, None] * feature + now[1][:, None]
        live = np.cumprod(expit(logit), axis=1)
        sizing = live
        if rule.lag:
            sizing = _stored(stream, rows[part], rule.lag, before, now)
        admitted[part] = _admit(live, sizing, step_ms, rule)
        estimator.learn(_labels(stream, rows[part], admitted[part], feature, logit, start))
        before = now
        estimator.refit()
    return admitted


def _stored(
    stream: Stream,
    rows: IntArray,
    lag: int,
    before: tuple[RealArray, RealArray],
    now: tuple[RealArray, RealArray],
) -> RealArray:
    """Return the survivals that were predicted ``lag`` steps ago, with the coefficients of then."""
    feature = _gather(stream.feature, rows - lag)
    old = (np.arange(len(rows)) < lag)[:, None, None]
    slopes, intercepts = (
        np.where(old, b[:, None], n[:, None]) for b, n in zip(before, now, strict=True)
    )
    out = np.cumprod(expit(slopes * feature + intercepts), axis=1)
    np.copyto(out, 1.0, where=(stream.age[rows] < lag)[:, None])
    return np.asarray(out)


def _labels(
    stream: Stream,
    rows: IntArray,
    admitted: IntArray,
    feature: RealArray,
    logit: RealArray,
    start: int,
) -> Labels:
    position = np.arange(feature.shape[1])[:, None]
    seen = position < np.minimum(admitted, stream.labelled[rows])[:, None]
    step = np.broadcast_to(np.arange(start, start + len(rows))[:, None, None], seen.shape)
    return Labels(
        feature=feature[seen].astype(np.float64),
        position=np.broadcast_to(position, seen.shape)[seen],
        logit=logit[seen].astype(np.float64),
        accepted=(position < stream.accepted[rows][:, None])[seen],
        step=step[seen] + 1,
    )
