"""Drive one online estimator along rows in the order of their verdicts, and grade it by window."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from draftlab import metrics
from draftlab.online.estimator import Estimator, Labels, Refit, probability
from draftlab.predictors.logistic import fit_logistic
from draftlab.studies.replay.ranking import count_wins
from draftlab.studies.replay.rows import Source, VerdictRows

if TYPE_CHECKING:
    from draftlab._types import FloatArray

_BINS = 15

COEFFICIENTS = {
    "estimator": pl.String, "refit": pl.Int64, "step": pl.Int64, "position": pl.Int16,
    "slope": pl.Float64, "intercept": pl.Float64, "count": pl.Int64, "slope_step": pl.Float64,
    "intercept_step": pl.Float64, "refused": pl.String, "limited": pl.Boolean,
    "overshoot": pl.Boolean,
}  # fmt: skip
"""Schema of the table of coefficients, one row per refit and position."""


@dataclass
class WindowSums:
    """What was graded, as additive sums by window; rows of one window arrive together."""

    windows: list[np.ndarray[Any, Any]] = field(default_factory=list)
    columns: list[dict[str, np.ndarray[Any, Any]]] = field(default_factory=list)

    def add(self, rows: VerdictRows, logit: FloatArray, prob: FloatArray | None = None) -> None:
        """Grade the eligible rows of whole windows, in order of the windows."""
        y, z, window = rows.accepted, logit, rows.window
        p = probability(logit) if prob is None else prob
        if not rows.eligible.all():
            y, z, window, p = (values[rows.eligible] for values in (y, z, window, p))
        if not len(y):
            return
        starts = np.concatenate(([0], np.flatnonzero(window[1:] != window[:-1]) + 1))
        counts = np.diff(starts, append=len(y))
        bins = metrics.bin_index(p, metrics.bin_edges(_BINS))
        bins += np.repeat(np.arange(len(starts)) * _BINS, counts)
        size = len(starts) * _BINS
        labels = np.bincount(2 * bins + y, minlength=2 * size).reshape(-1, _BINS, 2)
        error = y - p
        # log(1 + e^-|z|) = -log(max(p, 1 - p)): the loss of `metrics.row_log_loss` without an exp
        loss = np.maximum((1.0 - 2.0 * y) * z, 0.0) - np.log(np.maximum(p, 1 - p))

        def by_bin(values: FloatArray) -> FloatArray:
            return metrics.sum_by(bins, values, size).reshape(-1, _BINS)

        self.windows.append(window[starts])
        self.columns.append(
            {
                "n": counts,
                "n_accepted": labels[..., 1].sum(axis=1),
                "prediction": np.add.reduceat(p, starts),
                "loss": np.add.reduceat(loss, starts),
                "squares": np.add.reduceat(error * error, starts),
                "wins": count_wins(y, z, starts),
                "bin_n": labels.sum(axis=2),
                "bin_accepted": labels[..., 1],
                "bin_prediction": by_bin(p),
                "bin_variance": by_bin(p * (1 - p)),
            }
        )

    def table(self, source: Source) -> pl.DataFrame:
        """Return a row per window that graded anything, then one for the whole run."""
        windows = np.concatenate([*self.windows, [-1]])
        sums = {name: np.concatenate([c[name] for c in self.columns]) for name in self.columns[0]}
        total = {name: values.sum(axis=0, keepdims=True) for name, values in sums.items()}
        pairs = 2 * sums["n_accepted"] * (sums["n"] - sums["n_accepted"])
        total_pairs = pairs.sum(keepdims=True)
        sums = {name: np.concatenate([sums[name], total[name]]) for name in sums}
        pairs = np.concatenate([pairs, total_pairs])
        n = sums["n"]
        null, _ = metrics.ece_null_of_bins(sums["bin_n"].astype(np.int64), sums["bin_variance"])
        whole = windows < 0
        frame = pl.DataFrame(
            {
                "window": windows,
                "first_step": source.first_step + windows * source.window,
                "n": n,
                "n_accepted": sums["n_accepted"],
                "mean_prediction": metrics.divide(sums["prediction"], n),
                "log_loss": metrics.divide(sums["loss"], n),
                "brier": metrics.divide(sums["squares"], n),
                "ece": metrics.ece_of_bins(
                    sums["bin_n"], sums["bin_accepted"], sums["bin_prediction"]
                ),
                "ece_null": null,
                "auc": metrics.divide(sums["wins"], pairs),
            }
        )
        missing = pl.Series(whole)
        return frame.filter((pl.col("n") > 0) | missing).with_columns(
            pl.when(pl.col("window") >= 0).then(pl.col(name)).alias(name)
            for name in ("window", "first_step")
        )


@dataclass
class GroupSums:
    """What was graded, by the code of each row's group."""

    sums: dict[int, WindowSums] = field(default_factory=dict)

    def add(self, rows: VerdictRows, logit: FloatArray, prob: FloatArray | None = None) -> None:
        """Grade the rows of whole windows, group by group; nothing where rows have no group."""
        if rows.by is None:
            return
        for code in np.unique(rows.by[rows.eligible]).tolist():
            here = rows.by == code
            part = replace(
                rows,
                accepted=rows.accepted[here],
                eligible=rows.eligible[here],
                window=rows.window[here],
            )
            own = self.sums.setdefault(code, WindowSums())
            own.add(part, logit[here], None if prob is None else prob[here])

    def table(self, source: Source) -> pl.DataFrame:
        """Return a row per group, over the whole run; the group stands in ``by``."""
        assert source.grouping is not None
        labels = source.grouping.labels
        return pl.concat(
            self.sums[code]
            .table(source)
            .filter(pl.col("window").is_null())
            .drop("window", "first_step")
            .select(pl.lit(labels[code]).alias("by"), pl.all())
            for code in sorted(self.sums)
        )


@dataclass
class Driver:
    """Runs one estimator along the rows and remembers what it did."""

    name: str
    estimator: Estimator
    feature: str
    every_label: bool
    next_refit: int
    """Step whose verdicts close the round."""
    stride: int
    """Refits between two that are remembered: estimators that move at every step are thinned."""
    sums: WindowSums = field(default_factory=WindowSums)
    groups: GroupSums = field(default_factory=GroupSums)
    active: list[float] = field(default_factory=lambda: [-np.inf])
    """First step whose proposals each set of coefficients predicts."""
    slopes: list[FloatArray] = field(default_factory=list)
    intercepts: list[FloatArray] = field(default_factory=list)
    refits: list[tuple[int, Refit]] = field(default_factory=list)
    live_error: float = np.nan

    def feed(self, rows: VerdictRows, end: int) -> None:
        """Predict, grade and learn rows whose verdicts fall before step ``end``."""
        logit, prob = np.empty(len(rows)), np.empty(len(rows))
        low = 0
        while True:
            high = int(np.searchsorted(rows.verify_step, self.next_refit, side="right"))
            if high > low:
                self._learn(rows, slice(low, high), logit, prob)
            if self.next_refit >= end:
                break
            self._refit()
            low = high
        self.sums.add(rows, logit, prob)
        self.groups.add(rows, logit, prob)
        if rows.live is not None and self.name == "vllm":
            errors = np.abs(prob - rows.live)
            self.live_error = float(np.fmax(self.live_error, np.nanmax(errors)))

    def _learn(self, rows: VerdictRows, part: slice, logit: FloatArray, prob: FloatArray) -> None:
        feature, position, step = (
            rows.features[self.feature][part],
            rows.position[part],
            rows.step[part],
        )
        if step.min() >= self.active[-1]:
            z = self.slopes[-1][position] * feature + self.intercepts[-1][position]
        else:
            # A label that arrives after a refit keeps the prediction of its draft time.
            epoch = np.searchsorted(self.active, step, side="right") - 1
            slopes, intercepts = np.array(self.slopes), np.array(self.intercepts)
            z = slopes[epoch, position] * feature + intercepts[epoch, position]
        p = probability(z)
        logit[part], prob[part] = z, p
        used: Any = rows.eligible[part]
        if self.every_label or used.all():
            used = slice(None)  # a view
        self.estimator.learn(
            Labels(
                feature[used],
                position[used],
                z[used],
                rows.accepted[part][used],
                rows.verify_step[part][used],
                p[used],
            )
        )

    def _refit(self) -> None:
        refit = self.estimator.refit()
        step = self.next_refit
        self.active.append(step)
        self.slopes.append(self.estimator.slopes)
        self.intercepts.append(self.estimator.intercepts)
        self.refits.append((step, refit))
        self.next_refit += self.estimator.refit_interval

    def coefficients(self) -> pl.DataFrame:
        """Return the coefficients at the start and after each refit."""
        K = len(self.slopes[0])
        kept = range(0, len(self.slopes), self.stride)
        rows: list[tuple[Any, ...]] = []
        for index in kept:
            step, refit = self.refits[index - 1] if index else (None, None)
            for k in range(K):
                row = (self.name, index, step, k, self.slopes[index][k], self.intercepts[index][k])
                if refit is None:
                    rows.append((*row, 0, 0.0, 0.0, None, False, False))
                else:
                    rows.append(
                        (
                            *row,
                            int(refit.counts[k]),
                            refit.slope_step,
                            float(refit.intercept_step[k]),
                            refit.refused,
                            refit.limited,
                            refit.overshoot,
                        )
                    )
        return pl.DataFrame(rows, schema=COEFFICIENTS, orient="row")


@dataclass
class KeptRows:
    """The rows of the offline fit, six bytes each."""

    feature: str
    parts: list[tuple[np.ndarray[Any, Any], ...]] = field(default_factory=list)
    groups: list[np.ndarray[Any, Any]] = field(default_factory=list)
    """Codes of the rows' groups, where they have one."""

    def add(self, rows: VerdictRows) -> None:
        """Keep the eligible rows."""
        e = rows.eligible
        if rows.by is not None:
            self.groups.append(rows.by[e].astype(np.int8))
        self.parts.append(
            (
                rows.features[self.feature][e].astype(np.float32),
                rows.position[e].astype(np.int8),
                rows.accepted[e],
                rows.window[e].astype(np.int32),
            )
        )

    def grade(self, source: Source) -> tuple[WindowSums, GroupSums] | None:
        """Fit all rows and grade them in sample, by window and by group."""
        feature, position, accepted, window = (
            np.concatenate(part) for part in zip(*self.parts, strict=True)
        )
        if not len(feature):
            return None
        wide, k = feature.astype(np.float64), position.astype(np.int64)
        fit = fit_logistic(wide, k, accepted, source.num_positions)
        logit = fit.slopes[k] * wide + fit.intercepts[k]
        sums, groups = WindowSums(), GroupSums()
        ones = np.ones(len(wide), dtype=bool)
        by = np.concatenate(self.groups) if self.groups else None
        rows = VerdictRows(k, k, k, accepted, ones, window.astype(np.int64), {}, None, by)
        sums.add(rows, logit)
        groups.add(rows, logit)
        return sums, groups
