"""Adaptive verification step by step, against the vectorised simulation of the same rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from draftlab.errors import InputError
from draftlab.online.vllm import Constants
from draftlab.policies.adaptive import COLUMN_OF, AdaptiveVerification, Online, make_admission
from draftlab.policies.cost import CostTable, Curve
from draftlab.studies.simulate.batches import Rule, Stream, admit_adaptively, admit_online

K, SLOTS, STEPS = 3, 4, 60
COST = CostTable("toy", "model", verify=Curve((0, 100), (10.0, 90.0)), draft=Curve((1,), (2.0,)))
STEP_MS = COST.step_ms(SLOTS, SLOTS + np.arange(SLOTS * K + 1))


def stream(seed: int) -> tuple[Any, Any, Any, Any]:
    """Return a feature [K, P], accepted, age and rows: four slots, requests of fifteen steps."""
    rng = np.random.default_rng(seed)
    P = SLOTS * STEPS
    feature = rng.normal(1.0, 2.0, (K, P))
    accepted = (rng.random((K, P)) < expit(feature)).cumprod(axis=0).sum(axis=0)
    rows = np.arange(P).reshape(SLOTS, STEPS).T
    return feature, accepted, np.arange(P) % 15, rows


def columns_of(feature: Any, rows: Any) -> dict[str, Any]:
    """Return the log's columns of a step's proposals."""
    return {
        "request": np.repeat(rows // 15, K),
        "position": np.tile(np.arange(K), len(rows)),
        "logit_qmax": feature[:, rows].T.ravel(),
        "logit_q_sampled": 0.5 * feature[:, rows].T.ravel(),
    }


def run(admission: AdaptiveVerification, feature: Any, accepted: Any, rows: Any) -> Any:
    """Drive the engine's interface as the reference engine does."""
    lengths = []
    for step in rows:
        columns = columns_of(feature, step)
        columns |= admission.predict(columns)
        admitted = admission.admit(columns, num_sampling_requests=SLOTS, num_non_draft_tokens=SLOTS)
        lengths.append(admitted.lengths.tolist())
        assert sum(lengths[-1]) == admitted.budget
        position = columns["position"].reshape(-1, K)
        hits = accepted[step][:, None]
        hidden = (position >= admitted.lengths[:, None]) | (position > hits)
        columns["accepted"] = np.ma.array(position < hits, mask=hidden).ravel()
        admission.learn(columns)
    return lengths


def test_fixed_coefficients_are_the_simulated_rule() -> None:
    feature, accepted, age, rows = stream(0)
    coefficients = {"logit_qmax": (np.full(K, 0.8), np.array([0.3, 0.0, -0.3]))}
    admission = make_admission("logit_qmax", COST, K, coefficients=coefficients)
    logit = 0.8 * feature + np.array([0.3, 0.0, -0.3])[:, None]
    survivals = expit(logit).cumprod(axis=0)
    wanted = admit_adaptively(survivals, age, rows, STEP_MS, Rule())
    assert run(admission, feature, accepted, rows) == wanted.tolist()
    assert len(np.unique(wanted)) > 2


def test_an_online_estimator_is_the_simulated_one() -> None:
    feature, accepted, age, rows = stream(1)
    constants = Constants(refit_interval=10, damping=5.0)
    admission = make_admission("online-vllm", COST, K, constants=constants)
    twin = make_admission("online-vllm", COST, K, constants=constants)
    assert isinstance(twin.conditional, Online)
    labelled = np.minimum(accepted + 1, K)
    seen = Stream(feature, accepted, labelled, age)
    wanted = admit_online(twin.conditional.estimator, seen, rows, STEP_MS, Rule())
    assert run(admission, feature, accepted, rows) == wanted.tolist()
    assert isinstance(admission.conditional, Online)
    slope = admission.conditional.estimator.slopes[0]
    assert slope == pytest.approx(twin.conditional.estimator.slopes[0], rel=1e-9)
    assert slope != 0.5


def test_the_hybrid_reads_drawn_tokens_before_k_only() -> None:
    coefficients = {
        "logit_qmax": (np.ones(K), np.zeros(K)),
        "logit_q_sampled": (np.full(K, 2.0), np.zeros(K)),
    }
    admission = make_admission("hybrid", COST, K, coefficients=coefficients)
    columns = {
        "request": np.zeros(K, dtype=int),
        "position": np.arange(K),
        "logit_qmax": np.array([0.0, 1.0, 2.0]),
        "logit_q_sampled": np.array([-1.0, 0.5, 9.0]),
    }
    admission.predict(columns)
    c, d = expit([0.0, 1.0, 2.0]), expit([-2.0, 1.0, 18.0])
    wanted = np.minimum.accumulate([c[0], d[0] * c[1], d[0] * d[1] * c[2]])
    np.testing.assert_allclose(admission._pending[0], wanted)


def test_a_new_request_counts_as_certain() -> None:
    coefficients = {"constant": (np.zeros(K), np.full(K, -9.0))}
    admission = make_admission("constant", COST, K, coefficients=coefficients)
    columns = columns_of(np.zeros((K, 8)), np.arange(4))
    admission.predict(columns)
    first = admission.admit(columns, num_sampling_requests=4, num_non_draft_tokens=4)
    assert (first.budget, first.reason) == (12, "all")
    admission.predict(columns)
    second = admission.admit(columns, num_sampling_requests=4, num_non_draft_tokens=4)
    assert (second.budget, second.reason) == (0, "none")


def test_missing_logits_count_as_forty() -> None:
    admission = make_admission("qmax", COST, K)
    columns = columns_of(np.zeros((K, 2)), np.arange(1))
    columns["logit_qmax"] = np.ma.array([np.nan, 100.0, -100.0], mask=[True, False, False])
    found = admission.predict(columns)
    assert found["live_feature"].tolist() == [40.0, 40.0, -40.0]
    assert found["live_prediction"][0] == 1.0


def test_unknown_or_unfitted_predictors_are_refused() -> None:
    with pytest.raises(InputError, match="no engine can run predictor 'magic' live; known"):
        make_admission("magic", COST, K)
    for name in COLUMN_OF:
        if name in ("qmax", "confidence"):
            assert make_admission(name, COST, K).start is None
            continue
        with pytest.raises(InputError, match="is fitted"):
            make_admission(name, COST, K)
    with pytest.raises(InputError, match="3 finite numbers"):
        make_admission("constant", COST, K, coefficients={"constant": (np.zeros(2), np.zeros(2))})
