"""Which columns a configuration of vLLM offers, and why it lacks the others."""

from __future__ import annotations

import pytest

from draftlab.hooks.plan import (
    FROM_LOGITS,
    LIVE,
    RECORDED,
    SPECULATORS,
    TARGET,
    Facts,
    plan_columns,
)


def test_every_column_is_recorded_or_has_a_reason() -> None:
    for name in SPECULATORS:
        for drafting in ("greedy", "probabilistic"):
            for flag in (False, True):
                facts = Facts(name, drafting, adaptive=flag, local_argmax=flag, shadow=flag)
                columns = plan_columns(facts)
                assert set(columns) >= {*FROM_LOGITS, *LIVE, "overlap", "confidence"}
                assert all(columns.values())


@pytest.mark.parametrize(
    ("facts", "column", "says"),
    [
        (Facts("EagleSpeculator", "probabilistic"), "entropy", "recorded"),
        (Facts("EagleSpeculator", "greedy"), "logit_qmax", "recorded, as the estimator"),
        (Facts("EagleSpeculator", "greedy"), "top2_margin", "'greedy'"),
        (Facts("DFlash2Speculator", "probabilistic"), "live_feature", "candidate walk"),
        (Facts("DFlash2Speculator", "probabilistic", adaptive=True), "live_feature", "recorded"),
        (Facts("XPressSpeculator", "probabilistic"), "logit_qmax", "Jacobi"),
        (Facts("XPressSpeculator", "greedy", adaptive=True), "live_feature", "Jacobi"),
        (Facts("DSparkSpeculator", "greedy", fused=True), "live_feature", "one kernel"),
        (Facts("DSparkSpeculator", "probabilistic", fused=True), "entropy", "recorded"),
        (Facts("NgramGPUSpeculator", "greedy"), "logit_qmax", "n-gram"),
        (Facts("SomethingNew", "probabilistic"), "logit_qmax", "recorded"),
    ],
)
def test_the_plan_names_the_reason(facts: Facts, column: str, says: str) -> None:
    assert says in plan_columns(facts)[column]


def test_an_ordinary_probabilistic_drafter_records_all_but_what_is_off() -> None:
    columns = plan_columns(Facts("EagleSpeculator", "probabilistic"))
    recorded = {name for name, says in columns.items() if says == RECORDED}
    assert recorded == {*FROM_LOGITS, *LIVE}
    everything = Facts(
        "EagleSpeculator", "probabilistic", tokens=True, target=True, confidence_head=True
    )
    recorded = {name for name, says in plan_columns(everything).items() if says == RECORDED}
    assert recorded == {*FROM_LOGITS, *TARGET, "confidence", "token"}


@pytest.mark.parametrize(
    ("facts", "logits", "estimator", "source"),
    [
        (Facts("EagleSpeculator", "probabilistic"), True, True, "head"),
        (Facts("EagleSpeculator", "greedy"), False, True, "estimator"),
        (Facts("EagleSpeculator", "greedy", shadow=False), False, False, "estimator"),
        (Facts("EagleSpeculator", "greedy", shadow=False, adaptive=True), False, True, "estimator"),
        (Facts("EagleSpeculator", "probabilistic", local_argmax=True), False, False, "estimator"),
        (Facts("EagleSpeculator", "probabilistic", confidence_head=True), True, False, "head"),
        (Facts("DFlash2Speculator", "probabilistic"), True, False, "candidates"),
        (Facts("DFlash2Speculator", "probabilistic", adaptive=True), True, True, "candidates"),
        (Facts("XPressSpeculator", "probabilistic", adaptive=True), False, False, "estimator"),
        (Facts("NgramGPUSpeculator", "greedy", adaptive=True), False, False, "estimator"),
        (Facts("SomethingNew", "probabilistic"), True, True, "head"),
    ],
)
def test_where_logits_and_the_estimator_are(
    facts: Facts, logits: bool, estimator: bool, source: str
) -> None:
    assert (facts.has_logits, facts.has_estimator, facts.source) == (logits, estimator, source)
