"""Features from logits against mpmath-free closed forms, high precision and the published cases."""

from __future__ import annotations

from decimal import Decimal, getcontext
from math import inf, isnan, log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from draftlab.engine import stats
from draftlab.engine.sampling import Support
from draftlab.engine.stats import alternatives, draft_features, target_features

getcontext().prec = 60
FIVE_DIGITS = 5e-6


def features(logits: list[float], temperature: float = 1.0, token: int = 0) -> dict[str, float]:
    columns = draft_features(
        torch.tensor([logits], dtype=torch.float64),
        torch.tensor([temperature], dtype=torch.float64),
        torch.tensor([token]),
    )
    return {name: float(values[0]) for name, values in columns.items()}


def precise_log_odds(logits: np.ndarray, token: int) -> float:
    """Return a token's log-odds with 60 digits."""
    weights = [Decimal(float(z)).exp() for z in logits]
    return float((weights[token] / (sum(weights) - weights[token])).ln())


@given(arrays(np.float64, 6, elements=st.floats(-40, 40)), st.integers(0, 5))
def test_log_odds_are_exact_to_the_last_digits(logits: np.ndarray, token: int) -> None:
    found = features(logits.tolist(), token=token)
    top = int(logits.argmax())
    assert found["logit_qmax"] == pytest.approx(precise_log_odds(logits, top), rel=1e-12, abs=1e-13)
    drawn = precise_log_odds(logits, token)
    assert found["logit_q_sampled"] == pytest.approx(drawn, rel=1e-12, abs=1e-13)
    weights = [Decimal(float(z)).exp() for z in logits]
    total = sum(weights)
    entropy = -sum((w / total) * (w / total).ln() for w in weights)
    assert found["entropy"] == pytest.approx(float(entropy), rel=1e-12, abs=1e-300)
    ordered = np.sort(logits)
    assert found["top2_margin"] == ordered[-1] - ordered[-2]


def test_nearly_certain_rows_keep_their_digits() -> None:
    """log(q / (1 - q)) would be log(1 / 0) here; the feature is a plain difference."""
    found = features([60.0, 0.0])
    assert found["logit_qmax"] == 60.0
    assert found["entropy"] == pytest.approx(61 * np.exp(-60), rel=1e-14)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (0.0, (0.68674, 1.0, 0.83240)),
        (1.0, (0.68674, 1.0, 0.83240)),
        (0.5, (1.87307, 2.0, 0.44106)),
    ],
)
def test_temperature_divides_and_zero_leaves_the_logits(
    temperature: float, expected: tuple[float, float, float]
) -> None:
    """Logits [2, 1, 0]."""
    found = features([2.0, 1.0, 0.0], temperature)
    names = ("logit_qmax", "top2_margin", "entropy")
    assert [found[n] for n in names] == pytest.approx(expected, abs=FIVE_DIGITS)


def test_masked_tokens_count_for_nothing() -> None:
    """[2, -inf, -inf, 1]."""
    found = features([2.0, -inf, -inf, 1.0], token=3)
    assert found["logit_qmax"] == pytest.approx(1.0)
    assert found["top2_margin"] == 1.0
    assert found["entropy"] == pytest.approx(0.58220, abs=FIVE_DIGITS)
    assert found["logit_q_sampled"] == pytest.approx(-1.0)


def test_one_hot_row_is_infinite_and_never_nan() -> None:
    """[7, -inf, -inf]."""
    found = features([7.0, -inf, -inf])
    assert found == {
        "logit_qmax": inf,
        "top2_margin": inf,
        "entropy": 0.0,
        "logit_q_sampled": inf,
    }
    assert features([7.0, -inf, -inf], token=1)["logit_q_sampled"] == -inf


def test_tied_maximum() -> None:
    """[3, 3, -inf]; either tied token may be the drawn one."""
    for token in (0, 1):
        found = features([3.0, 3.0, -inf], token=token)
        assert found["logit_qmax"] == found["logit_q_sampled"] == 0.0
        assert found["top2_margin"] == 0.0
        assert found["entropy"] == pytest.approx(log(2))


@pytest.mark.parametrize(
    "logits", [[float("nan")] * 5, [inf, 1.0, 0.0], [1.0, float("nan"), 0.0], [-inf, -inf]]
)
def test_invalid_rows_are_nan_in_every_feature(logits: list[float]) -> None:
    """No token is invented."""
    assert all(isnan(value) for value in features(logits).values())


def test_a_padded_column_changes_the_top() -> None:
    """Three real columns, then one zero-filled pad that becomes the top."""
    real, padded = features([-1.0, -2.0, -3.0]), features([-1.0, -2.0, -3.0, 0.0])
    assert 1 / (1 + np.exp(-real["logit_qmax"])) == pytest.approx(0.66524, abs=FIVE_DIGITS)
    assert 1 / (1 + np.exp(-padded["logit_qmax"])) == pytest.approx(0.64391, abs=FIVE_DIGITS)


def test_chunks_do_not_change_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(17, 33, generator=generator).bfloat16()
    temperature = torch.rand(17, generator=generator).double()
    tokens = torch.randint(0, 33, (17,), generator=generator)
    whole = draft_features(logits, temperature, tokens)
    monkeypatch.setattr(stats, "_CHUNK_VALUES", 70)
    for name, values in draft_features(logits, temperature, tokens).items():
        assert torch.equal(values, whole[name])


def test_target_columns_by_hand() -> None:
    p = Support(
        torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]).double(),
        torch.tensor([[2, 0, 4], [3, 1, 0]]),
        dense=False,
    )
    q = torch.tensor([[0.4, 0.3, 0.2, 0.1, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0]]).double()
    found = target_features(p, q)
    assert found["target_entropy"].tolist() == pytest.approx([1.5 * log(2), 0.0])
    assert found["target_margin"].tolist() == pytest.approx([log(2), inf])
    assert found["target_rank_in_q"].tolist() == [2, 0]


def test_alternatives_are_the_top_of_q_with_the_drawn_token_among_them() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0], [0.0, 3.0, 1.0, 2.0, -1.0]]).double()
    found = alternatives(logits, torch.tensor([2.0, 0.0]), torch.tensor([3, 4]), 3)
    log_q = [
        np.log(np.exp(z) / np.exp(z).sum()) for z in (logits[0].numpy() / 2, logits[1].numpy())
    ]
    assert found["tree_rank"].tolist() == [[0, 1, 2], [0, 1, 4]]
    assert found["tree_drawn"].tolist() == [1, 2]
    for row, (own, tokens) in enumerate(zip(log_q, [[1, 3, 2], [1, 3, 4]], strict=True)):
        np.testing.assert_allclose(found["tree_log_prob"][row], own[tokens], rtol=1e-12)
