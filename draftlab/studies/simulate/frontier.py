"""Tokens per second and lengths from what policies admitted, with intervals by group.

The time of a step is shared equally by its requests, so that every figure is a ratio of sums
over proposals and its spread follows from the groups' own sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from draftlab.metrics.intervals import half_width, ratio_influence

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.grading.cells import Cell
    from draftlab.policies.cost import CostTable
    from draftlab.studies.simulate.policies import Job

Row = dict[str, Any]
"""Of a table."""

MEASURES = (
    "tokens_per_second",
    "tokens_per_second_per_request",
    "acceptance_length",
    "verified_per_step",
    "wasted",
    "lost",
)
"""``tokens_per_second`` of the whole batch, ``..._per_request`` is the interactivity of one user;
per request and step: ``acceptance_length`` emitted tokens, ``verified_per_step`` drafts sent to the
target, ``wasted`` of them not accepted, ``lost`` acceptable drafts that were not sent."""


@dataclass(frozen=True)
class Batch:
    """Steps of one workload at one concurrency; every policy meets the same ones."""

    rows: IntArray
    """(steps, slots): proposals."""
    accepted: IntArray
    """(steps, slots): drafts that the target accepts if all are sent."""
    bonus: IntArray
    """(steps, slots): 1, or 0 where the request ends inside the accepted drafts."""
    group: IntArray
    """(steps * slots,): codes from 0."""

    @property
    def concurrency(self) -> int:
        """Requests in a step."""
        return int(self.rows.shape[1])

    @property
    def num_prompts(self) -> int:
        """Groups that occur."""
        return int(self.group.max()) + 1


class Sums(NamedTuple):
    """Sums over the proposals of each group, (G,) float64 each."""

    emitted: FloatArray
    time_ms: FloatArray
    verified: FloatArray
    kept: FloatArray
    """Drafts sent and accepted."""
    accepted: FloatArray
    """Drafts that would be accepted if all were sent."""
    proposals: FloatArray


@dataclass(frozen=True)
class Ran:
    """What all jobs came to on one batch with one cost table."""

    cell: Cell
    dataset: str | None
    cost: CostTable
    batch: Batch
    sums: dict[Job, Sums]
    figures: dict[Job, dict[str, float]]
    """`measures` of each job."""

    @property
    def place(self) -> Row:
        """Columns that say where its rows belong."""
        return {
            "run": self.cell.run,
            "pair": self.cell.pair,
            "drafting": self.cell.drafting,
            "cost": self.cost.name,
            "cost_source": self.cost.source,
            "dataset": self.dataset,
            "concurrency": self.batch.concurrency,
        }

    def columns(self, job: Job) -> Row:
        """Return the columns that name a row: the place and the job."""
        return self.place | {
            "policy": job.policy.name,
            "predictor": job.predictor,
            "lossless": job.lossless(self.cell.strictest),
            "verify_length": job.length,
        }


def frontier_rows(ran: Ran) -> list[Row]:
    """Return one row per job, with its measures."""
    counts = {
        "n_proposals": ran.batch.rows.size,
        "n_prompts": ran.batch.num_prompts,
        "n_steps": len(ran.batch.rows),
    }
    return [ran.columns(job) | figures | counts for job, figures in ran.figures.items()]


def emitted_tokens(admitted: IntArray, accepted: IntArray, bonus: IntArray) -> IntArray:
    """Return the tokens of a proposal whose first ``admitted`` drafts are sent.

    min(admitted, accepted) drafts stand and one more token follows: the recovered one, the
    bonus, or the target's own behind the last draft sent.

    Examples
    --------
    >>> emitted_tokens(np.array([0, 2, 5]), np.array([3, 3, 3]), np.array([1, 1, 0])).tolist()
    [1, 3, 3]
    """
    return np.asarray(np.where(admitted < accepted, admitted + 1, accepted + bonus))


def add_up(batch: Batch, admitted: IntArray, step_ms: FloatArray) -> Sums:
    """Return the sums of a policy that admitted (steps, slots) drafts in (steps,) times."""
    size = batch.num_prompts

    def by_group(values: Any) -> FloatArray:
        return np.bincount(batch.group, np.ravel(values), size).astype(np.float64)

    share = np.broadcast_to((step_ms / batch.concurrency)[:, None], admitted.shape)
    return Sums(
        emitted=by_group(emitted_tokens(admitted, batch.accepted, batch.bonus)),
        time_ms=by_group(share),
        verified=by_group(admitted),
        kept=by_group(np.minimum(admitted, batch.accepted)),
        accepted=by_group(batch.accepted),
        proposals=np.bincount(batch.group, minlength=size).astype(np.float64),
    )


def _ratio(above: FloatArray, below: FloatArray) -> tuple[float, FloatArray]:
    ratio, influence = ratio_influence(above, below, np.zeros(len(above), dtype=np.int64), 1)
    return float(ratio[0]), influence


def _half(influence: FloatArray) -> float:
    return float(half_width(influence, np.zeros(len(influence), dtype=np.int64), 1)[0])


def measures(sums: Sums, concurrency: int) -> dict[str, float]:
    """Return `MEASURES`, each with _low and _high (95 % by group)."""
    n = sums.proposals
    pairs = {
        "tokens_per_second": (1e3 * sums.emitted, sums.time_ms),
        "tokens_per_second_per_request": (1e3 / concurrency * sums.emitted, sums.time_ms),
        "acceptance_length": (sums.emitted, n),
        "verified_per_step": (sums.verified, n),
        "wasted": (sums.verified - sums.kept, n),
        "lost": (sums.accepted - sums.kept, n),
    }
    out: dict[str, float] = {}
    for name, (above, below) in pairs.items():
        value, influence = _ratio(above, below)
        half = _half(influence)
        out |= {name: value, f"{name}_low": value - half, f"{name}_high": value + half}
    return out


class Gain(NamedTuple):
    """Relative change of tokens per second, paired by group."""

    gain: float
    low: float
    high: float


def gain_over(policy: Sums, base: Sums) -> Gain:
    """Return tokens per second of a policy over those of another, minus 1, with its interval.

    Both ran the same steps, so the spread is that of the difference of their logarithms.
    """
    (a, of_a), (b, of_b) = (_ratio(s.emitted, s.time_ms) for s in (policy, base))
    half = _half(of_a / a - of_b / b)
    ratio = a / b
    return Gain(ratio - 1, ratio * np.exp(-half) - 1, ratio * np.exp(half) - 1)


def pareto(tokens_per_second: FloatArray, per_request: FloatArray) -> BoolArray:
    """Return which points no other one beats in one figure without being worse in the other.

    Examples
    --------
    >>> pareto(np.array([10.0, 20.0, 15.0, 20.0]), np.array([5.0, 2.0, 2.0, 2.0])).tolist()
    [True, True, False, True]
    """
    points, of_point = np.unique(
        np.stack([-per_request, -tokens_per_second]), axis=1, return_inverse=True
    )
    best = np.minimum.accumulate(points[1])
    on = np.ones(points.shape[1], dtype=np.bool_)
    on[1:] = points[1, 1:] < best[:-1]
    return np.asarray(on[of_point.reshape(-1)])
