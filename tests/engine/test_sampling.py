"""Exact identities of the sampling maths on small vocabularies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from draftlab.engine import sampling
from tests.engine.models import truncation

EXACT = 1e-14


def distributions(vocab: int) -> st.SearchStrategy[torch.Tensor]:
    weights = arrays(np.float64, vocab, elements=st.floats(0, 1).map(lambda x: round(x, 3)))
    return weights.filter(lambda w: w.sum() > 0).map(lambda w: torch.from_numpy(w / w.sum()))


def outcome_by_enumeration(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the output distribution of one verified draft, summed over every draw."""
    out = torch.zeros_like(p)
    for x in range(len(p)):
        if q[x] == 0:
            continue
        accept = float(sampling.accept_probability(p[x : x + 1], q[x : x + 1]))
        out[x] += q[x] * accept
        rest = sampling.residual(p[None], q[None])[0]
        out += q[x] * (1 - accept) * rest / rest.sum()
    return out


@pytest.mark.slow
@given(distributions(5), distributions(5))
def test_rejection_sampling_gives_back_the_target(p: torch.Tensor, q: torch.Tensor) -> None:
    torch.testing.assert_close(outcome_by_enumeration(p, q), p, rtol=0, atol=EXACT)


@given(distributions(5), distributions(5))
def test_overlap_is_the_mean_acceptance_of_the_draw(p: torch.Tensor, q: torch.Tensor) -> None:
    drawn = q > 0
    mean = (q[drawn] * sampling.accept_probability(p[drawn], q[drawn])).sum()
    assert float(sampling.overlap(p, q)) == pytest.approx(float(mean), abs=EXACT)
    total_variation = 0.5 * (p - q).abs().sum()
    assert float(sampling.overlap(p, q)) == pytest.approx(1 - float(total_variation), abs=EXACT)


@given(distributions(6), st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_cumulative_distribution(p: torch.Tensor, uniform: float) -> None:
    index = int(sampling.draw(p[None], torch.tensor([uniform], dtype=torch.float64))[0])
    assert p[index] > 0
    cumulative = p.cumsum(0)
    below = float(cumulative[index] - p[index])
    assert below <= uniform * float(cumulative[-1]) + EXACT
    assert uniform * float(cumulative[-1]) <= float(cumulative[index]) + EXACT


def test_draw_never_takes_an_impossible_entry_at_the_ends() -> None:
    probs = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]]).double().repeat(2, 1)
    ends = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert sampling.draw(probs, ends).tolist() == [1, 3]


def test_count_accepted_stops_at_the_first_rejection() -> None:
    p = torch.tensor([[0.5, 0.1, 0.9], [0.2, 0.9, 0.9], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    q = torch.ones_like(p)
    uniform = torch.tensor([[0.4, 0.2, 0.0], [0.3, 0.0, 0.0], [0.9, 0.9, 0.9], [0.0, 0.0, 0.0]])
    assert sampling.count_accepted(p, q, uniform).tolist() == [1, 0, 3, 0]


@pytest.mark.parametrize(("target", "draft"), [((0.5, 0.5), (0.2, 0.8)), ((0.7, 0.3), (0.5, 0.5))])
def test_published_two_token_cases_without_trimming(
    target: tuple[float, float], draft: tuple[float, float]
) -> None:
    p, q = torch.tensor(target, dtype=torch.float64), torch.tensor(draft, dtype=torch.float64)
    torch.testing.assert_close(outcome_by_enumeration(p, q), p, rtol=0, atol=EXACT)


def reference_target(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> np.ndarray:
    """Return the target's distribution by the definition, one token at a time."""
    z = logits / (temperature or 1.0)
    if temperature == 0:
        out = np.zeros_like(z)
        out[np.flatnonzero(z == z.max())[0]] = 1.0
        return out
    keep = np.isfinite(z)
    if min_p > 0:
        keep &= z >= z.max() + np.log(min_p)
    if top_k > 0:
        keep &= z >= np.sort(z)[::-1][min(top_k, len(z)) - 1]
    weight = np.where(keep, np.exp(z - z.max()), 0.0)
    weight /= weight.sum()
    if top_p < 1:
        # A token stays if the tokens strictly more likely than it hold less than top_p.
        keep &= np.array([weight[weight > w].sum() < top_p for w in weight])
    weight = np.where(keep, weight, 0.0)
    normalised: np.ndarray = weight / weight.sum()
    return normalised


@given(
    arrays(np.float64, 7, elements=st.integers(-12, 12).map(lambda x: x / 4)),
    st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    st.sampled_from([0, 1, 2, 5, 9]),
    st.sampled_from([0.05, 0.33, 0.77, 0.951, 1.0]),
    st.sampled_from([0.0, 0.013, 0.31]),
)
def test_target_distribution_is_the_definition(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = truncation(temperature, top_k, top_p, min_p)
    support = sampling.target_distribution(torch.from_numpy(logits)[None], params)
    dense = torch.zeros(1, 7, dtype=torch.float64).scatter(1, support.tokens, support.probs)[0]
    wanted = reference_target(logits, temperature, top_k, top_p, min_p)
    np.testing.assert_allclose(dense, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("first", [1, 3, 8, 500])
def test_truncation_is_exact_however_little_is_looked_at_first(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 300, generator=generator, dtype=torch.float64)
    logits = (logits * torch.linspace(0.1, 5, 40)[:, None] * 4).round() / 4  # with many ties
    monkeypatch.setattr(sampling, "FIRST_SUPPORT", first)
    for top_p in (0.3, 0.95, 0.9999):
        support = sampling.target_distribution(logits, truncation(1.0, top_p=top_p, n=40))
        dense = torch.zeros_like(logits).scatter(1, support.tokens, support.probs)
        for row in range(40):
            wanted = reference_target(logits[row].numpy(), 1.0, 0, top_p, 0.0)
            np.testing.assert_allclose(dense[row], wanted, rtol=0, atol=1e-13)


def test_rows_with_and_without_truncation_share_a_batch() -> None:
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mixed = sampling.Truncation(
        temperature=torch.tensor([1.0, 0.0, 0.7, 1.0, 0.0]).double(),
        top_k=torch.tensor([0, 0, 0, 3, 0]),
        top_p=torch.tensor([1.0, 1.0, 0.5, 1.0, 0.5]).double(),
        min_p=torch.zeros(5).double(),
    )
    dense = sampling.target_distribution(logits, mixed)
    assert dense.dense
    for row in range(5):
        alone = sampling.target_distribution(logits[row : row + 1], mixed.rows(slice(row, row + 1)))
        one = torch.zeros(1, 50, dtype=torch.float64).scatter(1, alone.tokens, alone.probs)
        torch.testing.assert_close(dense.probs[row : row + 1], one, rtol=0, atol=EXACT)
        token = logits[row].argmax()[None]
        torch.testing.assert_close(alone.prob(token), one[:, token[0]])


def test_draft_distribution_knows_the_temperature_only() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]).double()
    temperature = torch.tensor([1.0, 0.5, 0.0]).double()
    q = sampling.draft_distribution(logits, temperature, greedy=False)
    torch.testing.assert_close(q[0], logits[0].softmax(0))
    torch.testing.assert_close(q[1], (2 * logits[1]).softmax(0))
    assert q[2].tolist() == [1, 0, 0]
    greedy = sampling.draft_distribution(logits, temperature, greedy=True)
    assert greedy.tolist() == [[1, 0, 0]] * 3


def test_top_k_filtered_q_inflates_the_ratio_of_raw_q() -> None:
    """Raw q [0.5, 0.3, 0.15, 0.05], top-k 2: sampled q [0.625, 0.375], ratio 1.25."""
    raw = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).double()
    support = sampling.target_distribution(raw.log(), truncation(top_k=2))
    torch.testing.assert_close(support.probs, torch.tensor([[0.625, 0.375]]).double())
    assert float(support.probs[0, 0] / raw[0, 0]) == pytest.approx(1.25)
