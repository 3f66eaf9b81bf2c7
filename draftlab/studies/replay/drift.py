"""Drift experiments: a log's proposals in another order, to see how estimators follow a change."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.features import clamp
from draftlab.log.reader import DraftLog, open_any
from draftlab.metrics import log_loss
from draftlab.online.smoothing import SMOOTHED, Smoother
from draftlab.predictors.logistic import Fit, fit_logistic
from draftlab.results import Result, study, tidy
from draftlab.studies.replay.replay import (
    OFFLINE,
    ReplayOptions,
    ReplaySettings,
    RunReplay,
    describe_settings,
    features_of,
    make_settings,
    replay_source,
)
from draftlab.studies.replay.rows import Source, derive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.features import Feature
    from draftlab.log.reader import Run

HARDEST = "default"
"""Name of the scenario that `default_scenario` chooses."""
RECOVERED = 0.01
"""Recovered: a window's log-loss is within so many nats of the offline fit to the same traffic."""


@dataclass(frozen=True)
class Segment:
    """Traffic of one mix for a number of engine steps."""

    mix: tuple[tuple[str, float], ...]
    """Workloads with their weights."""
    steps: int

    @property
    def name(self) -> str:
        """The mix as written in a scenario."""
        parts = (w if weight == 1 else f"{w}={weight:g}" for w, weight in self.mix)
        return "+".join(parts)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Drift(Result):
    """Tidy results of `drift`."""

    command = "drift"

    recovery: pl.DataFrame = tidy(
        """One row per estimator and switch: run, estimator, switch_step, before, after,
        recovery_steps (until a window is within 0.01 nats of the offline fit to the new traffic;
        null: not before the next switch), cost_nats (excess log-loss summed over the drafts until
        then), log_loss and ece over the segment's windows, offline_log_loss and offline_ece beside
        them, stale_log_loss (of the fit to the traffic before, never moved: what there was to
        recover from), overshoots in the segment."""
    )
    coefficients: pl.DataFrame = tidy("""Of the replay of the whole scenario, as in `Replay`.""")
    metrics: pl.DataFrame = tidy(
        """Of the replay of the whole scenario, as in `Replay`; regret is against one fit to all of
        it."""
    )
    summary: pl.DataFrame = tidy("""Of the replay of the whole scenario, as in `Replay`.""")
    scenario: tuple[Segment, ...]

    @classmethod
    def parse_facts(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the scenario from what stands in result.json."""
        return {"scenario": tuple(_to_segment(segment) for segment in facts["scenario"])}

    def segments(self) -> list[tuple[int, str]]:
        """Return the first step and the traffic of each segment, in order."""
        ends = itertools.accumulate(segment.steps for segment in self.scenario)
        return list(zip([0, *ends], (segment.name for segment in self.scenario), strict=False))


def parse_scenario(text: str, *, repeat: int = 1) -> tuple[Segment, ...]:
    """Read a scenario: ``copying@300 > fiction@300``, ``copying=3+fiction=1@200 > fiction@200``.

    Raises
    ------
    InputError
        The text is not of this form.
    """
    segments = []
    for piece in text.split(">"):
        mix, at, steps = piece.strip().partition("@")
        if not at or not steps.strip().isdigit() or int(steps) < 1:
            raise InputError(
                f"scenario {piece.strip()!r}: wanted WORKLOAD@STEPS or A=3+B=1@STEPS, joined by >"
            )
        segments.append(Segment(tuple(_weight(part) for part in mix.split("+")), int(steps)))
    return tuple(segments) * repeat


def _weight(text: str) -> tuple[str, float]:
    name, equals, weight = text.strip().partition("=")
    try:
        value = float(weight) if equals else 1.0
    except ValueError:
        value = 0.0
    if not name or value <= 0:
        raise InputError(f"scenario part {text.strip()!r}: wanted WORKLOAD or WORKLOAD=WEIGHT")
    return name.strip(), value


def _to_segment(content: dict[str, Any]) -> Segment:
    mix = tuple((str(name), float(weight)) for name, weight in content["mix"])
    return Segment(mix, int(content["steps"]))


@study
def drift(
    log: DraftLog | str | Path,
    scenario: str | Sequence[Segment] = HARDEST,
    *,
    repeat: int = 1,
    proposals_per_step: int = 64,
    where: str | None = None,
    out: str | Path | None = None,
    **options: Unpack[ReplayOptions],
) -> Drift:
    """Replay estimators over traffic that changes, built from the proposals of a log's first run.

    Every step takes ``proposals_per_step`` whole proposals from its mix, in the log's order; a
    workload that runs out begins again. The verdict comes one step later, as live.

    Parameters
    ----------
    log : path or DraftLog
    scenario : str or sequence of Segment
        ``copying@300 > fiction=3+chat=1@300``: traffic and engine steps of each segment; or
        ``default``, the hardest change between two workloads and back, five refits to a segment.
    repeat : int
        How often the scenario is run through.
    proposals_per_step : int
        Requests in a step.
    where : str, optional
        Part of the log, as in `DraftLog.narrow`: ``"temperature = 0 and prompt_tokens > 100"``.
    out : path, optional
        Write the result there.
    **options
        Keywords of `replay`. Windows are 10 steps unless told; the offline fit is always made,
        recovery is measured against it.

    Raises
    ------
    InputError
        A workload that the log lacks, a scenario of another form, or the errors of `replay`.
    """
    if taken := [n for n in ("offline", "snapshot") if n in options]:
        raise InputError(f"drift does not take {taken[0]}: it begins anew, beside the offline fit")
    options = {"window": 10, **options, "offline": True}
    chosen = make_settings(**options)
    opened = open_any(log, where)
    run = opened.runs[0]
    segments = _segments(opened, scenario, repeat, 5 * chosen.constants.refit_interval)
    features = features_of(chosen)
    frame, passes = build_scenario(run, segments, features, proposals_per_step, chosen.derived)
    pieces = _segment_frames(frame, segments)
    last = int(frame.select(pl.col("verify_step").max()).item())
    source = Source(
        run, tuple(features), 0, last, chosen.window, chosen.float32, frame, chosen.derived
    )
    whole = replay_source(source, replace(chosen, snapshot=False))
    offline = [_offline(source, piece, chosen) for piece in pieces]
    stale = _stale(pieces, chosen.feature, source.num_positions)
    return Drift(
        recovery=_recovery(whole, segments, offline, stale, chosen),
        coefficients=whole.coefficients,
        metrics=whole.metrics,
        summary=whole.summary,
        scenario=segments,
        notes=whole.notes,
        settings=describe_settings(chosen)
        | {
            "scenario": " > ".join(f"{s.name}@{s.steps}" for s in segments),
            "proposals_per_step": proposals_per_step,
            "passes": passes,
        },
        provenance={},
    )


def _segments(
    log: DraftLog, scenario: str | Sequence[Segment], repeat: int, steps: int
) -> tuple[Segment, ...]:
    if scenario == HARDEST:
        return default_scenario(log, steps=steps) * repeat
    if isinstance(scenario, str):
        return parse_scenario(scenario, repeat=repeat)
    return tuple(scenario) * repeat


def default_scenario(log: DraftLog | str | Path, *, steps: int = 500) -> tuple[Segment, ...]:
    """Return the hardest abrupt change between two workloads of a log's first run, and back.

    Hardest: the fit to the first costs most on the second, in log-loss above the second's own.

    Raises
    ------
    InputError
        The run has fewer than two workloads with labels.
    """
    run = open_any(log).runs[0]
    rows = (
        run.scan("drafts")
        .filter(pl.col("accepted").is_not_null())
        .join(run.scan("requests").select("request", "dataset"), on="request")
        .filter(pl.col("dataset").is_not_null())
        .select("dataset", "position", "accepted", "excluded", _FEATURE)
        .collect()
    )
    found = {
        str(name): _labels(part, _FEATURE) for (name,), part in sorted(rows.group_by("dataset"))
    }
    workloads = {name: labels for name, labels in found.items() if len(labels.feature)}
    if len(workloads) < 2:
        raise InputError(
            f"{run.path}: a drift scenario needs two workloads with labels, found {len(workloads)}"
        )
    K = int(run.metadata["num_speculative_tokens"])
    fits = {name: fit_logistic(*labels, K) for name, labels in workloads.items()}
    own = {name: _stale_loss(fits[name], fits[name], workloads[name]) for name in workloads}

    def cost(pair: tuple[str, str]) -> float:
        before, after = pair
        return _stale_loss(fits[before], fits[after], workloads[after]) - own[after]

    before, after = max(itertools.permutations(workloads, 2), key=cost)
    return tuple(Segment(((name, 1.0),), steps) for name in (before, after, before))


_FEATURE = "logit_qmax"
_ENOUGH = 100
"""Rows at a position; the intercept of fewer may lie anywhere."""


class _Labels(NamedTuple):
    """Eligible labelled rows with a feature, as `fit_logistic` takes them."""

    feature: FloatArray
    position: IntArray
    accepted: BoolArray


def _labels(frame: pl.DataFrame, feature: str) -> _Labels:
    rows = frame.filter(pl.col("excluded") == 0, pl.col(feature).is_not_null())
    columns = rows.select(clamp(feature), pl.col("position").cast(pl.Int64), "accepted")
    return _Labels(*(column.to_numpy() for column in columns))


def _stale_loss(before: Fit, own: Fit, labels: _Labels) -> float:
    """Return the log-loss of the fit to other rows; at positions that it hardly saw, of the own."""
    x, position, accepted = labels
    known = before.counts[position] >= _ENOUGH
    log_odds = np.where(known, before.log_odds(x, position), own.log_odds(x, position))
    return log_loss(accepted, log_odds)


def build_scenario(
    run: Run,
    scenario: Sequence[Segment],
    features: Sequence[str],
    proposals_per_step: int,
    derived: Mapping[str, Feature] | None = None,
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the labelled rows of a scenario, with new steps, in order of the verdict.

    Columns: step, verify_step, position, accepted, excluded and the features. Second, how often
    the scenario goes through the labelled proposals of each of its workloads.
    """
    requests = run.scan("requests").select("request", "dataset")
    drafts = run.scan("drafts")
    if SMOOTHED in features:  # along the requests of the log, before they are cut apart
        drafts = Smoother().add(drafts.sort("step", maintain_order=True).collect()).lazy()
    rows = (
        drafts.filter(pl.col("accepted").is_not_null())
        .join(requests, on="request")
        .sort("step", "slot", "position")
        .with_columns(derive(features, derived or {}))
        .select("dataset", "step", "slot", "position", "accepted", "excluded", *features)
        .with_columns(proposal=pl.struct("step", "slot").rank("dense").over("dataset") - 1)
        .collect()
    )
    by_dataset = {str(name): part for (name,), part in rows.group_by("dataset")}
    for segment in scenario:
        for name, _ in segment.mix:
            if name not in by_dataset:
                raise InputError(
                    f"{run.path}: no workload {name!r}; known: {', '.join(sorted(by_dataset))}"
                )
    taken = {name: 0 for segment in scenario for name, _ in segment.mix}
    frames, step = [], 0
    for segment in scenario:
        for name, count in _shares(segment, proposals_per_step):
            order = _schedule(by_dataset[name], taken, name, count, segment.steps, step)
            frames.append(order)
        step += segment.steps
    frame = (
        pl.concat(frames)
        .sort("verify_step", "position", maintain_order=True)
        .select("step", "verify_step", "position", "accepted", "excluded", *features)
    )
    return frame, {name: n / _count_proposals(by_dataset[name]) for name, n in taken.items()}


def _shares(segment: Segment, proposals_per_step: int) -> list[tuple[str, int]]:
    """Split the proposals of a step among the workloads of a mix, at least one each."""
    total = sum(weight for _, weight in segment.mix)
    edges = np.cumsum([0.0, *(weight / total for _, weight in segment.mix)])
    counts = np.diff(np.round(edges * proposals_per_step)).astype(int)
    return [(name, max(1, int(n))) for (name, _), n in zip(segment.mix, counts, strict=True)]


def _schedule(
    rows: pl.DataFrame, taken: dict[str, int], name: str, count: int, steps: int, first: int
) -> pl.DataFrame:
    """Give the next proposals of a workload their steps, beginning again where they run out."""
    available = _count_proposals(rows)
    wanted = np.arange(taken[name], taken[name] + count * steps)
    taken[name] += count * steps
    order = pl.DataFrame(
        {
            "proposal": wanted % available,
            "new_step": first + (wanted - wanted[0]) // count,
        }
    ).cast({"proposal": rows.schema["proposal"]})
    return order.join(rows, on="proposal", how="left", maintain_order="left").with_columns(
        step=pl.col("new_step"), verify_step=pl.col("new_step") + 1
    )


def _count_proposals(rows: pl.DataFrame) -> int:
    return int(rows.select(pl.col("proposal").max()).item()) + 1


def _stale(pieces: Sequence[pl.DataFrame], feature: str, num_positions: int) -> list[float]:
    """Return the log-loss on each segment of the fit to the one before; NaN for the first."""
    labels = [_labels(piece, feature) for piece in pieces]
    fits = [fit_logistic(*one, num_positions) if len(one.feature) else None for one in labels]
    return [float("nan")] + [
        _stale_loss(before, own, one) if before and own else float("nan")
        for (before, own), one in zip(itertools.pairwise(fits), labels[1:], strict=True)
    ]


def _segment_frames(frame: pl.DataFrame, scenario: Sequence[Segment]) -> list[pl.DataFrame]:
    """Cut by the step of the verdict, as windows are: the first step grades the former traffic."""
    edges = np.cumsum([0, *(segment.steps for segment in scenario)])
    return [
        frame.filter(pl.col("verify_step").is_between(a, b - 1))
        for a, b in itertools.pairwise(edges.tolist())
    ]


def _offline(source: Source, frame: pl.DataFrame, settings: ReplaySettings) -> pl.DataFrame:
    """Return the windows of the offline fit to one segment, graded on that segment."""
    alone = replay_source(replace(source, frame=frame), replace(settings, estimators=()))
    return alone.metrics.filter(pl.col("estimator") == OFFLINE)


def _recovery(
    whole: RunReplay,
    scenario: Sequence[Segment],
    offline: list[pl.DataFrame],
    stale: list[float],
    settings: ReplaySettings,
) -> pl.DataFrame:
    rows = []
    start = 0
    for index, segment in enumerate(scenario):
        end = start + segment.steps
        for name in settings.estimators:
            if index:
                before = scenario[index - 1].name
                row = _recover(whole, name, offline[index], (start, end), settings.window)
                place = {"switch_step": start, "before": before, "after": segment.name}
                rows.append(place | row | {"stale_log_loss": stale[index]})
        start = end
    names = whole.summary.select("run", "pair", "drafting").row(0, named=True)
    table = pl.DataFrame(rows, schema=_RECOVERY)
    return table.select(*(pl.lit(v).alias(k) for k, v in names.items()), pl.all())


_RECOVERY = {
    "switch_step": pl.Int64, "before": pl.String, "after": pl.String, "estimator": pl.String,
    "recovery_steps": pl.Int64, "cost_nats": pl.Float64, "n": pl.Int64, "log_loss": pl.Float64,
    "offline_log_loss": pl.Float64, "stale_log_loss": pl.Float64, "ece": pl.Float64,
    "offline_ece": pl.Float64, "overshoots": pl.Int64,
}  # fmt: skip


def _recover(
    whole: RunReplay, name: str, offline: pl.DataFrame, steps: tuple[int, int], window: int
) -> dict[str, Any]:
    start, end = steps
    inside = pl.col("first_step").is_between(start, end - window)
    own = whole.metrics.filter((pl.col("estimator") == name) & inside)
    best = offline.select("window", best="log_loss", best_ece="ece")
    joined = own.join(best, on="window", how="inner")
    joined = joined.with_columns(excess=pl.col("log_loss") - pl.col("best"))
    near = joined["excess"] <= RECOVERED
    at = int(near.arg_max() or 0) if near.any() else None
    until = joined[: len(joined) if at is None else at]
    total = int(joined["n"].sum())

    def mean(column: str) -> float:
        return float((joined[column] * joined["n"]).sum()) / total if total else float("nan")

    refits = whole.coefficients.filter(
        (pl.col("estimator") == name) & pl.col("step").is_between(start, end - 1)
    )
    return {
        "estimator": name,
        "recovery_steps": None if at is None else int(joined["first_step"][at]) - start,
        "cost_nats": float((until["excess"] * until["n"]).sum()),
        "n": total,
        "log_loss": mean("log_loss"),
        "offline_log_loss": mean("best"),
        "ece": mean("ece"),
        "offline_ece": mean("best_ece"),
        "overshoots": refits.filter(pl.col("overshoot"))["refit"].n_unique(),
    }
