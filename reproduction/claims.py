"""Structural claims of the published tables, each with the rule that decides it.

The rules were written before the runs that they judge. Every claim becomes one number with a 95 %
interval, signed so that a positive number supports the claim: it *holds* if the interval lies
above 0 (its paired interval excludes the contrary), it *does not hold here* if the interval lies
below, and it *cannot be tested here* if 0 is inside, or if the log lacks what the claim is about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy.special import expit
from scipy.stats import chi2
from study import Coefficients, Study, correlations

from draftlab.metrics.intervals import mean_interval
from draftlab.published import PUBLISHED
from draftlab.reporting.labels import label, of_cell
from draftlab.studies.audit.audit import audit
from draftlab.studies.replay.drift import RECOVERED

HOLDS, FAILS, OPEN = "holds", "does not hold here", "cannot be tested here"


class Evidence(NamedTuple):
    """A number that is positive where the claim is right."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > 0:
            return HOLDS
        return FAILS if self.high < 0 else OPEN


class Claim(NamedTuple):
    """One published statement about stability."""

    item: str
    text: str
    rule: str
    test: Callable[[Study], Evidence | str]
    """Evidence, or why the log cannot tell."""


_PAIRED = "paired difference by prompt, 95 %"


def judge(claim: Claim, study: Study) -> dict[str, object]:
    """Return a row: item, claim, rule, log, value, low, high, verdict, remark."""
    found = claim.test(study)
    row: dict[str, object] = {
        "item": claim.item,
        "claim": claim.text,
        "rule": claim.rule,
        "log": study.name,
    }
    if isinstance(found, str):
        return row | {"value": None, "low": None, "high": None, "verdict": OPEN, "remark": found}
    remark = "the interval covers no difference" if found.verdict == OPEN else ""
    return row | found._asdict() | {"verdict": found.verdict, "remark": remark}


# ---------------------------------------------------------------- T1, T2, T3, F1


def _difference(
    study: Study, other: str, metric: str, scope: str = "overall", position: int | None = None
) -> Evidence | str:
    """Return by how much `logit_qmax` is better than another predictor on the same rows."""
    if metric == "ece":
        return _ece_difference(study, other, scope)
    rows = of_cell(study.evaluation.differences, study.cell).filter(
        pl.col("position").eq_missing(pl.lit(position, dtype=pl.Int16)),
        scope=scope,
        metric=metric,
        predictor_b=other,
    )
    if rows.is_empty():
        return f"{label(other).name} is not in the log"
    row = rows.row(0, named=True)
    better = 1 if metric == "auc" else -1
    low, high = sorted((better * row["low"], better * row["high"]))
    return Evidence(better * row["difference"], low, high)


def _ece_difference(study: Study, other: str, scope: str) -> Evidence | str:
    """Compare ECE by the null bands: no interval of ECE near 0 is valid."""
    rows = of_cell(study.evaluation.metrics, study.cell).filter(view="conditional", scope=scope)
    both = {row["predictor"]: row for row in rows.iter_rows(named=True)}
    if other not in both:
        return f"{label(other).name} is not in the log"
    ours, theirs = both["logit_qmax"], both[other]
    margin = ours["ece_null_high"] + theirs["ece_null_high"]
    gain = theirs["ece"] - ours["ece"]
    return Evidence(gain, gain - margin, gain + margin)


_METRICS = {"auc": "higher AUC", "log_loss": "lower log-loss", "ece": "lower ECE"}
_RULES = {"ece": "difference beyond the sum of both 95 % null bands"}


def _than(
    item: str, other: str, metric: str, *, scope: str = "overall", adopted_wins: bool = True
) -> Claim:
    names = [label("logit_qmax").name, label(other).name]
    better, worse = names if adopted_wins else names[::-1]
    where = " without position 0" if scope == "without_first" else ""

    def test(study: Study) -> Evidence | str:
        found = _difference(study, other, metric, scope)
        return found if isinstance(found, str) or adopted_wins else _negated(found)

    rule = _RULES.get(metric, _PAIRED)
    return Claim(item, f"{better} has {_METRICS[metric]} than {worse}{where}", rule, test)


def _negated(found: Evidence) -> Evidence:
    return Evidence(-found.value, -found.high, -found.low)


def _overconfident(study: Study) -> Evidence:
    rows = study.labelled
    return Evidence(*mean_interval(expit(rows.feature) - rows.accepted, rows.group))


_COST = 0.001


def _shared_slope(metric: str) -> Callable[[Study], Evidence | str]:
    def test(study: Study) -> Evidence | str:
        [row] = study.stability.slopes.filter(scope="overall", metric=metric).to_dicts()
        return Evidence(_COST - row["cost"], _COST - row["cost_high"], _COST - row["cost_low"])

    return test


def _lead_grows_without_first(study: Study) -> Evidence | str:
    return _apart(
        _difference(study, "confidence", "auc"),
        _difference(study, "confidence", "auc", "without_first"),
    )


def _apart(first: Evidence | str, second: Evidence | str) -> Evidence | str:
    """Return second minus first, with the most that two intervals can be apart."""
    if isinstance(first, str) or isinstance(second, str):
        return first if isinstance(first, str) else str(second)
    return Evidence(second.value - first.value, second.low - first.high, second.high - first.low)


def _head_leads_first(study: Study) -> Evidence | str:
    found = _difference(study, "confidence", "auc", "position", 0)
    return found if isinstance(found, str) else _negated(found)


def _estimator_leads_later(study: Study) -> Evidence | str:
    found = [
        _difference(study, "confidence", "auc", "position", k)
        for k in range(1, study.cell.num_speculative_tokens)
    ]
    known = [e for e in found if isinstance(e, Evidence)]
    if len(known) < len(found):
        return next(e for e in found if isinstance(e, str))
    return Evidence(*(min(getattr(e, name) for e in known) for name in ("value", "low", "high")))


def _lead_grows_with_depth(study: Study) -> Evidence | str:
    rates = study.acceptance_by_position
    if rates[-1] >= rates[0]:
        return (
            f"acceptance does not fall with depth here ({rates[0]:.3f} at position 0, "
            f"{rates[-1]:.3f} at {len(rates) - 1}), so its effect cannot appear"
        )
    last = study.cell.num_speculative_tokens - 1
    return _apart(
        _difference(study, "confidence", "auc", "position", 1),
        _difference(study, "confidence", "auc", "position", last),
    )


def _fall_beyond_block(study: Study) -> str:
    return f"K = {study.cell.num_speculative_tokens} here: no position lies beyond a block of five"


# ---------------------------------------------------------------- T4, T5


def _repeats(values: np.ndarray) -> Evidence:
    """Return the first entry with the 95 % percentile interval of the others."""
    low, high = np.nanquantile(values[1:], (0.025, 0.975))
    return Evidence(float(values[0]), float(low), float(high))


def _enough_workloads(study: Study) -> bool:
    return len(study.by_workload) >= 4


def _intercept_falls(study: Study) -> Evidence | str:
    if not _enough_workloads(study):
        return f"only {len(study.by_workload)} workloads"
    return _repeats(-correlations(study.by_workload, "intercept_0"))


def _slope_follows_less(study: Study) -> Evidence | str:
    if not _enough_workloads(study):
        return f"only {len(study.by_workload)} workloads"
    intercept = np.abs(correlations(study.by_workload, "intercept_0"))
    return _repeats(intercept - np.abs(correlations(study.by_workload, "slope")))


def _acceptance_falls(study: Study) -> Evidence | str:
    if not _enough_workloads(study):
        return f"only {len(study.by_workload)} workloads"
    return _repeats(-correlations(study.by_workload, "acceptance"))


_STABLE = 0.1


def _slope_is_stable(study: Study) -> Evidence | str:
    """Upper end of the chi-squared interval of the sd over refits, against a tenth of the slope."""
    [row] = study.stability.refit_spread.to_dicts()
    n, sd = row["refits"], row["slope_sd"]
    if n < 3:
        return f"only {n} refits"
    low, high = (sd * np.sqrt((n - 1) / chi2.ppf(q, n - 1)) for q in (0.975, 0.025))
    bound = _STABLE * row["slope_mean"]
    return Evidence(bound - sd, bound - high, bound - low)


def _slope_in_published_range(study: Study) -> Evidence:
    slopes = [
        float(row["slope"] or 0)
        for table in ("T5", "T5_pull_request")
        for row in PUBLISHED[table].records().values()
    ]
    found = _repeats(study.coefficients.slope)
    above, below = found.value - min(slopes), max(slopes) - found.value
    width = (found.value - found.low, found.high - found.value)
    if above < below:
        return Evidence(above, above - width[0], above + width[1])
    return Evidence(below, below - width[1], below + width[0])


def intercepts_spread_more(studies: list[Study]) -> Evidence | str:
    """Compare the sd over pairs of the first intercept with that of the slope."""
    if len(studies) < 3:
        return f"only {len(studies)} pairs"
    fits: list[Coefficients] = [study.coefficients for study in studies]
    spread = {
        name: np.std([getattr(fit, name) for fit in fits], axis=0, ddof=1)
        for name in ("intercept_0", "slope")
    }
    return _repeats(spread["intercept_0"] - spread["slope"])


# ---------------------------------------------------------------- T6, F2


def _gain_everywhere(study: Study, *, measured: bool) -> Evidence | str:
    simulation = study.measured if measured else study.modelled
    if measured:
        fixed = simulation.frontier.filter(pl.col("dataset").is_null(), policy="fixed")
        best = fixed.sort("tokens_per_second").row(-1, named=True)
        if best["verify_length"] == 0:
            return "plain decoding is faster than this drafter on this machine"
    rows = simulation.gains.filter(
        pl.col("dataset").is_not_null(), concurrency=64, predictor="online-vllm"
    )
    if rows.is_empty():
        return "the log has one workload only"
    if not rows["gain"].to_numpy().any():
        return "the cost is flat at this batch: trimming saves nothing"
    return Evidence(
        *(float(rows[name].to_numpy().min()) for name in ("gain", "gain_low", "gain_high"))
    )


def _on_frontier(study: Study) -> Evidence:
    """Count the concurrencies at which no fixed length, at any, is better in both speeds."""
    overall = study.modelled.frontier.filter(pl.col("dataset").is_null())
    speeds = ("tokens_per_second", "tokens_per_second_per_request")
    fixed = overall.filter(policy="fixed").select(speeds).to_numpy()
    ours = overall.filter(predictor="online-vllm").select(speeds).to_numpy()
    better = fixed[None] > ours[:, None] * (1 + 1e-9)
    share = 0.5 - float(better.all(axis=-1).any(axis=-1).mean())
    return Evidence(share, share, share)


_NEARLY = 0.02


def _estimator_equals_head(study: Study) -> Evidence | str:
    overall = study.modelled.frontier.filter(pl.col("dataset").is_null(), policy="av")
    ours = overall.filter(predictor="online-vllm").sort("concurrency")
    theirs = overall.filter(predictor="confidence").sort("concurrency")
    if theirs.is_empty():
        return "no trained head in the log"
    ratio = ours["tokens_per_second"].to_numpy() / theirs["tokens_per_second"].to_numpy()
    gap = _NEARLY - float(np.abs(ratio - 1).max())
    return Evidence(gap, gap, gap)


def _shorter_fixed_wins(study: Study) -> Evidence:
    rows = study.modelled.gains.filter(pl.col("dataset").is_null(), predictor="online-vllm")
    worst = -float(rows["gain_over_best_fixed"].to_numpy().min())
    return Evidence(worst, worst, worst)


# ---------------------------------------------------------------- A1, drift


def _proofs(kind: str) -> Callable[[Study], Evidence]:
    def test(_: Study) -> Evidence:
        checks = audit(predictors=["logit_qmax", "logit_q_sampled"]).checks.filter(kind=kind)
        passed = 1.0 if checks["passed"].all() else -1.0
        return Evidence(passed, passed, passed)

    return test


_MILD = "the change is mild: the fit to the traffic before, never moved, counts as recovered"


def _abrupt(study: Study, estimator: str) -> pl.DataFrame:
    """Return the switches after which there is something to recover from."""
    excess = pl.col("stale_log_loss") - pl.col("offline_log_loss")
    return study.drift.recovery.filter(excess > RECOVERED, estimator=estimator)


def _overshoots(study: Study) -> Evidence | str:
    rows = _abrupt(study, "vllm")
    if rows.is_empty():
        return _MILD
    count = float(rows["overshoots"].sum()) or -1.0
    return Evidence(count, count, count)


def _limited_recovers(study: Study) -> Evidence | str:
    rows = _abrupt(study, "step-limited")
    if rows.is_empty():
        return _MILD
    left = float(rows["recovery_steps"].null_count())
    return Evidence(*[1.0 if left == 0 else -left] * 3)


_NEAR, _SETTLED = 0.01, 5


def _online_near_offline(study: Study) -> Evidence | str:
    if study.scenario:
        return "this log is for the drift experiment"
    [row] = study.replay.summary.filter(estimator="vllm").to_dicts()
    if row["refits"] < _SETTLED:
        return f"{row['refits']} refits at the default interval: the rule is still starting"
    gap = _NEAR - row["regret"]
    return Evidence(gap, gap, gap)


_COUNTED = "counted, no interval"
CLAIMS: tuple[Claim, ...] = (
    *(
        _than("table-features", other, "log_loss")
        for other in ("log_qmax", "top2_margin", "entropy", "loglog_qmax", "qmax")
    ),
    *(
        _than("table-features", other, "auc")
        for other in ("log_qmax", "top2_margin", "entropy", "qmax")
    ),
    *(_than("table-features", other, "ece") for other in ("log_qmax", "entropy", "qmax")),
    *(
        _than("table-features", "logit_q_sampled", metric, adopted_wins=metric == "ece")
        for metric in ("auc", "log_loss", "ece")
    ),
    Claim(
        "table-features",
        "qmax, unfitted, predicts more than is accepted",
        "mean of qmax - label by prompt, 95 %",
        _overconfident,
    ),
    *(
        Claim(
            "table-features",
            f"one slope for all positions costs under {_COST} of {name}",
            f"{_COST} minus the {_PAIRED}",
            _shared_slope(metric),
        )
        for metric, name in (("auc", "AUC"), ("log_loss", "log-loss"))
    ),
    *(
        _than(item, "confidence", metric, scope=scope, adopted_wins=metric != "ece")
        for item, scope in (("table-head", "overall"), ("table-head-deep", "without_first"))
        for metric in ("auc", "log_loss", "ece")
    ),
    Claim(
        "table-head-deep",
        "the estimator's lead in AUC is larger without position 0",
        "the two 95 % intervals do not overlap",
        _lead_grows_without_first,
    ),
    Claim(
        "figure-position-auc",
        "the trained head has the higher AUC at position 0",
        _PAIRED,
        _head_leads_first,
    ),
    Claim(
        "figure-position-auc",
        "the estimator has the higher AUC at every later position",
        f"the least {_PAIRED}",
        _estimator_leads_later,
    ),
    Claim(
        "figure-position-auc",
        "its lead grows from position 1 to the last",
        "acceptance falls with depth, and the two 95 % intervals do not overlap",
        _lead_grows_with_depth,
    ),
    Claim(
        "figure-position-auc",
        "both lose AUC beyond the drafter's block of five",
        "needs K above 5",
        _fall_beyond_block,
    ),
    Claim(
        "table-workloads",
        "acceptance falls with mean draft entropy over workloads",
        "r by 200 resamples of prompts, 95 %",
        _acceptance_falls,
    ),
    Claim(
        "table-workloads",
        "the intercept of position 0 falls with mean draft entropy",
        "r by 200 resamples of prompts, 95 %",
        _intercept_falls,
    ),
    Claim(
        "table-workloads",
        "the slope follows entropy less than the intercept does",
        "difference of |r| by 200 resamples of prompts, 95 %",
        _slope_follows_less,
    ),
    Claim(
        "table-pairs",
        f"over refits the slope has an sd below {_STABLE} of itself",
        "chi-squared interval of the sd, 95 %",
        _slope_is_stable,
    ),
    Claim(
        "table-pairs",
        "the slope lies in the published range",
        "distance to the nearer end, 200 resamples of prompts, 95 %",
        _slope_in_published_range,
    ),
    Claim(
        "table-av-gain",
        "adaptive verification at full K gains on every workload, on the costs measured here",
        "the least paired gain at concurrency 64, 95 % by prompt",
        lambda study: _gain_everywhere(study, measured=True),
    ),
    Claim(
        "table-av-gain",
        "adaptive verification at full K gains on every workload, on the labelled cost model",
        "the least paired gain at concurrency 64, 95 % by prompt",
        lambda study: _gain_everywhere(study, measured=False),
    ),
    Claim(
        "figure-frontier",
        "adaptive verification at full K is on the frontier at most concurrencies (cost model)",
        _COUNTED,
        _on_frontier,
    ),
    Claim(
        "figure-frontier",
        f"estimator and trained head differ by under {_NEARLY:.0%} of throughput (cost model)",
        "the largest relative difference over concurrencies",
        _estimator_equals_head,
    ),
    Claim(
        "figure-frontier",
        "at some concurrency a shorter fixed length beats it (cost model)",
        _COUNTED,
        _shorter_fixed_wins,
    ),
    Claim(
        "lossless",
        "trimming by q of the drawn token changes the output, a feature of q alone does not",
        "exact rational arithmetic",
        _proofs("proof"),
    ),
    Claim(
        "lossless",
        "budget policies are exact or not as theory says",
        "exact enumeration of two requests",
        _proofs("joint"),
    ),
    Claim(
        "replay-drift",
        f"the online rule ends within {_NEAR} nats of the offline fit",
        "regret over the whole run",
        _online_near_offline,
    ),
    Claim(
        "replay-drift",
        "after an abrupt change the shipped step overshoots",
        _COUNTED + ", at switches after which the fit to the traffic before loses over 0.01 nats",
        _overshoots,
    ),
    Claim(
        "replay-drift",
        "a limited step recovers after every change",
        _COUNTED + ", at switches after which the fit to the traffic before loses over 0.01 nats",
        _limited_recovers,
    ),
)
"""In the order of the published items."""
SPREAD = Claim(
    "table-pairs",
    "the intercept of position 0 varies more between pairs than the slope does",
    "difference of the sds over pairs, 200 resamples of prompts, 95 %",
    lambda _: "needs several pairs",
)
"""Judged over all pairs at once, by `intercepts_spread_more`."""
