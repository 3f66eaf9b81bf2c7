"""Tables of replays and drift scenarios, and what they say in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from draftlab.studies.replay.drift import RECOVERED

if TYPE_CHECKING:
    from draftlab.studies.replay.drift import Drift
    from draftlab.studies.replay.replay import Replay


SUMMARY = (
    "estimator", "n", "log_loss", "regret", "ece", "auc", "refits", "refused", "overshoots",
    "diverged", "cold_start_labels", "slope",
)  # fmt: skip
"""Columns of the summary that are printed."""

DISAGREEMENT = (
    "run_a", "run_b", "estimator", "n_refits", "identical", "parted_step", "max_logit_difference",
    "mean_logit_difference", "max_probability_difference",
)  # fmt: skip
"""Columns of the comparison of sibling runs that are printed."""


def describe_replay(result: Replay) -> str:
    """Return how the estimators were run, in one sentence."""
    s = result.settings
    default = "vLLM's default" if s["refit_interval"] == 100 else "not vLLM's default of 100"
    return (
        f"feature {s['feature']}, refit every {s['refit_interval']} steps ({default}), damping "
        f"{s['damping']:g}, ridge {s['ridge']:g}; each draft is predicted before its label is "
        "learnt; regret is log-loss above the offline fit on the same rows"
    )


def recovery_table(drift: Drift) -> pl.DataFrame:
    """Return the recovery after each switch as it is printed, a row per switch and estimator."""
    return drift.recovery.select(
        "switch_step",
        change=pl.format("{} > {}", "before", "after"),
        estimator="estimator",
        recovery_steps=pl.col("recovery_steps").cast(pl.String).fill_null("not before the next"),
        cost_nats=pl.col("cost_nats").round().cast(pl.Int64, strict=False),
        log_loss="log_loss",
        excess=pl.col("log_loss") - pl.col("offline_log_loss"),
        never_moved=pl.col("stale_log_loss") - pl.col("offline_log_loss"),
        ece="ece",
        excess_ece=pl.col("ece") - pl.col("offline_ece"),
        overshoots="overshoots",
    )


def describe_drift(drift: Drift) -> str:
    """Return what a scenario was, in one sentence."""
    s = drift.settings
    passes = ", ".join(f"of {name} {count:.1f} times" for name, count in s["passes"].items())
    return (
        f"{s['scenario']}, {s['proposals_per_step']} proposals per step, refit every "
        f"{s['refit_interval']} steps. It goes through the log's own rows {passes}"
    )


def explain_recovery(drift: Drift) -> list[str]:
    """Return what the columns of `recovery_table` mean, one sentence each."""
    return [
        f"recovery: the first window of {drift.settings['window']} steps within {RECOVERED} nats "
        "of an offline fit to the new traffic",
        "cost: total extra log-loss until then, in nats",
        "excess: log-loss above the offline fit to the new traffic, over the whole segment",
        "never moved: the excess of a model that keeps its old coefficients",
    ]


def mild_switches(drift: Drift) -> list[str]:
    """Name the switches after which even a rule that never moves counts as recovered."""
    excess = pl.col("stale_log_loss") - pl.col("offline_log_loss")
    mild = drift.recovery.filter(excess <= RECOVERED).unique("switch_step", maintain_order=True)
    return [
        f"step {row['switch_step']}, {row['before']} > {row['after']}: there is nothing to recover "
        f"from, because keeping the old coefficients costs no more than {RECOVERED} nats"
        for row in mild.iter_rows(named=True)
    ]
