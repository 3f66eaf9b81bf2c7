"""Logged proposals as arrays, and what predictors say of their survival."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.grading.cells import ADMITTED, PLACED, Cell
from draftlab.grading.folds import assign_folds, fold_by_prompt
from draftlab.grading.grid import ProposalGrid, make_grid
from draftlab.predictors.calibration import fit_sts
from draftlab.predictors.survival import SURVIVAL, product
from draftlab.schema import Excluded
from draftlab.studies.simulate.batches import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab._types import FloatArray, IntArray
    from draftlab.predictors.baselines import Predictor
    from draftlab.predictors.logistic import Fit

Survivals = np.ndarray[Any, np.dtype[np.floating[Any]]]
"""(K, P)."""

TRAINING_ROWS = 300_000
"""Rows that a fit uses at most; its coefficients are then good to about 0.01."""
ISOTONIC_ROWS = 50_000
STS_PROPOSALS = 50_000
STS = "-sts"
"""``NAME-sts``: an unfitted predictor behind sequential temperature scaling."""
_AFTER_STOP = int(Excluded.AFTER_STOP)


@dataclass(frozen=True, kw_only=True)
class CompleteProposals(ProposalGrid):
    """Complete, graded proposals of one cell, requests one after the other.

    ``survived`` is the verdict as it was, also behind the end of a request.
    """

    accepted: IntArray
    """(P,): drafts emitted if all are sent."""
    bonus: IntArray
    """(P,): 1, or 0 where the request ends inside the drafts."""
    age: IntArray
    """(P,): proposals of the same request before this one."""
    requests: IntArray
    """(requests,): keys in their run."""
    starts: IntArray
    """(requests,): first proposal."""
    lengths: IntArray
    """(requests,): number of proposals."""
    keys: pl.DataFrame
    """run, request and step of each of the P proposals."""
    num_dropped: int
    """Proposals left out: not graded, not sent whole, or with a row excluded, save by a stop."""

    @property
    def labelled(self) -> IntArray:
        """(P,): positions whose label exists if all are sent."""
        return np.asarray(np.minimum(self.accepted + self.bonus, self.num_positions))

    def stream(self, feature: FloatArray) -> Stream:
        """Return what an online estimator sees, from a feature (P, K)."""
        return Stream(np.ascontiguousarray(feature.T), self.accepted, self.labelled, self.age)


def read_proposals(cell: Cell, columns: Sequence[str], *, num_folds: int) -> CompleteProposals:
    """Read the proposals of a cell whose drafts were all sent and graded.

    Raises
    ------
    InputError
        None is left.
    """
    K = cell.num_positions
    keys = ("run", "request", "step", "position")
    frame = (
        cell.frame.select(
            *keys,
            "dataset",
            "prompt",
            *columns,
            survived=pl.col("accepted").fill_null(value=False),
            stop=(pl.col("excluded") & _AFTER_STOP) != 0,
            bad=((pl.col("excluded") & ~_AFTER_STOP) != 0) | ~ADMITTED | ~PLACED,
            left=(pl.col("output_tokens") - pl.col("output_index")).fill_null(K + 1),
        )
        .sort(keys)
        .collect()
    )
    first = _starts(frame, ("run", "request", "step"))
    sizes = np.diff(first, append=len(frame))
    bad = frame["bad"].fill_null(value=True).to_numpy()
    good = (sizes == K) & ~np.logical_or.reduceat(bad, first) if len(first) else sizes == K
    if not good.any():
        raise InputError(
            f"run {cell.run} ({cell.drafting}): no proposal has all {K} drafts sent, graded and "
            "eligible, so nothing can be simulated"
        )
    frame = frame.filter(np.repeat(good, sizes))
    return _shape(cell, frame, int(np.count_nonzero(~good)), num_folds)


def _starts(frame: pl.DataFrame, keys: tuple[str, ...]) -> IntArray:
    """Return where the keys change, rows being sorted by them."""
    new = np.zeros(len(frame), dtype=np.bool_)
    new[:1] = True
    for key in keys:
        values = frame[key].to_numpy()
        new[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(new)


def _shape(cell: Cell, frame: pl.DataFrame, dropped: int, num_folds: int) -> CompleteProposals:
    K = cell.num_positions
    head = frame.gather_every(K)
    stop = frame["stop"].to_numpy().reshape(-1, K)
    grid = make_grid(
        cell, frame.drop("request", "step", "stop", "bad", "left"), _deal(cell, head, num_folds)
    )
    # a request may end with its last draft: no row then lies behind the end
    left = head["left"].to_numpy().astype(np.int64)
    accepted = np.minimum((grid.survived & ~stop).sum(axis=1), left)
    starts = _starts(head, ("run", "request"))
    lengths = np.diff(starts, append=len(head))
    return CompleteProposals(
        **{each.name: getattr(grid, each.name) for each in fields(grid)},
        accepted=accepted,
        bonus=np.asarray(~stop.any(axis=1) & (accepted < left), dtype=np.int64),
        age=np.arange(len(head)) - np.repeat(starts, lengths),
        requests=head["request"].to_numpy()[starts],
        starts=starts,
        lengths=lengths,
        keys=head.select("run", "request", "step"),
        num_dropped=dropped,
    )


def _deal(cell: Cell, head: pl.DataFrame, num_folds: int) -> IntArray:
    """Return the fold of each prompt, dealt out by its proposals."""
    dataset, prompt = (head[c].to_numpy().astype(np.int64) for c in ("dataset", "prompt"))
    folds = min(num_folds, len(np.unique(prompt)))
    fold = assign_folds(dataset, prompt, folds) if folds > 1 else np.zeros_like(prompt)
    return fold_by_prompt(prompt, fold, len(cell.prompts))


class Predictions:
    """Conditional log-odds and survivals of predictors, cross-fitted, made when asked for."""

    def __init__(self, proposals: CompleteProposals, predictors: Sequence[Predictor]) -> None:
        self._proposals = proposals
        P, K = len(proposals), proposals.num_positions
        self._shape = (P, K)
        self.missing = {
            p.name: column
            for p in predictors
            for column in p.columns
            if proposals.rows[column].null_count()
        }
        self._usable = {p.name: p for p in predictors if p.name not in self.missing}
        self._labels = np.arange(K) < proposals.accepted[:, None]
        self._known = np.arange(K) < proposals.labelled[:, None]
        self._log_odds: dict[str, FloatArray] = {}

    def has(self, name: str) -> bool:
        """Whether the log lets this predictor be computed."""
        if name in SURVIVAL:
            return all(self.has(n) for n in (SURVIVAL[name].drawn, SURVIVAL[name].at_draw))
        return name.removesuffix(STS) in self._usable

    def feature(self, name: str) -> FloatArray:
        """Return a predictor's feature (P, K); zeros for a floor."""
        own = self._usable[name].feature
        if own is None:
            return np.zeros(self._shape)
        values = self._proposals.rows.select(own.expr.cast(pl.Float64)).to_series().to_numpy()
        if not np.isfinite(values).all():
            raise InputError(f"feature of {name} is not finite on some rows")
        return self._proposals.spread(values)

    def log_odds(self, name: str) -> FloatArray:
        """Return conditional log-odds (P, K), fitted without the rows of the own fold."""
        if name not in self._log_odds:
            scaled = name.endswith(STS)
            make = self._scale if scaled else self._fit
            self._log_odds[name] = make(self._usable[name.removesuffix(STS)])
        return self._log_odds[name]

    def survival(self, name: str) -> Survivals:
        """Return survivals (K, P) float32, not rising along K."""
        if name in SURVIVAL:
            combined = SURVIVAL[name]
            log_survival = combined.combine(
                self.log_odds(combined.drawn), self.log_odds(combined.at_draw)
            )
        else:
            log_survival = product(self.log_odds(name))
        return falling(np.exp(log_survival).T)

    def labels(self) -> Survivals:
        """Return the truth as survivals (K, P): what a clairvoyant knows."""
        return np.ascontiguousarray(self._labels.T.astype(np.float32))

    def _fit(self, predictor: Predictor) -> FloatArray:
        feature = self.feature(predictor.name)
        if predictor.fit is None:
            return feature
        fold = self._proposals.fold
        out = np.empty(self._shape)
        for held_out in range(int(fold.max()) + 1):
            inside = fold == held_out
            # with one group there is nothing else to train on
            train = self._known & (~inside if not inside.all() else inside)[:, None]
            rows, position = _sample(train, TRAINING_ROWS)
            fit = predictor.fit(
                feature[rows, position],
                position,
                self._labels[rows, position],
                self._shape[1],
            )
            slopes, intercepts = _filled(fit)
            out[inside] = slopes * feature[inside] + intercepts
        return out

    def _scale(self, predictor: Predictor) -> FloatArray:
        """Return log-odds over temperatures that were chosen without the own fold."""
        log_odds, fold = self.log_odds(predictor.name), self._proposals.fold
        # Behind the end of a request nobody knows what would have survived.
        ended = (self._proposals.bonus == 0)[:, None] & ~self._labels
        known = np.where(ended, np.nan, log_odds)
        out = np.empty(self._shape)
        for held_out in range(int(fold.max()) + 1):
            inside = fold == held_out
            train = np.flatnonzero(~inside if not inside.all() else inside)
            train = train[:: max(1, len(train) // STS_PROPOSALS)]
            out[inside] = log_odds[inside] / fit_sts(known[train], self._labels[train]).temperatures
        return out


def _sample(chosen: np.ndarray[Any, Any], most: int) -> tuple[IntArray, IntArray]:
    """Return where a (P, K) mask is set; at most so many places, evenly spread."""
    rows, position = np.nonzero(chosen)
    if len(rows) <= most:
        return rows, position
    spread = np.linspace(0, len(rows) - 1, most).astype(np.int64)
    return rows[spread], position[spread]


def _filled(fit: Fit) -> tuple[FloatArray, FloatArray]:
    """Give a position without training rows the coefficients of the one before."""
    known = np.isfinite(fit.intercepts) & np.isfinite(fit.slopes)
    last = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    last = np.where(last < 0, int(np.argmax(known)), last)
    return fit.slopes[last], fit.intercepts[last]


def falling(survivals: Survivals) -> Survivals:
    """Return the running minimum along K of (K, P) survivals, as float32."""
    return np.ascontiguousarray(np.minimum.accumulate(survivals, axis=0).astype(np.float32))


def calibrated(survivals: Survivals, truth: Survivals, fold: IntArray) -> Survivals:
    """Return survivals with their own order at each position, calibrated isotonically.

    Fitted on one half of the folds and applied to the other.
    """
    from sklearn.isotonic import IsotonicRegression

    half = fold % 2 == 0
    out = np.empty(survivals.shape)
    for k, (own, label) in enumerate(zip(survivals, truth, strict=True)):
        for train, test in ((half, ~half), (~half, half)):
            rows = np.flatnonzero(train if train.any() else test)
            rows = rows[:: max(1, len(rows) // ISOTONIC_ROWS)]
            model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
            if test.any():
                out[k, test] = model.fit(own[rows], label[rows]).predict(own[test])
    return falling(out)


def reordered(survivals: Survivals, oracle: Survivals) -> Survivals:
    """Return survivals with their own values at each position, in the oracle's order.

    Examples
    --------
    >>> reordered(np.array([[0.25, 0.5, 0.75]]), np.array([[0.6, 0.2, 0.4]])).tolist()
    [[0.75, 0.25, 0.5]]
    """
    out = np.empty(survivals.shape)
    for k, (own, best) in enumerate(zip(survivals, oracle, strict=True)):
        out[k, np.argsort(best, kind="stable")] = np.sort(own)
    return falling(out)
