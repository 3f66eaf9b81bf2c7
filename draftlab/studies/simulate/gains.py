"""What policies gain over verifying every draft, and why they gain nothing where they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from draftlab.policies.cost import USELESS, check_table
from draftlab.studies.simulate.batches import Rule
from draftlab.studies.simulate.frontier import Ran, Row, Sums, add_up, gain_over
from draftlab.studies.simulate.policies import CEILING, POLICIES, Job, name_job
from draftlab.studies.simulate.proposals import calibrated, reordered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from draftlab.studies.simulate.proposals import Survivals
    from draftlab.studies.simulate.runner import Runner

_SMALL_GAIN = 0.005
_NEARLY_ALL = 0.98
_RATE = "tokens_per_second"
_STALE_TIES = (
    "when several budgets tie the rule picks the smallest, and it ranks drafts by survival "
    "estimates that are one step old"
)
REASONS: dict[str, str] = {
    **USELESS,
    **{f"{code}_stale_ties": f"{kind}; {_STALE_TIES}" for code, kind in USELESS.items()},
    "not_rewarded": "it trims although the cost table does not reward that",
    "low_load": "at low load nearly every draft pays, so nothing is trimmed",
    "no_oracle_gain": f"even the oracle gains no more than {_SMALL_GAIN:.1%}",
    "trims_too_much": "it trims too much: it drops more good drafts than it sends bad ones",
    "cannot_tell": "its survival estimates cannot tell the drafts that pay from the others",
}
"""Why a policy gains nothing, by code, whatever the load."""


class Reason(NamedTuple):
    """Why a policy gains nothing at some load."""

    code: str
    """Of `REASONS`."""
    text: str


def gain_rows(ran: Ran) -> Iterator[Row]:
    """Yield a row per job that is not of a fixed length, against the full fixed length."""
    fixed = [job for job in ran.sums if job.is_fixed]
    if not fixed:
        return
    off = max(fixed, key=lambda job: job.length or 0)
    speed = {job: figures[_RATE] for job, figures in ran.figures.items()}
    best = max(fixed, key=lambda job: speed[job])
    ceiling = next((job for job in ran.sums if job.name == CEILING), None)
    oracle_gains = ceiling is not None and speed[ceiling] > speed[off] * (1 + _SMALL_GAIN)
    for job, sums in ran.sums.items():
        if job.is_fixed:
            continue
        change = gain_over(sums, ran.sums[off])
        captured = None
        if ceiling is not None and oracle_gains:
            captured = (speed[job] - speed[off]) / (speed[ceiling] - speed[off])
        reason = None
        if change.low <= 0:
            reason = _reason(ran, job, off, in_vain=ceiling is not None and not oracle_gains)
        yield ran.columns(job) | {
            "off_tokens_per_second": speed[off],
            "tokens_per_second": speed[job],
            "gain": change.gain,
            "gain_low": change.low,
            "gain_high": change.high,
            "off_acceptance_length": ran.figures[off]["acceptance_length"],
            "acceptance_length": ran.figures[job]["acceptance_length"],
            "best_fixed_length": best.length,
            "gain_over_best_fixed": speed[job] / speed[best] - 1,
            "captured": captured,
            "reason": None if reason is None else reason.code,
            "reason_text": None if reason is None else reason.text,
        }


def _reason(ran: Ran, job: Job, off: Job, *, in_vain: bool) -> Reason:
    """Say why a policy gains nothing over the full length; ``in_vain``: nor does the oracle."""
    figures, K = ran.figures[job], off.length or 0
    everything = figures["verified_per_step"] >= _NEARLY_ALL * K
    useless = check_table(ran.cost, requests=ran.batch.concurrency, num_speculative_tokens=K)
    if useless is not None and job.policy.rule is not None:
        if everything:
            return Reason(useless.code, str(useless))
        return Reason(f"{useless.code}_stale_ties", f"{useless.finding}; {_STALE_TIES}")
    code = "cannot_tell"
    if useless is not None:  # it looks at no cost
        code = "not_rewarded"
    elif everything:
        code = "low_load"
    elif in_vain:
        code = "no_oracle_gain"
    elif figures["lost"] > figures["wasted"]:
        code = "trims_too_much"
    return Reason(code, REASONS[code])


def explain_no_gain(gains: Sequence[Row]) -> Iterator[Reason]:
    """Yield a reason for the jobs of a cell that gain nothing alike, over all datasets mixed."""
    where: dict[tuple[str, str, str], list[int]] = {}
    for row in gains:
        if row["reason"] is not None and row["dataset"] is None:
            name = name_job(POLICIES[row["policy"]], row["predictor"], row["verify_length"])
            place = row["cost"], name, row["reason"]
            where.setdefault(place, []).append(row["concurrency"])
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (cost, name, code), concurrencies in where.items():
        alike.setdefault((cost, ", ".join(map(str, concurrencies)), code), []).append(name)
    for (cost, concurrencies_said, code), names in alike.items():
        verb = "gains" if len(names) == 1 else "gain"
        yield Reason(
            code,
            f"{cost}: {', '.join(names)} {verb} nothing at concurrency {concurrencies_said}: "
            f"{REASONS[code]}",
        )


def plain_wins(frontier: Sequence[Row]) -> Iterator[str]:
    """Yield the cost tables on which nothing beats plain decoding at any concurrency."""
    speeds: dict[str, dict[int, dict[bool, float]]] = {}
    for row in frontier:
        if row["dataset"] is None and POLICIES[row["policy"]].reads != "truth":
            by_plain = speeds.setdefault(row["cost"], {}).setdefault(row["concurrency"], {})
            plain = row["verify_length"] == 0
            by_plain[plain] = max(by_plain.get(plain, 0.0), row[_RATE])
    for cost, by_concurrency in speeds.items():
        if all(s.get(True, 0.0) > s.get(False, 0.0) > 0 for s in by_concurrency.values()):
            yield cost


def regret_rows(ran: Ran, runner: Runner) -> Iterator[Row]:
    """Split what adaptive verification loses to the oracle into ranking and calibration."""
    rule = Rule()
    jobs = [
        job
        for job in ran.sums
        if job.policy.rule == rule and job.source is not None and job.source.estimator is None
    ]
    ceiling = next((job for job in jobs if job.name == CEILING), None)
    if ceiling is None:
        return
    oracle, truth = runner.survival(ceiling.predictor), runner.survival(None)

    def speed(sums: Sums) -> float:
        return float(1e3 * sums.emitted.sum() / sums.time_ms.sum())

    def rerun(survivals: Survivals) -> float:
        ran_again = runner.run_survivals(survivals, ran.batch, ran.cost, rule)
        return speed(add_up(ran.batch, *ran_again))

    best = speed(ran.sums[ceiling])
    for job in jobs:
        if job is ceiling:
            continue
        survivals = runner.survival(job.predictor)
        yield ran.place | {
            "predictor": job.predictor,
            "tokens_per_second": speed(ran.sums[job]),
            "oracle_tokens_per_second": best,
            "regret": 1 - speed(ran.sums[job]) / best,
            "ranking": 1 - rerun(calibrated(survivals, truth, runner.proposals.fold)) / best,
            "calibration": 1 - rerun(reordered(survivals, oracle)) / best,
        }
