"""One log and everything that the tables ask of it, computed once and only when asked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from draftlab import evaluate, simulate
from draftlab.features import clamp
from draftlab.log.reader import open_log
from draftlab.metrics import correlation
from draftlab.policies.cost import DEFAULT_MODEL
from draftlab.predictors.logistic import fit_logistic
from draftlab.reporting.labels import CellKey, cells
from draftlab.studies.replay.drift import HARDEST, Drift, drift
from draftlab.studies.replay.replay import Replay, replay
from draftlab.studies.stability.stability import Stability, stability
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from draftlab.studies.evaluate import Evaluation
    from draftlab.studies.simulate.simulate import Simulation

POLICIES = ("fixed", "av/online-vllm", "av/confidence", "av/oracle")
FRONTIER_CONCURRENCIES = (1, 4, 16, 32, 64, 128, 256)
"""Points of the reproduced frontier, F2."""
REPEATS = 200
"""Of the bootstrap by prompt under correlations and spreads of coefficients."""


class Labelled(NamedTuple):
    """Graded rows as arrays."""

    feature: np.ndarray[Any, Any]  # logit_qmax, float64
    entropy: np.ndarray[Any, Any]
    position: np.ndarray[Any, Any]
    accepted: np.ndarray[Any, Any]
    dataset: np.ndarray[Any, Any]
    group: np.ndarray[Any, Any]  # codes of the prompt


class Coefficients(NamedTuple):
    """Of fits to resampled prompts, [repeats]; the first entry is the fit to all rows."""

    slope: np.ndarray[Any, Any]
    intercept_0: np.ndarray[Any, Any]
    mean_entropy: np.ndarray[Any, Any]
    acceptance: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Study:
    """A log under a name."""

    name: str
    log: Path
    scenario: str = ""
    """Of the drift experiment, for a log that is made for it; else the log chooses."""

    @cached_property
    def evaluation(self) -> Evaluation:
        return evaluate(self.log)

    @cached_property
    def in_sample(self) -> Evaluation:
        return evaluate(self.log, in_sample=True)

    @cached_property
    def cell(self) -> CellKey:
        [cell] = cells(self.evaluation)
        return cell

    @cached_property
    def stability(self) -> Stability:
        return stability(self.log)

    @cached_property
    def replay(self) -> Replay:
        return replay(self.log)

    @cached_property
    def drift(self) -> Drift:
        return drift(self.log, self.scenario or HARDEST)

    @cached_property
    def modelled(self) -> Simulation:
        return simulate(
            self.log,
            DEFAULT_MODEL,
            policies=POLICIES,
            concurrencies=FRONTIER_CONCURRENCIES,
            regret=False,
        )

    @cached_property
    def measured(self) -> Simulation:
        return simulate(self.log, "log", policies=POLICIES, concurrencies=(64,), regret=False)

    @cached_property
    def acceptance_by_position(self) -> np.ndarray[Any, Any]:
        table = self.evaluation.acceptance.filter(pl.col("dataset").is_null()).sort("position")
        return table["conditional_rate"].to_numpy()

    @cached_property
    def labelled(self) -> Labelled:
        log = open_log(self.log)
        requests = log.requests.select("run", "request", "dataset", "group")
        rows = (
            log.drafts.filter(pl.col("accepted").is_not_null(), pl.col("excluded") == 0)
            .join(requests, on=["run", "request"])
            .sort("run", "step", "slot", "position")
            .select(clamp("logit_qmax"), "entropy", "position", "accepted", "dataset", "group")
            .collect()
        )
        return Labelled(
            rows["logit_qmax"].to_numpy(),
            rows["entropy"].cast(pl.Float64).to_numpy(),
            rows["position"].to_numpy(),
            rows["accepted"].to_numpy(),
            rows["dataset"].to_numpy(),
            rows["group"].rank("dense").to_numpy() - 1,
        )

    @cached_property
    def by_workload(self) -> dict[str, Coefficients]:
        names = sorted(set(self.labelled.dataset.tolist()))
        return {
            name: resampled_fits(self.labelled, self.labelled.dataset == name) for name in names
        }

    @cached_property
    def coefficients(self) -> Coefficients:
        return resampled_fits(self.labelled, np.ones(len(self.labelled.accepted), dtype=bool))


def synthetic(folder: Path) -> Study:
    """Return a study of a synthetic log: nearly everything accepted, then ordinary traffic."""
    log = synth_log(
        folder, num_requests=400, steps_per_request=30, datasets={"easy": 6.0, "hard": -1.0}
    )
    return Study("synthetic", log, "easy@1000 > hard@2000")


def resampled_fits(rows: Labelled, chosen: np.ndarray[Any, Any]) -> Coefficients:
    """Fit logit_qmax to all chosen rows, then to `REPEATS` resamples of their prompts."""
    index = np.flatnonzero(chosen)
    index = index[np.argsort(rows.group[index], kind="stable")]
    _, starts = np.unique(rows.group[index], return_index=True)
    prompts = np.split(index, starts[1:])
    rng = np.random.default_rng(0)
    num_positions = int(rows.position.max()) + 1
    found, full = [], None
    for repeat in range(REPEATS + 1):
        drawn = rng.integers(len(prompts), size=len(prompts)) if repeat else range(len(prompts))
        here = np.concatenate([prompts[i] for i in drawn])
        fit = fit_logistic(
            rows.feature[here], rows.position[here], rows.accepted[here], num_positions, start=full
        )
        full = full or fit
        found.append(
            (fit.slope, fit.intercepts[0], rows.entropy[here].mean(), rows.accepted[here].mean())
        )
    return Coefficients(*np.array(found).T)


def correlations(by_workload: dict[str, Coefficients], name: str) -> np.ndarray[Any, Any]:
    """Return r of a coefficient with mean entropy over workloads, for each repeat."""
    entropy = np.stack([c.mean_entropy for c in by_workload.values()])
    values = np.stack([getattr(c, name) for c in by_workload.values()])
    return np.array([correlation(e, v) for e, v in zip(entropy.T, values.T, strict=True)])
